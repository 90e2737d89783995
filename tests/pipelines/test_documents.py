"""The value classes that represent a file in a pipeline."""

from __future__ import annotations

import re
import time

from hypothesis import given
from hypothesis import strategies as st

from copyspec.pipelines.documents import Part, Segment, model_text


def test_a_paragraph_is_shown_on_one_line() -> None:
    text = "  One two \r\n > three\n\tfour  "
    assert model_text(text, Segment(2, len(text) - 2, hidden=((12, 14),))) == "One two three four"
    assert model_text(text, Segment(2, 9)) == "One two"


def test_white_space_inside_a_line_is_shown_as_it_is() -> None:
    text = "a  b\u00a0c\u2028d"
    assert model_text(text, Segment(0, len(text))) == text


def test_hidden_stretches_may_stand_at_both_ends() -> None:
    assert model_text("xab\nyx", Segment(0, 6, hidden=((0, 1), (5, 6)))) == "ab y"


def test_a_part_with_something_carried_is_not_the_files_own_text() -> None:
    assert Part("a").is_verbatim
    assert not Part("a", carried=b"").is_verbatim


@given(st.text(alphabet="ab \t\r\n\v\u2028\u00a0", max_size=12))
def test_line_breaks_with_the_space_around_them_are_shown_as_one_space(text: str) -> None:
    assert model_text(text, Segment(0, len(text))) == re.sub(r"[^\S\r\n]*[\r\n]\s*", " ", text)


def test_long_runs_of_spaces_take_little_time() -> None:
    text = f"a{' ' * 200_000}b\nc"
    start = time.process_time()
    assert model_text(text, Segment(0, len(text))) == text.replace("\n", " ")
    assert time.process_time() - start < 5.0  # takes milliseconds; with quadratic time it took minutes
