"""Retrievers: find the texts for a query that a model should read and may copy from."""

from __future__ import annotations

from .base import Hit as Hit, Retriever as Retriever
from .bm25 import BM25Retriever as BM25Retriever
from .corpora import Corpora as Corpora, Corpus as Corpus, load_corpus as load_corpus
from .corpora import load_retriever as load_retriever, tokenizer_fingerprint as tokenizer_fingerprint
from .dense import DenseRetriever as DenseRetriever, FaissRetriever as FaissRetriever
from .embedding import HuggingFaceEmbedder as HuggingFaceEmbedder
from .faiss_index import FaissIndex as FaissIndex, FaissOptions as FaissOptions
from .files import IndexFileError as IndexFileError
from .passages import Heading as Heading
from .hybrid import HybridRetriever as HybridRetriever
from .passages import Document as Document, is_gone as is_gone, Passage as Passage, read_documents as read_documents
from .passages import split_passages as split_passages, UNSTAMPED as UNSTAMPED
from .passages import without_surrogates as without_surrogates
from .places import load_passages as load_passages
from .reranking import CrossEncoderScorer as CrossEncoderScorer, RerankingRetriever as RerankingRetriever
from .shortlist import Shortlist as Shortlist, shortlist_of as shortlist_of
from .speculative.retriever import Answer as Answer, SpeculationStats as SpeculationStats
from .speculative.retriever import SpeculativeRetriever as SpeculativeRetriever
from .speculative.scheduler import Costs as Costs, Plan as Plan, Scheduler as Scheduler
from .speculative.worker import Search as Search, Worker as Worker
from .terms import cased_words as cased_words, languages as languages, MARKS as MARKS, PLAIN as PLAIN
from .terms import share_of_word as share_of_word, Stems as Stems, STOP_WORDS as STOP_WORDS, UNSPACED as UNSPACED
from .terms import WORD as WORD, words as words
from .tokens.continuations import Continuation as Continuation, Match as Match
from .tokens.datastore import Datastore as Datastore
from .vectors import ExactIndex as ExactIndex, VectorIndex as VectorIndex
