"""Picking tokens, its noise and its processors: exactness is tested by equality and by counting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from copyspec.decoding.picks import picks_at_once
from copyspec.options import SamplingOptions
from copyspec.targets.base import Scores
from copyspec.tree import EMPTY, ROOT, DraftTree
from copyspec.verification.noise import gumbel
from copyspec.verification.picking import Picker, Picks, ScoredPicks
from copyspec.verification.walk import walk

CPU = torch.device("cpu")


def chain(tokens: Sequence[int]) -> DraftTree:
    return DraftTree(tokens, list(range(-1, len(tokens) - 1)), [0.5] * len(tokens), [None] * len(tokens))


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Return Pearson's statistic over the outcomes with an expected count of five or more; others must be rare."""
    expected = probabilities * counts.sum()
    usual = expected >= 5
    assert counts[~usual].sum() <= 25 + 3 * expected[~usual].sum()
    return float(((counts - expected)[usual] ** 2 / expected[usual]).sum())


def bound(outcomes: int) -> float:
    """Return a bound that a chi-square variable exceeds with probability below 1e-5 (Wilson and Hilferty 1931)."""
    freedom = max(outcomes - 1, 1)
    return freedom * (1 - 2 / (9 * freedom) + 4.3 * math.sqrt(2 / (9 * freedom))) ** 3


def test_noise_is_keyed_by_seed_sample_and_position() -> None:
    noise = gumbel(7, 0, [3, 4], 50, CPU)
    assert torch.equal(noise[1:], gumbel(7, 0, [4], 50, CPU))
    assert torch.equal(noise[:, :20], gumbel(7, 0, [3, 4], 20, CPU))
    for other in (gumbel(8, 0, [3], 50, CPU), gumbel(7, 1, [3], 50, CPU), noise[1:]):
        assert not torch.isclose(noise[:1], other).any()


