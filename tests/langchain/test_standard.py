"""The standard suites of langchain-tests, on a tiny local model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("langchain_tests")

from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from copyspec import Engine
from copyspec.pipelines.langchain import ChatCopySpec
from tests.helpers.tiny import tiny_engine, tiny_model, tiny_tokenizer

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


class TestIntegration(ChatModelIntegrationTests):
    another: Path

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCopySpec

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {"model": engine(), "max_tokens": 12}

    @property
    def standard_chat_model_params(self) -> dict[str, object]:
        return {**super().standard_chat_model_params, "max_tokens": 12}

    @property
    def has_tool_calling(self) -> bool:
        return False  # random weights call no tools; test_tools.py scripts a model that does

    @property
    def has_structured_output(self) -> bool:
        return False  # needs tool calls

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:
        return {"invoke": [], "stream": []}

    @property
    def model_override_value(self) -> str:
        return str(self.another)
