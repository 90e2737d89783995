"""English n-grams as drafts where nothing in a row's own text matches.

Other drafters without a model take bigrams from the target (N-Grammys, Stewart et al. 2024, arXiv 2411.03786) or search
a corpus (REST, He et al. 2024, arXiv 2311.08252). Here the n-grams are counts of words, which fit any tokenizer, in a
file of the package that `training.ngrams` writes.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from copyspec.drafters.predictors.base import TokenProbs

ENGLISH = Path(__file__).parent / "english.npz"

ORDERS = 3
"""Length of the longest context, in words of the file and in tokens of `NGrams`."""

DISCOUNT = 0.75
"""Absolute discount (Ney, Essen and Kneser 1994), subtracted from each count before it becomes a probability: rare
n-grams come less often than their counts suggest."""

MAX_CONTINUATIONS = 8  # continuations kept of one context: few others are ever drafted
MIN_SHARE = 0.004  # continuations of lower probability are dropped

STEPS = 8  # of a stored count per doubling: each is 9 % larger than the one before

_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)\b| ?[^\W\d_]+| ?\d+| ?[^\w\s]+|\s+|_+")

MAX_WORDS = 1 << 16  # word numbers are stored as uint16

SMALL_WORDS = 64  # the most frequent words, nearly all of them function words and punctuation marks

LONGEST_WORD = 4  # tokens; longer words are left out: the tokenizer is not made for such text

_CARRIER = "a"  # each word is encoded after it: many tokenizers encode the start of a text differently

KEY_BITS = 21  # per token of a context's key: ids below two million, three of which fit into an int64
KEY_TOKENS = (1 << KEY_BITS) - 1  # token ids from here on have no key
KEY_MASK = (1 << KEY_BITS * ORDERS) - 1
_END_2, _END_1 = (1 << KEY_BITS * 2) - 1, (1 << KEY_BITS) - 1  # masks of a key's last two tokens, and of its last

_share = itemgetter(1)
_NONE = array("q")

Ints = NDArray[np.int64]


def split_words(text: str) -> list[str]:
    """Split `text` into words and punctuation, each with the space before it, as byte-pair tokenizers do."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True)
class Order:
    """The n-grams whose contexts have `order` words."""

    contexts: Ints  # [C, order], word numbers
    totals: Ints  # [C], counts of the contexts
    sizes: Ints  # [C], number of continuations kept of each context
    following: Ints  # [sum of sizes], word numbers of the continuations
    times: Ints  # [sum of sizes], counts of the continuations


