"""Stop conditions besides the end-of-sequence token, checked token by token, and incremental detokenization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from copyspec.checks import shown
from copyspec.sequences import common_prefix

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

    def __init__(self, decode: Callable[[Sequence[int]], str], *, takes_back: bool = False) -> None:
        """`takes_back`: whether a further token may change the text of those before it (`Codec.takes_back`)."""
        self._decode, self._takes_back = decode, takes_back
        self._window: list[int] = []
        self._longest = 2 * WINDOW  # tokens of the window from which it is shortened
        self._given = 0  # characters of the window's text already emitted
        self._text = ""  # of the window
        self._textless: dict[int, bool] = {}  # whether a token never has text, of those that once had none
        self._pending = 0  # tokens since the text was last complete

    def push(self, tokens: Sequence[int]) -> str:
        """The text completed by `tokens`, independent of how they are split over calls."""
        return "".join(map(self._push, tokens))

    def finish(self) -> str:
        """Text that was held back: bytes that never became a character."""
        piece = self._decode(self._window)[self._given :]
        self._given += len(piece)
        return piece

    def _push(self, token: int) -> str:
        if self._textless.get(token):
            return ""
        text = self._decode([*self._window, token])
        if text == self._text and self._is_textless(token):
            return ""
        self._window.append(token)
        self._text = text
        settled = len(text)
        if self._takes_back:
            settled = common_prefix(text, self._decode([*self._window, token]))
        complete = text[:settled].rstrip(INCOMPLETE)
        piece = complete[self._given :]
        self._given = max(self._given, len(complete))
        self._pending = self._pending + 1 if len(complete) < len(text) else 0
        if len(self._window) > self._longest and not 0 < self._pending <= WINDOW:
            piece += self._shorten(text)
            # An attempt decodes up to one suffix per token, so the next one waits until the window has doubled.
            self._longest = max(2 * WINDOW, 2 * len(self._window))
        return piece

    def _is_textless(self, token: int) -> bool:
        """Whether a token that adds no text at the end has none elsewhere either. A decoder may strip spaces: one from
        the beginning of a text, which many of the token show, or all at its ends, which others around it show."""
        if token not in self._textless:
            if self._decode([token] * WINDOW):
                self._textless[token] = False
            elif (other := next((each for each in reversed(self._window) if self._decode([each])), None)) is not None:
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
            piece = before[self._given :]
            del self._window[:start]
            self._given = max(0, self._given - len(before))
            self._text = rest
            return piece
        return ""


def text_of(tokens: Sequence[int], decode: Callable[[Sequence[int]], str], *, takes_back: bool = False) -> str:
    """The text of a whole output, equal to its streamed text. `takes_back` as in `Codec`.

    With byte fallback, decoding the whole may drop complete characters that invalid bytes follow; a stream cannot.
    """
    text = decode(tokens)
    if INCOMPLETE not in text:
        return text
    detokenizer = Detokenizer(decode, takes_back=takes_back)
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
        takes_back: bool = False,
        special: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """`takes_back` as for the `Detokenizer`. `special`: those of the strings that are special tokens, by id: such
        a token ends the output, although it is no part of the text."""
        self.match: StopMatch | None = None
        self.is_token = False
        """Whether a special token has ended the output."""
        self._special = special
        self.strings = strings
        self._detokenizer = Detokenizer(decode, takes_back=takes_back)
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
        found = [(at, -len(string), string) for string in self.strings if (at := text.find(string)) >= 0]
        if found:
            at, _, string = min(found)
            self.match = StopMatch(string, self._length + at, self._length + at + len(string))
            return string
        kept = min(self._overlap, len(text))
        self._length += len(text) - kept
        self._tail = text[len(text) - kept :]
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
        from copyspec.growing_ids import GrowingIds

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
