"""A model behind a URL, which pipelines take wherever they take one in this process."""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from copyspec.client import reading
from copyspec.client.asking import Asking
from copyspec.client.dialects import DIALECTS, Card, ChatRequest, Dialect, Name, dialect_of, request_for, request_of
from copyspec.client.sending import (
    CHAT,
    AgainError,
    RefusedError,
    Sender,
    ServerError,
    as_ended,
    check_url,
    errors_of,
    is_loopback,
)
from copyspec.common.checks import check_number, check_type, check_whole
from copyspec.common.lockless import cached_property
from copyspec.decoding.stats import Stats
from copyspec.engine.asking.inputs import Input, PromptTooLongError
from copyspec.engine.results import Chunk, NoAnswer, Result
from copyspec.engine.results.logprobs import TokenLogprob
from copyspec.models.aliases import ALIASES
from copyspec.models.loading import BUNDLED_LANGUAGES, DEFAULT
from copyspec.text.replies.reader import Parts

logger = logging.getLogger(__name__)

CONCURRENCY, MAX_CONCURRENCY = 32, 1000  # the client opens no more connections
PROBES = 3  # tries of the first request: a wrong address is soon named
TIMEOUT = 300.0  # seconds for an answer

BYTES_PER_TOKEN = 2
"""Fewer than in any language that a model was made for, so that its tokens are rather over-estimated."""
MOST_BYTES = 8  # of a token on average, in any language: what is longer surely does not fit
MOST_COUNTED = 1 << 17  # tokens of texts that a server is asked to count, if its context is not known
FRAME_TOKENS = 64  # of an instruction's chat template

_LENGTH = re.compile(r"context (?:length|window|size)|maximum context|too long|too many tokens|exceeds? the", re.I)
_MUCH = re.compile(
    r"max_(?:completion_)?tokens\b.{0,80}(?:too large|at most|exceed|less than|maximum)|"
    r"(?:too large|exceed).{0,80}max_(?:completion_)?tokens",
    re.IGNORECASE,
)
_COUNTING = ("copyspec", "vllm", "vllm-xargs")
"""Dialects of servers that count tokens for their clients, at /tokenize."""
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


