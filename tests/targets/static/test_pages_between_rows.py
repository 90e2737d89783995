"""What one row, session or state of the model leaves in pages and pools does not reach another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from copyspec.options import StaticOptions
from copyspec.targets.eager.causal import CausalTarget
from copyspec.targets.model.facts import read_facts
from copyspec.targets.rows.prefixes import Prefix
from copyspec.targets.static.static_session import StaticSession
from copyspec.targets.static.static_target import StaticTarget
from copyspec.tree import EMPTY, DraftTree
from tests.helpers import models
from tests.helpers.static import static_target

MASKS = StaticOptions(use="always", attention="masks")


def check(session: StaticSession, uncached: Sequence[list[int]], texts: Sequence[list[int]], nodes: int = 0) -> None:
    """Score these tokens, the first row with a draft; compare all rows with texts alone."""
    model = session._target.model  # type: ignore[attr-defined]
    trees = [EMPTY] * len(uncached)
    if nodes:
        trees[0] = DraftTree.of_chain(models.random_ids(nodes, seed=9))
    scores = session.score(uncached, trees)
    session.keep([()] * len(uncached))
    for row, text in enumerate(texts):
        alone = model(torch.tensor([text])).logits[0, -1]
        torch.testing.assert_close(scores[row][0], alone, atol=5e-5, rtol=1e-4, equal_nan=True)


def opened(target: StaticTarget, prompts: Sequence[list[int]]) -> StaticSession:
    session = target.open(prompts)
    assert isinstance(session, StaticSession)
    return session


@pytest.mark.parametrize("nodes", [0, 60, 103, 150, 400])
@pytest.mark.parametrize("first", [64, 65, 127, 128, 200])
@torch.inference_mode()
def test_a_row_is_read_after_the_pages_that_it_shares(first: int, nodes: int) -> None:
    target = static_target(options=MASKS)
    session = opened(target, [[5, 6]])
    check(session, [[5, 6]], [[5, 6]])
    text = models.random_ids(first, seed=1)
    texts = [text, [*text, *models.random_ids(400, seed=2)], [*text, *models.random_ids(9, seed=3)]]
    session.add(texts)
    check(session, [[7], *texts], [[5, 6, 7], *texts], nodes)
    session.close()


@pytest.mark.parametrize("attention", ["masks", "tree"])
@torch.inference_mode()
def test_a_pool_that_is_taken_over_forgets_its_rows(attention: str) -> None:
    target = static_target(options=StaticOptions(use="always", attention=attention))  # type: ignore[arg-type]
    long, texts = models.random_ids(1500, seed=3), [models.random_ids(300, seed=1), models.random_ids(20, seed=2)]
    large = opened(target, [long, [5, 6]])
    check(large, [long, [5, 6]], [long, [5, 6]])
    small = opened(target, texts)
    check(small, texts, texts)
    assert small.pool.size.pages < large.pool.size.pages
    before = large.pool
    large.close()
    for seed in range(4, 12):
        more = [models.random_ids(60, seed=seed), models.random_ids(90, seed=seed + 20)]
        texts = [text + new for text, new in zip(texts, more, strict=True)]
        check(small, more, texts)
    assert small.pool is before
    small.close()


def broken_target() -> StaticTarget:
    """Of a model whose token 9 has no finite states."""
    model = models.tiny("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[9] = torch.nan
    return StaticTarget(CausalTarget(model, read_facts(model)), MASKS)


def without_nine(count: int, seed: int) -> list[int]:
    return [token if token != 9 else 10 for token in models.random_ids(count, seed=seed)]


@torch.inference_mode()
def test_places_that_broke_are_whole_once_they_are_loaded() -> None:
    target = broken_target()
    text = without_nine(40, 1)
    session = opened(target, [text])
    check(session, [text], [text])
    layers = session.read(0, 0, 32)
    session.close()
    session = opened(target, [[9] * 40])
    check(session, [[9] * 40], [[9] * 40])
    session.close()
    session = opened(target, [text])
    session.load([Prefix(32, [layers])], 64)
    check(session, [text[32:]], [text])
    session.close()


@torch.inference_mode()
def test_what_is_not_finite_is_stored_and_loaded_so() -> None:
    target = broken_target()
    text = [*without_nine(20, 1), 9, *without_nine(19, 2)]
    session = opened(target, [text])
    check(session, [text], [text])
    layers = session.read(0, 0, 32)
    session.close()
    session = opened(target, [text, [5, 6]])
    session.load([Prefix(32, [layers]), Prefix()], 64)
    check(session, [text[32:], [5, 6]], [text, [5, 6]])
    session.close()


@torch.inference_mode()
def test_places_that_broke_are_taken_over() -> None:
    target = broken_target()
    session, texts = opened(target, [[9] * 3, [5, 6]]), [[9] * 3, [5, 6]]
    check(session, texts, texts)
    before = session.pool
    more = [without_nine(700, 1), without_nine(700, 2)]
    texts = [text + new for text, new in zip(texts, more, strict=True)]
    check(session, more, texts)
    assert session.pool is not before
    session.close()


@torch.inference_mode()
def test_pools_settle_whatever_the_order_of_sizes() -> None:
    target = static_target(options=MASKS)
    pools = []
    for _ in range(3):
        for rows, tokens in ((1, 3000), (8, 5), (2, 40)):
            prompts = [models.random_ids(tokens, seed=row) for row in range(rows)]
            session = opened(target, prompts)
            session.score(prompts, [EMPTY] * rows)
            pools.append(id(session.pool))
            pool = session.pool
            session.close()
    assert len(set(pools[3:])) == 1 and target.pools._free == [pool], "each new pool captures its programs again"


@torch.inference_mode()
def test_rows_share_no_pages_of_a_model_that_has_changed() -> None:
    target = static_target(options=MASKS)
    text = models.random_ids(100, seed=1)
    session = opened(target, [text])
    check(session, [text], [text])
    with torch.no_grad():
        layer = target.model.model.layers[0].self_attn.v_proj
        layer.weight = torch.nn.Parameter(layer.weight * 2.0, requires_grad=False)
    other = opened(target, [[5, 6]])  # which notices it first
    session.add([text])
    scores = session.score([[7], text], [EMPTY] * 2)
    session.keep([(), ()])
    alone = target.model(torch.tensor([text])).logits[0, -1]
    torch.testing.assert_close(scores[1][0], alone, atol=5e-5, rtol=1e-4)
    session.add([[*text, 8]])  # the second row was read by the model as it is
    session.score([[7], [7], [*text, 8]], [EMPTY] * 3)
    assert session._rows[2].pages[:1] == session._rows[1].pages[:1] != session._rows[0].pages[:1]
    session.close()
    other.close()


@torch.inference_mode()
def test_a_row_that_shares_pages_and_gets_no_room_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    target = static_target(options=MASKS)
    text = models.random_ids(100, seed=1)
    session = opened(target, [text, [5, 6], [7, 8]])
    check(session, [text, [5, 6], [7, 8]], [text, [5, 6], [7, 8]])
    session.select([0, 1])
    used = session.pool.used
    late = [*text, *models.random_ids(1500, seed=2)]
    session.add([late])

    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patched:
        patched.setattr(target, "pool", full)
        with pytest.raises(torch.OutOfMemoryError):
            session.score([[7], [7], late], [EMPTY] * 3)
    session.select([0, 1])
    assert session.pool.used == used and session.pool._ref_counts[session._rows[0].pages[0]] == 1
    session.close()
