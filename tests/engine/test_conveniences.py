"""Common mistakes that work, or give a clear error: streams without await, wrong processors."""

from __future__ import annotations

import asyncio

import pytest
import torch

import copyspec
from tests.helpers.texts import engine


def test_a_stream_needs_no_await() -> None:
    async def texts() -> tuple[str, str]:
        options = {"model": engine(), "stream": True, "max_new_tokens": 8}
        plain = [chunk.text async for chunk in copyspec.agenerate("the cat", **options)]  # type: ignore[call-overload]
        awaited = [chunk.text async for chunk in await copyspec.agenerate("the cat", **options)]  # type: ignore[call-overload]
        return "".join(plain), "".join(awaited)

    plain, awaited = asyncio.run(texts())
    assert plain == awaited == engine().generate("the cat", max_new_tokens=8).text


def test_a_processor_of_another_shape_is_named() -> None:
    def wrong(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores[:, :5]

    with pytest.raises(ValueError, match=r"a logits_processor returned scores of shape \[1, 5\]; it is called"):
        engine().generate("the cat", logits_processor=wrong, max_new_tokens=3)  # type: ignore[call-overload]


def test_dir_shows_what_is_public() -> None:
    assert {name for name in dir(copyspec) if not name.startswith("__")} == set(copyspec.__all__)
