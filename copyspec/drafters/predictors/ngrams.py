"""N-grams of the language: which words follow others in English, for where a row's own text says nothing.

Other drafters without a model take bigrams from the target (N-Grammys, Stewart et al. 2024, arXiv 2411.03786) or look
into a corpus (REST, He et al. 2024, arXiv 2311.08252). Here they are counts of words, which fit any tokenizer: a file
in the package, written by `training.ngrams`.
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

from copyspec.drafters.predictors.base import Words

ENGLISH = Path(__file__).parent / "english.npz"

ORDERS = 3
"""Words of the longest context, and tokens."""

DISCOUNT = 0.75
"""Taken off a count before it becomes a share (Ney, Essen and Kneser 1994): what was seen a few times will come a
little less often than that."""

MOST = 8  # continuations of one context: few others are ever drafted
LEAST = 0.004  # share of a continuation: below, none is

STEPS = 8  # of a stored count per doubling: 9 % from one to the next

_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)\b| ?[^\W\d_]+| ?\d+| ?[^\w\s]+|\s+|_+")

MOST_WORDS = 1 << 16  # of one file

LONGEST_WORD = 4  # tokens: a tokenizer that cuts words finer than that is not made for text of this kind

_CARRIER = "a"  # a word is encoded behind it: at the start of a text many tokenizers write it differently

KEY_BITS = 21  # of a token in a key: ids below two million, and three of them fit into an int64
KEY_TOKENS = (1 << KEY_BITS) - 1  # ids from here on have no key
KEY_MASK = (1 << KEY_BITS * ORDERS) - 1
_END_2, _END_1 = (1 << KEY_BITS * 2) - 1, (1 << KEY_BITS) - 1  # of a key: its last two tokens, and its last

_share = itemgetter(1)
_NONE = array("q")

Ints = NDArray[np.int64]


def split_words(text: str) -> list[str]:
    """`text` as words and punctuation, each with the one space before it, as tokenizers of byte pairs cut it."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True)
class Order:
    """The n-grams whose contexts have one length: `order` words."""

    contexts: Ints  # [C, order], numbers of words
    totals: Ints  # [C], how often the context occurs
    sizes: Ints  # [C], how many continuations are kept of it
    following: Ints  # [sum of sizes], numbers of the words that come next
    times: Ints  # [sum of sizes], how often they do


@dataclass(frozen=True, slots=True)
class WordNGrams:
    """Counted n-grams of words."""

    words: Sequence[str]
    counts: Ints  # [words]
    orders: Sequence[Order]  # those of one word of context first

    def save(self, path: Path) -> None:
        """Writes a file that `read` reads. Counts become steps of their logarithm, and are right within 5 %.

        Raises ValueError where there are more words than numbers for them, or none.
        """
        if not 0 < len(self.words) <= MOST_WORDS:
            raise ValueError(f"{len(self.words):,} words; a file holds 1 to {MOST_WORDS:,}: give a lower --words")
        arrays = {"words": np.frombuffer("\n".join(self.words).encode(), dtype=np.uint8), "counts": _steps(self.counts)}
        for number, order in enumerate(self.orders, start=1):
            # By column: sorted contexts that share their first words pack well.
            arrays[f"contexts_{number}"] = np.ascontiguousarray(order.contexts.T.astype(np.uint16))
            arrays[f"totals_{number}"] = _steps(order.totals)
            arrays[f"sizes_{number}"] = order.sizes.astype(np.uint8)
            arrays[f"following_{number}"] = order.following.astype(np.uint16)
            arrays[f"times_{number}"] = _steps(order.times)
        with path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    @classmethod
    def read(cls, path: Path = ENGLISH) -> WordNGrams:
        """The n-grams of a file that `save` wrote."""
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
    """N-grams as tokens: what comes after up to ORDERS tokens.

    `encode` gives the token ids of each of some texts, without any that mark a start or an end; ids from
    `vocab_size` on, which the target does not have, are left out.
    """

    arrays: tuple[dict[int, int], array[int], array[int], array[int], array[float], array[float]] | None
    """What `share_out` reads, for the compiled `growth.grow`; None where it reads something else."""

    def __init__(
        self,
        words: WordNGrams,
        encode: Callable[[Sequence[str]], Sequence[Sequence[int]]],
        vocab_size: int | None = None,
    ) -> None:
        pieces = _pieces(words.words, words.counts.tolist(), encode)
        keys, tokens, shares = _shares(words, pieces)
        known = shares >= LEAST
        if vocab_size is not None:
            known &= tokens < vocab_size
        keys, tokens, shares = keys[known], tokens[known], shares[known]
        contexts, starts = np.unique(keys, return_index=True)
        stops = np.minimum(np.append(starts[1:], len(keys)), starts + MOST)
        # Not NumPy's: single elements of those are slow. Not lists: those take six times the memory.
        self._tokens, self._shares = array("q", tokens.tobytes()), array("d", shares.tobytes())
        # Looked up several times a draft: a bisection would take six times as long, the dictionary takes 14 MB more.
        self._places = dict(zip(contexts.tolist(), range(len(contexts)), strict=True))
        self._starts, self._stops = (array("q", ends.astype(np.int64).tobytes()) for ends in (starts, stops))
        whole = np.concatenate([[0.0], np.cumsum(shares)])
        self._left = array("d", np.maximum(1.0 - (whole[stops] - whole[starts]), 0.0).tobytes())
        self.arrays = (self._places, self._starts, self._stops, self._tokens, self._shares, self._left)

    def __len__(self) -> int:
        """How many contexts are known."""
        return len(self._places)

    def after(self, key: int) -> Words:
        """What comes after the context that `key` stands for, or after as much of its end as is known."""
        words = self.share_out(1.0, key, LEAST)
        words.sort(key=_share, reverse=True)
        return words[:MOST]

    def share_out(self, weight: float, key: int, least: float) -> list[tuple[int, float]]:
        """`weight` shared out among the tokens that come after the context: (token, part), of parts of `least` or more.

        What the continuations of a context leave is shared out as after the context without its first token.
        Nothing of it is kept: most contexts of a draft are looked up once.
        """
        found: list[tuple[int, float]] = []
        tokens, shares, said = self._tokens, self._shares, _NONE  # `said`: after a longer context
        least = max(least, LEAST * weight)
        while key:
            place = self._places.get(key)
            if place is not None:
                start, stop = self._starts[place], self._stops[place]
                for index in range(start, stop):
                    part = weight * shares[index]
                    if part < least:
                        break
                    token = tokens[index]
                    if token not in said:
                        found.append((token, part))
                weight *= self._left[place]
                if weight < least:
                    break
                said = tokens[start:stop] + said
            key = key & _END_2 if key > _END_2 else key & _END_1 if key > _END_1 else 0
        return found


