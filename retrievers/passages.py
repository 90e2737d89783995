"""Passages: the pieces of documents that are indexed, each with its place in its document."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from copyspec.common.filesystem import read_input
from copyspec.text.codec import encodable
from copyspec.text.sentence_marks import CLOSING, CLOSING_UNSPACED, QUESTION_MARKS, SENTENCE_ENDS, UNSPACED_ENDS

from .base import Folder

MAX_TITLE = 200  # characters; a longer line is a paragraph even if it is underlined
MAX_SCANNED = 5 * MAX_TITLE  # characters of a title with its markup: finding markup may take quadratic time

_LINE = re.compile(r"[^\n]*(?:\n|$)")
_ATX = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_RULE = re.compile(r"([=\-~^+*\"'`:.])\1{2,}[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^)]*\)|`([^`<]+)<[^>]*>`_+")
_MARKS = re.compile(r"[*`|]+|(?<!\w)_+|_+(?!\w)")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading and its position."""

    start: int  # in characters
    level: int  # 1 is the highest
    title: str
    underlined: bool = False  # whether it has a second line, the underline


def found_headings(text: str) -> tuple[Heading, ...]:
    """Find the headings of a text: lines that begin with "#", and underlined lines, outside fenced code.

    In texts with "#" headings, an underline of "=" means level 1 and one of "-" level 2. In others, as in
    reStructuredText, each underline character gets its level by the order of first use.
    """
    marked: list[tuple[int, int | str, str]] = []
    fence, before, title, start = "", "", "", 0  # `before`, `title`: the last two lines; `start`: of `title`
    for match in _LINE.finditer(text):
        line = match.group().rstrip("\r\n")
        rule = _RULE.fullmatch(line)
        if fence:
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif rule and _is_title(title, before, line):
            marked.append((start, rule.group(1), title))
        elif opened := _FENCE.match(line):
            fence = opened.group(1)
        elif heading := _ATX.fullmatch(line):
            marked.append((match.start(), len(heading.group(1)), _without_closing(heading.group(2))))
        before, title, start = title, line, match.start()
        if match.end() == len(text):
            break
    return tuple(_levelled(marked))


def paths_at(headings: Sequence[Heading], places: Iterable[int]) -> Iterator[str]:
    """For each of the ascending `places`, yield the titles of the sections around it, highest level first, joined with
    " > "."""
    open_parts: list[Heading] = []
    coming = 0
    for place in places:
        while coming < len(headings) and headings[coming].start <= place:
            heading = headings[coming]
            open_parts = [part for part in open_parts if part.level < heading.level] + [heading]
            coming += 1
        yield " > ".join(part.title for part in open_parts if part.title)


def plain_title(title: str) -> str:
    """Return a title without link targets and markup, of at most MAX_TITLE characters."""
    linked = _LINK.sub(lambda match: match.group(1) or (match.group(2) or "").rstrip(), title[:MAX_SCANNED])
    return " ".join(_MARKS.sub("", linked).split())[:MAX_TITLE]


def _without_closing(title: str) -> str:
    """The title of a "#" heading without the white space and the "#" that may close the line."""
    title = title.rstrip(" \t")
    return title.rstrip("#").rstrip(" \t") or title[0]


def _is_title(title: str, before: str, rule: str) -> bool:
    """Whether a line is a heading: nothing above it, and an underline at least as long (any length for "=")."""
    text, length = title.strip(), len(rule.strip())
    if not text or len(text) > MAX_TITLE or text != title.rstrip() or not any(map(str.isalnum, text)):
        return False
    return not (before.strip() and not _RULE.fullmatch(before)) and (length >= len(text) or rule[0] == "=")


