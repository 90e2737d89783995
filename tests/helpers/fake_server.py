"""A server of chat completions on a real port that answers as a test says, right or wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Sent:
    """What the server sends for one request."""

    body: Any  # bytes, or what becomes JSON
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0  # seconds before it is sent
    cut: int | None = None  # bytes after which the connection breaks


Reply = Callable[[dict[str, Any]], Sent]


class FakeServer:
    """Keeps what it was asked: the bodies, and the headers of each."""

    def __init__(self, reply: Reply, models: Any) -> None:
        self.reply, self.models = reply, models
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most = self.open = 0  # requests at once
        self.url = ""
        self.counts: Reply = lambda body: Sent(b"", 404)  # most servers do not count tokens

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                data = await reader.readexactly(int(headers.get("content-length", 0)))
                if head[0].startswith("GET"):
                    sent = self.models if isinstance(self.models, Sent) else Sent({"data": self.models})
                elif "/tokenize " in head[0]:
                    self.open += 1
                    sent = self.counts(json.loads(data))
                else:
                    self.bodies.append(json.loads(data))
                    self.headers.append(headers)
                    self.open += 1
                    self.most = max(self.most, self.open)
                    sent = self.reply(self.bodies[-1])
                if sent.delay:
                    await asyncio.sleep(sent.delay)
                self.open -= not head[0].startswith("GET")
                await self.send(writer, sent)
                if sent.cut is not None:
                    break
        writer.close()

    async def send(self, writer: asyncio.StreamWriter, sent: Sent) -> None:
        body = sent.body if isinstance(sent.body, bytes) else json.dumps(sent.body).encode()
        fields = {"content-type": "application/json", "content-length": str(len(body)), **sent.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        answer = f"HTTP/1.1 {sent.status} X\r\n{lines}\r\n".encode() + body
        writer.write(answer if sent.cut is None else answer[: sent.cut])
        await writer.drain()


@contextlib.contextmanager
def fake_server(reply: Reply, models: Any = ({"id": "m", "owned_by": "somebody"},)) -> Iterator[FakeServer]:
    """Yield a running server. `models`: the cards of its models, or what is sent for their list."""
    fake, ready, loop = FakeServer(reply, models), threading.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
        fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        await stopping.wait()
        server.close()

    def run() -> None:
        loop.run_until_complete(serve())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    stopping = asyncio.Event()
    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(10)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10)


def completion(content: str | None, *, finish: str | None = "stop", model: str = "m", **more: Any) -> dict[str, Any]:
    """The JSON of an answer; `more`: of its message, besides `choice` and `usage`."""
    choice = {"index": 0, "finish_reason": finish, **more.pop("choice", {})}
    usage = {"prompt_tokens": 7, "completion_tokens": 5, **more.pop("usage", {})}
    choices = [{**choice, "message": {"role": "assistant", "content": content, **more}}]
    return {"id": "x", "object": "chat.completion", "model": model, "choices": choices, "usage": usage}


def asked_text(body: dict[str, Any], instruction: str = "Correct the grammar: ") -> str:
    """The text in the prompt of a request."""
    text = body["messages"][-1]["content"]
    assert isinstance(text, str)
    return text.removeprefix(instruction)
