"""Log-probabilities of output tokens, recorded by a logits processor along the accepted path."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from copyspec.common.forks import fork_safe
from copyspec.text.stops import Detokenizer
from copyspec.verification.margins import check_picked

if TYPE_CHECKING:
    import torch
    from transformers import LogitsProcessor


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One output token, or an alternative at its position, with its log-probability."""

    token_id: int
    token: str
    """The text that it completes after the tokens before it, so that the strings of an output add up to its text; empty
    for control tokens and for the first bytes of a character."""
    logprob: float
    """Natural logarithm of the probability after processors, temperature and truncation, in float32 (the log-softmax of
    transformers' `output_scores`)."""
    top: tuple[TokenLogprob, ...] = ()
    """The most probable tokens at this position, in descending order, without tokens of probability zero."""


class LogprobRecorder:
    """A logits processor that leaves the scores unchanged and records them for one row, position by position.

    It is called in the thread that decodes, and `take` in that of the caller, who reads outputs meanwhile."""

    def __init__(
        self,
        start: int,
        count: int,
        warpers: Sequence[LogitsProcessor],
        decode: Callable[[Sequence[int]], str],
        *,
        before: Sequence[int] = (),
        takes_back: bool = False,
    ) -> None:
        """`start`: number of tokens before the output in `input_ids`; `count`: how many top tokens to record;
        `warpers`: temperature and truncation, applied after all processors; `before`, `takes_back`: as for the
        `Detokenizer`."""
        self._start, self._count, self._warpers = start, count, warpers
        self._detokenizer = Detokenizer(decode, before=before, takes_back=takes_back)
        self._rows: dict[int, torch.Tensor] = {}  # position -> [V], until the token is known
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._lock = fork_safe(threading.Lock())

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1] - self._start
        warped: Any = scores
        for warper in self._warpers:
            warped = warper(input_ids, warped)
        row = warped[0].float().log_softmax(-1)
        with self._lock:
            if (before := self._rows.pop(position - 1, None)) is not None:
                self._know(position - 1, before, int(input_ids[0, -1]))
            self._rows[position] = row
        return scores

    def take(self, first: int, tokens: Sequence[int], *, is_last: bool = False) -> list[TokenLogprob]:
        """The log-probabilities of the output tokens from position `first` on; each can be taken once, in their order.
        `is_last`: they end the output."""
        end = first + len(tokens) - 1 if is_last else None
        return [self._token(position, token, is_last=position == end) for position, token in enumerate(tokens, first)]

    def _know(self, position: int, row: torch.Tensor, token: int) -> None:
        """Reduce a row of scores over the vocabulary to the chosen token and the top tokens."""
        check_picked(row, token, position)
        values, ids = row.topk(min(self._count, row.shape[-1]))
        self._known[position] = row[token], values, ids

    def _token(self, position: int, token: int, *, is_last: bool) -> TokenLogprob:
        with self._lock:
            if (row := self._rows.pop(position, None)) is not None:
                self._know(position, row, token)
            chosen, values, ids = self._known.pop(position)
        pairs = zip(values.tolist(), ids.tolist(), strict=True)
        texts = {i: self._detokenizer.peek(i) for i in ids.tolist() if i != token}
        texts[token] = self._detokenizer.push([token]) + (self._detokenizer.finish() if is_last else "")
        top = [TokenLogprob(i, texts[i], value) for value, i in pairs if math.exp(value) > 0.0]
        return TokenLogprob(token, texts[token], float(chosen), tuple(top))