def _levelled(marked: Iterable[tuple[int, int | str, str]]) -> list[Heading]:
    marked, headings = list(marked), []
    is_markdown = any(isinstance(mark, int) for _, mark, _ in marked)
    ranks: list[str] = ["=", "-"] if is_markdown else []
    for start, mark, title in marked:
        if isinstance(mark, str) and mark not in ranks:
            ranks.append(mark)
        level = mark if isinstance(mark, int) else ranks.index(mark) + 1
        headings.append(Heading(start, level, plain_title(title), isinstance(mark, str)))
    return headings


MAX_SHOWN = 300  # characters of a line's keys in an error message

MAX_CHARS = 1000
"""Default maximum length of a passage: about 250 tokens, as in RaLMSpec's experiments (at most 256 tokens)."""

SHARED = "shared "
"""Before the stamp of a file of which some passage is not stored, because another file has the same one: the file has
to be read again when any other has changed or is gone."""

UNSTAMPED = "unknown"
"""In place of a stamp that may not be trusted: the file is read again, and it is noticed when the file is gone."""

SUFFIXES = (".txt", ".md", ".jsonl", ".rst")
"""Suffixes of the files that are read from folders."""

_PARAGRAPHS = re.compile(r"\n[ \t]*\r?\n\s*")
_ITEMS = re.compile(r"\n(?=[ \t]*(?:[-*+•]|\d{1,2}[.)])[ \t]+\S)")
_SENTENCES = re.compile(
    rf"(?<=[{SENTENCE_ENDS}])\s+|(?<=[{SENTENCE_ENDS}][{re.escape(CLOSING)}])\s+|\n|"
    # no space need follow these
    rf"(?<=[{UNSPACED_ENDS}])(?![{UNSPACED_ENDS}{CLOSING_UNSPACED}])\s*|"
    rf"(?<=[{UNSPACED_ENDS}][{CLOSING_UNSPACED}])(?![{CLOSING_UNSPACED}])\s*"
)
_WORDS = re.compile(r"\s+")
_HALVES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Document:
    """One text as it was read."""

    name: str  # the file's path; for lines of a .jsonl file followed by ":" and the line number
    text: str
    headings: tuple[Heading, ...] | None = None  # in order; None: find them in the text
    pages: tuple[int, ...] = ()  # start of each page, in characters; empty: the file has no pages
    file: str = field(default="", compare=False)  # path of the file
    stamp: str = field(default="", compare=False)  # `stamp_of` the file when it was read


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document: text == document text[start : start + len(text)]."""

    document: str  # name
    start: int  # in characters
    text: str
    heading: str = ""  # titles of the sections around it, joined with " > "
    page: int | None = None  # from 1

    @property
    def context(self) -> str:
        """Document name and headings, which are searched together with the text and shown to models: bytes of a name
        that are not UTF-8 are replaced."""
        name = without_surrogates(Path(self.document).stem)
        return f"{name} > {self.heading}" if self.heading else name


Reader = Callable[[Path], Document]
"""Reads a file into a document. Raises ValueError or OSError if it cannot."""


def without_surrogates(text: str) -> str:
    """Return a text of the same length with U+FFFD for each lone surrogate, which no tokenizer can encode."""
    return text if text.isascii() else _HALVES.sub("\ufffd", text)


def read_documents(
    paths: Iterable[Folder],
    *,
    field: str = "text",
    readers: Mapping[str, Reader] | None = None,
    on_error: Callable[[Path, Exception], None] | None = None,
    known: Mapping[str, str] | None = None,
    on_unchanged: Callable[[str], object] | None = None,
    on_read: Callable[[str, str], object] | None = None,
    on_other: Callable[[Path], object] | None = None,
) -> Iterator[Document]:
    """Read files, and the .txt, .md, .rst and .jsonl files in folders, in the order of their names. Hidden files and
    folders in folders are left out.

    `field`: the key of the text in the objects of .jsonl files. `readers`: for further suffixes
    (`copyspec.pipelines.DOCUMENT_READERS`: PDF, Word, PowerPoint, EPUB, HTML, .ipynb). `on_error`: called with a file
    that cannot be read and the error, and the file is skipped, or lines of a .jsonl file; without it, ValueError
    names file and line. `on_other`: called with each file in a folder that is of another kind. `known`: stamps
    by file name (`Corpora.stamps`); unchanged files are skipped, and their names passed to `on_unchanged`. `on_read`:
    called with name and stamp of each file that was read, also of one without a text.
    """
    if isinstance(paths, (str, os.PathLike)):
        raise TypeError(f"paths must be a list of paths, got one: write [{paths!r}]")
    endings, unchanged = (*SUFFIXES, *(readers or ())), _unchanged(known or {})
    for path in [Path(name) for name in paths]:
        if path.is_dir():
            files = [file for file in path.rglob("*") if not _is_hidden(file, path) and _may_be_file(file)]
            chosen = sorted(file for file in files if file.suffix.lower() in endings)
            for file in files:
                if on_other is not None and file.suffix.lower() not in endings:
                    on_other(file)
            if not chosen and not any(Path(file).is_relative_to(path) for file in known or ()):
                raise ValueError(f"folder {str(path)!r} holds no file with one of the endings {', '.join(endings)}")
        elif path.exists():
            chosen = [path]
        else:
            raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
        for file in chosen:
            try:
                if path.is_dir() and file.is_symlink() and not file.resolve().is_relative_to(path.resolve()):
                    raise ValueError(f"{str(file)!r} is a link out of the folder: name the file itself to read it")
                stamp = stamp_of(file)
                if unchanged.get(str(file)) == stamp:
                    if on_unchanged is not None:
                        on_unchanged(str(file))
                    continue
                read = (readers or {}).get(file.suffix.lower())
                wrong = list[ValueError]()
                documents = list(_read(file, field, wrong)) if read is None else [read(file)]
                if wrong:
                    if on_error is None or not documents:
                        raise wrong[0]
                    more = f" ({len(wrong)} such lines)" if len(wrong) > 1 else ""
                    on_error(file, ValueError(f"{wrong[0]}{more}"))
                    stamp = UNSTAMPED  # it is read again when it is whole
                if on_read is not None:
                    on_read(str(file), stamp)
                yield from (replace(document, file=str(file), stamp=stamp) for document in documents)
            except (ValueError, OSError) as error:
                if on_error is None:
                    raise
                on_error(file, error)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _may_be_file(path: Path) -> bool:
    """Whether a path is a file, or cannot be reached, because of its folder's mode say: reading it tells why."""
    try:
        return path.is_file()
    except OSError:
        return True


