"""Removes what chat models put around a text: greetings, labels, quotes, fences, thoughts, notes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate

from copyspec.common.lists import Lists

from ..edits.alignment import Shared
from ..edits.words import Tolerance, words

_LISTS = Lists(__file__)

_THOUGHTS = re.compile(
    r"\A\s*<(think|thinking|thought|reasoning|analysis)>.*?(?:</\1>|\Z)\s*", re.DOTALL | re.IGNORECASE
)
FENCE = re.compile(r"([ \t]*)(`{3,}(?=[^`]*\Z)|~{3,})[ \t]*(.*?)[ \t]*")
"""A line of Markdown that opens a block of code: its indentation, the fence, and what the block holds."""
_TAG = re.compile(r"<(/?)(\w[\w-]*)>")
_WHAT = (
    r"(?:the |your |my |a |an )?(?:fully |slightly |grammatically |lightly )?"
    r"(?:corrected|correct|revised|edited|improved|proofread|polished|rewritten|updated|fixed|final)"
)
# `(?=(x))\1` matches the longest x and does not backtrack; otherwise a long run is tried from each of its positions.
_OPENING = re.compile(
    r"(?=(\W*))\1(?:(?:sure|certainly|of course|absolutely|okay|ok|yes|alright|great|happy to help|no problem|"
    r"i(?:'ve| have|'d)?\b|here(?:'s| is| are| you go)|below|the (?:following|text|sentence)|this is|assistant|"
    rf"{_WHAT}|corrections?|output|answer|result|response|text|sentence|version|rewrite|after)\b)",
    re.IGNORECASE,
)
"""How a line of chat may begin; the source decides whether it is one."""
_LABEL = re.compile(r"[^\n]{0,200}?(?:[:：]|\*\*)[ \t*_]*(?=\S|\n)")
_LINE = re.compile(r"[^\n]{1,300}\n\s*")
_CLOSING = _LISTS.pattern("closing", re.IGNORECASE | re.DOTALL)
_ECHO = re.compile(
    rf"\n(?=(\W{{0,200}}))\1(?:{_WHAT}[^\n:]{{0,40}}|output|answer|result|after)\W{{0,3}}:\W{{0,200}}?(?=[\w\"'“(])",
    re.IGNORECASE,
)
_PAIRS = ('""', "''", "“”", "‘’", "«»", "„“", "``", "[]", "()", "**", "__")
_NOTHING = _LISTS.pattern("nothing")
_DECLINES = _LISTS.pattern("declines")
"""How a model begins that does not do what it is asked."""
_ROUNDS = 6  # nested wrappers: chat, fence, label, quotes, a note at the end
_MAX_CELLS = 2_000_000_000
"""Above this many pairs of words (two texts of 45,000), no wrapper is searched: that would take most of the time."""
_EXACT = Tolerance(quotes=False)


@lru_cache(maxsize=64)  # the same text may occur a thousand times in a file, and is guarded each time
def unwrapped(output: str, source: str) -> str:
    """Return the text in a chat model's `output`, given the `source` that it was asked to correct.

    Something is removed only if it looks like a wrapper and what remains is closer to the source, so that words and
    marks of the source are never lost. An answer that says that nothing is wrong gives the source.
    """
    text = without_thoughts(output, source).strip()
    if not text or text == source.strip():
        return text
    shared = Shared(words(source, _EXACT))
    answer = _Answer(text, shared)
    if answer.cells > _MAX_CELLS:
        return text
    span = 0, len(text)
    distance = answer.distance(span)
    for _ in range(_ROUNDS):
        best = None
        text = answer.text[slice(*span)]
        for start, end in _candidates(text):
            inner = _stripped(answer.text, span[0] + start, span[0] + end)
            if (got := answer.distance(inner)) < distance:
                distance, best = got, inner
        if text.startswith(("> ", "- ", "* ", "# ")):
            lines = "\n".join(line[2:] if line[:2] == text[:2] else line for line in text.split("\n"))
            plain = _Answer(lines, shared)
            if (got := plain.distance((0, len(lines)))) < distance:
                answer, distance, best = plain, got, (0, len(lines))
        if best is None:
            break
        span = best
    text = answer.text[slice(*span)]
    return source if _NOTHING.match(text) and distance > shared.size else text


def declines(output: str, source: str) -> bool:
    """Whether an output is no new version of its source, but says that the model gives none."""
    return _DECLINES.match(output) is not None and _DECLINES.match(source) is None


class _Answer:
    """A text, and the distance of its stretches from the source."""

    def __init__(self, text: str, shared: Shared) -> None:
        self.text, self._shared, self._words = text, shared, words(text, _EXACT)
        self._starts = [word.start for word in self._words]
        self._common: dict[int, list[int]] = {}  # by the word before which a stretch ends; candidates share ends

    @property
    def cells(self) -> int:
        return self._shared.size * len(self._words)

    def distance(self, span: tuple[int, int]) -> int:
        """Number of words and marks that are only in the source or only in the stretch."""
        first, last = (bisect_left(self._starts, place) for place in span)
        common = self._common.get(last, [])
        if len(common) <= last - first:
            common = self._common[last] = self._shared.with_last(self._words[first:last])
        return self._shared.size + last - first - 2 * common[last - first]


def is_closing(line: str, fence: str) -> bool:
    """Whether a line of Markdown closes a block of code that `fence` opened."""
    mark = line.strip(" \t")
    return len(mark) >= len(fence) and mark == fence[0] * len(mark)


def open_fence(lines: Iterable[str]) -> str | None:
    """The fence of the block of code that is still open after lines of Markdown."""
    fence: str | None = None
    for line in lines:
        if fence is None:
            fence = match[2] if (match := FENCE.fullmatch(line)) else None
        elif is_closing(line, fence):
            fence = None
    return fence


def without_thoughts(output: str, source: str) -> str:
    """An output without the thoughts that a model wrote before its answer."""
    if match := _THOUGHTS.match(output):
        return output if source.lstrip().startswith(f"<{match[1]}>") else output[match.end() :]
    _, closed, rest = output.partition("</think>")  # opened by the chat template
    return rest if closed and "</think>" not in source else output


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The stretch without surrounding white space."""
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    return start, start + len(piece.strip())


