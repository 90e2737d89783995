"""What every test runs under: one thread, no network, no model of the user's, hypothesis without deadlines."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("COPYSPEC_MODEL", None)

import pytest
import torch
from hypothesis import settings

from copyspec.budget import Budget, CostModel
from copyspec.decoding.pacing import Pacer

# Tiny models are slower on several threads, and the suite runs one worker per core.
torch.set_num_threads(1)

# A shell's background jobs ignore Ctrl-C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that is busy with something else must not fail a property.
settings.register_profile("copyspec", deadline=None, derandomize=True)
settings.load_profile("copyspec")


@pytest.fixture(scope="module")
def steady_drafts() -> Iterator[None]:
    """Drafts whatever they cost: on tiny models and a busy machine, timings would decide what a test sees."""

    def budget(self: CostModel, rows: int, max_nodes: int, *, adaptive: bool = True, is_first: bool = False) -> Budget:
        return Budget(max_nodes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CostModel, "budget", budget)
        patch.setattr(Pacer, "wants_draft", lambda self: True)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Coroutines run in a loop of their own: no plugin, and none of its settings, is needed for it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