def _unchanged(known: Mapping[str, str]) -> dict[str, str]:
    """The stamps of the files that need not be read if they still have them."""
    stamps = {file: stamp.removeprefix(SHARED) for file, stamp in known.items()}
    has_changed = any(not os.path.exists(file) or stamp_of(Path(file)) != stamp for file, stamp in stamps.items())
    return {file: stamp for file, stamp in stamps.items() if not (has_changed and known[file].startswith(SHARED))}


def is_gone(file: str) -> bool:
    """Whether a file is no longer there. One that cannot be reached, because of its folder's mode say, may be."""
    try:
        os.lstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except ValueError:
        return "\0" in file  # which no name of a file holds; others cannot be encoded here
    except OSError:
        return False
    return False


def stamp_of(file: Path) -> str:
    """Return the size and times of a file as a string, which tells whether it has changed. Programs that copy and
    restore files can set the modification time, but not the other one."""
    status = file.stat()
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def split_passages(document: Document, *, max_chars: int = MAX_CHARS) -> list[Passage]:
    """Split a document into passages of at most `max_chars` characters.

    A passage holds whole paragraphs if they fit, else list items, sentences or words. Headings and pages begin a new
    passage. Only white space is left out."""
    if max_chars < 1:
        raise ValueError(f"max_chars must be at least 1, got {max_chars!r}")
    headings = found_headings(document.text) if document.headings is None else document.headings
    passages: list[Passage] = []
    parts = list(_parts(document, headings))
    starts = [0, *(heading.start for heading in headings)]
    # A part may begin with several headings, of which the last is that of its text.
    paths = paths_at(headings, (max(begin, starts[bisect_left(starts, until) - 1]) for begin, until, _ in parts))
    for (begin, until, page), heading in zip(parts, paths, strict=True):
        for start, end in _packed(document.text, begin, until, max_chars):
            passages.append(Passage(document.name, start, document.text[start:end], heading, page))
    return passages


