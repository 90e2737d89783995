"""How many threads the passes of a model on a CPU take: as many as are measured to be best, pass by pass.

Threads of one pass wait for each other some hundred times. Where other programs hold a core, each of these waits may
last a slice of the scheduler's time: two threads were 10 to 100 times slower than one beside a busy program on each of
two cores, and hardly faster on free ones for a small model. So what passes take is compared, on the passes that are
made anyway, and a pass that takes far longer than it should is an occasion to try fewer.
"""

from __future__ import annotations

import logging
from collections import deque

logger = logging.getLogger(__name__)

PAYS = 0.8
"""Twice the threads must bring a pass down to this share of its time, or half of them are kept: they take cores that
others may need, and what they bring is lost many times over beside a busy program."""

TRIES = 3  # passes of a trial
LATE = 4  # passes at the present number that a trial is compared with
HOPELESS = 2.0  # times what was expected: a trial of more threads ends with the first pass that takes so long
SLOW = 3.0
"""Times what was expected: two passes in a row that take so long are no accident."""

WAITING = 1.5
"""Times its processor time that a pass takes where its threads wait for cores. Free cores: 1.0."""
WAITED = 0.03  # seconds that must be lost in such waits: more than a few slices of the scheduler
FREE = 1.2  # as WAITING: below it nobody else seems to want the core of this thread

MEMORY = 0.6  # weight of earlier passes in the times that WAITING and FREE are about
FIRST_WAIT = 2.0  # seconds of passes before more threads are tried: a short call is never the place for it
MOST_WAIT = 600.0
STAKE = 50.0  # seconds of passes before the next trial, for each one that the last trial lost: 2 % at most
LEAST_PASS = 1e-3  # seconds; in shorter passes starting threads takes what they save


class ThreadChoice:
    """The number of threads of one model. It knows no torch: it is asked before a pass, and told what it took."""

    def __init__(self, start: int) -> None:
        """`start`: threads of the first pass."""
        self.count = max(1, start)
        """Threads of passes, trials aside."""
        self._tried = 0  # threads of the trial that is going on; 0: none is
        self._trial: list[float] = []
        self._late: deque[float] = deque(maxlen=LATE)
        self._is_measured = self.count == 1
        self._wall = self._used = 0.0
        self._since = self._lost = 0.0
        self._wait = FIRST_WAIT

    def next(self, bound: int) -> int:
        """Threads of the next pass, `bound` at most."""
        return min(self._tried or self.count, bound)

    def observe(self, count: int, bound: int, seconds: float, used: float, ratio: float | None) -> None:
        """A pass on `count` threads took `seconds`, its first thread `used` seconds of processor time, and all in all
        `ratio` times what was expected; None where nothing was."""
        self._since += seconds
        self._wall = MEMORY * self._wall + seconds
        self._used = MEMORY * self._used + used
        if count > 1 and self._is_waiting:
            self._settle(count // 2, "its threads wait for cores that other programs hold")
            self._wait = min(max(2 * self._wait, STAKE * (seconds - used)), MOST_WAIT)
        elif self._tried:
            if count == self._tried and ratio is not None:
                self._try(ratio, seconds)
        elif count == self.count:
            if ratio is not None:
                self._late.append(ratio)
            self._tried = self._to_try(bound, seconds)

    @property
    def _is_waiting(self) -> bool:
        return self._wall > WAITING * self._used and self._wall - self._used > WAITED

    def _to_try(self, bound: int, seconds: float) -> int:
        """Another number of threads, where it is time to try one."""
        late = list(self._late)
        if len(late) < 2:
            return 0
        is_slow = min(late[-2:]) > SLOW
        if self.count > 1 and (is_slow or (not self._is_measured and len(late) == LATE)):
            return self.count // 2
        is_free = self._wall < FREE * self._used
        if self.count < bound and self._since > self._wait and seconds > LEAST_PASS and is_free:
            return min(2 * self.count, bound)
        return 0

    def _try(self, ratio: float, seconds: float) -> None:
        """One more pass of the trial; decides after the last one."""
        self._trial.append(ratio)
        now, tried = sum(self._late) / len(self._late), sum(self._trial) / len(self._trial)
        self._lost += max(0.0, 1.0 - now / ratio) * seconds
        is_more = self._tried > self.count
        if len(self._trial) < TRIES and not (is_more and ratio > HOPELESS * now):
            return
        if tried < PAYS * now if is_more else tried < now / PAYS:
            self._settle(self._tried, f"passes take {tried / now:.2f} of the time")
            self._is_measured = is_more or self.count == 1
        else:
            self._wait = min(max(2 * self._wait, STAKE * self._lost), MOST_WAIT)
            self._settle(self.count, "")

    def _settle(self, count: int, why: str) -> None:
        """`count` from now on."""
        if count != self.count:
            logger.info("%d threads of torch instead of %d: %s", count, self.count, why)
            self._wait = FIRST_WAIT
        self.count, self._is_measured = count, True
        self._tried, self._trial = 0, []
        self._late.clear()
        self._wall = self._used = self._since = self._lost = 0.0
