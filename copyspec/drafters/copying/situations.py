"""Situations: what is known about a cursor into a source, as one small number, and which follows when it is right."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.drafters.copying.context import EDIT, LIKELY, PROMPT, REFERENCE, WRITTEN
from copyspec.drafters.copying.suffix import LONGEST

LONG_RUNS = (32, 64, 128)
"""Match lengths from which a situation is a further one, beyond LONGEST: how long a copy has held says whether the
output is one that changes a word in twelve or one that changes a line in fifty."""
STRIDE = LONGEST + 1 + len(LONG_RUNS)

FAMILIES = (
    "aligned",  # in the edited text, at the least edit cost; by match length
    "aligned+1",  # at one more than the least cost
    "aligned+3",  # at two or three more
    "edit",  # elsewhere in the edited text
    "reference",
    "prompt",
    "written",
    "near reference",  # a little after the place copied from last
    "near prompt",
    "near written",
    "followed",  # in a text that was found to be followed, at the least edit cost
    "followed+1",
    "followed+3",
    "start",  # where a text that is edited may start, before any was found to be followed
    "version",  # beside a cursor in the edited text, in the first reference that is another version of that; by
    # match length: 0 too
    "second version",
    "third version",  # and all further ones
    "edit start",  # nothing matches: the start of the output; of an encoder's input: its start, and a little after;
    # behind what the output says first
    "reference start",
    "prompt start",  # where a text that is edited may start, by how likely
    "later start",  # the same, behind what the output says first
    "edit resumed",  # nothing matches: past a difference, by tokens since and position; see `resumed`
    "reference resumed",
    "prompt resumed",
    "written resumed",
    "followed resumed",
    "common",  # nothing need match: the most frequent tokens of the text so far, by rank in pairs
    "none",  # weight of the event that no cursor is right: at the root, and deeper
)
ALIGNED, ALIGNED_1, ALIGNED_3 = range(3)
FOLLOWED, FOLLOWED_1, FOLLOWED_3 = (FAMILIES.index(f"followed{excess}") for excess in ("", "+1", "+3"))
FAR_BY_KIND = {EDIT: 3, REFERENCE: 4, PROMPT: 5, WRITTEN: 6}
NEAR_BY_KIND = {EDIT: 3, REFERENCE: 7, PROMPT: 8, WRITTEN: 9}
START, VERSION = FAMILIES.index("start"), FAMILIES.index("version")
VERSIONS = 3
EDIT_START, REFERENCE_START, PROMPT_START, LATER_START = range(VERSION + VERSIONS, VERSION + VERSIONS + 4)
INPUT_START, INPUT_LATER = EDIT_START * STRIDE + 1, EDIT_START * STRIDE + 2
"""Situations of an encoder's input: no fit sees them, for recorded outputs are of decoder-only models."""
EDIT_LATER = EDIT_START * STRIDE + 3
"""The edited text may start here: behind a line or a label that the output began with."""
EDIT_LATER_DIFFERS = EDIT_LATER + 1  # one token on: the output's first token differs from the text's
EDIT_LABEL = EDIT_LATER + 2
"""What stands before the edited text in the prompt, as a label's colon does: the text may follow it here too."""
RESUMED = 16  # columns of a resumed cursor, the first of them unused
EDIT_RESUMED = LATER_START + 1
RESUMED_BY_KIND = {kind: EDIT_RESUMED + number for number, kind in enumerate((EDIT, REFERENCE, PROMPT, WRITTEN))}
FOLLOWED_RESUMED = EDIT_RESUMED + 4
COMMON, NONE = FOLLOWED_RESUMED + 1, FOLLOWED_RESUMED + 2

COUNT = len(FAMILIES) * STRIDE
NONE_AT_ROOT, NONE_DEEPER = NONE * STRIDE, NONE * STRIDE + 1


def situation(family: int, length: int) -> int:
    return family * STRIDE + length


