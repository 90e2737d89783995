"""Output formats for edits: unified diff, coloured and inline diffs for a terminal, rows for JSON lines."""

from __future__ import annotations

import io
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from copyspec.views.escaping import visible

from ..documents import Edit, Part
from .alignment import align
from .words import Word

Pair = tuple[str, str]

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\x7f": "\\177"}
_STYLES = {"-": "\x1b[31m", "+": "\x1b[32m", "@": "\x1b[36m", " ": ""}
_CHANGED, _AS_BEFORE, _PLAIN = "\x1b[7m", "\x1b[27m", "\x1b[0m"
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


def unified_diff(pairs: Iterable[Pair], path: str, *, context: int = 3) -> Iterator[str]:
    """Yield the lines of a unified diff, with line ends, for `patch`; nothing if nothing changed.

    `pairs`: the parts of a file in order, each before and after the change; joined, they are the file. Memory is
    bounded. Undecodable bytes pass through as surrogates. `path`: relative to the folder in which the diff is applied,
    as git names files (`path_in_diff`).
    """
    hunk = _Hunk(context)
    header = [f"--- {_quoted(f'a/{path}')}\n", f"+++ {_quoted(f'b/{path}')}\n"]
    for before, after in _by_lines(pairs):
        for line in hunk.feed(before, after):
            yield from header
            header.clear()
            yield line
    for line in hunk.close():
        yield from header
        header.clear()
        yield line


def base_of_diff(paths: Iterable[str]) -> str:
    """Return the folder that the paths in a diff are relative to: the current one if it contains all files, else the
    nearest common parent. git and patch accept no paths that lead out of their folder."""
    here = os.getcwd()
    folders = [os.path.dirname(os.path.abspath(path)) for path in paths]
    try:
        return os.path.commonpath([here, *folders])
    except ValueError:  # on several drives
        return here


def path_in_diff(path: str, base: str) -> str:
    """Return the path of a file relative to `base`, as git writes it: `docs/a.md`, not `./docs/a.md`."""
    try:
        name = os.path.relpath(path, base)
    except ValueError:  # on another drive
        name = os.path.splitdrive(os.path.abspath(path))[1].lstrip("\\/")
    return name.replace(os.sep, "/")


def _quoted(name: str) -> str:
    """A name as git writes it in a diff: quoted if it holds special characters, followed by a tab if it has spaces."""
    if any(ord(char) < 32 or char in '"\\\x7f' for char in name):
        chars = (_ESCAPES.get(char) or (char if char >= " " else f"\\{ord(char):03o}") for char in name)
        return f'"{"".join(chars)}"'
    return f"{name}\t" if " " in name else name


class _Hunk:
    """Collects the lines of one hunk until enough unchanged ones follow."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.before: deque[str] = deque(maxlen=context)  # last unchanged lines, not yet in a hunk
        self.lines: list[str] = []
        self.trailing = 0  # number of unchanged lines at the end of the hunk
        self.old = self.new = 0  # line numbers reached in both files
        self.start = (0, 0)

    def feed(self, before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
        if before == after:
            yield from self._same(before)
            return
        for removed, added in _compared(before, after):
            if removed == added:
                yield from self._same(removed)
            else:
                self._changed(removed, added)

    def close(self) -> Iterator[str]:
        if not self.lines:
            return
        if (extra := self.trailing - self.context) > 0:
            self.before = deque((line[1:] for line in self.lines[-extra:]), maxlen=self.context)
            del self.lines[-extra:]
        old = sum(line[0] != "+" for line in self.lines)
        new = sum(line[0] != "-" for line in self.lines)
        yield f"@@ -{_range(self.start[0], old)} +{_range(self.start[1], new)} @@\n"
        for line in self.lines:
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        self.lines, self.trailing = [], 0

    def _same(self, lines: Sequence[str]) -> Iterator[str]:
        for line in lines:
            self.old += 1
            self.new += 1
            if not self.lines:
                self.before.append(line)
                continue
            self.lines.append(" " + line)
            self.trailing += 1
            if self.trailing > 2 * self.context:
                yield from self.close()

    def _changed(self, removed: Sequence[str], added: Sequence[str]) -> None:
        if not self.lines:
            self.start = (self.old - len(self.before), self.new - len(self.before))
            self.lines = [" " + line for line in self.before]
            self.before.clear()
        self.lines += ["-" + line for line in removed] + ["+" + line for line in added]
        self.old += len(removed)
        self.new += len(added)
        self.trailing = 0


def _range(start: int, count: int) -> str:
    first = start + 1 if count else start
    return str(first) if count == 1 else f"{first},{count}"


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Both sequences in stretches, in order: equal where they agree. Difflib takes quadratic time if much recurs."""
    pairs = align([Word(0, 0, key) for key in old], [Word(0, 0, key) for key in new])
    i = j = 0
    for i_next, j_next in [*pairs, (len(old), len(new))]:
        if i < i_next or j < j_next:
            yield old[i:i_next], new[j:j_next]
        i, j = i_next + 1, j_next + 1
        if i <= len(old):
            yield old[i_next:i], new[j_next:j]


