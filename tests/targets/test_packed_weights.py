"""The memory that packed copies may take: a share of what the machine and its container have available."""

from __future__ import annotations

from pathlib import Path

import pytest

from copyspec.targets.cpu.packed_weights import SHARE, memory_for_packing

GROUP = "sys/fs/cgroup"
V2 = {"proc/self/cgroup": "0::/pod/a\n", f"{GROUP}/pod/a/memory.max": "max\n", f"{GROUP}/pod/memory.max": "5000\n"}


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 8000 * 1024),
        ({"proc/self/cgroup": "0::/\n", f"{GROUP}/memory.max": "max\n"}, 8000 * 1024),
        (
            {**V2, f"{GROUP}/pod/memory.current": "3000\n", f"{GROUP}/pod/memory.stat": "anon 9\ninactive_file 1000\n"},
            3000,
        ),
        ({**V2, f"{GROUP}/pod/memory.current": "6000\n", f"{GROUP}/pod/memory.stat": "anon 6000\n"}, 0),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu:/y\n",
                f"{GROUP}/memory/x/memory.limit_in_bytes": "7000\n",
                f"{GROUP}/memory/x/memory.usage_in_bytes": "4000\n",
                f"{GROUP}/memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 1000\n",
                f"{GROUP}/cpu/y/memory.max": "1\n",
            },
            4000,
        ),
    ],
)
def test_a_containers_limit_counts(tmp_path: Path, files: dict[str, str], available: int) -> None:
    for name, text in {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_for_packing(tmp_path) == available // SHARE
    assert memory_for_packing(tmp_path / "nothing") == 0
