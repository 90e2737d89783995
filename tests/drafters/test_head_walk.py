"""Heads of many rows are read at once: as each alone, in as many kernels as one row takes, and with one read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from copyspec.budget import Budget
from copyspec.decoding import loop
from copyspec.drafters.base import ScoredDraft
from copyspec.drafters.predictors import head_walk
from copyspec.drafters.predictors.base import RowContext
from copyspec.drafters.predictors.heads import DraftHeads, HeadsPredictor
from copyspec.drafters.predictors.mtp_files import load_mtp
from copyspec.options import SamplingOptions
from copyspec.targets import wrap
from copyspec.targets.base import LAST
from copyspec.tree import EMPTY, ROOT, DraftTree
from copyspec.verification.walk import accepted
from tests.drafters.test_heads import SIZE, STATIC, add_heads, plain, plain_outputs, random_heads, rows, run, target_of
from tests.helpers import mtp
from tests.helpers.models import VOCAB_SIZE, tiny

KINDS = ["recurrent", "layers", "parallel", "medusa", "eagle", "eagle-3", "dflash", "MiMo", "Qwen3-Next", "DeepSeek-V3"]
EXPERTS = {"Qwen3-Next", "DeepSeek-V3"}
"""Families whose experts torch multiplies in no other dtype than float32."""

WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::equal"}
"""Operators for which the host waits until the device has computed."""


def made(kind: str, folder: Path) -> DraftHeads:
    """Heads in float64: products of other shapes are rounded otherwise, which random layers magnify."""
    if kind in mtp.FAMILIES:
        model = mtp.write(kind, folder)
        model = model if kind in EXPERTS else model.double()
        return DraftHeads(load_mtp(model), model)
    model = tiny("llama", num_hidden_layers=6).double()
    vocabulary = torch.arange(7, 77, 2) if kind == "recurrent" else None
    return DraftHeads(random_heads(kind, vocabulary=vocabulary), model)


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No size depends on values, which the host would wait for, and heads ride on passes."""
    for module in ("heads", "head_walk"):
        monkeypatch.setattr(f"copyspec.drafters.predictors.{module}.waits_for_nobody", lambda _: False)


