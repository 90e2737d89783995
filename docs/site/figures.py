"""Draws the figures of docs/concepts.md: a draft tree, the attention mask of its pass, and the cache after it.

All show the same tree. `python -m docs.update` writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from copyspec.tree import ROOT, DraftTree

# The output so far ends in "have"; the edited text continues with "already drawn a map".
WORDS = ("already", "drawn", "a", "map", "drawn", "the")
TREE = DraftTree(
    tokens=(0, 1, 2, 3, 4, 5),
    parents=(ROOT, 0, 1, 2, ROOT, 1),
    scores=(0.86, 0.80, 0.72, 0.65, 0.07, 0.05),
)
PREFIX = ("The", "children", "have")
ACCEPTED = (0, 1, 2)  # after them, the model writes its own token
OWN = "chart"

_STYLE = """<style>
.paper { fill: #fff; stroke: #d3d6da; } .ink { fill: #1b1c1e; } .faint { fill: #56595e; }
.kept { fill: #c9f2d2; stroke: #17803d; } .left { fill: #f4f5f7; stroke: #8b9096; }
.own { fill: #cfe2fb; stroke: #1f6fd0; }
.base { fill: #fbe3c4; stroke: #a35a00; } .edge { stroke: #8b9096; fill: none; }
.edge.on { stroke: #17803d; stroke-width: 2.5; }
.sees { fill: #17803d; } .blind { fill: #eceef0; }
text { font: 13px system-ui, sans-serif; } .small { font-size: 11px; }
@media (prefers-color-scheme: dark) {
.paper { fill: #15171a; stroke: #3a3e44; } .ink { fill: #e6e7e9; } .faint { fill: #a4a8ae; }
.kept { fill: #16391f; stroke: #6fd08c; } .left { fill: #1f2226; stroke: #7d838a; }
.own { fill: #14304f; stroke: #7ab0f5; }
.base { fill: #40290c; stroke: #f0b35e; } .edge.on { stroke: #6fd08c; }
.sees { fill: #6fd08c; } .blind { fill: #24272b; } }
</style>"""


def drawing(width: int, height: int, about: str, parts: Iterator[str]) -> str:
    """Return a self-contained SVG file with its own background, light or dark as the reader prefers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(about)}">\n<title>{escape(about)}</title>\n{_STYLE}\n'
        f'<rect class="paper" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "ink", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>'


def _edge(x: float, y: float, to_x: float, to_y: float, on: str) -> str:
    return f'<path class="edge{on}" d="M{x:g} {y:g} C{x + 20:g} {y:g} {to_x - 20:g} {to_y:g} {to_x:g} {to_y:g}"/>'


def _kind(node: int) -> str:
    return "kept" if node in ACCEPTED else "left"


def tree() -> str:
    """Draw the draft tree: the proposed and the accepted tokens, and the model's own token after them."""
    step, wide, high, top = 118, 84, 30, 46
    lanes = {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1}
    depths = TREE.depths()
    place = {node: (24 + step * depths[node], top + 62 * lanes[node]) for node in range(len(WORDS))}
    place[ROOT] = (24, top)

    def parts() -> Iterator[str]:
        yield _text(24, 26, "One pass checks every node; estimates of acceptance below them", "faint", "start")
        for node, parent in enumerate(TREE.parents):
            (x, y), (px, py) = place[node], place[parent]
            on = " on" if node in ACCEPTED else ""
            yield _edge(px + wide, py + high / 2, x, y + high / 2, on)
        x, y = place[2]
        yield _edge(x + wide - 6, y + high, x + step, y + 77, " on")
        yield _box(x + step, y + 62, wide, high, "own") + _text(x + step + wide / 2, y + 82, OWN)
        yield _text(x + step + wide / 2, y + 108, "the model's own", "faint small")
        x, y = place[ROOT]
        yield _box(x, y, wide, high, "base") + _text(x + wide / 2, y + 20, PREFIX[-1])
        yield _text(x + wide / 2, y + 46, "last token", "faint small")
        for node, word in enumerate(WORDS):
            x, y = place[node]
            yield _box(x, y, wide, high, _kind(node)) + _text(x + wide / 2, y + 20, word)
            caption = f"{TREE.scores[node]:.2f}{', accepted' if node in ACCEPTED else ''}"
            yield _text(x + wide / 2, y + 46, caption, "faint small")

    return drawing(610, 190, "A draft tree: the chain already, drawn, a is accepted, the other nodes are not", parts())


def mask() -> str:
    """Draw the columns that each node of the tree attends to: the text before it and its own ancestors."""
    side, left, top = 30, 120, 110
    columns = [*PREFIX, *WORDS]
    rows = [ROOT, *range(len(WORDS))]

    def sees(node: int, column: int) -> bool:
        if column < len(PREFIX):
            return True
        wanted = column - len(PREFIX)
        while node not in (ROOT, wanted):
            node = TREE.parents[node]
        return node == wanted

    def parts() -> Iterator[str]:
        for at, word in enumerate(columns):
            x = left + side * at + side / 2
            yield f'<text class="ink" transform="translate({x + 4:g} {top - 8}) rotate(-50)">{escape(word)}</text>'
        for line, node in enumerate(rows):
            y = top + side * line
            yield _text(left - 10, y + 20, PREFIX[-1] if node == ROOT else WORDS[node], "ink", "end")
            for column in range(len(columns)):
                kind = "sees" if sees(node, column) else "blind"
                yield _box(left + side * column + 2, y + 2, side - 4, side - 4, kind)
        yield _text(left + side * len(columns) + 16, top + 20, "green: sees", "faint", "start")
        yield _text(left + side * len(columns) + 16, top + 40, "each node: the", "faint", "start")
        yield _text(left + side * len(columns) + 16, top + 60, "text so far and", "faint", "start")
        yield _text(left + side * len(columns) + 16, top + 80, "its ancestors", "faint", "start")

    height = top + side * len(rows) + 16
    return drawing(540, height, "The attention mask: each node sees the text so far and its ancestors", parts())


def cache() -> str:
    """Draw the KV cache before a pass, after it, and after the accepted path has been committed."""
    wide, high, left = 62, 30, 130
    before = [(word, "base") for word in PREFIX[:-1]]
    read = [*before, (PREFIX[-1], "base"), *((word, _kind(node)) for node, word in enumerate(WORDS))]
    committed = [*before, (PREFIX[-1], "base"), *((WORDS[node], "kept") for node in ACCEPTED)]
    lines = (("before the pass", before), ("behind the pass", read), ("kept", committed))

    def parts() -> Iterator[str]:
        for line, (name, slots) in enumerate(lines):
            y = 20 + line * 56
            yield _text(left - 14, y + 20, name, "faint", "end")
            for at, (word, kind) in enumerate(slots):
                x = left + at * (wide + 4)
                yield _box(x, y, wide, high, kind) + _text(x + wide / 2, y + 20, word, "ink small")
        yield _text(left, 200, f"Nodes off the path leave; the next pass begins with {OWN!r}.", "faint", "start")

    about = "The cache: the pass adds a slot for the last token and each node, and the accepted path stays"
    return drawing(740, 216, about, parts())


def mark() -> str:
    """Draw the project's logo: a line and its copy."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" role="img" aria-label="copyspec">'
        '<rect x="3" y="3" width="12" height="4" rx="2" fill="#7ab0f5"/><rect x="9" y="10" width="12" '
        'height="4" rx="2" fill="#6fd08c"/><rect x="3" y="17" width="7" height="4" rx="2" fill="#f0b35e"/></svg>\n'
    )


FILES = {"tree.svg": tree, "mask.svg": mask, "cache.svg": cache, "mark.svg": mark}
