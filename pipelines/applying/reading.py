"""Reads the edits that agents write: search-and-replace blocks, patches, unified diffs, snippets, whole files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from ..documents import FormatError
from ..edits.lines import LINE_END
from ..guards.wrappers import FENCE, is_closing

FORMS = ("auto", "blocks", "patch", "diff", "lazy", "whole")
"""Told by the text; search-and-replace blocks; OpenAI's patches; unified diffs; snippets, in which a comment may stand
for lines that stay as they are; whole files."""

_START = re.compile(r"[ \t]*(?:<{3,}|-{3,})[ \t]*(?:SEARCH|ORIGINAL)[ \t]*[>:]?[ \t]*")
_DIVIDER = re.compile(r"[ \t]*={5,}[ \t]*")
_END = re.compile(r"[ \t]*(?:>{3,}|\+{3,})[ \t]*(?:REPLACE|UPDATED)[ \t]*>?[ \t]*")
_AT_LINE = re.compile(r":(start|end)_line: ?\[?(\d+)\]?")  # in Roo Code's blocks, above a row of dashes
_PATCH = re.compile(r"\*\*\* (Begin Patch|Update File: |Add File: |Delete File: |Move to: |End of File|End Patch)(.*)")
_HUNK = re.compile(r"@@+(?: -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))?)?[^\n]*")
_OTHER_CHANGES = re.compile(r"(?:rename|copy) (?:from|to) |Binary files |GIT binary patch")
_NAME = re.compile(
    r"(?:[\w@~.+()\[\] -]*[/\\])*[\w@~+()\[\].-]*(?:\w\.\w{1,12}|[/\\][\w.-]+)|Makefile|Dockerfile|LICENSE"
)
_LABEL = re.compile(r"(?:file|path|filename|file path)\s*[:=]\s*", re.IGNORECASE)
_TAGGED = re.compile(r"<(path|file_path|filename|file)>([^<>\n]+)</\1>")
_CONTEXT = 3  # lines of a file that a diff usually shows below a change
_ABOVE = 4  # lines above a block among which the name of its file is searched


class EditError(FormatError):
    """An edit that cannot be read. Nothing was applied."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines of a file, and those that take their place."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    number: int  # of its first line in the edit, from 1
    line: int | None = None  # its place in the file, from 1; None: not given, or the line counts are wrong
    scopes: tuple[str, ...] = ()  # lines that stand before it, from the outermost
    ends_with_newline: bool | None = None  # None: as the file does
    alternatives: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    """Other pairs of old and new lines, of a block that holds several dividers."""


@dataclass(frozen=True, slots=True)
class FileEdit:
    """The edit of one file. `path`: as the edit names it; None if it names none."""

    path: str | None
    form: str  # one of FORMS, but not "auto"
    hunks: tuple[Hunk, ...] = ()
    text: str = ""  # a snippet or a whole file, or the edit as it was written, for a model
    creates: bool = False
    deletes: bool = False


def read_edits(source: str, form: str = "auto") -> list[FileEdit]:
    """The edits in a text, one for each file, in order of first mention. Raises EditError if the text is empty or cut
    off, or holds what no file can."""
    if form not in FORMS:
        raise ValueError(f"form={form!r} must be one of {', '.join(FORMS)}")
    if not source.strip():
        raise EditError("the edit is empty: give blocks, a diff, a snippet or a whole file")
    if half := re.search("[\ud800-\udfff]", source):
        raise EditError(f"the edit holds {half[0]!a}, half of a character or a byte that is not text: send it as UTF-8")
    lines = LINE_END.split(source.removeprefix("\ufeff"))
    readers = {"blocks": _blocks, "patch": _patch, "diff": _diff}
    kind = _form_of(lines) if form == "auto" else form
    if kind not in readers:
        return _snippets(lines, form)
    parts = list(readers[kind](lines))
    if not parts:
        raise EditError(f"the edit holds no {kind}: check it, or name another form")
    joined: dict[str | None, FileEdit] = {}
    for part in parts:
        edit = replace(part, path=part.path and PurePath(part.path).as_posix())
        known = joined.get(edit.path)
        if known is not None and (edit.creates or known.creates or known.deletes != edit.deletes):
            raise EditError(f"the edit names {edit.path!r} twice, and makes or deletes it")
        joined[edit.path] = edit if known is None else replace(known, hunks=known.hunks + edit.hunks)
    if len(joined) == 1:
        return [replace(edit, text="\n".join(lines)) for edit in joined.values()]
    return [replace(edit, text=_as_blocks(edit.hunks)) for edit in joined.values()]


