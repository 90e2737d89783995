"""Writes changes into WordprocessingML as tracked changes (ECMA-376 part 1, 17.13.5), keeping all other bytes."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest
from xml.sax.saxutils import escape, quoteattr

from copyspec.common.checks import check_type

from ..documents import Edit
from .docx_xml import Paragraph, Run

_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # not allowed in XML


@dataclass(frozen=True, slots=True)
class Revision:
    """How changes are written."""

    author: str = "copyspec"
    is_tracked: bool = True

    def __post_init__(self) -> None:
        check_type(isinstance(self.author, str), "author", self.author, "a str")
        if found := _NO_TEXT.search(self.author):
            raise ValueError(f"author={self.author!r} holds {found[0]!r}, which no Word document can: leave it out")


def spliced(
    xml: bytes, changes: Sequence[tuple[Paragraph, Sequence[Edit]]], revision: Revision, first_id: int
) -> tuple[bytes, int]:
    """Return `xml` with the edits of its paragraphs (offsets in their text), and the next free revision id."""
    writer = _Writer(xml, revision, first_id)
    splices = [splice for paragraph, edits in changes for splice in writer.splices(paragraph, edits)]
    pieces, at = [], 0
    for start, end, new in sorted(splices):
        pieces += [xml[at:start], new]
        at = end
    return b"".join([*pieces, xml[at:]]), writer.next_id


class _Writer:
    def __init__(self, xml: bytes, revision: Revision, first_id: int) -> None:
        self.xml, self.revision, self.next_id = xml, revision, first_id

    def splices(self, paragraph: Paragraph, edits: Sequence[Edit]) -> list[tuple[int, int, bytes]]:
        """Rewrite the runs that edits touch: (first byte, last byte, new XML)."""
        found = []
        spans = _spans(paragraph)
        inserted = _insertions(paragraph, spans, edits)
        starts, ends = [edit.start for edit in edits], [edit.end for edit in edits]
        for number, (run, (at, end)) in enumerate(zip(paragraph.runs, spans, strict=True)):
            size = end - at
            touching = edits[bisect_right(ends, at) : bisect_left(starts, end)]
            removed = [(max(edit.start - at, 0), min(edit.end - at, size)) for edit in touching]
            coming: dict[int, str] = {}
            for edit in inserted.get(number, ()):
                place = min(edit.end - at, size)  # after the text that it replaces
                coming[place] = coming.get(place, "") + edit.replacement
            if run.is_opaque or not size:
                found += [(edge, edge, self._new(run, text)) for edge, text in _beside(run, coming)]
            elif removed or coming:
                found.append((run.start, run.end, self._run(run, removed, coming)))
        return found

    def _run(self, run: Run, removed: Sequence[tuple[int, int]], coming: dict[int, str]) -> bytes:
        """Split a run at the edges of removed text and at insertions."""
        borders = list(accumulate((len(atom.text) for atom in run.atoms), initial=0))
        size = borders[-1]
        cuts = sorted({0, size, *(edge for span in removed for edge in span), *coming})
        firsts = [first for first, _ in removed]
        pieces = []
        for start, end in zip_longest(cuts, cuts[1:], fillvalue=size):
            if start in coming:
                pieces.append(self._new(run, coming[start]))
            if start < end:
                before = bisect_right(firsts, start) - 1
                is_removed = before >= 0 and start < removed[before][1]
                pieces.append(self._old(run, borders, (start, end), is_removed=is_removed))
        return b"".join(pieces)

    def _old(self, run: Run, borders: Sequence[int], span: tuple[int, int], *, is_removed: bool) -> bytes:
        """Characters `span` of a run as a new run. `borders`: offsets of its atoms, and its end."""
        kept, gone = [], []
        start, end = span
        for number in range(bisect_right(borders, start) - 1, bisect_left(borders, end)):
            atom, at = run.atoms[number], borders[number]
            first, last = max(start - at, 0), min(end - at, len(atom.text))
            if first >= last:
                continue
            if not atom.is_text:
                kept.append(self.xml[atom.start : atom.end])
            elif is_removed:
                gone.append(self._text(run, "delText", atom.text[first:last]))
            else:
                kept.append(self._text(run, "t", atom.text[first:last]))
        pieces = [self._element(run, kept)] if kept else []
        if gone and self.revision.is_tracked:
            pieces.append(self._tracked(run, "del", self._element(run, gone)))
        return b"".join(pieces)

    def _new(self, run: Run, text: str) -> bytes:
        element = self._element(run, [self._text(run, "t", _NO_TEXT.sub("", text))])
        return self._tracked(run, "ins", element) if self.revision.is_tracked else element

    def _element(self, run: Run, children: Sequence[bytes]) -> bytes:
        properties = b"" if run.is_opaque else run.properties
        return run.head + properties + b"".join(children) + b"</" + _name(run, "r") + b">"

    def _text(self, run: Run, kind: str, text: str) -> bytes:
        name = _name(run, kind)
        return b"<" + name + b' xml:space="preserve">' + escape(text).encode() + b"</" + name + b">"

    def _tracked(self, run: Run, kind: str, element: bytes) -> bytes:
        name, prefix = _name(run, kind), _name(run, "")
        author = quoteattr(self.revision.author).encode()
        head = b'<%b %bid="%d" %bauthor=%b>' % (name, prefix, self.next_id, prefix, author)
        self.next_id += 1
        return head + element + b"</" + name + b">"


def _beside(run: Run, coming: dict[int, str]) -> list[tuple[int, str]]:
    """Insertions next to a run that is not rewritten, with their byte offsets."""
    return [(run.end if place else run.start, text) for place, text in sorted(coming.items())]


def _name(run: Run, kind: str) -> bytes:
    """The element `kind` with the document's namespace prefix."""
    prefix, colon, _ = run.head[1:].partition(b":")
    return prefix + colon + kind.encode()


def _spans(paragraph: Paragraph) -> list[tuple[int, int]]:
    """Spans of the runs in the paragraph's text."""
    borders = list(accumulate((run.size for run in paragraph.runs), initial=0))
    return list(pairwise(borders))


def _insertions(paragraph: Paragraph, spans: Sequence[tuple[int, int]], edits: Sequence[Edit]) -> dict[int, list[Edit]]:
    """Edits that insert text, by the run they are written into: the changed one, or the one before."""
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    found: dict[int, list[Edit]] = {}
    for edit in edits:
        if not edit.replacement:
            continue
        best = min(
            range(bisect_left(ends, edit.start), bisect_right(starts, edit.start)),
            key=lambda number: _insertion_cost(paragraph.runs[number], spans[number], edit),
            default=None,
        )
        if best is not None:
            found.setdefault(best, []).append(edit)
    return found


def _insertion_cost(run: Run, span: tuple[int, int], edit: Edit) -> tuple[bool, ...]:
    start, end = span
    if edit.start < edit.end:
        return (not start <= edit.start < end, run.is_opaque)
    inside = start < edit.start < end
    return (run.is_opaque or start == end, run.is_fixed, run.in_link and not inside, edit.start != end)
