"""Finds the control groups of this process, which limit what a container may use. Linux only."""

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
