"""BM25 retrieval with an inverted index; the scores equal those of rank-bm25's BM25Okapi."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from . import files
from .base import ADD_LOCK, DEFAULT_K, Folder, Hit, best, check_ids, check_k, check_query, check_texts, in_context
from .places import SavedRetriever
from .saving import Saving
from .shortlist import Shortlist, WordShortlist
from .terms import PLAIN, Split, query_splitter, split_fingerprint, splitter, splitter_name, words

KIND = "bm25"

K1, B, EPSILON = 1.5, 0.75, 0.25
"""Defaults of rank-bm25's BM25Okapi. EPSILON times the mean idf replaces negative idfs, those of words that most texts
hold."""

LUCENE_K1 = 1.2
"""Lucene's default for term frequency saturation, used with its idf."""

Idf = Literal["okapi", "lucene"]
"""Inverse document frequency: as in rank-bm25, or Lucene's ln(1 + (N - n + 0.5) / (n + 0.5)), never negative."""

_ARRAYS = ("lengths", "word_numbers", "counts", "held")  # of _Statistics, each a file
FILES = ("texts", "words", *_ARRAYS)

_FACTS: dict[str, tuple[type, ...]] = {"texts": (int,), "idf": (str,)}


class BM25Retriever(SavedRetriever):
    """Scores texts by the words that they share with the query (Okapi BM25 as in rank-bm25).

    `BM25Okapi.get_scores` looks every query word up in every text. Here an inverted index gives the texts of each
    word, and their scores are added in the same order by the same formula: the same scores with less work.

    `split`: splits texts and queries into terms (`Stems("english")`: stems). An index on disk can only be loaded with
    the same splitter. `contexts`: searched with the texts without being part of them, such as a title or headings.
    `idf="lucene"`: for few texts; in rank-bm25's formula a word that half of the texts hold has no weight, and among
    two texts every word is in half or all of them. An index on disk keeps its `idf`.
    """

    kind = KIND

    def __init__(
        self,
        texts: Sequence[str],
        *,
        split: Split = words,
        idf: Idf = "okapi",
        contexts: Sequence[str] | None = None,
    ) -> None:
        """Raises ValueError if no text holds a word, for an unknown `idf`, and if `contexts` has another length."""
        if idf not in ("okapi", "lucene"):
            raise ValueError(f"idf must be 'okapi' or 'lucene', got {idf!r}")
        checked = check_texts(texts)
        self.idf: Idf = idf
        self._set_split(split)
        statistics = _Statistics()
        statistics.extend([split(text) for text in in_context(checked, contexts)])
        if not statistics.words:
            raise ValueError(f"none of the {len(checked)} texts holds a word to search for")
        self._held = _Held(checked, statistics, _Postings(statistics, idf))

    def _set_split(self, split: Split) -> None:
        self._split, self._split_query = split, query_splitter(split)

    @property
    def texts(self) -> Sequence[str]:
        """The texts; a hit's id is an index into them."""
        return self._held.texts

    def scores(self, query: str) -> NDArray[np.float64]:
        """Return the score of every text for `query`. [len(self)]"""
        return self._scores(self._held, query)

    def _scores(self, state: _Held, query: str) -> NDArray[np.float64]:
        scores = np.zeros(len(state.texts))
        for word in self._split_query(check_query(query)):
            ids, weights = state.postings.of(word)
            scores[ids] += weights
        return scores

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the scores of the texts `ids`, the same as in a search. [len(ids)]"""
        state = self._held
        wanted = check_ids(ids, len(state.texts))
        scores = np.zeros(len(wanted))
        for word in self._split_query(check_query(query)):
            scores += state.postings.weights(word, wanted)
        return scores

    @property
    def split(self) -> Split:
        """The function that splits texts into terms."""
        return self._split

    @property
    def no_match(self) -> float:
        """The score of texts without any word of the query, with which a search fills up its hits."""
        return 0.0

    def holders(self, term: str) -> int:
        """Return the number of texts that hold `term`."""
        return len(self._held.postings.of(term)[0])

    def shortlist(self) -> Shortlist:
        """Make an empty shortlist, which ranks the texts put into it by this retriever's scores."""
        return WordShortlist(self._split_query, lambda: self._held.postings)

    def search(self, query: str, k: int = DEFAULT_K) -> list[Hit]:
        """Return at most `k` hits, best first; ties in the order of the texts. Raises ValueError for k < 1."""
        wanted, state = check_k(k), self._held
        scores = self._scores(state, query)
        return [Hit(int(i), float(scores[i]), state.texts[i]) for i in best(scores, wanted)]

    def search_batch(self, queries: Sequence[str], k: int = DEFAULT_K) -> list[list[Hit]]:
        """`search` for each query."""
        check_k(k)
        return [self.search(query, k) for query in check_texts(queries, "queries")]

    def add(self, texts: Sequence[str], contexts: Sequence[str] | None = None) -> None:
        """Add texts with their contexts. All scores change, because they depend on the statistics of all texts."""
        more = check_texts(texts)
        terms = [self._split(text) for text in in_context(more, contexts)]
        with ADD_LOCK:
            state = self._held
            statistics = state.statistics.copy()
            statistics.extend(terms)
            self._held = _Held([*state.texts, *more], statistics, _Postings(statistics, self.idf))

    def write_files(self, index: Saving) -> tuple[str, dict[str, object]]:
        """Write the files. Returns the fingerprint and the facts for the manifest."""
        state = self._held
        index.strings("texts", state.texts)
        index.strings("words", list(state.statistics.words))
        for name, numbers in state.statistics.arrays().items():
            index.array(name, numbers)
        facts: dict[str, object] = {"texts": len(state.texts), "idf": self.idf}
        if (name_ := splitter_name(self._split)) not in (None, PLAIN):
            facts["split"] = name_
        return _fingerprint(self._split), facts

    @classmethod
    def load(cls, folder: Folder, *, split: Split | None = None) -> BM25Retriever:
        """The retriever that `save` wrote, with the splitter that the index names where none is given. Raises
        files.IndexFileError for damaged files or another `split`."""
        with files.opened(folder, KIND) as index:
            return cls.read(index, split=split)

    @classmethod
    def read(cls, index: files.Opened, *, split: Split | None = None) -> BM25Retriever:
        """Read the retriever from an opened index."""
        index.check_keys(FILES)
        facts = index.check_facts(fact_types(index.manifest))
        if split is None:
            try:
                split = splitter(str(facts.get("split", PLAIN)))
            except ValueError as error:
                raise index.wrong("words", f"{error!s:.80}") from None
        index.check_fingerprint(_fingerprint(split), "word splitter")
        idf = facts["idf"]
        if idf not in get_args(Idf):
            raise index.wrong("words", f"idf is {idf!r:.40}")
        retriever = cls.__new__(cls)
        retriever._set_split(split)
        retriever.idf = cast(Idf, idf)
        texts = index.strings("texts")
        statistics = _Statistics.read(index, len(texts))
        retriever._held = _Held(texts, statistics, _Postings(statistics, retriever.idf))
        return retriever