@dataclass(frozen=True, slots=True)
class WordNGrams:
    """Counted n-grams of words."""

    words: Sequence[str]
    counts: Ints  # [words]
    orders: Sequence[Order]  # those of one word of context first

    def save(self, path: Path) -> None:
        """Write a file for `read`. Counts are stored on a logarithmic scale, with an error of at most 5 %.

        Raises ValueError for more than MAX_WORDS words, or none.
        """
        if not 0 < len(self.words) <= MAX_WORDS:
            raise ValueError(f"{len(self.words):,} words; a file holds 1 to {MAX_WORDS:,}: give a lower --words")
        arrays = {"words": np.frombuffer("\n".join(self.words).encode(), dtype=np.uint8), "counts": _steps(self.counts)}
        for number, order in enumerate(self.orders, start=1):
            # Column by column, because sorted contexts share their first words: this compresses well.
            arrays[f"contexts_{number}"] = np.ascontiguousarray(order.contexts.T.astype(np.uint16))
            arrays[f"totals_{number}"] = _steps(order.totals)
            arrays[f"sizes_{number}"] = order.sizes.astype(np.uint8)
            arrays[f"following_{number}"] = order.following.astype(np.uint16)
            arrays[f"times_{number}"] = _steps(order.times)
        with path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    @classmethod
    def read(cls, path: Path = ENGLISH) -> WordNGrams:
        """Read a file that `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            orders = [
                Order(
                    arrays[f"contexts_{number}"].T.astype(np.int64),
                    _counts(arrays[f"totals_{number}"]),
                    arrays[f"sizes_{number}"].astype(np.int64),
                    arrays[f"following_{number}"].astype(np.int64),
                    _counts(arrays[f"times_{number}"]),
                )
                for number in range(1, ORDERS + 1)
            ]
            return cls(arrays["words"].tobytes().decode().split("\n"), _counts(arrays["counts"]), orders)


class NGrams:
    """N-grams of tokens: the continuations of contexts of up to ORDERS tokens.

    `encode`: texts to token ids, without special tokens. `vocab_size`: of the target; ids from there on are left out.
    """

    arrays: tuple[dict[int, int], array[int], array[int], array[int], array[float], array[float]] | None
    """The tables of `share_out`, for the compiled `growth.grow`; None for a subclass with another `share_out`."""
    small_words: frozenset[int]
    """Tokens of the most frequent words, SMALL_WORDS at most."""
    word_pieces: frozenset[int]
    """Tokens that stand only after the first in the words that are made of letters."""

    def __init__(
        self,
        words: WordNGrams,
        encode: Callable[[Sequence[str]], Sequence[Sequence[int]]],
        vocab_size: int | None = None,
    ) -> None:
        pieces = _pieces(words.words, words.counts.tolist(), encode)
        frequent = np.argsort(-words.counts, kind="stable")[:SMALL_WORDS].tolist()
        self.small_words = frozenset(pieces[word][0] for word in frequent if len(pieces[word]) == 1)
        self.word_pieces = _word_pieces(words.words, pieces)
        keys, tokens, shares = _shares(words, pieces)
        known = shares >= MIN_SHARE
        if vocab_size is not None:
            known &= tokens < vocab_size
        keys, tokens, shares = keys[known], tokens[known], shares[known]
        contexts, starts = np.unique(keys, return_index=True)
        stops = np.minimum(np.append(starts[1:], len(keys)), starts + MAX_CONTINUATIONS)
        # Single elements of NumPy arrays are slow to read, and lists take six times the memory.
        self._tokens, self._shares = array("q", tokens.tobytes()), array("d", shares.tobytes())
        # A dictionary, because it is used several times per draft: bisection takes six times as long, but 14 MB less.
        self._places = dict(zip(contexts.tolist(), range(len(contexts)), strict=True))
        self._starts, self._stops = (array("q", ends.astype(np.int64).tobytes()) for ends in (starts, stops))
        whole = np.concatenate([[0.0], np.cumsum(shares)])
        self._left = array("d", np.maximum(1.0 - (whole[stops] - whole[starts]), 0.0).tobytes())
        self.arrays = (self._places, self._starts, self._stops, self._tokens, self._shares, self._left)

    def __len__(self) -> int:
        """Number of contexts."""
        return len(self._places)

    def after(self, key: int) -> TokenProbs:
        """Return the continuations of the context with this `key`, backing off to shorter contexts."""
        words = self.share_out(1.0, key, MIN_SHARE)
        words.sort(key=_share, reverse=True)
        return words[:MAX_CONTINUATIONS]

    def share_out(self, weight: float, key: int, least: float) -> list[tuple[int, float]]:
        """Distribute `weight` over the continuations of the context: (token, part), for parts of at least `least`.

        The probability that a context's continuations leave is distributed over those of the context without its first
        token (back-off). Results are not cached, because most contexts of a draft are looked up once.
        """
        parts: list[tuple[int, float]] = []
        tokens, shares, covered = self._tokens, self._shares, _NONE  # `covered`: continuations of longer contexts
        least = max(least, MIN_SHARE * weight)
        while key:
            place = self._places.get(key)
            if place is not None:
                start, stop = self._starts[place], self._stops[place]
                for index in range(start, stop):
                    part = weight * shares[index]
                    if part < least:
                        break
                    token = tokens[index]
                    if token not in covered:
                        parts.append((token, part))
                weight *= self._left[place]
                if weight < least:
                    break
                covered = tokens[start:stop] + covered
            key = key & _END_2 if key > _END_2 else key & _END_1 if key > _END_1 else 0
        return parts


def context(tokens: Sequence[int]) -> int:
    """Return the key of the last ORDERS tokens; 0 is the empty context. A token without a key ends the context."""
    key = 0
    for token in tokens[-ORDERS:]:
        key = key << KEY_BITS | token + 1 if 0 <= token < KEY_TOKENS else 0
    return key


def _pieces(
    words: Sequence[str], counts: Sequence[int], encode: Callable[[Sequence[str]], Sequence[Sequence[int]]]
) -> list[list[int]]:
    """Return the tokens of each word as written inside a text.

    A word gets an empty list if it has more than LONGEST_WORD tokens, merges with the tokens before it, or has token
    ids without a key. If that is so for words that make up half of the counted text (as with a character-level
    tokenizer), all words do."""
    (head,) = encode([_CARRIER])
    whole = encode([_CARRIER + word for word in words])
    start, stop = len(head), len(head) + LONGEST_WORD
    pieces = [list(ids[start:]) if len(ids) <= stop and list(ids[:start]) == list(head) else [] for ids in whole]
    pieces = [piece if all(0 <= token < KEY_TOKENS for token in piece) else [] for piece in pieces]
    left_out = sum(count for count, piece in zip(counts, pieces, strict=True) if not piece)
    return pieces if 2 * left_out <= sum(counts) else [[] for _ in pieces]


def _word_pieces(words: Sequence[str], pieces: Sequence[Sequence[int]]) -> frozenset[int]:
    spelled = [
        piece for word, piece in zip(words, pieces, strict=True) if piece and word[:1] == " " and word[1:].isalpha()
    ]
    first = {piece[0] for piece in spelled}
    return frozenset(token for piece in spelled for token in piece[1:] if token not in first)


def _shares(words: WordNGrams, pieces: Sequence[Sequence[int]]) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """Return (context keys, next tokens, probabilities), by ascending context and then falling probability."""
    entries = list(_entries(words, pieces))
    keys, tokens, counts = (np.concatenate(column) for column in zip(*entries, strict=True))
    totals = tokens < 0
    contexts, numbers = np.unique(keys, return_inverse=True)
    whole = np.bincount(numbers[totals], weights=counts[totals], minlength=len(contexts))
    numbers, tokens, counts = numbers[~totals], tokens[~totals], counts[~totals]
    pairs, which = np.unique(numbers << KEY_BITS | tokens, return_inverse=True)
    numbers, tokens = pairs >> KEY_BITS, pairs & (1 << KEY_BITS) - 1
    counts = np.bincount(which, weights=counts)
    # Stored counts are rounded, so the continuations may add up to more than their context's count.
    whole = np.maximum(whole, np.bincount(numbers, weights=counts, minlength=len(whole)))
    shares = (counts - DISCOUNT) / whole[numbers]
    falling = np.lexsort((-shares, numbers))
    return contexts[numbers[falling]], tokens[falling], shares[falling]


def _entries(words: WordNGrams, pieces: Sequence[Sequence[int]]) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (context, next token, count) of all n-grams, and (context, -1, count) of the contexts themselves.

    A word of several tokens gives one n-gram per token, because other words may begin with the same tokens.
    """
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    longest = int(lengths.max(initial=1))
    table = np.full((len(pieces), longest), -1, dtype=np.int64)
    for number, piece in enumerate(pieces):
        table[number, : len(piece)] = piece
    empty = np.zeros(len(pieces), dtype=np.int64)
    yield from _within(empty, np.arange(len(pieces)), words.counts, table, lengths)
    for order in words.orders:
        key = np.zeros(len(order.contexts), dtype=np.int64)
        usable = np.ones(len(key), dtype=bool)
        for column in order.contexts.T:
            usable &= lengths[column] > 0
            for position in range(longest):
                longer = lengths[column] > position
                key[longer] = _extended(key[longer], table[column[longer], position])
        yield key[usable], np.full(usable.sum(), -1), order.totals[usable]
        owners = np.repeat(np.arange(len(key)), order.sizes)
        mask = usable[owners] & (lengths[order.following] > 0)
        owners, following, times = owners[mask], order.following[mask], order.times[mask]
        yield key[owners], table[following, 0], times
        yield from _within(key[owners], following, times, table, lengths)


def _within(keys: Ints, words: Ints, counts: Ints, table: Ints, lengths: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield the n-grams inside multi-token words that follow the contexts of `keys`."""
    for position in range(1, table.shape[1]):
        longer = lengths[words] > position
        keys, words, counts = keys[longer], words[longer], counts[longer]
        keys = _extended(keys, table[words, position - 1])
        yield keys, np.full(len(keys), -1), counts
        yield keys, table[words, position], counts


def _extended(keys: Ints, tokens: Ints) -> Ints:
    """Append one token to each key's context."""
    return (keys << KEY_BITS | tokens + 1) & KEY_MASK


def _steps(counts: Ints) -> NDArray[np.uint8]:
    return np.round(STEPS * np.log2(np.maximum(counts, 1))).clip(0, 255).astype(np.uint8)


def _counts(steps: NDArray[np.uint8]) -> Ints:
    return np.round(2 ** (steps / STEPS)).astype(np.int64)
