"""Middleware that checks every request before the application: the page that sends it, API key, body size and time to
read the body."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time

from copyspec.server.access import HEADER, begin, error_of
from copyspec.server.asgi import (
    App,
    BodyTooLargeError,
    Message,
    Receive,
    Replay,
    Rest,
    Scope,
    Send,
    error_body,
    header,
    read_body,
    refuse,
    route_path,
)
from copyspec.server.metrics import Metrics
from copyspec.server.origins import Origins, is_preflight
from copyspec.server.settings import ServerSettings

OPEN = frozenset(("/health", "/metrics"))
"""Paths that need no key: they show counters and no text."""

CLOSE = {"connection": "close"}
"""The connection cannot be reused if the rest of a body was not read."""

MAX_SKIPPED = 64 << 20
"""Bytes of a refused body that are read and dropped, so that its client sees why: more than a mistake sends."""

STRANGER_SECONDS = 1.0
"""How long the body of a client without a key is read and dropped: it must not hold a connection."""


class Gate:
    """ASGI middleware that reads whole bodies, so that slow or endless ones never reach the application."""

    def __init__(self, app: App, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._origins = Origins(settings)
        self._key = None if settings.api_key is None else settings.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        access = begin(scope)
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {HEADER: access.id, **self._origins.headers(scope)}
                added = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            elif status >= 400 and not access.error:
                access.error = error_of(message.get("body", b""))
            await send(message)

        try:
            await self._enter(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - begun
            self._metrics.answered(route_path(scope), status, seconds)
            access.log(scope, status, seconds, logging.DEBUG if route_path(scope) in OPEN else logging.INFO)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (refusal := self._origins.refusal(scope)) is not None:
            error = error_body(refusal, "invalid_request_error", code="origin_not_allowed")
            await refuse(send, 403, error, CLOSE, rest=Rest(receive, STRANGER_SECONDS, MAX_SKIPPED))
            return
        if is_preflight(scope):
            await refuse(send, 200, b"")
            return
        if not self._may_ask(scope):
            message = "wrong or missing key: send it as `Authorization: Bearer KEY`"
            error = error_body(message, "invalid_request_error", code="invalid_api_key")
            headers = {**CLOSE, "www-authenticate": "Bearer"}
            await refuse(send, 401, error, headers, rest=Rest(receive, STRANGER_SECONDS, MAX_SKIPPED))
            return
        limit = self._settings.max_body_bytes
        try:
            length = header(scope, b"content-length")
            if length is not None and length.isdigit() and int(length[:20]) > limit:
                raise BodyTooLargeError(f"the body has {length.decode()} bytes", has_more=True)
            body = await asyncio.wait_for(read_body(receive, limit), self._settings.read_timeout)
        except BodyTooLargeError as error:
            message = f"{error}, and at most {limit} are taken here (--max-body)"
            rest = Rest(receive, self._settings.read_timeout, MAX_SKIPPED) if error.has_more else None
            await refuse(send, 413, error_body(message, "invalid_request_error"), CLOSE, rest=rest)
            return
        except asyncio.TimeoutError:
            message = f"the body did not arrive within {self._settings.read_timeout:g} seconds"
            await refuse(send, 408, error_body(message, "timeout_error"), CLOSE)
            return
        if body is not None:
            await self._app(scope, Replay(body, receive), send)

    def _may_ask(self, scope: Scope) -> bool:
        if self._key is None or route_path(scope) in OPEN:
            return True
        kind, _, key = (header(scope, b"authorization") or b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)
