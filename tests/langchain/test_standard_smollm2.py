"""LangChain's standard integration suite on a real model."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("langchain_tests")

from langchain_tests.integration_tests import ChatModelIntegrationTests

from copyspec.pipelines.langchain import ChatCopySpec
from tests.helpers.smollm2 import needs_smollm2

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


@needs_smollm2
class TestSmolLM2(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCopySpec

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {"model": "smollm2", "dtype": "float32", "max_tokens": 12}  # jokes differ in length

    @property
    def standard_chat_model_params(self) -> dict[str, object]:
        return {**super().standard_chat_model_params, "max_tokens": 12}

    @property
    def has_tool_calling(self) -> bool:
        return False  # its chat template holds no tools; test_standard.py scripts a model that calls them

    @property
    def has_structured_output(self) -> bool:
        return find_spec("llguidance") is not None

    @property
    def structured_output_kwargs(self) -> dict[str, object]:
        # The quote that ends a string (token 18) is made likely: its jokes are long, and a short one shows as much.
        return {"method": "json_schema", "max_tokens": 80, "logit_bias": {18: 5.0}}

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:
        return {"invoke": [], "stream": []}

    @property
    def model_override_value(self) -> str:
        return "default"
