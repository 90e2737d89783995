"""ASGI, as far as copyspec's own layers around an application need it: a body read whole, an error in its place."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class BodyTooLargeError(ValueError):
    """The body of a request has more bytes than it may."""


async def read_body(receive: Receive, max_bytes: int | None = None) -> bytes | None:
    """The whole body; None where the client has gone. Raises BodyTooLargeError past `max_bytes`."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part = message.get("body", b"")
        size += len(part)
        if max_bytes is not None and size > max_bytes:
            raise BodyTooLargeError(f"the body has more than {max_bytes} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


class Replay:
    """A body that was read already, then whatever else the client says: that it has gone, for one."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._message: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._receive = receive

    async def __call__(self) -> Message:
        message, self._message = self._message, None
        return message if message is not None else await self._receive()


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header of the request, by its name in lower case."""
    return next((value for key, value in scope.get("headers", ()) if key.lower() == name), None)


def error_body(message: str, kind: str, *, code: str | int | None = None, param: str | None = None) -> bytes:
    """An error as OpenAI's clients read it. What cannot be encoded, a lone surrogate say, stands as `?`."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")


async def refuse(send: Send, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    """An answer in the application's place."""
    given = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    pairs = [(name.encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
