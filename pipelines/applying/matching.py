"""Finds the lines that an edit means in a file, and puts others in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from copyspec.common.sequences import common_prefix

from ..documents import Refusal
from ..edits.lines import LINE_END, aligned, line_ends, new_lines
from ..guards.omissions import is_omission
from .reading import Hunk

_TAB_WIDTHS = (4, 2, 8, 3)
_NAMED = 4  # places that a refusal names
_ASCII = str.maketrans(
    dict.fromkeys("‐‑‒–—−", "-") | dict.fromkeys("‘’‛", "'") | dict.fromkeys("“”‟", '"') | {"\u00a0": " "}
)
"""Signs for which models write others."""

Indenter = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Lines:
    """A text as lines, each with its end; the last one may have none."""

    texts: Sequence[str]
    ends: Sequence[str]

    @classmethod
    def of(cls, text: str) -> Lines:
        texts, ends = LINE_END.split(text), LINE_END.findall(text)
        return cls(texts[:-1], ends) if not texts[-1] else cls(texts, [*ends, ""])

    def joined(self, newline: str, has_last: bool) -> str:
        """The text. `newline`: for lines in the middle without an end; `has_last`: whether the last line has one."""
        ends = [end or newline for end in self.ends]
        if ends and not has_last:
            ends[-1] = ""
        return "".join(map(str.__add__, self.texts, ends))


@dataclass(frozen=True, slots=True)
class Splice:
    """Lines that take the place of others: those from `start` to before `end`."""

    start: int
    end: int
    lines: Lines


def applied(hunks: Sequence[Hunk], text: str) -> str | Refusal:
    """A text with the hunks in it, each where its lines stand, or a refusal if there is no such place or several.

    A hunk that the text does not have is searched again after the ones before it were made: agents write such. Only
    lines of hunks change. Line ends stay; new lines get those of the lines that they replace.
    """
    lines, pending = Lines.of(text), list[Splice]()
    newline = max(set(lines.ends) - {""}, key=list(lines.ends).count, default="\n")
    has_last = not lines.ends or bool(lines.ends[-1])
    for hunk in hunks:
        splice = _placed(hunk, lines)
        if isinstance(splice, Refusal) and splice.reason in ("absent", "made") and pending:
            remade = spliced(lines, pending)
            if isinstance(remade, Refusal):
                return remade
            lines, pending = remade, []
            splice = _placed(hunk, lines)
        if isinstance(splice, Refusal):
            return splice
        marks = [line for line in hunk.new if is_omission(line) and line not in lines.texts]
        if marks and any(line.strip() for line in new_lines(hunk.old, hunk.new)):
            return Refusal("omission", f"{_at(hunk)} leaves lines out: {marks[0].strip()[:80]!r} stands for them")
        if splice.start < splice.end or splice.lines.texts:
            pending.append(splice)
        has_last = has_last if hunk.ends_with_newline is None else hunk.ends_with_newline
    remade = spliced(lines, pending)
    return remade if isinstance(remade, Refusal) else remade.joined(newline, has_last)


def spliced(lines: Lines, splices: Sequence[Splice]) -> Lines | Refusal:
    """Lines with others in their place; a refusal if two splices want the same lines."""
    splices = sorted(splices, key=lambda change: (change.start, change.end))
    for before, after in pairwise(splices):
        if after.start < before.end or (before.start, before.end) == (after.start, after.end):
            return Refusal("overlap", f"two parts of the edit change line {after.start + 1}: make one of them")
    texts, ends = list(lines.texts), list(lines.ends)
    for change in reversed(splices):
        texts[change.start : change.end], ends[change.start : change.end] = change.lines.texts, change.lines.ends
    return Lines(texts, ends)


def splice(old: Sequence[str], new: Sequence[str], start: int, lines: Lines, indenter: Indenter = str) -> Splice | None:
    """`new` in place of the lines that `old` stands for, from `start`. What both have stays as it is in the file, and
    what both begin and end with is no part of the splice. None if a new line cannot be indented as the file is."""
    top, bottom = common_prefix(old, new), common_prefix(old[::-1], new[::-1])
    bottom = min(bottom, len(old) - top, len(new) - top)
    start, old, new = start + top, old[top : len(old) - bottom], new[top : len(new) - bottom]
    end = start + len(old)
    made = [indenter(line) for line in new]
    for tag, first, last, to, _ in aligned(old, new):
        if tag == "equal":
            made[to : to + last - first] = lines.texts[start + first : start + last]
    texts = [line for line in made if line is not None]
    if len(texts) < len(made):
        return None
    ends = lines.ends[start:end] or lines.ends[max(0, start - 1) :][:1]
    return Splice(start, end, Lines(texts, line_ends(new, old, ends)))


def _placed(hunk: Hunk, lines: Lines) -> Splice | Refusal:
    """The splice that a hunk means. Of several ways to divide it, the one with the most old lines that has a place: a
    file has dividers between old lines and new ones only if they are its own."""
    ways = [replace(hunk, old=old, new=new, alternatives=()) for old, new in ((hunk.old, hunk.new), *hunk.alternatives)]
    tried = [_one_placed(way, lines) for way in reversed(ways)]
    return next((attempt for attempt in tried if isinstance(attempt, Splice)), tried[len(tried) // 2])


def _one_placed(hunk: Hunk, lines: Lines) -> Splice | Refusal:
    old, new = hunk.old, hunk.new
    if not any(map(str.strip, old)):
        is_there = hunk.line is not None and list(lines.texts[hunk.line - 1 :][: len(old)]) == list(old)
        if old and hunk.line is not None and is_there and (made := splice(old, new, hunk.line - 1, lines)):
            return made
        if not lines.texts or (not old and hunk.line is not None and hunk.line - 1 <= len(lines.texts)):
            at = 0 if not lines.texts else (hunk.line or 1) - 1
            return Splice(at, at, Lines(new, line_ends(new, (), lines.ends[max(0, at - 1) :][:1])))
        return Refusal("ambiguous", f"{_at(hunk)} shows no line of the file, so its place is unknown")
    first = 0
    for number, scope in enumerate(hunk.scopes):
        below = _scope(scope, lines.texts, first + (number > 0))
        if below is None:
            return Refusal("absent", f"{_at(hunk)} is said to stand below {scope!r}, which the file does not have once")
        first = below  # many agents show that line once more
    places, indenters, edges = _places(old, lines.texts, first)
    if not places and (indent := _first_indent(old, lines.texts)) is not None:
        is_kept = new[:1] and _indent(new[0]) == _indent(old[0])
        new = (indent + new[0].lstrip(), *new[1:]) if is_kept else new
        old = (indent + old[0].lstrip(), *old[1:])
        places, indenters, edges = _places(old, lines.texts, first)
    if not places:
        if any(map(str.strip, new)) and len(_places(new, lines.texts)[0]) == 1:
            return Refusal(
                "made", f"{_at(hunk)} seems to be made already: the file has its new lines, not its old ones"
            )
        return Refusal("absent", _absence(hunk, lines.texts))
    if len(places) > 1 and hunk.scopes:
        places = places[:1]  # the format: the first place below the scope
    if len(places) > 1:
        places = [at for at in places if hunk.line is not None and at == hunk.line - 1 + edges[0]]
    if len(places) != 1:
        everywhere, _, _ = _places(old, lines.texts, first)
        named = ", ".join(str(at + 1) for at in everywhere[:_NAMED]) + ", ..." * (len(everywhere) > _NAMED)
        return Refusal(
            "ambiguous", f"{_at(hunk)} fits {len(everywhere)} places (lines {named}): show more lines around it"
        )
    top, bottom = edges
    new = new[top:] if not any(map(str.strip, new[:top])) else new
    new = new[: len(new) - bottom] if bottom and not any(map(str.strip, new[len(new) - bottom :])) else new
    made = splice(old[top : len(old) - bottom], new, places[0], lines, indenters[places[0]])
    return made or Refusal("indentation", f"{_at(hunk)} is indented otherwise than the file, and not uniformly")


def _places(
    old: Sequence[str], texts: Sequence[str], first: int = 0
) -> tuple[list[int], dict[int, Indenter], tuple[int, int]]:
    """Where lines stand, from the strictest way to the most lenient one that finds any: as they are; with other blanks
    at their ends; with other dashes and quotes; indented otherwise by the same amount; without the blank lines around
    them, of which the numbers are returned too."""
    top = next(at for at, line in enumerate(old) if line.strip())
    bottom = next(at for at, line in enumerate(reversed(old)) if line.strip())
    for edges in dict.fromkeys([(0, 0), (top, bottom)]):
        wanted = old[edges[0] : len(old) - edges[1]]
        for clean in (str, str.rstrip, _plain):
            if places := _runs([clean(line) for line in wanted], [clean(line) for line in texts], first):
                return places, dict.fromkeys(places, str), edges
        close = _runs([line.strip() for line in wanted], [line.strip() for line in texts], first)
        indenters = {at: made for at in close if (made := _indenter(wanted, texts[at : at + len(wanted)]))}
        if indenters:
            return list(indenters), indenters, edges
    return [], {}, (0, 0)


def _first_indent(old: Sequence[str], texts: Sequence[str]) -> str | None:
    """The indentation of the line that the first one stands for, if only that has another one: models lose it there."""
    rest = _runs([line.rstrip() for line in old[1:]], [line.rstrip() for line in texts], 1) if len(old) > 1 else []
    places = [at for at in rest if texts[at - 1].strip() == old[0].strip()]
    return _indent(texts[places[0] - 1]) if len(places) == 1 else None


def _plain(line: str) -> str:
    return line.translate(_ASCII).rstrip()


def _runs(wanted: Sequence[str], texts: Sequence[str], first: int) -> list[int]:
    size = len(wanted)
    starts = range(first, len(texts) - size + 1)
    return [at for at in starts if texts[at] == wanted[0] and texts[at : at + size] == wanted]


def _indenter(old: Sequence[str], there: Sequence[str]) -> Indenter | None:
    """What indents lines as the file does, if it indents `old` by one amount more or less; None if not."""
    pairs = [(_indent(a), _indent(b)) for a, b in zip(old, there, strict=True) if a.strip()]
    for width in (0, *_TAB_WIDTHS):
        own, theirs = (
            [line.replace("\t", " " * width) if width else line for line in side] for side in zip(*pairs, strict=True)
        )
        base, margin = min(own, key=len), min(theirs, key=len)
        if all(a == base + b[len(margin) :] and b.startswith(margin) for a, b in zip(own, theirs, strict=True)):
            return _Indented(base, margin, width)
    return None


@dataclass(frozen=True, slots=True)
class _Indented:
    """Indents a line by `theirs` where an edit has `mine`. `width`: of the file's tabs, if the edit has blanks."""

    mine: str
    theirs: str
    width: int

    def __call__(self, line: str) -> str | None:
        if not line.strip():
            return line.strip(" \t")
        indent = _indent(line)
        rest, indent = line[len(indent) :], indent.replace("\t", " " * self.width) if self.width else indent
        if indent.startswith(self.mine):
            made = self.theirs + indent[len(self.mine) :]
        elif self.mine.startswith(indent) and self.theirs.endswith(self.mine[len(indent) :]):
            made = self.theirs[: len(self.theirs) - len(self.mine) + len(indent)]  # further out than all old lines
        else:
            return None
        if self.width:
            made = "\t" * (len(made) // self.width) + " " * (len(made) % self.width)
        return made + rest


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _scope(scope: str, texts: Sequence[str], first: int) -> int | None:
    for fits in (str.__eq__, str.startswith):
        places = [at for at in range(first, len(texts)) if fits(texts[at].strip(), scope)]
        if len(places) == 1:
            return places[0]
    return None


def _absence(hunk: Hunk, texts: Sequence[str]) -> str:
    """Why a hunk has no place: where the file is closest to it, and what differs there."""
    wanted, stripped = [line.strip() for line in hunk.old], [line.strip() for line in texts]
    best, at = 0, 0
    for start in (i for i, line in enumerate(stripped) if line == wanted[0] and line):
        most = min(len(wanted), len(stripped) - start)
        same = next((i for i in range(most) if wanted[i] != stripped[start + i]), most)
        best, at = max((best, at), (same, start))
    if not best:
        return (
            f"{_at(hunk)} is not in the file: no line is {hunk.old[0].strip()[:60]!r}"
            if wanted[0]
            else (f"{_at(hunk)} is not in the file")
        )
    if best == len(wanted):
        return f"{_at(hunk)} is indented otherwise than line {at + 1} of the file, and not uniformly"
    there = repr(texts[at + best].strip()[:60]) if at + best < len(texts) else "the end of the file"
    return (
        f"{_at(hunk)} fits line {at + 1} of the file for {best} lines, then it has {hunk.old[best].strip()[:60]!r} and "
        f"the file {there}"
    )


def _at(hunk: Hunk) -> str:
    return f"the part at line {hunk.number} of the edit"
