"""The datastore (REST): a corpus of tokens on disk, searched for the end of a context in microseconds.

REST (He et al. 2024, arXiv 2311.08252) drafts what followed the longest suffix match of the context in a large corpus.
Here the index stays on disk and is read only where a search looks. One descent finds the longest match, and shorter
matches are found around it. Matches and continuations do not cross document borders.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from copyspec.common.checks import check_whole, plain_value

from .. import files
from ..base import Folder, check_folder, check_k
from ..passages import Passage
from ..places import read_places, write_passages
from ..saving import Saving, saving
from .continuations import (
    Continuation,
    Match,
    backwards,
    continuations_of,
    descents_of,
    match_of,
)
from .segment import FILES, NEEDED, IndexSegment, write_segment
from .suffix_array import BORDER, Tokens, sorts_bytes

KIND = "tokens"

SEGMENT_TOKENS, SEGMENT_TOKENS_NUMPY = 1 << 27, 1 << 25
"""Largest segment, with the extra copyspec[fast] and with NumPy alone, unless a document is longer: sorting that many
tokens takes 3 GB of memory. Fewer segments are searched faster."""

MAX_SEGMENT_TOKENS = 1 << 28
"""Largest segment that may be asked for. Linux reads at most 2 GB at once, and merging reads a segment as a whole."""

TokenIds = Sequence[int] | NDArray[np.integer]
"""The tokens of one document."""

_Beside = Callable[[Saving, int], None]


class Datastore:
    """A corpus of token sequences in a folder. Threads and forked processes may search it; one at a time may append.

    The manifest holds the fingerprint of the tokenizer (`tokenizer_fingerprint`). `verify`: read all files once and
    compare their checksums; otherwise only their sizes are checked.
    """

    def __init__(self, folder: Folder, *, fingerprint: str | None = None, verify: bool = True) -> None:
        """Open what `create` made. Raises files.IndexFileError for damaged files or another tokenizer."""
        self.folder = check_folder(folder)
        with files.opened(folder, KIND) as index:
            self._open(index, fingerprint, verify)

    @classmethod
    def read(cls, index: files.Opened) -> Datastore:
        """Make a datastore of an opened index, without verifying checksums."""
        store = cls.__new__(cls)
        store.folder = index.folder
        store._open(index, None, verify=False)
        return store

    def _open(self, index: files.Opened, fingerprint: str | None, verify: bool) -> None:
        manifest = index.manifest
        if fingerprint is not None:
            index.check_fingerprint(fingerprint, "tokenizer")
        facts = index.check_facts({"byteorder": (str,)})
        if facts["byteorder"] != sys.byteorder:
            raise files.IndexFileError(
                f"the datastore in {str(self.folder)!r} was made on a machine of other byte order"
            )
        self.fingerprint = manifest.fingerprint
        numbers = sorted({int(key.partition(".")[0]) for key in manifest.files if key[0].isdigit()})
        needed = [f"{number}.{name}" for number in numbers for name in NEEDED]
        known = [f"{number}.{name}" for number in numbers for name in FILES]
        index.check_keys(needed, known)
        if verify:
            for key in manifest.files:
                index.check(key)
        self._opened_segments: list[IndexSegment] | None = _opened(index, numbers)
        self._manifest = manifest

    @classmethod
    def create(cls, folder: Folder, documents: Iterable[TokenIds] = (), *, fingerprint: str = "") -> Datastore:
        """Create a datastore of these documents. Raises FileExistsError if the folder holds an index, BlockingIOError
        while another process writes there."""
        with saving(folder) as index:
            return cls.create_in(index, documents, fingerprint)

    @classmethod
    def create_in(
        cls,
        index: Saving,
        documents: Iterable[TokenIds],
        fingerprint: str,
        beside: _Beside | None = None,
    ) -> Datastore:
        """Do the work of `create` in a locked folder. `beside`: see `append_in`."""
        if index.is_there():
            raise FileExistsError(f"{str(index.folder)!r} holds an index already: open it and append, or remove it")
        store = cls.__new__(cls)
        store.folder, store.fingerprint = index.folder, fingerprint
        store._opened_segments = []
        store._manifest = files.Manifest(KIND, fingerprint)
        store.append_in(index, documents, beside=beside)
        return store

    def __enter__(self) -> Datastore:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files when running searches in other threads have ended; later searches raise ValueError."""
        self._opened_segments = None

    @property
    def _segments(self) -> list[IndexSegment]:
        segments = self._opened_segments
        if segments is None:
            raise ValueError(
                f"the datastore in {str(self.folder)!r} is closed; open it again: Datastore({str(self.folder)!r})"
            )
        return segments

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all documents."""
        return sum(segment.num_tokens for segment in self._segments)

    @property
    def num_documents(self) -> int:
        """Number of documents, including empty ones."""
        return sum(segment.num_documents for segment in self._segments)

    def document(self, number: int) -> list[int]:
        """Return the tokens of a document. Raises IndexError for a number out of range."""
        number = operator.index(number)
        for segment in self._segments:
            place = number - segment.first_document
            if 0 <= place < segment.num_documents:
                with _damage_named(self.folder):
                    return segment.document_tokens(place)
        raise IndexError(f"document {number!r} is not in this datastore: it holds {self.num_documents}, from 0")

    def append(self, documents: Iterable[TokenIds], *, segment_tokens: int | None = None) -> range:
        """Add documents of token ids and return their numbers.

        The new documents are sorted together with existing segments that are not larger, so that frequent appending
        costs the logarithm of the total size per token. The folder changes when all is written. `segment_tokens`:
        bounds the memory, at 23 bytes per token (100 without copyspec[fast]); None: about 3 GB at most.
        """
        if segment_tokens is not None:
            segment_tokens = cast("int", plain_value(segment_tokens))
            check_whole("segment_tokens", segment_tokens, low=1, high=MAX_SEGMENT_TOKENS)
        with saving(self.folder) as index:
            places = self._refresh()
            beside = None if places is None else _unnamed(places)
            return self.append_in(index, documents, segment_tokens, beside=beside)

    def append_in(
        self,
        index: Saving,
        documents: Iterable[TokenIds],
        segment_tokens: int | None = None,
        *,
        beside: _Beside | None = None,
    ) -> range:
        """Do the work of `append` in a locked folder. `beside`: writes additional files after the last document; it is
        called with the number of documents."""
        limit = segment_tokens or (SEGMENT_TOKENS if sorts_bytes() else SEGMENT_TOKENS_NUMPY)
        first, segments = self.num_documents, self._segments
        remaining, written, count = len(segments), 0, first
        for tokens in _batches(documents, limit):
            count += int(np.count_nonzero(tokens == BORDER)) - 1
            while not written and remaining and segments[remaining - 1].num_tokens <= len(tokens):
                before = segments[remaining - 1].all_tokens()
                if len(before) + len(tokens) > limit:
                    break
                remaining -= 1
                tokens = np.concatenate([before[:-1], tokens])
            write_segment(index, remaining + written, tokens)
            written += 1
        for number, segment in enumerate(segments[:remaining]):
            index.files.update({f"{number}.{name}": entry for name, entry in segment.entries.items()})
        if beside is not None:
            beside(index, count)
        elif not written and index.is_there():
            return range(first, first)
        index.commit(KIND, self.fingerprint, {"byteorder": sys.byteorder})
        with files.opened(self.folder, KIND) as made:
            self._open(made, None, verify=False)
        return range(first, self.num_documents)

    def _refresh(self) -> list[Passage] | None:
        """Reopen the datastore if others have appended; the lock must be held. Returns the documents' names if the
        index has them."""
        _ = self._segments  # raises if the datastore was closed
        with files.opened(self.folder, KIND) as index:
            if index.manifest != self._manifest:
                self._open(index, self.fingerprint, verify=False)
            return read_places(index, [""] * self.num_documents) if "passages.names" in index.manifest.files else None

    def search(self, context: Sequence[int]) -> Match:
        """Return the context's longest suffix match, of at most MAX_MATCH tokens, and its number of occurrences."""
        query, segments = backwards(context), self._segments
        with _damage_named(self.folder):
            return match_of(descents_of(query, segments))

    def continuations(self, context: Sequence[int], length: int = 16, count: int = 32) -> list[Continuation]:
        """Return what followed the context's end in the corpus: up to `length` tokens at each of up to `count` places.

        Places after the longest match come first; if they are fewer than `count`, those after shorter matches follow.
        If there are more, evenly spaced ones are taken. Deterministic.
        """
        return self.find(context, length, count)[1]

    def find(self, context: Sequence[int], length: int = 16, count: int = 32) -> tuple[Match, list[Continuation]]:
        """Return the results of `search` and `continuations`."""
        length, count = check_k(length, "length"), check_k(count, "count")
        query, segments = backwards(context), self._segments
        with _damage_named(self.folder):
            return continuations_of(descents_of(query, segments), length, count)


def _unnamed(places: list[Passage]) -> _Beside:
    """Make a `beside` function that keeps the documents' names and adds empty ones for new documents."""

    def write(index: Saving, count: int) -> None:
        write_passages(index, places + [Passage("", 0, "")] * (count - len(places)))

    return write


def _opened(index: files.Opened, numbers: Sequence[int]) -> list[IndexSegment]:
    segments, documents = list[IndexSegment](), 0
    for number in numbers:
        segments.append(IndexSegment(index, number, documents))
        documents += segments[-1].num_documents
    return segments


@contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    """Turn errors caused by inconsistent files into IndexFileError: as most numbers stay on disk, opening a datastore
    cannot check them all."""
    try:
        yield
    except (IndexError, ValueError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise files.IndexFileError(
            f"the datastore in {str(folder)!r} is not what copyspec writes ({error}): build it again"
        ) from error


def _batches(documents: Iterable[TokenIds], limit: int) -> Iterator[Tokens]:
    """Yield the documents' tokens with borders, in arrays of at most `limit` unless a document is longer."""
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
