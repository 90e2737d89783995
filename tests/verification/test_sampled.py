"""Rules on a row's logits: options, processors, randomness by position, and samples counted against P."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from copyspec.literature import Sampled
from copyspec.literature.rules import DraftRule as Rule
from copyspec.literature.sampled import KeyedRandom, RulePicks, draw
from copyspec.options import SamplingOptions
from copyspec.tree import ROOT, DraftTree
from copyspec.verification.margins import best_two
from copyspec.verification.picking import Picker, Picks, ScoredPicks
from copyspec.verification.walk import walk
from tests.helpers.enumeration import RULES, P, Q, rule, tree_of
from tests.verification.test_picking import bound, chi_square, processed

CPU = torch.device("cpu")
VOCAB = 8
PROMPT = [5, 2]
EXACT = [name for name, kind in RULES.items() if kind.keeps_distribution]
SETTINGS = [
    SamplingOptions(),
    SamplingOptions(repetition_penalty=1.5, logit_bias={1: 2.0}),
    SamplingOptions(temperature=0.8, top_p=0.9, seed=3),
    SamplingOptions(temperature=1.2, top_k=4, repetition_penalty=1.4, seed=11, sample=2),
]


def tables(seed: int) -> torch.Tensor:
    """Logits after each token; the last row follows the prompt, [VOCAB + 1, VOCAB]."""
    return 1.5 * torch.randn(VOCAB + 1, VOCAB, generator=torch.Generator().manual_seed(seed))


TARGET, DRAFTER = tables(3), tables(8)


def at_nodes(tree: DraftTree, root: int = -1) -> torch.Tensor:
    return torch.stack([TARGET[root], *(TARGET[token] for token in tree.tokens)])


def step(chosen: Rule | None, picker: Picker, tree: DraftTree, root: int, room: int) -> list[int]:
    """Return the tokens of one step; without a rule, those that decoding would pick."""
    logits = at_nodes(tree, root)
    picks: Picks
    if chosen is not None:
        picks = RulePicks(chosen.begin, picker, logits, tree)
    elif picker.depends_on_history:
        picks = picker.walk_picks(logits, tree)
    else:
        scores = picker.scores(logits, tree)
        picks = ScoredPicks(scores.argmax(-1).tolist(), scores)
    tokens: list[int] = []

    def emit(token: int, node: int) -> bool:
        assert math.isfinite(best_two(picks.scores(node)).score)
        picker.append(token)
        tokens.append(token)
        return len(tokens) == room

    walk(tree, picks, emit)
    return tokens


def drafted(sampling: SamplingOptions, at: int, root: int, replacement: bool = True) -> DraftTree:
    """Two draws and a copied child at the root, and a draw after each: with the drafter's random numbers, not the
    rule's."""
    q = (DRAFTER / 1.3).softmax(-1)
    top = draw(q[root], 2, KeyedRandom(sampling, at, drafting=True), replacement=replacement)
    children = dict.fromkeys([1, *top.tokens])
    below = {(token,): draw(q[token], 1, KeyedRandom(sampling, at + 1, drafting=True)) for token in children}
    return tree_of({(): [1]}, {(): top, **below})


def decoded(
    chosen: Rule | None, sampling: SamplingOptions, length: int, draft: Callable[..., DraftTree] = drafted
) -> list[int]:
    picker = Picker(sampling, (), PROMPT, length + 4, CPU)
    output: list[int] = []
    while len(output) < length:
        root = output[-1] if output else -1
        tree = draft(sampling, len(PROMPT) + len(output), root)
        output += step(chosen, picker, tree, root, length - len(output))
    return output


@pytest.mark.parametrize("sampling", SETTINGS)
def test_coupled_is_what_decoding_does(sampling: SamplingOptions) -> None:
    for seed in range(20):
        sampling = replace(sampling, seed=seed)
        assert decoded(rule("coupled"), sampling, 12) == decoded(None, sampling, 12)


@pytest.mark.parametrize("name", EXACT)
def test_greedy_output_is_that_of_plain_decoding(name: str) -> None:
    for sampling in SETTINGS[:2]:
        plain = decoded(None, sampling, 20, lambda *_: DraftTree())
        assert decoded(rule(name), sampling, 20) == plain