class Remote:
    """A model behind a URL (a `LanguageModel` of the pipelines). `usage` is what the server has counted so far."""

    is_encoder_decoder, has_template, is_chat = False, True, True
    fluency: ClassVar[None] = None
    """A second opinion on edits reads the weights, which are not here: edits are judged without it."""
    instruction = "Correct the grammar: {text}"

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        dialect: Name = "auto",
        concurrency: int = CONCURRENCY,
        timeout: float = TIMEOUT,
    ) -> None:
        self.url = check_url(url)
        check_type(model is None or (isinstance(model, str) and bool(model)), "model", model, "a model's name")
        check_type(api_key is None or isinstance(api_key, str), "api_key", type(api_key).__name__, "a str")
        if api_key is not None and not (api_key.strip() == api_key and api_key.isascii() and api_key.isprintable()):
            raise ValueError("api_key holds white space or characters that no HTTP header can carry")
        if dialect not in DIALECTS:
            raise ValueError(f"dialect={dialect!r} must be one of {', '.join(DIALECTS)}")
        check_whole("concurrency", concurrency, low=1, high=MAX_CONCURRENCY)
        check_number("timeout", timeout, low=0.0, open_low=True)
        self.usage, self.concurrency = Usage(), concurrency
        self.chat_template_kwargs: Mapping[str, object] = {}
        """Variables of the chat template, for servers that take them: {"enable_thinking": False} for example."""
        self._model, self._asked_dialect = model, dialect
        self._sender = Sender(self.url, api_key or None, concurrency, timeout)
        if api_key and self.url.startswith("http:") and not is_loopback(self.url):
            logger.warning("%s: the key goes there unencrypted, over plain http", self.url)
        self._said: set[str] = set()
        self._counts = True  # whether the server is asked for numbers of tokens
        self._running: set[str] = set()  # ids of requests
        self._recent: deque[frozenset[tuple[str, str]]] = deque(maxlen=2 * concurrency)  # of the texts last asked about

    def __repr__(self) -> str:
        return f"Remote({self.url!r}, model={self._model!r})"

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        self._sender.close()

    @property
    def failures(self) -> Mapping[str, int]:
        """Number of requests that were sent again, by what was wrong."""
        return self._sender.failures

    @cached_property
    def card(self) -> Card:
        """What the server says of the model. Raises ServerError if it cannot be reached."""

        async def ask() -> Card:
            try:
                data = await self._sender.until_answered(lambda: self._sender.get("/models"), PROBES)
                return Card.of(data, self._model)
            except (RefusedError, ServerError) as error:
                if "answers 404" in str(error) or "answers 405" in str(error) or isinstance(error, RefusedError):
                    return Card()  # it keeps no list
                raise

        return self._sender.run(ask())

    @cached_property
    def name(self) -> str:
        if self._model is not None:
            return self._model
        if len(self.card.names) == 1:
            return self.card.names[0]
        listed = ", ".join(map(repr, self.card.names[:10])) or "no list of models"
        raise ValueError(f"model is missing: {self.url} has {listed}")

    @property
    def identity(self) -> Mapping[str, object]:
        return {"model": self.name, "server": self.url}

    @property
    def own(self) -> str | None:
        return self.card.own if self.card.own == DEFAULT or self.card.own in ALIASES else None

    @property
    def corrects(self) -> bool:
        return self.own == DEFAULT or (self.own is not None and ALIASES[self.own].corrects)

    @property
    def languages(self) -> Sequence[str]:
        return BUNDLED_LANGUAGES if self.own == DEFAULT else ALIASES[self.own].languages if self.own else ()

    @property
    def context(self) -> int | None:
        return self.card.context

    @cached_property
    def dialect(self) -> Dialect:
        """How requests are written: as the server says of itself, or as was asked for."""
        name = self._asked_dialect if self._asked_dialect != "auto" else dialect_of(self.card.owner)
        if name == "vllm" and self._asked_dialect == "auto" and not self._sender.run(self._has_middleware()):
            name = "vllm-xargs"
        logger.info("%s: dialect %s", self.url, name)
        return Dialect(name, self.name)

    async def _has_middleware(self) -> bool:
        """Whether vLLM runs copyspec's middleware, which refuses this request before vLLM does."""
        body = {"model": self.name, "messages": [], "max_tokens": 1, "edit_source": 0}
        try:
            await self._sender.post(CHAT, body)
        except RefusedError as error:
            return error.names("edit_source")
        except AgainError:
            pass
        return False

    def tokens(self, text: str) -> int:
        return len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN + 1

    def counted(self, text: str) -> int:
        count = self._count({"prompt": text, "add_special_tokens": False})
        return self.tokens(text) if count is None else count

    def frame(self, how: Asking) -> int:
        messages = [{"role": "user", "content": (how.instruction or "{text}").replace("{text}", "x")}]
        if how.system is not None:
            messages.insert(0, {"role": "system", "content": how.system})
        count = self._count({"messages": messages, "add_generation_prompt": True})
        return FRAME_TOKENS + self.tokens(f"{how.system or ''}{how.instruction or ''}") if count is None else count

    def _count(self, body: Mapping[str, object]) -> int | None:
        """The tokens of a text or a chat, counted by the server; None if it does not do that."""
        size = len(str(body).encode("utf-8", "replace"))
        if not self._counts or self.dialect.name not in _COUNTING or size > MOST_BYTES * (self.context or MOST_COUNTED):
            return None
        address, asked = f"{self.url.removesuffix('/v1')}/tokenize", {"model": self.name, **body}
        try:
            _, data = self._sender.run(self._sender.until_answered(lambda: self._sender.post(address, asked), PROBES))
            count = json.loads(data)["count"]
            if type(count) is int and count >= 0:
                return count
        except (AgainError, RefusedError, ServerError) as error:
            self._counts = not re.search(r"answers (?:404|405|501)", str(error))  # it may refuse one text
            return None
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        self._counts = False
        return None

    def lost(self, text: str) -> str:
        return ""

    def fits(self, prompt: str) -> bool:
        return self.context is None or len(prompt.encode("utf-8", "replace")) // MOST_BYTES < self.context

    def beside(self, names: Sequence[str]) -> Mapping[str, Any]:
        if names:
            raise ValueError(f"draft_models={list(names)!r} draft for a model in this process: leave them out")
        return {}

    def answers(self, inputs: Iterable[Input | None], how: Asking) -> Iterator[tuple[int, Result | NoAnswer]]:
        """Raises ServerError if the server is gone, or refuses the key or the model."""
        self._probe()
        return as_ended(
            inputs, lambda input_: self._sender.start(self._answer(request_for(input_, how))), self.concurrency
        )

    def _probe(self) -> None:
        """Ask the server what it is, in this thread: the one that sends requests must not wait for an answer."""
        self.dialect, self._names  # noqa: B018

    def answer(self, prompt: str, references: Sequence[str], max_new_tokens: int | None = None) -> Result:
        return self.generate(prompt, list(references), max_new_tokens=max_new_tokens, temperature=0.0)

    def generate(self, prompt: object, references: object = None, **options: Any) -> Result:
        """The answer to one prompt, a text or a chat. `options`: some of those of `copyspec.generate`. Raises
        ServerError for answers that cannot be had, PromptTooLongError for a prompt that is too long."""
        request = request_of(prompt, references, options)
        self._probe()
        return _result(self._sender.run(self._answer(request)), self.url)

    def stream(
        self, prompt: object, references: object = None, max_new_tokens: Any = None, **options: Any
    ) -> Generator[Chunk, None, None]:
        """The same in pieces. Closing the iterator ends the request."""
        if max_new_tokens is not None:
            options["max_new_tokens"] = max_new_tokens
        options.setdefault("temperature", 0.0)
        request = replace(request_of(prompt, references, options), streams=True)
        self._probe()
        return self._chunks(request)

    async def _answer(self, request: ChatRequest) -> Result | NoAnswer:
        """The result of a request, or why there is none. Raises ServerError if no other one can succeed either."""
        id_, seen = uuid.uuid4().hex, set[str]()
        self._running.add(id_)
        try:
            answer = await self._sender.until_answered(lambda: self._attempt(request, id_, seen))
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

    async def _attempt(self, request: ChatRequest, id_: str, seen: set[str]) -> reading.ReadAnswer:
        if request.edit_source:
            self._recent.append(_pairs(request.edit_source))
        headers, data = await self._asked(request, lambda body: self._sender.post(CHAT, body, id_))
        answer = reading.read(headers, data, self._names, self.name)
        other = headers.get("x-request-id", id_)
        if other != id_ and other in self._running:
            raise AgainError("it sent the answer of another request")
        content = answer.parts.content
        if request.edit_source and content not in seen and self._is_mixed(request.edit_source, content):
            seen.add(content)  # the same answer once more is the model's own
            raise AgainError("it may have sent the answer of another request")
        return answer

    @cached_property
    def _names(self) -> Sequence[str]:
        """Names under which the model may answer. A server with one model has it under any name."""
        names = self.card.names
        return names if len(names) == 1 else ()

    async def _asked(self, request: ChatRequest, send: Callable[[dict[str, object]], Any]) -> Any:
        """What `send` returns for the request, once more without fields that the server refuses."""
        dialect, before, said = self.dialect, self.dialect.left_out.copy(), list[str]()
        while True:
            body = request.body(dialect, self.chat_template_kwargs)
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

    def _chunks(self, request: ChatRequest) -> Generator[Chunk, None, None]:
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()

        async def read() -> None:
            try:
                stream = await self._sender.until_answered(lambda: self._asked(request, self._sender.stream))
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
        answered = reading.ThoughtSplitter()
        try:
            while (event := events.get()) is not None:
                if isinstance(event, BaseException):
                    raise self._broken(event) from None
                usage = reading.usage_of(event.get("usage")) or usage
                for choice in (event.get("choices") or ())[:1]:
                    delta = choice.get("delta") or {}
                    finish = choice.get("finish_reason") or finish
                    new, said = reading.texts_of(delta)
                    more, content = answered.push(said or str(delta.get("refusal") or ""))
                    thought, written = thought + new + more, written + content
                    if new or more or content:
                        yield Chunk(content, (), reasoning=new + more, content=content)
            more, content = answered.finish()
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
            refused = self._refused(error)
            return _error_of(refused, self.url)
        if isinstance(error, AgainError) or (isinstance(error, Exception) and not isinstance(error, OSError)):
            return ServerError(f"{self.url}: the answer broke off: {self._sender.public(str(error))}")
        return error

    def _say(self, note: str) -> None:
        if note not in self._said:
            self._said.add(note)
            logger.warning("%s: %s", self.url, note)


