"""Corrects a text paragraph by paragraph and shows what changed.

python -m examples.correct_text
"""

from __future__ import annotations

import difflib
from pathlib import Path

from copyspec.pipelines import GECPipeline


def main() -> None:
    text = (Path(__file__).parent / "texts" / "essay.txt").read_text(encoding="utf-8")
    for correction in GECPipeline("default")(text.splitlines()):
        before, after = correction.source.split(), correction.text.split()
        for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag != "equal":
                print(f"{' '.join(before[i:j])!r} -> {' '.join(after[k:m])!r}")
        if correction.result is not None:
            stats = correction.result.stats
            print(f"{stats.num_output_tokens} tokens in {stats.num_passes} passes of the model\n")


if __name__ == "__main__":
    main()