def _as_blocks(hunks: Sequence[Hunk]) -> str:
    """The part of an edit that is for one file, for a model."""
    blocks = (("<<<<<<< SEARCH", *hunk.old, "=======", *hunk.new, ">>>>>>> REPLACE") for hunk in hunks)
    return "\n".join(line for block in blocks for line in block)


def _form_of(lines: Sequence[str]) -> str:
    if any(_START.fullmatch(line) or _END.fullmatch(line) for line in lines):
        return "blocks"
    if any(_PATCH.fullmatch(line.strip()) for line in lines):
        return "patch"
    has_header = any(_names(lines, at) for at in range(len(lines)))
    in_fence = any((fence := FENCE.fullmatch(line)) and fence[3] in ("diff", "patch", "udiff") for line in lines)
    if any(line.startswith("@@") for line in lines) and (has_header or in_fence or lines[0].startswith("@@")):
        return "diff"
    return "lazy"


def _blocks(lines: Sequence[str]) -> Iterator[FileEdit]:
    at, after, path = 0, 0, None
    while at < len(lines):
        if _END.fullmatch(lines[at]):
            raise EditError(f"line {at + 1} of the edit ends a block that does not begin: {lines[at].strip()!r}")
        if not _START.fullmatch(lines[at]):
            at += 1
            continue
        path = _name_above(lines[after:at]) or path
        stops = (i for i in range(at + 1, len(lines)) if _END.fullmatch(lines[i]) or _START.fullmatch(lines[i]))
        stop = next(stops, len(lines))
        end = stop if _END.fullmatch("".join(lines[stop : stop + 1])) else _second_divider(lines, at, stop)
        if end is None:
            raise EditError(f"the block at line {at + 1} of the edit has no end: the edit was cut")
        yield FileEdit(path, "blocks", (_block(lines[at + 1 : end], at + 1),))
        at = after = end + 1


def _second_divider(lines: Sequence[str], start: int, end: int) -> int | None:
    """The divider that stands in the place of a block's end, behind another one and before the end of the fence."""
    dividers = [at for at in range(start + 1, end) if lines[at].strip() == "======="]
    is_end = len(dividers) == 2 and dividers[1] + 1 < end and lines[dividers[1] + 1].startswith("```")
    return dividers[1] if is_end else None


def _block(body: Sequence[str], number: int) -> Hunk:
    line = None
    while body and (head := _AT_LINE.fullmatch(body[0].strip())):
        line = int(head[2]) if head[1] == "start" else line
        body = body[1:]
    if line is not None and body and re.fullmatch("-{5,}", body[0].strip()):
        body = body[1:]
    dividers = [at for at, line in enumerate(body) if _DIVIDER.fullmatch(line)]
    exact = [at for at in dividers if body[at].strip() == "======="]
    if not dividers:
        raise EditError(f"the block at line {number} of the edit has no '=======' between the old lines and the new")
    (old, new), *others = [(tuple(body[:at]), tuple(body[at + 1 :])) for at in exact or dividers]
    return Hunk(old, new, number, line, alternatives=tuple(others))


