"""When a merged file may be used: each line is from the file or the edit, and the edit removes each line that is gone.

Lines are compared without surrounding blanks, so that the rules hold for any language; `guards.syntax` asks a parser.
An omission mark is a line that stands for others, such as `# ... existing code ...`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from copyspec.common.sequences import common_prefix

from ..documents import Refusal
from ..edits.lines import aligned
from ..guards.omissions import is_omission

_MAX_QUOTED = 80  # characters of a line that a refusal shows

Chunks = Sequence[Sequence[str]]


def why_not(lines: Sequence[str], before: Sequence[str], edit: Chunks, gone: Iterable[str] = ()) -> Refusal | None:
    """Why the lines of a merged file may not be used; None if they may.

    `edit`: the runs of lines that the edit shows without a gap, with an empty one at an end where an omission mark
    stands. `gone`: lines that it shows as removed. Blank lines are ignored.
    """
    edit = [_nonblank(chunk)[1] for chunk in edit]
    return (
        placeholder(lines, before)
        or _cut(lines, edit)
        or _dropped(lines, before, edit, Counter(map(str.strip, gone)))
        or _added(lines, before, [line for chunk in edit for line in chunk])
    )


def placeholder(lines: Sequence[str], before: Sequence[str]) -> Refusal | None:
    """A refusal of an omission mark that is not a line of the file."""
    known = {line.strip() for line in before}
    for at, line in enumerate(lines):
        if line.strip() not in known and is_omission(line):
            return Refusal("omission", f"line {at + 1} of the new version stands for others: {_quoted(line)}")
    return None


def repetition(lines: Sequence[str], known: Chunks, least: int = 2) -> Refusal | None:
    """A refusal of a run of lines that is repeated at once, unless one of the `known` texts repeats it, too. A run
    counts if at least `least` of its lines have a letter or digit."""
    at, texts = _nonblank(lines)
    others = [f"\n{chr(10).join(_nonblank(text)[1])}\n" for text in known]
    last, done = dict[str, int](), dict[int, int]()  # by line: its last place; by distance: where its last run ends
    for here, text in enumerate(texts):
        size = here - last.get(text, here)
        last[text] = here
        if not size or here < done.get(size, 0):
            continue
        start, end = here, here  # of a run of lines that are those `size` lines before
        while start > size and texts[start - 1] == texts[start - 1 - size]:
            start -= 1
        while end < len(texts) and texts[end] == texts[end - size]:
            end += 1
        done[size] = end
        first = texts[start - size : start]
        if end - start < size or sum(any(map(str.isalnum, line)) for line in first) < least:
            continue
        if not any("\n".join(["", *first, *first, ""]) in other for other in others):
            return Refusal(
                "doubled", f"the new version repeats {_span(at[start - size], at[start - 1])}: {_quoted(first[0])}"
            )
    return None


def _cut(lines: Sequence[str], edit: Chunks) -> Refusal | None:
    """A refusal of lines that lack a part of the edit, or have other lines inside of it."""
    whole = "\n".join(["", *_nonblank(lines)[1], ""])
    for chunk in edit:
        if "\n".join(["", *chunk, ""]) not in whole and chunk:
            line = next((line for line in chunk if f"\n{line}\n" not in whole), chunk[-1])
            return Refusal("lost", f"a part of the edit is not in the new version as it is written: {_quoted(line)}")
    return None


def _dropped(lines: Sequence[str], before: Sequence[str], edit: Chunks, removed: Counter[str]) -> Refusal | None:
    """A refusal of lines that lack some of the file's that the edit does not remove."""
    (at, old), (_, new) = _nonblank(before), _nonblank(lines)
    regions = [region for tag, *region in aligned(old, new) if tag != "equal"]
    added = Counter(line for _, _, first, last in regions for line in new[first:last])
    moved = added - Counter(line for chunk in edit for line in chunk)  # what came back elsewhere, not with the edit
    lost = Counter(line for start, end, _, _ in regions for line in old[start:end]) - moved - removed
    for start, end, first, last in regions:
        if not any(lost[line] for line in old[start:end]):
            continue
        spans = _slid(old, start, end, first == last)
        if not any(_is_shown(old, span, new[first:last], edit) for span in spans):
            missing = next(line for line in old[start:end] if lost[line])
            where = f"{_span(at[start], at[end - 1])} of the file"
            return Refusal("dropped", f"{where} would go, and the edit does not remove them: {_quoted(missing)}")
    return None


