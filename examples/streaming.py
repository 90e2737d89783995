"""Prints an answer while it is generated. A chunk is whole characters; copied text arrives many tokens at a time.

python -m examples.streaming
"""

from __future__ import annotations

import copyspec

TEXT = "the ferry leave at noon and return before before the evening. It take two hours"


def main() -> None:
    chunks = copyspec.generate(f"Correct the grammar: {TEXT}", edit_source=TEXT, model="default", stream=True)
    for chunk in chunks:
        print(chunk.text, end="|", flush=True)
        if chunk.result is not None:
            print(f"\nfinished: {chunk.result.finish_reason}, {chunk.result.stats.num_passes} passes")


if __name__ == "__main__":
    main()
