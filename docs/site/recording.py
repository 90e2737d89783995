"""Records a run of `copyspec compare`, and draws the picture of the README and of the site's first page from it.

    python -m docs.site.recording    runs the model and writes docs/figures/run.json

`python -m docs.update` draws docs/figures/run.svg from that file: each bar grows once, for as long as its run took.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "figures" / "run.json"

TEXT = (
    "My sister and me has kept bees for six year. In spring we cleans the hives and counts the frames. Last summer "
    "the bees was so busy that we had to borrow jars from the neighbours. The honey taste of lime trees, and every "
    "autumn we gives a jar to everyone who have helped us."
)

WIDTH, LEFT, CELL, LINE = (
    800,
    24,
    8.0,
    22,
)  # user units of the drawing; CELL: width of a character; LINE: height of a line
COLUMNS = int((WIDTH - 2 * LEFT) / CELL)
_STYLE = """<style>
.p { fill: #fff; stroke: #d3d6da; } text { font: 13.3px ui-monospace, Menlo, Consolas, monospace; fill: #1b1c1e; }
.f { fill: #56595e; } .b { font-weight: 600; } .c { fill: #c9f2d2; } .t { fill: #eceef0; }
.l0 { fill: #7b828a; } .l1 { fill: #c77800; } .l2 { fill: #1f9d4d; } .g { animation: g linear backwards; }
@keyframes g { from { width: 0; } }
@media (prefers-color-scheme: dark) { .p { fill: #15171a; stroke: #3a3e44; } text { fill: #e6e7e9; }
.f { fill: #a4a8ae; } .c { fill: #1c4a29; } .t { fill: #24272b; } }
@media (prefers-reduced-motion: reduce) { .g { animation: none; } }
</style>"""


def record(model: str, repeats: int) -> dict[str, Any]:
    """Return the run with the median speed-up of `repeats` runs."""
    import torch
    import transformers

    import copyspec
    from copyspec.pipelines import correction_prompt

    prompt = correction_prompt(TEXT)
    runs = [
        copyspec.compare(
            prompt, edit_source=TEXT, prompt_lookup=True, model=model, dtype="float32", threads=1, chat=True
        )
        for _ in range(repeats)
    ]
    middle = sorted(runs, key=lambda run: run.runs[0].cpu_seconds / run.runs[-1].cpu_seconds)[repeats // 2]
    return {
        "command": f"python -m docs.site.recording --model {model} --repeat {repeats}",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": f"one thread ({platform.machine()}, {os.cpu_count()} cores)",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "model": model,
        "source": TEXT,
        "text": middle.copied.text.strip(),
        "lanes": [
            {
                "name": run.name,
                "seconds": round(run.cpu_seconds, 3),  # CPU time, since other programs share the machine
                "tokens": len(run.result.token_ids),
                "passes": run.result.stats.num_passes,
                "equal": run.result.token_ids == middle.plain.token_ids,
            }
            for run in middle.runs
        ],
        "copied": [
            [piece.start - _cut(middle.copied.text), piece.end - _cut(middle.copied.text)]
            for piece in middle.copied.provenance().pieces
        ],
    }


def _cut(text: str) -> int:
    return len(text) - len(text.lstrip())


def picture() -> str:
    """Draw the recorded run as SVG."""
    data = json.loads(RECORD.read_text(encoding="utf-8"))
    parts: list[str] = []
    y = 30.0
    parts.append(_words(LEFT, y, "$ copyspec compare ... --edit essay.txt", "f"))
    y += 16
    longest = max(lane["seconds"] for lane in data["lanes"])
    room = 260
    for number, lane in enumerate(data["lanes"]):
        y += LINE + 4
        wide, times = room * lane["seconds"] / longest, data["lanes"][0]["seconds"] / lane["seconds"]
        parts.append(_words(LEFT, y, lane["name"], "b"))
        parts.append(_box(150, y - 12, room, "t") + _box(150, y - 12, wide, f"l{number} g", lane["seconds"]))
        result = f"{lane['seconds']:.2f} s  {lane['tokens']} tokens in {lane['passes']} passes"
        if number:
            result += f"  {times:.1f}x, {'equal' if lane['equal'] else 'DIFFERENT'}"
        parts.append(_words(150 + room + 16, y, result, ""))
    y += LINE + 12
    parts += list(_text(data["text"], data["copied"], y))
    y += LINE * len(list(_lines(data["text"]))) + 8
    share = sum(end - start for start, end in data["copied"]) / len(data["text"])
    parts.append(
        _box(LEFT, y - 12, 14, "c") + _words(LEFT + 22, y, f"copied from the text being edited, {share:.0%}", "f")
    )
    foot = f"{data['model']}, float32, processor time of {data['machine']}"
    y += LINE - 4
    parts.append(_words(LEFT, y, foot, "f s"))
    height = y + 20
    lanes = ", ".join(f"{lane['name']} {lane['seconds']:.2f} s" for lane in data["lanes"])
    about = f"One text corrected three ways with equal outputs: {lanes}. Most of the output was copied from the source."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" '
        f'role="img" aria-label="{escape(about)}">\n<title>{escape(about)}</title>\n'
        f"{_STYLE.replace('</style>', '.s { font-size: 10.3px; } </style>')}\n"
        f'<rect class="p" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _words(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" xml:space="preserve">{escape(text)}</text>'


def _box(x: float, y: float, width: float, kind: str, seconds: float = 0.0) -> str:
    moves = f' style="animation-duration:{seconds:.2f}s"' if seconds else ""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:.1f}" height="15" rx="3"{moves}/>'


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each line that fits the width of the drawing."""
    start = 0
    while len(text) - start > COLUMNS:
        end = text.rfind(" ", start, start + COLUMNS + 1)
        end = end if end > start else start + COLUMNS
        yield start, end
        start = end + (text[end : end + 1] == " ")
    yield start, len(text)


def _text(text: str, copied: list[list[int]], y: float) -> Iterator[str]:
    """Draw the output line by line, with copied text highlighted. Each character has a cell of fixed width in any
    font."""
    for start, end in _lines(text):
        for from_, to in copied:
            first, last = max(start, from_), min(end, to)
            if first < last:
                yield _box(LEFT + (first - start) * CELL - 1, y - 12, (last - first) * CELL + 1, "c")
        yield (
            f'<text x="{LEFT}" y="{y:g}" textLength="{(end - start) * CELL:g}" lengthAdjust="spacingAndGlyphs">'
            f"{escape(text[start:end])}</text>"
        )
        y += LINE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-correct")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    data = record(arguments.model, arguments.repeat)
    RECORD.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(*data["lanes"], data["text"], sep="\n")


if __name__ == "__main__":
    main()
