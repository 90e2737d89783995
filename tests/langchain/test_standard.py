"""The standard suites of langchain-tests, on a tiny local model."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("langchain_tests")

import torch
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from transformers import LogitsProcessor

from copyspec import Engine
from copyspec.pipelines.langchain import ChatCopySpec
from tests.helpers.tiny import tiny_engine, tiny_model, tiny_tokenizer
from tests.langchain.test_tools import TEMPLATE

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

pytestmark = pytest.mark.usefixtures("steady_drafts")


@cache
def engine() -> Engine:
    return tiny_engine(name="tiny")


@pytest.fixture(scope="module", autouse=True)
def another_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("another")
    tiny_model(seed=1).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    TestIntegration.another = folder


class TestUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCopySpec

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {"model": engine()}


def quick_to_close() -> dict[str, object]:
    """Options with which a model with random weights ends a JSON string soon."""
    (quote,) = engine().codec.encode('"').ids
    return {"logit_bias": {quote: 50.0}}


class TestIntegration(ChatModelIntegrationTests):
    """Random weights, with answers constrained by JSON schemas."""

    another: Path

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCopySpec

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {"model": engine(), "max_tokens": 80, "model_kwargs": quick_to_close()}

    @property
    def standard_chat_model_params(self) -> dict[str, object]:
        return {**super().standard_chat_model_params, "max_tokens": 80}

    @property
    def has_tool_calling(self) -> bool:
        return False  # TestTools has a model that calls tools

    @property
    def has_structured_output(self) -> bool:
        return find_spec("llguidance") is not None

    @property
    def structured_output_kwargs(self) -> dict[str, object]:
        return {"method": "json_schema"}

    @property
    def supports_json_mode(self) -> bool:
        return self.has_structured_output

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:
        return {"invoke": [], "stream": []}

    @property
    def model_override_value(self) -> str:
        return str(self.another)


CALLS: dict[str, dict[str, object]] = {
    "magic_function(3)": {"input": 3},
    "Hello!": {"input": 3},
    "magic_function_no_args": {},
    "joke about cats": {"setup": "Why do cats purr?", "punchline": "They can."},
    "What is 3 + 4": {"a": 3, "b": 4},
    "Pirate greeting": {"answer_style": "pirate"},
    "San Francisco": {"location": "San Francisco, CA"},
    "你好啊集团": {"customer_name": "你好啊集团", "description": "a company"},
    "こんにちは株式会社": {"customer_name": "こんにちは株式会社", "description": "a company"},
}
"""What the suite asks for, and the arguments of the tool that it offers first."""


def answered(prompt: str) -> str:
    """The call that the last message asks for, or a text if it asks for none."""
    asked = prompt.rpartition("<|user|>")[2]
    for words, arguments in CALLS.items():
        if words in asked:
            call = {"name": prompt.partition(":")[0], "arguments": arguments}
            return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
    return "It is sunny."


class Answers(LogitsProcessor):
    """Makes a model with random weights write what `answered` says."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        ids = input_ids[0].tolist()
        start = len(ids) - ids[::-1].index(tiny_tokenizer().convert_tokens_to_ids("<|assistant|>"))
        text = answered(tiny_tokenizer().decode(ids[:start]))
        tokens = [*tiny_tokenizer()(text)["input_ids"], tiny_tokenizer().eos_token_id]
        forced = torch.full_like(scores, -1e9)
        forced[:, tokens[min(len(ids) - start, len(tokens) - 1)]] = 0.0
        return forced  # type: ignore[return-value]


@cache
def calling() -> Engine:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return Engine(tiny_model(), tokenizer, name="calling")


class TestTools(TestIntegration):
    """A scripted model that calls tools, by which answers are structured, too."""

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {"model": calling(), "max_tokens": 200, "model_kwargs": {"logits_processor": Answers()}}

    @property
    def standard_chat_model_params(self) -> dict[str, object]:
        return {**super().standard_chat_model_params, "max_tokens": 200}

    @property
    def has_tool_calling(self) -> bool:
        return True

    @property
    def structured_output_kwargs(self) -> dict[str, object]:
        return {}

    @property
    def supports_json_mode(self) -> bool:
        return False  # the script answers by calls
