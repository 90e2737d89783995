"""Finds what the machine and the control groups of this process, as of a container, leave it to use. Linux only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups with the limits of a controller, "cpu" or "memory" (version 1 and 2).
    A group's limit is bounded by those of its parents, which are yielded too. Folders need not exist."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "none", "")
        if controllers and controller not in controllers.split(","):
            continue
        group = root / "sys/fs/cgroup" / ("" if not controllers else controller)
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts) + 1):
            yield group.joinpath(*parts[:depth])


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that the machine and its container have available; 0 where neither can be read."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    kilobytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), "0")
    limits = (limit for group in control_groups("memory", root) for limit in _rest_of(group))
    return max(0, min([int(kilobytes) * 1024, *limits]))


def _rest_of(group: Path) -> list[int]:
    """Bytes that a control group (version 1 or 2) may still take; [] without a limit."""
    names = ("max", "current") if (group / "memory.max").exists() else ("limit_in_bytes", "usage_in_bytes")
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in names)
        lines = (group / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such group, or "max" (no limit)
        return []
    # Cached files count as used, of models too, and make way, as in MemAvailable.
    counts = {name: int(count) for name, _, count in (line.partition(" ") for line in lines) if count.isdigit()}
    cached = sum(counts.get(f"total_{name}", counts.get(name, 0)) for name in ("active_file", "inactive_file"))
    return [limit - max(0, used - cached)]