def _by_lines(pairs: Iterable[Pair]) -> Iterator[tuple[list[str], list[str]]]:
    """The pairs as lists of lines. A list ends after a line that did not change, and where a changed pair ends with a
    line feed. Other changed lines that follow each other stay together, so that a diff removes all before it adds any.
    """
    befores: list[str] = []
    afters: list[str] = []
    is_same = True  # the last line, as far as it was read
    for before, after in pairs:
        first, last = (before.find("\n") + 1, before.rfind("\n") + 1) if before == after else (0, 0)
        if first and (is_same or first < last):
            head, middle, tail = before[:first], _lines(before[first:last]), before[last:]
            yield _lines("".join([*befores, head])), _lines("".join([*afters, head]))
            yield middle, middle
            befores, afters, is_same = [tail], [tail], True
            continue
        befores.append(before)
        afters.append(after)
        if before != after and before.endswith("\n") and after.endswith("\n"):
            yield _lines("".join(befores)), _lines("".join(afters))
            befores, afters, is_same = [], [], True
        else:
            is_same = bool(first) or (is_same and before == after)
    yield _lines("".join(befores)), _lines("".join(afters))


def _lines(text: str) -> list[str]:
    """Split into lines as `patch` does: only a line feed ends one."""
    pieces = text.split("\n")
    return [piece + "\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


def colored_diff(lines: Iterable[str]) -> Iterator[str]:
    """Colour the lines of a unified diff for a terminal, with the differing words in reverse video. Control characters
    of the texts are shown as signs."""
    removed: list[str] = []
    added: list[str] = []
    for line in lines:
        if line.startswith("-") and not added and not line.startswith(("--- a/", '--- "a/')):
            removed.append(line)
            continue
        if line.startswith("+") and removed and not line.startswith(("+++ b/", '+++ "b/')):
            added.append(line)
            continue
        yield from _colored(removed, added)
        removed, added = [], []
        if line.startswith("-") and not line.startswith(("--- a/", '--- "a/')):
            removed.append(line)
        else:
            yield _styled(line[:1], [(visible(line), False)])
    yield from _colored(removed, added)


def _colored(removed: Sequence[str], added: Sequence[str]) -> Iterator[str]:
    """Removed and added lines; differing words are marked if there are equally many of both."""
    if len(removed) != len(added):
        for line in (*removed, *added):
            yield _styled(line[0], [(visible(line), False)])
        return
    pairs = [_marked(old[1:], new[1:]) for old, new in zip(removed, added, strict=True)]
    yield from (_styled("-", [("-", False), *old]) for old, _ in pairs)
    yield from (_styled("+", [("+", False), *new]) for _, new in pairs)


def _marked(old: str, new: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Both lines in pieces, each with whether it differs."""
    words: tuple[list[str], list[str]] = _WORD.findall(old), _WORD.findall(new)
    pieces: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
    for runs in _compared(*words):
        for side, run in zip(pieces, runs, strict=True):
            if run:
                side.append((visible("".join(run)), runs[0] != runs[1]))
    return pieces


def _styled(kind: str, pieces: Sequence[tuple[str, bool]]) -> str:
    text = "".join(
        _CHANGED + piece.rstrip("\n") + _AS_BEFORE if differs else piece.rstrip("\n") for piece, differs in pieces
    )
    return f"{_STYLES.get(kind, '')}{text}{_PLAIN}\n"


def inline_diff(text: str, edits: Sequence[Edit], *, width: int = 80, color: bool = True) -> str:
    """Return `text` with deletions and insertions in place, wrapped to `width` columns, for a terminal.

    Without `color`, they are marked as by wdiff: `[-deleted-]{+inserted+}`. Control characters are shown as signs.
    """
    from rich.console import Console
    from rich.text import Text

    rendered = Text()
    at = 0
    for edit in edits:
        rendered.append(visible(text[at : edit.start]))
        removed, added = visible(text[edit.start : edit.end]), visible(edit.replacement)
        if removed:
            rendered.append(removed if color else f"[-{removed}-]", style="red strike")
        if added:
            rendered.append(added if color else f"{{+{added}+}}", style="green underline")
        at = edit.end
    rendered.append(visible(text[at:]))
    out = io.StringIO()
    console = Console(
        file=out, width=max(1, width), force_terminal=color, no_color=not color, legacy_windows=False, highlight=False
    )
    console.print(rendered, end="", soft_wrap=False)
    return out.getvalue()


class EditRows:
    """Makes rows for JSON lines from the edits of a file. It counts positions, so it needs every part in order."""

    def __init__(self, path: str, *, encoding: str = "utf-8") -> None:
        self.path, self.encoding = path, encoding
        self.part = self.char = self.byte = 0
        self.line, self.column = 1, 1

    def rows(self, part: Part, edits: Sequence[Edit]) -> Iterator[dict[str, str | int]]:
        """Yield a row per edit: path, part, start, end, orig, corr, line, col, and byte_start and byte_end.

        `start` and `end` count characters, `line` and `col` count from 1. In plain text formats they are positions in
        the file. In formats that embed texts (JSON lines, CSV, M2, docx) they are positions in the text of part number
        `part` (from 0), and the byte positions are missing.
        """
        at, line, column, byte = 0, 1, 1, 0
        offset = 0
        if part.is_verbatim:
            offset, line, column, byte = self.char, self.line, self.column, self.byte
        for edit in edits:
            passed = part.text[at : edit.start]
            line, column = _moved(passed, line, column)
            byte += self._size(passed)
            orig = part.text[edit.start : edit.end]
            row: dict[str, str | int] = {
                "path": self.path,
                "part": self.part,
                "start": offset + edit.start,
                "end": offset + edit.end,
                "orig": orig,
                "corr": edit.replacement,
                "line": line,
                "col": column,
            }
            if part.is_verbatim:
                row |= {"byte_start": byte, "byte_end": byte + self._size(orig)}
            yield row
            at = edit.start
        rest = part.text[at:]
        line, column = _moved(rest, line, column)
        if part.is_verbatim:
            self.char, self.byte = self.char + len(part.text), byte + self._size(rest)
            self.line, self.column = line, column
        self.part += 1

    def _size(self, text: str) -> int:
        return len(text) if text.isascii() else len(text.encode(self.encoding, "surrogateescape"))


def _moved(text: str, line: int, column: int) -> tuple[int, int]:
    """The line and column after `text`. Lines end with LF, CR or CRLF."""
    ends = text.count("\n") + text.count("\r") - text.count("\r\n")
    if not ends:
        return line, column + len(text)
    return line + ends, len(text) - max(text.rfind("\n"), text.rfind("\r"))
