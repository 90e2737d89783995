"""Subtitles in SubRip (`.srt`), WebVTT (`.vtt`) and SubViewer (`.sbv`): cues are text; times and settings are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from .reading import lines_of
from .whole import Prose, within

FORBIDDEN = "<>{}\\"

_TIMES = re.compile(
    r"\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}"
    r"|\d+:\d{2}:\d{2}\.\d{3},\d+:\d{2}:\d{2}\.\d{3}\s*$"
)
_MARKUP = re.compile(r"<[^<>\n]{0,200}>|\{\\[^{}\n]{0,200}\}|\{[a-zA-Z]:[^{}\n]{0,80}\}")
_FIXED = re.compile(r"\\[Nnh]|&(?:[a-zA-Z]{1,40}|#\w{1,10});")
_SPEAKER = re.compile(r"[ \t]*(?:[-–—][ \t]*)?(?:[A-Z][A-Z .'-]{0,40}:[ \t]+|>>[ \t]*)?")
BORDER = re.compile(
    r"(?:[ \t]*(?:WEBVTT[^\r\n]*|[\d:.,]+[ \t]*(?:-->[^\r\n]*)?)?(?:\r\n|\n|\r))*"
    rf"(?:{_SPEAKER.pattern})(?:{_MARKUP.pattern})*"
)
"""Between two cues: a sentence may go on in the next."""
_NEXT_SPEAKER = re.compile(r"(?<=[\r\n])(?=[ \t]{0,8}[-–—])")


def cues(text: str) -> Iterator[Prose]:
    """Yield the text of each cue. One that does not end like a sentence continues in the next and gets no full stop."""
    at = previous = 0  # starts of this line and the one before
    start, is_open = 0, False
    for line in lines_of(text):
        if not line.strip():
            yield from _prose(text, start, at, is_open)
            is_open = False
        elif _TIMES.match(line):
            if is_open:
                # Leave out the number of the next cue if no blank line precedes it.
                end = previous if previous >= start and text[previous:at].strip().isdigit() else at
                yield from _prose(text, start, end, is_open)
            start, is_open = at + len(line), True
        previous, at = at, at + len(line)
    yield from _prose(text, start, at, is_open)


def _prose(text: str, start: int, end: int, is_open: bool) -> Iterator[Prose]:
    if not is_open or start >= end:
        return
    if speaker := _SPEAKER.match(text, start, end):
        start = speaker.end()
    markup, fixed = ([found.span() for found in each.finditer(text, start, end)] for each in (_MARKUP, _FIXED))
    # With two speakers in a cue, each line is a sentence of its own.
    lines = [found.end() for found in _NEXT_SPEAKER.finditer(text, start, end)]
    for first, last in pairwise([start, *lines, end]):
        yield Prose(first, last, within(markup, first, last), within(fixed, first, last), ends=False)
