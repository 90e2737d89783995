"""Stands in for SGLang's tvm-ffi class of its n-gram corpus, under its Python class `NgramCorpus`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = ctypes.POINTER(ctypes.c_int32)


def _pointer(tokens: NDArray[np.int32]) -> Any:
    return tokens.ctypes.data_as(Tokens)


def corpus_class(file: Path) -> type[Any]:
    """Return the class that `sglang.kernels.ops.speculative.ngram_corpus.get_ngram_corpus_cls()` returns, of the
    library that `build` compiled."""
    library = ctypes.CDLL(str(file))
    library.corpus_new.restype = ctypes.c_void_p
    library.corpus_new.argtypes = [ctypes.c_int64] * 8
    for name, more in {
        "corpus_free": [],
        "corpus_insert": [Tokens, ctypes.c_int64],
        "corpus_load": [ctypes.c_char_p, Tokens, ctypes.c_int64],
        "corpus_synchronize": [],
        "corpus_match": [Tokens, ctypes.c_int64, ctypes.c_int64, Tokens, ctypes.POINTER(ctypes.c_uint8)],
    }.items():
        function = getattr(library, name)
        function.restype, function.argtypes = None, [ctypes.c_void_p, *more]

    class Corpus:
        """One corpus; of the methods, those that a row uses."""

        def __init__(self, **options: Any) -> None:
            names = ("capacity", "max_trie_depth", "min_bfs_breadth", "max_bfs_breadth", "draft_token_num")
            frequency = options["match_type"] == "PROB"
            more = (options["external_sam_budget"], options["external_corpus_max_tokens"])
            self._nodes: int = options["draft_token_num"]
            self._corpus = library.corpus_new(*(options[name] for name in names), frequency, *more)

        def insert(self, batch: Sequence[Sequence[int]]) -> None:
            for ids in batch:
                library.corpus_insert(self._corpus, _pointer(np.asarray(ids, np.int32)), len(ids))

        def synchronize(self) -> None:
            library.corpus_synchronize(self._corpus)

        def load_external_corpus_named(
            self, name: str, chunks: Iterable[Sequence[int]], max_tokens: int
        ) -> tuple[int, int]:
            tokens = np.concatenate([np.asarray(chunk, np.int32) for chunk in chunks])
            library.corpus_load(self._corpus, name.encode(), _pointer(tokens), len(tokens))
            return 1, len(tokens)

        def match_stateful(
            self, states: Sequence[int], batch: Sequence[Sequence[int]], lengths: Sequence[int]
        ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            (tail,), (length,) = batch, lengths
            tokens, mask = np.zeros(self._nodes, np.int32), np.zeros(self._nodes**2, np.uint8)
            bits = mask.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
            ids = np.asarray(tail, np.int32)
            library.corpus_match(self._corpus, _pointer(ids), len(ids), length, _pointer(tokens), bits)
            return tokens.astype(np.int64), mask.astype(np.int64)

        def __del__(self) -> None:
            library.corpus_free(self._corpus)

    return Corpus
