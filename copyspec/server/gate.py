"""Middleware that checks every request before the application: the page that sends it, API key, body size and time to
read the body."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
import socket
import time
from urllib.parse import urlsplit

from copyspec.common.checks import brief
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
from copyspec.server.settings import ANY_ORIGIN, ServerSettings

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
        status, is_whole, is_stream = 0, False, False

        async def sending(message: Message) -> None:
            nonlocal status, is_whole, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                is_stream = (header(message, b"content-type") or b"").startswith(b"text/event-stream")
                headers = {HEADER: access.id, **self._origins.headers(scope)}
                added = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            else:
                is_whole = not message.get("more_body", False)
                if status >= 400 and not access.error:
                    access.error = error_of(message.get("body", b""))
            await send(message)

        try:
            await self._enter(scope, receive, sending)
        except asyncio.CancelledError:  # the server ends, and does not wait any longer
            access.error = "the server was stopped before the answer was complete"
            error = error_body(access.error, "server_error", code="server_stopped")
            if not status:
                await refuse(sending, 503, error, CLOSE)
            elif is_stream and not is_whole:
                await sending({"type": "http.response.body", "body": b"data: " + error + b"\n\n"})
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


_LOCAL = re.compile(r"localhost|.*\.localhost|.*\.internal")  # names that nobody can register
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*))(?::\d*)?")
MAX_NAMED = 80  # characters of a name in a message
_PREFLIGHT_SECONDS = "600"  # that a browser may remember an answer

Headers = dict[str, str]


class Origins:
    """The rules of one server. One with a key answers everybody who sends it, which no other page can."""

    def __init__(self, settings: ServerSettings) -> None:
        self._allowed = {origin.lower() for origin in settings.allow_origins}
        self._names = {_name(urlsplit(origin).netloc) for origin in self._allowed} | {socket.gethostname().lower()}
        self._has_key = settings.api_key is not None

    def refusal(self, scope: Scope) -> str | None:
        """Why a request may not be answered; None if it may."""
        origin = _text(scope, b"origin")
        if (self._is_foreign(scope) and not self._has_key) or (is_preflight(scope) and not self._allows(origin)):
            return (
                f"a page of {brief(origin)} may not use this server: allow it with --allow-origin {origin[:MAX_NAMED]}"
            )
        if self._has_key or ANY_ORIGIN in self._allowed or self._is_own_name(scope):
            return None
        host = _text(scope, b"host")
        way = f"ask it as localhost, or allow it with --allow-origin http://{host[:MAX_NAMED]}"
        return f"this server is not called {brief(host)}: {way}"

    def headers(self, scope: Scope) -> Headers:
        """The headers that let a page read the answer to its request; none if it is not allowed to."""
        origin = _text(scope, b"origin")
        if not origin or not self._allows(origin):
            return {}
        headers = {"access-control-allow-origin": origin, "vary": "Origin"}
        if is_preflight(scope):
            headers |= {
                "access-control-allow-methods": "GET, HEAD, POST",
                "access-control-allow-headers": _text(scope, b"access-control-request-headers") or "*",
                "access-control-max-age": _PREFLIGHT_SECONDS,
            }
            if header(scope, b"access-control-request-private-network") is not None:
                headers["access-control-allow-private-network"] = "true"
        return headers

    def _allows(self, origin: str) -> bool:
        return ANY_ORIGIN in self._allowed or origin.lower() in self._allowed

    def _is_foreign(self, scope: Scope) -> bool:
        origin = _text(scope, b"origin").lower()
        own = {f"{scheme}://{_text(scope, b'host').lower()}" for scheme in ("http", "https")}
        return bool(origin) and origin not in own and not self._allows(origin)

    def _is_own_name(self, scope: Scope) -> bool:
        """Whether the name in `Host` leads to this machine whoever asks. No page can have an address as its name, and
        on addresses that other machines reach, any name may."""
        host = _name(_text(scope, b"host"))
        local = str((scope.get("server") or ("",))[0]).lower()
        address = _address(local)
        address = getattr(address, "ipv4_mapped", None) or address  # of a socket that takes IPv4 as IPv6
        is_reached = address is not None and not address.is_loopback
        known = host in ("", local) or host in self._names or _LOCAL.fullmatch(host) is not None
        return is_reached or known or _address(host) is not None


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks if a page may send a request."""
    return scope.get("method") == "OPTIONS" and header(scope, b"access-control-request-method") is not None


def _text(scope: Scope, name: bytes) -> str:
    return (header(scope, name) or b"").decode("latin-1").strip()


def _name(host: str) -> str:
    """A host without its port, in lower case."""
    parts = _HOST.fullmatch(host)
    return (host if parts is None else parts[1] or parts[2]).lower().removesuffix(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
