"""The server on a real port, with the clients that people use: openai, LangChain, a socket."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import openai
import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from copyspec.pipelines.langchain import with_references
from copyspec.server.asgi import Rest
from copyspec.server.listening import listen
from tests.helpers.served import KEY, serving

if TYPE_CHECKING:
    from copyspec import Engine

MESSAGES: Any = [{"role": "user", "content": "The cat sat on the mat."}]


@pytest.fixture(scope="module")
def address(engine: Engine) -> Iterator[str]:
    with serving(engine) as url:
        yield url


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as openai_client:
        yield openai_client


def test_openai_whole_and_in_pieces(engine: Engine, client: Any) -> None:
    expected = engine.generate(MESSAGES, max_new_tokens=16)
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=16)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.completion_tokens == len(expected.token_ids)
    helped = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_completion_tokens=16,
        prediction={"type": "content", "content": "a guess"},
        extra_body={"references": ["a passage"], "edit_source": "a text", "spans": True},
    )
    assert helped.choices[0].message.content == expected.text
    assert isinstance(helped.choices[0].spans, list)
    assert helped.usage.completion_tokens_details.rejected_prediction_tokens >= 0
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    pieces = list(stream)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == expected.text
    assert pieces[-1].usage.completion_tokens == len(expected.token_ids)
    text = engine.generate("The cat", max_new_tokens=8).text
    assert client.completions.create(model="tiny", prompt="The cat", max_tokens=8).choices[0].text == text
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_openai_reads_the_errors(address: str, client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature must be"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-3)
    with pytest.raises(openai.NotFoundError, match="no model 'other' here"):
        client.chat.completions.create(model="other", messages=MESSAGES)
    stranger = openai.OpenAI(base_url=f"{address}/v1", api_key="guess", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError, match="wrong or missing key"):
        stranger.models.list()


def test_langchain_whole_and_in_pieces(engine: Engine, address: str) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    llm = chat(base_url=f"{address}/v1", api_key=KEY, model="tiny", max_tokens=16, max_retries=0)
    expected = engine.generate(MESSAGES, max_new_tokens=16).text
    assert llm.invoke("The cat sat on the mat.").content == expected
    assert "".join(piece.content for piece in llm.stream("The cat sat on the mat.")) == expected
    start = pytest.importorskip("langchain.chat_models").init_chat_model  # as in docs/langchain.md
    with pytest.raises(ValueError, match="Unsupported provider='copyspec'"):
        start("tiny", model_provider="copyspec")
    made = start("tiny", model_provider="openai", base_url=f"{address}/v1", api_key=KEY, max_tokens=16, max_retries=0)
    assert made.invoke("The cat sat on the mat.").content == expected
    helped = llm.bind(extra_body={"references": ["a passage"]}).invoke("The cat sat on the mat.")
    assert helped.content == expected and helped.usage_metadata["input_tokens"] > 0


def test_langchains_documents_are_sent_along(engine: Engine, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    llm = chat(base_url=f"{address}/v1", api_key=KEY, model="tiny", max_tokens=8, extra_body={"spans": False})
    started, received = engine.start, []

    def start(prompt: object, references: object, *others: Any) -> Any:
        received.append(references)
        return started(prompt, references, *others)

    monkeypatch.setattr(engine, "start", start)
    prompt = ChatPromptTemplate.from_template("{question}")
    for model in (llm, llm.bind(stop=["@@"]), llm.bind(extra_body={"top_k": 0})):
        chain = with_references(prompt | model | StrOutputParser(), key="docs")
        asked = {"question": "The cat sat on the mat.", "docs": [Document("A passage.", metadata={"source": "a.txt"})]}
        assert chain.invoke(asked) == engine.generate(MESSAGES, max_new_tokens=8).text
        assert received[-2:] == [[{"text": "A passage.", "name": "a.txt"}], None]


def _request(address: str, body: object, length: int | None = None) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {length or len(data)}\r\n\r\n"
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(head.encode() + data)
    return connection


def test_clients_that_go_give_their_rows_back(engine: Engine, address: str) -> None:
    for stream in (True, False):
        connections = [_request(address, {"messages": MESSAGES, "max_tokens": 900, "stream": stream}) for _ in range(5)]
        _wait(lambda: engine.scheduler.running + engine.scheduler.waiting >= 5)
        for connection in connections:
            connection.close()
        _wait(lambda: engine.scheduler.running + engine.scheduler.waiting == 0)


def test_garbage_on_the_port_harms_nobody(address: str, client: Any) -> None:
    host, port = address.removeprefix("http://").split(":")
    for data in (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9\r\n\r\n",
        b"A" * 100_000,
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    with _request(address, {}, length=5 << 20) as connection:
        assert b"413" in connection.recv(1000)
    assert client.models.list().data[0].id == "tiny"


@pytest.mark.parametrize(("key", "said"), [(KEY, b"413"), ("guess", b"401")])
def test_a_client_that_sends_everything_first_sees_why_it_is_refused(address: str, key: str, said: bytes) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", b" " * (9 << 20), {"authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        assert answer.status == int(said) and b"error" in answer.read()


def test_a_rest_is_read_within_bounds() -> None:
    async def endless() -> Any:
        nonlocal count
        count += 1
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b" " * 100, "more_body": True}

    async def silent() -> Any:
        await asyncio.sleep(60)

    count = 0
    asyncio.run(Rest(endless, 60, 1000).skip())
    asyncio.run(Rest(silent, 0.01, 1000).skip())
    assert count == 11


def test_connections_without_a_request_are_closed(engine: Engine) -> None:
    with serving(engine, read_timeout=1.0) as address:
        host, port = address.removeprefix("http://").split(":")
        for sent in (b"", b"GET /health HTTP/1.1\r\nHost: x\r\n"):
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(sent)
                assert connection.recv(1000) == b""
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            for _ in range(2):  # the next request on the same connection is timed too
                connection.sendall(sent + b"\r\n")
                _wait(lambda: connection.recv(1000, socket.MSG_PEEK).endswith(b"}"))
                assert b"200 OK" in connection.recv(1000)
            with pytest.raises(OSError):
                for byte in sent * 90:
                    connection.sendall(bytes([byte]))
                    time.sleep(0.005)


def _stopped(engine: Engine, tokens: int, stop_seconds: float, *, stream: bool = True) -> bytes:
    """What a client still gets of an answer that is written while the server is told to stop."""
    with serving(engine, stop_seconds=stop_seconds) as address:
        connection = _request(address, {"messages": MESSAGES, "max_tokens": tokens, "stream": stream})
        if stream:
            assert connection.recv(10)
        else:
            _wait(lambda: engine.scheduler.running > 0)
    answer = b""
    with connection, contextlib.suppress(OSError):
        while piece := connection.recv(65536):
            answer += piece
    _wait(lambda: engine.scheduler.running == 0)
    return answer


def test_a_stop_lets_running_requests_end(engine: Engine) -> None:
    assert b"[DONE]" in _stopped(engine, 20, 10)


def test_a_stop_ends_requests_that_take_longer(engine: Engine) -> None:
    slow = engine.model.register_forward_pre_hook(lambda *_: time.sleep(0.1))
    try:
        began = time.monotonic()
        for stream in (True, False):
            answer = _stopped(engine, 900, 1, stream=stream)
            assert b"[DONE]" not in answer and b'"code": "server_stopped"' in answer
            assert stream or answer.startswith(b"HTTP/1.1 503 ")
        assert time.monotonic() - began > 2
    finally:
        slow.remove()


def test_a_taken_port_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(OSError, match="take another --port"):
        listen("127.0.0.1", int(address.rpartition(":")[2]), 5.0)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ValueError, match="--host no\\.such\\.host"):
        listen("no.such.host.invalid", 0, 5.0)


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
