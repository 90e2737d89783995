"""Creates vLLM engines for the benchmarks, in this process and on the CPU."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import tempfile
from array import array
from collections import Counter as Counted
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy import ndarray

from benchmarks.data import SENTENCES, lines
from copyspec.models.loading import BUNDLED
from copyspec.models.resolve import resolve

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",  # otherwise vLLM's n-gram proposer and torch compete for threads
}

FEW_KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
"""oneDNN would cache 1,024 kernels, one per number of tokens in a step: memory that grows with any proposer."""

TEMPLATE = "Correct the grammar: {text}"

PLAIN_TYPES = (dict, list, tuple, set, frozenset, deque, Counted, defaultdict, bytes, str, int, float, array, ndarray)

_ALIVE: list[Any] = []
"""Keeps engines alive, since the end of one ends the process group of the others."""


def set_up() -> None:
    """Set the environment; call before vLLM is imported."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


@contextmanager
def model_folder(model: str) -> Iterator[str]:
    """Yield the folder of `model`; "default" is the bundled one, copied without the package's own files."""
    if model != "default":
        yield resolve(model)
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in BUNDLED.iterdir():
            if path.suffix in (".json", ".jinja", ".safetensors"):
                shutil.copy(path, folder)
        yield folder


def engine(model: str, speculative: dict[str, object] | None, *, adaptive: bool = True, **options: Any) -> Any:
    """Make an `LLM` for greedy decoding in float32."""
    from vllm import LLM
    from vllm.platforms import current_platform

    settings = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "enable_prefix_caching": False}
    settings |= {"disable_log_stats": False, "seed": 0, "max_num_seqs": 32}
    llm = LLM(
        model,
        speculative_config=speculative,
        additional_config={"copyspec": {"adaptive": adaptive}},
        **(settings | options),
    )
    _ALIVE.append(llm)
    # Its kernels are registered already. Doing so again for another engine fails on objects of numba, which its n-gram
    # proposer imports (0.32).
    type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
    return llm


class Counter:
    """Counts passes and draft tokens of one engine at its proposer, since vLLM's own counters are per process."""

    def __init__(self, llm: Any) -> None:
        self.passes = self.drafted = 0
        drafter = drafter_of(llm)
        if drafter is not None:
            self._propose, drafter.propose = drafter.propose, self

    def __call__(self, *args: Any, **named: Any) -> Any:
        drafts = self._propose(*args, **named)
        sampled: list[list[int]] = next(argument for argument in args if isinstance(argument, list))
        self.passes += sum(map(bool, sampled))
        self.drafted += sum(map(len, drafts))
        return drafts

    def read(self) -> dict[str, int]:
        """Return the counts since the last call."""
        counts = {"passes": self.passes, "drafted": self.drafted}
        self.passes = self.drafted = 0
        return counts


def preemptions(llm: Any) -> int:
    """Return the preemptions of the engine created last."""
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


def drafter_of(llm: Any) -> Any:
    """Return the proposer of an engine that runs in this process."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    return getattr(worker.model_runner, "drafter", None)


def own_bytes(llm: Any) -> int:
    """Return the bytes held by copyspec's proposer.

    Counted are its own objects and the plain containers that they refer to, without the engine's requests and
    runner."""
    size, seen, waiting = 0, set[int](), [drafter_of(llm)]
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if id(value) in seen or not (kind.__module__.startswith("copyspec.") or kind in PLAIN_TYPES):
            continue
        seen.add(id(value))
        size += sys.getsizeof(value)
        waiting += gc.get_referents(value)
    return size


def read_texts(file: str | None, rows: int | None) -> list[str]:
    """Read one text per line, or `source` fields if the name says JSON lines. None: the built-in sentences."""
    path = SENTENCES if file is None else Path(file)
    return [json.loads(line)["source"] if path.suffix == ".jsonl" else line for line in lines(path)][:rows]


def versions() -> dict[str, str]:
    """Return the versions of the packages on which the figures depend."""
    from importlib.metadata import distributions

    wanted = {"vllm", "vllm-cpu", "torch", "transformers"}
    return {distribution.name: distribution.version for distribution in distributions() if distribution.name in wanted}
