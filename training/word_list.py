"""The lists of English words: ``python -m training.word_list --lists FILE... --rare FILE... --text DIR``.

Corrections may introduce words of SCOWL (Debian's ``wamerican`` and ``wbritish``, whose licence is stored beside the
list), and words that SCOWL lacks but that textbooks and news use too often to be misspellings. Rare words
(``wamerican-large``) count as known, so that they are not taken for misspellings, but may not be introduced.
Possessives are left out; readers of the list strip them.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

OUT = Path(__file__).parent.parent / "pipelines" / "guards"

OFTEN = 10  # a lower-case word with this count in the texts is a word
_TEXTS = ("textbooks", "news_speeches")  # fiction imitates speech ("hain", "resk"), PEPs contain code
_LETTERS = re.compile(r"(?<![\w'’])[a-z]{3,}(?![\w'’])")
_SHORT = frozenset(
    """
    a A I O o ad ah am an as at ax be by do eh em ex go ha he hi ho id if in is it la lo ma me my no of oh on or ow ox
    pa pi so to uh um up us vs we ye yo cm ft hr km kg lb mg ml mm oz
    """.split()  # noqa: SIM905
)
"""Valid lower-case words of one or two letters; the others are abbreviations, which models write by mistake."""
_NEVER = frozenset({"alot"})  # frequent but wrong


def word_list(lists: Iterable[Path], texts: Iterable[Path]) -> list[str]:
    """All words of the list, sorted."""
    words = {word.removesuffix("'s") for path in lists for word in path.read_text(encoding="utf-8").split()}
    counts: Counter[str] = Counter()
    for path in texts:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                counts.update(_LETTERS.findall(line))
    words |= {word for word, count in counts.items() if count >= OFTEN}
    chosen = (word for word in words - _NEVER if len(word) > 2 or word in _SHORT or (len(word) == 2 and word.isupper()))
    return sorted(chosen)


def rare_words(lists: Iterable[Path], common: Iterable[str]) -> list[str]:
    """The words that are only in the other lists, sorted."""
    words = {word.removesuffix("'s") for path in lists for word in path.read_text(encoding="utf-8").split()}
    known = {word.lower() for word in common}
    return sorted(word for word in words - _NEVER if len(word) > 2 and word.lower() not in known)


def write(path: Path, words: Iterable[str]) -> None:
    path.write_bytes(gzip.compress("\n".join(words).encode(), 9, mtime=0))
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the list of English words.")
    parser.add_argument(
        "--lists", type=Path, nargs="+", required=True, help="files american-english and british-english"
    )
    parser.add_argument("--rare", type=Path, nargs="+", required=True, help="file american-english-large")
    parser.add_argument(
        "--text", type=Path, required=True, help="folder with textbooks.txt.gz and news_speeches.txt.gz"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write the lists into")
    args = parser.parse_args()
    words = word_list(args.lists, [args.text / f"{name}.txt.gz" for name in _TEXTS])
    write(args.out / "english_words.txt.gz", words)
    write(args.out / "english_rare.txt.gz", rare_words(args.rare, words))


if __name__ == "__main__":
    main()
