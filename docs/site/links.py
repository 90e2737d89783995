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
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif tag == "link" and "href" in attributes and attributes.get("rel") != "canonical":
            self.loads.append(attributes["href"])
        elif "src" in attributes:
            self.loads.append(attributes["src"])


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
                linked = pages.get(folder / file.relative_to(folder.resolve()))
                if linked is not None and unquote(parts.fragment) not in linked.anchors:
                    yield f"{link}: no such anchor"


def main() -> int:
    folder = Path(sys.argv[1])
    faults = list(problems(folder))
    print(*faults, f"{len(list(folder.rglob('*.html')))} pages, {len(faults)} problems", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
