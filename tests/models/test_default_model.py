"""The bundled model is small and loads quickly, and its tokenizer is lossless."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

_FOLDER = Path(__file__).parents[2] / "copyspec" / "default_model"
pytestmark = pytest.mark.skipif(not (_FOLDER / "model.safetensors").exists(), reason="no bundled model")


def test_it_is_small() -> None:
    assert sum(file.stat().st_size for file in _FOLDER.iterdir() if file.is_file()) <= 20e6


def test_it_loads_quickly() -> None:
    seconds = []
    for _ in range(5):  # the best of five, since the machine may be busy
        started = time.perf_counter()
        model = AutoModelForCausalLM.from_pretrained(_FOLDER)
        AutoTokenizer.from_pretrained(_FOLDER)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.5
    assert model.dtype == torch.bfloat16
    assert model.config.model_type == "llama" and model.config.tie_word_embeddings


@pytest.mark.parametrize("text", ["naïve 漢字 😀", "  two\n\n\tlines ", "\x00\u202e</s>?", "don't 12,345.67", ""])
def test_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(_FOLDER)
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_source_and_answer_share_their_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(_FOLDER)
    source = "Anna lives in Zürich."
    prompt = tokenizer("Correct the grammar: " + source)["input_ids"]
    answer = tokenizer(" " + source, add_special_tokens=False)["input_ids"]
    assert prompt[-1 - len(answer) : -1] == answer
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Correct the grammar: " + source}], add_generation_prompt=True, return_dict=False
    )
    assert chat == prompt


def test_it_copies_a_correct_sentence() -> None:
    tokenizer = AutoTokenizer.from_pretrained(_FOLDER)
    model = AutoModelForCausalLM.from_pretrained(_FOLDER)
    source = "The children walked to the old house in the morning."
    prompt = tokenizer("Correct the grammar: " + source, return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=40)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(ids, skip_special_tokens=True) == " " + source
