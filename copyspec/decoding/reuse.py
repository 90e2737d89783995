"""Reuse of keys and values between rows: loads prompts of new rows from the prefix cache, and stores rows in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from copyspec.common.sequences import common_prefix
from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.hooks.model_state import ModelState
from copyspec.targets.prefixes import BLOCK_TOKENS, Layers, PrefixCache, PrefixSession
from copyspec.tree import EMPTY

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.decoding.row import Row
    from copyspec.targets.base import Session, Target

SAVED_TOKENS = 2 * BLOCK_TOKENS
"""Minimum number of tokens that other rows need not read if a common prefix is read once, in a pass of its own."""

ROOM = 64
"""Free slots that are allocated after the prompt in a session that loads a cached prefix."""


def load(rows: Sequence[Row], session: Session, target: Target) -> bool:
    """Load what new rows begin with: their own pasts, or the cached prefixes of their prompts. Returns whether that
    took a pass of the model."""
    model: PreTrainedModel | None = getattr(target, "model", None)
    if model is None or not getattr(session, "keeps_prefixes", False):
        if any(row.request.past is not None for row in rows):
            raise ValueError(f"a batch of {len(rows)} cannot begin with keys and values here: leave out the cache")
        return False
    prefixes: list[Sequence[Layers]] = [[past.layers] if (past := row.request.past) is not None else [] for row in rows]
    passed = False
    if any(row.request.prefixes is not None for row in rows):
        state = ModelState(model)
        passed = len(rows) > 1 and _read_shared(rows, state, target)
        for index, row in enumerate(rows):
            if (cache := row.request.prefixes) is not None and not prefixes[index]:
                row.model_state = state
                prefixes[index] = cache.find(state, row.uncached, row.request.most_kept)
    if any(prefixes):
        before = [past.before if (past := row.request.past) is not None else 0 for row in rows]
        room = max(len(row.uncached) + more for row, more in zip(rows, before, strict=True)) + ROOM
        cast("PrefixSession", session).load(prefixes, room)
        for row, length, more in zip(rows, session.lengths[-len(rows) :], before, strict=True):
            row.uncached = row.uncached[length - more :]
            row.meter.cached_tokens = length
    return passed


def check_state(rows: Sequence[Row], target: Target) -> None:
    """Stop caching rows whose model has other weights or adapters than when they began; call before each pass."""
    state: ModelState | None = None
    for row in rows:
        if row.model_state is not None:
            state = state or ModelState(target.model)  # type: ignore[attr-defined]
            if row.model_state != state:
                row.model_state = None


def store(rows: Sequence[Row], session: Session, target: Target, chosen: Sequence[bool]) -> None:
    """Store the keys and values of the chosen rows in their prefix caches."""
    for index, row in enumerate(rows):
        cache, state = row.request.prefixes, row.model_state
        if cache is not None and state is not None and chosen[index]:
            tokens, most = [*target.start(row.request.prompt), *row.output], row.request.most_kept
            _add(cache, state, tokens, most, cast("PrefixSession", session), index)
            if most is not None and session.lengths[index] >= most:
                row.model_state = None  # there is no more to store: later passes need not check the state


def hand_over(rows: Sequence[Row], session: Session) -> None:
    """Give keys and values of rows that have ended to those who asked for them."""
    for index, row in enumerate(rows):
        take = row.request.take
        if take is not None and row.finish is not None and getattr(session, "keeps_prefixes", False):
            take(cast("PrefixSession", session).read(index, 0, session.lengths[index]))


def _add(
    cache: PrefixCache,
    state: ModelState,
    tokens: Sequence[int],
    most: int | None,
    session: PrefixSession,
    row: int,
) -> None:
    cache.add(state, tokens[: session.lengths[row]], lambda start, stop: session.read(row, start, stop), most)


def _read_shared(rows: Sequence[Row], state: ModelState, target: Target) -> bool:
    """Read a long new prefix that all prompts share in one pass, and cache it. Returns whether a pass was made."""
    cache, most = rows[0].request.prefixes, rows[0].request.most_kept
    if cache is None or any(row.request.prefixes is not cache or row.request.most_kept != most for row in rows):
        return False
    first = rows[0].uncached
    shared = min(min(common_prefix(first, row.uncached), len(row.uncached) - 1) for row in rows)
    if most is not None and most <= shared:
        shared = most
    else:
        shared -= shared % BLOCK_TOKENS
    prefix = cache.find(state, first[: shared + 1], most)
    known = min(shared, BLOCK_TOKENS * len(prefix))
    if (shared - known) * (len(rows) - 1) < SAVED_TOKENS:
        return False
    session = target.open([first])
    try:
        with inference_mode(True):
            if prefix:
                cast("PrefixSession", session).load([prefix], shared + ROOM)
            session.score([first[session.lengths[0] : shared]], [EMPTY])
            session.keep([()])
        _add(cache, state, first[:shared], most, cast("PrefixSession", session), 0)
    finally:
        session.close()
    return True
