"""Pairs the words of a text with those of its correction, and derives the edits, with the right white space."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from ..documents import Edit
from .alignment import align
from .words import Tolerance, Word, words

_MISSING_SPACE = re.compile(r"[,;!?]\Z")
"""A space added after these, before a letter, is a correction ("Hello,world"): no tokenizer adds one there."""

_CLOSING = re.compile(r"[,;:.!?]")
"""Marks that stick to the word before them."""

_LIKE = 0.5
"""Words of at least this similarity (difflib's ratio) are taken for forms of each other ("has", "have")."""

_COMPARED = 64
"""Letters of a word that are compared: difflib's time is quadratic, and some "words" are long data."""

_REFINED_CELLS = 144
"""Blocks with more pairs of words are replaced whole, not corrected word by word."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Words [i, i_end) of the source that became words [j, j_end) of the correction; one side may be empty."""

    i: int
    i_end: int
    j: int
    j_end: int


class Pairing:
    """The words of both texts, the pairs of equal ones, and the edits between them."""

    def __init__(
        self, source: str, corrected: str, tolerance: Tolerance, hidden: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.source, self.corrected, self.tolerance, self.hidden = source, corrected, tolerance, hidden
        self.left = words(source, tolerance, hidden)
        self.right = words(corrected, tolerance)
        self.pairs = align(self.left, self.right)

    def edits(self) -> list[Edit]:
        edits: list[Edit] = []
        i = j = 0
        for i_next, j_next in [*self.pairs, (len(self.left), len(self.right))]:
            if i < i_next or j < j_next:
                edits += self._block_edits(_Block(i, i_next, j, j_next))
            elif i and i_next < len(self.left):
                edits += self._gap_edit(i, j)
            i, j = i_next + 1, j_next + 1
        return edits

    def _gap_edit(self, i: int, j: int) -> list[Edit]:
        """The edit between two unchanged words: none, unless a space was clearly missing."""
        had, has = self._left_gap(i), self._right_gap(j)
        if bool(had) == bool(has) or had.strip():
            return []
        if not self.tolerance.spacing:
            return [Edit(self.left[i - 1].end, self.left[i].start, has and " ")]
        is_missing = has and _MISSING_SPACE.match(self.left[i - 1].key) and self.left[i].key.isalpha()
        is_entity = i > 2 and self.left[i - 3].key == "&" and self.left[i - 3].end == self.left[i - 2].start
        if is_missing and i > 1 and self.left[i - 2].key.isalpha() and not is_entity:
            return [Edit(self.left[i - 1].end, self.left[i].start, " ")]
        return []

    def _block_edits(self, block: _Block) -> list[Edit]:
        if not self.tolerance.spacing:
            return [self._exact(block)]
        if block.i == block.i_end:
            return [self._insertion(block)]
        if block.j == block.j_end:
            return [self._deletion(block)]
        if _spelt(self.left, block.i, block.i_end) == _spelt(self.right, block.j, block.j_end):
            return []
        if block.i_end - block.i == block.j_end - block.j and self._gaps_agree(block):
            steps = range(block.i_end - block.i)
            smaller = [_Block(block.i + k, block.i + k + 1, block.j + k, block.j + k + 1) for k in steps]
        else:
            smaller = self._refined(block)
        if len(smaller) > 1:
            return [edit for small in smaller for edit in self._block_edits(small)]
        return self._replacement(block)

    def _refined(self, block: _Block) -> list[_Block]:
        """Split a block at similar words, if there is white space on both sides of each cut."""
        if (block.i_end - block.i) * (block.j_end - block.j) > _REFINED_CELLS:
            return [block]
        pairs = _similar(self.left[block.i : block.i_end], self.right[block.j : block.j_end])
        blocks, i, j = [], block.i, block.j
        for a, b in [*((block.i + a, block.j + b) for a, b in pairs), (block.i_end, block.j_end)]:
            if i < a or j < b:
                blocks.append(_Block(i, a, j, b))
            if a < block.i_end:
                blocks.append(_Block(a, a + 1, b, b + 1))
            i, j = a + 1, b + 1
        cuts = [(small.i, small.j) for small in blocks[1:]]
        if any(small.i == small.i_end or small.j == small.j_end for small in blocks):
            ends = [(block.i, block.j), (block.i_end, block.j_end)]  # insertions and deletions need a space there
            cuts += [(i, j) for i, j in ends if 0 < i < len(self.left)]
        return blocks if all(self._left_gap(i) and self._right_gap(j) for i, j in cuts) else [block]

    def _exact(self, block: _Block) -> Edit:
        """An edit with the spacing of the corrected text; where both have white space, the source's is kept."""
        had, has = self._left_gap(block.i), self._right_gap(block.j)
        start = self.left[block.i - 1].end if block.i else 0
        if bool(had) == bool(has) or not block.i:
            start, has = start + len(had), ""
        if block.j == block.j_end:
            if block.i_end == len(self.left):
                return Edit(start, self.left[-1].end, has)
            return Edit(start, self.left[block.i_end].start, has)
        text = has + self.corrected[self.right[block.j].start : self.right[block.j_end - 1].end]
        if block.i_end == len(self.left):
            return Edit(start, max(start, self.left[-1].end if self.left else 0), text)
        had, has = self._left_gap(block.i_end), self._right_gap(block.j_end)
        if block.i < block.i_end and bool(had) == bool(has):
            return Edit(start, self.left[block.i_end - 1].end, text)
        return Edit(start, self.left[block.i_end].start, text + (" " if has else ""))

    def _insertion(self, block: _Block) -> Edit:
        """An insertion: directly at the word that it is attached to, or else with a space of its own."""
        before, after = self._right_gap(block.j), self._right_gap(block.j_end)
        text = self.corrected[self.right[block.j].start : self.right[block.j_end - 1].end]
        gap = self._left_gap(block.i)
        if not self.left:
            return Edit(len(self.source), len(self.source), text)
        if block.i == 0:
            return Edit(self.left[0].start, self.left[0].start, text + (" " if after else ""))
        if block.i == len(self.left):
            return Edit(self.left[-1].end, self.left[-1].end, (" " if before else "") + text)
        at = self.left[block.i - 1].end
        if gap and not before and not after and not self._holds_text(at, self.left[block.i].start):
            # "well known", "well-known"; but the space that "word,word" lacks stays.
            return Edit(at, at if _CLOSING.match(text) else self.left[block.i].start, text)
        if gap and not after:
            return Edit(self.left[block.i].start, self.left[block.i].start, text)
        return Edit(at, at, (" " if before else "") + text + (" " if after and not gap else ""))

    def _deletion(self, block: _Block) -> Edit:
        """A deletion of words with the white space on one side; the white space on the other side remains."""
        start, end = self.left[block.i].start, self.left[block.i_end - 1].end
        before, after = self._left_gap(block.i), self._left_gap(block.i_end)
        whole_start, whole_end = start - len(before), end + len(after)
        if block.i == 0 and block.i_end == len(self.left):
            return Edit(start, end, "")
        if block.i == 0:
            return Edit(start, end if self._holds_text(end, whole_end) else whole_end, "")
        if block.i_end == len(self.left):
            return Edit(start if self._holds_text(whole_start, start) else whole_start, end, "")
        if self._right_gap(block.j) and not before and not after:
            return Edit(start, end, " ")
        if not before or not after:
            # Only one side has white space: keep the side that agrees with the corrected text.
            wants_gap = bool(self._right_gap(block.j))
            keeps_after = bool(after) == wants_gap
        else:
            keeps_after = "\n" in after or "\r" in after or not ("\n" in before or "\r" in before)
        if keeps_after:
            return Edit(start if self._holds_text(whole_start, start) else whole_start, end, "")
        return Edit(start, end if self._holds_text(end, whole_end) else whole_end, "")

    def _replacement(self, block: _Block) -> list[Edit]:
        start, end = self.left[block.i].start, self.left[block.i_end - 1].end
        if self.left[block.i].key == self.right[block.j].key and block.i_end - block.i == block.j_end - block.j == 1:
            return []
        text = self.corrected[self.right[block.j].start : self.right[block.j_end - 1].end]
        text = self._in_style_of(self.source[start:end], text)
        if block.i:
            text, width = self._with_gap(text, block.i, block.j, block.i, block.j, -1)
            start -= width
        if block.i_end < len(self.left):
            text, width = self._with_gap(text, block.i_end, block.j_end, block.i_end - 1, block.j_end - 1, 1)
            end += width
        return [Edit(start, end, text)]

    def _with_gap(self, text: str, i: int, j: int, i_edge: int, j_edge: int, side: int) -> tuple[str, int]:
        """Return `text` with the space that it needs towards an unchanged neighbour, and how many characters of the
        source's gap to replace.

        `i`, `j`: the gaps; `i_edge`, `j_edge`: the changed words beside them. If a word was replaced by a word, the
        source's spacing is kept: "thing ." and "things." differ by one letter.
        """
        had, has = self._left_gap(i), self._right_gap(j)
        if bool(had) == bool(has):
            return text, 0
        edge, neighbour = self.right[j_edge].key, self.left[i - 1 if side < 0 else i].key
        is_letter = edge[::side][-1:].isalnum()
        keeps = is_letter and self.left[i_edge].key[::side][-1:].isalnum()
        if has:
            touches = is_letter and neighbour[::side][:1].isalnum()
            if touches or not keeps:
                return (" " + text if side < 0 else text + " "), 0
            return text, 0
        start = self.left[i - 1].end if i else 0
        if keeps or self._holds_text(start, start + len(had)):
            return text, 0
        return text, len(had)

    def _gaps_agree(self, block: _Block) -> bool:
        return all(
            bool(self._left_gap(block.i + step)) == bool(self._right_gap(block.j + step))
            for step in range(block.i_end - block.i + 1)
        )

    def _left_gap(self, i: int) -> str:
        """The characters between word `i` of the source and the word before it."""
        return self.source[self.left[i - 1].end if i else 0 : self.left[i].start if i < len(self.left) else None]

    def _right_gap(self, j: int) -> str:
        return self.corrected[self.right[j - 1].end if j else 0 : self.right[j].start if j < len(self.right) else None]

    def _holds_text(self, start: int, end: int) -> bool:
        """Whether a gap holds more than white space and hidden characters: the model cannot write that, so it stays."""
        at = start
        for hidden_start, hidden_end in self.hidden:
            if hidden_start >= end:
                break
            if hidden_end > start:
                if self.source[at:hidden_start].strip():
                    return True
                at = hidden_end
        return bool(self.source[at:end].strip())

    def _in_style_of(self, source: str, text: str) -> str:
        """`text` with typographic apostrophes, if the source uses them."""
        return text.replace("'", "’") if self.tolerance.quotes and "’" in source and "'" not in source else text


def _spelt(side: Sequence[Word], i: int, i_end: int) -> str:
    """The words joined, with a space only where letters are separated: equal if only other spacing differs."""
    pieces = [side[i].key]
    for before, after in pairwise(side[i:i_end]):
        apart = before.end < after.start and (before.key[-1:].isalnum() and after.key[:1].isalnum())
        pieces.append(" " + after.key if apart else after.key)
    return "".join(pieces)


def _similar(left: Sequence[Word], right: Sequence[Word]) -> list[tuple[int, int]]:
    """Index pairs, ascending in both, of words that are probably forms of each other."""
    best: list[list[tuple[float, tuple[tuple[int, int], ...]]]] = [[(0.0, ())] * (len(right) + 1)]
    for i, a in enumerate(left):
        row: list[tuple[float, tuple[tuple[int, int], ...]]] = [(0.0, ())]
        for j, b in enumerate(right):
            head, other = (word.key[:_COMPARED].casefold() for word in (a, b))
            likeness = SequenceMatcher(None, head, other, autojunk=False).ratio()
            options = [best[i][j + 1], row[j]]
            if likeness >= _LIKE and a.key.isalnum() and b.key.isalnum():
                options.append((best[i][j][0] + likeness, (*best[i][j][1], (i, j))))
            row.append(max(options, key=lambda option: option[0]))
        best.append(row)
    return list(best[-1][-1][1])
