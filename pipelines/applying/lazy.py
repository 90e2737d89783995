"""Snippets that leave lines of a file out, and those of them that can mean only one thing.

A snippet is chunks of lines, with a mark such as `# ... existing code ...` wherever lines of the file are left out. It
is merged here if every chunk begins and ends with a line that the file has once, and shows between them at least as
many lines as the file has there. Then each mark can stand only for what is between two such lines, and nothing goes
that the snippet does not show replaced. Where a chunk begins or ends with a new line, nobody can tell an inserted line
from a changed one, nor its place; a chunk that is shorter than what it replaces may have left lines out without a mark.
Those are a model's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..documents import Refusal
from ..guards.answers import is_omission, mark_of
from .matching import Lines, Splice, splice, spliced


def is_lazy(snippet: Sequence[str], before: Sequence[str]) -> bool:
    """Whether a snippet has a mark that is no line of the file."""
    known = {line.strip() for line in before}
    return any(is_omission(line) and line.strip() not in known for line in snippet)


def chunks(snippet: Sequence[str], before: Sequence[str]) -> list[list[str]]:
    """The stretches of a snippet between its marks; an empty one at an end where a mark stands."""
    known = {line.strip() for line in before}
    made: list[list[str]] = [[]]
    for line in snippet:
        if is_omission(line) and line.strip() not in known:
            made.append([])
        else:
            made[-1].append(line)
    return made


def merged(snippet: Sequence[str], lines: Lines) -> Lines | None:
    """The file with a snippet in it, if that can mean only one thing; None if it is a model's."""
    if any(
        mark_of(line) in ("sure", "remark") and not is_omission(line) for line in snippet if line not in lines.texts
    ):
        return None
    parts = [_without_blanks(chunk) for chunk in chunks(snippet, lines.texts)]
    if len(parts) == 1:
        return None
    placed = [_placed(chunk, lines) for chunk in parts if chunk]
    splices = [each for each in placed if each is not None]
    starts = [each.start for each in splices]
    if len(splices) < len(placed) or not splices or starts != sorted(starts):
        return None
    texts = [line.strip() for line in lines.texts]
    inner = [at for at, line in enumerate(texts) if line]
    if parts[0] and splices[0].start > inner[0]:  # no mark stands for what is before it
        return None
    if parts[-1] and splices[-1].end <= inner[-1]:
        return None
    made = spliced(lines, splices)
    return None if isinstance(made, Refusal) else made


def _placed(chunk: Sequence[str], lines: Lines) -> Splice | None:
    """The splice of a chunk between the lines of the file that it begins and ends with; None if that is unclear."""
    head = _anchor(chunk, lines.texts)
    tail = _anchor([*reversed(chunk)], [*reversed(lines.texts)])
    if head is None or tail is None:
        return None
    start, end = head, len(lines.texts) - tail
    old = lines.texts[start:end]
    if start >= end or _count(old) > _count(chunk):
        return None
    return splice(old, chunk, start, lines)


def _anchor(chunk: Sequence[str], texts: Sequence[str]) -> int | None:
    """Where the line that a chunk begins with stands in the file, if it holds a word and stands there once. With the
    lines after it more chunks would have one place, but those lines may be new."""
    places = [at for at, line in enumerate(texts) if line.rstrip() == chunk[0].rstrip()]
    return places[0] if len(places) == 1 and any(map(str.isalnum, chunk[0])) else None


def _count(lines: Sequence[str]) -> int:
    return sum(bool(line.strip()) for line in lines)


def _without_blanks(lines: Sequence[str]) -> list[str]:
    written = [at for at, line in enumerate(lines) if line.strip()]
    return list(lines[written[0] : written[-1] + 1]) if written else []