@pytest.mark.parametrize("name", list(RULES))
def test_runs_repeat_and_seeds_differ(name: str) -> None:
    sampling = SamplingOptions(temperature=0.0 if name in ("top-k-gap", "bild") else 1.0, seed=4)
    first = decoded(rule(name), sampling, 30)
    assert decoded(rule(name), sampling, 30) == first
    if not sampling.is_greedy:
        assert decoded(rule(name), replace(sampling, seed=5), 30) != first
        assert decoded(rule(name), replace(sampling, sample=1), 30) != first


def test_numbers_are_keyed_by_position_and_never_shared() -> None:
    sampling = SamplingOptions(temperature=1.0, seed=7)
    uniform = torch.full((50,), 1 / 50)

    def numbers(rng: KeyedRandom) -> list[int]:
        return [rng.token(uniform) for _ in range(20)]

    first = numbers(KeyedRandom(sampling, 9))
    assert numbers(KeyedRandom(sampling, 9)) == first
    others = [KeyedRandom(sampling, 10), KeyedRandom(sampling, 9, drafting=True)]
    others += [KeyedRandom(replace(sampling, seed=8), 9), KeyedRandom(replace(sampling, sample=1), 9)]
    for other in others:
        assert sum(a == b for a, b in zip(numbers(other), first, strict=True)) < 5
    # A draw by the drafter is independent of whether it is accepted.
    taken = [KeyedRandom(sampling, at).accepts(0.5) for at in range(2000)]
    drawn = [KeyedRandom(sampling, at, drafting=True).accepts(0.5) for at in range(2000)]
    assert abs(sum(taken) - 1000) < 120 and abs(sum(drawn) - 1000) < 120
    assert abs(sum(a == b for a, b in zip(taken, drawn, strict=True)) - 1000) < 120
    # Turns at one position have separate random numbers.
    turns = [[rng.accepts(0.5) for _ in range(2)] for rng in (KeyedRandom(sampling, at) for at in range(2000))]
    assert abs(sum(first == second for first, second in turns) - 1000) < 120
    assert not any(KeyedRandom(sampling, at).accepts(0.0) for at in range(50))


class Recent(LogitsProcessor):
    """Bans the last three tokens, so that P at a node depends on the path to it."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        return scores.index_fill(1, input_ids[0, -3:], -torch.inf)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["typical", "lenience", "multi-step"])
def test_processors_see_the_path_to_each_node(name: str) -> None:
    """Rules that judge whole paths need P before anything is emitted; the others need it along the walk."""
    asked: dict[int, torch.Tensor] = {}

    class Spy(RulePicks):
        def probabilities(self, node: int) -> torch.Tensor:
            asked[node] = super().probabilities(node)
            return asked[node]

    likely: list[int] = []
    for _ in range(3):
        scores = TARGET[likely[-1] if likely else -1].clone()
        scores[[*PROMPT, *likely][-3:]] = -torch.inf
        likely.append(int(scores.argmax()))
    tree = DraftTree([*likely, 1], [ROOT, 0, 1, ROOT], [0.5] * 4, [None] * 4)
    paths = {ROOT: [], 0: likely[:1], 1: likely[:2], 2: likely, 3: [1]}
    for seed in range(30):
        sampling = SamplingOptions(temperature=0.0 if name == "lenience" else 1.0, repetition_penalty=1.3, seed=seed)
        picker = Picker(sampling, [Recent()], PROMPT, 9, CPU)
        chosen = rule(name, **({"lenience": 0.01} if name == "lenience" else {}))
        picks = Spy(chosen.begin, picker, at_nodes(tree), tree)

        def emit(token: int, node: int, picker: Picker = picker) -> bool:
            picker.append(token)
            return False

        walk(tree, picks, emit)
    assert set(asked) >= {ROOT, 0, 1}
    for node, p in asked.items():
        prefix = [*PROMPT, *paths[node]]
        logits = at_nodes(tree)[node + 1].clone()
        expected = processed(logits, prefix, sampling)
        expected[prefix[-3:]] = -torch.inf
        assert torch.allclose(p, expected.softmax(-1), atol=1e-6)


# Numbers of draws of one token and of two, and the bias in total variation that each test must detect with probability
# POWER. One token: the bias of using the Q from before the processors (test_traps). Two tokens: a coarser test of what
# the
# enumeration does not run, namely keys and steps.
ONE, ONE_BIAS = 7_000, 0.05
TWO, TWO_BIAS = 1_000, 0.2
POWER = 0.99


def power(outcomes: int, draws: int, bias: float) -> float:
    """Return a lower bound on the power of the chi-square test of `bound` against any distribution `bias` away in total
    variation: its noncentrality is at least draws (2 bias)^2 (Cauchy-Schwarz), with a normal approximation."""
    freedom, noncentrality = outcomes - 1, draws * (2 * bias) ** 2
    spread = math.sqrt(2 * (freedom + 2 * noncentrality))
    return 0.5 * math.erfc((bound(outcomes) - freedom - noncentrality) / spread / math.sqrt(2))


def statistic(run: Callable[[SamplingOptions], Sequence[int]], expected: torch.Tensor, draws: int) -> float:
    counts = torch.zeros_like(expected)
    for seed in range(draws):
        counts[tuple(run(SamplingOptions(temperature=1.0, seed=seed)))] += 1
    return chi_square(counts.flatten(), expected.flatten())


@pytest.mark.parametrize(("name", "replacement"), [("multi-step", True), ("multi-step", False), ("k-sequential", True)])
def test_samples_follow_p(name: str, replacement: bool) -> None:
    """The joint distribution of two tokens over seeds, with drafts drawn with the drafters' random numbers."""

    def draft(sampling: SamplingOptions, at: int, root: int) -> DraftTree:
        return drafted(sampling, at, root, replacement)

    assert power(VOCAB**2, TWO, TWO_BIAS) > POWER
    chosen = rule(name)
    sampling = SamplingOptions(temperature=1.0)
    second = torch.stack([processed(TARGET[token], PROMPT, sampling).softmax(-1) for token in range(VOCAB)])
    expected = TARGET[-1].softmax(-1)[:, None] * second
    value = statistic(lambda sampling: decoded(chosen, sampling, 2, draft), expected, TWO)
    assert value < bound(int((expected * TWO >= 5).sum()))


