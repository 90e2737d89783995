"""The suite uses nothing of the developer's settings."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest


def test_nothing_of_the_developers_settings_reaches_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "LANGSMITH_TRACING",
        "LANGCHAIN_TRACING_V2",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "https_proxy",
        "ALL_PROXY",
    ]
    for name in (*names, "NO_PROXY", "COPYSPEC_API_KEY", "GIT_DIR"):
        monkeypatch.setenv(name, "the developer's")
    runpy.run_path(str(Path(__file__).parent / "conftest.py"))
    assert "the developer's" not in os.environ.values() and os.environ["NO_PROXY"] == "*"