def remote(
    url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    dialect: Name = "auto",
    concurrency: int = CONCURRENCY,
    timeout: float = TIMEOUT,
) -> Remote:
    """A model behind a server with OpenAI's API (vLLM, llama-server, Ollama, `copyspec serve`, hosted ones), for
    `GECPipeline`, `EditPipeline`, `DocumentAnswers` and their relatives. Needs the extra copyspec[remote].

    `url`: with the path, such as http://127.0.0.1:8000/v1. `model`: its name there; None: the only one. `api_key`:
    None takes $COPYSPEC_API_KEY. `dialect`: what the server takes besides OpenAI's plain fields; "auto" asks it.
    `concurrency`: most requests at once; fewer while the server is too busy. `timeout`: seconds for an answer.

    Nothing is sent before the first question. Raises TypeError or ValueError for invalid arguments.
    """
    key = api_key if api_key is not None else os.environ.get("COPYSPEC_API_KEY")
    return Remote(url, model=model, api_key=key, dialect=dialect, concurrency=concurrency, timeout=timeout)


def _result(answer: Result | NoAnswer, url: str) -> Result:
    if isinstance(answer, NoAnswer):
        raise _error_of(answer, url)
    return answer


def _error_of(answer: NoAnswer, url: str) -> Exception:
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