def _patch(lines: Sequence[str]) -> Iterator[FileEdit]:
    """OpenAI's format: sections of files between `*** Begin Patch` and `*** End Patch`."""
    heads = [(at, head) for at, line in enumerate(lines) if (head := _PATCH.fullmatch(line.strip()))]
    kinds = [head[1].strip() for _, head in heads]
    if kinds[0] == "Begin Patch" and kinds[-1] != "End Patch":
        raise EditError("the patch has no '*** End Patch': the edit was cut")
    sections = [(at, head) for at, head in heads if head[1].strip() != "End of File"]
    for (at, head), following in zip(sections, [*(at for at, _ in sections[1:]), len(lines)], strict=True):
        kind, path = head[1].strip(), head[2].strip()
        body = [line for line in lines[at + 1 : following] if line.strip() != "*** End of File"]
        if kind == "Move to:":
            raise EditError(
                f"line {at + 1} of the edit moves a file, which is not supported: make the edit, then move it"
            )
        if kind == "Add File:":
            new = tuple(line[1:] for line in body if line.startswith("+"))
            yield FileEdit(path, "patch", (Hunk((), new, at + 1),), creates=True)
        elif kind == "Delete File:":
            yield FileEdit(path, "patch", deletes=True)
        elif kind == "Update File:":
            yield FileEdit(path, "patch", tuple(_scoped(body, at + 2)))


def _scoped(body: Sequence[str], number: int) -> Iterator[Hunk]:
    """The hunks of a section: `@@` lines name what stands before the next lines."""
    at, scopes = 0, list[str]()
    while at < len(body):
        if body[at].startswith("@@"):
            scopes += [name] if (name := body[at].strip("@ \t")) and not _HUNK.fullmatch(body[at])[1] else []  # type: ignore[index]
            at += 1
            continue
        end = next((i for i in range(at, len(body)) if body[i].startswith("@@")), len(body))
        hunk = _signed(body[at:end], number + at)
        if hunk.old or hunk.new:
            yield replace(hunk, scopes=tuple(scopes))
        at, scopes = end, []


def _diff(lines: Sequence[str]) -> Iterator[FileEdit]:
    at, edit = 0, FileEdit(None, "diff")
    while at < len(lines):
        if names := _names(lines, at):
            old, new = names
            edit = FileEdit(new or old, "diff", creates=old is None, deletes=new is None)
            at += 2
        elif _OTHER_CHANGES.match(lines[at]):
            raise EditError(
                f"line {at + 1} of the edit renames a file or holds no text, which is not supported: {lines[at]}"
            )
        elif lines[at].startswith("@@") and (head := _HUNK.fullmatch(lines[at])):
            end = next((i for i in range(at + 1, len(lines)) if _ends_hunk(lines, i)), len(lines))
            counts = (int(head[2] or 1), int(head[4] or 1)) if head[1] else None
            hunk = _signed(lines[at + 1 : end], at + 1, counts)
            if counts and not any(map(str.strip, lines[end:])):
                _check_whole(hunk, counts, lines[at + 1 : end])
            if head[1] and counts == (len(hunk.old), len(hunk.new)):
                hunk = replace(hunk, line=int(head[1]) + (not hunk.old))
            if hunk.old or hunk.new:
                yield replace(edit, hunks=(hunk,))
            at = end
        else:
            at += 1


def _check_whole(hunk: Hunk, counts: tuple[int, int], body: Sequence[str]) -> None:
    """Raise EditError if the last hunk was cut: it has fewer old lines and fewer new ones than it says, and ends with a
    change, or lacks more than context. Counts alone are no sign: models miscount."""
    missing = min(counts[0] - len(hunk.old), counts[1] - len(hunk.new))
    last = next((line for line in reversed(body) if line.strip()), "")
    if missing > (0 if last.startswith(("+", "-")) else _CONTEXT):
        raise EditError(
            f"the hunk at line {hunk.number} of the edit has {len(hunk.old)} of {counts[0]} old lines and "
            f"{len(hunk.new)} of {counts[1]} new ones: the edit was cut"
        )


