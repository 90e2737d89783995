"""The bundled model on 100 sentences: copied, plain and transformers' greedy outputs are the same tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from copyspec.engine.engine import Engine
from tests.helpers.own_generate import generated_each

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "copyspec" / "default_model"
pytestmark = pytest.mark.skipif(not (_FOLDER / "model.safetensors").exists(), reason="no bundled model")

FILES = (
    "benchmarks/data/sentences.txt",
    "benchmarks/data/paragraphs.txt",
    "examples/texts/essay.txt",
    "examples/texts/passages.txt",
    "tests/data/sentences.txt",
)
SENTENCES = 100
NEW_TOKENS = 60
INSTRUCTION = "Correct the grammar: "


def read_sentences() -> Iterator[str]:
    for file in FILES:
        for line in (_ROOT / file).read_text(encoding="utf-8").splitlines():
            yield from re.split(r"(?<=[.!?])\s+", line.strip())


@pytest.mark.usefixtures("steady_drafts")
def test_copied_plain_and_generate_are_equal() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _check(list(dict.fromkeys(filter(None, read_sentences())))[:SENTENCES])
    finally:
        torch.set_num_threads(threads)


def _check(sentences: list[str]) -> None:
    assert len(sentences) == SENTENCES
    model = AutoModelForCausalLM.from_pretrained(_FOLDER, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(_FOLDER)
    prompts = [INSTRUCTION + sentence for sentence in sentences]
    engine = Engine(model, tokenizer)
    copied = engine.generate(prompts, edit_source=sentences, max_new_tokens=NEW_TOKENS)
    plain = engine.generate(prompts, drafter="none", max_new_tokens=NEW_TOKENS)
    rows = [tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    expected = generated_each(model, rows, NEW_TOKENS)
    for prompt, row, fast, slow in zip(prompts, rows, copied, plain, strict=True):
        assert list(fast.token_ids) == list(slow.token_ids) == expected[row], prompt
    tokens = sum(len(result.token_ids) for result in copied)
    assert sum(result.stats.num_accepted_tokens for result in copied) > 0.5 * tokens
