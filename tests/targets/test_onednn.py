"""oneDNN on machines that announce AMX and lack it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from copyspec.targets.cpu import compiled
from copyspec.targets.cpu.compiled import BELOW_TILES, LIMITS, avoid_missing_tiles


class Module:
    """Stands in for the compiled module."""

    def __init__(self, lacks: bool) -> None:
        self.lacks_palettes = lambda: lacks


@pytest.mark.parametrize(
    ("module", "given", "found"),
    [
        (Module(True), {}, BELOW_TILES),
        (Module(True), {LIMITS[0]: "AVX2"}, "AVX2"),
        (Module(True), {LIMITS[1]: "AVX2"}, None),
        (Module(False), {}, None),
        (None, {}, None),
    ],
)
def test_the_limit_is_set_where_tiles_are_missing(
    module: object, given: dict[str, str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LIMITS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(compiled, "_linear", module)
    avoid_missing_tiles()
    assert os.environ.get(LIMITS[0]) == found


def test_bfloat16_products_survive() -> None:
    code = (
        "import torch, copyspec.targets.cpu.linears; a = torch.ones(64, 512).bfloat16(); print((a @ a.T).sum().item())"
    )
    without = {name: value for name, value in os.environ.items() if name not in LIMITS}
    ran = subprocess.run([sys.executable, "-c", code], env=without, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) == 64 * 64 * 512
