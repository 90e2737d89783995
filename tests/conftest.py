"""What every test runs under: one thread, no network, no model of the user's, hypothesis without deadlines."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("COPYSPEC_MODEL", None)

import pytest
import torch
from hypothesis import settings

# Tiny models are slower on several threads, and the suite runs one worker per core.
torch.set_num_threads(1)

# A machine that is busy with something else must not fail a property.
settings.register_profile("copyspec", deadline=None, derandomize=True)
settings.load_profile("copyspec")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
