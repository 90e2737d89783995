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
from itertools import pairwise

from ..documents import Refusal
from ..guards.answers import is_omission, mark_of
from .matching import Lines, splice, spliced


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
    places = [_place(chunk, lines.texts) for chunk in parts if chunk]
    spans = [place for place in places if place is not None]
    written = [at for at, line in enumerate(lines.texts) if line.strip()]
    if len(spans) < len(places) or not spans or any(a[1] > b[0] for a, b in pairwise(spans)):
        return None
    if (parts[0] and spans[0][0] > written[0]) or (parts[-1] and spans[-1][1] <= written[-1]):
        return None  # no mark stands for what is outside
    chunk_of = zip(spans, filter(None, parts), strict=True)
    splices = [splice(lines.texts[start:end], chunk, start, lines) for (start, end), chunk in chunk_of]
    made = spliced(lines, [each for each in splices if each is not None])
    return None if isinstance(made, Refusal) else made


def _place(chunk: Sequence[str], texts: Sequence[str]) -> tuple[int, int] | None:
    """The lines of the file that a chunk takes the place of, from its first to its last; None if that is unclear."""
    start, last = _anchor(chunk[0], texts), _anchor(chunk[-1], texts)
    if start is None or last is None or start > last or _count(texts[start : last + 1]) > _count(chunk):
        return None
    return start, last + 1


def _anchor(line: str, texts: Sequence[str]) -> int | None:
    """Where a line stands in the file, if it holds a word and stands there once. With its neighbours more lines would
    have one place, but those may be new."""
    places = [at for at, each in enumerate(texts) if each.rstrip() == line.rstrip()]
    return places[0] if len(places) == 1 and any(map(str.isalnum, line)) else None


def _count(lines: Sequence[str]) -> int:
    return sum(bool(line.strip()) for line in lines)


def _without_blanks(lines: Sequence[str]) -> list[str]:
    written = [at for at, line in enumerate(lines) if line.strip()]
    return list(lines[written[0] : written[-1] + 1]) if written else []
