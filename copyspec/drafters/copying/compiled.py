"""`growth.grow` in C if it was compiled when the package was installed, else in Python."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.budget import Budget
from copyspec.drafters.copying import growth, situations
from copyspec.drafters.copying.context import WRITTEN, CopyContext
from copyspec.drafters.copying.estimates import Estimates
from copyspec.drafters.copying.growth import Cursor, Grown, Voice
from copyspec.drafters.copying.native_module import COMPILED
from copyspec.drafters.copying.substitutes import COLUMNS
from copyspec.drafters.predictors.ngrams import KEY_BITS, LEAST, MOST, ORDERS, NGrams

IS_COMPILED = COMPILED is not None

CONSTANTS = (
    situations.NEXT_SITUATION,
    situations.LENGTH,
    situations.CROWD_ROW,
    situations.COMPANY,
    situations.AFTER_SUBSTITUTE,
    growth.JOINED,
    situations.GAPS,
    WRITTEN,
    growth.JOIN,
    growth.KEEP,
    KEY_BITS,
    ORDERS,
    MOST,
    growth.LEAST_SCORE,
    growth.SURE,
    growth.LATER,
    growth.LATER_COPY,
    growth.OPEN,
    growth.STILL_OPEN,
    growth.FEWEST,
    LEAST,
    COLUMNS,
    growth.LATER_WORD,
    growth.CERTAIN,
    growth.LEAST_LEFT,
)
"""Constants that the C module gets once, in the order it expects."""

BREAKING_CONSTANTS = (*CONSTANTS[:16], growth.LATER_BREAKING, *CONSTANTS[17:])
"""Constants for rows whose copies end after a few tokens: LATER_BREAKING replaces LATER_COPY at index 16."""

_TABLES: object = COMPILED and COMPILED.make_tables(*CONSTANTS)
_BREAKING_TABLES: object = COMPILED and COMPILED.make_tables(*BREAKING_CONSTANTS)


def grow(
    corpus: CopyContext,
    cursors: list[Cursor],
    estimates: Estimates,
    budget: Budget,
    ngrams: NGrams | None = None,
    voices: Sequence[Voice] = (),
) -> Grown:
    """Grow the tree of `growth.grow` with bit-identical scores; the compiled module takes a tenth of the time."""
    if COMPILED is None or (ngrams is not None and ngrams.arrays is None):
        return growth.grow(corpus, cursors, estimates, budget, ngrams, voices)
    grown = COMPILED.grow(
        _BREAKING_TABLES if estimates.copies_break else _TABLES,
        corpus.tokens,
        corpus.kinds,
        corpus.places,
        corpus.written,
        cursors,
        estimates.at_root,
        estimates.deeper,
        estimates.crowds,
        corpus.substitutes.places,
        estimates.repeated,
        estimates.none_at_root,
        estimates.none_deeper,
        estimates.language,
        estimates.common,
        corpus.common,
        budget.max_nodes,
        budget.costs,
        None if ngrams is None else ngrams.arrays,
        tuple(voices),
    )
    return Grown(*grown)
