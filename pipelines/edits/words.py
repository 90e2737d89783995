"""Words of a text with their places, in a form that two spellings of the same word share; their alignment."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

_CJK = "\u3040-\u30ff\u3400-\u9fff"  # written without spaces: each character is a word
_WORD = re.compile(
    rf"[^\W{_CJK}]+?(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\.{{2,}}|\d+(?:[.,]\d+)+|[{_CJK}]|[^\W{_CJK}]+|[^\w\s]"
)
"""Contractions are two words, as in tokenised text, so that "do n't" and "don't" are the same words."""

_QUOTES = str.maketrans(dict.fromkeys("‘’‚‛ʼ", "'") | dict.fromkeys("“”„‟«»", '"') | dict.fromkeys("‐‑‒–—―−", "-"))
_INVISIBLE = frozenset("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\ufe0e\ufe0f")
"""Tokenizers drop them; none of them is a letter."""
_JOINER = "\u200d"

_REMEMBERED = 20_000  # characters of a text whose words are kept for a while

_EXACT_BITS = 400_000_000
"""Above this many cells the alignment is difflib's: 50 MB of bits, two texts of 20,000 words."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Differences between a text and a model's copy of it that are the tokenizer's doing, and no corrections."""

    forms: bool = True  # compatibility forms (NFKC): ligatures, full-width letters, composed accents, soft hyphens
    quotes: bool = True  # typographic quotes and dashes are as good as their ASCII forms
    spacing: bool = True  # spaces around punctuation; between letters they always count
    lost: str = ""  # characters that the model cannot write

    def __post_init__(self) -> None:
        if any(char.isspace() for char in self.lost):
            raise ValueError(f"lost={self.lost!r} holds white space, which is never compared: leave it out")


class Word(NamedTuple):
    # A text has as many as words and marks: a tuple is made in a third of a dataclass's time.
    start: int  # characters of the text
    end: int
    key: str  # equal for equal words


def words(text: str, tolerance: Tolerance, hidden: Sequence[tuple[int, int]] = ()) -> list[Word]:
    """The words of `text`, punctuation marks one by one; `hidden` stretches separate words like white space."""
    visible = _blanked(text, hidden)
    if tolerance.quotes:
        visible = visible.translate(_QUOTES)
    if tolerance.lost:
        visible = re.sub(f"[{re.escape(tolerance.lost)}]", " ", visible)
    folds = tolerance.forms and not visible.isascii()
    return list(_remembered(visible, folds)) if len(visible) <= _REMEMBERED else _found(visible, folds)


def align(source: Sequence[Word], target: Sequence[Word]) -> list[tuple[int, int]]:
    """Index pairs of equal words, ascending in both: a longest common subsequence."""
    head = 0
    while head < min(len(source), len(target)) and source[head].key == target[head].key:
        head += 1
    tail = 0
    while tail < min(len(source), len(target)) - head and source[-1 - tail].key == target[-1 - tail].key:
        tail += 1
    left = [word.key for word in source[head : len(source) - tail]]
    right = [word.key for word in target[head : len(target) - tail]]
    middle = _common(left, right) if len(left) * len(right) <= _EXACT_BITS else _blocks(left, right)
    return [
        *((i, i) for i in range(head)),
        *((head + i, head + j) for i, j in middle),
        *((len(source) - i, len(target) - i) for i in range(tail, 0, -1)),
    ]


def _blanked(text: str, hidden: Sequence[tuple[int, int]]) -> str:
    pieces, at = [], 0
    for start, end in hidden:
        pieces += [text[at:start], " " * (end - start)]
        at = end
    return "".join([*pieces, text[at:]])


@lru_cache(maxsize=128)  # guards ask for the words of a segment again and again
def _remembered(text: str, folds: bool) -> tuple[Word, ...]:
    return tuple(_found(text, folds))


def _found(text: str, folds: bool) -> list[Word]:
    if folds:
        return _folded(text)
    return [Word(found.start(), found.end(), found[0]) for found in _WORD.finditer(text)]


def _folded(text: str) -> list[Word]:
    """Words of the NFKC form, with places in the text itself; what one character became stays one word."""
    if unicodedata.is_normalized("NFKC", text) and not any(map(_is_joined, set(text))):
        return [Word(found.start(), found.end(), found[0]) for found in _WORD.finditer(text.translate(_QUOTES))]
    folded: list[str] = []
    places: list[tuple[int, int]] = []  # per character of the folded text
    normal = unicodedata.normalize
    for place in _clusters(text):
        start, end = place
        piece = text[start:end]
        if end - start > 1:
            piece = "".join([char for char in piece if char not in _INVISIBLE])
        elif piece in _INVISIBLE:
            continue
        form = piece if piece.isascii() else normal("NFKC", piece)
        folded.append(form)
        if len(form) == 1:
            places.append(place)
        else:
            places.extend([place] * len(form))
    found: list[Word] = []
    for match in _WORD.finditer("".join(folded).translate(_QUOTES)):
        start, end = places[match.start()][0], places[match.end() - 1][1]
        if found and start < found[-1].end:
            found[-1] = Word(found[-1].start, end, found[-1].key + match[0])
        else:
            found.append(Word(start, end, match[0]))
    return found


def _is_joined(char: str) -> bool:
    """Whether a character belongs to the one before it, or is none."""
    return char >= "\u0080" and (char in _INVISIBLE or unicodedata.combining(char) > 0 or "\u1160" <= char <= "\u11ff")


def _clusters(text: str) -> list[tuple[int, int]]:
    """Characters with the marks, jamo and joined characters that belong to them."""
    starts = [0] if text else []
    for i in range(1, len(text)):
        char = text[i]
        if (char < "\u0080" and text[i - 1] != _JOINER) or not (
            char in _INVISIBLE or text[i - 1] == _JOINER or unicodedata.combining(char) or "\u1160" <= char <= "\u11ff"
        ):
            starts.append(i)
    return list(zip(starts, [*starts[1:], len(text)], strict=True))


def _common(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """A longest common subsequence by bit vectors, one long integer a row (Hyyrö 2004, "Bit-parallel LCS")."""
    masks: dict[str, int] = {}
    for i, key in enumerate(left):
        masks[key] = masks.get(key, 0) | 1 << i
    full = (1 << len(left)) - 1
    row, rows = full, []
    for key in right:
        match = row & masks.get(key, 0)
        row = ((row + match) | (row - match)) & full
        rows.append(row)
    pairs, i, j = [], len(left), len(right)
    while i and j:
        if rows[j - 1] >> (i - 1) & 1:
            i -= 1
            continue
        j -= 1
        if not j or rows[j - 1] >> (i - 1) & 1:
            i -= 1
            pairs.append((i, j))
    return pairs[::-1]


def _blocks(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    blocks = SequenceMatcher(None, left, right).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]
