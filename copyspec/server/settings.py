"""What a server allows."""

from __future__ import annotations

from dataclasses import dataclass, field

from copyspec.checks import check_number, check_whole
from copyspec.engine.call_options import CallOptions


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of a server, and who may ask it."""

    names: tuple[str, ...] = ()  # under which the model is asked for; none: the engine's own
    api_key: str | None = field(default=None, repr=False)  # None: anybody may ask
    batch_size: int = CallOptions().batch_size  # rows of the model that requests share
    max_waiting: int = 256  # prompts that wait for a row; more are answered with 429
    max_body_bytes: int = 4 << 20
    max_tokens: int | None = None  # of one output; None: what the context holds
    max_outputs: int = 16  # of one request: its prompts times n
    prefix_cache_bytes: int = 1 << 30  # of keys and values that are kept for prompts to come; 0: none
    timeout: float = 600.0  # seconds for a request, waiting included
    read_timeout: float = 30.0  # seconds for its body to arrive

    def verify(self) -> None:
        """Raises ValueError that names the setting, its value and what it may be."""
        for name in ("batch_size", "max_waiting", "max_body_bytes", "max_outputs"):
            check_whole(name, getattr(self, name), low=1)
        check_whole("prefix_cache_bytes", self.prefix_cache_bytes, low=0)
        if self.max_tokens is not None:
            check_whole("max_tokens", self.max_tokens, low=1)
        for name in ("timeout", "read_timeout"):
            check_number(name, getattr(self, name), low=0.0, open_low=True)
        if self.api_key is not None and (not self.api_key.strip() or not self.api_key.isprintable()):
            raise ValueError("api_key is empty, or holds characters that no HTTP header can carry")
        for name in self.names:
            if not name:
                raise ValueError("a name of the model is empty")
