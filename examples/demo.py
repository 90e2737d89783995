"""The main job: a text corrected and a question answered from references, plainly and by copying, side by side.

make demo    (elsewhere: python -m examples.demo; exit status 0 means that all outputs were equal)
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import copyspec
from copyspec.pipelines import correction_prompt, quote_prompt
from copyspec.retrievers import BM25Retriever
from examples.side_by_side import show

TEXTS = Path(__file__).parent / "texts"
QUESTION = "What was the last crewed lightship replaced by?"


def main() -> int:
    paragraphs = (TEXTS / "essay.txt").read_text(encoding="utf-8").splitlines()
    passages = (TEXTS / "passages.txt").read_text(encoding="utf-8").splitlines()
    best = BM25Retriever(passages).search(QUESTION, k=1)[0].text
    comparisons = copyspec.compare(
        [correction_prompt(paragraph) for paragraph in paragraphs] + [quote_prompt(QUESTION, best)],
        references=[[]] * len(paragraphs) + [[best]],
        edit_source=[*paragraphs, None],
        chat=True,
        dtype="float32",  # equality is promised here; in half precision near-ties may flip
    )
    assert isinstance(comparisons, list)
    asked = f"QUESTION: {QUESTION} OF {len(passages)} PASSAGES BM25 CHOSE: {best}"
    shown = [*("TO CORRECT: " + paragraph for paragraph in paragraphs), asked]
    for text, comparison in zip(shown, comparisons, strict=True):
        print(f"\n{textwrap.fill(text, 80)}\n\n{show(comparison)}")
    return 0 if all(comparison.equal for comparison in comparisons) else 1


if __name__ == "__main__":
    raise SystemExit(main())
