"""Colours by source in a terminal, and a text that grows there."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from copyspec.views.escaping import visible
from copyspec.views.provenance import CopiedPiece, Provenance, SourceText, TextPlace
from copyspec.views.terminal import TAIL_LINES, GrowingText, coloured, has_colours, legend, line_ends, style_of
from kit.pages import hostile_text


def console(*, colours: bool = True, width: int = 80) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="truecolor", no_color=not colours, width=width, height=24
    )


def found() -> Provenance:
    sources = (SourceText("one", "reference", 0, "a cat"), SourceText("two\x1b[31m", "reference", 1, "the dog sat"))
    pieces = (CopiedPiece(4, 11, TextPlace(1, 0, 7)), CopiedPiece(12, 15, TextPlace(0, 2, 5)))
    return Provenance("and the dog cat", sources, pieces)


def test_copied_parts_have_the_colour_of_their_source() -> None:
    screen = console()
    text = coloured(found(), screen)
    assert text.plain == "and the dog cat"
    assert [(span.start, span.end, span.style) for span in text.spans] == [
        (4, 11, style_of(1, screen)),
        (12, 15, style_of(2, screen)),
    ]
    assert style_of(1, screen).bgcolor != style_of(2, screen).bgcolor
    lines = [line.plain for line in legend(found(), screen)]
    assert has_colours(screen) and lines == [
        " 1   47%  two␛[31m",
        " 2   20%  one",
        " –   33%  written by the model itself",
    ]
    assert [line.plain[:2] for line in legend(found(), screen, ["one"])] == [" 1", " 2", " –"]


def test_without_colours_parts_are_underlined_and_listed() -> None:
    screen = console(colours=False)
    assert style_of(3, screen).underline and style_of(3, screen).bgcolor is None
    assert not has_colours(screen)
    assert "4-11 from 1, 0-7: the dog" in [line.plain for line in legend(found(), screen, listed=True)]


def test_control_characters_reach_no_terminal() -> None:
    text = hostile_text().text
    assert len(visible(text)) == len(text)
    assert not set(visible(text)) & {"\x00", "\x07", "\x1b", "\r", "\x9b"}


def printed(line: str) -> str:
    """The line as rich prints it, with tabs expanded."""
    text = Text(line)
    text.expand_tabs(8)
    return text.plain


def test_tabs_and_widened_characters_lose_no_end_of_a_line() -> None:
    text = "a\tb cdefghij\t\tk " + "\u2764\ufe0f" * 20
    screen = console(width=16)
    growing = GrowingText(screen)
    growing.append([(text, None)])
    screen.print(growing.tail())
    shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.file.getvalue())  # type: ignore[attr-defined]
    assert "".join(shown.split()) == "".join(text.split())


@given(st.text(st.sampled_from("ab \t\n你\u0301x\u2764\ufe0f\u200d"), max_size=60), st.integers(2, 12))
def test_lines_fit_and_join_to_the_text(text: str, width: int) -> None:
    ends = [0, *line_ends(text, width)]
    assert ends == sorted(set(ends)) and ends[-1] == len(text)
    for start, end in pairwise(ends):
        assert cell_len(printed(text[start:end].rstrip())) <= width
        assert "\n" not in text[start : end - 1]


@pytest.mark.parametrize("width", [20, 80])
def test_a_growing_text_is_left_to_the_terminal_line_by_line(width: int) -> None:
    screen = console(width=width)
    growing = GrowingText(screen)
    pieces = [(f"word{i} ", "one" if i % 3 else None) for i in range(200)] + [("end", "two")]
    settled = []
    for piece in pieces:
        growing.append([piece])
        settled += growing.settled()
        screen.print(growing.tail("3 tokens"))
    shown = " ".join(line.plain for line in settled)
    assert shown and "".join(text for text, _ in pieces).startswith(shown)
    assert len(list(line_ends("x" * width * TAIL_LINES, width))) == TAIL_LINES
    assert growing.order == ["one", "two"]
    assert all(cell_len(line.plain) <= width for line in settled)
