"""The server on a real port of this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from copyspec.server.endpoints import Server
from copyspec.server.listening import address_of, is_local, listen, uvicorn_server
from copyspec.server.settings import ServerSettings

if TYPE_CHECKING:
    from copyspec import Engine

KEY = "secret"


@contextlib.contextmanager
def serving(engine: Engine, *, stop_seconds: float = 2, **settings: Any) -> Iterator[str]:
    """Yield the address of a running server."""
    bound = listen("127.0.0.1", 0, 5.0)
    assert is_local(bound)
    server = Server(engine, ServerSettings(**{"names": ("tiny",), "api_key": KEY, **settings}))
    server.warm_up()
    running = uvicorn_server(server, stop_seconds=stop_seconds)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield address_of(bound)
    finally:
        running.should_exit = True
        thread.join(20)
        bound.close()
        engine.scheduler.max_waiting = None
        assert not thread.is_alive()
