"""Checks a hostile file after its correction, for `tests.fuzz.files`."""

from __future__ import annotations

import csv
import io
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from copyspec.pipelines import Done, Edit, FileJob, FileReport, Format, Part, apply
from copyspec.pipelines.documents import model_text
from tests.fuzz.files_cases import W

BROKEN = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, OSError, ValueError)
FORMULA = "=+-@\t\r\n＝＋－＠"


@dataclass(slots=True)
class Seen:
    """What a run reported: the parts of the file, and the edits made."""

    parts: list[tuple[Part, Sequence[Edit]]] = field(default_factory=list)
    form: Format | None = None
    again: list[str] = field(default_factory=list)  # texts whose output was reused from an equal text

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        assert done.part is not None
        self.form = form
        self.again += (model_text(done.part.text, piece.segment) for piece in done.pieces if piece.was_known)
        self.parts.append((done.part, done.edits))

    def end(self, report: FileReport) -> None:
        pass


@dataclass(slots=True)
class Found:
    """Counts over all files."""

    files: Counter[str] = field(default_factory=Counter)
    edits: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    slowest: float = 0.0  # CPU seconds per MB, over files large enough for a rate

    def say(self, what: str, seed: str, detail: str = "") -> None:
        self.wrong[what] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{seed}: {what} {detail}"[:300])


def check(name: str, outcome: Found, label: str, data: bytes, written: bytes, seen: Seen) -> None:
    # Writing M2 drops existing annotations, since they do not describe the new correction.
    if seen.form and name != "m2" and b"".join(seen.form.write(part, ()) for part, _ in seen.parts) != data:
        outcome.say("changed without edits", label)
    for part, edits in seen.parts:
        inside = all(any(s.start <= e.start <= e.end <= s.end for s in part.segments) for e in edits)
        if not inside:
            outcome.say("an edit outside every segment", label)
        if any(e.start < end and e.end > start for e in edits for s in part.segments for start, end in s.protected):
            outcome.say("an edit of what is protected", label)
        if apply(part.text, edits).count("\ufffd") > part.text.count("\ufffd"):
            outcome.say("U+FFFD", label)
    # Added fields and annotations repeat parts of the text, including U+FFFD.
    if name not in ("jsonl", "m2") and _marks(name, written) > _marks(name, data):
        outcome.say("U+FFFD", label)
    try:
        _CHECKS.get(name, _verbatim)(name, outcome, label, data, written, seen)
    except Exception as error:
        outcome.say("cannot be read again", label, f"{type(error).__name__}: {error}")


def _verbatim(name: str, outcome: Found, label: str, data: bytes, written: bytes, seen: Seen) -> None:
    texts = [apply(part.text, edits) for part, edits in seen.parts]
    if "".join(texts).encode("utf-8", "surrogateescape") != written:
        outcome.say("bytes outside the edits", label)
    if name in ("lines", "parallel") and len(written.splitlines()) != len(data.splitlines()):
        outcome.say("structure", label, "another number of lines")


def _cells(name: str, outcome: Found, label: str, data: bytes, written: bytes, seen: Seen) -> None:
    for part, edits in seen.parts:
        new = apply(part.text, edits)
        if edits and _is_formula(new) and not _is_formula(part.text):
            outcome.say("formula", label, repr(new[:40]))
        carried = part.carried
        record, start, end = (getattr(carried, key) for key in ("record", "start", "end"))
        assert seen.form is not None
        out = seen.form.write(part, edits).decode("utf-8", "surrogateescape")
        if not (out.startswith(record[:start]) and out.endswith(record[end:])):
            outcome.say("bytes outside the edits", label)
    if seen.form is None:
        return
    again = list(seen.form.read(io.BytesIO(written)))
    # A last row of one cell is no longer a row once the cell is empty.
    edited = [apply(part.text, edits) for part, edits in seen.parts]
    if [part.text for part in again] != (edited if len(again) == len(edited) or edited[-1] else edited[:-1]):
        outcome.say("structure", label, "other cells when read again")
    if b'"' not in data and b"\r" not in data and b"\0" not in data:
        rows = [
            list(csv.reader(io.StringIO(content.decode("utf-8", "surrogateescape"), newline=""), delimiter=mark))
            for content, mark in ((data, _mark(name, data)), (written, _mark(name, data)))
        ]
        if [len(row) for row in rows[0]] != [len(row) for row in rows[1]]:
            outcome.say("structure", label, "another number of cells for the standard library")


def _is_formula(text: str) -> bool:
    shown = text.lstrip(" \ufeff\u00a0")
    return bool(shown) and shown[0] in FORMULA


def _mark(name: str, data: bytes) -> str:
    first = data.split(b"\n")[0].decode("utf-8", "surrogateescape")
    return "\t" if name == "tsv" else max(",;\t|", key=first.count)


def _json(name: str, outcome: Found, label: str, data: bytes, written: bytes, seen: Seen) -> None:
    for part, edits in seen.parts:
        assert seen.form is not None
        line = getattr(part.carried, "line")  # noqa: B009
        out = seen.form.write(part, edits).decode("utf-8", "surrogateescape")
        if not edits:
            continue
        before, after = (json.loads(line.lstrip("\ufeff"), object_pairs_hook=list) for line in (line, out))
        new = apply(part.text, edits)
        added = [pair for pair in after if pair[0] in ("corrected", "edits")]
        if added and (dict(added)["corrected"] != new or after[: len(before)] != before):
            if repr(after[: len(before)]) != repr(before):  # compared as text, since NaN != NaN
                outcome.say("bytes outside the edits", label)
        elif not added:
            same = [(a, b) for a, b in zip(before, after, strict=True) if repr(a) != repr(b)]
            if len(same) > 1 or any(a[0] != b[0] or b[1] != new for a, b in same):
                outcome.say("structure", label)


