"""HTTP middleware for vLLM: accepts OpenAI's `prediction` and copyspec's `edit_source`, `references` and `drafts`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from copyspec.common.checks import check_flag
from copyspec.integrations.vllm.parameters import DRAFTS, EDIT_SOURCE, REFERENCES, check_size, joined, texts
from copyspec.integrations.vllm.tokenizers import find_codec
from copyspec.server.asgi import (
    App,
    BodyTooLargeError,
    Receive,
    Replay,
    Scope,
    Send,
    error_body,
    header,
    read_body,
    refuse,
)
from copyspec.text.codec import Codec

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
FIELDS = ("prediction", "edit_source", "references")

MAX_BODY_BYTES = 32 << 20
"""Bodies that announce more pass unread. vLLM runs middleware before it checks the API key, so anybody who reaches the
port may send one."""


class Prediction:
    """ASGI middleware: `vllm serve MODEL --middleware copyspec.integrations.vllm.Prediction`.

    It moves these fields into `vllm_xargs`, as token ids if the server's tokenizer is found, so that nothing is
    encoded while a batch waits. Invalid values get status 400, and so do more than a million characters of texts. Other
    requests pass unchanged, as do those that announce more than MAX_BODY_BYTES; a longer one that does not gets 413.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._codec: Codec | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("type") != "http" or scope.get("method") != "POST" or not str(scope["path"]).endswith(PATHS):
            await self._app(scope, receive, send)
            return
        length = header(scope, b"content-length") or b""
        digits = length.lstrip(b"0")
        if length.isdigit() and (len(digits) > 18 or int(digits or b"0") > MAX_BODY_BYTES):  # of images, for example
            await self._app(scope, receive, send)
            return
        try:
            body = await read_body(receive, MAX_BODY_BYTES)
        except BodyTooLargeError as error:
            await refuse(send, 413, error_body(str(error), "BadRequestError", code=413))
            return
        if body is None:
            return
        try:
            changed = await asyncio.to_thread(self._rewrite, scope, body)
        except (TypeError, ValueError, RecursionError) as error:
            message = "the body is nested too deeply" if isinstance(error, RecursionError) else str(error)
            await refuse(send, 400, error_body(message, "BadRequestError", code=400))
            return
        await self._app(_with_length(scope, len(changed)), Replay(changed, receive), send)

    def _rewrite(self, scope: Scope, body: bytes) -> bytes:
        """The body in vLLM's format. Raises TypeError or ValueError for invalid values, and RecursionError for nested
        ones that cannot be written again."""
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            return body  # vLLM reports the error
        if not isinstance(request, dict) or all(request.get(field) is None for field in (*FIELDS, "drafts")):
            return body
        drafts, fields = request.pop("drafts", None), {field: request.pop(field, None) for field in FIELDS}
        check_size(fields, fields["references"])  # vLLM checks the API key after this
        extra = texts(fields["edit_source"], fields["references"], fields["prediction"])
        if drafts is not None:
            extra[DRAFTS] = int(check_flag("drafts", drafts))
        xargs = request.get("vllm_xargs") or {}
        if not isinstance(xargs, dict):
            return body
        if codec := self._find_codec(scope):
            extra = _encoded(codec, extra)
        elif REFERENCES in extra and not all(isinstance(text, str) for text in extra[REFERENCES]):
            raise ValueError("references of token ids need the server's tokenizer, which was not found; give texts")
        request["vllm_xargs"] = {**xargs, **extra}
        return json.dumps(request).encode()

    def _find_codec(self, scope: Scope) -> Codec | None:
        """A codec for the server's tokenizer; None if it has none, or this version of vLLM keeps it elsewhere."""
        if self._codec is None:
            engine = getattr(getattr(scope.get("app"), "state", None), "engine_client", None)
            tokenizer = getattr(getattr(engine, "renderer", None), "tokenizer", None)
            if tokenizer is not None:
                self._codec = find_codec(tokenizer)
        return self._codec


def _encoded(codec: Codec, extra: dict[str, Any]) -> dict[str, Any]:
    """Encode the texts as after a space, which is how most chat templates leave the prompt's end."""

    def ids(text: Any) -> list[int]:
        return codec.encode_copy(text, " ").ids if isinstance(text, str) else list(text)

    encoded: dict[str, Any] = {DRAFTS: extra[DRAFTS]} if DRAFTS in extra else {}
    encoded |= {EDIT_SOURCE: ids(extra[EDIT_SOURCE])} if EDIT_SOURCE in extra else {}
    return encoded | ({REFERENCES: joined([ids(text) for text in extra[REFERENCES]])} if REFERENCES in extra else {})


def _with_length(scope: Scope, length: int) -> Scope:
    headers = [(name, value) for name, value in scope.get("headers", ()) if name.lower() != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())]}
