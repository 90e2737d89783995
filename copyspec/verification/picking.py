"""Picking: the target's own token at a node of the draft tree, greedy or sampled.

The token is the argmax of the processed scores, plus position-keyed noise when sampling. A draft node is accepted
when it holds that token; the drafter's probabilities play no part (Leviathan et al. 2023, arXiv:2211.17192, with a
one-hot Q). A node's history is the tokens before it: the prompt, the output, and the draft tokens on its path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

from copyspec.common.growing_ids import GrowingIds
from copyspec.options import SamplingOptions
from copyspec.targets.base import Scores
from copyspec.tree import DraftTree
from copyspec.verification.margins import why_unpicked
from copyspec.verification.noise import gumbel

MAX_BIAS = 1e30
"""Larger biases, infinity too, count as this one. It outweighs any logit, and unlike infinity it gives
log-probabilities."""

NO_IDS = torch.zeros((1, 0), dtype=torch.long, device="cpu")  # warpers depend on the scores alone


class Picks(Protocol):
    """The target's tokens for one row in one step. Nodes are numbered as in the tree; ROOT is -1."""

    def token(self, node: int) -> int:
        """The target's token after `node`. Called once per node, and only along the accepted path."""

    def scores(self, node: int) -> torch.Tensor:
        """The scores that the token after `node` was picked from, [V]; `node` is the last one given to `token`."""


