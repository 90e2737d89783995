"""The site: generated pages contain every public name, option and figure; links are adapted, and dead ones are
found."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

import copyspec
from copyspec.engine.asking.keywords import GenerateOptions
from copyspec.models.loading import BUNDLED
from docs.site import charts, figures, hooks, links, reference

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("part", reference.PARTS, ids=lambda part: part.package)
def test_the_reference_holds_every_public_name(part: reference.Part) -> None:
    page = reference.markdown(part)
    headings = re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert headings == reference.public_names(part)
    module = importlib.import_module(part.package)
    assert set(headings) >= set(getattr(module, "__all__", ()))
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        assert len(section.split("```")) >= 3, f"{section.split()[0]} is shown without its signature"


def test_the_reference_says_something_of_every_option_and_every_name_of_the_package() -> None:
    options = reference.markdown(next(part for part in reference.PARTS if part.title == "Options"))
    for name in GenerateOptions.__annotations__:
        row = re.search(rf"^\| `{name}` \| `.+?` \| (.+) \|$", options, re.MULTILINE)
        assert row is not None and len(row[1]) > 10, name
    page = reference.markdown(reference.PARTS[0])
    for name in copyspec.__all__:
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        prose = re.sub(r"```.*?```|^\|.*?$|^###.*?$", "", section, flags=re.DOTALL | re.MULTILINE)
        assert len(prose.split()) >= 3, f"{name} has no docstring"


def test_a_docstring_becomes_markdown() -> None:
    markdown = reference._prose("Says <b>.\n\n    >>> f(1)\n    2\n\nx: a number,\n    from 1.\ny, z: others")
    assert "```py\n>>> f(1)\n2\n```" in re.sub(r"\n+", "\n", markdown)
    assert "- **`x`**: a number,\n  from 1." in markdown and "- **`y, z`**: others" in markdown and "&lt;b>" in markdown


def test_charts_tell_each_figure_of_the_results() -> None:
    listed = list(charts.charts())
    assert len(listed) >= 8
    for chart in listed:
        drawn = charts.svg(chart)
        bars = [bar for _, group in chart.groups for bar in group]
        assert drawn.count('class="bar"') == len(bars) and len(chart.series) <= charts.COLOURS
        widths = [float(width) for width in re.findall(r'<rect class="s\d" x="\d+" y="\d+" width="([\d.]+)"', drawn)]
        assert max(widths) == pytest.approx(charts.WIDTH - charts.LABEL - charts.ROOM, abs=0.1)
    report = json.loads((charts.RESULTS / "real-smollm2-float32.json").read_text())
    gec = next(chart for chart in listed if chart.source == "real-smollm2-float32.json").groups[0]
    time = "cpu_seconds" if report["threads"] == 1 else "seconds"
    own, plain = (
        sum(run["methods"][name][time] for run in report["runs"] if run["task"] == "gec")
        for name in ("copyspec", "plain")
    )
    assert gec[0] == "gec" and next(bar.value for bar in gec[1] if "plain" in bar.series) == pytest.approx(plain / own)
    assert all(path.name in charts.markdown() for path in charts.RESULTS.glob("*.json"))


@pytest.mark.parametrize("draw", figures.FILES.values(), ids=list(figures.FILES))
def test_figures_are_small_and_load_nothing(draw: object) -> None:
    assert callable(draw)
    text = draw()
    assert len(text) < 8_000 and "aria-label" in text
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}


def test_links_out_of_docs_are_led_to_pages() -> None:
    text = "[a](../SECURITY.md) [b](../../CONTRIBUTING.md#x) [c](../examples/batch.py) [d](../api.md) [e](../README.md)"
    led = "[a](security.md) [b](../contributing.md#x) [c](examples/batch.md) [d](../api.md) [e](index.md)"
    assert hooks.led(text) == led


def test_what_blocks_print_stands_below_them() -> None:
    page = "```python\nprint('<one>')\n```\n\n```py\nserve()\n```\n\n```sh\necho no\n```\n"
    shown = hooks.executed(page, "page.md")
    assert '```\n\n<p class="printed-title">prints</p>\n\n```text\n<one>\n```' in shown
    assert hooks.NOT_RUN in shown and shown.count("printed-title") == 1


def test_made_pages_are_in_the_navigation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "notebook", lambda path: "")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    made = {name for name, _ in hooks.made()}
    assert {"guarantees.md", "charts.md", "reference/copyspec.md", "notebooks/redline.md"} <= made
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in config and page != "survey.md"] == []


@pytest.mark.skipif(not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout")
@pytest.mark.parametrize("path", hooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_show_their_results(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells), "outputs are made when the site is built"
    page = hooks.notebook(path)
    assert page.count("<iframe sandbox") == page.count("srcdoc=") >= 1 and "DIFFERENT" not in page
    assert page.count('class="printed-title"') >= 2
    assert not any("<iframe" in line and not line.endswith("</iframe>") for line in page.splitlines())


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="x"></p><a href="b.html#y">1</a><a href="a.html#x">2</a><a href="c.html">')
    (tmp_path / "b.html").write_text('<script src="https://elsewhere/x.js"></script><img src="no.png"><a href="//e">')
    assert sorted(links.problems(tmp_path)) == [
        "a.html: b.html#y: no such anchor",
        "a.html: c.html: no such file",
        "b.html: https://elsewhere/x.js is loaded from elsewhere",
        "b.html: no.png: no such file",
    ]
