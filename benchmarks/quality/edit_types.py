"""Computes precision, recall and F0.5 of corrections by edit type, in the manner of ERRANT (Bryant et al. 2017).

Edits are word spans of an alignment. An edit is right if an annotator made the same one; each sentence is compared with
the annotator it fits best. Types are assigned by rules on the words alone: operation (M missing, U unnecessary, R
replacement) and class. There is no tagger, so anything but function words, spelling and word forms is OTHER.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from copyspec.pipelines.guards.likeness import are_akin
from copyspec.pipelines.guards.vocabulary import is_english

_CLASSES = {
    "DET": "a an the this that these those my your his her its our their some any no every each",
    "PREP": "in on at of to for with from by about into onto over under between among during through against within",
    "PRON": "i me you he him she it we us they them who whom which mine yours hers ours theirs myself themselves",
    "AUX": "am is are was were be been being have has had do does did will would can could may might must should",
    "CONJ": "and or but so because although though while since if unless",
}
_CLASS_OF = {word: name for name, words in _CLASSES.items() for word in words.split()}
Edit = tuple[int, int, str]
"""Start and end (exclusive) of the replaced words in the source, and the words that replace them."""


def edits_of(source: str, output: str) -> list[Edit]:
    """Return the edits from one word-tokenised sentence to another. Adjacent words that both differ are separate
    edits."""
    was, now = source.split(), output.split()
    edits: list[Edit] = []
    for kind, i, j, k, m in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        if kind == "replace" and j - i == m - k:
            edits += [(i + n, i + n + 1, now[k + n]) for n in range(j - i)]
        else:
            edits.append((i, j, " ".join(now[k:m])))
    return edits


def type_of(source: Sequence[str], edit: Edit) -> str:
    """Return operation and class, such as `M:DET` or `R:SPELL`."""
    start, end, new = edit
    was, now = list(source[start:end]), new.split()
    operation = "M" if not was else "U" if not now else "R"
    words = [*was, *now]
    if all(not any(map(str.isalnum, word)) for word in words):
        return f"{operation}:PUNCT"
    if "".join(was).casefold() == "".join(now).casefold():
        return f"{operation}:ORTH"
    classes = {_CLASS_OF.get(word.casefold()) for word in words}
    if len(classes) == 1 and (only := classes.pop()):
        return f"{operation}:{only}"
    if operation == "R" and len(was) == len(now) == 1:
        if not is_english(was[0]):
            return "R:SPELL"
        if are_akin(was[0], now[0]):
            return "R:FORM"
    return f"{operation}:OTHER"


@dataclass(slots=True)
class Counts:
    """Counts of right, wrong and missed edits."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def add(self, other: Counts) -> None:
        self.right, self.wrong, self.missed = (
            self.right + other.right,
            self.wrong + other.wrong,
            self.missed + other.missed,
        )

    def row(self) -> dict[str, float]:
        """Precision, recall, F0.5 and the counts."""
        precision = self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0
        recall = self.right / (self.right + self.missed) if self.right + self.missed else 1.0
        both = 0.25 * precision + recall
        return {
            "precision": round(precision, 3),
            "recall": round(recall, 3),
            "f0.5": round(1.25 * precision * recall / both, 3) if both else 0.0,
            "right": self.right,
            "wrong": self.wrong,
            "missed": self.missed,
        }


@dataclass(slots=True)
class Scores:
    """Counts of a set, in total and by type."""

    total: Counts = field(default_factory=Counts)
    by_type: dict[str, Counts] = field(default_factory=dict)

    def add(self, source: str, output: str, references: Iterable[str]) -> None:
        """Add a sentence, compared with the reference that gives it the most right edits and the fewest others."""
        made = Counter(edits_of(source, output))
        wanted = [Counter(edits_of(source, reference)) for reference in references]
        best = max(wanted, key=lambda edits: 2 * (made & edits).total() - made.total() - edits.total())
        words = source.split()
        for kind, edits in (("right", made & best), ("wrong", made - best), ("missed", best - made)):
            for edit, count in edits.items():
                counts = Counts(**{kind: count})
                self.total.add(counts)
                self.by_type.setdefault(type_of(words, edit), Counts()).add(counts)

    def table(self, least: int = 10) -> dict[str, dict[str, float]]:
        """Return the totals, and the types with at least `least` edits, most frequent first."""
        often = sorted(self.by_type.items(), key=lambda item: -(item[1].right + item[1].wrong + item[1].missed))
        shown = {name: counts.row() for name, counts in often if counts.right + counts.wrong + counts.missed >= least}
        return {"all": self.total.row(), **shown}
