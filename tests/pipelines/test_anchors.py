"""Headings that links name by their words keep them."""

from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path

import pytest

from copyspec.pipelines import (
    FileOptions,
    FunctionCorrector,
    GECPipeline,
    GuardOptions,
    Runner,
    RunOptions,
    Work,
    format_of,
)
from copyspec.pipelines.formats.anchors import is_named, linked

OPEN = GuardOptions(
    allow_names=True, allow_code=True, allow_new_words=True, allow_swaps=True, max_edit_ratio=9, precision=0
)
WORDS = "the two viewer themes changes links for of all file API support café what's".split()  # noqa: SIM905


def forced(form: str, text: str) -> str:
    """The text after a correction that changes every word."""
    changed = FunctionCorrector(lambda words: re.sub(r"\b(\w)(\w+)", r"\1x\2", words))
    made, runner = format_of("-", form), Runner(changed, RunOptions(guards=OPEN))
    works = [Work(None, part) for part in made.read(io.BytesIO(text.encode()))]
    return b"".join(made.write(done.part, done.edits) for done in runner.run(works) if done.part is not None).decode()


def slug(heading: str, joint: str = "-") -> str:
    return re.sub(r"\s", joint, re.sub(r"[^\w\s-]", "", heading.lower()))


@pytest.mark.parametrize(
    "form", ["md", "github", "repeated", "wiki", "reference", "myst", "ipynb", "rst", "role", "adoc", "natural", "xref"]
)
def test_a_heading_that_something_links_to_keeps_its_words(form: str) -> None:
    rng = random.Random(form)
    for _ in range(20):
        heading = " ".join(rng.sample(WORDS, rng.randint(1, 5))).capitalize() + rng.choice(["", "", "?", ": two"])
        marked = rng.choice([heading, f"**{heading}**"]) if form in ("md", "github") else heading
        markdown = f"# {marked}\n\nA text.\n\n## Another heading\n"
        underlined = f"{heading}\n{'=' * 80}\n\nAnother heading\n{'=' * 80}\n\n"
        kind, text = {
            "md": ("md", f"[x](#{slug(heading)})\n\n{markdown}"),
            "github": ("md", f"{markdown}\nSee [it](a.md#{slug(heading)} \"x\").\n"),
            "repeated": ("md", f"{markdown}\nSee [it](#{slug(heading)}-1).\n"),
            "wiki": ("md", f"{markdown}\nSee [[#{heading}]].\n"),
            "reference": ("md", f"{markdown}\nSee [it][a].\n\n[a]: #{slug(heading)}\n"),
            "myst": ("md", f"{markdown}\nSee {{ref}}`{heading.replace(':', '')}`.\n"),
            "ipynb": ("ipynb", json.dumps({"cells": [
                {"cell_type": "markdown", "source": f"[x](#{heading.replace(' ', '-')})"},
                {"cell_type": "markdown", "source": markdown},
            ]})),
            "rst": ("rst", f"{underlined}See `{heading}`_ or `this <{heading}_>`_.\n"),
            "role": ("rst", f"{underlined}See :ref:`that <{heading.replace(':', '')}>`.\n"),
            "adoc": ("adoc", f"== {heading}\n\nSee <<_{slug(heading, '_')},it>>.\n\n== Another heading\n"),
            "natural": ("adoc", f"== {heading}\n\nSee <<{heading}>>.\n\n== Another heading\n"),
            "xref": ("adoc", f"See xref:_{slug(heading, '_')}[it].\n\n== {heading}\n\n== Another heading\n"),
        }[form]  # fmt: skip
        out = forced(kind, text)
        assert out.count(heading) == text.count(heading), out
        assert "Axnother hxeading" in out or form == "ipynb"


def test_other_headings_are_corrected() -> None:
    text = "# The frist one\n\nSee [this](#the-second-one), `frist`, [x](http://x.org).\n"
    assert "# Txhe fxrist oxne\n" in forced("md", text)


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Trying the *viewer*!", "trying-the-viewer"),
        ("See [the docs](https://x.org)", "see-the-docs"),
        ("1.2. The first one", "12-the-first-one"),
        ("1.2. The first one", "the-first-one"),
        ("Café `x_y` & more", "cafe-x_y--more"),
        ("Café &amp; more", "caf%C3%A9--more-2"),
    ],
)
def test_ways_to_make_an_anchor(heading: str, anchor: str) -> None:
    assert is_named(heading, linked(f"[x](#{anchor})")) and not is_named(heading, linked("[x](#other) # A"))


@pytest.mark.parametrize("link", ["md", "site", "html", "xref", "adoc", "myst", "role"])
@pytest.mark.parametrize("place", ["beside", "above"])
def test_a_heading_that_another_file_links_to_keeps_its_words(tmp_path: Path, link: str, place: str) -> None:
    rng = random.Random(f"{link} {place}")
    (tmp_path / "docs").mkdir()
    if place == "above":
        (tmp_path / ".git").mkdir()
    folder = tmp_path / "docs" if place == "beside" else tmp_path
    for number in range(5):
        heading = " ".join(rng.sample(WORDS, rng.randint(1, 5))).capitalize()
        fragment = slug(heading)
        name, text = {
            "md": ("a.md", f"See [it](docs/page.md#{fragment} \"x\")."),
            "site": ("a.md", f"See [it][x].\n\n[x]: /guide/page/#{fragment}"),
            "html": ("a.html", f'<a href="page.html#{fragment}">x</a>'),
            "xref": ("a.adoc", f"See xref:page.adoc#_{slug(heading, '_')}[it]."),
            "adoc": ("a.adoc", f"See <<page.adoc#_{slug(heading, '_')},it>>."),
            "myst": ("a.md", f"See {{ref}}`page:{heading}`."),
            "role": ("a.rst", f"See :ref:`that <page:{heading}>`."),
        }[link]  # fmt: skip
        (folder / name).write_text(text, encoding="utf-8")
        page = tmp_path / "docs" / f"page-{number}.md"
        page.write_text(f"# {heading}\n\nHere is one.\n\n# Another heading\n", encoding="utf-8")
        change = FunctionCorrector(lambda sentence: re.sub(r"\b(\w)(\w+)", r"\1x\2", sentence))
        (report,) = GECPipeline(change, guards=OPEN).files(page, FileOptions(in_place=True))
        lines = page.read_text(encoding="utf-8").splitlines()
        assert lines[0] == f"# {heading}" and report.summary.skipped["linked"] == 1
        assert lines[2] != "Here is one." and lines[4] == "# Axnother hxeading"


def test_files_that_cannot_be_read_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.md").symlink_to(tmp_path / "nowhere.md")
    (tmp_path / "b.md").mkdir()
    (tmp_path / "c.md").write_bytes(b"\xff\xfe[x](d.md#the-first) " + b"\x00" * 100)
    page = tmp_path / "d.md"
    page.write_text("# The first\n\n# The second\n", encoding="utf-8")
    change = FunctionCorrector(lambda text: text.replace("The", "Thex"))
    list(GECPipeline(change, guards=OPEN).files(page, FileOptions(in_place=True)))
    assert page.read_text(encoding="utf-8") == "# The first\n\n# Thex second\n"
