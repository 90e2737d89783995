"""Retrievers: from a query to the texts worth reading, and worth copying from."""

from __future__ import annotations

from .base import Hit, Retriever
from .bm25 import BM25Retriever, words
from .corpora import Corpora, Corpus, load_corpus, load_retriever, tokenizer_fingerprint
from .dense import DenseRetriever, FaissRetriever
from .embedding import HuggingFaceEmbedder
from .faiss_index import FaissIndex, FaissOptions
from .files import IndexFileError
from .passages import Document, Passage, load_passages, read_documents, split_passages
from .shortlist import Shortlist, shortlist_of
from .speculative.retriever import Answer, SpeculationStats, SpeculativeRetriever
from .speculative.scheduler import Costs, Plan, Scheduler
from .speculative.worker import Search, Worker
from .tokens.continuations import Continuation, Match
from .tokens.datastore import Datastore
from .vectors import ExactIndex, VectorIndex

__all__ = [
    "Answer",
    "BM25Retriever",
    "Continuation",
    "Corpora",
    "Corpus",
    "Costs",
    "Datastore",
    "DenseRetriever",
    "Document",
    "ExactIndex",
    "FaissIndex",
    "FaissOptions",
    "FaissRetriever",
    "Hit",
    "HuggingFaceEmbedder",
    "IndexFileError",
    "Match",
    "Passage",
    "Plan",
    "Retriever",
    "Scheduler",
    "Search",
    "Shortlist",
    "SpeculationStats",
    "SpeculativeRetriever",
    "VectorIndex",
    "Worker",
    "load_corpus",
    "load_passages",
    "load_retriever",
    "read_documents",
    "shortlist_of",
    "split_passages",
    "tokenizer_fingerprint",
    "words",
]
