"""Exact mode of models that keep recurrent states: in float32 on a CPU, scores, states, keys and values have the bits
of plain decoding, whatever was drafted, accepted and rejected, and in any batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn import functional

from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.cpu import batch_invariant
from copyspec.targets.cpu.batch_invariant import BatchInvariant
from copyspec.targets.eager import causal
from copyspec.targets.eager.causal import CausalSession, CausalTarget
from copyspec.tree import EMPTY, ROOT, DraftTree
from tests.fuzz import hybrids
from tests.helpers import models
from tests.helpers.trees import path_to, random_tree
from tests.targets.test_recurrent import MORE, model_of

EXACT = StaticOptions(exact=True)
FAMILIES = [*models.STATEFUL, *MORE]
LENGTHS = (1, 2, 9, 14)  # of prompts


@cache
def exact_target(name: str) -> CausalTarget:
    target = wrap(model_of(name), static=EXACT)
    assert isinstance(target, CausalTarget)
    return target


class Decoded:
    """A row in exact mode: its prompt, the tokens after it, and the scores after each of these and the prompt."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt, self.tokens, self.scores = prompt, list[int](), list[torch.Tensor]()
        self.uncached = prompt


def tensors(session: CausalSession, row: int) -> list[torch.Tensor]:
    """Everything that is kept of a row."""
    cached = session.read(row, 0, session.lengths[row])
    states = [state[key] for state in session.states(row) for key in sorted(state)]
    return [*states, *(tensor for pair in cached if pair is not None for tensor in pair)]


def drive(session: CausalSession, rows: list[Decoded], rng: random.Random) -> None:
    """Score a random tree or chain of each row, and keep one of its paths, or what follows none of its nodes."""
    trees = [random_tree(rng, rng.choice((0, 1, 4, 9))) for _ in rows]
    trees = [DraftTree.of_chain(tree.tokens) if rng.random() < 0.4 else tree for tree in trees]
    scores = session.score([row.uncached for row in rows], trees)
    paths = [path_to(tree, rng.randrange(ROOT, len(tree))) for tree in trees]
    session.keep(paths)
    for number, (row, tree, path) in enumerate(zip(rows, trees, paths, strict=True)):
        row.scores += [scores[number][1 + node].clone() for node in (ROOT, *path)]
        row.uncached = [rng.randrange(3, models.VOCAB_SIZE)]
        row.tokens += [*(tree.tokens[node] for node in path), *row.uncached]


def differences(target: CausalTarget, rng: random.Random, steps: int) -> list[str]:
    """What differs from plain decoding of each row alone after random steps of rows that join and leave."""
    rows = [Decoded(models.random_ids(rng.choice(LENGTHS), seed=row)) for row in range(rng.randint(1, 3))]
    session: Any = target.open([row.prompt for row in rows])
    for step in range(steps):
        if step == steps // 2:
            kept = rng.sample(range(len(rows)), rng.randint(1, len(rows)))
            session.select(kept)
            rows = [*(rows[row] for row in kept), Decoded(models.random_ids(rng.choice(LENGTHS), seed=7))]
            session.add([rows[-1].prompt])
        drive(session, rows, rng)
    found = list[str]()
    for number, row in enumerate(rows):
        plain: Any = target.open([row.prompt])
        for ids, expected in zip((row.prompt, *([token] for token in row.tokens)), row.scores, strict=False):
            if not plain.score([ids], [EMPTY])[0][0].equal(expected):
                found.append(f"scores of row {number}")
            plain.keep([[]])
        pairs = zip(tensors(session, number), tensors(plain, 0), strict=True)
        found += [f"tensor {at} of row {number}" for at, (ours, theirs) in enumerate(pairs) if not ours.equal(theirs)]
        plain.close()
    session.close()
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_states_have_the_bits_of_plain_decoding(name: str) -> None:
    for seed in range(2):
        assert differences(exact_target(name), random.Random(f"{name} {seed}"), 6) == []


@pytest.mark.parametrize("packs", [False, True])
def test_compiled_products_keep_the_bits(packs: bool) -> None:
    """Of weights in place, and of packed ones."""
    model = models.tiny("qwen3_5_text", hidden_size=256, intermediate_size=272)
    for parameter in model.parameters() if packs else ():
        parameter.data = parameter.data.bfloat16().float()
    target = wrap(model, static=EXACT)
    assert isinstance(target, CausalTarget)
    if not target.linears.counts:
        pytest.skip("this processor has no compiled products")
    assert target.linears.packs == packs
    assert differences(target, random.Random(1), 6) == []


def test_more_tokens_than_a_pass_has_are_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "EXACT_TOKENS", 12)
    target = exact_target("falcon_h1")
    session = target.open([[5, 6]])
    assert session.most_nodes == 11
    session.close()
    assert differences(target, random.Random(2), 6) == []


def test_outputs_that_are_read_again_keep_their_bits() -> None:
    """A row that went back reads its prompt at once, and what it wrote token by token."""
    target, prompt, output = exact_target("mamba2"), [5, 6, 7, 8], [9, 10, 11, 12]
    kept = list[list[torch.Tensor]]()
    for pieces in ([prompt, *([token] for token in output)], [[*prompt, *output]]):
        session: Any = target.open([prompt])
        for ids in pieces:
            session.score([ids], [EMPTY])
            session.keep([[]])
        kept.append(tensors(session, 0))
        session.close()
    assert all(map(torch.equal, *kept))


