"""Writes docs/correct_model.md: ``python -m training.adapt_card --quality JSON --run RUN``.

Figures come from :mod:`benchmarks.quality.corrector` and the run's log; nothing is typed by hand but the words around.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).parents[1] / "docs"
_TEMPLATE = Path(__file__).parent / "adapt_card_template.md"
_SETS = ("jfleg_dev", "gmeg_wiki_dev", "conll14")
_SETTINGS = (
    "raw", "words shared 0.6", "guards", "guards, the bundled model's margins", "guards, swaps, caution 0",
    "confidence 0.5", "confidence 0.8", "confidence 0.95",
)  # fmt: skip
_QUOTED = ("verbatim", "whole_sentence", "holds")
Row = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of Markdown; numbers stand right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def corrections(quality: Row) -> str:
    """GLEU, precision, recall and F0.5 of every set and setting."""
    rows = []
    for name in _SETS:
        found = quality.get(name, {})
        for setting in (each for each in _SETTINGS if each in found):
            row, edits = found[setting], found[setting]["edits"]["all"]
            figures = (f"{row['gain']:+.2f}", row["changed"], *(edits[key] for key in ("precision", "recall", "f0.5")))
            rows.append((name, found["n"], setting, *figures))
    return table(("set", "n", "", "GLEU over the source", "changed", "precision", "recall", "F0.5"), rows)


def types(quality: Row, name: str) -> str:
    """Edits by type, as the model writes them and behind the guards."""
    raw, behind = (quality[name][setting]["edits"] for setting in ("raw", "guards"))
    rows = [
        (kind, row["right"], row["wrong"], row["missed"], row["precision"], row["recall"], row["f0.5"],
         behind.get(kind, {}).get("f0.5", ""))
        for kind, row in raw.items()
    ]  # fmt: skip
    return table(("type", "right", "wrong", "missed", "precision", "recall", "F0.5", "F0.5 behind guards"), rows)


def everyday(quality: Row) -> str:
    """The everyday list by kind of mistake."""
    found = quality["everyday"]
    rows = [("all of " + str(found["n"]), *(found[way]["repaired"] for way in ("raw", "guarded")))]
    for key in ("left", "other"):
        rows.append((key, *(found[way][key] for way in ("raw", "guarded"))))
    rows += [(kind, count, found["guarded"]["by_kind"][kind]) for kind, count in found["raw"]["by_kind"].items()]
    return table(("", "repaired, raw", "behind the guards"), rows)


def outputs(quality: Row, kind: str) -> str:
    """Sentences of JFLEG dev by rule."""
    return "\n".join(
        f"- `{row['source'].strip()}`<br>`{row['output'].strip()}` ({row['gain']:+})"
        for row in quality["jfleg_dev"]["shown"][kind]
    )


def curve(log: Path) -> str:
    """Loss of held-out tokens by step."""
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    seen = [row for row in rows if "held_out_edited" in row]
    return table(
        ("step", "tokens as in the source", "tokens that differ", "first tokens of quotes"),
        [(row["step"], *(row.get(f"held_out_{kind}", "") for kind in ("kept", "edited", "chosen"))) for row in seen],
    )


def write(quality: Row, run: Path) -> str:
    """The card."""
    parts = {
        "corrections": corrections(quality),
        "types": types(quality, "conll14") if "conll14" in quality else "Not measured yet.",
        "types_jfleg": types(quality, "jfleg_dev"),
        "everyday": everyday(quality),
        "alone": table(
            ("correct text", "n", "left exactly, raw", "behind the guards"),
            [(name.replace("_", " "), row["n"], row["exact"], row["exact, guarded"])
             for name, row in quality["alone"].items()],
        ) if "alone" in quality else "Not measured yet.",
        "quotes": table(
            ("given", "verbatim", "a whole sentence", "holds the answer"),
            [(name.replace("_", " "), *(quality["quotes"][name][key] for key in _QUOTED))
             for name in ("passage", "one_sentence")],
        ) if "quotes" in quality else "Not measured yet.",
        "good": outputs(quality, "good"),
        "bad": outputs(quality, "bad"),
        "curve": curve(run / "log.jsonl"),
    }  # fmt: skip
    text = _TEMPLATE.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace("{" + name + "}", part)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the card of the correcting adapter.")
    parser.add_argument("--quality", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="folder with log.jsonl")
    options = parser.parse_args()
    quality = json.loads(options.quality.read_text(encoding="utf-8"))
    (_DOCS / "correct_model.md").write_text(write(quality, options.run), encoding="utf-8")


if __name__ == "__main__":
    main()
