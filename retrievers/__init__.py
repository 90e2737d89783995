"""Retrievers: find the texts for a query that a model should read and may copy from."""

from __future__ import annotations

from .base import Hit, Retriever
from .bm25 import BM25Retriever
from .corpora import Corpora, Corpus, load_corpus, load_retriever, tokenizer_fingerprint
from .dense import DenseRetriever, FaissRetriever
from .embedding import HuggingFaceEmbedder
from .faiss_index import FaissIndex, FaissOptions
from .files import IndexFileError
from .headings import Heading
from .hybrid import HybridRetriever
from .passages import UNSTAMPED, Document, Passage, is_gone, read_documents, split_passages, without_surrogates
from .places import load_passages
from .reranking import CrossEncoderScorer, RerankingRetriever
from .shortlist import Shortlist, shortlist_of
from .speculative.retriever import Answer, SpeculationStats, SpeculativeRetriever
from .speculative.scheduler import Costs, Plan, Scheduler
from .speculative.worker import Search, Worker
from .terms import MARKS, PLAIN, STOP_WORDS, UNSPACED, WORD, Stems, cased_words, languages, share_of_word, words
from .tokens.continuations import Continuation, Match
from .tokens.datastore import Datastore
from .vectors import ExactIndex, VectorIndex

__all__ = [
    "MARKS",
    "PLAIN",
    "STOP_WORDS",
    "UNSPACED",
    "UNSTAMPED",
    "WORD",
    "Answer",
    "BM25Retriever",
    "Continuation",
    "Corpora",
    "Corpus",
    "Costs",
    "CrossEncoderScorer",
    "Datastore",
    "DenseRetriever",
    "Document",
    "ExactIndex",
    "FaissIndex",
    "FaissOptions",
    "FaissRetriever",
    "Heading",
    "Hit",
    "HuggingFaceEmbedder",
    "HybridRetriever",
    "IndexFileError",
    "Match",
    "Passage",
    "Plan",
    "RerankingRetriever",
    "Retriever",
    "Scheduler",
    "Search",
    "Shortlist",
    "SpeculationStats",
    "SpeculativeRetriever",
    "Stems",
    "VectorIndex",
    "Worker",
    "cased_words",
    "is_gone",
    "languages",
    "load_corpus",
    "load_passages",
    "load_retriever",
    "read_documents",
    "share_of_word",
    "shortlist_of",
    "split_passages",
    "tokenizer_fingerprint",
    "without_surrogates",
    "words",
]
