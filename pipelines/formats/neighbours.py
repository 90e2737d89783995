"""Tells each segment whether a sentence may begin and end with it, from what stands before and after it in the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from copyspec.text.sentence_marks import CLOSING, SENTENCE_ENDS

from ..documents import Part, Segment
from .anchors import heading_key
from .reading import body_start

LINES = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\n|\r))*")
"""Blank lines, without an indentation after them, which a formula or a quotation has."""
SPACE = re.compile(r"\s*")
NEVER = re.compile(r"(?!)")
"""For formats in which no sentence is known to begin with a stretch: comments are often notes without capitals."""

_ENDED = re.compile(rf"[{SENTENCE_ENDS}](?:(?<!!)\[[^\[\]]{{0,40}}\]|\([^()]{{0,40}}\)|[{re.escape(CLOSING)}])*\Z")
_OPENING = re.compile(r"[\"'“‘«„(\[*_¿¡]*(.?)", re.DOTALL)
_ITEM = re.compile(r"(?:[-*+•–]|\(?(?:\d{1,3}(?:\.\d{1,3})*|[a-zA-Z])[.)])[ \t]")
_LABEL = re.compile(r"[^\W\d_]+(?: [^\W\d_]+){0,2}:?")
"""A few words, like a title."""
_NEAR = 100
"""Characters of a neighbour that are looked at."""
_MOST = 64 << 10
"""Maximum characters between two segments of which one may follow the other."""


def in_context(parts: Iterable[Part], border: re.Pattern[str], links: frozenset[str] = frozenset()) -> Iterator[Part]:
    """Set `begins` and `ends` of the segments, and leave out those in which nothing may change, such as headings that
    `links` name (keys of `heading_key`).

    A sentence begins with a segment, and ends with the one before it, only if the text between them is a `border`:
    other text is a formula, code, a picture or the mark of an item. Holds back one part, and up to `_MOST` characters
    of text after it."""
    waiting: list[Part] = []  # the part with the last segment, and those after it
    between, is_ended, is_first = "", True, True
    for part in parts:
        segments: list[Segment] = []
        at = 0
        for segment in part.segments:
            between += part.text[at : segment.start]
            if is_first:
                is_first, between = False, between[body_start(between) :].lstrip()
            is_apart = len(between) <= _MOST and border.fullmatch(between) is not None
            opening = part.text[segment.start : min(segment.end, segment.start + _NEAR)]
            if not (is_apart and (segment.is_title or _is_new(opening))):
                _go_on(segments, waiting)
            if not (is_apart and is_ended):
                segment = replace(segment, begins=False)
            if segment.is_title and heading_key(part.text[segment.start : segment.end]) in links:
                segment = replace(segment, protected=((segment.start, segment.end),))
            if _ITEM.match(opening):
                segment = replace(segment, begins=False, ends=False)
            segments.append(segment)
            at, between = segment.end, ""
            is_ended = segment.is_title or _ENDED.search(part.text, max(segment.start, at - _NEAR), at) is not None
            is_ended |= is_apart and segment.ends and _LABEL.fullmatch(part.text, segment.start, at) is not None
        between += part.text[at:]
        if part.segments:
            yield from map(_changeable, waiting)
            waiting = [replace(part, segments=tuple(segments))]
        elif waiting and len(between) <= _MOST:
            waiting.append(part)
        else:
            _go_on([], waiting)
            yield from map(_changeable, waiting)
            waiting = []
            yield part
    if not border.fullmatch(between):
        _go_on([], waiting)
    yield from map(_changeable, waiting)


def is_ended(text: str) -> bool:
    """Whether the end of a text is the end of a sentence."""
    return _ENDED.search(text.rstrip()) is not None


def _go_on(segments: list[Segment], waiting: list[Part]) -> None:
    """Note that the last segment, in the open part or in the one that waits, goes on."""
    if segments:
        segments[-1] = replace(segments[-1], ends=False)
    elif waiting:
        *others, last = waiting[0].segments
        waiting[0] = replace(waiting[0], segments=(*others, replace(last, ends=False)))


def _is_new(opening: str) -> bool:
    """Whether a text opens with a capital, or with a letter of a script without capitals."""
    found = _OPENING.match(opening)
    return found is not None and found[1].isalpha() and not found[1].islower()


def _changeable(part: Part) -> Part:
    """The part without segments in which all letters are protected."""
    segments = tuple(segment for segment in part.segments if _has_letters(part.text, segment))
    return part if len(segments) == len(part.segments) else replace(part, segments=segments)


def _has_letters(text: str, segment: Segment) -> bool:
    at = segment.start
    for start, end in (*segment.protected, (segment.end, segment.end)):
        if any(map(str.isalpha, text[at:start])):
            return True
        at = max(at, end)
    return False