def test_noise_is_gumbel_and_independent() -> None:
    noise = gumbel(1, 0, range(400), 500, CPU).double()
    assert noise.isfinite().all()
    uniform = torch.exp(-torch.exp(-noise)).flatten().sort().values
    steps = torch.arange(1, len(uniform) + 1) / len(uniform)
    assert (uniform - steps).abs().max() < 1.95 / math.sqrt(len(uniform))  # Kolmogorov-Smirnov at 1e-3
    assert noise.mean() == pytest.approx(0.57722, abs=0.01)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.02)
    for left, right in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:])):
        pair = torch.stack([left.flatten(), right.flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.01


def test_noise_has_known_values() -> None:
    """These values are fixed: a seed must mean the same on every machine and in every version."""
    assert gumbel(1234, 2, [0, 99], 3, CPU).tolist() == [pytest.approx(row, abs=1e-5) for row in PINNED]


PINNED = [[-0.532917, -0.33113, 0.283169], [0.216841, 0.709191, 0.050793]]

# Drawing the joint distribution over many seeds is slow: many draws for the usual settings, fewer for the others, and
# rows of a batch at once, some of which are drawn alone as well.
SAMPLED = [
    ("chain", 20_000, 200, SamplingOptions(temperature=1.0)),
    ("tree", 20_000, 200, SamplingOptions(temperature=0.9, top_k=6, top_p=0.9)),
    ("none", 5_000, 50, SamplingOptions(temperature=1.4, top_k=5)),
    ("tree", 5_000, 50, SamplingOptions(temperature=0.6)),
    ("tree", 5_000, 50, SamplingOptions(temperature=1.0, top_p=0.8)),
    ("tree", 5_000, 50, SamplingOptions(temperature=1.0, min_p=0.1)),
    ("tree", 5_000, 1, SamplingOptions(temperature=0.9, top_p=0.9, repetition_penalty=1.3, logit_bias={2: 1.5})),
]


@pytest.mark.parametrize(("shape", "draws", "rows", "sampling"), SAMPLED)
def test_samples_follow_softmax(shape: str, draws: int, rows: int, sampling: SamplingOptions) -> None:
    """The joint distribution of two tokens over seeds, against softmax; the second depends on the first."""
    vocab = 8
    generator = torch.Generator().manual_seed(3)
    table = 1.5 * torch.randn(vocab + 1, vocab, generator=generator)  # row: last token; the last row follows the prompt
    trees = {
        "none": DraftTree(),
        "chain": chain([int(table[-1].argmax())]),
        "tree": DraftTree([1, 4, 6], [ROOT, ROOT, ROOT], [0.3, 0.3, 0.2], [None] * 3),
    }
    tree = trees[shape]
    prompt = [5, 2]
    logits = torch.stack([table[-1], *(table[token] for token in tree.tokens)])

    def drawn(seeds: Sequence[int]) -> list[list[int]]:
        """Return two tokens of a row for each seed."""
        pickers = [Picker(replace(sampling, seed=seed), (), prompt, 4, CPU) for seed in seeds]
        outputs: list[list[int]] = [[] for _ in seeds]

        def step(which: Sequence[int], tree: DraftTree, logits: torch.Tensor) -> None:
            results = picked([pickers[row] for row in which], logits, tree)
            for row, picks in zip(which, results, strict=True):

                def emit(token: int, node: int, row: int = row) -> bool:
                    outputs[row].append(token)
                    pickers[row].append(token)
                    return len(outputs[row]) == 2

                walk(tree, picks, emit)

        step(range(len(seeds)), tree, logits.expand(len(seeds), *logits.shape))
        if short := [row for row, output in enumerate(outputs) if len(output) < 2]:
            step(short, EMPTY, table[[outputs[row][-1] for row in short]].unsqueeze(1))
        return outputs

    joint = [[0] * vocab for _ in range(vocab)]
    for seed in range(0, draws, rows):
        outputs = drawn(range(seed, seed + rows))
        for first, second in outputs:
            joint[first][second] += 1
        if rows > 1:  # a row of a batch draws what it draws alone
            assert all(drawn([seed + row]) == [outputs[row]] for row in range(seed // rows % 8, rows, 8))
    counts = torch.tensor(joint, dtype=torch.float)
    expected = torch.zeros(vocab, vocab)
    first_token = processed(table[-1], prompt, sampling).softmax(-1)
    for token in range(vocab):
        expected[token] = first_token[token] * processed(table[token], [*prompt, token], sampling).softmax(-1)
    assert counts[expected == 0].sum() == 0
    assert chi_square(counts.flatten(), expected.flatten()) < bound(int((expected * draws >= 5).sum()))


@pytest.mark.parametrize("sampling", [sampling for *_, sampling in SAMPLED if sampling.repetition_penalty == 1.0])
def test_scores_along_the_walk_are_those_of_all_nodes_at_once(sampling: SamplingOptions) -> None:
    """A CPU computes those of a large vocabulary along the walk; see `LAZY_NUMBERS`."""
    vocab, size = 20_000, 7
    logits = 3 * torch.randn(1 + size, vocab, generator=torch.Generator().manual_seed(1))
    tree = DraftTree(range(size), [ROOT, ROOT, 0, 1, 3, 3, 5], [0.5] * size, [None] * size)
    for seed in range(5):
        picker = Picker(replace(sampling, seed=seed, logit_bias={5: 2.0}), (), [5, 2], 4, CPU)
        scores, along = picker.scores(logits, tree), picker.walk_picks(logits, tree)
        for node in range(ROOT, size):
            assert along.token(node) == int(scores[node + 1].argmax())
            assert torch.equal(along.scores(node), scores[node + 1])


def test_tokens_added_at_once_reach_the_processors_like_those_added_one_by_one() -> None:
    sampling, logits = SamplingOptions(repetition_penalty=1.5), torch.arange(1.0, 10.0)[None]
    at_once, singly = (Picker(sampling, (), [5, 2], 4, CPU) for _ in range(2))
    at_once.extend([3, 7])
    for token in (3, 7):
        singly.append(token)
    assert torch.equal(at_once.process(logits), singly.process(logits))
    assert at_once.length == singly.length == 4


def picked(pickers: Sequence[Picker], logits: torch.Tensor, tree: DraftTree) -> Sequence[Picks]:
    """Return the picks of rows that share a tree, from their logits [B, 1 + M, V]."""
    if len(pickers) == 1:
        return [picks(pickers[0], logits[0], tree)]
    return picks_at_once(pickers, [tree] * len(pickers), Scores.of_rows([*logits]), range(len(pickers)))


def picks(picker: Picker, logits: torch.Tensor, tree: DraftTree) -> Picks:
    if picker.depends_on_history:
        return picker.walk_picks(logits, tree)
    scores = picker.scores(logits, tree)
    return ScoredPicks(scores.argmax(-1).tolist(), scores)


def processed(logits: torch.Tensor, ids: Sequence[int], sampling: SamplingOptions) -> torch.Tensor:
    """Return scores [V] as transformers' own list of processors computes them."""
    scores = logits[None].clone()
    for token, value in sampling.logit_bias.items():
        scores[0, token] += value
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    if not sampling.is_greedy:
        processors.append(TemperatureLogitsWarper(sampling.temperature))
        processors.append(TopKLogitsWarper(sampling.top_k or len(logits)))
        processors.append(TopPLogitsWarper(sampling.top_p))
        processors.append(MinPLogitsWarper(sampling.min_p))
    return processors(torch.tensor([ids]), scores)[0]


def test_the_walk_descends_emits_once_and_ends_where_told() -> None:
    tree = DraftTree([3, 4, 5, 9], [ROOT, 0, 1, 0], [0.9, 0.8, 0.7, 0.1], [None] * 4)

    class Fixed:
        def __init__(self, tokens: dict[int, int]) -> None:
            self.tokens = tokens

        def token(self, node: int) -> int:
            return self.tokens[node]

        def scores(self, node: int) -> None: ...

    emitted: list[tuple[int, int]] = []

    def emit(token: int, node: int) -> bool:
        emitted.append((token, node))
        return token == 9

    assert walk(tree, Fixed({ROOT: 3, 0: 4, 1: 6}), emit) == [0, 1]  # type: ignore[arg-type]
    assert emitted == [(3, ROOT), (4, 0), (6, 1)]
    emitted.clear()
    assert walk(tree, Fixed({ROOT: 3, 0: 9}), emit) == [0, 3]  # type: ignore[arg-type]
    assert emitted == [(3, ROOT), (9, 0)], "the end is not followed by another pick"
    emitted.clear()
    assert walk(tree, Fixed({ROOT: 8}), emit) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature must be a number at least 1e-06 .* .or 0: greedy., got -1"),
        ({"temperature": "hot"}, "temperature .* got 'hot'"),
        ({"top_p": 0}, "top_p must be a number above 0 and at most 1 .1 turns it off., got 0"),
        ({"top_k": 2.5}, "top_k must be an integer >= 0 .0 turns it off., got 2.5"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number above 0"),
        ({"seed": "x"}, "seed must be an integer >= 0, got 'x'"),
        ({"logit_bias": [1]}, "logit_bias must map token ids to numbers"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias: a token id must be an integer"),
        ({"logit_bias": {1: "much"}}, r"logit_bias\[1\] must be a number"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingOptions(**options)  # type: ignore[arg-type]
