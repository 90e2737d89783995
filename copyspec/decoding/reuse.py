"""Reuse of keys and values between rows: loads prompts of new rows from the prefix cache, and stores rows in it.

A recurrent state is that of one length, so that prompts of recurrent models are read up to stops, where it is stored:
where a prompt leaves what is cached, and its last whole block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from copyspec.common.sequences import common_prefix
from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.hooks.model_state import ModelState
from copyspec.targets.hooks.recurrence import limits_prompts
from copyspec.targets.rows.prefixes import BLOCK_TOKENS, Prefix, PrefixCache, PrefixSession
from copyspec.tree import EMPTY

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.decoding.row import Row
    from copyspec.targets.base import Session, Target

SAVED_TOKENS = 2 * BLOCK_TOKENS
"""Minimum number of tokens that other rows need not read if a common prefix, or one up to a stop, is read in a pass of
its own."""

ROOM = 64
"""Free slots that are allocated after the prompt in a session that loads a cached prefix."""


def load(rows: Sequence[Row], session: Session, target: Target) -> bool:
    """Load what new rows begin with: their own pasts, or the cached prefixes of their prompts. Returns whether that
    took a pass of the model."""
    model: PreTrainedModel | None = getattr(target, "model", None)
    keeps = model is not None and getattr(session, "keeps_prefixes", False)
    is_recurrent = keeps and cast("PrefixSession", session).is_recurrent
    if not keeps or is_recurrent:
        if any(row.request.past is not None for row in rows):
            raise ValueError(f"a batch of {len(rows)} cannot begin with keys and values here: leave out the cache")
        if not keeps:
            return False
    prefixes = [past.prefix() if (past := row.request.past) is not None else Prefix() for row in rows]
    passed = False
    if any(row.request.prefixes is not None for row in rows):
        state = ModelState(cast("PreTrainedModel", model))
        passed = len(rows) > 1 and _read_shared(rows, state, target, is_recurrent=is_recurrent)
        for index, row in enumerate(rows):
            if (cache := row.request.prefixes) is not None and not prefixes[index].length:
                row.model_state = state
                if is_recurrent and not _is_as_read(row, len(row.uncached), target):
                    continue
                prefixes[index], shared = cache.find(state, row.uncached, with_states=is_recurrent)
                if is_recurrent:
                    row.stops = _stops(row, prefixes[index].length, shared)
    if any([prefix.length for prefix in prefixes]):
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
                row.model_state, row.stops = None, []


def store(rows: Sequence[Row], session: Session, target: Target, chosen: Sequence[bool]) -> None:
    """Store the keys and values of the chosen rows in their prefix caches."""
    for index, row in enumerate(rows):
        cache, state, is_at_stop = row.request.prefixes, row.model_state, False
        if row.stops and row.stops[0] == session.lengths[index]:
            row.stops, is_at_stop = row.stops[1:], True
        if cache is not None and state is not None and chosen[index]:
            tokens, most = [*target.start(row.request.prompt), *row.output], row.request.most_kept
            prefixes = cast("PrefixSession", session)
            is_wanted = is_at_stop or (row.finish is not None and most is None)
            if not prefixes.is_recurrent or (is_wanted and _is_as_read(row, session.lengths[index], target)):
                _add(cache, state, tokens, most, prefixes, index)
            if most is not None and session.lengths[index] >= most:
                row.model_state = None  # there is no more to store: later passes need not check the state


def hand_over(rows: Sequence[Row], session: Session) -> None:
    """Give keys and values of rows that have ended to those who asked for them."""
    for index, row in enumerate(rows):
        take = row.request.take
        if take is not None and row.finish is not None and getattr(session, "keeps_prefixes", False):
            # What a recurrent model keeps besides is nothing that it could begin with (`load`).
            take(cast("PrefixSession", session).read(index, 0, session.lengths[index]))


def _is_as_read(row: Row, length: int, target: Target) -> bool:
    """Whether the recurrent states of a row after so many tokens are those of a prompt of these tokens."""
    return length <= len(row.request.prompt) or not limits_prompts(target.model)  # type: ignore[attr-defined]


def _add(
    cache: PrefixCache,
    state: ModelState,
    tokens: Sequence[int],
    most: int | None,
    session: PrefixSession,
    row: int,
) -> None:
    tokens = tokens[: session.lengths[row]]
    if not session.is_recurrent or len(tokens) >= BLOCK_TOKENS:
        states = session.states(row) if session.is_recurrent else ()
        cache.add(state, tokens, lambda start, stop: session.read(row, start, stop), most, states)


def _stops(row: Row, length: int, shared: int) -> list[int]:
    """The lengths at which states of a row are stored while its prompt is read. `length`: what it begins with;
    `shared`: up to where keys and values are cached."""
    most, last = row.request.most_kept, len(row.uncached) - 1
    end = most if most is not None and most <= last else last - last % BLOCK_TOKENS
    stops = list[int]()
    for stop in (min(shared, end), end):
        if stop - (stops[-1] if stops else length) >= SAVED_TOKENS:
            stops.append(stop)
    return stops


def _read_shared(rows: Sequence[Row], state: ModelState, target: Target, *, is_recurrent: bool) -> bool:
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
    wanted = first[: shared + 1]
    prefix, _ = cache.find(state, wanted, with_states=is_recurrent)
    if (shared - prefix.length) * (len(rows) - 1) < SAVED_TOKENS:
        return False
    session = target.open([first])
    try:
        with inference_mode(True):
            if prefix.length:
                cast("PrefixSession", session).load([prefix], shared + ROOM)
            session.score([first[session.lengths[0] : shared]], [EMPTY])
            session.keep([()])
        _add(cache, state, first[:shared], most, cast("PrefixSession", session), 0)
    finally:
        session.close()
    return True
