"""Counts the CPU cores that this process may use, and how many of them other programs are using."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from copyspec.control_groups import control_groups

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
    """Average number of cores other programs used since `before`, or in the last minute if that is too recent."""
    now = Load.read()
    if before is not None and now is not None and now.at - before.at >= MIN_LOOK:
        return max(0.0, (now.busy - before.busy) / (now.at - before.at))
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0
