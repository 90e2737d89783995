"""Chat requests to one server, and its answers as results."""

from __future__ import annotations

import logging
import queue
import re
import uuid
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from copyspec.client import reading
from copyspec.client.dialects import ChatRequest, Dialect
from copyspec.client.sending import CHAT, AgainError, RefusedError, Sender, ServerError, errors_of
from copyspec.decoding.stats import Stats
from copyspec.engine.asking.inputs import PromptTooLongError
from copyspec.engine.results import Chunk, NoAnswer, Result
from copyspec.engine.results.logprobs import TokenLogprob
from copyspec.text.replies.reader import Parts

logger = logging.getLogger(__name__)

_LENGTH = re.compile(r"context (?:length|window|size)|maximum context|too long|too many tokens|exceeds? the", re.I)
_MUCH = re.compile(
    r"max_(?:completion_)?tokens\b.{0,80}(?:too large|at most|exceed|less than|maximum)|"
    r"(?:too large|exceed).{0,80}max_(?:completion_)?tokens",
    re.IGNORECASE,
)
_FILTER = re.compile(r"content[ _](?:filter|policy|management)|responsible ?ai", re.I)


@dataclass(slots=True)
class Usage:
    """What a server has counted. Predictions are drafts that it took from the request."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts, those that it knew
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    def add(self, counts: Mapping[str, int]) -> None:
        self.requests += 1
        for field in fields(self):
            if field.name != "requests":
                setattr(self, field.name, getattr(self, field.name) + counts.get(field.name, 0))


@dataclass(frozen=True, slots=True)
class Recipient:
    """The model that requests are for."""

    dialect: Dialect
    names: Sequence[str]  # under which it may answer; a server with one model has it under any name
    variables: Mapping[str, object]  # of the chat template


SAME = 2
"""An answer that may be another request's is the model's own if it comes more often than this. A server that mixes
answers up may do so twice for the same two texts."""


class Completions:
    """Requests to one server. `usage` is what it has counted so far."""

    def __init__(self, sender: Sender) -> None:
        self.url, self.usage = sender.url, Usage()
        self._sender = sender
        self._said: set[str] = set()
        self._running: set[str] = set()  # ids of requests
        self._recent: deque[frozenset[tuple[str, str]]] = deque(maxlen=8 * sender.most)  # of the texts last asked about

    async def answer(self, request: ChatRequest, to: Recipient) -> Result | NoAnswer:
        """The result of a request, or why there is none. Raises ServerError if no other one can succeed either."""
        id_, seen = uuid.uuid4().hex, Counter[str]()
        self._running.add(id_)
        try:
            answer = await self._sender.until_answered(lambda: self._attempt(request, to, id_, seen))
        except AgainError as error:
            return NoAnswer("server", f"the server failed: {error}, and so each time")
        except RefusedError as error:
            return self._refused(error)
        finally:
            self._running.discard(id_)
        self.usage.add(answer.usage)
        if answer.finish == "filtered":
            return NoAnswer("filtered", f"the server's filter stopped the answer{_quoted(answer.parts.content)}")
        if answer.finish not in ("stop", "length"):
            return NoAnswer("unfinished", f"the answer ended for the reason {answer.finish[:40]!r}")
        return self._made(request, answer)

    async def _attempt(self, request: ChatRequest, to: Recipient, id_: str, seen: Counter[str]) -> reading.ReadAnswer:
        if request.edit_source:
            self._recent.append(_pairs(request.edit_source))
        headers, data = await self._asked(request, to, lambda body: self._sender.post(CHAT, body, id_))
        answer = reading.read(headers, data, to.names, to.dialect.model)
        other = headers.get("x-request-id", id_)
        if other != id_ and other in self._running:
            raise AgainError("it sent the answer of another request")
        content = answer.parts.content
        if request.edit_source and seen[content] < SAME and self._is_mixed(request.edit_source, content):
            seen[content] += 1
            raise AgainError("it may have sent the answer of another request")
        return answer

    async def _asked(self, request: ChatRequest, to: Recipient, send: Callable[[dict[str, object]], Any]) -> Any:
        """What `send` returns for the request, once more without fields that the server refuses."""
        dialect, before, said = to.dialect, to.dialect.left_out.copy(), list[str]()
        while True:
            body = request.body(dialect, to.variables)
            try:
                answer = await send(body)
            except RefusedError as error:
                if request.max_new_tokens is not None and _MUCH.search(str(error)):
                    request = replace(request, max_new_tokens=None)  # an estimate that was too high
                    continue
                note = None if _is_final(error) else dialect.without(body, error)
                if note is None:
                    dialect.left_out = before  # that was not the reason
                    raise
                said.append(note)
                continue
            for note in filter(None, said):
                self._say(note)
            return answer

    def _is_mixed(self, source: str, content: str) -> bool:
        """Whether the answer is nearer to another text that is or was under way, and shares new words with it."""
        pairs, own = _pairs(content), _pairs(source)
        new, changed = pairs - own, len(own ^ pairs)
        return any(not new.isdisjoint(other) and len(other ^ pairs) < changed for other in self._recent)

    def _refused(self, error: RefusedError) -> NoAnswer:
        if error.code == "context_length_exceeded" or _LENGTH.search(str(error)):
            return NoAnswer("length", f"longer than the model's context ({error})")
        if error.code == "content_filter" or _FILTER.search(str(error)):
            return NoAnswer("filtered", f"the server's filter refused the request ({error})")
        if not self.usage.requests:
            raise ServerError(f"{self.url}: {error}")
        return NoAnswer("server", f"the server refused the request: {error}")

    def _made(self, request: ChatRequest, answer: reading.ReadAnswer) -> Result:
        text, source, counts = answer.parts.content, request.edit_source, answer.usage
        changes, logprobs = answer.changes or (), tuple[TokenLogprob, ...]()
        has_margins = request.margins and source and answer.changes is None and text != source
        if has_margins or request.logprobs is not None:
            logprobs = reading.logprobs_of(answer.logprobs)
        if source and has_margins and logprobs:
            changes = reading.changes_by_text(source, text, logprobs)
        accepted = counts.get("accepted_prediction_tokens", 0)
        stats = Stats(
            num_output_tokens=counts.get("completion_tokens", 0),
            num_draft_tokens=accepted + counts.get("rejected_prediction_tokens", 0),
            num_accepted_tokens=accepted,
            num_cached_tokens=counts.get("cached_tokens", 0),
        )
        sources = request.sources()
        return Result(
            text=text,
            token_ids=(),
            finish_reason="stop" if answer.finish == "stop" else "length",
            stop_reason=None,
            prompt_tokens=counts.get("prompt_tokens", 0),
            stats=stats,
            logprobs=logprobs if request.logprobs is not None else (),
            changes=changes,
            _spans=lambda: reading.spans_by_text(text, sources),
            _sources=lambda: tuple(sources),
            _parts=answer.parts,
        )

    def stream(self, request: ChatRequest, to: Recipient) -> Generator[Chunk, None, None]:
        """The result in pieces. Closing the iterator ends the request."""
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()

        async def read() -> None:
            try:
                stream = await self._sender.until_answered(lambda: self._asked(request, to, self._sender.stream))
                try:
                    with errors_of(self._sender):
                        async for event in stream:
                            events.put(event.model_dump(warnings=False))  # of fields that the client's types lack
                finally:
                    await stream.close()
                events.put(None)
            except BaseException as error:
                events.put(error)

        future = self._sender.start(read())
        written, thought, finish, usage = "", "", "", dict[str, int]()
        thoughts, answered = reading.CharacterJoiner(), reading.ThoughtSplitter()
        try:
            while (event := events.get()) is not None:
                if isinstance(event, BaseException):
                    raise self._broken(event) from None
                usage = reading.usage_of(event.get("usage")) or usage
                for choice in (event.get("choices") or ())[:1]:
                    delta = choice.get("delta") or {}
                    finish = choice.get("finish_reason") or finish
                    new, said = reading.texts_of(delta)
                    new = thoughts.push(new)
                    more, content = answered.push(said or str(delta.get("refusal") or ""))
                    thought, written = thought + new + more, written + content
                    if new or more or content:
                        yield Chunk(content, (), reasoning=new + more, content=content)
            more, content = answered.finish()
            more = thoughts.push("", is_last=True) + more
            thought, written = thought + more, written + content
            if not finish:
                raise ServerError(f"{self.url}: the answer broke off")
            answer = reading.ReadAnswer(Parts(thought, written), reading.finish_of(finish), usage)
            self.usage.add(usage)
            if answer.finish not in ("stop", "length"):
                raise ServerError(f"{self.url}: the answer was stopped ({answer.finish})")
            yield Chunk(content, (), reasoning=more, content=content, result=self._made(request, answer))
        finally:
            future.cancel()

    def _broken(self, error: BaseException) -> BaseException:
        if isinstance(error, RefusedError):
            return error_of(self._refused(error), self.url)
        if isinstance(error, AgainError) or (isinstance(error, Exception) and not isinstance(error, OSError)):
            return ServerError(f"{self.url}: the answer broke off: {self._sender.public(str(error))}")
        return error

    def _say(self, note: str) -> None:
        if note not in self._said:
            self._said.add(note)
            logger.warning("%s: %s", self.url, note)


def error_of(answer: NoAnswer, url: str) -> Exception:
    return PromptTooLongError(answer.detail) if answer.reason == "length" else ServerError(f"{url}: {answer.detail}")


def _is_final(error: RefusedError) -> bool:
    """Whether another body would be refused as well."""
    text = f"{error.code} {error}"
    is_long = "context_length" in text or ("max" not in str(error.param) and _LENGTH.search(text))
    return bool(is_long or _FILTER.search(text))


def _quoted(text: str) -> str:
    return f": {text[:80]!r}" if text else ""


def _pairs(text: str) -> frozenset[tuple[str, str]]:
    """The words of a text, each with the one before it."""
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(["", *words], words, strict=False))
