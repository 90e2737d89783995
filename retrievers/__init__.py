"""Retrievers: from a query to the texts worth reading, and worth copying from."""

from __future__ import annotations

from .base import Hit, Retriever
from .bm25 import BM25Retriever, words
from .datastore import Continuation, Datastore, Match
from .files import IndexFileError

__all__ = ["BM25Retriever", "Continuation", "Datastore", "Hit", "IndexFileError", "Match", "Retriever", "words"]
