"""A line in the log for each request: what was asked, the answer's status, seconds, tokens and the request's id."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from copyspec.server.asgi import Scope, header, route_path

if TYPE_CHECKING:
    from copyspec.engine.running.jobs import Job

logger = logging.getLogger(__name__)

HEADER = "x-request-id"
MAX_PATH = 200  # characters of a path in the log
MAX_ERROR = 200  # and of the reason of a refusal, which may quote a value of the request

_ID = re.compile(rb"[!-~]{1,128}")
_KEY = "copyspec.access"  # in the scope


@dataclass(slots=True)
class Access:
    """One request, for the log."""

    id: str
    """The client's `x-request-id`, else one that is made."""
    jobs: Sequence[Job] = ()
    """What is decoded for it."""
    error: str = ""
    """Why it was refused, or failed."""

    def log(self, scope: Scope, status: int, seconds: float, level: int) -> None:
        """Write the line, with the same values as a mapping in the record's attribute `access`. `status` 0: the client
        has gone before there was an answer."""
        fields: dict[str, object] = {
            "method": scope.get("method"),
            "path": quote(route_path(scope))[:MAX_PATH],
            "status": status,
            "seconds": round(seconds, 3),
        }
        tokens = ""
        if self.jobs:
            read = sum(len(job.request.prompt) for job in self.jobs if not job.request.sampling.sample)
            written = sum(len(job.tokens) for job in self.jobs)
            fields |= {"prompt_tokens": read, "output_tokens": written}
            tokens = f", {read} tokens in, {written} out"
        if self.error:
            fields["error"] = self.error
        fields["request_id"] = self.id
        error = f": {self.error!r}" if self.error else ""
        line = f"{fields['method']} {fields['path']} {status}: {seconds:.3f} s{tokens}{error}, id {self.id}"
        logger.log(level, "%s", line, extra={"access": fields})


def error_of(body: bytes) -> str:
    """The message of an answer that is an error, as `asgi.error_body` writes it; "" for any other."""
    try:
        return str(json.loads(body)["error"]["message"])[:MAX_ERROR]
    except (ValueError, KeyError, TypeError):
        return ""


def begin(scope: Scope) -> Access:
    """The record of a request that has just come, put into its scope."""
    own = header(scope, HEADER.encode())
    access = Access(own.decode() if own is not None and _ID.fullmatch(own) else uuid4().hex)
    scope[_KEY] = access
    return access


def access_of(scope: Scope) -> Access:
    """The record of a request."""
    access = scope[_KEY]
    assert isinstance(access, Access)
    return access


class JsonFormatter(logging.Formatter):
    """Formats the lines of the access log as JSON objects, for programs that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        return json.dumps({"time": time, **getattr(record, "access", {"message": record.getMessage()})})
