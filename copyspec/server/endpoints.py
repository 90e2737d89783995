"""The ASGI application: routes and handlers of the OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from copyspec.common.checks import brief, shown
from copyspec.engine import aio
from copyspec.engine.asking.call_options import DEFAULT_MAX_NEW_TOKENS, CallOptions, check_options
from copyspec.engine.asking.inputs import PromptTooLongError
from copyspec.engine.engine import Engine
from copyspec.engine.logits import generation_config
from copyspec.engine.running.call import Call
from copyspec.engine.running.scheduler import QueueFullError
from copyspec.models.own import own_name
from copyspec.server.access import access_of
from copyspec.server.asgi import error_body
from copyspec.server.errors import (
    BAD_REQUEST,
    FieldError,
    error_response,
    failure,
    field_of,
    http_error,
    invalid,
    json_response,
)
from copyspec.server.gate import Gate
from copyspec.server.metrics import CONTENT_TYPE, Metrics
from copyspec.server.replies import DONE, Json, Replies, as_json, server_sent
from copyspec.server.schemas import ChatBody, CompletionBody, TokenizeBody
from copyspec.server.settings import ServerSettings, count_characters
from copyspec.text.chat import ChatError, check_chat

ROLES = ("system", "developer", "user", "assistant", "tool", "function")  # OpenAI's; a template may know more


def template_messages(messages: Sequence[object]) -> list[dict[str, object]]:
    """The messages for a chat template: content joined into one str, role `developer` as `system`, arguments of calls
    as objects. Raises ValueError that names the message."""
    if not messages:
        raise ValueError("messages is empty: give at least one")
    return [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _message(where: str, message: object) -> dict[str, object]:
    if not isinstance(message, dict):
        raise ValueError(
            f"{where} is not a chat message: {brief(message)}; write {{'role': 'user', 'content': 'text'}}"
        )
    if message.get("function_call"):
        raise ValueError(f"{where} has a function_call, which OpenAI has replaced: give tool_calls")
    fields = {name: value for name, value in message.items() if value is not None}
    if fields.get("role") == "developer":
        fields["role"] = "system"
    if isinstance(fields.get("refusal"), str):
        fields.setdefault("content", fields.pop("refusal"))
    content = fields.get("content")
    if isinstance(content, list):
        fields["content"] = "".join(_part(where, part) for part in content if not _is_thought(part))
        if thought := "".join(_thought(where, part) for part in content if _is_thought(part)):
            fields.setdefault("reasoning_content", thought)
    if isinstance(fields.get("reasoning"), str):  # as vLLM and OpenRouter name it
        fields.setdefault("reasoning_content", fields["reasoning"])
    if calls := fields.pop("tool_calls", None):
        fields["tool_calls"] = _calls(f"{where}.tool_calls", calls)
        fields.setdefault("content", "")  # some templates write None as a word
    return fields


def _part(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(kind) if isinstance(part, dict) and kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise ValueError(
            f"{where} holds a part that is not text: {shown(part)}; write {{'type': 'text', 'text': ...}}: "
            "the model reads text only"
        )
    return text


def _is_thought(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "thinking"


def _thought(where: str, part: Mapping[str, object]) -> str:
    """The text of an earlier thought, which some APIs give as a list of parts."""
    thought = part.get("thinking")
    return thought if isinstance(thought, str) else "".join(_part(where, inner) for inner in _as_list(thought))


def _as_list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


def _calls(where: str, calls: object) -> list[dict[str, object]]:
    if not isinstance(calls, list):
        raise ValueError(f"{where} must be a list of calls; got {shown(calls)}")
    return [_call(f"{where}[{i}]", call) for i, call in enumerate(calls)]


def _call(where: str, call: object) -> dict[str, object]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        form = "{'type': 'function', 'id': ..., 'function': {'name': ..., 'arguments': '{...}'}}"
        raise ValueError(f"{where} is no call of a function: {brief(call)}; write {form}")
    arguments = function.get("arguments") or "{}"  # vLLM and others send an empty str for none
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}.function.arguments is no JSON object: {brief(arguments)}")
    return {**call, "type": "function", "function": {**function, "arguments": value}}


class Server:
    """Serves one engine through OpenAI's interface."""

    def __init__(self, engine: Engine, settings: ServerSettings | None = None) -> None:
        """Raises ValueError for invalid settings."""
        self.engine = engine
        self.settings = settings or ServerSettings()
        self.settings.verify()
        self.names = self.settings.names or (os.path.basename(os.path.normpath(engine.name)),)
        self.metrics = Metrics(engine)
        self._created = int(time.time())
        engine.scheduler.max_waiting = self.settings.max_waiting
        engine.prefix_cache.max_bytes = self.settings.prefix_cache_bytes

    def warm_up(self) -> None:
        """Run one short generation, so that the first request does not wait for initialisation."""
        self.engine.generate("A text.", max_new_tokens=2, batch_size=self.settings.batch_size)

    def app(self) -> FastAPI:
        """The ASGI application, for `copyspec serve` or any other ASGI server."""
        app = FastAPI(title="copyspec", version=version("copyspec"), docs_url=None, redoc_url=None)
        app.add_api_route("/health", self.health, methods=["GET"])
        for path, answer in (("/health", self.health), ("/v1/models", self.models), ("/v1/models/", self.models)):
            # `wget --spider`, and addresses that end in a slash
            app.add_api_route(path, answer, methods=["GET", "HEAD"], include_in_schema=False)
        app.add_api_route("/metrics", self.show_metrics, methods=["GET"])
        app.add_api_route("/v1/models", self.models, methods=["GET"])
        app.add_api_route("/v1/models/{name:path}", self.model, methods=["GET"])
        app.add_api_route("/v1/chat/completions", self.chat, methods=["POST"], response_model=None)
        app.add_api_route("/v1/completions", self.completions, methods=["POST"], response_model=None)
        app.add_api_route("/tokenize", self.tokenize, methods=["POST"], response_model=None)
        app.add_exception_handler(RequestValidationError, invalid)
        app.add_exception_handler(HTTPException, http_error)
        app.add_middleware(Gate, settings=self.settings, metrics=self.metrics)
        return app

    async def health(self) -> Json:
        return {"status": "ok"}

    async def show_metrics(self) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def models(self) -> Json:
        return {"object": "list", "data": [self._card(name) for name in self.names]}

    async def model(self, name: str) -> Response:
        return json_response(as_json(self._card(name))) if name in self.names else self._no_such_model(name)

    async def chat(self, body: ChatBody, request: Request) -> Response:
        return await self._answer(body, request)

    async def completions(self, body: CompletionBody, request: Request) -> Response:
        return await self._answer(body, request)

    async def tokenize(self, body: TokenizeBody) -> Response:
        """The tokens of a text or a chat, for clients that split texts by the model's context."""
        if body.model is not None and body.model not in self.names:
            return self._no_such_model(body.model)
        try:
            ids = await asyncio.to_thread(self._tokens, body)
        except (TypeError, ValueError, ImportError) as error:
            return error_response(400, self._public(error), BAD_REQUEST, param=field_of(error, body.__dict__))
        except RuntimeError as error:  # the engine is shutting down
            return error_response(503, str(error), "service_unavailable_error", retry=True)
        return json_response(as_json({"count": len(ids), "max_model_len": self.engine.max_length, "tokens": ids}))

    def _tokens(self, body: TokenizeBody) -> list[int]:
        most, count = self.settings.max_characters, count_characters([body.prompt, body.messages])
        if count > most:
            raise ValueError(f"the texts have {count} characters, and at most {most} are taken here (--max-characters)")
        if (body.prompt is None) == (body.messages is None):
            raise ValueError("give prompt or messages")
        if body.prompt is not None:
            return list(self.engine.codec.encode(body.prompt).ids)
        messages = self._messages(body.messages or [])
        return list(self.engine.codec.encode_chat(check_chat(messages, "messages")).ids)

    def _messages(self, messages: Sequence[object]) -> list[dict[str, object]]:
        """The messages for the chat template. Raises FieldError for a role that is neither OpenAI's nor a word of the
        template."""
        template = str(self.engine.tokenizer.chat_template or "")
        for i, message in enumerate(messages):
            role = message.get("role") if isinstance(message, dict) else None
            if (
                isinstance(role, str)
                and role not in ROLES
                and not re.search(rf"""['"]{re.escape(role)}\\?['"]""", template)
            ):
                known = ", ".join(map(repr, ROLES))
                raise FieldError(f"messages[{i}] has role {brief(role)}; write {known}", f"messages.[{i}].role")
        return template_messages(messages)

    async def _answer(self, body: ChatBody | CompletionBody, request: Request) -> Response:
        begun = time.perf_counter()
        if body.model is not None and body.model not in self.names:
            return self._no_such_model(body.model)
        is_chat = isinstance(body, ChatBody)
        try:
            prompt: object = self._messages(body.messages) if isinstance(body, ChatBody) else body.prompt
            prompts = 1 if isinstance(body, ChatBody) else body.prompts()
            call = await aio.submit(lambda: self.engine, prompt, body.references, self._options(body, prompts))
        except QueueFullError as error:
            return error_response(429, self._public(error), "rate_limit_error", code="queue_full", retry=True)
        except (TypeError, ValueError, ImportError) as error:
            code = "context_length_exceeded" if isinstance(error, PromptTooLongError) else None
            return error_response(
                400, self._public(error), BAD_REQUEST, code=code, param=field_of(error, body.__dict__)
            )
        except RuntimeError as error:  # the engine is shutting down
            return error_response(503, str(error), "service_unavailable_error", retry=True)
        access_of(request.scope).jobs = call.jobs
        wants_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        replies = Replies(
            body.model or self.names[0],
            is_chat,
            with_spans=bool(body.spans),
            with_changes=bool(body.changes),
            with_logprobs=isinstance(body, ChatBody) and bool(body.logprobs),
            with_usage=wants_usage,
            n=body.n or 1,
            most_calls=1 if isinstance(body, ChatBody) and body.parallel_tool_calls is False else None,
        )
        if not body.stream:
            return await self._whole(call, replies, request, begun)
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies must not buffer the stream
        return StreamingResponse(
            self._events(call, replies, begun), media_type="text/event-stream; charset=utf-8", headers=headers
        )

    def _public(self, error: Exception) -> str:
        """The message of an error, with the served name instead of the model's folder, and of the server's options."""
        message = str(error).replace("prompt[", "messages[") if isinstance(error, ChatError) else str(error)
        for name in {self.engine.name, str(getattr(self.engine.tokenizer, "name_or_path", ""))} - {""}:
            message = message.replace(repr(name), repr(self.names[0]))
        return message.replace(", or raise engine.scheduler.max_waiting", " (--max-waiting)")

    def _options(self, body: ChatBody | CompletionBody, prompts: int) -> CallOptions:
        """The call options of a request with this number of prompts. Raises TypeError or ValueError for fields that
        this server does not offer."""
        body.check_extra()
        outputs = prompts * max(body.n or 1, 1)
        if outputs > self.settings.max_outputs:
            most = self.settings.max_outputs
            raise ValueError(f"a request may have {most} outputs (prompts times n), not {outputs} (--max-outputs)")
        # Each output has drafts of its own, for which the texts are indexed.
        if (count := body.characters(prompts) * max(body.n or 1, 1)) > self.settings.max_characters:
            most = self.settings.max_characters
            times = f", shared ones for each of {prompts} prompts" if prompts > 1 else ""
            times += f", times n={body.n}" if (body.n or 1) > 1 else ""
            raise ValueError(
                f"the texts have {count} characters{times}, and at most {most} are taken here (--max-characters)"
            )
        config = generation_config.read(self.engine.model)
        options = body.options(generation_config.stop_strings(config))
        if isinstance(body, ChatBody):
            options |= body.chat_options(str(self.engine.tokenizer.chat_template or ""))
        else:
            options |= body.text_options()
        limit, asked = self.settings.max_tokens, body.limit()
        if limit is not None and asked is not None and asked > limit:
            raise ValueError(f"max_tokens={asked} is more than this server's limit of {limit} (--max-tokens)")
        if asked is not None:
            options["max_tokens"] = asked
        elif limit is not None:
            default = config.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
            options["max_tokens"] = limit if "edit_source" in options else min(limit, default)
        own: dict[str, object] = {
            "batch_size": self.settings.batch_size,
            "prefix_cache": self.settings.prefix_cache_bytes > 0,
            "timeout": self.settings.timeout,
        }
        return check_options({**options, **own})

    async def _whole(self, call: Call, replies: Replies, request: Request, begun: float) -> Response:
        """Answer in one piece; decoding stops if the client disconnects."""
        decoding = asyncio.ensure_future(call.aresults())
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait((decoding, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not decoding.done():
                return Response(status_code=499)  # the client is gone; nginx's status for the counters
            results = decoding.result()
        except Exception as error:
            return error_response(*failure(error))
        finally:
            for task in (decoding, leaving):
                task.cancel()
        self.metrics.began(time.perf_counter() - begun)
        self.metrics.finished(results)
        return json_response(as_json(replies.whole(results)))

    async def _events(self, call: Call, replies: Replies, begun: float) -> AsyncIterator[bytes]:
        """Answer as server-sent events. An error is sent as a last event."""
        is_silent = True
        try:
            for event in replies.first():
                yield server_sent(event)
            async with aclosing(call.achunks()) as chunks:
                async for chunk in chunks:
                    events = replies.events(chunk)
                    if not events:
                        continue
                    if is_silent:
                        is_silent = False
                        self.metrics.began(time.perf_counter() - begun)
                    for event in events:
                        yield server_sent(event)
        except Exception as error:
            _, message, kind = failure(error)
            yield b"data: " + error_body(message, kind) + b"\n\n"
            return
        results = call.ended()
        self.metrics.finished(results)
        for event in replies.last(results):
            yield server_sent(event)
        yield DONE

    def _card(self, name: str) -> Json:
        card: Json = {"id": name, "object": "model", "created": self._created, "owned_by": "copyspec"}
        own = own_name(self.engine.name, str(getattr(self.engine.model.config, "_name_or_path", "")))
        return {**card, "max_model_len": self.engine.max_length, **({"own_model": own} if own else {})}

    def _no_such_model(self, name: str) -> Response:
        served = ", ".join(map(repr, self.names))
        message = f"no model {brief(name)} here; this server has {served}"
        return error_response(404, message, BAD_REQUEST, code="model_not_found", param="model")


async def _left(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
