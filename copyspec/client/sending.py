"""Sends requests to a server: as many at once as it takes, and again where that is safe."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import random
import re
import signal
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache, partial
from importlib import import_module
from time import monotonic, time
from typing import Any, TypeVar
from urllib.parse import urlsplit

from copyspec.common.extras import install
from copyspec.common.forks import fork_safe

CHAT = "/chat/completions"
TRIES = 8
"""A request is sent so often before its answer is given up: after a lost connection, an error of the server, or an
answer that cannot be read."""
PROBES = 3  # tries of the first request: a wrong address is soon named
PATIENCE = 600.0  # seconds for which a server may say that it is busy
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0  # seconds before a request is sent again; the pause doubles
LONGEST_WAIT = 120.0  # seconds of a server's Retry-After that are obeyed
GROWTH = 0.5  # by which the number of requests at once grows while as many as that are answered
CONNECT_SECONDS = 10.0
CLOSING_SECONDS = 0.5
LANE = 4
"""Requests that one client has under way. For each request, it asks the system about all of its connections that are
idle: with 32 of them that takes as long as half of the rest."""
BUSY = (429, 503, 529)
AGAIN = (408, 409, 425, 500, 502, 504, 520, 521, 522, 523, 524)
_NAMED = re.compile(r"jinja|chat template|system (?:role|message)|roles must|context (?:length|size|window)", re.I)
"""What llama.cpp's servers say with status 500 of requests that they do not take: sent again, they fail again."""
_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{')  # within a text, quotes are escaped
MAX_MESSAGE = 300  # characters of a server's error that are shown

_RAW = {"X-Stainless-Raw-Response": "true"}  # the client gives the response itself: its models take as long as the rest

T = TypeVar("T")


class ServerError(ConnectionError):
    """A server cannot be reached, or does not do what is asked of it."""


class AgainError(Exception):
    """An attempt failed, and another one may not."""


class BusyError(AgainError):
    """The server has too much to do. `seconds`: what it asks to wait; None: it does not say."""

    def __init__(self, message: str, seconds: float | None) -> None:
        super().__init__(message)
        self.seconds = seconds


class RefusedError(Exception):
    """The server does not take this request."""

    def __init__(self, message: str, param: str | None, code: str | None) -> None:
        super().__init__(message)
        self.param, self.code = param, code

    def names(self, field: str) -> bool:
        """Whether the error is about a field of the body."""
        return field == (self.param or "").split(".")[0] or field in str(self)


_TLS_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


@cache
def _tls_of(module: str, *_: str | None) -> Any:
    """What all clients of an HTTP module share while these variables stay: it takes ten times as long as the rest of a
    client."""
    return import_module(module).create_ssl_context()


class Sender:
    """One server. Requests run in an event loop in a thread of its own."""

    def __init__(self, url: str, key: str | None, concurrency: int, timeout: float) -> None:
        self.url = url
        self.answered = 0  # requests
        self.failures: Counter[str] = Counter()  # attempts that were made again, by what was wrong
        self.most, self._limit, self._running = concurrency, float(concurrency), 0
        self._key, self._timeout = key, timeout
        self._pause_until = 0.0
        self._lanes: dict[asyncio.AbstractEventLoop, list[_Lane]] = {}  # by the loop that their connections belong to
        self._headers: dict[str, Any] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = fork_safe(threading.Lock())

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop."""
        with self._lock:
            if self._loop is None:
                self._loop = loop = asyncio.new_event_loop()
                self._waiting.clear()
                self._thread = threading.Thread(target=loop.run_forever, name="copyspec server", daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it, or cancel it if the wait is interrupted."""
        assert threading.current_thread() is not self._thread  # it would wait for itself
        future = self.start(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    def close(self) -> None:
        """Close all connections. The next request opens new ones."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_ended(self._lanes.setdefault(loop, [])), loop).result(CONNECT_SECONDS)
        del self._lanes[loop]
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CONNECT_SECONDS)
        if not thread.is_alive():
            loop.close()

    async def until_answered(self, send: Callable[[], Coroutine[Any, Any, T]], most: int | None = None) -> T:
        """The result of `send`, which is called again after an AgainError. Raises the last one when it is given up,
        and ServerError if nothing else has been answered since the first."""
        began, before, tries, pause = monotonic(), self.answered, 0, FIRST_PAUSE
        while True:
            try:
                async with self._place():
                    answer = await send()
                self.answered += 1
                return answer
            except AgainError as error:
                is_busy = isinstance(error, BusyError)
                tries += not is_busy
                if tries >= (most or TRIES) or (is_busy and monotonic() - began > PATIENCE):
                    if self.answered == before:
                        raise ServerError(f"{self.url}: {error}, and so {tries or 'many'} times") from None
                    raise
                self.failures[re.split(r" \(|:", str(error))[0]] += 1
                wait = error.seconds if isinstance(error, BusyError) and error.seconds is not None else pause
                pause = min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(min(wait, LONGEST_WAIT) * random.uniform(1.0, 1.25))

    async def post(self, path: str, body: Mapping[str, object], id: str = "") -> tuple[Mapping[str, str], bytes]:
        """Send a request; the headers and the body of its answer. `id`: of the request, which some servers repeat."""
        with errors_of(self), self._lane() as client:
            headers = {**_RAW, **self._headers, **({"x-request-id": id} if id else {})}
            raw = await client.post(path, cast_to=object, body=body, options={"headers": headers})
        if (said := _error_in(raw.content)) is not None:
            raise self.error_of(status_in(said), said, raw.headers)
        return raw.headers, raw.content

    async def get(self, path: str) -> bytes:
        with errors_of(self), self._lane() as client:
            raw = await client.get(path, cast_to=object, options={"headers": {**_RAW, **self._headers}})
            content: bytes = raw.content
            return content

    async def stream(self, body: Mapping[str, object]) -> Any:
        """Send a request whose answer comes as a stream of events."""
        with errors_of(self), self._lane() as client:
            return await client.chat.completions.create(**_split(body), stream=True, extra_headers=self._headers)

    def public(self, text: str) -> str:
        """A text of the server, shortened and without the key, which some servers repeat."""
        if self._key:
            text = text.replace(self._key, "***")
        text = " ".join(text.split())
        return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Wait until the server takes one more request. It gets half as many after it was too busy, and then gradually
        more."""
        while (wait := self._pause_until - monotonic()) > 0:
            await asyncio.sleep(wait)
        while self._running >= int(self._limit):
            self._waiting.append(turn := asyncio.get_running_loop().create_future())
            await turn
        self._running += 1
        try:
            yield
            self._limit = min(float(self.most), self._limit + GROWTH / self._limit)
        except BusyError as error:
            if monotonic() >= self._pause_until:  # else the others that were under way have told so already
                self._limit = max(1.0, self._limit / 2)
                self._pause_until = monotonic() + min(error.seconds or FIRST_PAUSE, LONGEST_WAIT)
            raise
        finally:
            self._running -= 1
            free = int(self._limit) - self._running
            while free > 0 and self._waiting:
                if not (turn := self._waiting.popleft()).done():  # else it was cancelled
                    turn.set_result(None)
                    free -= 1

    @contextmanager
    def _lane(self) -> Iterator[Any]:
        """A client for one request."""
        lanes = self._lanes.setdefault(asyncio.get_running_loop(), [])
        lane = next((lane for lane in lanes if lane.running < LANE), None)
        if lane is None:
            lanes.append(lane := _Lane(self._opened()))
        lane.running += 1
        try:
            yield lane.client
        finally:
            lane.running -= 1

    def _opened(self) -> Any:
        try:
            import openai
        except ImportError:
            raise ImportError(f"a server needs the openai client: {install('remote')}") from None
        base = openai.DefaultAsyncHttpxClient.__bases__[0]  # of httpx, or of httpx2 from openai 3 on
        tls = _tls_of(base.__module__.partition(".")[0], *map(os.environ.get, _TLS_VARIABLES))
        timeout = openai.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout))
        self._headers = {} if self._key else {"Authorization": openai.Omit()}
        return openai.AsyncOpenAI(
            base_url=self.url,
            api_key=self._key or "none",
            max_retries=0,
            timeout=timeout,
            http_client=openai.DefaultAsyncHttpxClient(verify=tls),
        )

    def __repr__(self) -> str:
        return f"Sender({self.url!r})"

    def error_of(self, status: int, body: object, headers: Mapping[str, str]) -> Exception:
        """What an answer that is an error means."""
        error = body.get("error", body) if isinstance(body, Mapping) else body
        fields = error if isinstance(error, Mapping) else {}
        text = str(fields.get("message") or error or "")
        is_page = text.lstrip()[:1] == "<"
        detail = self.public("an HTML page" if is_page else text)
        message, code = f"it answers {status}{f' ({detail})' if detail else ''}", fields.get("code")
        if status in BUSY and code != "insufficient_quota":
            return BusyError(message, _seconds(headers))
        if (status in AGAIN and not (status == 500 and _NAMED.search(text))) or is_page:
            return AgainError(message)
        if status in (401, 403):
            way = "check the key" if self._key else "it wants a key: set COPYSPEC_API_KEY"
            return ServerError(f"{self.url}: {message}; {way}")
        if status in (402, 404, 405, *BUSY):
            return ServerError(f"{self.url}: {message}")
        param = fields.get("param")
        return RefusedError(message, param if isinstance(param, str) else None, str(code) if code else None)


