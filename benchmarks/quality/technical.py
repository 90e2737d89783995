"""Counts what a corrector repairs and harms in technical pages: ``python -m benchmarks.quality.technical``.

The pages (technical.txt) are invented. They hold product names, identifiers, commands, names of people, units, British
spelling and 69 mistakes, each marked with what would be right. An edit elsewhere, or one that makes a mistake into
something else, is harmful.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from copyspec.pipelines import Corrector, Edit, GECPipeline, GuardOptions, Work
from copyspec.pipelines.edits.diff import apply  # type: ignore[import-not-found]
from copyspec.pipelines.formats import format_of  # type: ignore[import-not-found]

PAGES = Path(__file__).parent / "technical.txt"
_MARK = re.compile(r"⟦([^⟧]*)⟧")
_TITLE = re.compile(r"^=== (.+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mistake:
    """A planted mistake: its span in the text of its page, and what may stand there instead."""

    start: int
    end: int
    right: Sequence[str]


def read_pages(path: Path = PAGES) -> Iterator[tuple[str, str, Sequence[Mistake]]]:
    """Yield the name, the text and the mistakes of every page."""
    _, *pieces = _TITLE.split(path.read_text(encoding="utf-8"))
    for name, marked in zip(pieces[::2], pieces[1::2], strict=True):
        text, at, mistakes = "", 0, []
        for match in _MARK.finditer(marked):
            wrong, *right = match[1].split("|")
            text += marked[at : match.start()]
            mistakes.append(Mistake(len(text), len(text) + len(wrong), tuple(right)))
            text, at = text + wrong, match.end()
        yield name, text + marked[at:], mistakes


def edits_of(pipeline: GECPipeline, name: str, text: str) -> list[Edit]:
    """The edits of a page, with offsets in its text."""
    parts, edits, offset = list(format_of(Path(name)).read(io.BytesIO(text.encode()))), [], 0
    for done in pipeline.runner.run(Work(name, part, None, parts) for part in parts):
        assert done.part is not None
        edits += [Edit(offset + edit.start, offset + edit.end, edit.replacement) for edit in done.edits]
        offset += len(done.part.text)
    return edits


def judged(text: str, mistakes: Sequence[Mistake], edits: Sequence[Edit]) -> tuple[int, list[str]]:
    """Return the number of mistakes that the edits repair, and the harmful edits as a reader sees them."""
    count, left = 0, list(edits)
    for mistake in mistakes:
        ours = [edit for edit in left if edit.start <= mistake.end and mistake.start <= edit.end]
        if not ours:
            continue
        start, end = min(mistake.start, ours[0].start), max(mistake.end, ours[-1].end)
        shifted = [Edit(edit.start - start, edit.end - start, edit.replacement) for edit in ours]
        made = apply(text[start:end], shifted).split()
        wanted = (f"{text[start : mistake.start]}{right}{text[mistake.end : end]}".split() for right in mistake.right)
        if made in wanted:
            count += 1
            left = [edit for edit in left if edit not in ours]
    return count, [_shown(text, edit) for edit in left]


def _shown(text: str, edit: Edit) -> str:
    before, behind = text[max(0, edit.start - 40) : edit.start], text[edit.end : edit.end + 40]
    return " ".join(f"{before}[{text[edit.start : edit.end]} -> {edit.replacement}]{behind}".split())


def measure(corrector: Corrector, guards: GuardOptions) -> dict[str, Any]:
    """Count mistakes, repairs and harmful edits of all pages."""
    pipeline, total, repaired, harmful, missed = GECPipeline(corrector, guards=guards), 0, 0, list[str](), list[str]()
    for name, text, mistakes in read_pages():
        edits = edits_of(pipeline, name, text)
        count, harm = judged(text, mistakes, edits)
        total, repaired, harmful = total + len(mistakes), repaired + count, harmful + harm
        touched = {place for place in mistakes for edit in edits if edit.start <= place.end and place.start <= edit.end}
        missed += [f"{text[mistake.start : mistake.end]} ({name})" for mistake in mistakes if mistake not in touched]
    return {"mistakes": total, "repaired": repaired, "harmful": harmful, "left": missed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-correct")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    result = measure(GECPipeline(options.model).corrector, GuardOptions())
    shown = json.dumps(result, indent=1, ensure_ascii=False)
    print(shown)
    if options.json:
        options.json.write_text(shown + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
