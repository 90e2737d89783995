"""Counts the n-grams of English text that the n-gram drafter uses: writes `copyspec/drafters/predictors/english.npz`.

    python -m training.ngrams TEXTS --out FILE [--least 6 4 3] [--words 20000]

TEXTS: files with one paragraph per line (may be gzipped). FILE holds only counts of words, so it fits any tokenizer;
its arrays are described in `copyspec.drafters.predictors.ngrams`. Takes ten seconds and 1.2 GB for 35 MB of text. The
file in the package was made from `fiction`, `news_speeches`, `textbooks` and `peps`.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from copyspec.drafters.predictors.ngrams import MAX_CONTINUATIONS, ORDERS, Ints, Order, WordNGrams, split_words
from training.text import straight_quotes


def read_lines(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of all files, with quotation marks as models write them."""
    for path in paths:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield straight_quotes(line.strip())


def count(paragraphs: Sequence[str], words: int, least: Sequence[int]) -> WordNGrams:
    """The n-grams of the `words` most frequent words with at least `least` occurrences, by context length."""
    texts = [[word for word in split_words(paragraph) if word.strip()] for paragraph in paragraphs]
    # A word without a space before it starts a paragraph, where it has other tokens.
    frequent = Counter(word for text in texts for word in text if not word[0].isalpha()).most_common(words)
    numbers = {word: number for number, (word, _) in enumerate(frequent)}
    sequence = np.fromiter(
        chain.from_iterable([*(numbers.get(word, -1) for word in text), -1] for text in texts), dtype=np.int64
    )
    orders = [_order(sequence, order, least[order - 1], len(frequent)) for order in range(1, ORDERS + 1)]
    if not frequent:
        raise ValueError("the texts hold no words after the first of a paragraph: give prose, a paragraph per line")
    return WordNGrams([word for word, _ in frequent], np.array([often for _, often in frequent]), orders)


def _order(sequence: Ints, order: int, least: int, words: int) -> Order:
    """The n-grams with `order` words of context that occur at least `least` times; `words`: vocabulary size."""
    columns = [sequence[start : len(sequence) - order + start] for start in range(order + 1)]
    inside = np.all([column >= 0 for column in columns], axis=0)
    columns = [column[inside] for column in columns]
    context = columns[0]
    for column in columns[1:-1]:
        context = np.unique(context * words + column, return_inverse=True)[1]
    totals = np.bincount(context)
    _, first, often = np.unique(context * words + columns[-1], return_index=True, return_counts=True)
    mask = often >= least
    first, often = first[mask], often[mask]
    by_context = np.lexsort((-often, context[first]))
    first, often = first[by_context], often[by_context]
    _, starts, sizes = np.unique(context[first], return_index=True, return_counts=True)
    mask = np.arange(len(first)) - np.repeat(starts, sizes) < MAX_CONTINUATIONS
    places = first[starts]
    return Order(
        np.stack([column[places] for column in columns[:-1]], axis=1),
        totals[context[places]],
        np.minimum(sizes, MAX_CONTINUATIONS),
        columns[-1][first[mask]],
        often[mask],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file and print its size. Returns 0, or 2 if a text cannot be read or the file cannot be written."""
    parser = argparse.ArgumentParser(
        prog="python -m training.ngrams", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="+", type=Path, help="text files (gzip allowed) with one paragraph per line")
    parser.add_argument("--out", type=Path, required=True, help=".npz file to write")
    parser.add_argument(
        "--words", type=int, default=20_000, help="number of most frequent words to count; other words end an n-gram"
    )
    parser.add_argument(
        "--least",
        type=int,
        nargs=ORDERS,
        default=[6, 4, 3],
        help="minimum occurrences of an n-gram, by words of context",
    )
    options = parser.parse_args(arguments)
    try:
        ngrams = count(list(read_lines(options.texts)), options.words, options.least)
        ngrams.save(options.out)
    except (OSError, ValueError) as error:
        print(f"training.ngrams: {error}", file=sys.stderr)
        return 2
    sizes = ", ".join(f"{len(order.following):,} n-grams of {n}" for n, order in enumerate(ngrams.orders, start=2))
    print(f"{options.out}: {len(ngrams.words):,} words, {sizes}, {options.out.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
