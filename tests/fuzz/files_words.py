"""Makes random text for hostile files: words, markup of every format, and characters that are not text."""

from __future__ import annotations

import random

WORDS = [
    "he",
    "go",
    "home",
    "the",
    "childrens",
    "was",
    "late",
    "a",
    "boat",
    "and",
    "It",
    "is",
    "Mr.",
    "e.g.",
    "3.5",
    "naïve",
    "东京",
    "他去学校。",
    "can't",
    "we",
]
ATOMS = [
    *("`", "``", "<a>", "</b>", "[x](y)", "![", "**", "__a", "> ", "- ", "1. ", "|", "\\", "$x$", "{{x}}", "{%", "$$"),
    *("<|endoftext|>", "[INST]", "<s>", "<pad>", "<<SYS>>", "http://a.b/c", "a@b.c", "x_y", "--a", "#", "~~", "<!--"),
    *("=1+1", "+2", "-3", "@SUM(A1)", "\t", ",", ";", '"', '""', "'", "&amp;", "&", "<", "]]>", "\\u0041", "|||"),
    *("\ufeff", "\u200b", "\u202e", "\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\0", "\x1b[31m", "\ufffd", "\u200d"),
    *(
        "e\u0301\u0301",
        "🙂",
        "ﬁ",
        "ｆｕｌｌ",
        "\u3000",
        "字" * 9,
        "x" * 60,
        "A" * 8,
        "1" * 40,
        "...",
        "?!",
        "(((",
        "\n",
    ),
]
BAD_BYTES = [
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\0",
    b"\r",
    b"\r\n",
    b"\n",
    b'"',
    b"\xf0\x9f",
    b"\x1a",
    b"\xef\xbb\xbf",
]
LINE_ENDS = ["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\n \n", "\r\r"]
REPEATED = 1 << 15  # maximum characters of a repeated item


def text(rng: random.Random, most: int = 12) -> str:
    """Make a text of a few words, some of them hostile; occasionally, one item is repeated very often."""
    if rng.random() < 0.01:
        unit = rng.choice(ATOMS) + rng.choice(["", " ", " a ", "\n", rng.choice(ATOMS)])
        return f"a {unit * (rng.randrange(REPEATED) // len(unit))} b."
    words = [rng.choice(WORDS) if rng.random() < 0.8 else rng.choice(ATOMS) for _ in range(rng.randint(1, most))]
    return rng.choice([" ", " ", " ", "", "  "]).join(words) + rng.choice(["", ".", "!", " "])


def line(rng: random.Random, most: int = 12) -> str:
    return " ".join(text(rng, most).split("\n"))
