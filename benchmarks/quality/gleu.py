"""GLEU for grammatical error correction (Napoles et al. 2015, 2016), implemented from the papers.

This is not the GLEU of machine translation: n-grams of the source that no reference keeps count against the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

_ORDER = 4
_DRAWS = 500  # random choices of one reference per sentence, as in the 2016 paper


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def statistics(source: str, output: str, reference: str) -> list[int]:
    """Return the lengths of output and reference, then for n = 1..4 the matches less the penalty and the output's
    n-grams.

    Matches are n-grams that output and reference share. The penalty counts those that the output shares with the source
    although the reference has none of them.
    """
    hyp, ref, src = output.split(), reference.split(), source.split()
    counts = [len(hyp), len(ref)]
    for n in range(1, _ORDER + 1):
        h, r, s = _ngrams(hyp, n), _ngrams(ref, n), _ngrams(src, n)
        dropped = Counter({gram: count for gram, count in s.items() if gram not in r})
        counts += [max(0, (h & r).total() - (h & dropped).total()), max(0, len(hyp) + 1 - n)]
    return counts


def score(counts: np.ndarray, *, smooth: bool = False) -> float:
    """Return GLEU in [0, 1] from summed :func:`statistics` [10]; ``smooth`` replaces zeros by ones (single
    sentences)."""
    values = np.where((counts == 0) & smooth, 1, counts).astype(float)
    if (values == 0).any():
        return 0.0
    precision = np.log(values[2::2] / values[3::2]).mean()
    return float(np.exp(min(0.0, 1 - values[1] / values[0]) + precision))


def corpus_gleu(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[Sequence[str]], seed: int = 0
) -> float:
    """Return the mean GLEU in [0, 1] over 500 random choices of one reference per sentence. Texts are
    word-tokenised."""
    if not len(sources) == len(outputs) == len(references):
        raise ValueError(f"{len(sources)} sources, {len(outputs)} outputs and {len(references)} reference lists")
    table = [
        np.array([statistics(s, o, r) for r in refs]) for s, o, refs in zip(sources, outputs, references, strict=True)
    ]
    rng = np.random.default_rng(seed)
    totals = np.zeros((_DRAWS, 2 + 2 * _ORDER), dtype=np.int64)
    for rows in table:
        totals += rows[rng.integers(len(rows), size=_DRAWS)]
    return float(np.mean([score(total) for total in totals]))


def sentence_gleu(source: str, output: str, references: Sequence[str]) -> float:
    """Return the smoothed GLEU of one sentence, averaged over its references."""
    return float(np.mean([score(np.array(statistics(source, output, r)), smooth=True) for r in references]))
