"""Models that are loaded and built by several threads at once: transformers changes torch for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.api import Registry
from copyspec.drafters.predictors.early_exit import early_exit
from copyspec.models import gguf
from copyspec.models.loading import ModelChoice
from copyspec.targets.selftest import sibling
from kit.gguf_files import write_llama
from tests.helpers.models import tiny
from tests.helpers.texts import byte_level
from tests.helpers.tiny import tiny_tokenizer


def globals_of_torch() -> list[object]:
    return [torch.nn.init.normal_, torch.linspace, torch.get_default_dtype(), PreTrainedModel.tie_weights]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with tied weights, in bfloat16."""
    tokenizer = tiny_tokenizer()
    model = tiny("llama", vocab_size=len(tokenizer), tie_word_embeddings=True).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_loads_and_builds_of_many_threads_leave_torch_as_it_was(folder: Path) -> None:
    before, wrong = globals_of_torch(), list[object]()

    def load() -> None:
        model: Any = Registry().engine(ModelChoice(str(folder))).model
        if model.lm_head.weight is not model.model.embed_tokens.weight:
            wrong.append("the weights are untied")

    def build() -> None:
        model = tiny_gpt2
        built = sibling.build(type(model), sibling.small_config(model))
        if {parameter.dtype for parameter in built.parameters()} != {torch.float32}:
            wrong.append("the sibling has the dtype of another model")

    def convert() -> None:
        model: Any = gguf._read(file, torch.float32)[0]
        if model.lm_head.weight is not model.model.embed_tokens.weight:
            wrong.append("the weights of the GGUF file are untied")

    def shorten() -> None:
        if len(early_exit(tiny_llama, 1).model.layers) != 1:  # type: ignore[union-attr, arg-type]
            wrong.append("no layers")

    def often(work: Callable[[], None]) -> None:
        try:
            for _ in range(8):
                work()
        except Exception as error:
            wrong.append(error)

    file = folder / "model.gguf"
    write_llama(file, tiny("llama", vocab_size=len(byte_level()), tie_word_embeddings=True), byte_level())
    tiny_gpt2, tiny_llama = tiny("gpt2"), tiny("llama")
    threads = [threading.Thread(target=often, args=(work,)) for work in (load, load, build, build, convert, shorten)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert globals_of_torch() == before