def fact_types(manifest: files.Manifest) -> dict[str, tuple[type, ...]]:
    """Return the names and types of an index's facts; the splitter is only named if it is not `words`."""
    return {**_FACTS, "split": (str,)} if "split" in manifest.facts else _FACTS


def _fingerprint(split: Split) -> str:
    return files.fingerprint(KIND, *split_fingerprint(split))


@dataclass(frozen=True, slots=True)
class _Held:
    """The texts and what is known of them, in one object, so that a search beside `add` sees all of it or nothing."""

    texts: list[str]
    statistics: _Statistics
    postings: _Postings


class _Statistics:
    """Word counts of each text."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}  # word -> its number, in the order of first occurrence
        self.lengths = array("I")  # number of words of each text
        self.word_numbers = array("I")  # the different words of each text, text by text
        self.counts = array("I")  # the count of each of these in its text
        self.held = array("I")  # number of different words of each text

    @classmethod
    def read(cls, index: files.Opened, texts: int) -> _Statistics:
        """Read the statistics of an index. Raises files.IndexFileError if they are inconsistent."""
        held_words = index.strings("words")
        arrays = {name: index.array(name, np.uint32) for name in _ARRAYS}
        lengths, numbers, counts, words_per_text = (arrays[name].astype(np.int64) for name in _ARRAYS)
        if not texts or len(lengths) != texts or len(words_per_text) != texts or index.manifest.facts["texts"] != texts:
            raise index.wrong("lengths", f"{len(lengths)} and {len(words_per_text)} numbers for {texts} texts")
        if words_per_text.sum() != len(numbers) or len(counts) != len(numbers):
            raise index.wrong("held", f"{len(numbers)} words and {len(counts)} counts, not {words_per_text.sum()}")
        owners = np.repeat(np.arange(texts), words_per_text)
        if not np.array_equal(np.bincount(owners, weights=counts, minlength=texts), lengths) or not counts.all():
            raise index.wrong("counts", "they do not add up to the lengths of the texts")
        if not len(numbers) or len(set(held_words)) != len(held_words) or numbers.max() >= len(held_words):
            raise index.wrong("words", f"{len(held_words)} of them, some twice or too few")
        pairs = np.sort(numbers * texts + owners)
        if (pairs[1:] == pairs[:-1]).any() or len(np.unique(numbers)) != len(held_words):
            raise index.wrong("word_numbers", "a word that no text holds, or one that a text holds twice")
        return cls.of(held_words, arrays)

    @classmethod
    def of(cls, held_words: list[str], arrays: dict[str, NDArray[np.generic]]) -> _Statistics:
        """Make statistics from the words and the result of `arrays`."""
        statistics = cls()
        statistics.words = {word: number for number, word in enumerate(held_words)}
        for name, values in arrays.items():
            getattr(statistics, name).frombytes(np.ascontiguousarray(values, dtype=np.uintc).tobytes())
        return statistics

    def copy(self) -> _Statistics:
        """Return an independent copy."""
        return _Statistics.of(list(self.words), self.arrays())

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays to be saved."""
        return {name: np.array(getattr(self, name), dtype=np.uintc) for name in _ARRAYS}

    def extend(self, corpus: Sequence[list[str]]) -> None:
        """Add split texts. They are counted by rank-bm25, which refuses a corpus without words."""
        with_words = [text for text in corpus if text]
        frequencies = iter(BM25Okapi(with_words).doc_freqs if with_words else ())
        for text in corpus:
            counted: dict[str, int] = next(frequencies) if text else {}
            for word in counted:
                self.word_numbers.append(self.words.setdefault(word, len(self.words)))
            self.counts.extend(counted.values())
            self.held.append(len(counted))
            self.lengths.append(len(text))

    def lucene_idf(self, texts_with: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the idf of each word as in Lucene. [words]"""
        return np.asarray(np.log1p((len(self.lengths) - texts_with + 0.5) / (texts_with + 0.5)))

    def okapi_idf(self, texts_with: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the idf of each word as in BM25Okapi, bit-identical as it is summed in the same order. [words]"""
        size, total, negative = len(self.lengths), 0.0, []
        idf = np.empty(len(texts_with))
        for number, frequency in enumerate(texts_with.tolist()):
            value = math.log(size - frequency + 0.5) - math.log(frequency + 0.5)
            idf[number] = value
            total += value
            if value < 0:
                negative.append(number)
        idf[negative] = EPSILON * (total / len(idf))
        return idf


class _Postings:
    """Inverted index: the texts that hold each word, and what the word in a query adds to their scores."""

    def __init__(self, statistics: _Statistics, idf: Idf) -> None:
        words_, counts = np.array(statistics.word_numbers), np.array(statistics.counts, dtype=np.int64)
        lengths = np.array(statistics.lengths, dtype=np.int64)
        texts = np.repeat(np.arange(len(lengths)), np.array(statistics.held))
        order = np.argsort(words_, kind="stable")
        texts_with = np.bincount(words_, minlength=len(statistics.words))
        ids, frequency = texts[order], counts[order]
        mean = int(lengths.sum()) / len(lengths)
        k1 = K1 if idf == "okapi" else LUCENE_K1
        norm = frequency + k1 * (1 - B + B * lengths[ids] / mean)
        rarity = statistics.okapi_idf(texts_with) if idf == "okapi" else statistics.lucene_idf(texts_with)
        self._words = dict(statistics.words)
        self._ids = ids
        self._weights = np.repeat(rarity, texts_with) * (frequency * (k1 + 1) / norm)
        self._ends = np.cumsum(texts_with).tolist()

    def of(self, word: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the texts that hold the word, ascending, and its weight in each."""
        number = self._words.get(word)
        if number is None:
            return self._ids[:0], self._weights[:0]
        part = slice(self._ends[number - 1] if number else 0, self._ends[number])
        return self._ids[part], self._weights[part]

    def weights(self, word: str, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the word's weight in each of these texts, zero for texts without it. [len(ids)]"""
        with_word, weights = self.of(word)
        if not len(with_word):
            return np.zeros(len(ids))
        place = np.minimum(np.searchsorted(with_word, ids), len(with_word) - 1)
        return np.where(with_word[place] == ids, weights[place], 0.0)
