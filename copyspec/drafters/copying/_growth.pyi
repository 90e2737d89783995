"""Types of the compiled module `_growth` (`native/module.c`), which `drafter.py` and others call."""

from array import array
from collections.abc import Callable, Sequence

from copyspec.drafters.copying.alignment import Alignment
from copyspec.tree import Origin

VERSION: int

def align(
    band: int, move_every: int, soon: int, max_excess: int, source: Sequence[int], free_prefix: int = ..., /
) -> Alignment: ...
def arrange(
    tokens: list[int],
    parents: list[int],
    scores: list[float],
    positions: list[int],
    count: int,
    starts: list[int],
    sources: list[int],
    lengths: list[int],
    output_start: int,
    end: int,
    origin: type[Origin],
    /,
) -> tuple[list[int], list[int], list[float], list[Origin | None]]: ...
def best_chain(
    tables: object,
    text: list[int],
    deeper: list[float],
    miss_deeper: float,
    tokens: list[int],
    parents: list[int],
    scores: list[float],
    positions: list[int],
    cursors: list[list[tuple[int, int]]],
    length: int,
    /,
) -> tuple[list[int], list[float], list[int]]: ...
def columns(
    tables: object,
    odds: object,
    text: list[int],
    anchor: int,
    since: int,
    shifts: list[int],
    small_words: frozenset[int],
    word_pieces: frozenset[int],
    ngrams: tuple[dict[int, int], array[int], array[int], array[int], array[float], array[float]],
    /,
) -> list[int]: ...
def make_odds(weights: list[float], expected: tuple[float, ...], shifts: int, one: int, stride: int, /) -> object: ...
def extend(
    text: list[int],
    written: dict[int, list[int]],
    counts: dict[int, int],
    common: list[int],
    tokens: Sequence[int],
    own_count: int,
    most: int,
    /,
) -> None: ...
def walk(
    rates: object,
    tokens: Sequence[int],
    drafted: list[int],
    parents: list[int],
    scores: list[float],
    positions: list[int],
    cursors: list[list[tuple[int, int]]],
    text: list[int],
    output_start: int,
    substitutes: dict[int, int],
    records: array[float],
    priors: list[float],
    at_root: list[float],
    deeper: list[float],
    /,
) -> tuple[int, int]: ...
def make_rates(
    decay: float,
    prior_count: float,
    prior_count_wrong: float,
    max_factor: float,
    stride: int,
    short: int,
    seen: int,
    kept: int,
    /,
) -> object: ...
def index(text: list[int], places: dict[int, list[int]], start: int, stop: int, /) -> None: ...
def make_tables(
    following: list[int],
    length: list[int],
    crowd_row: list[int],
    company: list[int],
    after_substitute: list[int],
    joined: list[int],
    gaps: int,
    written: int,
    max_joining: int,
    max_cursors: int,
    key_bits: int,
    orders: int,
    max_continuations: int,
    min_score: float,
    sure_weight: float,
    child_priority: float,
    copy_priority: float,
    ngram_min_miss_prob_root: float,
    ngram_min_miss_prob: float,
    min_ngram_score: float,
    min_share: float,
    columns: int,
    predicted_priority: float,
    table_min_miss_prob: float,
    miss_prob_floor: float,
    /,
) -> object: ...
def grow(
    tables: object,
    text: list[int],
    kinds: list[int],
    places: dict[int, list[int]],
    written: dict[int, list[int]],
    cursors: list[tuple[int, int]],
    at_root: list[float],
    deeper: list[float],
    crowds: Sequence[float],
    substitutes: dict[int, int],
    repeated: Sequence[float],
    miss_at_root: float,
    miss_deeper: float,
    ngram_scale: float,
    common_weights: list[float],
    common: list[int],
    max_nodes: int,
    costs: Sequence[float],
    ngrams: tuple[dict[int, int], array[int], array[int], array[int], array[float], array[float]] | None,
    predictors: tuple[
        tuple[Callable[[tuple[int, ...]], Sequence[tuple[int, float]] | None], Callable[[float], float], bool], ...
    ],
    /,
) -> tuple[
    list[int],
    list[int],
    list[float],
    list[int],
    list[list[tuple[int, int]]],
    set[int],
    float,
    int,
    Sequence[tuple[int, float]],
    float,
    list[int],
    list[tuple[int, float, dict[int, float], list[int]]],
]: ...
