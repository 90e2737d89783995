"""What a file is to a pipeline: the small values."""

from __future__ import annotations

from copyspec.pipelines.documents import Part, Segment, shown


def test_a_paragraph_is_shown_on_one_line() -> None:
    text = "  One two \r\n > three\n\tfour  "
    assert shown(text, Segment(2, len(text) - 2, hidden=((12, 14),))) == "One two three four"
    assert shown(text, Segment(2, 9)) == "One two"


def test_white_space_inside_a_line_is_shown_as_it_is() -> None:
    text = "a  b\u00a0c\u2028d"
    assert shown(text, Segment(0, len(text))) == text


def test_hidden_stretches_may_stand_at_both_ends() -> None:
    assert shown("xab\nyx", Segment(0, 6, hidden=((0, 1), (5, 6)))) == "ab y"


def test_a_part_with_something_carried_is_not_the_files_own_text() -> None:
    assert Part("a").is_verbatim
    assert not Part("a", carried=b"").is_verbatim
