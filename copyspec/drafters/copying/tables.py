"""Constants that the compiled steps of copying get once."""

from __future__ import annotations

from copyspec.drafters.copying import growth, resumptions, situations
from copyspec.drafters.copying.context import WRITTEN
from copyspec.drafters.copying.estimates import DECAY as RECORD_DECAY
from copyspec.drafters.copying.estimates import MAX_FACTOR, PRIOR_COUNT, PRIOR_COUNT_WRONG, SHORT
from copyspec.drafters.copying.native_module import COMPILED
from copyspec.drafters.copying.substitutes import COLUMNS, KEPT, SEEN
from copyspec.drafters.predictors.ngrams import KEY_BITS, LEAST, MOST, ORDERS

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
"""In the order that the C module expects."""

BREAKING_CONSTANTS = (*CONSTANTS[:16], growth.LATER_BREAKING, *CONSTANTS[17:])
"""Constants for rows whose copies end after a few tokens: LATER_BREAKING replaces LATER_COPY at index 16."""

TABLES: object = COMPILED and COMPILED.make_tables(*CONSTANTS)
BREAKING_TABLES: object = COMPILED and COMPILED.make_tables(*BREAKING_CONSTANTS)

RATES: object = COMPILED and COMPILED.make_rates(
    RECORD_DECAY, PRIOR_COUNT, PRIOR_COUNT_WRONG, MAX_FACTOR, situations.STRIDE, SHORT, SEEN, KEPT
)

ODDS: object = COMPILED and COMPILED.make_odds(
    resumptions.WEIGHTS, resumptions.EXPECTED, resumptions.SHIFTS, situations.RESUMED_ONE, situations.STRIDE
)
