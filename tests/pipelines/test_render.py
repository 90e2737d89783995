"""Diffs that patch can apply, rows that point at the right bytes, and a redline in plain HTML."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from html.parser import HTMLParser
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.cli.reports import DiffPrinter
from copyspec.pipelines import DocxFormat, Done, FileReport, Format, Summary, format_of
from copyspec.pipelines.documents import Edit, Part
from copyspec.pipelines.edits.diff import apply
from copyspec.pipelines.edits.redline import Redline, redline_html
from copyspec.pipelines.edits.render import EditRows, colored_diff, inline_diff, unified_diff
from copyspec.views.escaping import visible

pair_lists = st.lists(
    st.tuples(
        st.sampled_from(["a\n", "b\n", "c\nd\n", "\n", "e", "f\ng\nh", "\ni"]), st.sampled_from(["", "x\n", "y", None])
    ),
    max_size=30,
).map(lambda pairs: [(before, before if after is None else after) for before, after in pairs])


@given(pair_lists, st.integers(0, 3))
def test_unified_diff_against_difflib(pairs: list[tuple[str, str]], context: int) -> None:
    before, after = "".join(a for a, _ in pairs), "".join(b for _, b in pairs)
    diff = list(unified_diff(pairs, "f", context=context))
    assert bool(diff) == (before != after)
    assert _patched(before, diff) == after


def _patched(before: str, diff: list[str]) -> str:
    """Apply a diff as a patch program does, with its checks."""
    old = before.split("\n")
    old = [line + "\n" for line in old[:-1]] + ([old[-1]] if old[-1] else [])
    out: list[str] = []
    at = 0
    lines = "".join(diff[2:]).replace("\n\\ No newline at end of file\n", "\0").replace("\0", "\0\n").split("\n")[:-1]
    for line in lines:
        text = line[1:-1] if line.endswith("\0") else line[1:] + "\n"
        if line.startswith("@@"):
            first, _, count = line.split()[1][1:].partition(",")
            start = int(first) - (0 if count == "0" else 1)
            out += old[at:start]
            at = start
        elif line[0] == "+":
            out.append(text)
        else:
            assert old[at] == text, (old, at, text, diff)
            out += [text] if line[0] == " " else []
            at += 1
    return "".join(out + old[at:])


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
def test_patch_applies_it(tmp_path: Path) -> None:
    before = [f"line {i}\n" for i in range(40)] + ["end"]
    after = [line.replace("line", "row") if i % 9 == 4 else line for i, line in enumerate(before)]
    after[-1] = "the end"
    (tmp_path / "f").write_text("".join(before))
    diff = "".join(unified_diff(zip(before, after, strict=True), "f"))
    subprocess.run(["patch", "-p1"], input=diff.encode(), cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "f").read_text() == "".join(after)


def test_a_diff_needs_no_more_than_the_lines_around_a_change() -> None:
    """The parts of most formats do not begin and end with lines."""
    taken = []

    def parts() -> Iterator[tuple[str, str]]:
        for number in range(1000):
            taken.append(number)
            text = f"text {number}"
            yield text, f"{text}!" if number % 50 == 5 else text
            yield ("</p>\n<p>",) * 2

    lines = unified_diff(parts(), "f")
    assert next(line for line in lines if line.startswith("+<p>")) == "+<p>text 5!</p>\n"
    assert len(taken) < 20
    assert sum(line.startswith("+<p>") for line in lines) == 19


@pytest.mark.parametrize("name", ["a.docx", "a.po", "a.html"])
def test_long_texts_are_compared_in_linear_time(name: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """4,000 paragraphs between blank lines, of which 80 change."""
    frames = {"a.po": 'msgid "x"\nmsgstr "{}"', "a.html": "<p>{}</p>"}
    frame = frames.get(name, "{}")
    before = "\n\n".join(frame.format(f"We saw teh boat {number % 97} again.") for number in range(4000)) + "\n"
    made = [match.start() for match in re.finditer("teh", before)][7::50]
    after = apply(before, [Edit(at, at + 3, "the") for at in made])
    form: Format = DocxFormat()
    parts: Iterable[Part] = [Part(before)]
    if name != "a.docx":
        form = format_of(name)
        parts = list(form.read(io.BytesIO(before.encode())))
    begun, start = process_time(), 0
    with ExitStack() as files:
        printer = DiffPrinter(".", files)
        for part in parts:
            edits = [Edit(at - start, at - start + 3, "the") for at in made if start <= at < start + len(part.text)]
            printer.part(name, form, Done(None, part, edits=edits))  # type: ignore[arg-type]
            start += len(part.text)
        printer.end(FileReport(name, Summary(files_changed=1)))
    assert process_time() - begun < 3
    diff = capfdbinary.readouterr().out.decode().splitlines(keepends=True)
    if name == "a.docx":  # as comments
        assert all(line.startswith("# ") for line in diff)
        diff = [line[2:] for line in diff]
    assert sum(line.startswith("+") for line in diff) == 1 + len(made) == 81
    assert _patched(before, diff) == after


def test_a_change_in_a_long_text_is_found_at_once() -> None:
    before = "line\n\n" * 20_000
    begun = process_time()
    diff = list(unified_diff([(before, f"{before[:6000]}new\n{before[6000:]}")], "f"))
    assert process_time() - begun < 2 and diff[2] == "@@ -1998,6 +1998,7 @@\n"
    assert [line for line in diff[3:] if line[0] != " "] == ["+new\n"]


def test_lines_and_words_that_recur_take_little_time() -> None:
    before = "a b\n" + "we go\n" * 8000 + "c d\n"
    begun = process_time()
    lines = unified_diff([(before, before.replace("a b", "a").replace("c d", "c"))], "f")
    assert [line for line in lines if line[0] in "+-"][2:] == ["-a b\n", "+a\n", "-c d\n", "+c\n"]
    before = "x " + "we go to it, " * 1500 + "y\n"
    shown = "".join(colored_diff(unified_diff([(before, f"z{before[1:-2]}w\n")], "f")))
    assert process_time() - begun < 2
    assert "-\x1b[7mx\x1b[27m we go" in shown and "+\x1b[7mz\x1b[27m we go" in shown
    assert "it, \x1b[7my\x1b[27m\x1b[0m\n" in shown and shown.count("\x1b[7m") == 4


def test_unified_diff_reads_as_usual() -> None:
    pairs = [(f"{i}\n", f"{i}\n" if i != 5 else "five\n") for i in range(10)]
    assert "".join(unified_diff(pairs, "a.txt")) == (
        "--- a/a.txt\n+++ b/a.txt\n@@ -3,7 +3,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"
    )
    assert list(unified_diff([("a\r\n", "a\r\n")], "x")) == []


def test_inline_diff_of_any_width() -> None:
    text, edits = "He go to teh school.", [Edit(3, 5, "goes"), Edit(9, 12, "the"), Edit(19, 19, " today")]
    plain = inline_diff(text, edits, color=False)
    assert plain == "He [-go-]{+goes+} to [-teh-]{+the+} school{+ today+}."
    colored = inline_diff(text, edits)
    assert "\x1b[" in colored and "31mgo\x1b" in colored and "32mgoes\x1b" in colored
    for width in (1, 7, 20):
        assert all(len(line) <= width for line in inline_diff(text, edits, width=width, color=False).split("\n"))


def test_escape_sequences_are_shown() -> None:
    assert "\x1b[2J" not in inline_diff("a\x1b[2J b", [Edit(0, 1, "c\x1b]0;x\x07")])
    assert visible("\x1b\t\n\r\x7f\x9b\udce9") == "␛\t\n␍␡��"


def test_rows_point_into_the_file() -> None:
    parts = [
        (Part("\ufeffHé go.\r\n\r\n"), [Edit(4, 6, "goes")]),
        (Part("Caf\udce9\n"), []),
        (Part("a\rteh 😀 go\n"), [Edit(2, 5, "the"), Edit(8, 10, "goes")]),
        (Part("inside teh", carried=1), [Edit(7, 10, "the")]),
        (Part("b go"), [Edit(2, 4, "goes")]),
    ]
    rows = EditRows("x.txt")
    listed = [row for part, edits in parts for row in rows.rows(part, edits)]
    file = "".join(part.text for part, _ in parts if part.is_verbatim)
    raw = file.encode("utf-8", "surrogateescape")
    for row in listed:
        start, end = row["start"], row["end"]
        assert isinstance(start, int) and isinstance(end, int)
        if "byte_start" in row:
            assert file[start:end] == row["orig"]
            assert raw[row["byte_start"] : row["byte_end"]].decode() == row["orig"]  # type: ignore[misc]
    assert [(row["part"], row["line"], row["col"]) for row in listed] == [
        (0, 1, 5),
        (2, 5, 1),
        (2, 5, 7),
        (3, 1, 8),
        (4, 6, 3),
    ]
    assert listed[3]["start"] == 7 and "byte_start" not in listed[3]
    assert list(listed[0]) == ["path", "part", "start", "end", "orig", "corr", "line", "col", "byte_start", "byte_end"]


class _Texts(HTMLParser):
    """Collects the text of a page's main element before and after the changes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.before = self.after = ""
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta",):
            self.open.append("said" if ("class", "said") in attrs else tag)

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "main" in self.open and "said" not in self.open:
            self.before += "" if "ins" in self.open else data
            self.after += "" if "del" in self.open else data


