"""Measures what the HTML page of a long text costs a browser, using its tracing, and checks accessibility with axe.

    python -m benchmarks.views.browser [--tokens 10000] [--documents 50] [--axe axe.min.js] [--pictures FOLDER]

Needs Chromium (Debian package: chromium). `--axe` takes the axe.min.js of the npm package axe-core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.views.chromium import Chromium, find
from copyspec.views.provenance_page import provenance_page
from kit.pages import hostile_text, long_text

WORDS = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8").split()
SIZES = ((1280, 800), (390, 844))
LONG_TASK_MS = 50

_SCROLL = """new Promise(done => {
  const aside = document.querySelector("aside"), details = [...document.querySelectorAll("details")];
  let at = 0;
  const step = () => {
    scrollBy(0, 600); aside?.scrollBy(0, 400);
    if (++at < 120) requestAnimationFrame(step); else done(document.scrollingElement.scrollHeight);
  };
  requestAnimationFrame(step);
})"""
_JUMP = """(async () => {
  const links = [...document.querySelectorAll("a[data-p]")];
  for (let i = 0; i < 20; i++) {
    links[Math.floor(i * (links.length - 1) / 19)].click();
    await new Promise(requestAnimationFrame);
  }
})()"""
_AXE = """axe.run().then(found => found.violations.map(
  each => [each.impact, each.id, each.nodes[0].html + " " + each.nodes[0].failureSummary]))"""
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? new Promise(r => setTimeout(() => "
_PAINT += "r(performance.getEntriesByName('first-contentful-paint')[0]?.startTime), 500))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--documents", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=5, help="number of page loads; the median is reported")
    parser.add_argument("--axe", type=Path)
    parser.add_argument(
        "--pictures", type=Path, help="folder for PNG screenshots in every window size and colour scheme"
    )
    parser.add_argument("--page", type=Path, help="measure this page instead of a generated one")
    arguments = parser.parse_args()
    program = find()
    if program is None:
        parser.error("no Chromium found")
    with tempfile.TemporaryDirectory() as folder:
        pages = {}
        for name, wide in (("lines", False), ("one line", True)):
            pages[name] = Path(folder) / f"{name}.html"
            provenance = long_text(arguments.tokens, arguments.documents, WORDS, wide=wide)
            write(pages[name], provenance_page(provenance))
        pages["hostile"] = Path(folder) / "hostile.html"
        write(pages["hostile"], provenance_page(hostile_text()))
        if arguments.page is not None:
            pages = {arguments.page.stem: arguments.page}
        for name, path in pages.items():
            with Chromium(program) as browser:
                print(json.dumps({"page": name, "bytes": path.stat().st_size, **cost(browser, path, arguments.repeat)}))
                if arguments.axe is not None:
                    print(json.dumps({"page": name, "axe": axe(browser, path, arguments.axe)}))
                if arguments.pictures is not None:
                    pictures(browser, path, arguments.pictures)


def write(path: Path, pieces: Iterable[str]) -> None:
    path.write_text("".join(pieces), encoding="utf-8", newline="")


def cost(browser: Chromium, path: Path, repeat: int) -> dict[str, object]:
    """Measure the first paint and the longest main-thread tasks of the page, in milliseconds."""
    width, height = SIZES[0]
    paints = []
    for _ in range(repeat):
        browser.open(path, width=width, height=height)
        paints.append(float(browser.run(_PAINT)))
    loading: list[Mapping[str, Any]] = []
    with browser.traced(loading):
        browser.open(path, width=width, height=height)
        browser.run(_PAINT)
    scrolling: list[Mapping[str, Any]] = []
    with browser.traced(scrolling):
        browser.run(_SCROLL)
    jumping: list[Mapping[str, Any]] = []
    with browser.traced(jumping):
        browser.run(_JUMP)
    return {
        "first_paint_ms": round(statistics.median(paints)),
        "loading": longest(loading),
        "scrolling": longest(scrolling),
        "jumping": longest(jumping),
    }


def longest(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the longest task of the pages' main threads in milliseconds and the number of long tasks.

    Both are given in wall time and in the thread's CPU time, which other programs do not lengthen."""
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    main = {thread for thread, name in names.items() if name == "CrRendererMain"}
    tasks = [event for event in events if "RunTask" in event["name"] and (event["pid"], event["tid"]) in main]
    figures: dict[str, float] = {"tasks": len(tasks)}
    for name, key in (("clock", "dur"), ("cpu", "tdur")):
        times = [event.get(key, 0) / 1000 for event in tasks]
        figures[f"longest_{name}_ms"] = round(max(times, default=-1.0), 1)
        figures[f"long_{name}"] = sum(time > LONG_TASK_MS for time in times)
    return figures


def axe(browser: Chromium, path: Path, script: Path) -> dict[str, list[str]]:
    """List the accessibility rules that the page violates, by severity, in both window sizes and colour schemes."""
    by_impact: dict[str, set[str]] = {}
    source = script.read_text(encoding="utf-8")
    browser.call("Page.setBypassCSP", enabled=True)
    for width, height in SIZES:
        for dark in (False, True):
            browser.open(path, width=width, height=height, dark=dark, touch=width < 600)
            browser.run(source + ";0")
            browser.run("document.querySelector('a[data-p]')?.click(); new Promise(r => setTimeout(r, 300))")
            for rule in browser.run(_AXE):
                by_impact.setdefault(str(rule[0]), set()).add(f"{rule[1]}: {rule[2][:400]}")
    browser.call("Page.setBypassCSP", enabled=False)
    return {impact: sorted(rules) for impact, rules in by_impact.items()}


def pictures(browser: Chromium, path: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for width, height in SIZES:
        for dark in (False, True):
            browser.open(path, width=width, height=height, dark=dark, touch=width < 600)
            browser.picture(folder / f"{path.stem}-{'dark' if dark else 'light'}-{width}.png")


if __name__ == "__main__":
    main()
