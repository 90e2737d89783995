"""Writes transcripts of whole files that are written again with one change: a lazy snippet merged into its file.

    python -m benchmarks.replay.whole_files whole.jsonl.gz --tokens 3500

Each row takes a recorded edit of a real model. The edited code stands among the original code of other rows, as one
file of about so many tokens; the snippet shows the changed lines, and a mark such as "# ... existing code ..." for
others; the output is the file with the edit in it. The merge is perfect by construction: no model was asked.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.applying.rows import Row, lazy
from benchmarks.transcripts import Transcript, load_tokenizer, read_transcripts
from kit import places

PROMPT = """System:
You merge an update into a file. Write the whole file with the update in it, and nothing else.

User:
<code>
{code}
</code>

<update>
{update}
</update>

Assistant:
"""


def whole_file(row: Transcript, others: Sequence[Transcript], rng: random.Random) -> tuple[str, str]:
    """The text of a file before and after the row's edit, among the original code of `others`."""
    parts = [other.references[0] for other in others]
    at = rng.randint(0, len(parts))
    before, after = ("\n\n\n".join([*parts[:at], code, *parts[at:]]) for code in (row.references[0], row.output))
    return before, after


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay.whole_files",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("output", type=Path, help="the .jsonl.gz file to write")
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    parser.add_argument("--tokens", type=int, default=3500, help="length of a file; 0: the edited code alone")
    parser.add_argument("--rows", type=int, default=40)
    options = parser.parse_args(arguments)
    if options.output.exists() and not options.output.name.startswith("whole"):
        parser.error(f"{str(options.output)!r} is there already: the first name is that of the file to write")
    tokenizer, rng = load_tokenizer(options.tokenizer), random.Random(options.tokens)
    edits = [row for row in read_transcripts(options.transcripts) if row.task == "code_edit"]
    lengths = {row.group: len(tokenizer.encode(row.references[0]).ids) for row in edits}
    by_group = list({row.group: row for row in edits}.values())
    with gzip.open(options.output, "wt", encoding="utf-8") as file:
        for number, row in enumerate(rng.sample(edits, min(options.rows, len(edits)))):
            left, others = options.tokens - lengths[row.group], list[Transcript]()
            for other in rng.sample(by_group, len(by_group)):
                if other.group != row.group and lengths[other.group] <= left:
                    others.append(other)
                    left -= lengths[other.group]
            before, after = whole_file(row, others, rng)
            update = lazy(Row(row.id, "file.py", before, after, ""), rng)
            record = {
                "id": f"whole_{options.tokens}-{number:05}",
                "task": "code_edit",
                "model": row.model,
                "group": row.group,
                "prompt": PROMPT.format(code=before, update=update),
                "references": [before, update],
                "output": after,
            }
            file.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
