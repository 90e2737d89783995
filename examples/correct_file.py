"""Corrects a Markdown file as `copyspec gec` does and shows what changed: markup, code and links stay.

python -m examples.correct_file
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from copyspec.pipelines import FileOptions, GECPipeline, unified_diff

NOTES = """\
# Notes from the the harbour

The kettle are on the boat , and `kettle.status` says so.

- She have a map of the islands, [page 3](https://maps.example/old_town?page=3).
- we was late because the ferry were full.
"""


def main() -> None:
    pipeline = GECPipeline("default")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "notes.md")
        file.write_text(NOTES, encoding="utf-8")
        for report in pipeline.files(file, FileOptions(in_place=True, backup=".bak")):
            print(report.summary.line())
        after = file.read_text(encoding="utf-8")
    sys.stdout.writelines(unified_diff([(NOTES, after)], "notes.md"))


if __name__ == "__main__":
    main()
