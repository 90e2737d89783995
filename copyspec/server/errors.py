"""Errors as OpenAI's API shows them: status, message, type, and the field that they are about."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from copyspec.engine.asking.inputs import PromptTooLongError
from copyspec.server.asgi import error_body
from copyspec.text.chat import ChatError

if TYPE_CHECKING:
    from fastapi import Request

logger = logging.getLogger(__name__)

BAD_REQUEST = "invalid_request_error"
RETRY_SECONDS = "1"

_FIELDS: Mapping[str, str] = {
    "json_schema": "response_format",
    "max_new_tokens": "max_tokens",
    "rendered": "add_special_tokens",
    "strict": "tools",
}
"""The fields of requests that set options of other names."""


class FieldError(ValueError):
    """A wrong value; `field` is the name of the field that holds it, None if there are several."""

    def __init__(self, message: str, field: str | None) -> None:
        super().__init__(message)
        self.field = field


def field_of(error: Exception, fields: Mapping[str, object]) -> str | None:
    """The field of a request that an error is about; None if that is none, or not one alone. `fields`: those that the
    request has, with their values. Messages of the engine begin with the name of an option, where they are about
    one."""
    if isinstance(error, FieldError):
        return error.field
    begins = re.match(r"\w+", str(error))
    name = begins[0] if begins is not None else ""
    name = _FIELDS.get(name, name)
    if name not in fields and isinstance(error, (ChatError, PromptTooLongError)):
        name = "prompt"
    if name == "prompt" and name not in fields:
        name = "messages"
    if name == "max_tokens" and fields.get(name) is None and fields.get("max_completion_tokens") is not None:
        name = "max_completion_tokens"
    return name if name in fields else None


def failure(error: Exception) -> tuple[int, str, str]:
    """Status, message and type of an error raised while decoding."""
    if isinstance(error, TimeoutError):
        return 504, str(error), "timeout_error"
    logger.error("a request failed", exc_info=error)
    return 500, f"{type(error).__name__}: {error}", "server_error"


def error_response(
    status: int, message: str, kind: str, *, code: str | None = None, param: str | None = None, retry: bool = False
) -> Response:
    """An error in OpenAI's format. `param`: the field of the request that it is about, if it is one."""
    headers = {"retry-after": RETRY_SECONDS} if retry else None
    return json_response(error_body(message, kind, code=code, param=param), status, headers)


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


async def invalid(request: Request, error: Exception) -> Response:
    """The answer to a body that is no request."""
    assert isinstance(error, RequestValidationError)
    faults: Sequence[dict[str, object]] = error.errors()
    where = faults[0].get("loc", ())
    names = [str(part) for part in where if part != "body"] if isinstance(where, tuple) else []
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not names and kind != "application/json" and not re.fullmatch(r"application/.+\+json", kind):
        fault = f"the body's type is {kind!r}" if kind else "the body has no Content-Type"
        return error_response(415, f"{fault}; send it with Content-Type: application/json", BAD_REQUEST)
    field = names[0] if names and faults[0].get("type") != "json_invalid" else None
    more = f" ({faults[0]['ctx']['error']})" if faults[0].get("type") == "json_invalid" else ""  # type: ignore[index]
    return error_response(400, f"{field or 'the body'}: {faults[0].get('msg')}{more}", BAD_REQUEST, param=field)


async def http_error(request: Request, error: Exception) -> Response:
    """The answer to a path or method that there is not."""
    assert isinstance(error, HTTPException)
    message, path = str(error.detail), re.sub("/+", "/", request.url.path).rstrip("/")
    if error.status_code == 404:
        served = [route.path for route in request.app.routes if getattr(route, "include_in_schema", False)]
        meant = next((known for known in served if path and known.endswith(path)), None)
        message += f": did you mean {meant}?" if meant else f": this server has {', '.join(served)}"
    response = error_response(error.status_code, message, BAD_REQUEST)
    response.headers.update(error.headers or {})
    return response