@dataclass(slots=True)
class _Lane:
    """A client, with the number of requests that it has under way."""

    client: Any
    running: int = 0


async def _ended(lanes: Sequence[_Lane]) -> None:
    """End what runs in the loop, and all connections."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        # Those that were cancelled are closing their connections, which another cancellation would leave open.
        _, left = await asyncio.wait(others, timeout=CLOSING_SECONDS)
        for task in left:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    for lane in lanes:
        await lane.client.close()
    await asyncio.get_running_loop().shutdown_asyncgens()


class errors_of:
    """Turns the client's errors into those of this module."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, (ImportError, TypeError)):
            return
        import openai

        if isinstance(error, openai.APIStatusError):
            headers: Mapping[str, str] = error.response.headers
            body = error.body if error.body is not None else error.response.text
            raise self._sender.error_of(error.status_code, body, headers) from None
        if isinstance(error, openai.APIError) and error.body is not None:  # in a stream
            raise self._sender.error_of(status_in(error.body), error.body, {}) from None
        if isinstance(error, openai.APITimeoutError):
            raise AgainError(f"no answer within {self._sender._timeout:g} s") from None
        cause = error.__cause__ or error
        why = str(cause) or type(cause).__name__
        raise AgainError(self._sender.public(f"the connection failed ({why})")) from None


