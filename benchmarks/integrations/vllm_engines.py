"""Engines of vLLM for the benchmarks: in this process, on the CPU, of the bundled model or another one."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from copyspec.models.loading import BUNDLED

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",  # vLLM's n-gram proposer and torch take each other's threads away otherwise
}

TEMPLATE = "Correct the grammar: {text}"

_ALIVE: list[Any] = []
"""The end of one engine takes the process group of the others with it."""


def set_up() -> None:
    """Before vLLM is imported."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


@contextmanager
def model_folder(model: str) -> Iterator[str]:
    """The folder of `model`; "default" is the bundled one, copied without the package's own files."""
    if model != "default":
        yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in BUNDLED.iterdir():
            if path.suffix in (".json", ".jinja", ".safetensors"):
                shutil.copy(path, folder)
        yield folder


def engine(model: str, speculative: dict[str, object] | None, *, adaptive: bool = True, **options: Any) -> Any:
    """An `LLM`, greedy runs of which are in float32."""
    from vllm import LLM

    given = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "enable_prefix_caching": False}
    given |= {"disable_log_stats": False, "seed": 0, "max_num_seqs": 32}
    llm = LLM(
        model,
        speculative_config=speculative,
        additional_config={"copyspec": {"adaptive": adaptive}},
        **(given | options),
    )
    _ALIVE.append(llm)
    return llm


def counters(llm: Any) -> dict[str, int]:
    """What vLLM counts of speculation, and how often it preempted."""
    found = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    names = {"steps": "vllm:spec_decode_num_drafts", "drafted": "vllm:spec_decode_num_draft_tokens"}
    names["preemptions"] = "vllm:num_preemptions"
    return {name: int(found.get(metric, 0)) for name, metric in names.items()}


def drafter_of(llm: Any) -> Any:
    """The proposer of an engine that runs in this process."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    return worker.model_runner.drafter


def read_texts(file: str | None, rows: int | None) -> list[str]:
    """One text per line; JSON lines (`source`) where the file's name says so. None: the built-in sentences."""
    path = Path(__file__).parent.parent / "data" / "sentences.txt" if file is None else Path(file)
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [json.loads(line)["source"] if path.suffix == ".jsonl" else line for line in lines][:rows]


def versions() -> dict[str, str]:
    """What the figures depend on besides the machine."""
    from importlib.metadata import distributions

    wanted = {"vllm", "vllm-cpu", "torch", "transformers"}
    return {each.name: each.version for each in distributions() if each.name in wanted}
