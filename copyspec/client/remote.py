"""A model behind a URL, which pipelines take wherever they take one in this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from copyspec.client.asking import Asking
from copyspec.client.completions import Completions, Recipient, error_of
from copyspec.client.counting import BYTES_PER_TOKEN, COUNTING, MOST_BYTES, TokenCounter
from copyspec.client.dialects import DIALECTS, Card, Dialect, Name, dialect_of, request_for, request_of
from copyspec.client.sending import (
    CHAT,
    PROBES,
    AgainError,
    RefusedError,
    Sender,
    ServerError,
    as_ended,
    check_url,
    is_loopback,
)
from copyspec.common.checks import check_number, check_type, check_whole
from copyspec.common.lockless import cached_property
from copyspec.engine.asking.inputs import Input
from copyspec.engine.results import Chunk, NoAnswer, Result
from copyspec.models.aliases import ALIASES
from copyspec.models.loading import BUNDLED_LANGUAGES, DEFAULT

logger = logging.getLogger(__name__)

CONCURRENCY, MAX_CONCURRENCY = 32, 1000  # the client opens no more connections
TIMEOUT = 300.0  # seconds for an answer
FRAME_TOKENS = 64  # of an instruction's chat template


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
        self.concurrency = concurrency
        self.chat_template_kwargs: Mapping[str, object] = {}
        """Variables of the chat template, for servers that take them: {"enable_thinking": False} for example."""
        self._model, self._asked_dialect = model, dialect
        self._sender = Sender(self.url, api_key or None, concurrency, timeout)
        if api_key and self.url.startswith("http:") and not is_loopback(self.url):
            logger.warning("%s: the key goes there unencrypted, over plain http", self.url)
        self._counter, self._completions = TokenCounter(self._sender), Completions(self._sender)
        self.usage = self._completions.usage

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
        return self.card.own_model if self.card.own_model == DEFAULT or self.card.own_model in ALIASES else None

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

    def count_tokens(self, text: str) -> int:
        count = self._count({"prompt": text, "add_special_tokens": False})
        return self.tokens(text) if count is None else count

    def frame(self, how: Asking) -> int:
        messages = [{"role": "user", "content": (how.instruction or "{text}").replace("{text}", "x")}]
        if how.system is not None:
            messages.insert(0, {"role": "system", "content": how.system})
        count = self._count({"messages": messages, "add_generation_prompt": True})
        return FRAME_TOKENS + self.tokens(f"{how.system or ''}{how.instruction or ''}") if count is None else count

    def _count(self, body: Mapping[str, object]) -> int | None:
        return self._counter.count(self.name, body, self.context) if self.dialect.name in COUNTING else None

    def lost(self, text: str) -> str:
        return ""

    def fits(self, prompt: str) -> bool:
        return self.context is None or len(prompt.encode("utf-8", "replace")) // MOST_BYTES < self.context

    def load_correctors(self, names: Sequence[str]) -> Mapping[str, Any]:
        if names:
            raise ValueError(f"draft_models={list(names)!r} draft for a model in this process: leave them out")
        return {}

    def answers(self, inputs: Iterable[Input | None], how: Asking) -> Iterator[tuple[int, Result | NoAnswer]]:
        """Raises ServerError if the server is gone, or refuses the key or the model."""
        to, answer = self._recipient(), self._completions.answer
        return as_ended(
            inputs, lambda input_: self._sender.start(answer(request_for(input_, how), to)), self.concurrency
        )

    def _recipient(self) -> Recipient:
        """Ask the server what it is, in this thread: the one that sends requests must not wait for an answer."""
        names = self.card.names
        return Recipient(self.dialect, names if len(names) == 1 else (), self.chat_template_kwargs)

    def answer(self, prompt: str, references: Sequence[str], max_new_tokens: int | None = None) -> Result:
        return self.generate(prompt, list(references), max_new_tokens=max_new_tokens, temperature=0.0)

    def generate(self, prompt: object, references: object = None, **options: Any) -> Result:
        """The answer to one prompt, a text or a chat. `options`: some of those of `copyspec.generate`. Raises
        ServerError for answers that cannot be had, PromptTooLongError for a prompt that is too long."""
        request = request_of(prompt, references, options)
        answer = self._sender.run(self._completions.answer(request, self._recipient()))
        if isinstance(answer, NoAnswer):
            raise error_of(answer, self.url)
        return answer

    def stream(
        self, prompt: object, references: object = None, max_new_tokens: Any = None, **options: Any
    ) -> Generator[Chunk, None, None]:
        """The same in pieces. Closing the iterator ends the request."""
        if max_new_tokens is not None:
            options["max_new_tokens"] = max_new_tokens
        options.setdefault("temperature", 0.0)
        request = replace(request_of(prompt, references, options), streams=True)
        return self._completions.stream(request, self._recipient())


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
