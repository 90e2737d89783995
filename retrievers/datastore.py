"""The datastore: a corpus of tokens on disk in which the end of a context is found in microseconds (REST).

REST (He et al. 2024, arXiv 2311.08252) drafts what followed the longest match of the context in a large corpus.
Here the index stays on disk and is read where a search looks; one descent finds the longest match and every shorter one
lies around it; no match and no continuation crosses the border between two documents.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import files
from .base import Folder
from .descent import Descent
from .segment import Segment, write_segment
from .suffix_array import BORDER, Tokens, sorts_bytes

KIND = "tokens"

SEGMENT_TOKENS, SEGMENT_TOKENS_NUMPY = 1 << 27, 1 << 25
"""Of one segment at most, unless a document is longer: sorting that many takes 3 GB, by NumPy without the extra
copyspec[fast] too. Fewer segments are searched faster."""

MAX_MATCH = 32
"""Tokens of the context that are looked up: what agrees that far is one text, and longer matches change nothing."""

ESCAPE = 10.0
"""What speaks against a match, in occurrences: `n` places behind the longest match get n / (n + ESCAPE) of the
weight, shorter matches share the rest in the same way (the escape of PPM; Cleary and Witten 1984). Drafts for
recorded chats, answers and summaries were best from 10 on; 1 lost three per cent of the tokens per call."""

TokenIds = Sequence[int] | NDArray[np.integer]
"""The tokens of one document."""


class Continuation(NamedTuple):
    """What followed the end of the context at one place of the corpus."""

    document: int  # its number, in the order in which documents were appended
    offset: int  # of the first token in the document
    tokens: list[int]  # at least one; fewer than asked for where the document ends
    weight: float  # this place's share of the evidence; those of one context add up to at most 1


class Match(NamedTuple):
    """The longest end of a context that occurs in the corpus."""

    length: int  # tokens of it; 0: not even the last one occurs
    occurrences: int  # places where it occurs


class Datastore:
    """A corpus of token sequences under a folder, searched by several threads and forked processes, appended to by one.

    The folder's manifest holds the fingerprint of the tokenizer (`tokenizer_fingerprint`); `verify` reads all files
    once and compares their checksums, without it only their sizes are checked.
    """

    def __init__(self, folder: Folder, *, fingerprint: str | None = None, verify: bool = True) -> None:
        """Opens what `create` made. Raises files.IndexFileError for damage or another tokenizer."""
        self.folder = Path(folder)
        files.read_whole(folder, lambda: self._open(fingerprint, verify))

    def _open(self, fingerprint: str | None, verify: bool) -> None:
        folder = self.folder
        manifest = files.read_manifest(folder, KIND)
        if fingerprint is not None:
            files.check_fingerprint(folder, manifest, fingerprint, "tokenizer")
        if manifest.facts["byteorder"] != sys.byteorder:
            raise files.IndexFileError(f"the datastore in {str(folder)!r} was made on a machine of other byte order")
        self.fingerprint = manifest.fingerprint
        if verify:
            for entry in manifest.files.values():
                files.check_file(self.folder, entry)
        parts: dict[int, dict[str, files.Entry]] = {}
        for key, entry in manifest.files.items():
            number, _, name = key.partition(".")
            parts.setdefault(int(number), {})[name] = entry
        self._opened_segments: list[Segment] | None = self._opened([parts[number] for number in sorted(parts)])

    @classmethod
    def create(cls, folder: Folder, documents: Iterable[TokenIds] = (), *, fingerprint: str = "") -> Datastore:
        """A new datastore of these documents' tokens. Raises FileExistsError where the folder holds an index."""
        path = Path(folder)
        if (path / files.MANIFEST).exists():
            raise FileExistsError(f"{str(folder)!r} holds an index already: open it and append, or remove it")
        path.mkdir(parents=True, exist_ok=True)
        files.write_manifest(path, files.Manifest(KIND, fingerprint, {"byteorder": sys.byteorder}))
        store = cls(path)
        store.append(documents)
        return store

    def __enter__(self) -> Datastore:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files once searches that go on in other threads have ended; later ones raise ValueError."""
        self._opened_segments = None

    @property
    def _segments(self) -> list[Segment]:
        segments = self._opened_segments
        if segments is None:
            raise ValueError(
                f"the datastore in {str(self.folder)!r} is closed; open it again: Datastore({str(self.folder)!r})"
            )
        return segments

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents."""
        return sum(segment.num_tokens for segment in self._segments)

    @property
    def num_documents(self) -> int:
        """Documents, empty ones included."""
        return sum(segment.num_documents for segment in self._segments)

    def document(self, number: int) -> list[int]:
        """The tokens of a document. Raises IndexError for one that is not there."""
        for segment in self._segments:
            index = number - segment.first_document
            if 0 <= index < segment.num_documents:
                return segment.following(segment.documents[index], len(segment.tokens))
        raise IndexError(f"document {number!r} is not in this datastore: it holds {self.num_documents}, from 0")

    def append(self, documents: Iterable[TokenIds], *, segment_tokens: int | None = None) -> range:
        """Adds documents of token ids and returns their numbers.

        They are sorted by themselves, together with segments that are not larger than they are: appending often
        costs the logarithm of the size, not the size. The folder changes when all is written. `segment_tokens`
        bounds the memory, at 23 bytes each (100 without copyspec[fast]); None: about 3 GB at most.
        """
        limit = segment_tokens or (SEGMENT_TOKENS if sorts_bytes() else SEGMENT_TOKENS_NUMPY)
        first = self.num_documents
        kept = [segment.entries for segment in self._segments]
        new: list[dict[str, files.Entry]] = []
        for tokens in _batches(documents, limit):
            while not new and kept and self._segments[len(kept) - 1].num_tokens <= len(tokens):
                before = self._segments[len(kept) - 1].all_tokens()
                if len(before) + len(tokens) > limit:
                    break
                kept.pop()
                tokens = np.concatenate([before[:-1], tokens])
            new.append(write_segment(self.folder, tokens))
        if new:
            self._commit([*kept, *new])
        return range(first, self.num_documents)

    def search(self, context: Sequence[int]) -> Match:
        """The longest match of the context's end, at most MAX_MATCH tokens, and how often it occurs."""
        return _match(self._descents(context))

    def continuations(self, context: Sequence[int], length: int = 16, count: int = 32) -> list[Continuation]:
        """What followed the context's end in the corpus: at most `count` places, `length` tokens from each.

        Places behind the longest match come first; where they are fewer than `count`, those behind shorter
        matches follow. Of more places than are wanted some are taken at even distances. Deterministic.
        """
        return self.find(context, length, count)[1]

    def find(self, context: Sequence[int], length: int = 16, count: int = 32) -> tuple[Match, list[Continuation]]:
        """`search` and `continuations` in one."""
        if length < 1 or count < 1:
            raise ValueError(f"length and count must be at least 1, got {length!r} and {count!r}")
        descents = self._descents(context)
        match = _match(descents)
        found: list[Continuation] = []
        rest = 1.0
        for parts, places in _levels(descents):
            taken = min(count - len(found), places)
            weight = rest * places / (places + ESCAPE) / taken
            rest *= ESCAPE / (places + ESCAPE)
            for descent, index in _evenly(parts, places, taken):
                segment, place = descent.segment, descent.place(index)
                tokens = segment.following(place, length)
                found.append(Continuation(*segment.document(place), tokens, weight))
            if len(found) == count:
                break
        return match, [continuation for continuation in found if continuation.tokens]

    def _descents(self, context: Sequence[int]) -> list[Descent]:
        query = list(reversed(context[-MAX_MATCH:]))
        if query and not (min(query) >= 0 and max(query) < BORDER):
            query = query[: next(index for index, token in enumerate(query) if not 0 <= token < BORDER)]
        if not query:
            return []
        found = [Descent(segment, query) for segment in self._segments]
        return [descent for descent in found if descent.length]

    def _commit(self, parts: list[dict[str, files.Entry]]) -> None:
        entries = {f"{number}.{name}": entry for number, part in enumerate(parts) for name, entry in part.items()}
        facts = {"byteorder": sys.byteorder}
        files.write_manifest(self.folder, files.Manifest(KIND, self.fingerprint, facts, entries))
        self._opened_segments = self._opened(parts)

    def _opened(self, parts: list[dict[str, files.Entry]]) -> list[Segment]:
        segments, documents = [], 0
        for entries in parts:
            segments.append(Segment(self.folder, entries, documents))
            documents += segments[-1].num_documents
        return segments


