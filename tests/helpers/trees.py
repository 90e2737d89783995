"""A session driven with random trees, whose logits are compared with those of each path run alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from copyspec.targets.base import Session, Target
from copyspec.tree import ROOT, DraftTree
from tests.helpers import models


def random_tree(rng: random.Random, nodes: int) -> DraftTree:
    """Make a branched tree with distinct siblings; as in drafters' trees, chains are more likely than branches."""
    tokens: list[int] = []
    parents: list[int] = []
    while len(tokens) < nodes:
        parent = len(tokens) - 1 if rng.random() < 0.5 else rng.randrange(ROOT, len(tokens))
        token = rng.randrange(3, models.VOCAB_SIZE)
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
    return DraftTree(tokens, parents, [0.5] * nodes, [None] * nodes)


def path_to(tree: DraftTree, node: int) -> list[int]:
    path = []
    while node != ROOT:
        path.append(node)
        node = tree.parents[node]
    return path[::-1]


@torch.inference_mode()
def alone(model: PreTrainedModel, prompt: Sequence[int], sequences: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logits after each of `sequences`, of equal length, in a separate pass without a cache, [B, V]."""
    ids = torch.tensor(sequences)
    if model.config.is_encoder_decoder:
        encoded = torch.tensor([list(prompt)] * len(ids))
        return model(input_ids=encoded, decoder_input_ids=ids, use_cache=False).logits[:, -1]
    return model(input_ids=ids, use_cache=False).logits[:, -1]


class Rows:
    """A session driven with random trees and random accepted paths, and the sequences that it should represent."""

    def __init__(self, model: PreTrainedModel, target: Target, lengths: Sequence[int], seed: int = 0) -> None:
        self.model, self.target, self.rng = model, target, random.Random(seed)
        self.prompts = [models.random_ids(length, seed=row) for row, length in enumerate(lengths)]
        self.session: Session = target.open(self.prompts)
        self.sequences = [target.start(prompt) for prompt in self.prompts]
        self.cached = [0] * len(lengths)

    def step(self, sizes: Sequence[int] = (0, 3, 6, 9)) -> float:
        """Score a tree, compare every node with its path alone, commit a random path; return the largest error."""
        trees = [random_tree(self.rng, self.rng.choice(sizes)) for _ in self.sequences]
        if not self.target.supports_trees:
            trees = [tree.first_chain() for tree in trees]
        uncached = [sequence[cached:] for sequence, cached in zip(self.sequences, self.cached, strict=True)]
        scores = self.session.score(uncached, trees)
        assert len(scores) == len(trees)
        worst, paths = 0.0, []
        for row, (sequence, tree) in enumerate(zip(self.sequences, trees, strict=True)):
            levels: dict[int, list[int]] = {}  # nodes by depth: their paths are of equal length
            for node in range(ROOT, len(tree)):
                levels.setdefault(len(path_to(tree, node)), []).append(node)
            for nodes in levels.values():
                texts = [[*sequence, *(tree.tokens[index] for index in path_to(tree, node))] for node in nodes]
                expected = alone(self.model, self.prompts[row], texts)
                assert scores[row].shape == (1 + len(tree), self.target.vocab_size)
                part = scores[row][[1 + node for node in nodes]]
                assert part.isfinite().all()  # `max` would drop NaN
                worst = max(worst, float((part - expected).abs().max()))
            paths.append(path_to(tree, self.rng.randrange(ROOT, len(tree))))
        self.session.keep(paths)
        for row, (tree, path) in enumerate(zip(trees, paths, strict=True)):
            self.cached[row] += len(uncached[row]) + len(path)
            self.sequences[row] += [*(tree.tokens[node] for node in path), self.rng.randrange(3, models.VOCAB_SIZE)]
        assert list(self.session.lengths) == self.cached
        return worst

    def select(self, rows: Sequence[int]) -> None:
        self.session.select(rows)
        self.prompts = [self.prompts[row] for row in rows]
        self.sequences = [self.sequences[row] for row in rows]
        self.cached = [self.cached[row] for row in rows]

    def add(self, lengths: Sequence[int], seed: int = 7) -> None:
        """Let rows join with prompts of so many tokens."""
        prompts = [models.random_ids(length, seed=seed + row) for row, length in enumerate(lengths)]
        self.session.add(prompts)
        self.prompts += prompts
        self.sequences += [self.target.start(prompt) for prompt in prompts]
        self.cached += [0] * len(lengths)


def fingerprint(model: PreTrainedModel) -> list[object]:
    """Collect everything that a session might change: configuration, modules, their attributes and hooks."""
    parts: list[object] = [model.config.to_dict(), model.config._attn_implementation, model.generation_config.to_dict()]
    for name, module in model.named_modules():
        hooks = [len(value) for key, value in vars(module).items() if key.endswith("hooks") and value is not None]
        parts.append((name, type(module), sorted(vars(module)), hooks, module.training))
    parts += [(name, parameter.data_ptr(), parameter.sum().item()) for name, parameter in model.named_parameters()]
    return parts