def _names(lines: Sequence[str], at: int) -> tuple[str | None, str | None] | None:
    """The names in the two lines above a file's hunks; None for a file that does not exist before or after."""
    if not lines[at].startswith("--- ") or at + 1 >= len(lines) or not lines[at + 1].startswith("+++ "):
        return None
    names = [line[4:].split("\t")[0].strip().strip('"') for line in lines[at : at + 2]]
    if all(name[:2] in ("a/", "b/") or name == "/dev/null" for name in names):
        names = [name if name == "/dev/null" else name[2:] for name in names]
    old, new = (None if name == "/dev/null" else name for name in names)
    return (old, new) if old or new else None


def _ends_hunk(lines: Sequence[str], at: int) -> bool:
    line = lines[at]
    return line.startswith(("@@", "diff --git ", "```")) or _names(lines, at) is not None


def _signed(body: Sequence[str], number: int, counts: tuple[int, int] | None = None) -> Hunk:
    """The hunk in lines that begin with a blank, `+` or `-`. `counts`: of old and new lines, as its head gives them."""
    old, new = list[str](), list[str]()
    newline = None
    blanks = 0  # at the end: context that lost its blank, or the space behind a hunk
    for at, line in enumerate(body):
        sign = line[:1]
        if sign == "\\":  # no newline at the end of the file
            before = body[at - 1][:1] if at else ""
            newline = {"-": True, "+": False}.get(before, newline)
            continue
        if sign not in (" ", "+", "-", ""):
            is_over = counts is not None and len(old) >= counts[0] and len(new) >= counts[1]
            if is_over or not any(rest[:1] in ("+", "-") for rest in body[at:]):
                break  # prose behind the hunk
            raise EditError(f"line {number + at + 1} of the edit begins with none of ' ', '+' and '-': {line[:60]!r}")
        blanks = blanks + 1 if not sign else 0
        if sign != "+":
            old.append(line[1:])
        if sign != "-":
            new.append(line[1:])
    if blanks and counts != (len(old), len(new)):
        del old[-blanks:], new[-blanks:]
    return Hunk(tuple(old), tuple(new), number, ends_with_newline=newline)


def _snippets(lines: Sequence[str], form: str) -> list[FileEdit]:
    """Snippets or whole files: those in fences that have names, or all of the text, without a fence around it. Fences
    without names may be the file's own, which is unknown here (`guards.answers.unfenced`)."""
    named, at, after = list[FileEdit](), 0, 0
    while at < len(lines):
        if (opening := FENCE.fullmatch(lines[at])) is None:
            at += 1
            continue
        closing = [i for i in range(at + 1, len(lines)) if is_closing(lines[i], opening[2])]
        path = _name_in(opening[3]) or _name_above(lines[after:at])
        above = sum(bool(line.strip()) for line in lines[:at])
        is_first = not above
        if not closing and (is_first or (path and (named or above == 1))):
            raise EditError(f"the fence at line {at + 1} of the edit is not closed: the edit was cut")
        if is_first and not any(map(str.strip, lines[closing[-1] + 1 :])):
            return [_snippet(lines[at + 1 : closing[-1]], path, form)]
        if path is None or form != "auto" or not closing:
            break
        named.append(_snippet(lines[at + 1 : closing[0]], path, form))
        at = after = closing[0] + 1
    else:
        if named:
            return named
    return [_snippet(lines, None, form)]


def _snippet(lines: Sequence[str], path: str | None, form: str) -> FileEdit:
    return FileEdit(path, "lazy" if form == "auto" else form, text="\n".join(lines))


def _name_in(info: str) -> str | None:
    """The name of a file in what stands behind a fence: `python src/a.py`, `12:15:src/a.py`."""
    last = re.split(r"[\s:=]+", info.strip())[-1] if info.strip() else ""
    return last if "." in last and _NAME.fullmatch(last) else None


def _name_above(lines: Sequence[str]) -> str | None:
    """The name of a file in a line of its own, among the last ones."""
    for line in reversed([line for line in lines if line.strip()][-_ABOVE:]):
        if tagged := _TAGGED.search(line):
            return tagged[2].strip()
        name = _LABEL.sub("", line.strip().strip("*#`:-> \t\"'"), count=1).strip("*#`: \t\"'")
        if name and _NAME.fullmatch(name):
            return name
    return None
