"""`copyspec serve`: serves one model over OpenAI's API, on one machine."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, TypeAlias

from copyspec.cli.common import UsageError, panel
from copyspec.cli.model_options import NamedModel
from copyspec.cli.printing import LogFormatter, echo
from copyspec.common.extras import install
from copyspec.server.settings import KEY_VARIABLE, ServerSettings

MAX_AMOUNT = 1 << 20  # MiB or GiB; no machine has more
MAX_STOP_SECONDS = 86_400
REQUIRED_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")

_address = panel("Address")
_limits = panel("Limits")
_log = panel("Log")

LogForm: TypeAlias = Literal["text", "json"]


def serve(
    *,
    model: Annotated[NamedModel, "Model"],
    host: Annotated[str, _address("0.0.0.0 accepts connections from other machines.")] = "127.0.0.1",
    port: Annotated[int, _address("0: any free port.", min=0, max=65535)] = 8000,
    settings: Annotated[ServerSettings, "Limits"],
    prefix_cache: Annotated[
        float, _limits("GiB of keys and values kept for prompts that begin like earlier ones; 0: none.")
    ] = 1.0,
    max_body: Annotated[float, _limits("Largest request body, in MiB.")] = 4.0,
    log: Annotated[LogForm, _log("Form of the lines on stderr, one per request.")] = "text",
    stop_seconds: Annotated[float, _limits("Seconds that running requests get to finish on shutdown.")] = 30.0,
) -> int:
    """Serve one model over OpenAI's chat and completions API, until Ctrl-C.

    Besides OpenAI's fields, including prediction, requests may set references, edit_source and spans. For many users
    or a GPU, run vLLM with the copyspec plug-in: docs/integrations/vllm.md.
    """
    missing = [package for package in REQUIRED_PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(f"serve needs {', '.join(missing)}: {install('serve')}")
    from copyspec.server.listening import address_of, is_local, listen, uvicorn_server

    settings = replace(
        settings,
        names=settings.names or (_name(model.model, model.adapter),),
        api_key=settings.api_key if settings.api_key is not None else os.environ.get(KEY_VARIABLE),
        max_body_bytes=_bytes("--max-body", max_body, 1 << 20),
        prefix_cache_bytes=_bytes("--prefix-cache", prefix_cache, 1 << 30),
    )
    settings.verify()
    if not 0 <= stop_seconds <= MAX_STOP_SECONDS:
        raise UsageError(f"--stop-seconds {stop_seconds:g}: a number from 0 to {MAX_STOP_SECONDS}")
    bound = listen(host, port, settings.read_timeout)
    with contextlib.closing(bound):  # already listening: clients wait while the model loads
        from copyspec.server.endpoints import Server  # with torch, which takes seconds

        server = Server(model.load(), settings)
        server.warm_up()
        names = ", ".join(settings.names)
        echo(f"copyspec: {names} on {address_of(bound)}/v1 (Ctrl-C stops)", err=True, flush=True)
        if settings.api_key is None and not is_local(bound):
            echo(f"copyspec: anybody who reaches this address can use it: set {KEY_VARIABLE}", err=True)
        _log_requests(log)
        stopping = f"copyspec: stopping; running requests get {stop_seconds:g} s (Ctrl-C again ends them)"
        on_stop = partial(echo, stopping, err=True, flush=True)
        uvicorn_server(server, stop_seconds=stop_seconds, on_stop=on_stop).run(sockets=[bound])
    return 0


def _log_requests(form: LogForm) -> None:
    """Write the access log on stderr."""
    from copyspec.server.access import JsonFormatter, logger

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LogFormatter("%(asctime)s %(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False  # --verbose would write each line twice


def _name(model: str | None, adapter: str | None) -> str:
    """A short name of the model that the options name, without the folders of this machine."""
    from copyspec.models.loading import BUNDLED, DEFAULT, choose_default

    chosen = model or os.environ.get("COPYSPEC_MODEL") or adapter or choose_default()
    if chosen == str(BUNDLED):
        return DEFAULT
    return os.path.basename(os.path.abspath(chosen)) if os.path.exists(chosen) else chosen


def _bytes(option: str, amount: float, unit: int) -> int:
    if not 0 <= amount <= MAX_AMOUNT:
        raise UsageError(f"{option} {amount:g}: a number from 0 to {MAX_AMOUNT}")
    return int(amount * unit)
