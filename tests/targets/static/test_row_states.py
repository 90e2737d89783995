"""Static passes of models with recurrent layers: every node is scored as its path alone, and the states of a row are
those of its accepted tokens."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.hooks.recurrence import mixers
from copyspec.targets.recurrent.paths import Paths
from copyspec.targets.static.layout import PagedRow, Shape, lay_out, split_parts
from copyspec.targets.static.masks_on_device import PassInputs
from copyspec.targets.static.pass_paths import PassPaths
from copyspec.targets.static.row_states import PooledStates
from copyspec.targets.static.settings import PREFILL_TOKENS
from copyspec.targets.static.static_session import StaticSession
from copyspec.tree import EMPTY, DraftTree
from kit import architectures
from tests.fuzz import hybrids
from tests.helpers import models
from tests.helpers.cpu_graph import CpuGraph
from tests.helpers.trees import Rows, fingerprint, random_tree
from tests.targets.static.test_static_equal import GRAPHS, LENGTHS, counted, expected_of, run

torch.set_num_threads(1)

TYPES = ("qwen3_5_text", "lfm2", "mamba2", "nemotron_h", "kimi_linear")
"""Delta rules, short convolutions, Mamba 2; without attention and beside it; steps that differ in prompts."""

CLOSE = 5e-5


def tiny(name: str) -> PreTrainedModel:
    return models.tiny(name) if name in models.STATEFUL else architectures.tiny(name, 8)


@pytest.mark.parametrize(("name", "attention"), [*[(name, "tree") for name in TYPES], ("qwen3_5_text", "masks")])
def test_replayed_passes_decode_what_generate_does(name: str, attention: Any) -> None:
    model = tiny(name)
    before, expected = fingerprint(model), expected_of(model, LENGTHS[1:3])
    made, new_graph = counted()
    outputs, stats = run(model, StaticOptions(use="always", attention=attention, new_graph=new_graph), expected)
    assert outputs == expected
    assert sum(graph.replays for graph in made) >= 1 and {stat.runner for stat in stats} <= {"graph", "static"}
    assert fingerprint(model) == before


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2"])
def test_nodes_equal_paths_alone_as_rows_join_and_leave(name: str) -> None:
    """Also where a larger pool takes the place of one, and where prompts are read in pieces."""
    model = tiny(name)
    rows = Rows(model, wrap(model, static=GRAPHS), (11, 4, 17))
    for _ in range(2):
        assert rows.step() < CLOSE
    rows.select([2, 0])
    rows.add((20, 1, PREFILL_TOKENS + 1))
    assert rows.step((0, 2)) < CLOSE
    rows.select([0, 3, 2])
    for sizes in [(3,), (0,), (40,)]:
        assert rows.step(sizes) < CLOSE
    rows.session.close()


@pytest.mark.parametrize("name", ["qwen3_5_text", "falcon_h1", "kimi_linear", "lfm2"])
def test_the_states_are_those_of_the_accepted_tokens(name: str) -> None:
    model = tiny(name)
    target = wrap(model, static=StaticOptions(use="always", graphs=False))
    rows = Rows(model, target, (9, 30, 1), seed=3)
    for _ in range(5):
        rows.step()
    session: Any = rows.session
    session._commit()
    alone: Any = wrap(model)
    for row, (sequence, cached) in enumerate(zip(rows.sequences, rows.cached, strict=True)):
        reading = alone.open([sequence])
        reading.score([sequence[:cached]], [EMPTY])
        reading.keep([[]])
        for mixer, expected in enumerate(reading.states(0)):
            states = session.pool.states.state(mixer)
            assert states.keys() == expected.keys()
            for kind, state in expected.items():
                own = states[kind][session._rows[row].number]
                torch.testing.assert_close(own, state[0], atol=1e-5, rtol=1e-4)


def test_what_is_not_committed_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    model = tiny("qwen3_next")
    rows = Rows(model, wrap(model, static=GRAPHS), (11, 4))
    monkeypatch.setattr(PooledStates, "commit", lambda states, paths: None)
    rows.step()
    assert rows.step() > 1e-2


def test_a_cut_row_begins_anew() -> None:
    model = tiny("qwen3_5_text")
    target = wrap(model, static=GRAPHS)
    session = target.open([[5, 6, 7]])
    first = session.score([[5, 6, 7]], [EMPTY])[0].clone()
    session.keep([[]])
    session.trim([3])
    assert list(session.lengths) == [3]
    session.score([[8]], [EMPTY])
    session.keep([[]])
    session.trim([3])
    assert list(session.lengths) == [0]
    torch.testing.assert_close(session.score([[5, 6, 7]], [EMPTY])[0], first, atol=CLOSE, rtol=0)
    session.close()


@pytest.mark.parametrize("seed", range(12))
def test_paths_made_on_the_device_are_those_of_the_host(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 5)
    lengths = [rng.choice([0, 1, 2, 20, 50]) for _ in range(count)]
    trees = [random_tree(rng, rng.choice([0, 1, 9, 70])) if length else EMPTY for length in lengths]
    places, parents, spans = list[int](), list[int](), list[range]()
    for length, tree in zip(lengths, trees, strict=True):
        first = len(places)
        parents += [at - 1 if at > first else -1 for at in range(first, first + length)]
        parents += [first + length + up if up >= 0 else first + length - 1 for up in tree.parents]
        places += range(first, first + length + len(tree))
        spans.append(range(first, len(places)))
    shape = Shape.of(len(places) + rng.choice([0, 7]) or 1, len(places) or 1)
    packed = np.zeros(sum(shape.parts), np.int64)
    rows = [PagedRow(row, [*range(1 + 4 * row, 5 + 4 * row)]) for row in range(count)]
    starts, ids = [rng.randint(0, 60) for _ in rows], [models.random_ids(length) for length in lengths]
    lay_out(packed, shape, starts, rows, ids, trees, [0] * count, [], count, 8)
    fields, _, _, units = (torch.from_numpy(part) for part in split_parts(packed, shape))
    work = PassInputs(fields, units, torch.zeros((count + 1, 4 * count + 1), dtype=torch.long), 8)
    made = PassPaths(work, torch.zeros(count + 1, dtype=torch.long))
    expected, used, width = Paths(places, parents, spans, torch.device("cpu")), len(places), rng.choice([1, 3, 4])
    if not used:
        return
    (part,), states, left = made.parts, torch.randn(count + 1, 2, 6, 3), torch.randn(2, 2, shape.tokens, 6)
    ours, theirs = made.columns(width)[:used], expected.columns(width)
    assert torch.where(ours >= (count + 1) * width, ours - width, ours).equal(theirs)  # here are a scratch row's states
    read, column = part.read(left, states), 0
    for theirs_part in expected.parts:
        here = theirs_part.tokens
        assert part.ancestors[here, here].equal(theirs_part.ancestors)
        torch.testing.assert_close(read[..., here, :], theirs_part.read(left[..., here, :], states))
        column += theirs_part.ancestors.shape[0]
    assert column == used and not part.ancestors[:used, used:].any()


@pytest.mark.parametrize("overflows", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_what_is_not_finite_stays_in_its_row(name: str, overflows: bool) -> None:
    """And there it stays, as in plain decoding, whether a mixer reads it or makes it."""
    model = tiny(name)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings().weight
    head.weight = nn.Parameter(head.weight.detach().clone())  # where it is shared
    with torch.no_grad():
        embedding[:, 0], embedding[9] = 0, 0 if overflows else torch.nan
        embedding[9, 0] = 1
        for _, mixer in mixers(model)[:1] if overflows else ():
            for part, weight in mixer.named_parameters():
                if part.startswith(("in_proj.", "in_proj_qkvz.", "in_proj_qkv.", "v_proj.")):
                    weight[:-8, 0] = 1e38  # the last are steps, which overflow nowhere
    session = wrap(model, static=StaticOptions(use="always", graphs=False)).open([[5, 6, 7], [5, 9, 7]])
    assert isinstance(session, StaticSession)
    read = list[int]()
    for sound, broken in ([5, 6, 7], [5, 9, 7]), ([8], [8]), ([4], [4]):
        scores = session.score([sound, broken], [EMPTY] * 2)
        session.keep([[], []])
        assert scores[1].isnan().all()
        read += sound
        alone = model(torch.tensor([read])).logits[0, -1:]
        torch.testing.assert_close(scores[0], alone, atol=CLOSE, rtol=0)
    session.close()


def test_each_of_many_rows_may_draft() -> None:
    model, rows = tiny("lfm2"), PREFILL_TOKENS // 2 + 1
    session = wrap(model, static=StaticOptions(use="always", graphs=False)).open([[5, 6]] * rows)
    tree = DraftTree([7], [-1], [0.5], [None])
    assert session.most_nodes >= 1
    session.score([[5, 6]] * rows, [tree] * rows)
    session.keep([[0]] * rows)
    scores = session.score([[8]] * rows, [EMPTY] * rows)
    torch.testing.assert_close(scores[rows - 1], model(torch.tensor([[5, 6, 7, 8]])).logits[0, -1:], atol=CLOSE, rtol=0)
    session.close()


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("mamba", GRAPHS, "keeps states that are read step by step"),
        ("lfm2", StaticOptions(use="always", compile=True, compiler="eager"), "of which there is no torch.compile"),
    ],
)
def test_what_has_no_static_passes_says_so_once(
    name: str, options: StaticOptions, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny(name)
    expected = expected_of(model, LENGTHS[1:3])
    with caplog.at_level(logging.WARNING, "copyspec"):
        assert run(model, options, expected)[0] == expected
    assert [reason in record.message for record in caplog.records].count(True) == 1


def test_all_rows_together_have_room_for_what_they_write() -> None:
    model = tiny("lfm2")
    session = wrap(model, static=GRAPHS).open([[5, 6]] * 8)
    assert isinstance(session, StaticSession) and 8 * (1 + session.most_nodes) <= PREFILL_TOKENS
    session.close()


@pytest.mark.parametrize("family", ["qwen3_next", "nemotron_h"])
def test_random_calls_are_equal(family: str) -> None:
    counts = hybrids.examine(family, 4, seed=2, static=StaticOptions(use="always", new_graph=CpuGraph))
    assert counts["equal"] >= 4 and not counts["differs"] and counts["accepted"]