@pytest.mark.parametrize("family", ["qwen3_next", "bamba"])
def test_random_calls_are_equal_in_exact_mode(family: str) -> None:
    counts = hybrids.examine(family, 3, seed=2, static=EXACT)
    assert counts["equal"] >= 3 and not counts["differs"] and counts["accepted"]


def test_a_model_whose_bits_differ_has_no_exact_mode(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_invariant, "_REPLACED", {})
    target = wrap(models.tiny("qwen3_5_text"), static=EXACT)
    for _ in range(2):
        target.open([[5, 6]]).close()
    assert caplog.text.count("has no exact mode: its tokens have other bits in a tree") == 1
    assert isinstance(target, CausalTarget) and not target.is_exact


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError, AttributeError, RuntimeError])
def test_a_model_is_exact_only_after_a_whole_trial(
    fault: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target, score, passes = wrap(models.tiny("mamba2"), static=EXACT), CausalSession.score, 0
    assert isinstance(target, CausalTarget)

    def failing(self: CausalSession, *args: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == 2:
            raise fault("broken")
        return score(self, *args)

    monkeypatch.setattr(CausalSession, "score", failing)
    if fault is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            target.open([[5, 6]])
        monkeypatch.setattr(batch_invariant, "_REPLACED", {})
    target.open([[5, 6]]).close()
    assert not target.is_exact and caplog.text.count("has no exact mode") == 1


@pytest.mark.parametrize("name", ["rwkv", "bfloat16"])
def test_exact_mode_is_not_ignored_silently(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model = models.tiny("mamba2").bfloat16() if name == "bfloat16" else models.tiny(name)
    wrap(model, static=EXACT)
    assert caplog.text.count(f"has no effect on {type(model).__name__}") == 1
    assert 'use="always"' not in caplog.text
    caplog.clear()
    wrap(model)
    assert "has no effect" not in caplog.text


def test_operators_take_what_those_of_pytorch_take() -> None:
    drawn = torch.Generator().manual_seed(0)
    inputs, weight = torch.randn((2, 7, 9), generator=drawn), torch.randn((5, 9), generator=drawn)
    experts, ends = torch.randn((3, 8, 16), generator=drawn).transpose(1, 2), torch.tensor([1, 1, 4], dtype=torch.int32)
    rows = torch.randn((4, 16), generator=drawn)
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda given: (given, functional.silu(given, inplace=True)),
        lambda given: (given, functional.elu(given, 0.5, True)),
        lambda given: functional.silu(given[:, :0]),
        lambda given: functional.linear(given[:, :0], weight),
        lambda given: functional.linear(given, weight[0]),
        lambda given: torch.matmul(given, other=weight.T),
        lambda given: given @ weight[0],
        lambda given: given[:0] @ given[:0].mT,
        lambda _: torch._grouped_mm(rows, experts, ends),
        lambda _: torch._grouped_mm(rows.expand(3, -1, -1), experts),
    ]
    with torch.inference_mode():
        for call in calls:
            expected = call(inputs.clone())
            with BatchInvariant():
                torch.testing.assert_close(call(inputs.clone()), expected)


@pytest.mark.parametrize("seed", range(6))
def test_operators_give_a_token_the_bits_that_it_has_alone(seed: int) -> None:
    rng, drawn = random.Random(seed), torch.Generator().manual_seed(seed)
    tokens, size, outputs = rng.randint(2, 130), rng.choice([5, 16, 24, 72, 576]), rng.choice([3, 32, 41, 64, 96])
    inputs = 3 * torch.randn((1, tokens, size), generator=drawn)
    weight, bias = (torch.randn(shape, generator=drawn) for shape in ((outputs, size), (outputs,)))
    state = torch.randn((tokens, 6, size), generator=drawn)

    def run(here: list[int]) -> list[torch.Tensor]:
        part = inputs[:, here]
        gate, _ = functional.linear(part, torch.cat([weight, weight])).chunk(2, dim=-1)
        return [
            functional.linear(part, weight, bias),
            functional.silu(gate),
            part.sigmoid(),
            functional.softplus(part),
            functional.gelu(part),
            (state[here] @ part[0].unsqueeze(-1)).squeeze(-1).unsqueeze(0),
        ]

    with torch.inference_mode(), BatchInvariant():
        together = run([*range(tokens)])
        for token in range(tokens):
            for value, expected in zip(run([token]), together, strict=True):
                assert value[0, 0].equal(expected[0, token])


def test_experts_give_a_token_the_bits_that_it_has_alone() -> None:
    drawn = torch.Generator().manual_seed(0)
    weight, inputs = (torch.randn(shape, generator=drawn) for shape in ((3, 40, 32), (9, 32)))
    with torch.inference_mode(), BatchInvariant():
        together = torch._grouped_mm(inputs, weight.transpose(1, 2), offs=torch.tensor([4, 4, 8], dtype=torch.int32))
        for row in range(8):
            ends = torch.tensor([1, 1, 1] if row < 4 else [0, 0, 1], dtype=torch.int32)
            alone = torch._grouped_mm(inputs[row : row + 1], weight.transpose(1, 2), offs=ends)
            assert alone[0].equal(together[row])
    expected = torch.cat([inputs[:4] @ weight[0].T, inputs[4:8] @ weight[2].T])
    torch.testing.assert_close(together[:8], expected, rtol=1e-4, atol=1e-4)
