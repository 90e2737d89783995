"""Reads prose and splits it into sentences and words without losing a character."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

# A word includes the space before it, so that "".join(split_words(text)) == text: an edit of the list is an edit of the
# text, and no detokeniser is needed.
_WORD = re.compile(r"\s*(?:\w+(?:[-'’]\w+)*|[^\w\s])|\s+$")
_CONTRACTION = re.compile(r"(?<=\w)(n['’]t|['’](?:s|re|ve|ll|d|m|S))$")
_SENTENCE_END = re.compile(r"(?<=[.!?])([\"'”’)\]]*)\s+(?=[\"'“‘(\[]*[A-Z0-9])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Capt|Lt|Rev|Hon|Jr|Sr|vs|etc|e\.g|i\.e|cf|No|Fig|ca|Vol|al|Inc|Ltd|Co)|"
    r"\b[A-Z]|\b[A-Z]\.[A-Z])\.$"
)
_QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})
_MEASURED = "wikipedia"  # its paragraphs are passages of SQuAD and Natural Questions, which benchmarks measure with


def read_paragraphs(folder: Path) -> list[str]:
    """All paragraphs of ``folder/*.txt.gz`` and ``*.txt``, one per line, without those of ``wikipedia``."""
    paragraphs: list[str] = []
    for path in sorted([*folder.glob("*.txt.gz"), *folder.glob("*.txt")]):
        if path.name.split(".")[0] == _MEASURED:
            continue
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as lines:
            paragraphs.extend(line.strip().replace("\\'", "'") for line in lines if line.strip())
    if not paragraphs:
        raise ValueError(
            f"no paragraphs in {str(folder)!r}: give a folder with *.txt.gz or *.txt files (--data), or make one: "
            "python -m benchmarks.data"
        )
    return paragraphs


def held_out(paragraph: str) -> bool:
    """Whether a paragraph belongs to the held-out hundredth, decided by its checksum."""
    return zlib.crc32(paragraph.encode()) % 100 == 0


def split_sentences(text: str) -> list[str]:
    """Sentences of a paragraph; joined with single spaces they are the paragraph with its white space collapsed."""
    text = " ".join(text.split())
    sentences, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        if _ABBREVIATION.search(text[start : match.start()]):
            continue
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    if text[start:]:
        sentences.append(text[start:].strip())
    return sentences


def well_formed(sentence: str) -> bool:
    """Whether it begins and ends like a sentence; headings and list items are neither right nor wrong."""
    start = sentence.lstrip("\"'“‘([")[:1]
    return bool(start) and not start.islower() and sentence.rstrip("\"'”’)]")[-1:] in (".", "!", "?")


def split_words(text: str) -> list[str]:
    """Words and punctuation marks, each with the space before it; their concatenation is ``text``."""
    return _WORD.findall(text)


def join_words(words: Sequence[str]) -> str:
    """Inverse of :func:`split_words`."""
    return "".join(words)


def spaced(words: Sequence[str]) -> str:
    """The words in the tokenised style of corpora: ``I do n't know , he said .``"""
    return " ".join(_CONTRACTION.sub(r" \1", word.strip()) for word in words)


def straight_quotes(text: str) -> str:
    """Replace typographic quotation marks and apostrophes by ASCII ones."""
    return text.translate(_QUOTES)