class FedRow:
    """A row whose hidden states are drawn, and whose outputs follow its trees in part."""

    def __init__(self, heads: DraftHeads, seed: int, unread: int = 0) -> None:
        """`unread`: tokens of its prompt; 0: drawn."""
        self._draw, self._states = random.Random(seed), torch.Generator().manual_seed(seed)
        self._unread = unread or self._draw.randrange(2, 40)
        prompt = [self._draw.randrange(VOCAB_SIZE) for _ in range(self._unread)]
        sampling = SamplingOptions(self._draw.choice([0.0, 0.7, 1.2]), seed=seed, sample=seed % 3)
        self.predictor = HeadsPredictor(heads, RowContext(prompt, sampling, len(prompt), VOCAB_SIZE))
        self._tree = EMPTY

    def go_on(self) -> DraftTree:
        """Accept a part of the last tree and one more token; return another tree."""
        draw, tree, row = self._draw, self._tree, self.predictor
        size = self._unread + len(tree)
        layers = (LAST, *row.wanted_layers)
        states = {layer: torch.randn(size, SIZE, generator=self._states) for layer in layers}
        row.observe(ScoredDraft(tree, torch.zeros(1 + len(tree), VOCAB_SIZE), states))
        path, node = list[int](), ROOT
        while (
            children := [child for child, parent in enumerate(tree.parents) if parent == node]
        ) and draw.random() < 0.7:
            node = draw.choice(children)
            path.append(tree.tokens[node])
        row.accept([*path, draw.randrange(VOCAB_SIZE)])
        self._unread, count = 1, draw.randrange(6)
        parents = [draw.randrange(ROOT, node) for node in range(count)]
        self._tree = DraftTree(draw.sample(range(VOCAB_SIZE), count), parents, [0.5] * count, [None] * count)
        return self._tree


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_together_as_each_alone(kind: str, tmp_path: Path) -> None:
    """Rows join and leave, have other texts, trees and seeds, and are left out of some walks."""
    heads, draw = made(kind, tmp_path), random.Random(kind)
    pairs = [(FedRow(heads, seed), FedRow(heads, seed)) for seed in range(3)]
    compared = 0
    for number in range(10):
        if number == 3:
            pairs[1:2] = []
        if number in (4, 7):
            pairs.append((FedRow(heads, 10 + number), FedRow(heads, 10 + number)))
        asked = []
        for together, alone in pairs:
            tree = together.go_on()
            assert alone.go_on() == tree
            if draw.random() < 0.8:
                asked.append((together.predictor, alone.predictor, tree))
        for together, _, tree in asked:
            together.enlist(tree)
        assert all([together.run(tree) for together, _, tree in asked]) and not heads.waiting
        for together, alone, tree in asked:
            assert alone.run(tree) and not alone.run(tree)
            ours, theirs = together._predicted, alone._predicted
            assert {()} <= theirs.keys() <= ours.keys()  # others may have had more levels read
            for path, expected in theirs.items():
                found = dict(ours[path])
                # The last of them may change places with the next one.
                assert dict(expected[:-1]).keys() <= found.keys()
                for token, probability in expected[:-1]:
                    assert found[token] == pytest.approx(probability, abs=1e-3 if kind in EXPERTS else 1e-5)
                compared += 1
    assert compared > 20


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("recurrent", "layers", "parallel", "medusa")])
def test_numbers_that_are_not_finite_stay_in_their_row(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that are read with it, nor one that takes its place, predict less for it."""
    heads = made(kind, tmp_path)
    rows = [FedRow(heads, seed, unread) for seed, unread in ((0, 40), (1, 30))]
    randn = torch.randn
    for together in range(3):
        for number, row in enumerate(rows):
            with monkeypatch.context() as patch:
                if number == 0 and not together:
                    patch.setattr(torch, "randn", lambda *args, **named: randn(*args, **named) * float("nan"))
                row.predictor.enlist(row.go_on())
        heads.read_waiting(rows[0].predictor)
        predicted = [bool(row.predictor._predicted[()]) for row in rows]
        assert predicted == [number > 0 or together > 0 for number in range(len(rows))]
        if not together:
            del row, rows[0]
            rows += [FedRow(heads, 2, 4), FedRow(heads, 3, 45)]
    assert 0 in [row.predictor._memory.number for row in rows if row.predictor._memory is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_gone_or_fail_leave_others_alone(kind: str, tmp_path: Path) -> None:
    heads = made(kind, tmp_path)
    rows = [FedRow(heads, seed) for seed in range(4)]
    trees = [row.go_on() for row in rows]
    for row, tree in zip(rows, trees, strict=True):
        row.predictor.enlist(tree)
    broken = rows[0].predictor._pieces[0]
    broken.states = [layer[:, 1:] for layer in broken.states]
    del row, rows[3]  # as after an interrupt
    assert len(heads.waiting) == 3
    assert all([row.predictor.run(tree) for row, tree in zip(rows[1:], trees[1:3], strict=True)])
    with pytest.raises(RuntimeError):
        rows[0].predictor.run(trees[0])
    rows.clear()
    assert not heads.waiting


class Counted(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.calls[function._schema.name] += 1
        return function(*arguments, **named or {})

    @property
    def waits(self) -> int:
        """How often the host has waited for the device."""
        return sum(self.calls[name] for name in WAITS)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_do_not_depend_on_rows(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the host waits once, for the table, as soon as sizes do not depend on values: as on a GPU."""
    as_on_a_gpu(monkeypatch)
    counts = {}
    for count in (1, 3, 8):
        heads = made(kind, tmp_path)
        fed = [FedRow(heads, seed) for seed in range(count)]
        for number in range(3):
            trees = [row.go_on() for row in fed]
            if number == 2:
                trees = [DraftTree([5, 6, 9], [ROOT, 0, ROOT], [0.5] * 3, [None] * 3)] * count
            for row, tree in zip(fed, trees, strict=True):
                row.predictor._sampling = SamplingOptions(0.7, seed=1)
                row.predictor.enlist(tree)
            with Counted() as counted:
                heads.read_waiting(fed[0].predictor)
        counts[count] = counted.calls
        assert counted.waits == 0  # the table is read by `tolist`, which is no operator
    assert counts[1].total() > 20
    for name in counts[1] | counts[3]:
        if name != "aten::slice":  # views
            assert counts[3][name] == counts[8][name], name
    # One row alone needs no concatenation.
    assert (counts[3] - counts[1]).total() - counts[3]["aten::slice"] <= 4


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each walk from now on."""
    walks, walk = list[int](), head_walk.walk

    def noted(weights: Any, asked: Sequence[Any], levels: int) -> Any:
        walks.append(len(asked))
        return walk(weights, asked, levels)

    monkeypatch.setattr("copyspec.drafters.predictors.heads.walk", noted)
    return walks


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("kind", ["recurrent", "eagle", "dflash"])
def test_a_pass_reads_heads_at_most_once(kind: str, copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, requests = tiny("llama"), rows(0.0)
    target, heads = wrap(model), DraftHeads(random_heads(kind), model)
    for request in requests:
        add_heads(request, heads, copies=copies)
    walks, steps = counted_reads(monkeypatch), list[int]()
    launch, finish = loop.Batch.launch, loop.Batch.finish

    def launched(batch: loop.Batch) -> Any:
        steps.append(-len(walks))
        return launch(batch)

    def finished(batch: loop.Batch) -> bool:
        has_ended = finish(batch)
        steps[-1] += len(walks)
        return has_ended

    monkeypatch.setattr(loop.Batch, "launch", launched)
    monkeypatch.setattr(loop.Batch, "finish", finished)
    run(target, requests)
    assert max(steps) == 1 and sum(steps) > 5 and max(walks) == 2  # the batch has two rows


def test_a_tree_of_sure_copies_takes_no_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node is expected to gain decides, whoever drafts it."""
    model, requests = tiny("llama"), rows(0.0)
    heads = DraftHeads(random_heads("recurrent"), model)
    add_heads(requests[2], heads, copies=True)
    drafter: Any = requests[2].drafter() if requests[2].drafter else None
    walks, text = counted_reads(monkeypatch), requests[2].prompt
    heads.time.seconds = 0.002
    costs = [1.0 + 0.01 * nodes for nodes in range(17)]
    taken = []
    for number, token in enumerate([*text, *text]):
        states = {LAST: torch.randn(1, SIZE)}
        drafter.observe(ScoredDraft(EMPTY, torch.zeros(1, VOCAB_SIZE), states))
        drafter.accept([token])
        before = len(walks)
        tree = drafter.propose(Budget(16, costs, 0.01))
        if number > len(text) and len(walks) == before:
            taken.append(len(tree))
    assert len(taken) > 3 and min(taken) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_ride_on_a_pass_read_what_they_read_after_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the path that the picks accept, which the host does not know yet, and without waiting for the device."""
    as_on_a_gpu(monkeypatch)
    heads, draw, drawn = made(kind, tmp_path), random.Random(kind), torch.Generator().manual_seed(1)
    sampling = [SamplingOptions(heat, seed=size, sample=size % 2) for heat, size in ((0.0, 3), (0.7, 30), (1.2, 7))]
    contexts = [RowContext(list(range(each.seed)), each, each.seed, VOCAB_SIZE) for each in sampling]
    pairs = [[HeadsPredictor(heads, context) for context in contexts] for _ in range(2)]
    trees, before, rides, accepted_nodes = [EMPTY] * 3, [2, 29, 6], 0, 0
    for number in range(8):
        shown, picks, riders = list[ScoredDraft](), list[int](), dict[Any, Any]()
        for row, tree in enumerate(trees):
            size = before[row] + 1 + len(tree)
            states = {each: torch.randn(size, SIZE, generator=drawn) for each in (LAST, *pairs[0][0].wanted_layers)}
            logits = torch.zeros(1 + len(tree), VOCAB_SIZE)
            shown.append(ScoredDraft(tree, logits, states, riders, len(picks)))
            for node in range(ROOT, len(tree)):
                children = [child for child, parent in enumerate(tree.parents) if parent == node]
                follows = bool(children) and draw.random() < 0.8
                picks.append(tree.tokens[draw.choice(children)] if follows else draw.randrange(VOCAB_SIZE))
        for row, scored in enumerate(shown):
            pairs[0][row].observe(scored)
            pairs[1][row].observe(ScoredDraft(scored.tree, scored.logits, scored._states))
        assert bool(riders) == (number > 0)
        for rider, rows_of in riders.items():
            with Counted() as counted:
                table, take = rider.ride(rows_of, torch.tensor(picks))
            assert counted.waits == 0 and len(rows_of) == 3
            take(table.tolist())
            rides += 1
        for row, (tree, scored) in enumerate(zip(trees, shown, strict=True)):
            path, tokens = accepted(tree.tokens, tree.parents, picks[scored.start : scored.start + 1 + len(tree)])
            accepted_nodes += len(path)
            ridden, after = pairs[0][row], pairs[1][row]
            ridden.accept(tokens)
            after.accept(tokens)
            assert after.run(EMPTY) and ridden.run(EMPTY) == (number == 0)
            assert ridden._before == after._before or not heads.context
            assert {()} <= after._predicted.keys() <= ridden._predicted.keys()
            for place, expected in after._predicted.items():
                found = dict(ridden._predicted[place])
                for token, probability in expected[:-1]:
                    assert found[token] == pytest.approx(probability, abs=1e-3 if kind in EXPERTS else 1e-5)
        before = [0] * 3
        counts = [draw.randrange(1, 6) for _ in trees]
        trees = [
            DraftTree(
                draw.sample(range(VOCAB_SIZE), count),
                [draw.randrange(ROOT, node) for node in range(count)],
                [0.5] * count,
                [None] * count,
                drafters=["heads"] * count,
            )
            for count in counts
        ]
    assert rides == 7 and accepted_nodes > 10


@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    ("kind", "copies", "heat"),
    [
        ("recurrent", False, 0.9),
        ("eagle", True, 0.0),
        ("recurrent", True, 0.9),
        ("MiMo", False, 0.0),
        ("dflash", False, 0.0),
    ],
)
def test_one_read_of_the_host_per_pass(
    kind: str, copies: bool, heat: float, is_static: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: only the first draft of new words is read on its own. Outputs are those of plain decoding."""
    as_on_a_gpu(monkeypatch)
    if kind in mtp.FAMILIES:
        target: Any = wrap(mtp.write(kind, tmp_path), static=STATIC if is_static else None)
    else:
        target = target_of("deep", is_static=is_static)
    model, requests = target.model, rows(heat)
    heads = DraftHeads(load_mtp(model) if kind in mtp.FAMILIES else random_heads(kind), model)
    expected = plain(target, requests) if kind in mtp.FAMILIES else plain_outputs("deep", heat)
    for request in requests:
        add_heads(request, heads, copies=copies)
    walks, rides, passes = counted_reads(monkeypatch), list[int](), list[int]()
    ride, launch = heads.ride, loop.Batch.launch

    def ridden(rows_of: Any, picks: Any) -> Any:
        rides.append(len(rows_of))
        return ride(rows_of, picks)

    def counted(batch: loop.Batch) -> Any:
        passes.append(len(batch.rows))
        return launch(batch)

    monkeypatch.setattr(heads, "ride", ridden)
    monkeypatch.setattr(loop.Batch, "launch", counted)
    drafted = run(target, requests)
    assert [tokens for tokens, _ in drafted] == expected
    assert sum(stats.num_draft_tokens_per_source.get("heads", 0) for _, stats in drafted) > 0
    assert rides and max(rides) == 2
    assert len(walks) <= 3 + copies and len(rides) > 0.9 * len(passes)  # when a row joins, and where copies have ended


def test_a_ride_that_fails_leaves_its_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)

    def broken(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    model = tiny("llama")
    target, requests = wrap(model), rows(0.0)
    expected = [tokens for tokens, _ in run(target, requests)]
    heads = DraftHeads(random_heads("recurrent"), model)
    for request in requests:
        add_heads(request, heads, copies=False)
    monkeypatch.setattr("copyspec.drafters.predictors.heads.ride", broken)
    assert [tokens for tokens, _ in run(target, requests)] == expected
