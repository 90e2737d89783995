"""Tells each segment whether a sentence may begin and end with it, from what stands before and after it in the file."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from copyspec.text.sentence_marks import CLOSING, SENTENCE_ENDS

from ..documents import Part, Segment
from .anchors import is_named
from .reading import body_start

LINES = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\n|\r))*")
"""Blank lines, without an indentation after them, which a formula or a quotation has."""
SPACE = re.compile(r"\s*")
NEVER = re.compile(r"(?!)")
"""For formats in which no sentence is known to begin with a stretch: comments are often notes without capitals."""

_ENDED = re.compile(rf"[{SENTENCE_ENDS}](?:(?<!!)\[[^\[\]]{{0,40}}\]|\([^()]{{0,40}}\)|[{re.escape(CLOSING)}])*\Z")
_OPENING = re.compile(r"[\"'“‘«„(\[*_¿¡]*(.?)", re.DOTALL)
_ITEM = re.compile(r"(?:[-*+•‣◦▪–—]|\(?(?:\d{1,3}(?:\.\d{1,3})*|[a-zA-Z]|[ivx]{2,5})[.)]|\[\d{1,3}\])[ \t]")
_LABEL = re.compile(r"[^\W\d_]+(?: [^\W\d_]+){0,2}:?")
"""A few words, like a title."""
_ITEM_BELOW = re.compile(rf"[\r\n][ \t>]*{_ITEM.pattern}")
_NEAR = 100
"""Characters of a neighbour that are looked at."""
_MOST = 64 << 10
"""Maximum characters between two segments of which one may follow the other."""


def in_context(parts: Iterable[Part], border: re.Pattern[str], links: frozenset[str] = frozenset()) -> Iterator[Part]:
    """Set `begins` and `ends` of the segments, and leave out those in which nothing may change, such as headings that
    `links` name (as of `linked`).

    A sentence begins with a segment, and ends with the one before it, only if the text between them is a `border`:
    other text is a formula, code, a picture or the mark of an item. Holds back one part, and up to `_MOST` characters
    of text after it."""
    waiting: list[tuple[Part, list[Segment]]] = []  # the part of the last segment, and those after it
    last, begins, home = None, True, []  # the segment, and the list to which it belongs
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
            if last:
                home.append(_settled(last, begins, is_apart and (segment.is_title or _is_new(part.text, segment))))
            if segment.is_title and is_named(part.text[segment.start : segment.end], links):
                segment = replace(segment, protected=((segment.start, segment.end),))
            is_item = _ITEM.match(opening) is not None
            if is_item or _ITEM_BELOW.search(part.text, segment.start, segment.end):
                segment = _settled(segment, not is_item, False)
            last, begins, home = segment, is_apart and is_ended, segments
            at, between = segment.end, ""
            is_ended = segment.is_title or _ENDED.search(part.text, max(segment.start, at - _NEAR), at) is not None
            is_label = is_apart and segment.ends and not segment.protected
            is_ended |= is_label and _LABEL.fullmatch(part.text, segment.start, at) is not None
        between += part.text[at : at + _MOST + 1 - len(between)]
        if part.segments or len(between) > _MOST:
            if last and not part.segments:
                home.append(_settled(last, begins, False))
                last = None
            yield from itertools.starmap(_changeable, waiting)
            waiting = []
        if last:
            waiting.append((part, segments))
        else:
            yield part
    if last:
        home.append(_settled(last, begins, len(between) <= _MOST and border.fullmatch(between) is not None))
    yield from itertools.starmap(_changeable, waiting)


def _settled(segment: Segment, begins: bool, ends: bool) -> Segment:
    begins, ends = begins and segment.begins, ends and segment.ends
    return segment if (begins, ends) == (segment.begins, segment.ends) else replace(segment, begins=begins, ends=ends)


def is_ended(text: str) -> bool:
    """Whether the end of a text is the end of a sentence."""
    return _ENDED.search(text.rstrip()) is not None


def _is_new(text: str, segment: Segment) -> bool:
    """Whether a segment opens with a capital, or with a letter of a script without capitals; not with a formula."""
    match = _OPENING.match(text, segment.start, segment.end)
    is_letter = match is not None and match[1].isalpha() and not match[1].islower()
    start, end = next(iter(segment.protected), (segment.end, segment.end))
    return is_letter and not (start == segment.start and any(map(str.isalnum, text[start:end])))


def _changeable(part: Part, segments: list[Segment]) -> Part:
    """The part with these segments, without those in which all letters are protected."""
    segments = [segment for segment in segments if not segment.protected or _has_letters(part.text, segment)]
    is_same = len(segments) == len(part.segments) and all(map(operator.is_, segments, part.segments))
    return part if is_same else replace(part, segments=tuple(segments))


def _has_letters(text: str, segment: Segment) -> bool:
    at = segment.start
    for start, end in (*segment.protected, (segment.end, segment.end)):
        if any(map(str.isalpha, text[at:start])):
            return True
        at = max(at, end)
    return False
