"""The output cache: drafts copy from earlier outputs of the same namespace, if the call asks for it."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections import Counter, OrderedDict
from pathlib import Path

from copyspec.common.checks import check_type, check_whole
from copyspec.common.filesystem import link_target, locked, open_regular, replacing
from copyspec.common.forks import fork_safe
from copyspec.common.json_strings import JSONStrings
from copyspec.engine.results.spans import Reference

MAX_ENTRIES = 1024
MAX_CHARACTERS = 4_000_000
MAX_REFERENCES = 4
"""Earlier outputs that one request copies from. An unhelpful one only costs drafting time."""

_FORMAT = "copyspec output cache 1"
_FILE_BYTES, _ENTRY_BYTES = 6, 64
"""Maximum bytes of a saved file per character (JSON writes a control character as "\\u001b") and per entry; the header
counts as an entry. A larger file is not one of ours, or was saved with larger bounds."""

_LOCK_SECONDS = 10.0  # how long `save` waits for another one; writing a full cache takes a fraction of a second
_WORD = re.compile(r"\w+")


class OutputCache:
    """Stores outputs, and offers those with the most similar prompts as references for a new prompt.

    Useful when requests repeat: several turns about one text, a document corrected again after small changes, questions
    asked before. Text is copied only where the model would generate it anyway. One object is one namespace: its texts
    never reach requests given another object, so use one per user, or per group of users who may see each other's
    outputs. The size is bounded, and the least recently used entries are dropped first. Thread-safe.
    """

    def __init__(
        self,
        namespace: str,
        *,
        max_entries: int = MAX_ENTRIES,
        max_characters: int = MAX_CHARACTERS,
        max_references: int = MAX_REFERENCES,
    ) -> None:
        """`max_references`: outputs offered to one request. Raises ValueError for an empty namespace, or a bound below
        1."""
        if not isinstance(namespace, str) or not namespace:
            raise ValueError(f"namespace must be a name such as 'user-17', got {namespace!r}: caches are never shared")
        check_whole("max_entries", max_entries, low=1)
        check_whole("max_characters", max_characters, low=1)
        check_whole("max_references", max_references, low=1)
        self.namespace = namespace
        self.max_entries, self.max_characters, self.max_references = max_entries, max_characters, max_references
        self._entries: OrderedDict[str, tuple[str, frozenset[str]]] = OrderedDict()  # output -> (prompt, its words)
        self._holders: Counter[str] = Counter()  # word -> number of entries whose prompts contain it
        self._characters = 0
        self._lock = fork_safe(threading.Lock())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def characters(self) -> int:
        """Total characters of all stored prompts and outputs."""
        return self._characters

    def add(self, prompt: str, output: str) -> None:
        """Store an output, and drop the least recently used ones beyond the bounds. An output larger than the bound is
        not stored. Raises TypeError for anything but strings."""
        check_type(isinstance(prompt, str), "prompt", prompt, "a str")
        check_type(isinstance(output, str), "output", output, "a str")
        if not output.strip() or len(prompt) + len(output) > self.max_characters:
            return
        with self._lock:
            self._forget(output)
            words = frozenset(_WORD.findall(prompt.lower()))
            self._entries[output] = prompt, words
            self._holders.update(words)
            self._characters += len(prompt) + len(output)
            while len(self._entries) > self.max_entries or self._characters > self.max_characters:
                self._forget(next(iter(self._entries)))

    def references(self, prompt: str) -> list[Reference]:
        """The stored outputs most relevant to a new prompt, best first, scored by the rare words that the prompts
        share. Raises TypeError for anything but a str."""
        check_type(isinstance(prompt, str), "prompt", prompt, "a str")
        prompt_words = set(_WORD.findall(prompt.lower()))
        with self._lock:
            total = len(self._entries)
            scored = [
                (sum(math.log(1 + total / self._holders[word]) for word in words & prompt_words), age, output)
                for age, (output, (_, words)) in enumerate(self._entries.items())
            ]
            chosen = [output for score, _, output in sorted(scored, reverse=True)[: self.max_references] if score > 0]
            for output in reversed(chosen):
                self._entries.move_to_end(output)
        return [Reference(f"cache {self.namespace}", None, text=output) for output in chosen]

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._entries.clear()
            self._holders.clear()
            self._characters = 0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache as JSON, readable only by its owner and atomically replacing an existing file. If two
        processes save at once, the later one wins. A link is kept, and the file it leads to is replaced. Raises
        BlockingIOError if another process has been writing for ten seconds, and OSError for a link to nothing and for
        a folder, a pipe or a device."""
        path = link_target(Path(path))
        with self._lock:
            entries = [[prompt, output] for output, (prompt, _) in self._entries.items()]
        content = {"format": _FORMAT, "namespace": self.namespace, "entries": entries}
        lock = locked(path.with_name(f".{path.name}.lock"), repr(os.fspath(path)), wait=_LOCK_SECONDS)
        with lock, replacing(path, mode=0o600) as file:  # the texts are private to their users
            file.write(json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass"))

    @classmethod
    def load(cls, path: str | os.PathLike[str], namespace: str, **bounds: int) -> OutputCache:
        """The cache saved at `path`. Raises ValueError for a damaged file, one of another namespace, or one far larger
        than `bounds`; OSError for a link to nothing or anything else that is not a regular file."""
        path = link_target(Path(path))
        cache = cls(namespace, **bounds)
        try:
            characters, entries = cache.max_characters + len(namespace), cache.max_entries + 1
            stored, pairs = _read(path, _FILE_BYTES * characters + _ENTRY_BYTES * entries)
        except ValueError as error:
            raise ValueError(
                f"{str(path)!r} is not an output cache: {error!s:.200}; delete it to start with an empty one"
            ) from error
        if stored != namespace:
            raise ValueError(
                f"{str(path)!r} holds the namespace {stored!r:.80}, not {namespace!r}; "
                "outputs are never shared between namespaces"
            )
        for prompt, output in pairs:
            cache.add(prompt, output)
        return cache

    def _forget(self, output: str) -> None:
        entry = self._entries.pop(output, None)
        if entry is not None:
            prompt, words = entry
            self._characters -= len(prompt) + len(output)
            self._holders.subtract(words)
            for word in words:
                if not self._holders[word]:
                    del self._holders[word]

    def __repr__(self) -> str:
        return f"OutputCache({self.namespace!r}, {len(self)} outputs, {self._characters} characters)"


def _read(path: Path, most: int) -> tuple[str, list[tuple[str, str]]]:
    """Namespace and entries of a file of at most `most` bytes. Raises ValueError for content that `save` does not
    write."""
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)  # memory for all of it is taken first
    if len(content) > most:
        raise ValueError(f"it has over {most:,} bytes; a larger cache is loaded with max_characters=")
    text = JSONStrings(content.decode("utf-8", "surrogatepass"))
    text.expect('{"format": ')
    if (stated := text.string()) != _FORMAT:
        raise ValueError(f"its format is {stated!r:.80}, not {_FORMAT!r}")
    text.expect(', "namespace": ')
    namespace, entries = text.string(), list[tuple[str, str]]()
    text.expect(', "entries": [')
    while text.passes(", [" if entries else "["):
        prompt = text.string()
        text.expect(", ")
        entries.append((prompt, text.string()))
        text.expect("]")
    text.expect("]}")
    text.end()
    return namespace, entries
