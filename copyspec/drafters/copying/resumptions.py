"""Where an edited text goes on after a difference: odds of the positions after the break, as columns of a situation.

They follow from what the output wrote in between and from what stands in the text. A small word such as "the" is often
inserted and a longer one replaces another, no word begins with the rest of one, and what the n-grams expect is likely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from copyspec.drafters.copying.situations import RESUMED_ONE, STRIDE
from copyspec.drafters.predictors.ngrams import MIN_SHARE, NGrams, context

SHIFTS = 4  # positions after a break that are tried, at most
EXPECTED = (0.02, 0.1, 0.3)  # probabilities by the n-grams from which the next weight counts; the first is any

FIRST_CLASSES = SHIFTS * 4  # after one token: by shift, whether that token is a small word, and the text's token
_LATER = FIRST_CLASSES - SHIFTS  # plus `since` and shift: features after two or three tokens
_MUCH_LATER = _LATER + 3 * SHIFTS  # after more, see `_feature`
PIECE = _MUCH_LATER + 3  # the position holds the rest of a word
SHARE = PIECE + 1  # the n-grams expect its token
FEATURES = SHARE + len(EXPECTED) + 1

# In columns, that is half powers of two, fitted by `benchmarks.replay.fit_resumed`.
# fmt: off
WEIGHTS = [
    -8.5, -3.9, 2.5, -0.7,
    -0.3, -2.6, -2.5, 1.5,
    -4.5, -3.8, -5.6, -5.6,
    -7.3, -6.5, -7.4, -6.0,
    -7.4, -3.7, -3.2, -6.7,
    -6.9, -3.9, -8.4, -8.9,
    -7.2, -7.9, -7.4,
    -6.8,
    4.2, 5.5, 7.7, 8.8,
]
# fmt: on
"""By feature, where the language's n-grams are known."""
_PLAIN = (-0.5, 1.4, -2.6, -4.8, -5.8, -2.3, -2.1, -5.7, -5.9, -4.3, -7.2, -8.3, -7.4, -12.0, -9.5)
"""Without n-grams: after one token by shift, after two, after three, after more."""


def columns(tokens: Sequence[int], anchor: int, since: int, shifts: Sequence[int], ngrams: NGrams | None) -> list[int]:
    """Return the column of each position anchor + shift in the followed text.

    `tokens`: the corpus, which ends with the output. `anchor`: where the copy broke off. `since`: output tokens since
    then.
    """
    if ngrams is None:
        odds = [_PLAIN[_feature(since, shift) - FIRST_CLASSES + SHIFTS if since > 1 else shift] for shift in shifts]
    else:
        odds = [sum([WEIGHTS[feature] for feature in row]) for row in features(tokens, anchor, since, shifts, ngrams)]
    return [_column(value) for value in odds]


def features(
    tokens: Sequence[int], anchor: int, since: int, shifts: Sequence[int], ngrams: NGrams
) -> Iterator[list[int]]:
    """Yield what is known about each position, as indices into WEIGHTS."""
    shares = dict(ngrams.share_out(1.0, context(tokens), MIN_SHARE))
    classes = 2 * (tokens[-1] in ngrams.small_words) + (tokens[anchor] in ngrams.small_words)
    for shift in shifts:
        token = tokens[anchor + shift]
        row = [4 * shift + classes if since == 1 else _feature(since, shift)]
        if token in ngrams.word_pieces:
            row.append(PIECE)
        if token in shares:
            row.append(SHARE + sum([shares[token] >= share for share in EXPECTED]))
        yield row


def _feature(since: int, shift: int) -> int:
    """The feature of a position after more than one token."""
    if since < 4:
        return _LATER + (since - 1) * SHIFTS + shift
    return _MUCH_LATER + (0 if shift == 0 else 1 if shift == since else 2)


def _column(odds: float) -> int:
    column = RESUMED_ONE + round(odds)
    return column if 0 <= column < STRIDE else STRIDE - 1 if column > 0 else 0
