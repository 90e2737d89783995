"""Exact enumeration for verification rules: every random outcome once, with its probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch

from copyspec.literature import BiLD, KSequential, Lenience, MultiStep, Rejection, Sampled, TopKGap, Typical, draw
from copyspec.literature.candidates import Randomness
from copyspec.literature.rules import DraftRule
from copyspec.literature.sampled import NextToken, Nodes
from copyspec.tree import ROOT, DraftTree
from copyspec.verification.walk import walk

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Coupled(DraftRule):
    """The default in the form of a rule: the target's own token."""

    name: ClassVar[str] = "coupled"

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return nodes.own_token


RULES: dict[str, type[DraftRule]] = {
    kind.name: kind for kind in (Coupled, Rejection, MultiStep, KSequential, Lenience, TopKGap, BiLD, Typical)
}


def rule(name: str, **settings: float) -> DraftRule:
    """Make a rule by its name."""
    return RULES[name](**settings)


VOCAB = 5
EXACT = 1e-6  # total variation allowed for float32 rounding

# A toy example that exposes every mistake in tests/verification/test_traps.py: the target's P and the drafter's Q.
P = torch.tensor([7.0, 8.0, 7.0, 3.0, 1.0]) / 26
Q = torch.tensor([5.0, 2.0, 4.0, 2.0, 11.0]) / 24


class Branching:
    """A Randomness that follows scripted choices, then takes the first possible one, and records the others."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self._taken: list[int] = []
        self.others: list[list[int]] = []
        self.weight = 1.0

    def accepts(self, probability: float) -> bool:
        assert 0.0 <= probability <= 1.0
        return self._choose([1.0 - probability, probability]) == 1

    def token(self, probabilities: torch.Tensor) -> int:
        exact = probabilities.double()
        return self._choose((exact / exact.sum()).tolist())

    def _choose(self, weights: Sequence[float]) -> int:
        step = len(self._taken)
        if step < len(self._script):
            choice = self._script[step]
        else:
            choice, *others = [index for index, weight in enumerate(weights) if weight > 0.0]
            self.others += [[*self._taken, other] for other in others]
        self._taken.append(choice)
        self.weight *= weights[choice]
        return choice


def outcomes(run: Callable[[Randomness], T]) -> Iterator[tuple[float, T]]:
    """Yield every outcome of `run` with its probability."""
    scripts: list[list[int]] = [[]]
    while scripts:
        rng = Branching(scripts.pop())
        outcome = run(rng)
        scripts += rng.others
        yield rng.weight, outcome


def emitted(run: Callable[[Randomness], int]) -> torch.Tensor:
    """The distribution of the token that `run` returns. [VOCAB], float64"""
    total = torch.zeros(VOCAB, dtype=torch.float64)
    for weight, token in outcomes(run):
        total[token] += weight
    return total


def variation(left: torch.Tensor, right: torch.Tensor) -> float:
    """Total variation distance."""
    return float((left.double() - right.double()).abs().sum() / 2)


class TableNodes:
    """A target whose P is the table row of the last token, or the last row at the root."""

    def __init__(self, table: torch.Tensor, tree: DraftTree, rng: Randomness, *, greedy: bool = False) -> None:
        self._table, self._tree, self._rng, self.greedy = table, tree, rng, greedy

    def probabilities(self, node: int) -> torch.Tensor:
        return self._table[-1 if node == ROOT else self._tree.tokens[node]]

    def own_token(self, node: int) -> int:
        p = self.probabilities(node)
        return int(p.argmax()) if self.greedy else self._rng.token(p)

    def randomness(self, node: int) -> Randomness:
        return self._rng


class RuleWalk:
    """A rule on a table's nodes, in the form that `walk` needs."""

    def __init__(self, rule: DraftRule, tree: DraftTree, nodes: TableNodes) -> None:
        self.token = rule.begin(tree, nodes)

    def scores(self, node: int) -> None: ...


def walked(rule: DraftRule, tree: DraftTree, nodes: TableNodes, limit: int) -> tuple[int, ...]:
    """The tokens that one step emits, at most `limit`."""
    tokens: list[int] = []

    def emit(token: int, node: int) -> bool:
        tokens.append(token)
        return len(tokens) == limit

    walk(tree, RuleWalk(rule, tree, nodes), emit)  # type: ignore[arg-type]
    return tuple(tokens)


def tree_of(children: Mapping[tuple[int, ...], Sequence[int]], drawn: Mapping[tuple[int, ...], Sampled]) -> DraftTree:
    """A tree by paths: `children` are certain, those of `drawn` are sampled; equal siblings become one node."""
    tokens: list[int] = []
    parents: list[int] = []
    places: dict[tuple[int, ...], int] = {(): ROOT}
    for path in sorted({*children, *drawn}, key=len):
        if path not in places:
            continue
        here = [*children.get(path, ()), *(drawn[path].tokens if path in drawn else ())]
        for token in dict.fromkeys(here):
            places[(*path, token)] = len(tokens)
            tokens.append(token)
            parents.append(places[path])
    sampled = {places[path]: draws for path, draws in drawn.items() if path in places}
    return DraftTree(tokens, parents, [0.5] * len(tokens), [None] * len(tokens), sampled)


def drafted(
    table: torch.Tensor,
    rng: Randomness,
    counts: tuple[int, int],
    *,
    replacement: bool = True,
    copied: Mapping[tuple[int, ...], Sequence[int]] | None = None,
) -> DraftTree:
    """A tree of depth two sampled from a drafter's table of the target's shape, together with copied children."""
    copied = copied or {}
    drawn: dict[tuple[int, ...], Sampled] = {}
    if counts[0]:
        drawn[()] = draw(table[-1], counts[0], rng, replacement=replacement)
    children = [*copied.get((), ()), *(drawn[()].tokens if counts[0] else ())]
    if counts[1]:
        for token in dict.fromkeys(children):
            drawn[(token,)] = draw(table[token], counts[1], rng, replacement=replacement)
    return tree_of(copied, drawn)


def joint(rule: DraftRule, target: torch.Tensor, draft: Callable[[Randomness], DraftTree]) -> torch.Tensor:
    """The distribution of the first two tokens, over all drafts and decisions. [VOCAB, VOCAB]

    If a step emits one token, the second is distributed as the target, since later steps use the same rule.
    """

    def run(rng: Randomness) -> tuple[int, ...]:
        tree = draft(rng)
        return walked(rule, tree, TableNodes(target, tree, rng), 2)

    total = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    for weight, tokens in outcomes(run):
        if len(tokens) == 2:
            total[tokens] += weight
        else:
            total[tokens[0]] += weight * target[tokens[0]].double()
    return total
