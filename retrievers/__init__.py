"""Retrievers: from a query to the texts worth reading, and worth copying from."""

from __future__ import annotations

from .base import Hit, Retriever
from .bm25 import BM25Retriever, words
from .datastore import Continuation, Datastore, Match
from .dense import DenseRetriever, FaissRetriever
from .embedding import HuggingFaceEmbedder
from .faiss_index import FaissIndex, FaissOptions
from .files import IndexFileError
from .vectors import ExactIndex, VectorIndex

__all__ = [
    "BM25Retriever",
    "Continuation",
    "Datastore",
    "DenseRetriever",
    "ExactIndex",
    "FaissIndex",
    "FaissOptions",
    "FaissRetriever",
    "Hit",
    "HuggingFaceEmbedder",
    "IndexFileError",
    "Match",
    "Retriever",
    "VectorIndex",
    "words",
]