def _candidates(text: str) -> Iterator[tuple[int, int]]:
    """Spans of `text` that may remain when one wrapper is removed."""
    yield from _inside_fences(text)
    yield from _inside_tags(text)
    end = len(text)
    if _OPENING.match(text):
        if line := _LINE.match(text):
            yield line.end(), end
        for match in re.finditer(r"[:：.!][ \t*_]*\s", text[:300]):
            yield match.end(), end
        if label := _LABEL.match(text):
            yield label.end(), end
    if closing := _CLOSING.search(text):
        yield 0, closing.start()
    if echoes := list(_ECHO.finditer(text)):
        yield echoes[-1].end(), end
    for pair in _PAIRS:
        if len(text) > 2 and text[0] == pair[0] and text[-1] == pair[1] and text[:3] not in ("```", "***", "___"):
            yield 1, end - 1


def _inside_fences(text: str) -> Iterator[tuple[int, int]]:
    """Spans between a fence and the one that closes it in Markdown, and, since models put files that have fences into
    such fences, the last one that could; the end of the text if there is none."""
    lines = text.split("\n")
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    closing = dict[str, int]()  # by the fence: the last line that closes it
    at = 0
    while at < len(lines):
        match = FENCE.fullmatch(lines[at])
        if match is None:
            at += 1
            continue
        fence = match[2]
        end = next((index for index in range(at + 1, len(lines)) if is_closing(lines[index], fence)), len(lines))
        if fence not in closing:
            closing[fence] = max((index for index in range(len(lines)) if is_closing(lines[index], fence)), default=-1)
        for last in {end, closing[fence]}:
            if last > at:
                yield starts[at + 1], max(starts[at + 1], starts[min(last, len(lines))] - 1)
        at = end + 1


def _inside_tags(text: str) -> Iterator[tuple[int, int]]:
    """Spans between a tag and the first one that closes it; tags inside such a span are skipped."""
    tags = list(_TAG.finditer(text))
    closing: dict[str, list[int]] = {}
    for tag in tags:
        if tag[1]:
            closing.setdefault(tag[2], []).append(tag.start())
    at = 0
    for tag in tags:
        ends = closing.get(tag[2], [])
        place = bisect_left(ends, tag.end())
        if not tag[1] and tag.start() >= at and place < len(ends):
            yield tag.end(), ends[place]
            at = ends[place] + len(tag[0]) + 1
