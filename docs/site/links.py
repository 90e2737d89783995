"""Checks a built site: links and pictures lead to its own files, anchors exist, and nothing is loaded from elsewhere.

python -m docs.site.links build/site
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The links, loaded files and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given and given.get("rel") != "canonical":
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])


def problems(folder: Path) -> Iterator[str]:
    """Yield one line per problem."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        for target in [*page.links, *page.loads]:
            link = f"{path.relative_to(folder)}: {target}"
            parts = urlsplit(target)
            if parts.scheme in ("http", "https") or target.startswith("//"):
                if target in page.loads:
                    yield f"{link} is loaded from elsewhere"
                continue
            if parts.scheme or path.name == "404.html":  # its links are relative to the site's root, wherever that is
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if file.is_dir():
                file /= "index.html"
            if not file.is_file():
                yield f"{link}: no such file"
            elif parts.fragment and file.suffix == ".html" and folder.resolve() in file.parents:
                found = pages.get(folder / file.relative_to(folder.resolve()))
                if found is not None and unquote(parts.fragment) not in found.anchors:
                    yield f"{link}: no such anchor"


def main() -> int:
    folder = Path(sys.argv[1])
    found = list(problems(folder))
    print(*found, f"{len(list(folder.rglob('*.html')))} pages, {len(found)} problems", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
