"""After a difference, drafts resume in the edited text where its words make that likely."""

from __future__ import annotations

import pytest

from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.copying import resumptions
from copyspec.drafters.copying.situations import STRIDE
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.sources import Source

EOS, SMALL, OTHER, PIECE, EXPECTED = 1, 50, 51, 52, 53
TEXT = list(range(100, 140))


class Known(NGrams):
    """N-grams that predict one token, whatever the context."""

    def __init__(self) -> None:
        self.small_words, self.word_pieces, self.arrays = frozenset({SMALL, SMALL - 1}), frozenset({PIECE}), None

    def share_out(self, weight: float, key: int, least: float) -> list[tuple[int, float]]:
        return [(EXPECTED, 0.15 * weight)]


@pytest.mark.parametrize(
    ("text", "written", "shift"),
    [
        pytest.param(TEXT, OTHER, 1, id="a word replaced"),
        pytest.param(TEXT, SMALL, 0, id="a small word inserted"),
        pytest.param([*TEXT[:10], SMALL, *TEXT[11:]], SMALL - 1, 1, id="a small word replaced by another"),
        pytest.param([*TEXT[:11], PIECE, *TEXT[12:]], OTHER, 2, id="a word of two pieces replaced"),
        pytest.param([*TEXT[:12], EXPECTED, *TEXT[13:]], OTHER, 2, id="two words by one"),
    ],
)
def test_what_is_written_says_where_an_edit_goes_on(text: list[int], written: int, shift: int) -> None:
    drafter = create([Source(text, "edit"), Source([2, 3], "prompt")], {EOS}, ngrams=Known())
    drafter.propose(Budget(32))
    drafter.accept([*text[:10], written])
    assert drafter.propose(Budget(4, chain=True)).tokens[0] == text[10 + shift]


@pytest.mark.parametrize("ngrams", [None, Known()])
def test_columns_are_those_of_the_table(ngrams: NGrams | None) -> None:
    """Also for odds beyond the table's range, and long after the difference."""
    for since in (1, 2, 3, 4, 40):
        shifts = (0, 1, 2, 3) if since < 4 else (0, since, since - 1)
        for written in (SMALL, OTHER):
            tokens = [*TEXT[:5], PIECE, EXPECTED, *TEXT, *[EXPECTED] * since, written]
            table = list(resumptions.columns(tokens, 4, since, shifts, ngrams))
            assert len(table) == len(shifts) and all(0 <= column < STRIDE for column in table)
            assert ngrams is None or len(set(table)) > 1
