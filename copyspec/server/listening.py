"""Runs the application on a port until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from copyspec.server.endpoints import Server

KEEP_ALIVE_SECONDS = 30
MAX_CONNECTIONS = 1024


def listen(host: str, port: int, slow_reader: float) -> socket.socket:
    """Open a listening socket. Raises OSError that names the address, and ValueError for an unknown host.

    `slow_reader`: seconds after which the kernel (Linux) closes a connection whose client reads nothing.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except socket.gaierror as error:
        raise ValueError(f"--host {host}: {error.strerror or error}; give an address of this machine") from error
    except OSError as error:
        raise OSError(f"--host {host}: {error.strerror or error}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(slow_reader * 1000))
        bound.bind(address)
        bound.listen(MAX_CONNECTIONS)
    except OSError as error:
        bound.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}; take another --port") from error
    return bound


def address_of(bound: socket.socket) -> str:
    """The address of a listening socket as a URL."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(bound: socket.socket) -> bool:
    """Whether the socket can be reached from this machine only."""
    host = str(bound.getsockname()[0])
    return host.startswith("127.") or host == "::1"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.force_exit:
            logging.getLogger("uvicorn.error").disabled = True  # it would show a traceback for each cancelled request
        else:
            self._on_stop()


def uvicorn_server(
    server: Server, *, stop_seconds: float, on_stop: Callable[[], None] = lambda: None
) -> uvicorn.Server:
    """The uvicorn server: `run(sockets=[...])` serves until SIGINT or SIGTERM, or until `should_exit` is set.

    It then accepts no more requests, and running ones get `stop_seconds` to finish. `on_stop` is called on the first
    signal; a second SIGINT ends them at once.
    """
    config = uvicorn.Config(
        server.app(),
        log_config=None,  # use the program's own logging; nothing goes to stdout
        access_log=False,  # there is `access`, which knows tokens
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(stop_seconds)),
        lifespan="off",
        http=cast("type[asyncio.Protocol]", partial(TimedProtocol, server.settings.read_timeout)),
        ws="none",
    )
    return _Server(config, on_stop)


class TimedProtocol(H11Protocol):
    """Closes a connection on which no whole request head arrives in time: it would take the place of another one."""

    def __init__(self, seconds: float, /, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None  # runs while a head is awaited; a part of it does not restart it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _set_timer(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self._seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