def _slid(old: Sequence[str], start: int, end: int, may_slide: bool) -> Iterator[tuple[int, int]]:
    """A span of removed lines, and the spans above and below whose removal leaves the same text."""
    yield start, end
    for step in (-1, 1) if may_slide else ():
        first, last = start, end
        while first + min(step, 0) >= 0 and last + max(step, 0) <= len(old):
            if old[first + min(step, 0)] != old[last + min(step, 0)]:
                break
            first, last = first + step, last + step
            yield first, last


def _is_shown(old: Sequence[str], span: tuple[int, int], new: Sequence[str], edit: Chunks) -> bool:
    """Whether an edit shows that `new` replaces a span of lines: between the lines around the span, or at an end of a
    chunk if `new` is not shorter."""
    size = span[1] - span[0]
    above, below = old[span[0] - 1] if span[0] else None, old[span[1]] if span[1] < len(old) else None
    if not new and old[span[0]] == below:
        return False  # together with the line before them, the line after them says nothing new
    whole = "\n".join(["", *old, ""])
    for number, chunk in enumerate(edit):
        says_nothing = "\n".join(["", *chunk, ""]) in whole  # but that something goes
        for start in range(len(chunk) - len(new) + 1 if chunk else 0):
            end = start + len(new)
            if (new and chunk[start] != new[0]) or chunk[start:end] != list(new):
                continue
            is_first, is_last = start == 0, end == len(chunk)
            opens = number == 0 and is_first if above is None else not is_first and chunk[start - 1] == above
            closes = number == len(edit) - 1 and is_last if below is None else not is_last and chunk[end] == below
            if opens and closes and size > len(new):
                if says_nothing or not _is_ambiguous(old, span, len(new), (chunk[:start], chunk[end:])):
                    return True
            elif (opens or is_first) and (closes or is_last) and size <= len(new):
                return True
    return False


def _is_ambiguous(old: Sequence[str], span: tuple[int, int], size: int, around: Chunks) -> bool:
    """Whether some `size` lines of a span match as much of the edit above and below them as the whole span does: an
    edit with `size` new lines is then more likely to replace only these."""
    above, below = around[0][::-1], around[1]
    before, after = common_prefix(old[: span[0]][::-1], above), common_prefix(old[span[1] :], below)
    return any(
        (start == span[0] or common_prefix(old[:start][::-1], above) >= before > 0)
        and (start + size == span[1] or common_prefix(old[start + size :], below) >= after > 0)
        for start in range(span[0], span[1] - size + 1)
    )


def _added(lines: Sequence[str], before: Sequence[str], shown: Sequence[str]) -> Refusal | None:
    """A refusal of a line that occurs more often than in the file and the edit together, and of repeated runs."""
    left = Counter([*_nonblank(before)[1], *shown])
    known = set(left)
    for place, line in zip(*_nonblank(lines), strict=True):
        left[line] -= 1
        if left[line] < 0:
            if line in known:
                return Refusal("doubled", f"line {place + 1} of the new version occurs too often: {_quoted(line)}")
            return Refusal(
                "invented", f"line {place + 1} of the new version is neither the file's nor the edit's: {_quoted(line)}"
            )
    return repetition(lines, (before, shown))


def _nonblank(lines: Sequence[str]) -> tuple[list[int], list[str]]:
    """The indices of the lines that are not blank, and these lines without surrounding blanks."""
    written = [(at, text) for at, line in enumerate(lines) if (text := line.strip())]
    return [at for at, _ in written], [text for _, text in written]


def _span(first: int, last: int) -> str:
    return f"line {first + 1}" if first == last else f"lines {first + 1} to {last + 1}"


def _quoted(line: str) -> str:
    return repr(line.strip()[:_MAX_QUOTED])