def _parts(document: Document, headings: Sequence[Heading]) -> Iterator[tuple[int, int, int | None]]:
    """Split a document at headings and pages: (start, end, page). A heading directly followed by another one belongs
    to the other's part."""
    text, starts = document.text, {0, *document.pages, *(heading.start for heading in headings)}
    for heading, following in pairwise(headings):
        after = following.start
        if len(text[heading.start : after].strip().splitlines()) <= 1 + heading.underlined:
            starts.discard(after)
    borders = [*sorted(border for border in starts | set(document.pages) if border < len(text)), len(text)]
    page = 0
    for begin, until in pairwise(borders):
        while page < len(document.pages) and document.pages[page] <= begin:
            page += 1
        yield begin, until, page or None


def _packed(text: str, begin: int, until: int, max_chars: int) -> Iterator[tuple[int, int]]:
    """The pieces of text[begin:until], merged as long as they fit into `max_chars`. A question goes with what follows
    it."""
    start = end = last = before = begin  # `last`: where the last piece begins; `before`: the end of the one before it
    for piece_start, piece_end in _pieces(text, begin, until, max_chars, 0):
        if start < end and piece_end - start > max_chars:
            is_question = text[last:end].rstrip(CLOSING).endswith(QUESTION_MARKS)
            moves = is_question and start < last and piece_end - last <= max_chars
            yield (start, before) if moves else (start, end)
            start = last if moves else piece_start
        elif start == end:
            start = piece_start
        last, before, end = piece_start, end, piece_end
    if start < end:
        yield start, end


def _read(file: Path, field: str, wrong: list[ValueError]) -> Iterator[Document]:
    """The documents of a file. Errors of single lines are added to `wrong`."""
    try:
        text = str(read_input(file), "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(file)!r} is not UTF-8 (byte {error.start}); convert it first") from error
    if file.suffix.lower() != ".jsonl":
        yield Document(str(file), text)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            if line.strip():
                yield Document(f"{file}:{number}", _field(file, number, line, field))
        except ValueError as error:
            wrong.append(error)


def _field(file: Path, number: int, line: str, field: str) -> str:
    where = f"{str(file)!r}, line {number}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        hint = f"; it has {', '.join(map(repr, row))}"[:MAX_SHOWN] if isinstance(row, dict) else ""
        raise ValueError(f"{where}: no text under {field!r}{hint}; name the field that holds it")
    return encodable(str(row[field]), where)


def _pieces(text: str, start: int, end: int, max_chars: int, level: int) -> Iterator[tuple[int, int]]:
    """Spans of at most `max_chars`, cut at the coarsest borders that make them short enough, from `level` on."""
    borders = (_PARAGRAPHS, _ITEMS, _SENTENCES, _WORDS)
    start += len(text[start:end]) - len(text[start:end].lstrip())
    end = start + len(text[start:end].rstrip())
    if start >= end:
        return
    if end - start <= max_chars and level > 0:
        yield start, end
    elif level == len(borders):
        yield from ((at, min(at + max_chars, end)) for at in range(start, end, max_chars))
    else:
        at = start
        for border in borders[level].finditer(text, start, end):
            yield from _pieces(text, at, border.start(), max_chars, level + 1)
            at = border.end()
        yield from _pieces(text, at, end, max_chars, level + 1)
