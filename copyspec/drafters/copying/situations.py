"""Situations: the features of a cursor (family and match length) as one small number, which indexes its weight.

    aligned with 5 matching tokens = 0 * STRIDE + 5
    near reference with 64 matching tokens = 7 * STRIDE + LONGEST + 2  # 64 is the second of LONG_RUNS
    edit resumed at odds of 1 = 21 * STRIDE + RESUMED_ONE  # by its odds, since nothing matches

Also: the situation that follows when a cursor was right, and factors for cursors among many others (`crowd_columns`).
"""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.drafters.copying.corpus import EDIT, LIKELY, LONGEST, PROMPT, REFERENCE, WRITTEN

LONG_RUNS = (32, 64, 128)
"""Match lengths beyond LONGEST that get situations of their own: long copies tell an output that changes one word in
twelve from one that changes one line in fifty."""
STRIDE = LONGEST + 1 + len(LONG_RUNS)

FAMILIES = (
    "aligned",  # in the edited text, at the position of least edit cost; by match length
    "aligned+1",  # at an edit cost of one more
    "aligned+3",  # at an edit cost of two or three more
    "edit",  # elsewhere in the edited text
    "reference",
    "prompt",
    "written",
    "near reference",  # a little after the end of the last copy
    "near prompt",
    "near written",
    "followed",  # in a text of the prompt that the output was found to follow, at the least edit cost
    "followed+1",
    "followed+3",
    "start",  # at a possible start of the edited text, before any text was found to be followed
    "version",  # in the first reference that is a version of the edited text, beside a cursor there; by match length
    # from 0
    "second version",
    "third version",  # and all further ones
    "edit start",  # without a match: the edited text's start for the first token; at or a little after the start of an
    # encoder's input; or after an introduction
    "reference start",
    "prompt start",  # a possible start of the edited text, by bucket of its odds
    "later start",  # the same, after an introduction in the output
    "edit resumed",  # without a match: after a difference, by its odds; see `resumptions`
    "reference resumed",  # by tokens since the difference and position; see `resumed`
    "prompt resumed",
    "written resumed",
    "followed resumed",  # by its odds, as "edit resumed"
    "common",  # without a match: the most frequent tokens of the text so far, by rank in pairs
    "miss",  # weight of the event that no cursor is right: at the root, and deeper
)
ALIGNED, ALIGNED_1, ALIGNED_3 = range(3)
FOLLOWED, FOLLOWED_1, FOLLOWED_3 = (FAMILIES.index(f"followed{excess}") for excess in ("", "+1", "+3"))
FAR_BY_KIND = {EDIT: 3, REFERENCE: 4, PROMPT: 5, WRITTEN: 6}
NEAR_BY_KIND = {EDIT: 3, REFERENCE: 7, PROMPT: 8, WRITTEN: 9}
START, VERSION = FAMILIES.index("start"), FAMILIES.index("version")
VERSIONS = 3
EDIT_START, REFERENCE_START, PROMPT_START, LATER_START = range(VERSION + VERSIONS, VERSION + VERSIONS + 4)
UNMATCHED = EDIT_START * STRIDE
"""First situation of the families of cursors that were found without a match; all further ones are of such families."""
INPUT_START, INPUT_LATER = EDIT_START * STRIDE + 1, EDIT_START * STRIDE + 2
"""Situations of an encoder's input. They are not fitted, because recorded outputs are of decoder-only models."""
EDIT_LATER = EDIT_START * STRIDE + 3
"""Start of the edited text after an introduction (a line or a label) in the output."""
EDIT_LATER_DIFFERS = EDIT_LATER + 1  # one token further: the text's first token was replaced
EDIT_LABEL = EDIT_LATER + 2
"""What precedes the edited text in the prompt, such as a label's colon: the text may follow it here too."""
RESUMED = 16  # columns of the "resumed" families that are not by odds; the first is unused
RESUMED_ONE = 12  # of those by odds: the column of odds 1; the odds double with every second column
EDIT_RESUMED = LATER_START + 1
RESUMED_BY_KIND = {kind: EDIT_RESUMED + number for number, kind in enumerate((EDIT, REFERENCE, PROMPT, WRITTEN))}
FOLLOWED_RESUMED = EDIT_RESUMED + 4
COMMON, MISS = FOLLOWED_RESUMED + 1, FOLLOWED_RESUMED + 2

