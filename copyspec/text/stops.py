"""Stop conditions besides the end-of-sequence token, checked token by token, and incremental detokenization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from copyspec.common.checks import shown
from copyspec.common.sequences import common_prefix

if TYPE_CHECKING:
    import torch
    from transformers import StoppingCriteria

# Tokens decoded again with each new one: longer than any character split into bytes, short enough to be cheap.
WINDOW = 16

INCOMPLETE = "\ufffd"
"""The replacement character that tokenizers emit for bytes of an incomplete character."""


class Detokenizer:
    """Incremental detokenizer that emits complete characters only, and bytes that can no longer become one. All pieces
    plus `finish` equal `text_of` of all tokens."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], *, before: Sequence[int] = (), takes_back: bool = False
    ) -> None:
        """`before`: tokens that the text continues (`Codec.context`); `takes_back`: whether a further token may change
        the text of those before it (`Codec.takes_back`)."""
        self._decode, self._takes_back = decode, takes_back
        self._window = list(before)
        self._longest = 2 * WINDOW  # tokens of the window from which it is shortened
        self._text = decode(before) if before else ""  # of the window
        self._given = len(self._complete(self._text))  # characters of the window's text already emitted
        self._border = self._text if self._given < len(self._text) else None
        """The text before, while its end may still change."""
        self._textless: dict[int, bool] = {}  # whether a token never has text, of those that once had none
        self._num_textless = 0  # such tokens at the end of the window
        self._pending = 0  # tokens since the text was last complete

    def push(self, tokens: Sequence[int]) -> str:
        """The text completed by `tokens`, independent of how they are split over calls."""
        return "".join(map(self._push, tokens))

    def peek(self, token: int) -> str:
        """The text that `token` would complete."""
        twin = copy(self)
        twin._window = [*self._window]
        return twin._push(token)

    def finish(self) -> str:
        """Text that was held back: bytes that never became a character."""
        text = self._decode(self._window) if self._window else ""
        self._cross_border(text)
        piece = text[self._given :]
        self._given += len(piece)
        return piece

    def _push(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        if text == self._text and self._is_textless(token):
            # Where a decoder drops the bytes of an incomplete character, the next token may give them text.
            self._num_textless += 1
            if self._num_textless > WINDOW:
                del self._window[-self._num_textless]
                self._num_textless = WINDOW
            return ""
        self._num_textless = 0
        self._text = text
        complete = self._complete(text)
        if len(complete) > self._given:
            self._cross_border(text)
        piece = complete[self._given :]
        self._given = max(self._given, len(complete))
        self._pending = self._pending + 1 if len(complete) < len(text) else 0
        if len(self._window) > self._longest and not 0 < self._pending <= WINDOW:
            piece += self._shorten(text)
            # An attempt decodes up to one suffix per token, so the next one waits until the window has doubled.
            self._longest = max(2 * WINDOW, 2 * len(self._window))
        return piece

    def _complete(self, text: str) -> str:
        """The part of the window's text that no further token changes."""
        if self._takes_back and self._window:
            text = text[: common_prefix(text, self._decode([*self._window, self._window[-1]]))]
        return text.rstrip(INCOMPLETE)

    def _cross_border(self, text: str) -> None:
        """Leave out the end of the text before, if the output has not changed it."""
        if self._border is not None and text.startswith(self._border):
            self._given = len(self._border)
        self._border = None

    def _is_textless(self, token: int) -> bool:
        """Whether the last token, which adds no text at the end, has none elsewhere either. A decoder may strip spaces:
        one from the beginning of a text, which many of the token show, or all at its ends, which others around it
        show."""
        if token not in self._textless:
            if self._decode([token] * WINDOW):
                self._textless[token] = False
            elif (other := next((one for one in self._window[-2::-1] if self._decode([one])), None)) is not None:
                self._textless[token] = self._decode([other, token, other]) == self._decode([other, other])
        return self._textless.get(token, not self._text)  # what is stripped from the beginning has no text there

    def _shorten(self, text: str) -> str:
        """Drop old tokens from the window, at a cut after which the rest decodes to the same end of the text. Returns
        the text before it that was held back: bytes without a character, if the cut is not between two bytes of one."""
        for start in range(len(self._window) - WINDOW, 0, -1):
            rest = self._decode(self._window[start:])
            before = text[: len(text) - len(rest)]
            if not rest or not text.endswith(rest) or (self._pending and self._decode(self._window[:start]) != before):
                continue
            self._cross_border(text)
            piece = before[self._given :]
            del self._window[:start]
            self._given = max(0, self._given - len(before))
            self._text = rest
            return piece
        return ""


def text_of(
    tokens: Sequence[int],
    decode: Callable[[Sequence[int]], str],
    *,
    before: Sequence[int] = (),
    takes_back: bool = False,
) -> str:
    """The text of a whole output, equal to its streamed text. `before` and `takes_back` as for the `Detokenizer`.

    With byte fallback, decoding the whole may drop complete characters that invalid bytes follow; a stream cannot.
    """
    text, known = decode([*before, *tokens]), decode(before) if before else ""
    if INCOMPLETE not in text and text.startswith(known):
        return text[len(known) :]
    detokenizer = Detokenizer(decode, before=before, takes_back=takes_back)
    return detokenizer.push(tokens) + detokenizer.finish()


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The position of a stop string in the output's text."""

    string: str
    start: int  # first character
    end: int


class StopStrings:
    """Ends an output with the token that completes a stop string, even if the string starts or ends inside a token."""

    def __init__(
        self,
        strings: Sequence[str],
        decode: Callable[[Sequence[int]], str],
        *,
        before: Sequence[int] = (),
        takes_back: bool = False,
        special: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """`before` and `takes_back` as for the `Detokenizer`. `special`: those of the strings that are special tokens,
        by id: such a token ends the output, although it is no part of the text."""
        self.match: StopMatch | None = None
        self.is_token = False
        """Whether a special token has ended the output."""
        self._special = special
        self.strings = strings
        self._detokenizer = Detokenizer(decode, before=before, takes_back=takes_back)
        self._overlap = max(map(len, strings)) - 1
        self._tail = ""
        self._length = 0  # characters before the tail

    def push(self, token: int) -> str | None:
        """The stop string that this token completes: of several, the one that starts first, then the longest. Else
        None."""
        if token in self._special:
            self.is_token = True
            return self._special[token]
        text = self._tail + self._detokenizer.push([token])
        matches = [(at, -len(string), string) for string in self.strings if (at := text.find(string)) >= 0]
        if matches:
            at, _, string = min(matches)
            self.match = StopMatch(string, self._length + at, self._length + at + len(string))
            return string
        overlap = min(self._overlap, len(text))
        self._length += len(text) - overlap
        self._tail = text[len(text) - overlap :]
        return None


def held_back(text: str, strings: Sequence[str]) -> int:
    """Number of characters at the end of `text` that may be the beginning of a stop string."""
    longest = max((len(string) for string in strings), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[-length:]
        if any(string.startswith(end) for string in strings):
            return length
    return 0


class CriterionStop:
    """A `transformers` stopping criterion as a stop condition of one row.

    It is called with the ids [1, L] that `model.generate` would pass (prompt and output; the decoder's ids for
    encoder-decoder models) and with scores None.
    """

    def __init__(self, criterion: StoppingCriteria, start: Sequence[int], room: int, device: torch.device) -> None:
        """`room`: maximum number of output tokens; `device`: the device of the ids."""
        from copyspec.common.growing_ids import GrowingIds

        self._criterion = criterion
        self._ids = GrowingIds(start, room, device)

    def push(self, token: int) -> str | None:
        """The criterion's class name if it ends the output at this token, else None."""
        import torch

        self._ids.append(token)
        done: object = self._criterion(self._ids.view(), None)
        name = type(self._criterion).__name__
        if not isinstance(done, (bool, torch.Tensor)):
            try:
                done = torch.as_tensor(done, device="cpu")
            except (TypeError, ValueError, RuntimeError):
                raise TypeError(
                    f"{name} of stopping_criteria returned {shown(done)}; it must return True, False or a tensor"
                ) from None
        return name if bool(done if isinstance(done, bool) else done.all()) else None
