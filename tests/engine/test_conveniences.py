"""Common mistakes that work: streams without await."""

from __future__ import annotations

import asyncio

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


def test_dir_shows_what_is_public() -> None:
    assert {name for name in dir(copyspec) if not name.startswith("__")} == set(copyspec.__all__)
