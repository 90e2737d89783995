"""Fixtures of training: made-up prose, and torch's number of threads, which runs change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

_PARAGRAPHS = [
    f"The {animal} lives in the {place}. It eats {food} in the morning, and it sleeps at night. "
    f"Many people know the {animal} of the {place}. They have wanted to see it for {number} years."
    for number, (animal, place, food) in enumerate(
        [("fox", "forest", "berries"), ("owl", "tower", "mice"), ("whale", "sea", "fish"), ("goat", "hills", "grass")]
        * 5
    )
]


@pytest.fixture
def paragraphs() -> list[str]:
    """What `prose` holds. A test module may override it."""
    return _PARAGRAPHS


@pytest.fixture
def prose(tmp_path: Path, paragraphs: list[str]) -> Path:
    """A folder of texts to train on."""
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "made_up.txt").write_text("\n".join(paragraphs), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
