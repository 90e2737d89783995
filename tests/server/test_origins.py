"""Web pages: those that are allowed use the server, and no others reach one without a key, by whatever name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from copyspec.server.gate import Gate
from copyspec.server.settings import ServerSettings

PAGE = "http://localhost:3000"


class Counter:
    def answered(self, *_: object) -> None: ...


async def app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"answer"})


def ask(
    method: str = "POST", path: str = "/v1/chat/completions", *, server: str = "127.0.0.1", key: str | None = None,
    origins: tuple[str, ...] = (), **headers: str,
) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
    """The status, headers and body that a request gets from a server at an address."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs, "server": (server, 8000)}
    settings = ServerSettings(allow_origins=origins, api_key=key)
    settings.verify()
    asyncio.run(Gate(app, settings, Counter())(scope, receive, send))  # type: ignore[arg-type]
    received = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return sent[0]["status"], received, sent[1]["body"]


def preflight(origin: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization, content-type"}
    return ask("OPTIONS", origin=origin, host="localhost:8000", **asked, **more)


OWN = [
    "localhost",
    "localhost:8000",
    "LOCALHOST:8000",
    "localhost.",
    "127.0.0.1:8000",
    "127.1.2.3",
    "[::1]:8000",
    "[::1]",
]
OWN += ["0.0.0.0:8000", "192.168.1.7:8000", "a.localhost:8000", "host.docker.internal:8000", ""]
FOREIGN = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io:8000", "evil.example.", "x"]
FOREIGN += [
    "localhost@evil.example",
    "evillocalhost",
    "[::1].evil.example",
    "127.0.0.1:8000.evil.example",
    "evil.local",
]


@pytest.mark.parametrize("host", OWN)
@pytest.mark.parametrize("server", ["127.0.0.1", "::1"])
def test_own_names_are_answered(host: str, server: str) -> None:
    assert ask(server=server, host=host)[0] == 200
    assert ask("GET", "/v1/models", server=server, host=host)[0] == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("server", ["127.0.0.1", "127.0.1.1", "::1", "testserver"])
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/metrics")])
def test_foreign_names_are_refused(host: str, server: str, method: str, path: str) -> None:
    status, _, body = ask(method, path, server=server, host=host)
    error = json.loads(body)["error"]
    assert status == 403 and error["code"] == "origin_not_allowed" and "--allow-origin http://" in error["message"]
    origin = f"http://{host}"
    assert ask(method, path, server=server, host=host, origin=origin)[0] == 403  # the page of that name
    assert ask(method, path, server=server, host=host, key="k", authorization="Bearer k")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "box:8000"])
def test_any_name_may_lead_to_a_server_that_other_machines_reach(host: str) -> None:
    assert ask(server="192.168.1.5", host=host)[0] == 200
    assert ask(server="192.168.1.5", host=host, origin=f"http://{host}")[0] == 200
    assert ask(server="192.168.1.5", host=host, origin=PAGE)[0] == 403


PAGES = [
    PAGE,
    "http://evil.example",
    "https://evil.example:8000",
    "null",
    "file://",
    "http://localhost:8001",
    "http://127.0.0.1:8000",
]
PAGES += [
    "app://obsidian.md",
    "chrome-extension://abc",
    "http://localhost:8000.evil.example",
    "http://evil@localhost:8000",
]


@pytest.mark.parametrize("origin", PAGES)
def test_pages_are_refused_unless_allowed(origin: str) -> None:
    for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("OPTIONS", "/v1/models")):
        status, headers, body = ask(method, path, host="localhost:8000", origin=origin)
        assert status == 403 and "access-control-allow-origin" not in headers
        assert f"--allow-origin {origin}" in json.loads(body)["error"]["message"]
    status, headers, _ = preflight(origin)
    assert status == 403 and "access-control-allow-origin" not in headers
    status, headers, _ = preflight(origin, key="k")
    assert status == 403 and "access-control-allow-origin" not in headers
    status, headers, _ = ask(host="localhost:8000", origin=origin, key="k", authorization="Bearer k")
    assert status == 200 and "access-control-allow-origin" not in headers


@pytest.mark.parametrize("origin", ["http://localhost:8000", "https://localhost:8000", "HTTP://LOCALHOST:8000"])
def test_the_servers_own_pages_are_answered(origin: str) -> None:
    assert ask(host="localhost:8000", origin=origin)[0] == 200


ALLOWED = [page for page in PAGES if page not in ("file://", "http://evil@localhost:8000")]


@pytest.mark.parametrize("origin", ALLOWED)
@pytest.mark.parametrize("anybody", [False, True])
@pytest.mark.parametrize("key", [None, "k"])
def test_allowed_pages_use_the_server(origin: str, anybody: bool, key: str | None) -> None:
    origins = ("*",) if anybody else ("http://another.example", origin)
    status, headers, body = preflight(origin, origins=origins, key=key)
    assert (status, body) == (200, b"") and headers["access-control-allow-origin"] == origin
    assert headers["access-control-allow-headers"] == "authorization, content-type"
    assert "POST" in headers["access-control-allow-methods"] and headers["vary"] == "Origin"
    assert "access-control-allow-private-network" not in headers
    status, headers, body = ask(
        host="localhost:8000", origin=origin, origins=origins, key=key, authorization="Bearer k"
    )
    assert (status, body) == (200, b"answer") and headers["access-control-allow-origin"] == origin
    assert "access-control-allow-methods" not in headers and headers["content-type"] == "text/plain"
    if key is not None:  # a page can read why it is refused
        status, headers, _ = ask(host="localhost:8000", origin=origin, origins=origins, key=key)
        assert status == 401 and headers["access-control-allow-origin"] == origin
    if not anybody:
        assert ask(host="localhost:8000", origin="http://third.example", origins=origins)[0] == 403


def test_a_page_of_the_network_may_ask_this_machine() -> None:
    _, headers, _ = preflight(PAGE, origins=(PAGE,), access_control_request_private_network="true")
    assert headers["access-control-allow-private-network"] == "true"


def test_names_of_allowed_pages_lead_here() -> None:
    origins = ("https://llm.example", "http://other.example:8443")
    for host in ("llm.example", "LLM.example:443", "other.example:8443", "other.example"):
        assert ask(host=host, origins=origins)[0] == 200
    assert ask(host="x.llm.example", origins=origins)[0] == 403


@pytest.mark.parametrize(
    "origin",
    ["", "localhost:3000", "http://localhost:3000/", "http://localhost:3000/chat", "http://", "//x", "http://a b", "http://*.x",
     "http://a,http://b", "http://a?b", "http://u@a", "nul", "**", "x" * 5000],
)  # fmt: skip
def test_what_is_no_origin_is_an_error(origin: str) -> None:
    with pytest.raises(
        ValueError, match=r"allow_origins: .+ is no origin: name the page's scheme, host and port"
    ) as caught:
        ServerSettings(allow_origins=(origin,)).verify()
    assert len(str(caught.value)) < 300
