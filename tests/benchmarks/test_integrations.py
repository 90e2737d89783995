"""Benchmarks of other engines and servers: what they compare and count, without those."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.integrations import llama_cpp, soak, vllm_speed


def test_an_output_of_llama_cpp_must_be_equal_in_all_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: dict[str, int] = {}

    def answered(name: str, model: Any, text: str, *args: Any) -> tuple[str, int]:
        runs[name] = runs.get(name, 0) + 1
        wrong = name == "copyspec, edit source" and text == "b" and runs[name] == 4  # the second repeat of three
        return f"{text}{wrong}", 2

    lookup = SimpleNamespace(LlamaPromptLookupDecoding=lambda *args: None)
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", lookup)
    monkeypatch.setattr(llama_cpp, "Counted", lambda *args: SimpleNamespace())
    monkeypatch.setattr(llama_cpp, "answered", answered)
    arguments = argparse.Namespace(repeat=3, threads=1, max_tokens=4)
    report = llama_cpp.measure(Path("model.gguf"), ["a", "b"], chat=False, arguments=arguments)
    assert {name: method["equal"] for name, method in report.items()} == {
        "plain": 2, "prompt lookup": 2, "copyspec, prompt only": 2, "copyspec, edit source": 1,
    }  # fmt: skip
    assert {method["tokens"] for method in report.values()} == {4}


class Method:
    """Stands for an engine of vLLM, and counts how often it has run the texts."""

    def __init__(self, name: str, folder: str) -> None:
        self.runs = 0
        self.counter = SimpleNamespace(read=lambda: {"passes": 1})
        METHODS[name] = self

    def run(self, texts: Sequence[str], options: dict[str, Any], size: int) -> list[list[int]]:
        self.runs += 1
        return [[1, 2]] * len(texts)


METHODS: dict[str, Method] = {}


def test_suffix_decoding_meets_each_text_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vllm_speed, "Method", Method)
    monkeypatch.setattr(vllm_speed.engines, "set_up", lambda: None)
    monkeypatch.setattr(vllm_speed.engines, "versions", dict)
    monkeypatch.setattr(vllm_speed.engines, "model_folder", lambda model: nullcontext("folder"))
    words = ["--rows", "2", "--methods", "suffix", "copyspec 16", "--batch-sizes", "1", "2", "--repeat", "3"]
    assert vllm_speed.main(words) == 0
    rounds = {name: method.runs - 1 for name, method in METHODS.items()}  # less the first one, with other texts
    assert rounds == {"none": 12, "suffix": 1, "copyspec 16": 12}


@pytest.mark.parametrize(("left", "holds"), [({"rows": 0.0}, True), ({"rows": 1.0}, False), ({}, False)])
def test_a_server_must_say_that_it_is_idle(
    left: dict[str, float], holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(self: soak.Soak, *args: Any) -> None:
        self._expected.append("the answer")

    async def idle(self: soak.Soak) -> dict[str, float]:
        return left

    for owner, name in ((soak, "ready"), (soak.Soak, "client")):
        monkeypatch.setattr(owner, name, lambda *args: asyncio.sleep(0))
    monkeypatch.setattr(soak.Soak, "learn", nothing)
    monkeypatch.setattr(soak.Soak, "idle", idle)
    monkeypatch.setattr(soak, "SETTLE_SECONDS", 0)
    server: Any = SimpleNamespace(
        measure=lambda: {"MiB": 1, "files": 1}, process=SimpleNamespace(poll=lambda: None), kind="copyspec", port=0
    )
    options = argparse.Namespace(seed=0, clients=1, seconds=0.0)
    assert asyncio.run(soak.soak(server, ["a text"], options))["holds"] is holds


def test_metrics_that_a_server_refuses_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def connected(port: int) -> AsyncIterator[tuple[None, SimpleNamespace]]:
        yield None, SimpleNamespace(write=lambda content: None)

    async def answer(reader: None) -> tuple[int, bytes]:
        return 401, b"{}"

    monkeypatch.setattr(soak, "connected", connected)
    monkeypatch.setattr(soak, "answer", answer)
    run = soak.Soak(SimpleNamespace(port=0), [], 0)  # type: ignore[arg-type]
    assert asyncio.run(run.idle()) == {} and run.faults == ["metrics: status 401"]
