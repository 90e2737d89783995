"""Runs forward passes: under the locks of their models and, on a CPU, on the best number of torch's threads.

The threads of one pass synchronise about a hundred times. If another program occupies a core, each of these waits may
last a time slice of the operating system: two threads were 10 to 100 times slower than one with a busy program on each
of two cores, and hardly faster on free cores for a small model. The number is therefore chosen by measuring passes that
run anyway: their times are compared between thread counts, and a pass that takes far longer than expected triggers a
trial of fewer threads.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep, thread_time
from typing import TYPE_CHECKING, TypeVar

import torch

from copyspec.common import forks
from copyspec.common.control_groups import control_groups

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.budget import CostModel

MIN_LOOK = 0.1  # minimum seconds between two readings: the kernel counts CPU time in hundredths of a second


def allowed(root: Path = Path("/")) -> int:
    """Number of cores this process may use, by its affinity and its container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([count, *map(int, _quotas(root))]))


def _quotas(root: Path) -> list[float]:
    """CPU quotas in cores from control groups (version 1 and 2); [] if there is no limit."""
    return [quota for group in control_groups("cpu", root) for quota in _quota(group)]


def _quota(group: Path) -> list[float]:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()[:2]
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return [float(quota) / float(period)] if float(quota) > 0 else []
    except (OSError, ValueError, ZeroDivisionError):  # no such group, or "max" (no limit)
        return []


@dataclass(frozen=True, slots=True)
class Load:
    """CPU time used by all other processes up to one moment, in seconds."""

    at: float
    busy: float

    @classmethod
    def read(cls) -> Load | None:
        """Read it now; None if the kernel does not provide it."""
        try:
            with open("/proc/stat", encoding="ascii") as file:
                user, nice, system = map(int, file.readline().split()[1:4])
            own = os.times()
            busy = (user + nice + system) / os.sysconf("SC_CLK_TCK") - own.user - own.system
            return cls(perf_counter(), busy)
        except (OSError, ValueError):
            return None


def held_by_others(before: Load | None) -> float:
    """Average number of cores other programs used since `before`, or if that is too recent, the load of the
    last minute, in which this process counts, too."""
    now = Load.read()
    if before is not None and now is not None and now.at - before.at >= MIN_LOOK:
        return max(0.0, (now.busy - before.busy) / (now.at - before.at))
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


logger = logging.getLogger(__name__)

T = TypeVar("T")

SMALL = 32_000_000
"""Number of parameters up to which a model starts with one thread, which reads its weights in about ten milliseconds. A
larger one starts with the program's threads less the cores that others use: on one thread a long prompt would take
minutes."""

PAYS = 0.8
"""Doubling the threads must reduce the pass time to this fraction, else the smaller number is kept: extra threads take
cores that others may need, and beside a busy program they cost far more than they gain."""

STAYS = 0.95
"""A count at which a model starts is halved if it does not reduce the pass time to this fraction of that at half the
threads. The passes compared read a few tokens; prompts and large drafts, which are limited by arithmetic, gain more."""

TRIES = 3  # passes per trial
RECENT = 4  # latest passes at the current count that a trial is compared with
HOPELESS = 2.0  # times the mean of those latest passes: a trial of more threads stops at the first pass this slow
SLOW = 3.0
"""Times the expected time: two passes in a row this slow trigger a trial of fewer threads."""

WAITING = 1.5
"""Ratio of wall time to processor time above which the threads are waiting for cores. Free cores: 1.0."""
WAITED = 0.03  # minimum seconds lost in such waits: more than a few time slices
FREE = 1.2  # ratio of wall to processor time below which the core of this thread seems free

DECAY = 0.6  # weight of earlier passes in the times that WAITING and FREE refer to
FIRST_WAIT = 2.0  # seconds of passes before more threads are tried, so that short calls are not used for trials
DOUBLED_WAIT = 60.0  # up to which it doubles: after some minutes of a busy program trials must not be off for an hour
MAX_WAIT = 600.0
STAKE = 50.0  # seconds of passes before the next trial per second lost by the last one: at most 2 % overhead
MIN_PASS = 1e-3  # seconds; shorter passes lose as much to starting threads as they gain


