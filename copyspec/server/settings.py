"""Settings of the server, and how much text a request may bring to copy from: each of its characters is tokenized and
indexed before the output."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from copyspec.common.checks import brief, check_number, check_whole, option

MAX_CHARACTERS = 1_000_000
"""Of all texts of a request: a tokenizer takes about a second for them."""

TOKEN_CHARACTERS = 4  # characters of English text per token, about

MAX_REFERENCES = 4096
"""Each text has a share of the time that is spent before the first token: 300,000 of one word took seconds."""


def count_characters(value: object) -> int:
    """Number of characters in all texts of a JSON value, names of fields among them. Numbers in lists are token ids."""
    count, left = 0, [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, (list, dict)):
            values = value if isinstance(value, list) else [*value, *value.values()]
            texts = [item for item in values if not isinstance(item, int)]
            left += texts
            if isinstance(value, list):
                count += TOKEN_CHARACTERS * (len(values) - len(texts))
    return count


def check_references(references: object) -> None:
    """Raise ValueError if `references` holds too many texts, in one list or in one list per prompt."""
    listed = references if isinstance(references, list) else [references]
    # Token ids are one text.
    count = sum(len(one) if isinstance(one, list) and one and not isinstance(one[0], int) else 1 for one in listed)
    if count > MAX_REFERENCES:
        raise ValueError(f"references holds {count} texts; at most {MAX_REFERENCES} are taken here: join short ones")


ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/\\?#@,*]+")


KEY_VARIABLE = "COPYSPEC_API_KEY"
_KEY_HELP = f"Key that clients must send. ${KEY_VARIABLE} does the same and does not show in process lists."
_MODEL, _ADDRESS = ({"rich_help_panel": title} for title in ("Model", "Address"))


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of a server, its model names, its API key and the pages that may use it."""

    names: tuple[str, ...] = option(
        (), "Model name that requests use. Repeatable. Default: that of --model.", "--name", **_MODEL
    )
    api_key: str | None = field(default=None, repr=False, metadata={"help": _KEY_HELP, "names": (), **_ADDRESS})
    allow_origins: tuple[str, ...] = option(
        (),
        "Web page that may use the server, such as http://localhost:3000; *: any. Repeatable.",
        "--allow-origin",
        **_ADDRESS,
    )
    batch_size: int = option(8, "Outputs decoded together.")
    max_waiting: int = option(256, "Prompts that may wait; more get status 429.")
    max_tokens: int | None = option(None, "Limit per output. Default: the model's context.")
    max_outputs: int = option(64, "Outputs of a request: its prompts times n.")  # LangChain sends 20 prompts at once
    max_characters: int = option(MAX_CHARACTERS, "Characters in all texts of a request; others wait meanwhile.")
    timeout: float = option(600.0, "Seconds allowed per request, including waiting.")
    prefix_cache_bytes: int = 1 << 30  # size of the KV cache kept for later prompts; 0: none
    max_body_bytes: int = 4 << 20
    read_timeout: float = 30.0  # seconds for the head to arrive, and again for the body

    def verify(self) -> None:
        """Raise ValueError naming the setting, its value and what is allowed."""
        for name in ("batch_size", "max_waiting", "max_body_bytes", "max_characters", "max_outputs"):
            check_whole(name, getattr(self, name), low=1)
        check_whole("prefix_cache_bytes", self.prefix_cache_bytes, low=0)
        if self.max_tokens is not None:
            check_whole("max_tokens", self.max_tokens, low=1)
        for name in ("timeout", "read_timeout"):
            check_number(name, getattr(self, name), low=0.0, open_low=True)
        if self.api_key is not None:
            _check_key(self.api_key)
        for name in self.names:
            if not name:
                raise ValueError("a model name is empty")
        for origin in self.allow_origins:
            if origin not in (ANY_ORIGIN, "null") and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"allow_origins: {brief(origin)} is no origin: name the page's scheme, host and port, such as "
                    f"http://localhost:3000, without a path, or {ANY_ORIGIN} for any page"
                )


def _check_key(key: str) -> None:
    """Raise ValueError for a key that no client can send. The message does not show the key."""
    if not key.strip():
        raise ValueError(
            f"api_key (or {KEY_VARIABLE}) is empty: give a key, or leave out both for a server that is open to all"
        )
    if not key.isprintable():
        raise ValueError("api_key holds characters that no HTTP header can carry, such as a line break")
    if key != key.strip():
        raise ValueError("api_key begins or ends with a space, which no HTTP header can carry: leave it out")
