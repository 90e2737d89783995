"""Options for a model behind a URL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from copyspec.cli.common import UsageError, panel, read
from copyspec.cli.model_options import NamedModel
from copyspec.cli.printing import echo
from copyspec.common.checks import option

if TYPE_CHECKING:
    from copyspec import Remote
    from copyspec.client.embedding import ServerEmbedder

KEYS = ("COPYSPEC_API_KEY", "OPENAI_API_KEY")
"""Variables that hold the server's key. The second one, of another service, is only sent over https."""

_server = panel("Server")

Concurrency: TypeAlias = Annotated[int, _server("Most requests at once.")]
EMBEDDER_HELP = "URL of a server with OpenAI's API that has the model --encoder names, in place of one here."
KEY_FILE_HELP = "File with the server's key."


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server that has a command's model."""

    server: str | None = option(None, f"URL of a server with OpenAI's API that has the model. Its key: ${KEYS[0]}.")
    api_key_file: Path | None = option(None, KEY_FILE_HELP)
    dialect: str = option("auto", "What it takes: auto, copyspec, vllm, vllm-xargs, prediction or plain.")

    def remote(self, named: NamedModel, others: Mapping[str, object] | None = None, **settings: Any) -> Remote | None:
        """The model behind the server, with these `settings`; None without one. `others`: more options for a model in
        this process."""
        if not self.server:
            if self.api_key_file is not None or self.dialect != "auto":
                raise UsageError("--api-key-file and --dialect are for a server: name one with --server")
            return None
        local: dict[str, object] = {"--device": named.device, "--dtype": named.dtype, "--adapter": named.adapter}
        local |= {"--threads": named.threads, **(others or {})}
        if names := [name for name, value in local.items() if value not in (None, False, "auto", [], ())]:
            raise UsageError(f"{names[0]} is for a model in this process: leave it out with --server")
        import copyspec

        settings |= {"dialect": self.dialect, "api_key": _key(self.server, self.api_key_file)}
        remote = copyspec.remote(self.server, model=named.model, **settings)
        remote.chat_template_kwargs = named.chat_template_kwargs or {}
        return remote


def embedder_of(url: str, encoder: str | None, api_key_file: Path | None = None, prefix: str = "") -> ServerEmbedder:
    """The encoder behind --embedder-server."""
    from copyspec.client.embedding import ServerEmbedder

    if encoder is None:
        raise UsageError("--embedder-server needs --encoder, the name of the model there")
    return ServerEmbedder(url, encoder, api_key=_key(url, api_key_file), prefix=prefix)


def _key(url: str, file: Path | None) -> str:
    """The key for a server; "" if there is none."""
    if file is not None:
        return read(file, "--api-key-file").strip()
    names = KEYS if url.strip().startswith("https:") else KEYS[:1]
    return next((value for name in names if (value := os.environ.get(name))), "")


@contextmanager
def usage_report(remote: Remote | None, *, quiet: bool = False) -> Iterator[None]:
    """Say at the end of the block, however it ends, what the server has counted."""
    try:
        yield
    finally:
        if remote is not None:
            if remote.usage.requests and not quiet:
                echo(f"copyspec: {usage_line(remote)}", err=True)
            remote.close()


def usage_line(remote: Remote) -> str:
    usage = remote.usage
    known = f" ({usage.cached_tokens:,} known)" if usage.cached_tokens else ""
    tokens = f"{usage.prompt_tokens:,} tokens in{known}, {usage.completion_tokens:,} out"
    parts = [f"{usage.requests:,} answer{'s' * (usage.requests != 1)}", tokens]
    if usage.accepted_prediction_tokens or usage.rejected_prediction_tokens:
        accepted, rejected = usage.accepted_prediction_tokens, usage.rejected_prediction_tokens
        parts.append(f"{accepted:,} predicted tokens accepted, {rejected:,} rejected")
    if remote.failures:
        named = ", ".join(f"{count:,} as {why}" for why, count in sorted(remote.failures.items()))
        parts.append(f"sent again: {named}")
    return f"{remote.url}: {'; '.join(parts)}"