class ThreadChoice:
    """The thread count of one model. It does not use torch: the caller asks before a pass and reports its time."""

    def __init__(self, start: int) -> None:
        """`start`: threads of the first pass."""
        self.count = max(1, start)
        """Threads of passes outside trials."""
        self._tried = 0  # threads of the running trial; 0: none
        self._trial: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._is_measured = self.count == 1
        self._wall = self._used = 0.0
        self._since = self._lost = 0.0
        self._wait = FIRST_WAIT

    def next(self, bound: int) -> int:
        """Threads of the next pass, at most `bound`."""
        return min(self._tried or self.count, bound)

    def observe(self, count: int, bound: int, seconds: float, used: float, ratio: float | None) -> None:
        """Record a pass on `count` threads: its wall time `seconds`, the processor time `used` by its first thread, and
        its time over the expected time, `ratio` (None if nothing was expected)."""
        self._since += seconds
        self._wall = DECAY * self._wall + seconds
        self._used = DECAY * self._used + used
        if count > 1 and self._is_waiting:
            self._settle(count // 2, "its threads wait for cores that other programs hold")
            self._wait_for(seconds - used)
        elif self._tried:
            if count == self._tried and ratio is not None:
                self._try(ratio, seconds)
        elif count == self.count:
            if ratio is not None:
                self._recent.append(ratio)
            self._tried = self._to_try(bound, seconds) if len(self._recent) > 1 else 0

    @property
    def _is_waiting(self) -> bool:
        return self._wall > WAITING * self._used and self._wall - self._used > WAITED

    def _to_try(self, bound: int, seconds: float) -> int:
        """Another thread count if it is time for a trial, else 0."""
        recent = list(self._recent)
        is_slow = min(recent[-2:]) > SLOW
        if self.count > 1 and (is_slow or (not self._is_measured and len(recent) == RECENT)):
            return self.count // 2
        is_free = self._wall < FREE * self._used
        if self.count < bound and self._since > self._wait and seconds > MIN_PASS and is_free:
            return min(2 * self.count, bound)
        return 0

    def _try(self, ratio: float, seconds: float) -> None:
        """Add one pass to the trial; decide after the last one. `now`, `tried`: mean ratios at the current count and at
        the tried one."""
        self._trial.append(ratio)
        now, tried = sum(self._recent) / len(self._recent), sum(self._trial) / len(self._trial)
        self._lost += max(0.0, 1.0 - now / ratio) * seconds
        is_more = self._tried > self.count
        if len(self._trial) < TRIES and not (is_more and ratio > HOPELESS * now):
            return
        if tried < PAYS * now if is_more else tried < now / STAYS:
            self._settle(self._tried, f"passes take {tried / now:.2f} of the time")
            self._is_measured = is_more or self.count == 1
        else:
            self._wait_for(self._lost)
            self._settle(self.count, "")

    def _wait_for(self, lost: float) -> None:
        """Set the time until more threads are tried again, after a trial or a pass that lost so many seconds."""
        self._wait = max(min(2 * self._wait, DOUBLED_WAIT), min(STAKE * lost, MAX_WAIT))

    def _settle(self, count: int, why: str) -> None:
        """End any trial and use `count` threads from now on."""
        if count != self.count:
            logger.info("%d threads of torch instead of %d: %s", count, self.count, why)
            self._wait = FIRST_WAIT
        self.count, self._is_measured = count, True
        self._tried, self._trial = 0, []
        self._recent.clear()
        self._wall = self._used = self._since = self._lost = 0.0


class _Seen(threading.local):
    """Whether a Python thread's own thread count has been read."""

    yes = False


_SEEN = _Seen()
_LENT: list[tuple[int, int]] = []  # (thread's own count, pass's count) of each running pass that changed it


class Threads:
    """The thread counts of one engine's forward passes. It changes nothing for models that are not on a CPU.

    torch keeps the count per thread and gives the latest one to new threads. It is changed for each pass and restored
    afterwards, so that the caller's own work is not affected. The upper limit is the caller's setting (OMP_NUM_THREADS
    or `torch.set_num_threads`) and the cores the process may use.
    """

    def __init__(self, model: PreTrainedModel, costs: CostModel) -> None:
        """`costs`: measures the passes and reports each one's time relative to the expected time."""
        self._parameters = sum(parameter.numel() for parameter in model.parameters())  # the model itself is not kept
        self.costs = costs
        self.limit = allowed()
        self.choice: ThreadChoice | None = None  # made with the first pass
        self._load = Load.read()

    def count(self) -> int:
        """Threads of the next pass in this Python thread."""
        bound = min(_own(), self.limit)
        return (self.choice or self.first_choice(bound)).next(bound)

    def first_choice(self, bound: int) -> ThreadChoice:
        """Begin to measure, with at most `bound` threads."""
        start = 1 if self._parameters <= SMALL else bound - round(held_by_others(self._load))
        self.choice = choice = ThreadChoice(start)
        return choice


@dataclass(frozen=True, slots=True)
class Passes:
    """Runs the forward passes of one call: each with the locks of the model and of its draft models held, on the best
    number of threads.

    The locks are always taken in the same order, so that two engines drafting for each other cannot deadlock.
    """

    locks: Callable[[], Sequence[threading.RLock]]
    counts: Threads | None = None  # None for a model that is not on a CPU
    num_threads: int | None = None  # the caller's thread count; None: the number measured to be fastest

    def run(self, call: Callable[[], T], locks: Sequence[threading.RLock] | None = None) -> T:
        """Run `call`, a forward pass or a part of one. `locks`: those to take before; None: all."""
        if locks is None:
            if forks.is_fork_pending:
                sleep(forks.FORK_SECONDS)
            locks = sorted(set(self.locks()), key=id)
        if locks:
            # Nested `with` statements on the locks themselves, not a context manager: an interrupt (Ctrl-C) inside its
            # __enter__ would leave a lock held forever.
            with locks[0]:
                return self.run(call, locks[1:])
        counts, wanted = self.counts, self.num_threads
        if counts is None:
            return call()
        own = torch.get_num_threads() if _SEEN.yes else _own()
        bound = min(own, counts.limit)
        if wanted is None and bound == 1 == own:
            return call()
        choice = counts.choice or counts.first_choice(bound)
        count = wanted or choice.next(bound)
        started, used = perf_counter(), thread_time()
        if count == own:
            result = call()
        else:
            lent = (own, count)
            _LENT.append(lent)
            try:
                torch.set_num_threads(count)
                result = call()
            finally:
                torch.set_num_threads(own)
                _LENT.remove(lent)
        ratio = counts.costs.take_ratio()
        if wanted is None:
            choice.observe(count, bound, perf_counter() - started, thread_time() - used, ratio)
        return result


def _own() -> int:
    """The thread count that this Python thread has on its own.

    A thread that first uses torch while a pass runs elsewhere would inherit that pass's count for good; it gets the
    other thread's own count instead.
    """
    own = torch.get_num_threads()
    if not _SEEN.yes:
        _SEEN.yes = True
        for before, lent in tuple(_LENT):
            if lent == own:
                torch.set_num_threads(before)
                return before
    return own