def _m2(name: str, outcome: Found, label: str, data: bytes, written: bytes, seen: Seen) -> None:
    for part, edits in seen.parts:
        assert seen.form is not None
        lines = seen.form.write(part, edits).decode("utf-8", "surrogateescape").replace("\r", "\n").split("\n")
        source = [line for line in lines if line.lstrip("\ufeff").startswith("S ")]
        notes = [line for line in lines if line.startswith("A ")]
        new = apply(part.text, edits)
        if edits and "-NONE-" not in new and applied(source[0].lstrip("\ufeff")[2:], notes) != " ".join(new.split()):
            outcome.say("structure", label, repr(notes[:3]))


def applied(source: str, notes: Sequence[str]) -> str:
    """Apply M2 annotations to a sentence."""
    tokens = source.split()
    for note in reversed(notes):
        place, _, new, *_ = note.split("|||")
        start, end = map(int, place.split()[1:])
        if start >= 0:
            tokens[start:end] = new.split()
    return " ".join(tokens)


def _docx(name: str, outcome: Found, label: str, data: bytes, written: bytes, seen: Seen) -> None:
    before, after = (zipfile.ZipFile(io.BytesIO(content)) for content in (data, written))
    if before.namelist() != after.namelist():
        outcome.say("structure", label, "other files in the archive")
    for member_name in before.namelist():
        if member(before, member_name) == member(after, member_name):
            continue
        trees = [ElementTree.fromstring(archive.read(member_name)) for archive in (before, after)]
        for tag in ("p", "tc", "tr", "tab", "br", "hyperlink"):
            if len({len(list(tree.iter(f"{{{W}}}{tag}"))) for tree in trees}) > 1:
                outcome.say("structure", label, tag)
        is_tracked = any(list(trees[1].iter(f"{{{W}}}{tag}")) for tag in ("ins", "del"))
        if is_tracked and _words(trees[0], "t") != _words(trees[1], "t", "delText"):
            outcome.say("bytes outside the edits", label)


def _odt(name: str, outcome: Found, label: str, data: bytes, written: bytes, seen: Seen) -> None:
    before, after = (zipfile.ZipFile(io.BytesIO(content)) for content in (data, written))
    if before.namelist() != after.namelist():
        outcome.say("structure", label, "other files in the archive")
    for member_name in before.namelist():
        if member_name != "content.xml" and member(before, member_name) != member(after, member_name):
            outcome.say("bytes outside the edits", label, member_name)
    trees = [ElementTree.fromstring(archive.read("content.xml")) for archive in (before, after)]
    if len({" ".join(node.tag for node in tree.iter()) for tree in trees}) > 1:
        outcome.say("structure", label, "other elements")
    _reads_again(outcome, label, written, seen)


def _notebook(name: str, outcome: Found, label: str, data: bytes, written: bytes, seen: Seen) -> None:
    before, after = (
        json.loads(content.decode("utf-8", "surrogateescape").lstrip("\ufeff")) for content in (data, written)
    )
    for notebook in (before, after):
        for cell in notebook["cells"]:
            if isinstance(cell, dict) and cell.get("cell_type") == "markdown":
                source = cell.get("source")
                cell["source"] = len(source) if isinstance(source, list) else type(source).__name__
    if repr(before) != repr(after):
        outcome.say("bytes outside the edits", label)
    _reads_again(outcome, label, written, seen)


def _reads_again(outcome: Found, label: str, written: bytes, seen: Seen) -> None:
    """Check that the written file contains the reported texts when it is read again."""
    assert seen.form is not None
    again = "".join(part.text for part in seen.form.read(io.BytesIO(written)))
    if again != "".join(apply(part.text, edits) for part, edits in seen.parts):
        outcome.say("structure", label, "another text when read again")


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a file from an archive; b"" if it is damaged."""
    try:
        return archive.read(name)
    except BROKEN:
        return b""


def _words(tree: ElementTree.Element, *tags: str) -> str:
    """Return the original text: without insertions marked by a correction."""
    new = {
        id(inside)
        for inserted in tree.iter(f"{{{W}}}ins")
        if inserted.get(f"{{{W}}}author")
        for inside in inserted.iter()
    }
    wanted = {f"{{{W}}}{tag}" for tag in tags}
    return "".join(
        "".join(element.itertext()) for element in tree.iter() if element.tag in wanted and id(element) not in new
    )


def _marks(name: str, data: bytes) -> int:
    """Count the occurrences of U+FFFD."""
    if name in ("docx", "odt"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sum(member(archive, name).count("\ufffd".encode()) for name in archive.namelist())
    return data.count("\ufffd".encode()) + data.lower().count(b"\\ufffd")


_CHECKS: dict[str, Callable[[str, Found, str, bytes, bytes, Seen], None]] = {
    "csv": _cells,
    "tsv": _cells,
    "jsonl": _json,
    "m2": _m2,
    "docx": _docx,
    "odt": _odt,
    "ipynb": _notebook,
}