def _error_in(data: bytes) -> object:
    """The error that an answer with status 200 holds; None if it is something else."""
    if b'"error"' not in data or _CHOICE.search(data):
        return None
    try:
        body = json.loads(data)
        return body.get("error") if isinstance(body, dict) else None
    except (ValueError, RecursionError):
        return None


def status_in(error: object) -> int:
    """The status that an error stands for that came with status 200."""
    code = error.get("code") if isinstance(error, Mapping) else None
    return code if type(code) is int and 400 <= code < 600 else 500


def check_url(url: object) -> str:
    """The address of a server's API. Raises TypeError or ValueError, without a password in it, for anything else."""
    if not isinstance(url, str):
        raise TypeError(f"url must be a str, got {type(url).__name__}")
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.username is not None or parts.password is not None:
        raise ValueError("url holds a user or a password: leave it out, and give a key by COPYSPEC_API_KEY")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ValueError(f"url={url!r} is no address of a server, such as http://127.0.0.1:8000/v1")
    path = parts.path.rstrip("/").removesuffix(CHAT) or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


def is_loopback(url: str) -> bool:
    """Whether what is sent there stays on this machine."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def _split(body: Mapping[str, object]) -> dict[str, object]:
    """A body as arguments of the client's method."""
    own = {name: body[name] for name in ("model", "messages")}
    return {**own, "extra_body": {name: value for name, value in body.items() if name not in own}}


def _seconds(headers: Mapping[str, str]) -> float | None:
    """What a server asks to wait, in seconds."""
    value = headers.get("retry-after")
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
        return None if value is None else max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(str(value)).timestamp() - time())
    except (TypeError, ValueError):
        return None


logger = logging.getLogger(__name__)

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def as_ended(
    inputs: Iterable[Question | None], start: Callable[[Question], Future[Answer]], most: int
) -> Iterator[tuple[int, Answer]]:
    """Yield (index of the input, its answer), with at most that many under way. A None among the inputs means that none
    is available until an answer has come.

    The first Ctrl-C only ends the taking of inputs: answers that are under way may have been paid for.
    """
    ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # None: Ctrl-C
    running: dict[int, Future[Answer]] = {}
    waiting, count, has_more, is_stopped = iter(inputs), 0, True, False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True
        ended.put(None)  # wakes the wait
        logger.warning("stopping: %d answers are under way and will be kept (Ctrl-C again drops them)", len(running))

    with _held_interrupts(stop):
        try:
            while True:
                while has_more and not is_stopped and len(running) < most:
                    try:
                        input_ = next(waiting)
                    except StopIteration:
                        has_more = False
                        break
                    if input_ is None:
                        break
                    running[count] = start(input_)
                    running[count].add_done_callback(partial(_put, ended, count))
                    count += 1
                if not running and is_stopped:
                    raise KeyboardInterrupt
                if not running and not has_more:
                    return
                number = ended.get() if running else None
                if number is not None:
                    yield number, running.pop(number).result()
        finally:
            for future in running.values():
                future.cancel()


def _put(ended: queue.SimpleQueue[int | None], index: int, _: object) -> None:
    ended.put(index)


@contextmanager
def _held_interrupts(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C in the block, in place of an interrupt; the second one interrupts."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield
        return

    def hold(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
