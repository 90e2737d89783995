"""The steps of copying that are compiled when the package is installed: each in C, or else in Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from copyspec.budget import Budget
from copyspec.drafters.copying import chains, growth, learning, resumptions, situations
from copyspec.drafters.copying.chains import Chain
from copyspec.drafters.copying.context import WRITTEN, CopyContext
from copyspec.drafters.copying.estimates import DECAY as RECORD_DECAY
from copyspec.drafters.copying.estimates import MAX_FACTOR, PRIOR_COUNT, PRIOR_COUNT_WRONG, SHORT, Estimates
from copyspec.drafters.copying.growth import Cursor, Grown, Voice
from copyspec.drafters.copying.native_module import COMPILED
from copyspec.drafters.copying.substitutes import COLUMNS, KEPT, SEEN
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

_RATES: object = COMPILED and COMPILED.make_rates(
    RECORD_DECAY, PRIOR_COUNT, PRIOR_COUNT_WRONG, MAX_FACTOR, situations.STRIDE, SHORT, SEEN, KEPT
)

_ODDS: object = COMPILED and COMPILED.make_odds(
    resumptions.WEIGHTS, resumptions.EXPECTED, resumptions.SHIFTS, situations.RESUMED_ONE, situations.STRIDE
)


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


def best_chain(grown: Grown, corpus: CopyContext, estimates: Estimates, length: int) -> Chain:
    """`chains.best_chain`."""
    if COMPILED is None:
        return chains.best_chain(grown, corpus, estimates, length)
    found: Chain = COMPILED.best_chain(
        _TABLES,
        corpus.tokens,
        estimates.deeper,
        estimates.none_deeper,
        grown.tokens,
        grown.parents,
        grown.scores,
        grown.positions,
        grown.cursors,
        length,
    )
    return found


def walk(grown: Grown, tokens: Sequence[int], corpus: CopyContext, estimates: Estimates) -> tuple[int, int]:
    """`learning.walk`."""
    if COMPILED is None:
        return learning.walk(grown, tokens, corpus, estimates)
    found: tuple[int, int] = COMPILED.walk(
        _RATES,
        tokens,
        grown.tokens,
        grown.parents,
        grown.scores,
        grown.positions,
        grown.cursors,
        corpus.tokens,
        corpus.output_start,
        corpus.substitutes.places,
        estimates.records,
        estimates.priors,
        estimates.at_root,
        estimates.deeper,
    )
    return found


def columns(tokens: list[int], anchor: int, since: int, shifts: list[int], ngrams: NGrams | None) -> Iterable[int]:
    """`resumptions.columns`."""
    if COMPILED is None or ngrams is None or ngrams.arrays is None:
        return resumptions.columns(tokens, anchor, since, shifts, ngrams)
    found: list[int] = COMPILED.columns(
        _TABLES, _ODDS, tokens, anchor, since, shifts, ngrams.small_words, ngrams.word_pieces, ngrams.arrays
    )
    return found