class Picker:
    """Picks one row's tokens, and keeps the ids that logits processors would see in plain decoding."""

    def __init__(
        self,
        sampling: SamplingOptions,
        processors: Sequence[LogitsProcessor],
        start: Sequence[int],
        capacity: int,
        device: torch.device,
    ) -> None:
        """`start`: the ids before the output, as processors see them; `capacity`: maximum number of output tokens."""
        self.sampling = sampling
        self._biased = torch.tensor(list(sampling.logit_bias), dtype=torch.long, device=device)
        biases = [min(bias, MAX_BIAS) for bias in sampling.logit_bias.values()]
        self._bias = torch.tensor(biases, dtype=torch.float32, device=device)
        # A GPU penalises all nodes at once, which avoids a synchronisation per token. A CPU does it along the walk.
        penalty = float(sampling.repetition_penalty)
        at_once = penalty != 1.0 and not processors and not sampling.logit_bias and penalises_at_once(device)
        self.penalty = penalty if at_once else 1.0
        self.seen: torch.Tensor | None = None  # [V] bool: tokens to penalise, besides those still pending
        self._pending: list[int] = list(start) if self.penalty != 1.0 else []
        self._penalised: list[int] = list(self._pending)
        self._processors = list(processors)
        if sampling.repetition_penalty != self.penalty:
            # Put it first, as in transformers, where built-in penalties precede the caller's own processors.
            self._processors.insert(0, RepetitionPenaltyLogitsProcessor(penalty))
        self._warpers = [] if sampling.is_greedy else warpers(sampling)
        self._start, self._length = len(start), len(start)
        self._shift = 0  # offset from a token's position to the position that keys its noise
        self._ids = GrowingIds(start, capacity, device) if self._processors else None

    @property
    def depends_on_history(self) -> bool:
        """Whether a node's scores depend on its history, so that they are computed node by node along the walk."""
        return bool(self._processors)

    @property
    def kind(self) -> tuple[float, int, float, float]:
        """The sampling settings of temperature and truncation; rows of equal kind are processed together."""
        sampling = self.sampling
        if sampling.is_greedy:
            return (0.0, 0, 1.0, 0.0)
        return (float(sampling.temperature), sampling.top_k, float(sampling.top_p), float(sampling.min_p))

    @property
    def is_joint(self) -> bool:
        """Whether the row's scores can be computed together with those of other rows (`decoding.picks`)."""
        return not self._processors and not len(self._biased)

    def positions(self, deepest: int) -> range:
        """The positions that key the noise at depths 0 .. deepest."""
        start = self._length + self._shift
        return range(start, start + 1 + deepest)

    def take_pending(self) -> list[int]:
        """Return and clear the tokens that joined the row since the last call; empty without a joint penalty."""
        pending, self._pending = self._pending, []
        return pending

    @property
    def length(self) -> int:
        """Tokens so far, prompt included: the absolute position of the next one."""
        return self._length

    def append(self, token: int) -> None:
        """Add a token that joined the output."""
        self.extend([token])

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens that joined the output."""
        if self._ids is not None:
            for token in tokens:
                self._ids.append(token)
        if self.penalty != 1.0:
            self._pending += tokens
            self._penalised += tokens
        self._length += len(tokens)

    def key_noise_from(self, position: int) -> None:
        """Key the next token's noise by `position`, and that of later tokens by the positions after it.

        A text that is decoded after prompts of different lengths thus keeps the same noise.
        """
        self._shift = position - self._length

    def scores(self, logits: torch.Tensor, tree: DraftTree) -> torch.Tensor:
        """The scores whose argmax is the token at the root and each node, [1 + m, V], from the logits there (row 0 is
        the root). Not for rows with `depends_on_history`."""
        scores, depths = self._biased_scores(logits), [0, *tree.depths()]
        if self.sampling.is_greedy:
            return scores
        return self.perturb(scores, self._noise(self.positions(max(depths)), logits)[depths])

    def walk_picks(self, logits: torch.Tensor, tree: DraftTree) -> Picks:
        """Picks that are computed node by node along the walk, each with its own history. Arguments as for `scores`."""
        return _WalkPicks(self, logits, [0, *tree.depths()])

    def _biased_scores(self, logits: torch.Tensor) -> torch.Tensor:
        scores = logits.to(torch.float32, copy=True)
        if len(self._biased):
            scores[:, self._biased] += self._bias
        return scores

    def _noise(self, positions: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Noise by position, [n, V]."""
        return gumbel(self.sampling.seed, self.sampling.sample, positions, logits.shape[-1], logits.device)

    def noise_at(self, depths: Sequence[int], logits: torch.Tensor) -> Callable[[int], torch.Tensor]:
        """A function from depth to noise, [1, V]."""
        positions = self.positions(max(depths))
        if logits.is_cpu:  # most depths are never reached
            return lambda depth: self._noise(positions[depth : depth + 1], logits)
        noise = self._noise(positions, logits)  # with fewer kernels
        return lambda depth: noise[depth : depth + 1]

    def process(self, logits: torch.Tensor) -> torch.Tensor:
        """Scores [1, V] of these logits with biases and the processors, after the output given to `append`."""
        scores = self._biased_scores(logits)
        return scores if self._ids is None else _processed(self._processors, self._ids.view(), scores)

    def check(self, logits: torch.Tensor, scores: torch.Tensor, depth: int) -> None:
        """Raise ValueError if no token can be picked from `scores`, [1, V], made of `logits` at this depth of a draft:
        the best is NaN or -inf."""
        if not float(scores.max()) > -math.inf:
            position = self._length - self._start + depth
            raise ValueError(why_unpicked(scores, position, changed=not bool(logits.isnan().any())))

    def unperturbed(self, logits: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        """The scores whose softmax is P, [1, V], after the output so far and the draft tokens of `path`, from the
        logits [1, V] there: with bias, processors and, when sampling, temperature and truncation, without noise."""
        scores = self._biased_scores(logits)
        ids, processors = self._ids.view() if self._ids is not None else NO_IDS, self._processors
        if self.penalty != 1.0:
            processors = [RepetitionPenaltyLogitsProcessor(self.penalty)]
            ids = torch.tensor([self._penalised], dtype=torch.long, device=logits.device)
        if processors and path:
            ids = torch.cat([ids, torch.tensor([list(path)], dtype=torch.long, device=ids.device)], dim=1)
        scores = _processed(processors, ids, scores)
        for warper in self._warpers:
            scores = warper(ids, scores)
        if processors:
            self.check(logits, scores, len(path))
        return scores

    def perturb(self, scores: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Apply temperature and truncation to scores [n, V], then add `noise`. The argmax is a draw from P; the
        softmax's normaliser is not needed, since it is equal for all tokens."""
        for warper in self._warpers:
            scores = warper(NO_IDS, scores)
        return scores + noise


def _processed(processors: Sequence[LogitsProcessor], ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Run processors on scores [1, V] after `ids`. Raises ValueError where one returns anything but such scores."""
    shape, device = scores.shape, scores.device
    for processor in processors:
        scores = processor(ids, scores)
        fits = isinstance(scores, torch.Tensor) and scores.shape == shape and scores.is_floating_point()
        if not (fits and scores.layout == torch.strided and scores.device == device):
            raise ValueError(
                f"a logits_processor returned {_kind(scores)}; it is called with one row, scores "
                f"of shape {list(shape)}, and must return floating-point scores of that shape on {device}"
            )
    return scores


def penalises_at_once(device: torch.device) -> bool:
    """Whether a repetition penalty is computed for all nodes of a pass at once instead of along the walk."""
    return device.type != "cpu"


@dataclass(slots=True)
class ScoredPicks:
    """Picks whose scores are all computed before the walk."""

    tokens: Sequence[int]  # [1 + m]
    _scores: torch.Tensor  # [N, V], those of other rows too
    _start: int = 0  # index of the root

    def token(self, node: int) -> int:
        return self.tokens[node + 1]

    def scores(self, node: int) -> torch.Tensor:
        return self._scores[self._start + node + 1]


def best_picks(scores: Scores) -> list[ScoredPicks]:
    """The picks of rows that all take the argmax (first of ties) at each node."""
    logits = scores.logits
    if logits.is_cpu:  # NumPy's argmax is vectorised and takes a tenth of the time of torch's, or less
        best: list[int] = logits.float().numpy().argmax(-1).tolist()
    else:
        best = logits.argmax(-1).tolist()
    rows = zip(scores.starts, scores.sizes, strict=True)
    return [ScoredPicks(best[start : start + size], logits, start) for start, size in rows]


class _WalkPicks:
    """Picks computed during the walk: processors run once per node, on the node's own history, and nothing is computed
    for nodes that are not reached."""

    def __init__(self, picker: Picker, logits: torch.Tensor, depths: Sequence[int]) -> None:
        self._picker = picker
        self._logits = logits  # [1 + m, V]
        self._depths = depths
        self._noise = None if picker.sampling.is_greedy else picker.noise_at(depths, logits)
        self._last = logits[:1]

    def token(self, node: int) -> int:
        row = node + 1
        raw = self._logits[row : row + 1]
        processed = self._picker.process(raw)
        if self._noise is not None:
            processed = self._picker.perturb(processed, self._noise(self._depths[row]))
        self._last = processed
        best = processed.argmax(-1)
        token, score = torch.stack([best.double(), processed[0, best].double()])[:, 0].tolist()  # in one transfer
        if not score > -math.inf:
            self._picker.check(raw, processed, 0)
        return int(token)

    def scores(self, node: int) -> torch.Tensor:
        return self._last[0]


def _kind(scores: object) -> str:
    if not isinstance(scores, torch.Tensor):
        return f"a {type(scores).__name__}"
    layout = "" if scores.layout == torch.strided else f"{scores.layout} "
    return f"{layout}{scores.dtype} scores of shape {list(scores.shape)} on {scores.device}"


def warpers(sampling: SamplingOptions) -> list[LogitsProcessor]:
    """Temperature and truncation of a row that samples, in transformers' order. They depend on the scores alone."""
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
