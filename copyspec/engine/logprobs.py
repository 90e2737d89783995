"""Log-probabilities of what was written: recorded along the accepted walk, where processors are called anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import LogitsProcessor


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One output token, or what might have stood in its place."""

    token_id: int
    token: str
    """Its text; empty for control tokens and for bytes that are no character alone."""
    logprob: float
    """Natural logarithm, of the scores after processors, temperature and truncation: of transformers' `output_scores`,
    in float32."""
    top: tuple[TokenLogprob, ...] = ()
    """The likeliest tokens at this place, the first one first. Tokens that cannot come are not among them."""


class LogprobRecorder:
    """A logits processor that changes nothing and remembers what it sees of one row, position by position."""

    def __init__(
        self, start: int, count: int, warpers: Sequence[LogitsProcessor], decode: Callable[[Sequence[int]], str]
    ) -> None:
        """`start`: tokens before the output, as processors see them; `count`: likeliest tokens to remember;
        `warpers`: temperature and truncation, which come behind all processors."""
        self._start, self._count, self._warpers, self._decode = start, count, warpers, decode
        self._rows: dict[int, torch.Tensor] = {}  # position -> [V], until the token is known
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1] - self._start
        if (row := self._rows.pop(position - 1, None)) is not None:
            self._know(position - 1, row, int(input_ids[0, -1]))
        warped: Any = scores
        for warper in self._warpers:
            warped = warper(input_ids, warped)
        self._rows[position] = warped[0].float().log_softmax(-1)
        return scores

    def take(self, first: int, tokens: Sequence[int]) -> list[TokenLogprob]:
        """The log-probabilities of the output tokens from position `first` on; each is given out once."""
        return [self._token(position, token) for position, token in enumerate(tokens, first)]

    def _know(self, position: int, row: torch.Tensor, token: int) -> None:
        """Keeps what is wanted of a row of the vocabulary's size."""
        values, ids = row.topk(min(self._count, row.shape[-1]))
        self._known[position] = row[token], values, ids

    def _token(self, position: int, token: int) -> TokenLogprob:
        if (row := self._rows.pop(position, None)) is not None:
            self._know(position, row, token)
        chosen, values, ids = self._known.pop(position)
        pairs = zip(values.tolist(), ids.tolist(), strict=True)
        top = [TokenLogprob(i, self._decode([i]), value) for value, i in pairs if value > float("-inf")]
        return TokenLogprob(token, self._decode([token]), float(chosen), tuple(top))