_Part = tuple[Descent, int, int]  # a search in a segment and places of it, from and to


def _match(descents: list[Descent]) -> Match:
    length = max([descent.length for descent in descents], default=0)
    return Match(length, sum([descent.high - descent.low for descent in descents if descent.length == length]))


def _levels(descents: list[Descent]) -> Iterator[tuple[list[_Part], int]]:
    """The places behind the longest match, then those that each shorter match adds, with their number."""
    before = {id(descent): (descent.low, descent.low) for descent in descents}
    while descents:
        length = max(descent.length for descent in descents)
        parts: list[_Part] = []
        remaining = []
        for descent in descents:
            if descent.length < length:
                remaining.append(descent)
                continue
            low, high = before[id(descent)]
            parts += [(descent, descent.low, low), (descent, high, descent.high)]
            before[id(descent)] = (descent.low, descent.high)
            if descent.widen():
                remaining.append(descent)
        yield parts, sum(end - start for _, start, end in parts)
        descents = remaining


def _evenly(parts: list[_Part], places: int, count: int) -> Iterator[tuple[Descent, int]]:
    """`count` of the parts' places, at even distances."""
    passed, part = 0, iter(parts)
    descent, start, end = next(part)
    for number in range(count):
        wanted = (2 * number + 1) * places // (2 * count)
        while wanted - passed >= end - start:
            passed += end - start
            descent, start, end = next(part)
        yield descent, start + wanted - passed


def _batches(documents: Iterable[TokenIds], limit: int) -> Iterator[Tokens]:
    """The documents' tokens with their borders, in arrays of at most `limit` unless a document is longer."""
    if isinstance(documents, str):
        raise TypeError(f"documents must be sequences of token ids, got a string: {documents[:20]!r}")
    border = np.uint32(BORDER).tobytes()
    buffer = bytearray(border)
    for number, document in enumerate(documents):
        content = _checked(number, document).tobytes()
        if len(buffer) > 4 and (len(buffer) + len(content)) // 4 >= limit:
            yield np.frombuffer(buffer, np.uint32)
            buffer = bytearray(border)
        buffer += content
        buffer += border
    if len(buffer) > 4:
        yield np.frombuffer(buffer, np.uint32)


def _checked(number: int, document: TokenIds) -> Tokens:
    array = np.asarray(document)
    if array.size == 0:
        return np.empty(0, np.uint32)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"documents[{number}] must be a sequence of token ids, got {document!r:.60}")
    wrong = array[(array < 0) | (array >= BORDER)]
    if len(wrong):
        raise ValueError(f"documents[{number}] holds {int(wrong[0])}; token ids are 0 to {BORDER - 1}")
    return array.astype(np.uint32, copy=False)