def context(tokens: Sequence[int]) -> int:
    """The key of the end of `tokens`: 0 is that of none, and a token without a key cuts off those before it."""
    key = 0
    for token in tokens[-ORDERS:]:
        key = key << KEY_BITS | token + 1 if 0 <= token < KEY_TOKENS else 0
    return key


def _pieces(
    words: Sequence[str], counts: Sequence[int], encode: Callable[[Sequence[str]], Sequence[Sequence[int]]]
) -> list[list[int]]:
    """The tokens of each word inside a text; none where they are too many, not to be told from those before, or ids
    that no key has room for. None at all where that is so of half the text: a tokenizer of letters, say, whose few
    short words would say nothing."""
    (head,) = encode([_CARRIER])
    whole = encode([_CARRIER + word for word in words])
    start, stop = len(head), len(head) + LONGEST_WORD
    pieces = [list(ids[start:]) if len(ids) <= stop and list(ids[:start]) == list(head) else [] for ids in whole]
    pieces = [piece if all(0 <= token < KEY_TOKENS for token in piece) else [] for piece in pieces]
    left_out = sum(count for count, piece in zip(counts, pieces, strict=True) if not piece)
    return pieces if 2 * left_out <= sum(counts) else [[] for _ in pieces]


def _shares(words: WordNGrams, pieces: Sequence[Sequence[int]]) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """(context, next token, its share) of all n-grams, the contexts ascending and the shares of each falling."""
    entries = list(_entries(words, pieces))
    keys, tokens, counts = (np.concatenate(column) for column in zip(*entries, strict=True))
    totals = tokens < 0
    contexts, numbers = np.unique(keys, return_inverse=True)
    whole = np.bincount(numbers[totals], weights=counts[totals], minlength=len(contexts))
    numbers, tokens, counts = numbers[~totals], tokens[~totals], counts[~totals]
    pairs, which = np.unique(numbers << KEY_BITS | tokens, return_inverse=True)
    numbers, tokens = pairs >> KEY_BITS, pairs & (1 << KEY_BITS) - 1
    counts = np.bincount(which, weights=counts)
    # Stored counts are rounded: those of all that follows may be more than that of the context.
    whole = np.maximum(whole, np.bincount(numbers, weights=counts, minlength=len(whole)))
    shares = (counts - DISCOUNT) / whole[numbers]
    falling = np.lexsort((-shares, numbers))
    return contexts[numbers[falling]], tokens[falling], shares[falling]


def _entries(words: WordNGrams, pieces: Sequence[Sequence[int]]) -> Iterator[tuple[Ints, Ints, Ints]]:
    """(context, next token, count) of all n-grams, and (context, -1, count) of the contexts themselves.

    A word of several tokens makes an n-gram of each: what comes after the first of them are words too that
    begin with it.
    """
    lengths = np.array([len(each) for each in pieces], dtype=np.int64)
    longest = int(lengths.max(initial=1))
    table = np.full((len(pieces), longest), -1, dtype=np.int64)
    for number, each in enumerate(pieces):
        table[number, : len(each)] = each
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
        kept = usable[owners] & (lengths[order.following] > 0)
        owners, following, times = owners[kept], order.following[kept], order.times[kept]
        yield key[owners], table[following, 0], times
        yield from _within(key[owners], following, times, table, lengths)


def _within(keys: Ints, words: Ints, counts: Ints, table: Ints, lengths: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
    """The n-grams inside words of several tokens that come after the contexts of `keys`."""
    for position in range(1, table.shape[1]):
        longer = lengths[words] > position
        keys, words, counts = keys[longer], words[longer], counts[longer]
        keys = _extended(keys, table[words, position - 1])
        yield keys, np.full(len(keys), -1), counts
        yield keys, table[words, position], counts


def _extended(keys: Ints, tokens: Ints) -> Ints:
    """The keys of contexts that go on with a token each."""
    return (keys << KEY_BITS | tokens + 1) & KEY_MASK


def _steps(counts: Ints) -> NDArray[np.uint8]:
    return np.round(STEPS * np.log2(np.maximum(counts, 1))).clip(0, 255).astype(np.uint8)


def _counts(steps: NDArray[np.uint8]) -> Ints:
    return np.round(2 ** (steps / STEPS)).astype(np.int64)
