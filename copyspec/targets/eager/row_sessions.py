"""Sessions that process rows one at a time, for models that cannot batch rows of different lengths."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from copyspec.targets.base import Scores
from copyspec.targets.rows.passes import check_rows

if TYPE_CHECKING:
    from copyspec.targets.base import RowStates, Session
    from copyspec.targets.hooks.recurrence import State
    from copyspec.targets.rows.prefixes import Layers, Prefix, PrefixSession
    from copyspec.tree import DraftTree


class RowSessions:
    """A session composed of one-row sessions, which are scored in turn."""

    runner = "eager"
    is_settled = True
    computes = None
    most_tokens = sys.maxsize

    def __init__(
        self, make: Callable[[Sequence[int], int], Session], prompts: Sequence[Sequence[int]], new_tokens: int = 0
    ) -> None:
        """`make`: opens the session of one row, with its prompt and the number of its new tokens."""
        self._make = make
        self._sessions: list[Session] = []
        self.add(prompts, new_tokens)

    @property
    def most_nodes(self) -> int:
        return min([session.most_nodes for session in self._sessions], default=sys.maxsize)

    @property
    def lengths(self) -> Sequence[int]:
        return [session.lengths[0] for session in self._sessions]

    @property
    def keeps_prefixes(self) -> bool:
        """Whether all rows' sessions can load and store prefixes."""
        return all(getattr(session, "keeps_prefixes", False) for session in self._sessions)

    @property
    def is_recurrent(self) -> bool:
        """Whether rows have recurrent states."""
        return any(cast("PrefixSession", session).is_recurrent for session in self._sessions)

    def load(self, prefixes: Sequence[Prefix], room: int) -> None:
        for session, prefix in zip(self._sessions[-len(prefixes) :], prefixes, strict=True):
            cast("PrefixSession", session).load([prefix], room)

    def read(self, row: int, start: int, stop: int) -> Layers:
        return cast("PrefixSession", self._sessions[row]).read(0, start, stop)

    def states(self, row: int) -> Sequence[State]:
        return cast("PrefixSession", self._sessions[row]).states(0)

    def score(self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> Scores:
        check_rows(len(self._sessions), uncached, trees)
        parts = zip(self._sessions, uncached, trees, strict=False)
        return Scores.of_rows([session.score([ids], [tree])[0] for session, ids, tree in parts])

    def score_with_states(
        self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[Scores, Sequence[RowStates] | None]:
        check_rows(len(self._sessions), uncached, trees)
        parts = zip(self._sessions, uncached, trees, strict=False)
        scores, states = zip(
            *[session.score_with_states([ids], [tree], layers) for session, ids, tree in parts], strict=True
        )
        row_states = [state[0] for state in states if state is not None]
        return Scores.of_rows([score[0] for score in scores]), row_states if len(row_states) == len(scores) else None

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        for session, path in zip(self._sessions, paths, strict=False):
            session.keep([path])

    def trim(self, lengths: Sequence[int]) -> None:
        for session, length in zip(self._sessions, lengths, strict=True):
            session.trim([length])

    def select(self, rows: Sequence[int]) -> None:
        selected = set(rows)
        for row, session in enumerate(self._sessions):
            if row not in selected:
                session.close()
        self._sessions = [self._sessions[row] for row in rows]

    def add(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> None:
        self._sessions += [self._make(prompt, new_tokens) for prompt in prompts]

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._sessions = []