def test_single_tokens_follow_p_and_a_small_bias_would_show() -> None:
    """Five outcomes, with P and Q of test_traps. The same test detects a Q from before the drafter's temperature."""
    assert power(len(P), ONE, ONE_BIAS) > POWER
    sharpened = (Q.log() / 0.6).softmax(-1)
    logits = P.log()[None]

    def run(sampling: SamplingOptions, q: torch.Tensor) -> list[int]:
        drawn = draw(sharpened, 1, KeyedRandom(sampling, len(PROMPT), drafting=True))
        tree = tree_of({}, {(): Sampled(drawn.tokens, q)})
        picker = Picker(sampling, (), PROMPT, 4, CPU)
        picks = RulePicks(rule("rejection").begin, picker, logits.expand(1 + len(tree), -1), tree)
        return [picks.token(ROOT)]

    assert statistic(lambda sampling: run(sampling, sharpened), P, ONE) < bound(len(P))
    assert statistic(lambda sampling: run(sampling, Q), P, ONE) > bound(len(P))


def test_options_are_checked() -> None:
    hot = SamplingOptions(temperature=0.7)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("bild", {}, "'bild' emits the most likely token: leave out temperature=0\\.7"),
        ("top-k-gap", {}, "'top-k-gap' emits the most likely token"),
        ("lenience", {"lenience": 1.5}, "lenience must be a number above 0 and at most 1"),
        ("top-k-gap", {"beta": 0}, "beta must be an integer >= 1, got 0"),
        ("top-k-gap", {"tau": -1}, "tau must be a number at least 0, got -1"),
        ("typical", {"delta": "x"}, "delta must be a number .* got 'x'"),
    ]
    for name, settings, message in cases:
        with pytest.raises(ValueError, match=message):
            rule(name, **settings).check(hot)


def test_sampling_settings_reach_p() -> None:
    """P includes temperature and truncation: no token outside of it is emitted."""
    sampling = SamplingOptions(temperature=0.7, top_k=3, seed=1)
    likeliest = set(TARGET[-1].topk(3).indices.tolist())
    seen = {decoded(rule("multi-step"), replace(sampling, seed=s), 1)[0] for s in range(60)}
    assert seen == likeliest