@given(st.lists(st.text("ab <&>\"'\n", min_size=1, max_size=8), min_size=2, max_size=6), st.booleans())
def test_redline_holds_both_texts(pieces: list[str], show_copied: bool) -> None:
    text = "".join(pieces)
    edits, at = [], 0
    for i, piece in enumerate(pieces):
        if i % 2:
            edits.append(Edit(at, at + len(piece), piece.upper() if i % 3 else ""))
        at += len(piece)
    page = _Texts()
    page.feed("".join(redline_html([Redline(text, edits, [(0, len(text))])], title="<x>", show_copied=show_copied)))
    assert (page.before, page.after) == (text, apply(text, edits))
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    assert page.open == []


def test_redline_is_one_page() -> None:
    parts = [Redline("He go home.\n", [Edit(3, 5, "goes")], [(0, 3), (6, 11)]), Redline("ok \udce9\x1b\n")]
    page = "".join(redline_html(parts, title="a & b.txt", show_copied=True))
    page.encode()  # raises if it contains surrogates
    assert "<title>a &amp; b.txt</title>" in page and "prefers-color-scheme: dark" in page
    assert '<span class="copied">He </span><del id="e1">' in page and "1 change." in page
    assert "http://" not in page and "https://" not in page
    assert 'class="copied"' not in "".join(redline_html(parts, title="x"))
