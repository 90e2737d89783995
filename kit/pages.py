"""Builds test pages: long texts with many sources, and texts that try to inject markup."""

from __future__ import annotations

import random
from collections.abc import Sequence

from copyspec.views.provenance import CopiedPiece, Provenance, SourceText, TextPlace

CHARACTERS_PER_TOKEN = 4.5

HOSTILE = (
    "<script>document.title='run'</script>",
    "</main></body><img src=x onerror=\"document.title='run'\">",
    "&lt;b&gt; &amp;amp; &#60;i&#62;",
    "</script><script>document.title='run'</script>",
    "<!-- --> <![CDATA[ ]]> {{ 7*7 }} ${7*7} javascript:alert(1)",
    "\u202eright to left override\u202c, \u05e9\u05dc\u05d5\u05dd, \u0645\u0631\u062d\u0628\u0627",
    "\U0001f469\u200d\U0001f680\U0001f3f3\ufe0f\u200d\U0001f308 e\u0301 \U0001d11e \u4f60\u597d",
    "tab\there\r\nand a line end\rof another kind\x00\x07 \ud800",
)


def long_text(tokens: int, documents: int, words: Sequence[str], *, seed: int = 0, wide: bool = False) -> Provenance:
    """Make a text of about `tokens` tokens, four fifths of them copied. `wide`: without line breaks."""
    rng = random.Random(seed)
    texts = [_document(rng, words, wide) for _ in range(documents)]
    text: list[str] = []
    pieces: list[CopiedPiece] = []
    length = 0

    def add(piece: str) -> None:
        nonlocal length
        text.append(piece)
        length += len(piece)

    while length < tokens * CHARACTERS_PER_TOKEN:
        source = min(documents - 1, int(rng.expovariate(6 / documents)))
        size = rng.randrange(8, 120)
        start = rng.randrange(len(texts[source]) - size)
        piece = texts[source][start : start + size]
        ties = [TextPlace(other, at, at + size) for other, text in enumerate(texts) if (at := text.find(piece)) >= 0]
        place = TextPlace(source, start, start + size)
        pieces.append(CopiedPiece(length, length + size, place, tuple(tie for tie in ties if tie != place)[:8]))
        add(piece)
        add(" " + " ".join(rng.choice(words) for _ in range(rng.randrange(1, 5))))
        add(" " if wide or rng.random() < 0.7 else ".\n\n")
    sources = (
        SourceText(f"docs/report-{number:02}.md", "reference", number, text) for number, text in enumerate(texts)
    )
    return Provenance("".join(text), tuple(sources), tuple(pieces))


def hostile_text() -> Provenance:
    """Make a text of malicious strings: each copied from a source with that name, and each written by the model."""
    text = ""
    pieces = []
    sources = []
    for number, bad in enumerate(HOSTILE):
        sources.append(SourceText(bad, "reference", number, f"before {bad} behind"))
        pieces.append(CopiedPiece(len(text), len(text) + len(bad), TextPlace(number, 7, 7 + len(bad))))
        text += bad + " own: " + bad + "\n"
    return Provenance(text, tuple(sources), tuple(pieces))


def _document(rng: random.Random, words: Sequence[str], wide: bool) -> str:
    parts = []
    for _ in range(rng.randrange(2_000, 8_000)):
        parts += [rng.choice(words), " " if wide or rng.random() < 0.985 else ".\n\n"]
    return "".join(parts)