def later_start(bucket: int, *, differs: bool = False) -> int:
    """Where an edited text may start that did not come first, by how likely. `differs`: its first tokens do."""
    return LATER_START * STRIDE + bucket - LIKELY + (STRIDE // 2 if differs else 0)


def resumed(since: int, shift: int) -> int:
    """Column of a resumed cursor: `since` tokens after the copy broke off, `shift` positions past where it did."""
    if since < 4:
        return 1 + (since - 1) * 4 + min(shift, 3)
    return 13 + (0 if shift == 0 else 1 if shift == since else 2)


def resumed_shifts(since: int) -> tuple[int, ...]:
    """Positions past the break worth trying after `since` tokens: insertion, substitution, a deletion besides."""
    return (0, 1, 2, 3) if since < 4 else (0, since, since - 1)


_AFTER_UNMATCHED = {
    EDIT_START: ALIGNED,
    REFERENCE_START: FAR_BY_KIND[REFERENCE],
    PROMPT_START: FOLLOWED,
    LATER_START: FOLLOWED,
    RESUMED_BY_KIND[EDIT]: ALIGNED,
    FOLLOWED_RESUMED: FOLLOWED,
    **{RESUMED_BY_KIND[kind]: NEAR_BY_KIND[kind] for kind in (REFERENCE, PROMPT, WRITTEN)},
}


def _next_situations() -> list[int]:
    following = []
    for state in range(COUNT):
        family, length = divmod(state, STRIDE)
        if family >= EDIT_START:
            family, length = _AFTER_UNMATCHED.get(family, FAR_BY_KIND[WRITTEN]), 0
        elif family == START:
            family = FOLLOWED
        following.append(situation(family, length + 1 if length < LONGEST else length))
    return following


NEXT_SITUATION = _next_situations()
"""The situation of a cursor after the token it stood at was right."""


def _after_substitute(state: int) -> int:
    family = state // STRIDE
    if family <= ALIGNED_3:
        return situation(ALIGNED_3, 1)
    if FOLLOWED <= family <= FOLLOWED_3:
        return situation(FOLLOWED_3, 1)
    far = {NEAR_BY_KIND[kind]: FAR_BY_KIND[kind] for kind in (REFERENCE, PROMPT)}
    return situation(far.get(family, family), 2) if family < START else 0


AFTER_SUBSTITUTE = [_after_substitute(state) for state in range(COUNT)]
"""The situation of a cursor after a substitute of the token it stood at was right; 0: of those only that match
something substitutes are thought of."""


# A cursor counts for less among many of its kind, and beside longer matches.
COMPANIES = 6  # buckets of how many cursors of a node have the same match length: 1, 2, 3-4, 5-8, 9-16, more
GAPS = 4  # buckets of how much shorter a match is than the node's longest: 0, 1, 2, more
CROWD_ROWS = (*(f"{kind} {length}" for kind in ("aligned", "other") for length in "1234"), "no match")
"""Rows of the crowd table: kind of cursor, match length (4: and more)."""
CROWD = len(CROWD_ROWS) * COMPANIES * GAPS
COMPANY = [company * GAPS for company in (0, 0, 1, 2, 2, 3, 3, 3, 3, *[4] * 8, 5)]
"""Where the columns of a bucket start, by how many cursors there are; the last stands for more too."""

LENGTH = [min(state % STRIDE, LONGEST) if state // STRIDE < EDIT_START else 0 for state in range(COUNT)]
"""Match length of each situation, at most LONGEST."""


def _crowd_row(state: int) -> int:
    family = state // STRIDE
    if family >= EDIT_START:
        row = len(CROWD_ROWS) - 1
    else:
        is_aligned = family <= ALIGNED_3 or FOLLOWED <= family <= FOLLOWED_3 or START < family < EDIT_START
        row = (0 if is_aligned else 4) + min(max(LENGTH[state], 1), 4) - 1
    return row * COMPANIES * GAPS


CROWD_ROW = [_crowd_row(state) for state in range(COUNT)]
"""Where the row of each situation starts in the crowd table."""


def crowd_columns(cursors: Sequence[tuple[int, int]]) -> dict[int, int]:
    """By match length, the column of the crowd table for a node with these cursors."""
    if len(cursors) <= 1:
        return {LENGTH[state]: 0 for _, state in cursors}
    columns: dict[int, int] = {}  # at first how many have the length
    for _, state in cursors:
        length = LENGTH[state]
        columns[length] = columns.get(length, 0) + 1
    longest, most = max(columns), len(COMPANY) - 1
    for length, count in columns.items():
        gap = longest - length
        columns[length] = COMPANY[count if count < most else most] + (gap if gap < GAPS else GAPS - 1)
    return columns
