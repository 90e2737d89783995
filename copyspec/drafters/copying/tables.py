"""Constants that the compiled steps of copying get once."""

from __future__ import annotations

from typing import Any

from copyspec.drafters.copying import growth, resumptions, situations
from copyspec.drafters.copying.corpus import WRITTEN
from copyspec.drafters.copying.estimates import DECAY as RECORD_DECAY
from copyspec.drafters.copying.estimates import MAX_FACTOR, PRIOR_COUNT, PRIOR_COUNT_WRONG, SHORT
from copyspec.drafters.copying.native_module import COMPILED
from copyspec.drafters.copying.substitutes import COLUMNS, KEPT, SEEN
from copyspec.drafters.predictors.ngrams import KEY_BITS, MAX_CONTINUATIONS, MIN_SHARE, ORDERS


def _constants(copy_priority: float) -> tuple[Any, ...]:
    """In the order that the C module expects."""
    return (
        situations.NEXT_SITUATION,
        situations.LENGTH,
        situations.CROWD_ROW,
        situations.COMPANY,
        situations.AFTER_SUBSTITUTE,
        growth.JOINED,
        situations.GAPS,
        WRITTEN,
        growth.MAX_JOINING,
        growth.MAX_CURSORS,
        KEY_BITS,
        ORDERS,
        MAX_CONTINUATIONS,
        growth.MIN_SCORE,
        growth.SURE_WEIGHT,
        growth.CHILD_PRIORITY,
        copy_priority,
        growth.NGRAM_MIN_MISS_PROB_ROOT,
        growth.NGRAM_MIN_MISS_PROB,
        growth.MIN_NGRAM_SCORE,
        MIN_SHARE,
        COLUMNS,
        growth.PREDICTED_PRIORITY,
        growth.TABLE_MIN_MISS_PROB,
        growth.MISS_PROB_FLOOR,
    )


CONSTANTS = _constants(growth.COPY_PRIORITY)
BREAKING_CONSTANTS = _constants(growth.COPY_PRIORITY_SHORT)
"""Constants for rows whose copies end after a few tokens."""

TABLES: object = COMPILED and COMPILED.make_tables(*CONSTANTS)
BREAKING_TABLES: object = COMPILED and COMPILED.make_tables(*BREAKING_CONSTANTS)

RATES: object = COMPILED and COMPILED.make_rates(
    RECORD_DECAY, PRIOR_COUNT, PRIOR_COUNT_WRONG, MAX_FACTOR, situations.STRIDE, SHORT, SEEN, KEPT
)

ODDS: object = COMPILED and COMPILED.make_odds(
    resumptions.WEIGHTS, resumptions.EXPECTED, resumptions.SHIFTS, situations.RESUMED_ONE, situations.STRIDE
)
