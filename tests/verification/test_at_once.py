"""Scores of all rows at once equal those of each row alone, bit by bit, with a constant number of operators."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.picks import picks_at_once
from copyspec.decoding.requests import Request
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.targets.base import Scores
from copyspec.tree import DraftTree
from copyspec.verification import picking
from copyspec.verification.picking import Picker
from tests.helpers import models
from tests.helpers.fakes import ScriptedDrafter

V, CPU = 50, torch.device("cpu")

KINDS = (
    SamplingOptions(),
    SamplingOptions(temperature=0.8, seed=3),
    SamplingOptions(temperature=0.8, seed=4, top_p=0.7),
    SamplingOptions(repetition_penalty=1.3),
    SamplingOptions(temperature=1.0, seed=5, top_k=7, min_p=0.05),
    SamplingOptions(temperature=0.8, seed=3, repetition_penalty=1.1),
)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picking, "penalises_at_once", lambda device: True)


def grown(size: int, seed: int) -> DraftTree:
    choose = random.Random(seed)
    parents = [choose.randrange(-1, node) for node in range(size)]
    return DraftTree([choose.randrange(V) for _ in parents], parents, [0.5] * size, [None] * size)


def pickers() -> list[Picker]:
    """Make pickers with tokens before the output, and after it."""
    listed = []
    for row, sampling in enumerate(KINDS):
        picker = Picker(sampling, [], [row, 2, 3], 20, CPU)
        for token in (5, 7 + row):
            picker.append(token)
        listed.append(picker)
    return listed


def test_scores_of_each_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [grown(size, size) for size in (4, 0, 9, 6, 3, 8)]
    rows = [7, 0, 3, 1, 6, 2]  # the other rows of the batch are picked in another way
    sizes = [1 + len(trees[rows.index(row)]) if row in rows else 2 for row in range(8)]
    scores = Scores.of_rows(torch.randn(sum(sizes), V, generator=torch.Generator().manual_seed(0)).mul(3).split(sizes))
    alone = pickers()
    monkeypatch.setattr(picking, "penalises_at_once", lambda device: True)
    together = pickers()
    for _ in range(2):
        picked = picks_at_once(together, trees, scores, rows)
        for row, tree, picks, picker in zip(rows, trees, picked, alone, strict=True):
            of_row = scores[row]
            if picker.depends_on_history:
                for node in range(-1, len(tree)):
                    path, at = [], node
                    while at != -1:
                        path.insert(0, tree.tokens[at])
                        at = tree.parents[at]
                    expected = picker.unperturbed(of_row[node + 1 : node + 2], path)
                    if not picker.sampling.is_greedy:
                        noise = picker.noise_at([0, *tree.depths()], of_row)
                        expected = expected + noise(len(path))
                    assert torch.equal(picks.scores(node), expected[0])
            else:
                expected = picker.scores(of_row, tree)
                assert torch.equal(torch.stack([picks.scores(node) for node in range(-1, len(tree))]), expected)
                assert [picks.token(node) for node in range(-1, len(tree))] == expected.argmax(-1).tolist()
        for picker, other in zip(alone, together, strict=True):
            picker.append(11)
            other.extend([11])


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name().split("::")[1].split(".")[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("sampling", [KINDS[2], KINDS[3], KINDS[5]], ids=["top_p", "penalty", "both"])
@pytest.mark.usefixtures("at_once")
def test_operators_do_not_depend_on_rows(sampling: SamplingOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, reads = [], []
    monkeypatch.setattr(torch.Tensor, "tolist", counted(torch.Tensor.tolist, reads))
    for rows in (1, 8, 32):
        of_rows = [Picker(sampling, [], [1, 2, 3], 20, CPU) for _ in range(rows)]
        trees = [grown(8, row) for row in range(rows)]
        scores = Scores.of_rows(torch.randn(rows * 9, V).split([1 + len(tree) for tree in trees]))
        picks_at_once(of_rows, trees, scores, range(rows))  # marks the prompt's tokens, which happens only once
        reads.clear()
        with Operators() as seen:
            picks_at_once(of_rows, trees, scores, range(rows))
        views = ("select", "unbind", "slice", "view", "unsqueeze", "expand", "split", "detach", "split_with_sizes")
        counts.append(len([name for name in seen.names if name not in views]))
        assert len(reads) == 1 and "_local_scalar_dense" not in seen.names
    assert len(set(counts)) == 1, counts


def counted(call: Any, calls: list[int]) -> Any:
    def tolist(self: torch.Tensor) -> Any:
        calls.append(1)
        return call(self)

    return tolist


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_outputs_with_a_penalty_are_those_of_the_walk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.tiny(name)

    def outputs(*, drafts: bool) -> list[list[int]]:
        requests = [
            Request(
                prompt=models.random_ids(5 + 3 * row, seed=row),
                max_new_tokens=25,
                sampling=sampling,
                eos_token_ids=frozenset(),
                sources=[Source(plain[row], "edit")] if drafts else [],
                drafter=partial(ScriptedDrafter, plain[row], models.VOCAB_SIZE, 0.7, row) if drafts else None,
            )
            for row, sampling in enumerate(KINDS)
        ]
        settings = DecodeSettings(DraftOptions(max_nodes=9, adaptive=False), batch_size=4)
        outputs_of: list[list[int]] = [[] for _ in requests]
        for step in decode(wrap(model), requests, settings):
            for row in step:
                outputs_of[row.row] += row.tokens
        return outputs_of

    plain = outputs(drafts=False)
    assert outputs(drafts=True) == plain
    monkeypatch.setattr(picking, "penalises_at_once", lambda device: True)
    assert outputs(drafts=False) == plain
    assert outputs(drafts=True) == plain
