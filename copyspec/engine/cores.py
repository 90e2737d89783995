"""Cores: how many this process may use, and how many of them others leave free."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

LEAST_LOOK = 0.1  # seconds between two readings of the kernel's counters, which count hundredths


def allowed(root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity, and the quota of its container where there is one."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([count, *map(int, _quotas(root))]))


def _quotas(root: Path) -> list[float]:
    """Processor seconds a second that control groups grant this process, version 2 and 1; [] without a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "none", "")
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = root / "sys/fs/cgroup" / ("" if not controllers else "cpu")
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts) + 1):  # a group grants no more than those that it is in
            found += _quota(group.joinpath(*parts[:depth]))
    return found


def _quota(group: Path) -> list[float]:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()[:2]
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return [float(quota) / float(period)] if float(quota) > 0 else []
    except (OSError, ValueError, ZeroDivisionError):  # no such group, or "max": no limit
        return []


@dataclass(frozen=True, slots=True)
class Load:
    """What the machine's cores did up to one moment, in seconds; this process itself is left out."""

    at: float
    busy: float

    @classmethod
    def read(cls) -> Load | None:
        """None where the kernel does not tell."""
        try:
            with open("/proc/stat", encoding="ascii") as file:
                user, nice, system = map(int, file.readline().split()[1:4])
            own = os.times()
            busy = (user + nice + system) / os.sysconf("SC_CLK_TCK") - own.user - own.system
            return cls(perf_counter(), busy)
        except (OSError, ValueError):
            return None


def held_by_others(before: Load | None) -> float:
    """Cores that other programs held since `before`, or where that is too short ago, during the last minute."""
    now = Load.read()
    if before is not None and now is not None and now.at - before.at >= LEAST_LOOK:
        return max(0.0, (now.busy - before.busy) / (now.at - before.at))
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0
