"""Draft heads that are trained further while they draft, on the target's own output.

Online speculative decoding (Liu et al. 2024, arXiv 2310.07177) tunes a draft model at the positions where its drafts
were rejected. Here a recurrent head learns from the hidden states that it observes, in a thread that uses a small share
of the time, from a buffer of bounded size. Under the default rule this does not change any output. If the loss grows or
is not finite, the head is reset to the weights of its folder; after several resets in a row it learns no more.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear, smooth_l1_loss

from copyspec.drafters.predictors.base import RowContext, walked
from copyspec.drafters.predictors.head_files import HeadFile
from copyspec.drafters.predictors.head_weights import RecurrentHead
from copyspec.drafters.predictors.heads import DraftHeads, HeadsPredictor
from copyspec.forks import fork_safe

if TYPE_CHECKING:
    from transformers import PreTrainedModel


logger = logging.getLogger(__name__)

BUFFER = 4096
"""Number of latest windows of states and tokens kept: about 40 MB for states of 600 numbers, and as much again for each
layer that the head reads beside them."""

BATCH = 64  # windows per training step
RATE = 2e-4
SHARE = 0.15  # share of the time that learning takes
IDLE_SECONDS = 5.0  # without new windows, until the thread ends
SWAP_STEPS = 20  # steps between two updates of the weights that the rows use
DIVERGED = 1.5  # times the initial loss, above which the head is reset
MAX_FAILURES = 5  # resets in a row, then it learns no more: states too large for float16 diverge every time
MEMORY = 0.95  # weight of earlier steps in the mean loss

Window = tuple[torch.Tensor, torch.Tensor]
"""Tokens [K + 1] and the hidden states from which they were picked, [K + 1, (1 + L) D]."""


class LearningHeads(DraftHeads):
    """A recurrent head that learns. Raises ValueError for heads of other kinds."""

    def __init__(self, file: HeadFile, model: PreTrainedModel) -> None:
        if not isinstance(file.heads, RecurrentHead):
            raise ValueError(f"heads {file.name!r} cannot learn while they draft; use 'heads:'")
        super().__init__(file, model)
        self._first = file
        self._windows: deque[Window] = deque(maxlen=BUFFER)
        self._fresh = 0  # windows since the last step
        self._worker: threading.Thread | None = None
        self._failures = 0  # resets since weights were last handed over
        self._lock = fork_safe(threading.Lock())
        self.steps = self.resets = 0

    def add(self, window: Window) -> None:
        """Add a window to the training buffer."""
        if self._failures >= MAX_FAILURES:
            return
        with self._lock:
            self._windows.append(window)
            self._fresh += 1
            if len(self._windows) >= BATCH and (self._worker is None or not self._worker.is_alive()):
                self._worker = threading.Thread(target=self._work, name="copyspec-heads", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        """Train while new windows arrive."""
        try:
            learner, idle = Learner(self), 0.0
            while idle < IDLE_SECONDS and self._failures < MAX_FAILURES:
                with self._lock:
                    chosen = learner.choose(self._windows) if self._fresh else []
                    self._fresh = max(0, self._fresh - BATCH)
                if not chosen:
                    idle += 0.05
                    sleep(0.05)
                    continue
                idle, started = 0.0, perf_counter()
                learner.step(chosen)
                sleep((perf_counter() - started) * (1 / SHARE - 1))
        except Exception:
            logger.exception("heads %r stopped learning", self._first.name)
            self.take(None)
            self._failures = MAX_FAILURES

    def take(self, tensors: dict[str, torch.Tensor] | None) -> None:
        """Use these weights for all rows; None: those of the folder."""
        file = self._first
        if tensors is None:
            self.resets += 1
            self._failures += 1
        else:
            self._failures = 0
            assert isinstance(file.heads, RecurrentHead)
            file = replace(file, heads=RecurrentHead(tensors, self.depth, file.heads.layers))
        self._file = file  # `bound` sees that it is another one


class Learner:
    """The optimiser of one training thread, with its own copy of the weights."""

    def __init__(self, heads: LearningHeads) -> None:
        self._heads = heads
        self._generator = torch.Generator().manual_seed(heads.steps)
        self._begin()

    def _begin(self) -> None:
        bound = self._heads.bound
        assert isinstance(bound.heads, RecurrentHead)
        self._weights = {
            name: each.detach().clone().cpu().float().requires_grad_() for name, each in bound.heads.tensors.items()
        }
        self._shared, self._table = bound.shared.detach().cpu().float(), bound.embeddings.detach()
        self._optimizer = torch.optim.AdamW(self._weights.values(), lr=RATE, weight_decay=0.0)
        self._first_loss = self._loss = 0.0
        self._steps = 0

    def choose(self, windows: Sequence[Window]) -> list[Window]:
        """Choose a random batch."""
        size = (min(BATCH, len(windows)),)
        places = torch.randint(len(windows), size, generator=self._generator, device="cpu")
        return [windows[place] for place in places.tolist()]

    def step(self, windows: Sequence[Window]) -> None:
        """Make one training step. Hands over the weights every SWAP_STEPS steps, and resets them if the loss grew."""
        tokens = torch.stack([each for each, _ in windows])
        states = torch.stack([each for _, each in windows]).float()
        loss = self._loss_of(tokens, states)
        value = float(loss.detach())
        self._loss = value if not self._steps else MEMORY * self._loss + (1 - MEMORY) * value
        self._first_loss = max(self._first_loss, value) if self._steps < 5 else self._first_loss
        if not value < float("inf") or self._loss > DIVERGED * self._first_loss:
            logger.warning("heads diverged while learning (loss %.3g): their original weights are restored", value)
            self._heads.take(None)
            self._begin()
            return
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._weights.values(), 1.0)
        self._optimizer.step()
        self._steps += 1
        self._heads.steps += 1
        if self._steps % SWAP_STEPS == 0:
            self._heads.take({name: each.detach().clone() for name, each in self._weights.items()})

    def _loss_of(self, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        first = self._heads.bound.heads
        assert isinstance(first, RecurrentHead)
        head = RecurrentHead(dict(self._weights), first.depth, first.layers)
        state, total = head.entered(states[:, 0]), states.new_zeros(())
        states = states[..., : state.shape[-1]]
        with torch.no_grad():
            embeddings = self._table[tokens.to(self._table.device)].cpu().float()
            wanted = linear(states[:, 1:], self._shared).softmax(-1)
        for depth in range(head.depth):
            state = head.step(state, embeddings[:, depth])
            log_probs = linear(state, self._shared).log_softmax(-1)
            total = total - (wanted[:, depth] * log_probs).sum(-1).mean() + smooth_l1_loss(state, states[:, depth + 1])
        return total / head.depth


class LearningPredictor(HeadsPredictor):
    """One row, which also collects training windows around positions where the head's first guess was wrong."""

    def __init__(self, heads: LearningHeads, context: RowContext) -> None:
        super().__init__(heads, context)
        self._learning = heads
        self._recent: deque[tuple[int, torch.Tensor, bool]] = deque(maxlen=heads.depth + 1)

    def accept(self, tokens: Sequence[int]) -> None:
        scored, guesses = self._scored, self._uncalibrated(())
        states = None if scored is None else scored.read_states(self._learning.layers)
        if scored is None or states is None:
            self._recent.clear()  # a window holds consecutive tokens
        else:
            path = walked(scored.tree.tokens, scored.tree.parents, tokens[:-1])
            places = [0, *[node + 1 for node in path]]
            wrong = bool(guesses) and guesses[0][0] != tokens[0]  # type: ignore[index]
            states = states[-1 - len(scored.tree) :][places].detach().cpu().half()
            for token, state in zip(tokens, states, strict=False):
                self._recent.append((token, state, wrong))
                if len(self._recent) == self._recent.maxlen and any(each[2] for each in self._recent):
                    window = list(self._recent)
                    read = torch.tensor([each[0] for each in window], device="cpu")
                    self._learning.add((read, torch.stack([each[1] for each in window])))
        super().accept(tokens)
