"""Marked text: text in which control tokens are told from text of the same characters.

The text of an output leaves its control tokens out, and a model that writes the characters of one has not written the
token. Marked text holds each control token between two noncharacters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from copyspec.text.stops import Detokenizer

# Noncharacters, reserved by Unicode for internal use.
BEFORE, AFTER = "\ufdd2", "\ufdd3"

_MARK = re.compile(f"{BEFORE}[^{AFTER}]*{AFTER}")

PIECE = re.compile(
    rf"{BEFORE}[^{AFTER}]*{AFTER}|<[^<>\s{BEFORE}]*>|<[^<>\s{BEFORE}]+ \w+=\"|\[[A-Z_/]+(?: [A-Z_/]+)*\]"
    rf"|[^\s<\[{BEFORE}]+|[<\[][^\s<>\[{BEFORE}]*"
)
"""A control token, a tag, a tag up to the value of its attribute, or other text up to the next of these or to white
space."""


def marked(token: str) -> str:
    """A control token, by its string, in marked text."""
    return f"{BEFORE}{token}{AFTER}"


def unmarked(text: str) -> str:
    """The text without its control tokens."""
    return _MARK.sub("", text)


def shown(text: str) -> str:
    """The text with control tokens written out, as a chat template writes them."""
    return text.replace(BEFORE, "").replace(AFTER, "")


def mark_all(text: str, control: re.Pattern[str] | None) -> str:
    """Mark the control tokens in what a chat template has rendered."""
    return text if control is None else control.sub(lambda match: marked(match[0]), text)


def is_tag(piece: str) -> bool:
    """Whether a piece is a control token or a tag, and no word."""
    return piece[0] in f"<[◁{BEFORE}" and len(piece) > 1


def pieces(text: str) -> list[str]:
    """The control tokens, tags and other pieces of a text, without white space."""
    return PIECE.findall(text)


class MarkedDetokenizer:
    """Decodes an output incrementally to marked text; without its marks it is the text of the `Detokenizer`."""

    def __init__(self, detokenizer: Detokenizer, control: Mapping[int, str]) -> None:
        """`control`: the strings of control tokens by id."""
        self._detokenizer, self._control = detokenizer, control

    def push(self, tokens: Sequence[int]) -> str:
        """The marked text completed by `tokens`."""
        text = ""
        for token in tokens:
            text += self._detokenizer.push([token])
            if (string := self._control.get(token)) is not None:
                text += marked(string)
        return text

    def finish(self) -> str:
        """Text that was held back."""
        return self._detokenizer.finish()


def without_first(text: str, count: int) -> str:
    """A marked text without its first `count` characters; the marks before them and between them stay."""
    first, rest = split(text, count)
    return "".join(_MARK.findall(first)) + rest


def split(text: str, count: int) -> tuple[str, str]:
    """A marked text up to its first `count` characters, marks not counted, and the rest, which has the marks in
    between; they belong to the first part if there are no more characters."""
    passed = 0  # characters of marks before the place
    for match in _MARK.finditer(text):
        if match.start() - passed >= count:
            break
        passed += len(match[0])
    place = count + passed
    return (text, "") if not unmarked(text[place:]) else (text[:place], text[place:])