COUNT = len(FAMILIES) * STRIDE
MISS_AT_ROOT, MISS_DEEPER = MISS * STRIDE, MISS * STRIDE + 1


def situation_of(family: int, length: int) -> int:
    """Return the situation of a family, by its index in FAMILIES, and a match length or other column."""
    return family * STRIDE + length


def later_start(bucket: int, *, differs: bool = False) -> int:
    """Return the situation of a "later start", by odds bucket. `differs`: the text's first tokens were replaced."""
    return LATER_START * STRIDE + bucket - LIKELY + (STRIDE // 2 if differs else 0)


def resumed(since: int, shift: int) -> int:
    """Return the column of a resumed cursor: `since` tokens after the copy broke off, `shift` positions further."""
    if since < 4:
        return 1 + (since - 1) * 4 + min(shift, 3)
    return 13 + (0 if shift == 0 else 1 if shift == since else 2)


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
    for situation in range(COUNT):
        family, length = divmod(situation, STRIDE)
        if family >= EDIT_START:
            family, length = _AFTER_UNMATCHED.get(family, FAR_BY_KIND[WRITTEN]), 0
        elif family == START:
            family = FOLLOWED
        following.append(situation_of(family, length + 1 if length < LONGEST else length))
    return following


NEXT_SITUATION = _next_situations()
"""The situation of a cursor after its token was right."""


def _after_substitute(situation: int) -> int:
    family = situation // STRIDE
    if family <= ALIGNED_3:
        return situation_of(ALIGNED_3, 1)
    if FOLLOWED <= family <= FOLLOWED_3:
        return situation_of(FOLLOWED_3, 1)
    far = {NEAR_BY_KIND[kind]: FAR_BY_KIND[kind] for kind in (REFERENCE, PROMPT)}
    return situation_of(far.get(family, family), 2) if family < START else 0


AFTER_SUBSTITUTE = [_after_substitute(situation) for situation in range(COUNT)]
"""The situation of a cursor after a substitute of its token was right; 0: no substitutes, as the cursor matches
nothing."""


# The crowd table: a cursor weighs less among many of the same match length, and beside longer matches.
COMPANIES = 6  # buckets of the number of a node's cursors with the same match length: 1, 2, 3-4, 5-8, 9-16, more
GAPS = 4  # buckets of the difference to the node's longest match: 0, 1, 2, more
CROWD_ROWS = (*(f"{kind} {length}" for kind in ("aligned", "other") for length in "1234"), "no match")
"""Rows of the crowd table: kind of cursor and match length (4: or more)."""
CROWD = len(CROWD_ROWS) * COMPANIES * GAPS
COMPANY = [company * GAPS for company in (0, 0, 1, 2, 2, 3, 3, 3, 3, *[4] * 8, 5)]
"""First column of each bucket, by number of cursors; the last entry is for all larger numbers."""

LENGTH = [min(situation % STRIDE, LONGEST) if situation // STRIDE < EDIT_START else 0 for situation in range(COUNT)]
"""Match length of each situation, at most LONGEST."""


def _crowd_row(situation: int) -> int:
    family = situation // STRIDE
    if family >= EDIT_START:
        row = len(CROWD_ROWS) - 1
    else:
        is_aligned = family <= ALIGNED_3 or FOLLOWED <= family <= FOLLOWED_3 or START < family < EDIT_START
        row = (0 if is_aligned else 4) + min(max(LENGTH[situation], 1), 4) - 1
    return row * COMPANIES * GAPS


CROWD_ROW = [_crowd_row(situation) for situation in range(COUNT)]
"""Index of the first entry of each situation's row in the crowd table."""


def crowd_columns(cursors: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return, by match length, the column of the crowd table for a node with these cursors."""
    if len(cursors) <= 1:
        return {LENGTH[situation]: 0 for _, situation in cursors}
    columns: dict[int, int] = {}  # first holds the number of cursors of each length
    for _, situation in cursors:
        length = LENGTH[situation]
        columns[length] = columns.get(length, 0) + 1
    longest, most = max(columns), len(COMPANY) - 1
    for length, count in columns.items():
        gap = longest - length
        columns[length] = COMPANY[count if count < most else most] + (gap if gap < GAPS else GAPS - 1)
    return columns
