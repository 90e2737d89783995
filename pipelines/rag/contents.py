"""Finds the lines of tables of contents, which name what stands elsewhere and answer nothing."""

from __future__ import annotations

import re
from itertools import pairwise

from copyspec.text.sentence_marks import SENTENCE_ENDS

MAX_LINE = 200  # characters of such a line

_TITLE = re.compile(
    r"(?:\d{1,2}\.?\s+)?(?:(?:table of )?contents|inhalt(?:sverzeichnis)?|sommaire|table des matières|índice|indice)",
    re.IGNORECASE,
)
_PAGE = re.compile(r"(?:(\d{1,4})|[ivxl]{1,7})\Z")
_DOTS = re.compile(r"(?:[.…·_‥]\s?){3,}\Z|[…‥]\s?\Z")
_NUMBERED = re.compile(r"(?:\d{1,2}\.)*\d{1,2}[.)]?\s+\S|(?:chapter|part|section|appendix)\s", re.IGNORECASE)
_LINK = re.compile(r"(?:[-*+•]\s+|\d{1,2}[.)]\s+)?\[[^\[\]]+\]\(#[^()\s]*\)")


def lines_of_contents(text: str) -> frozenset[int]:
    """Return where the lines of tables of contents begin.

    They are links to places in the same text, and two or more lines whose page numbers never fall, after dots or below
    a title such as "Contents". Below such a title, numbered lines need no page."""
    found: set[int] = set()
    run: list[tuple[int, int]] = []  # lines and pages, 0 without one
    is_below, at = False, 0
    for line in [*text.splitlines(keepends=True), ""]:
        place, at, bare = at, at + len(line), line.strip()
        entry = _entry(bare, is_below) if len(bare) <= MAX_LINE else None
        if _LINK.fullmatch(bare):
            found.add(place)
        elif entry is not None:
            run.append((place, entry))
            continue
        pages = [page for _, page in run if page]
        if len(run) > 1 - is_below * bool(pages) and all(first <= second for first, second in pairwise(pages)):
            found.update(place for place, _ in run)
        run.clear()
        if bare and not bare.strip("=-~*_"):
            continue  # an underline
        if bare:
            is_below = _TITLE.fullmatch(bare.strip("#*=_: \t")) is not None
            found.update({place} if is_below else ())
    return frozenset(found)


def _entry(line: str, is_below: bool) -> int | None:
    """The page of a line of a table of contents, 0 without a number; None for other lines. `is_below`: below a title of
    one."""
    last = line.rpartition(" ")[2].lstrip(".…·_‥\t")
    page = _PAGE.match(last)
    before = line[: len(line) - len(last)].rstrip()
    if page and any(map(str.isalpha, before)) and (is_below or _DOTS.search(before)):
        return int(page[1] or 0)
    return 0 if is_below and _NUMBERED.match(line) and not line.endswith(tuple(SENTENCE_ENDS)) else None
