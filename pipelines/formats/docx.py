"""Word documents: paragraphs, tables, headers, footers and notes; corrections are written as tracked changes."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, zip_longest
from typing import BinaryIO
from xml.sax.saxutils import escape, quoteattr

from copyspec.common.checks import check_type

from ..documents import Edit, FormatError, Part, Refusal, Segment
from .archives import repacked, unpacked
from .docx_styles import Styles
from .docx_xml import Paragraph, Run, paragraphs
from .neighbours import SPACE, in_context
from .reading import changed
from .segments import document_part, paragraph_segment

_STORIES = re.compile(r"word/(?:document|header|footer|footnotes|endnotes)\d*\.xml")
_IDS = re.compile(rb"\bid=[\"'](\d{1,9})[\"']")


@dataclass(frozen=True, slots=True)
class _Placed:
    """A paragraph, and the offset of its text in the part."""

    story: str
    paragraph: Paragraph
    start: int


@dataclass(frozen=True, slots=True)
class _Document:
    data: bytes
    placed: tuple[_Placed, ...]


class DocxFormat:
    """The whole document is one part, with a line for each paragraph; it is held in memory."""

    def __init__(self, *, is_tracked: bool = True, author: str = "copyspec") -> None:
        """`is_tracked`: write tracked changes, to be accepted or rejected in a word processor; otherwise apply them."""
        self.revision = Revision(author, is_tracked)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        data = stream.read()
        stories, styles = _stories(data), Styles(data)
        pairs = [(story, paragraph) for story, xml in stories.items() for paragraph in paragraphs(xml, styles)]
        part, starts = document_part((paragraph.text, _segment(paragraph)) for _, paragraph in pairs)
        placed = tuple(_Placed(*pair, at) for pair, at in zip(pairs, starts, strict=True))
        part = replace(part, carried=_Document(data, placed))
        yield from in_context([part], SPACE)

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        document = part.carried
        if not isinstance(document, _Document):
            raise TypeError(f"a part of another format: {part!r}")
        if not edits:
            return document.data
        changed(part.text, edits)  # raises for edits that must not be written
        changes = _by_story(document.placed, edits)
        stories = _stories(document.data)
        next_id = 1 + max((int(match[1]) for xml in stories.values() for match in _IDS.finditer(xml)), default=0)
        new: dict[str, bytes] = {}
        for story, pairs in changes.items():
            new[story], next_id = spliced(stories[story], pairs, self.revision, next_id)
        return repacked(document.data, new)


def _stories(data: bytes) -> dict[str, bytes]:
    """The XML of the files with text, the main one first. Raises FormatError if the data is not a Word document."""

    def chosen(names: list[str]) -> list[str]:
        stories = [name for name in names if _STORIES.fullmatch(name)]
        if not any(name.startswith("word/document") for name in stories):
            raise FormatError("not a Word document: the archive has no word/document.xml")
        return sorted(stories, key=lambda name: (name[5] != "d", name))

    return unpacked(data, chosen, "Word document (.docx)", "encrypted and old .doc files cannot be read")


def _segment(paragraph: Paragraph) -> Segment | Refusal | None:
    atoms = ((atom.text, atom.is_text and not run.is_fixed) for run in paragraph.runs for atom in run.atoms)
    return paragraph_segment(paragraph, atoms, "Word")


def _by_story(placed: Sequence[_Placed], edits: Sequence[Edit]) -> dict[str, list[tuple[Paragraph, list[Edit]]]]:
    """Edits by file and paragraph, with offsets in it. Raises ValueError for one that exceeds its paragraph."""
    by_story: dict[str, list[tuple[Paragraph, list[Edit]]]] = {}
    waiting = list(reversed(edits))
    for place in placed:
        end = place.start + len(place.paragraph.text)
        mine: list[Edit] = []
        while waiting and waiting[-1].start <= end:
            edit = waiting.pop()
            if edit.start < place.start or edit.end > end:
                raise ValueError(f"{edit!r} goes beyond its paragraph ({place.start} to {end})")
            mine.append(Edit(edit.start - place.start, edit.end - place.start, edit.replacement))
        if mine:
            by_story.setdefault(place.story, []).append((place.paragraph, mine))
    return by_story


_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # not allowed in XML


@dataclass(frozen=True, slots=True)
class Revision:
    """How changes are written."""

    author: str = "copyspec"
    is_tracked: bool = True

    def __post_init__(self) -> None:
        check_type(isinstance(self.author, str), "author", self.author, "a str")
        if match := _NO_TEXT.search(self.author):
            raise ValueError(f"author={self.author!r} holds {match[0]!r}, which no Word document can: leave it out")


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
        splices = []
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
                edges = [(run.end if place else run.start, text) for place, text in sorted(coming.items())]
                splices += [(edge, edge, self._new(run, text)) for edge, text in edges]  # next to it
            elif removed or coming:
                splices.append((run.start, run.end, self._run(run, removed, coming)))
        return splices

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
        unchanged, gone = [], []
        start, end = span
        for number in range(bisect_right(borders, start) - 1, bisect_left(borders, end)):
            atom, at = run.atoms[number], borders[number]
            first, last = max(start - at, 0), min(end - at, len(atom.text))
            if first >= last:
                continue
            if not atom.is_text:
                unchanged.append(self.xml[atom.start : atom.end])
            elif is_removed:
                gone.append(self._text(run, "delText", atom.text[first:last]))
            else:
                unchanged.append(self._text(run, "t", atom.text[first:last]))
        pieces = [self._element(run, unchanged)] if unchanged else []
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
    insertions: dict[int, list[Edit]] = {}
    for edit in edits:
        if not edit.replacement:
            continue
        best = min(
            range(bisect_left(ends, edit.start), bisect_right(starts, edit.start)),
            key=lambda number: _insertion_cost(paragraph.runs[number], spans[number], edit),
            default=None,
        )
        if best is not None:
            insertions.setdefault(best, []).append(edit)
    return insertions


def _insertion_cost(run: Run, span: tuple[int, int], edit: Edit) -> tuple[bool, ...]:
    start, end = span
    if edit.start < edit.end:
        return (not start <= edit.start < end, run.is_opaque)
    inside = start < edit.start < end
    return (run.is_opaque or start == end, run.is_fixed, run.in_link and not inside, edit.start != end)
