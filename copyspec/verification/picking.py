"""Picking: the target's own token at a node, greedy or sampled, by one rule.

y = argmax of the processed scores, plus position-keyed noise when sampling. A draft node is accepted when y
is its token; no drafter's probability enters (Leviathan et al. 2023, arXiv:2211.17192, with a one-hot Q).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from copyspec.options import SamplingOptions
from copyspec.tree import DraftTree
from copyspec.verification.margins import Margin, best_two
from copyspec.verification.noise import gumbel


class Picks(Protocol):
    """The target's own tokens for one row of one step. Nodes are numbered as in the tree, ROOT is -1."""

    def token(self, node: int) -> int:
        """The token after `node`. Asked along the accepted walk only, once per node."""
        ...

    def margin(self, node: int) -> Margin:
        """The two best scores after a `node` that `token` was asked for."""
        ...

    def scores(self, node: int) -> torch.Tensor:
        """What the token after `node` was picked from, [V]; of the node that `token` was asked for last."""
        ...


class Picker:
    """Picks one row's tokens. Knows the ids that logits processors would have seen in plain decoding."""

    def __init__(
        self,
        sampling: SamplingOptions,
        processors: Sequence[LogitsProcessor],
        start: Sequence[int],
        capacity: int,
        device: torch.device,
    ) -> None:
        """`start`: the ids before the output, as processors see them; `capacity`: output tokens at most."""
        self._sampling = sampling
        self._biased = torch.tensor(list(sampling.logit_bias), dtype=torch.long, device=device)
        self._bias = torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float32, device=device)
        # For all nodes of all rows at once where the host would wait for each token. A CPU walks: few nodes need it.
        at_once = not processors and not sampling.logit_bias and penalises_at_once(device)
        self.penalty = float(sampling.repetition_penalty) if at_once else 1.0
        self.seen: torch.Tensor | None = None  # which tokens the penalty is for, [V]; those of `take_pending` too
        self._pending: list[int] = list(start) if self.penalty != 1.0 else []
        self._told: list[int] = list(self._pending)
        self._processors = [] if self.penalty != 1.0 else _history_dependent(sampling, processors)
        self._warpers = warpers(sampling)
        self._length = len(start)
        self._shift = 0  # from the position of a token to the one that keys its noise
        self._ids = torch.zeros(1, len(start) + capacity if self._processors else 0, dtype=torch.long, device=device)
        if self._processors:
            self._ids[0, : len(start)] = torch.tensor(list(start), dtype=torch.long)

    @property
    def is_argmax(self) -> bool:
        """True: the token is the argmax of the logits as they are, which a batch takes in one go."""
        plain = self._sampling.is_greedy and not self._processors and not len(self._biased)
        return plain and self.penalty == 1.0

    @property
    def depends_on_history(self) -> bool:
        """True: the scores at a node depend on the walk to it, and are worked out along the walk."""
        return bool(self._processors)

    @property
    def kind(self) -> tuple[float, int, float, float]:
        """Equal for rows whose scores go through the same temperature and truncation."""
        sampling = self._sampling
        if sampling.is_greedy:
            return (0.0, 0, 1.0, 0.0)
        return (float(sampling.temperature), sampling.top_k, float(sampling.top_p), float(sampling.min_p))

    @property
    def is_joint(self) -> bool:
        """Whether its scores are worked out together with those of other rows (`at_once`)."""
        return not self._processors and not len(self._biased)

    def positions(self, deepest: int) -> range:
        """Those that key the noise of depths 0 .. deepest."""
        start = self._length + self._shift
        return range(start, start + 1 + deepest)

    def take_pending(self) -> list[int]:
        """Tokens that joined the row since this was asked last, where a penalty is for them."""
        pending, self._pending = self._pending, []
        return pending

    @property
    def sampling(self) -> SamplingOptions:
        return self._sampling

    @property
    def length(self) -> int:
        """Tokens so far: the absolute position of the next one."""
        return self._length

    def append(self, token: int) -> None:
        """Tells which token joined the output."""
        if self._processors:
            self._ids[0, self._length] = token
        self.extend([token])

    def extend(self, tokens: Sequence[int]) -> None:
        """Tells which tokens joined the output, where no processor asks for them."""
        if self.penalty != 1.0:
            self._pending += tokens
            self._told += tokens
        self._length += len(tokens)

    def key_noise_from(self, position: int) -> None:
        """The next token gets the noise of `position`, those after it of the positions behind: a text that is
        decoded behind prompts of several lengths keeps one sequence of noise."""
        self._shift = position - self._length

    def scores(self, logits: torch.Tensor, tree: DraftTree) -> torch.Tensor:
        """What the argmax is taken of at the root and each node, [1 + m, V], given the logits there (row 0: the
        root). Only where `depends_on_history` is False."""
        scores, noise = self._biased_scores(logits), self._noise(logits, tree)
        return scores if noise is None else self.perturb(scores, noise[[0, *tree.depths()]])

    def walk_picks(self, logits: torch.Tensor, tree: DraftTree) -> Picks:
        """Picks that are worked out node by node, each with its own prefix. Arguments as for `scores`."""
        return _WalkPicks(self, self._biased_scores(logits), [0, *tree.depths()], self._noise(logits, tree))

    def _biased_scores(self, logits: torch.Tensor) -> torch.Tensor:
        scores = logits.to(torch.float32, copy=True)
        if len(self._biased):
            scores[:, self._biased] += self._bias
        return scores

    def _noise(self, logits: torch.Tensor, tree: DraftTree) -> torch.Tensor | None:
        """Noise by depth, [deepest + 1, V]; None when greedy."""
        if self._sampling.is_greedy:
            return None
        positions = self.positions(max(tree.depths(), default=0))
        return gumbel(self._sampling.seed, self._sampling.sample, positions, logits.shape[-1], logits.device)

    def process(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores [1, V] through the history-dependent processors, with the output as told to `append`."""
        shape = scores.shape
        for processor in self._processors:
            scores = processor(self._ids[:, : self._length], scores)
            if getattr(scores, "shape", None) != shape:
                raise ValueError(
                    f"a logits_processor returned {_kind(scores)}; it is called with one row, scores "
                    f"of shape {list(shape)}, and must return scores of that shape"
                )
        return scores

    def unperturbed(self, logits: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        """What P is the softmax of, [1, V], after the output so far and the draft tokens of `path`, given the
        logits [1, V] there: with bias, processors and, when sampling, temperature and truncation; no noise."""
        scores = self._biased_scores(logits)
        ids, processors = self._ids[:, : self._length], self._processors
        if self.penalty != 1.0:
            processors = [RepetitionPenaltyLogitsProcessor(self.penalty)]
            ids = torch.tensor([self._told], dtype=torch.long, device=logits.device)
        if processors and path:
            ids = torch.cat([ids, torch.tensor([list(path)], dtype=torch.long, device=ids.device)], dim=1)
        for processor in (*processors, *self._warpers):
            scores = processor(ids, scores)
        return scores

    def perturb(self, scores: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Scores [n, V] through temperature and truncation, plus `noise`. Their argmax is a draw from P:
        the softmax's normaliser is the same for all tokens and need not be computed."""
        for warper in self._warpers:
            scores = warper(self._ids, scores)
        return scores + noise


def penalises_at_once(device: torch.device) -> bool:
    """Whether a repetition penalty is worked out for all nodes of a pass, and not along the walk."""
    return device.type != "cpu"


class ScoredPicks:
    """Picks of which all scores are known beforehand."""

    def __init__(self, tokens: Sequence[int], scores: torch.Tensor, row: int) -> None:
        self.tokens = tokens  # [1 + m]
        self._scores, self._row = scores, row  # [B, 1 + m, V]

    def token(self, node: int) -> int:
        return self.tokens[node + 1]

    def margin(self, node: int) -> Margin:
        return best_two(self.scores(node))

    def scores(self, node: int) -> torch.Tensor:
        return self._scores[self._row, node + 1]


def best_tokens(scores: torch.Tensor) -> list[list[int]]:
    """The token of the largest score, the first of several, at each node of each row. [B, 1 + m] of [B, 1 + m, V]"""
    if scores.device.type == "cpu":
        # NumPy's argmax reads the numbers in vectors: it takes a tenth of the time of torch's, or less.
        found: list[list[int]] = scores.float().numpy().argmax(-1).tolist()
    else:
        found = scores.argmax(-1).tolist()
    return found


class _WalkPicks:
    """Picks whose scores depend on the walk: processors see each node's own prefix, and each prefix once."""

    def __init__(self, picker: Picker, scores: torch.Tensor, depths: Sequence[int], noise: torch.Tensor | None) -> None:
        self._picker = picker
        self._scores = scores
        self._depths = depths
        self._noise = noise  # [max depth + 1, V]
        self._last = scores[:1]

    def token(self, node: int) -> int:
        row = node + 1
        processed = self._picker.process(self._scores[row : row + 1])
        if self._noise is not None:
            depth = self._depths[row]
            processed = self._picker.perturb(processed, self._noise[depth : depth + 1])
        self._last = processed
        return int(processed.argmax(-1))

    def margin(self, node: int) -> Margin:
        return best_two(self.scores(node))

    def scores(self, node: int) -> torch.Tensor:
        return self._last[0]


def _kind(scores: object) -> str:
    shape = getattr(scores, "shape", None)
    return f"a {type(scores).__name__}" if shape is None else f"scores of shape {list(shape)}"


def _history_dependent(sampling: SamplingOptions, processors: Sequence[LogitsProcessor]) -> list[LogitsProcessor]:
    chosen = list(processors)
    if sampling.repetition_penalty != 1.0:
        # First, as in transformers: built-in penalties precede the caller's own processors.
        chosen.insert(0, RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    return chosen


def warpers(sampling: SamplingOptions) -> list[LogitsProcessor]:
    """Temperature and truncation in transformers' order. They look at scores only, row by row."""
    if sampling.is_greedy:
        return []
    chosen: list[LogitsProcessor] = []
    if sampling.temperature != 1.0:
        chosen.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k > 0:
        chosen.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        chosen.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0.0:
        chosen.append(MinPLogitsWarper(sampling.min_p))
    return chosen
