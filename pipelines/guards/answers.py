"""Reads the answer of a chat model as a new version of a file: all of it, or a refusal that says why it is none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from copyspec.common.lists import Lists

from ..documents import Refusal
from ..edits.lines import distance, new_lines, parts, shared
from .omissions import aside, omission
from .talk import after_preface, chat, is_code, is_told, unwrapped
from .wrappers import FENCE, is_closing, open_fence, without_thoughts

_LISTS = Lists(__file__)

_PATCH = re.compile(
    r"@@ -\d|diff --git |(?:---|\+\+\+) (?:[ab]/|/dev/null)|<{5,9}(?: |$)|>{5,9}(?: |$)|"
    r"\*\*\* (?:begin|end|update|add|delete)\b",
    re.IGNORECASE,
)
_PATCHES = {"diff", "patch", "udiff"}  # what the fence of a patch says
_NUMBER = re.compile(r"\s*\d+\s?[:|.)\t]?\s?")

_TOLD = _LISTS.pattern("told")
"""An instruction that may mean that much of the file goes."""
_FENCING = re.compile(r"code[- ]?block|\bfence|backtick|```|~~~", re.IGNORECASE)
"""An instruction that may ask for a fence around the file."""
_SHORT = 3
"""Lines below which a file may well become half as long."""


def version(answer: str, source: str, instruction: str, *, may_shrink: bool = False) -> str | Refusal:
    """The new version of `source` that an answer to `instruction` holds, both with `\\n` as line ends and without white
    space around them. What stands around a file is left out only if the answer, read as Markdown, leaves no doubt about
    where the file begins and ends. `may_shrink`: whatever the instruction says."""
    text = without_thoughts(answer, source).removeprefix("\ufeff").rstrip()
    lines, before = text.split("\n"), source.split("\n")
    while len(lines) > 1 and not lines[0].strip():
        del lines[0]
    body = lines if _FENCING.search(instruction) else unfenced(lines, before)
    if isinstance(body, Refusal):
        return body
    if len(body) == len(lines):
        body = unwrapped(after_preface(body, before, instruction), before, instruction)
        if refusal := chat(body, before, instruction):
            return refusal
    version = "\n".join(body).strip()
    if not version or version == source:
        return version
    return _why_none(version.split("\n"), before, instruction, may_shrink) or version


def unfenced(lines: Sequence[str], before: Sequence[str]) -> Sequence[str] | Refusal:
    """The lines inside the fence that is around the file; all of them if none is."""
    start = next((index for index, line in enumerate(lines) if FENCE.fullmatch(line)), None)
    if start is None:
        return lines
    match = FENCE.fullmatch(lines[start])
    assert match is not None
    ends = [at for at in range(start + 1, len(lines)) if is_closing(lines[at], match[2])]
    if open_fence(lines) is not None:
        ends.append(len(lines))  # it was never closed
    is_open = open_fence(before) is not None
    best, least = lines, distance(lines, before)
    outside: Sequence[str] = ()
    for end in ends:
        inner, after = lines[start + 1 : end], lines[end + 1 :]
        has_text = any(line.strip() for line in inner)
        if not has_text or (open_fence(inner) is not None) != is_open or open_fence(after) is not None:
            continue
        if (least_here := distance(inner, before)) < least:
            best, least, outside = inner, least_here, [*lines[:start], *after]
    if best is lines:
        return lines
    if match[3].split(" ")[0].casefold() in _PATCHES and lines[start] not in before:
        return _PATCH_REFUSAL
    best = _dedented(best, match[1], before)
    is_unclear = any(is_closing(line, match[2]) or line == lines[start] for line in new_lines(best, before))
    if is_unclear or any(FENCE.fullmatch(line) for line in outside):
        return Refusal("blocks", "the answer has several blocks of code, and none of them is the file")
    if shared([*outside, match[3]], before):
        return Refusal("blocks", "a part of the file stands outside of the answer's block of code")
    return best


def _dedented(lines: Sequence[str], indent: str, before: Sequence[str]) -> Sequence[str]:
    """Lines without the indentation of their fence, if they have it and the file has not."""
    less = [line.removeprefix(indent) for line in lines]
    has = all(line.startswith(indent) for line in lines if line.strip())
    return (
        less if indent and has and distance(less, before, exact=True) <= distance(lines, before, exact=True) else lines
    )


def _why_none(lines: Sequence[str], before: Sequence[str], instruction: str, may_shrink: bool) -> Refusal | None:
    """Why lines are no version of a file; None if they may be one."""
    new = list(new_lines(lines, before))
    if any(_PATCH.match(line.strip()) for line in new) or _is_patch(new, before):
        return _PATCH_REFUSAL
    if _is_fence(lines[0]) and not _is_fence(before[0]):
        return Refusal("blocks", f"the answer begins with {lines[0]!r}, and where its block of code ends is unclear")
    if (open_fence(lines) is None) != (open_fence(before) is None) or _in_new_blocks(lines, before):
        return Refusal("blocks", "the answer has blocks of code, and none of them is the file")
    if _numbered(new, before):
        return Refusal("numbers", "the answer has the numbers of the lines in front of them")
    if mark := omission(lines, before):
        return Refusal("omission", f"the answer leaves out a part of the file: {mark.strip()[:80]!r} stands for it")
    old, now = (sum(bool(line.strip()) for line in side) for side in (before, lines))
    if (
        not may_shrink
        and old >= _SHORT
        and 2 * now < old
        and not ({*lines} & {*before} or parts(lines) & parts(before) or is_told(lines[0], instruction))
    ):
        return Refusal("chat", f"the model answered instead of editing: {lines[0].strip()[:80]!r}")
    if may_shrink or _TOLD.search(instruction):
        return None
    if mark := aside(lines, before, is_program=is_code(before)):
        return Refusal(
            "omission",
            f"{mark.strip()[:80]!r} would take the place of several lines, and the instruction does not ask for that: "
            "say what to remove, or set max_edit_ratio",
        )
    if old >= _SHORT and 2 * now < old:
        return Refusal(
            "omission",
            f"{old} lines would become {now}, and the instruction does not ask for that: say what to remove, or set "
            "max_edit_ratio",
        )
    return None


_PATCH_REFUSAL = Refusal("patch", "the answer is a patch, not the whole file: ask for all of it")


def _is_fence(line: str) -> bool:
    return FENCE.fullmatch(line) is not None


def _is_patch(new: Sequence[str], before: Sequence[str]) -> bool:
    """Whether lines of the file came back with the signs of a patch."""
    known = {line for line in before if line.strip()}
    removed = sum(line[:1] == "-" and line[1:] in known for line in new)
    added = sum(line[:1] == "+" for line in new)
    context = sum(line[:1] == " " and line[1:] in known and line not in known for line in new)
    return (removed > 0 and added > 0) or (added + removed > 0 and context > 1)


def _numbered(new: Sequence[str], before: Sequence[str]) -> bool:
    known = {line.strip() for line in before if line.strip()}
    numbered = sum((match := _NUMBER.match(line)) is not None and line[match.end() :].strip() in known for line in new)
    return numbered > 1 and 2 * numbered > sum(bool(_NUMBER.sub("", line, count=1).strip()) for line in new)


def _in_new_blocks(lines: Sequence[str], before: Sequence[str]) -> bool:
    """Whether most lines of the file that an answer repeats stand in blocks that the file does not have."""
    known, opened = set(before), None
    inside = total = 0
    is_new = False
    for line in lines:
        if opened is None and (match := FENCE.fullmatch(line)):
            opened, is_new = match[2], line not in known
        elif opened is not None and is_closing(line, opened):
            opened = None
        elif line.strip() and line in known:
            total += 1
            inside += opened is not None and is_new
    return 2 * inside > total
