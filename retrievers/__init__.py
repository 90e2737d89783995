"""Retrievers: from a query to the texts worth reading, and worth copying from."""

from __future__ import annotations

from copyspec.retrievers.base import Hit, Retriever
from copyspec.retrievers.bm25 import BM25Retriever, words
from copyspec.retrievers.corpora import Corpora, Corpus, load_corpus, load_retriever, tokenizer_fingerprint
from copyspec.retrievers.dense import DenseRetriever, FaissRetriever
from copyspec.retrievers.embedding import HuggingFaceEmbedder
from copyspec.retrievers.faiss_index import FaissIndex, FaissOptions
from copyspec.retrievers.files import IndexFileError
from copyspec.retrievers.passages import Document, Passage, load_passages, read_documents, split_passages
from copyspec.retrievers.shortlist import Shortlist, shortlist_of
from copyspec.retrievers.speculative.retriever import Answer, SpeculationStats, SpeculativeRetriever
from copyspec.retrievers.speculative.scheduler import Costs, Plan, Scheduler
from copyspec.retrievers.speculative.worker import Search, Worker
from copyspec.retrievers.tokens.continuations import Continuation, Match
from copyspec.retrievers.tokens.datastore import Datastore
from copyspec.retrievers.vectors import ExactIndex, VectorIndex

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
