"""Fakes for decoding tests: a target whose logits are a function of the prefix, and drafters that are right,
wrong or sometimes right. Their caches are lists of tokens, so a wrong commit shows in the next logits."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from copyspec.budget import Budget
from copyspec.targets.base import Scores
from copyspec.tree import ROOT, DraftTree, Origin, check_tree

DEVICE = torch.device("cpu")


class FakeTarget:
    """A target whose logits are pseudo-random functions of the last `order` tokens of the prefix, without ties."""

    is_encoder_decoder = False
    encoder_length = None
    device = DEVICE

    def __init__(
        self,
        vocab_size: int = 12,
        order: int = 2,
        max_length: int | None = None,
        supports_trees: bool = True,
        scale: float = 3.0,
    ) -> None:
        self.vocab_size, self.order, self.max_length = vocab_size, order, max_length
        self.supports_trees, self.supports_drafts, self.keeps_states = supports_trees, True, False
        self.scale = scale
        self.sessions: list[FakeSession] = []

    def logits(self, prefix: Sequence[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash(tuple(prefix[-self.order :])) % (2**31))
        return self.scale * torch.randn(self.vocab_size, generator=generator)

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> FakeSession:
        self.sessions.append(FakeSession(self, len(prompts)))
        return self.sessions[-1]

    def start(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)


class FakeSession:
    runner = "fake"
    is_settled = True
    computes = None
    most_tokens = 1 << 30
    most_nodes = 1 << 30

    def __init__(self, target: FakeTarget, rows: int) -> None:
        self.target = target
        self.cached: list[list[int]] = [[] for _ in range(rows)]
        self.closed = False
        self.calls = 0
        self._uncached: list[list[int]] = []
        self._trees: list[DraftTree] = []

    @property
    def lengths(self) -> Sequence[int]:
        return [len(tokens) for tokens in self.cached]

    def score(self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> Scores:
        assert not self.closed and len(uncached) == len(trees)
        whole = len(trees) == len(self.cached)  # rows that wait for their prompts to be read are behind the others
        assert whole or sum(map(len, [*uncached, *trees])) <= self.most_tokens
        self.calls += 1
        self._uncached, self._trees = [list(ids) for ids in uncached], list(trees)
        logits: list[torch.Tensor] = []
        for row, (ids, tree) in enumerate(zip(self._uncached, trees, strict=True)):
            check_tree(tree)
            assert ids
            prefixes = {ROOT: self.cached[row] + ids}
            logits.append(self.target.logits(prefixes[ROOT]))
            for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
                prefixes[node] = [*prefixes[parent], token]
                logits.append(self.target.logits(prefixes[node]))
            if self.target.max_length is not None:
                assert max(map(len, prefixes.values())) <= self.target.max_length
        return Scores.of_rows(torch.stack(logits).split([1 + len(tree) for tree in trees]))

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        for row, path in enumerate(paths):
            assert all(
                self._trees[row].parents[node] == parent for node, parent in zip(path, [ROOT, *path], strict=False)
            )
            self.cached[row] += self._uncached[row] + [self._trees[row].tokens[node] for node in path]

    def trim(self, lengths: Sequence[int]) -> None:
        self.cached = [tokens[:length] for tokens, length in zip(self.cached, lengths, strict=True)]

    def select(self, rows: Sequence[int]) -> None:
        self.cached = [self.cached[row] for row in rows]

    def add(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> None:
        assert not self.closed
        self.cached += [[] for _ in prompts]

    def close(self) -> None:
        self.closed = True


class ScriptedDrafter:
    """Drafts random trees around a script (the expected output) that are right with probability `accuracy`."""

    def __init__(self, script: Sequence[int], vocab_size: int, accuracy: float, seed: int = 0) -> None:
        self.script, self.vocab_size, self.accuracy = list(script), vocab_size, accuracy
        self.random = random.Random(seed)
        self.output: list[int] = []

    def propose(self, budget: Budget) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        origins: list[Origin | None] = []
        right = ROOT
        at = len(self.output)
        for _ in range(self.random.randint(0, budget.max_nodes)):
            parent = right if self.random.random() < 0.7 else self.random.randint(ROOT, len(tokens) - 1)
            correct = parent == right and at < len(self.script) and self.random.random() < self.accuracy
            token = self.script[at] if correct else self.random.randrange(self.vocab_size)
            if (parent, token) in set(zip(parents, tokens, strict=True)):
                continue
            tokens.append(token)
            parents.append(parent)
            origins.append(Origin(0, at) if correct else None)
            if correct:
                right, at = len(tokens) - 1, at + 1
        return DraftTree(tokens, parents, [0.5] * len(tokens), origins)

    def accept(self, tokens: Sequence[int]) -> None:
        self.output.extend(tokens)
