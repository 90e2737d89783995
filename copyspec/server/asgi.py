"""ASGI helpers for copyspec's own middleware: reading a whole body, replaying it, and sending errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class BodyTooLargeError(ValueError):
    """The body of a request exceeds the size limit. `has_more`: a part of it has not been read."""

    def __init__(self, message: str, *, has_more: bool) -> None:
        super().__init__(message)
        self.has_more = has_more


async def read_body(receive: Receive, max_bytes: int) -> bytes | None:
    """Read the whole body; None if the client has disconnected. Raises BodyTooLargeError beyond `max_bytes`."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            has_more = bool(message.get("more_body", False))
            raise BodyTooLargeError(f"the body has more than {max_bytes} bytes", has_more=has_more)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


class Replay:
    """A `receive` that returns a body already read, then passes on later messages such as a disconnect."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._message: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._receive = receive

    async def __call__(self) -> Message:
        message, self._message = self._message, None
        return message if message is not None else await self._receive()


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a request header, given its name in lower case; None if it is missing."""
    return next((value for key, value in scope.get("headers", ()) if key.lower() == name), None)


def route_path(scope: Scope) -> str:
    """The path that the application's routes see: without that of the application it is mounted in."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def error_body(message: str, kind: str, *, code: str | int | None = None, param: str | None = None) -> bytes:
    """An error in OpenAI's JSON format. Characters that cannot be encoded, such as a lone surrogate, become `?`."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")


async def refuse(
    send: Send, status: int, body: bytes, headers: dict[str, str] | None = None, *, rest: Rest | None = None
) -> None:
    """Send a complete response instead of calling the application. `rest`: what has not been read of the request."""
    fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body, "more_body": rest is not None})
    if rest is not None:
        await rest.skip()
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True, slots=True)
class Rest:
    """The unread rest of a body. A connection closed before it is read is reset, and many clients, which read an answer
    only after they have sent everything, then never see it."""

    receive: Receive
    seconds: float
    most: int  # bytes; the connection of a client that sends more is reset

    async def skip(self) -> None:
        """Read and drop the rest, within the bounds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._read(), self.seconds)

    async def _read(self) -> None:
        size = 0
        while size <= self.most:
            message = await self.receive()
            if not message.get("more_body", False):  # the end, or the client has gone
                return
            size += len(message.get("body", b""))
