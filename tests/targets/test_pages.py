"""Pages of mapped weights: which are given back, and that nothing is lost."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from copyspec.targets.cpu.packed_weights import give_back, numbers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")

MEGABYTES = 8


def mapped(tmp_path: Path) -> torch.Tensor:
    save_file({"weight": torch.arange(MEGABYTES << 18, dtype=torch.float32)}, tmp_path / "a.safetensors")
    return load_file(tmp_path / "a.safetensors")["weight"]


def resident(weight: torch.Tensor) -> int:
    """Pages of the weight in memory."""
    size = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * (weight.data_ptr() // size))
        entries = torch.frombuffer(bytearray(file.read(weight.nbytes // size * 8)), dtype=torch.int64)
    return int((entries < 0).sum())  # the highest bit: it is present


def test_pages_of_a_file_are_given_back_and_read_again(tmp_path: Path) -> None:
    weight = mapped(tmp_path)
    total = weight.double().sum()
    before = resident(weight)
    assert give_back(numbers(weight))
    assert before > 1000 and resident(weight) < 64
    assert weight.double().sum() == total


@pytest.mark.parametrize("place", [2048, MEGABYTES << 17, -2048])
def test_changed_weights_stay(place: int, tmp_path: Path) -> None:
    weight = mapped(tmp_path)
    weight.data[place] = 7.5
    assert not give_back(numbers(weight))
    assert weight[place] == 7.5


def test_weights_in_memory_only_stay() -> None:
    weight = torch.full((1 << 20,), 3.0)
    assert not give_back(numbers(weight)) and not give_back(numbers(torch.ones(4)))
    assert (weight == 3).all()
