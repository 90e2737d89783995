"""Splits a text into words with their positions, and a key that is equal for equivalent spellings of a word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

_CJK = "\u3040-\u30ff\u3400-\u9fff"  # written without spaces, so each character counts as a word
_WORD = re.compile(
    rf"[^\W{_CJK}]+?(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\.{{2,}}|\d+(?:[.,]\d+)+|[{_CJK}]|[^\W{_CJK}]+|[^\w\s]"
)
"""Contractions are two words as in tokenised corpora, so that "do n't" and "don't" have the same words."""

_QUOTES = str.maketrans(dict.fromkeys("‘’‚‛ʼ", "'") | dict.fromkeys("“”„‟«»", '"') | dict.fromkeys("‐‑‒–—―−", "-"))
_INVISIBLE = frozenset("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\ufe0e\ufe0f")
"""Characters that tokenizers drop; none of them is a letter."""
_JOINER = "\u200d"
_CLUSTER = re.compile("[azjo](?:[jz]|(?<=z)[azjo]){1,64}|[jzo]")
"""Matches, in a text translated by `_kind`, the clusters to be normalised: a character with its combining marks, jamo
and joined characters, or a character with another NFKC form. Longer runs, which no language has, are taken in pieces:
normalising takes quadratic time."""

_REMEMBERED = 20_000  # longest text whose words are cached, in characters


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Differences between a text and a model's copy that come from the tokenizer and are not corrections."""

    forms: bool = True  # compatibility forms (NFKC): ligatures, full-width letters, composed accents, soft hyphens
    quotes: bool = True  # typographic quotes and dashes instead of their ASCII forms
    spacing: bool = True  # spaces around punctuation; spaces between letters always count
    lost: str = ""  # characters that the model cannot write

    def __post_init__(self) -> None:
        if any(char.isspace() for char in self.lost):
            raise ValueError(f"lost={self.lost!r} holds white space, which is never compared: leave it out")


class Word(NamedTuple):
    # A named tuple, because texts have many words, and creating one takes a third of a dataclass's time.
    start: int  # characters of the text
    end: int
    key: str  # equal for equivalent words


def words(text: str, tolerance: Tolerance, hidden: Sequence[tuple[int, int]] = ()) -> list[Word]:
    """Return the words of `text`; each punctuation mark is a word. `hidden` spans separate words like white space."""
    visible = _blanked(text, hidden)
    if tolerance.quotes:
        visible = visible.translate(_QUOTES)
    if tolerance.lost:
        visible = re.sub(f"[{re.escape(tolerance.lost)}]", " ", visible)
    folds = tolerance.forms and not visible.isascii()
    return list(_remembered(visible, folds)) if len(visible) <= _REMEMBERED else _found(visible, folds)


def _blanked(text: str, hidden: Sequence[tuple[int, int]]) -> str:
    if not hidden:
        return text
    pieces, at = [], 0
    for start, end in hidden:
        pieces += [text[at:start], " " * (end - start)]
        at = end
    return "".join([*pieces, text[at:]])


@lru_cache(maxsize=128)  # guards request the words of a segment many times
def _remembered(text: str, folds: bool) -> tuple[Word, ...]:
    return tuple(_found(text, folds))


def _found(text: str, folds: bool) -> list[Word]:
    if folds:
        return _folded(text)
    return [Word(match.start(), match.end(), match[0]) for match in _WORD.finditer(text)]


def _folded(text: str) -> list[Word]:
    """Words of the NFKC form with positions in the original text; the form of one character stays one word."""
    folded: list[str] = []
    starts: list[int] = []  # for each character of the folded text, the start of its cluster
    ends: list[int] = []
    at = 0
    # Most characters need no normalisation, and cost only a step of the regular expression.
    for match in _CLUSTER.finditer(text.translate({ord(char): _kind(char) for char in set(text)})):
        start, end = match.span()
        form = _form(text[start:end])
        folded += (text[at:start], form)
        starts += [*range(at, start), *([start] * len(form))]
        ends += [*range(at + 1, start + 1), *([end] * len(form))]
        at = end
    folded.append(text[at:])
    starts += range(at, len(text))
    ends += range(at + 1, len(text) + 1)
    joined: list[Word] = []
    for match in _WORD.finditer("".join(folded).translate(_QUOTES)):
        start, end = starts[match.start()], ends[match.end() - 1]
        if joined and start < joined[-1].end:
            joined[-1] = Word(joined[-1].start, end, joined[-1].key + match[0])
        else:
            joined.append(Word(start, end, match[0]))
    return joined


@lru_cache(maxsize=4096)
def _kind(char: str) -> str:
    """The kind of a character for `_CLUSTER`: a: plain, o: has another form, j: joins the one before, z: joiner."""
    if char < "\u0080":
        return "a"
    if char == _JOINER:
        return "z"
    if char in _INVISIBLE or unicodedata.combining(char) or "\u1160" <= char <= "\u11ff":
        return "j"
    return "a" if unicodedata.is_normalized("NFKC", char) else "o"


def _form(cluster: str) -> str:
    """The NFKC form of a cluster, without invisible characters."""
    visible = "".join([char for char in cluster if char not in _INVISIBLE])
    return visible if visible.isascii() else unicodedata.normalize("NFKC", visible)
