"""Counts passes saved by copying from earlier corrections of a file, on recorded corrections. No model runs.

python -m benchmarks.quality.earlier_corrections [--places 32] [--nodes 32] [--rows N]

For each model, the transcript's rows in the order of their numbers are treated as one file; the first reference of a
row is its text. Each row is replayed as in `benchmarks.replay`, with and without what `pipelines` remembers of the
earlier rows. The last two columns are the change of the number of passes in the first and the second half of the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tokenizers import Tokenizer

from benchmarks.replay.run import Tally, node_counts, replay, row_count
from benchmarks.transcripts import EDIT_TASKS, Transcript, end_token, load_tokenizer, read_transcripts, tokenise
from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.pipelines import EarlierCorrections, ModelOptions
from copyspec.sources import Source
from kit import places
from kit.reporting import quantile, ratio


def measure(rows: Sequence[Transcript], tokenizer: Tokenizer, most: int, nodes: int) -> tuple[Tally, Tally]:
    """Replay one file remembering `most` places; return the counts of its first and second half."""
    eos = end_token(tokenizer)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    halves = Tally(), Tally()
    earlier = EarlierCorrections(encode, most=most)
    for number, row in enumerate(rows):
        tokens = tokenise(row, tokenizer, eos)
        sources = [Source(tokens.references[0], "edit"), *(Source(ids, "prompt") for ids in earlier.ids())]
        drafter = create([*sources, Source(tokens.prompt, "prompt")], frozenset({eos}), ngrams=tokens.ngrams)
        replay(drafter, tokens.output, Budget(nodes), halves[2 * number // len(rows)])
        earlier.add(row.references[0], row.output)
    return halves


def files(rows: Sequence[Transcript]) -> dict[tuple[str, str], list[Transcript]]:
    """Group rows by set and model, in the order of their numbers."""
    by_file: dict[tuple[str, str], list[Transcript]] = {}
    for row in rows:
        if row.task in EDIT_TASKS and row.references:
            by_file.setdefault((row.set, row.model), []).append(row)
    return {key: sorted(rows, key=lambda row: int(row.id.rpartition("-")[2])) for key, rows in by_file.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.earlier_corrections",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    file = places.data() / "transcripts" / "gec.jsonl.gz"
    parser.add_argument("transcript", nargs="?", default=file, help=".jsonl.gz file, ids ending with a number")
    places.add_tokenizer(parser)
    parser.add_argument(
        "--places",
        type=row_count,
        default=ModelOptions().earlier,
        help="number of places remembered (default: %(default)s)",
    )
    parser.add_argument("--nodes", type=node_counts, default=[32], help="maximum draft nodes per call (default: 32)")
    parser.add_argument("--rows", type=row_count, help="maximum rows per file")
    options = parser.parse_args(arguments)
    try:
        tokenizer = load_tokenizer(options.tokenizer)
        listed = files(read_transcripts([options.transcript]))
    except ValueError as error:
        print(f"benchmarks.quality.earlier_corrections: {error}", file=sys.stderr)
        return 2
    print(f"{'model':<30}{'nodes':>6}{'passes a text':>22}{'us a draft':>14}{'halves':>18}")
    for (_, model), rows in listed.items():
        for nodes in options.nodes:
            alone = measure(rows[: options.rows], tokenizer, 0, nodes)
            beside = measure(rows[: options.rows], tokenizer, options.places, nodes)
            counts = [ratio(sum(half.calls for half in one), sum(half.rows for half in one)) for one in (alone, beside)]
            drafts = [quantile([us for half in one for us in half.microseconds], 0.5) for one in (alone, beside)]
            change = [100 * (ratio(b.calls, a.calls) - 1) for a, b in zip(alone, beside, strict=True)]
            print(
                f"{model[:29]:<30}{nodes:>6}{counts[0]:>11.3f}{counts[1]:>11.3f}{drafts[0]:>7.0f}{drafts[1]:>7.0f}"
                f"{change[0]:>+8.2f} %{change[1]:>+6.2f} %",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
