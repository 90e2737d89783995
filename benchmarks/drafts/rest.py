"""Measures REST on recorded outputs: tokens per call with copies, with a datastore of other text, and with both.

    python -m benchmarks.drafts.rest --text FILES --json OUT.json

No model runs. There are two datastores: one of the given texts, and one of outputs recorded for the same task, without
the replayed rows and all rows of their groups. Methods: copies from the row's own prompt, references and output; the
datastore alone (REST, He et al. 2024); and both in one tree.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.drafts.datastore import read_documents
from benchmarks.replay.run import Tally, copyspec_drafter, replay, row_sources
from benchmarks.transcripts import (
    TokenRow,
    Transcript,
    choose_rows,
    end_token,
    load_tokenizer,
    read_transcripts,
    tokenise,
)
from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.base import Drafter
from copyspec.drafters.blend import PredictorDrafter
from copyspec.drafters.predictors.datastore import DatastorePredictor
from copyspec.retrievers import Datastore
from kit import places
from kit.reporting import command_line, machine, quantile, ratio, write_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures and return 0."""
    options = _parser().parse_args(arguments)
    tokenizer = load_tokenizer(options.tokenizer)
    everything = read_transcripts(options.transcripts)
    lines: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        texts = Datastore.create(Path(scratch) / "texts", read_documents(options.text, options.tokenizer))
        for task in options.tasks.split(","):
            rows = [row for row in everything if row.task == task]
            replayed = choose_rows(_drawn(rows, options.share), options.rows)
            others = _others(rows, replayed, tokenizer)
            outputs = Datastore.create(Path(scratch) / task, others)
            lines += _task(task, replayed, {"texts": texts, "outputs": outputs}, tokenizer, options.nodes)
    if options.json:
        command = command_line("benchmarks.drafts.rest", arguments)
        write_json(options.json, {"command": command, "machine": machine(), "nodes": options.nodes, "methods": lines})
    return 0


def _drawn(rows: Sequence[Transcript], share: float) -> list[Transcript]:
    """Draw all rows of some groups. A group is one conversation, answered by several models."""
    groups = sorted({row.group for row in rows})
    drawn = set(random.Random(0).sample(groups, max(1, round(share * len(groups)))))
    return [row for row in rows if row.group in drawn]


def _others(rows: Sequence[Transcript], replayed: Sequence[Transcript], tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Yield outputs of rows that are unrelated to those replayed: another group and another prompt."""
    groups, prompts = {row.group for row in replayed}, {row.prompt for row in replayed}
    for row in rows:
        if row.group not in groups and row.prompt not in prompts:
            yield list(tokenizer.encode(row.output, add_special_tokens=False).ids)


def _task(
    task: str, rows: Sequence[Transcript], stores: dict[str, Datastore], tokenizer: Tokenizer, nodes: int
) -> list[dict[str, object]]:
    eos = end_token(tokenizer)
    tallies: dict[str, dict[str, Tally]] = {}  # by method, then by set and model
    for row in rows:
        tokens, key = tokenise(row, tokenizer, eos), f"{row.set}, {row.model}"
        for name, drafter in _drafters(task, tokens, stores).items():
            replay(drafter, tokens.output, Budget(nodes), tallies.setdefault(name, {}).setdefault(key, Tally()))
    sizes = ", ".join(f"{name} {store.num_tokens:,} tokens" for name, store in stores.items())
    print(f"{task}: {len(rows)} rows; {sizes}")
    lines: list[dict[str, object]] = []
    for name, sets in tallies.items():
        per_call = _per_call(list(sets.values()))
        microseconds = [microsecond for tally in sets.values() for microsecond in tally.microseconds]
        print(f"  {name:18}{per_call:6.3f} tokens per call, drafting p50 {quantile(microseconds, 0.5):5.0f} us")
        stored = {f"{store}_tokens": stores[store].num_tokens for store in stores if name.endswith(store)}
        by_set = {key: {"rows": tally.rows, "tokens_per_call": _per_call([tally])} for key, tally in sets.items()}
        line = {"task": task, "method": name, "rows": len(rows), "tokens_per_call": per_call, **stored, "sets": by_set}
        lines.append(line)
    for key, alone in tallies["copies"].items():
        both = {name: _per_call([tallies[f"copies + {name}"][key]]) for name in stores}
        shown = ", ".join(f"with {name} {per_call:.2f}" for name, per_call in both.items())
        print(f"    {key:60.60}{alone.rows:4} rows: copies {_per_call([alone]):.2f}, {shown}")
    sys.stdout.flush()
    return lines


def _per_call(tallies: Sequence[Tally]) -> float:
    return round(ratio(sum(tally.output_tokens for tally in tallies), sum(tally.calls for tally in tallies)), 4)


def _drafters(task: str, row: TokenRow, stores: dict[str, Datastore]) -> dict[str, Drafter]:
    made: dict[str, Drafter] = {"copies": copyspec_drafter(task, row)}
    for name, store in stores.items():
        made[name] = PredictorDrafter([DatastorePredictor(store, row.prompt)])
        made[f"copies + {name}"] = _both(task, store, row)
    return made


def _both(task: str, store: Datastore, row: TokenRow) -> Drafter:
    made = [lambda: DatastorePredictor(store, row.prompt)]
    return create(row_sources(task, row), frozenset({row.output[-1]}), predictors=made, ngrams=row.ngrams)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.drafts.rest",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places.add_transcripts(parser)
    parser.add_argument("--text", nargs="+", required=True, help="text files (gzip allowed) with one document per line")
    places.add_tokenizer(parser)
    parser.add_argument("--tasks", default="chat,rag", help="tasks to replay")
    parser.add_argument("--share", type=float, default=0.3, help="fraction of the groups that is replayed")
    parser.add_argument("--rows", type=int, default=25, help="rows per set, drawn with a fixed seed")
    parser.add_argument("--nodes", type=int, default=32, help="draft nodes per call")
    parser.add_argument("--scratch", help="folder for the datastores, removed afterwards")
    parser.add_argument("--json", help="write the figures to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
