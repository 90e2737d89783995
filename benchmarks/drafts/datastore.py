"""Measures the datastore: cost of building and searching it, and gains of its drafts on recorded outputs.

    python -m benchmarks.drafts.datastore --text FILES... [--tokens 10000000]
    python -m benchmarks.drafts.datastore --text FILES... --transcripts DIR --tasks chat,rag

The first form fills a datastore with spans of the texts up to that many tokens, and looks up held-out text. Building
and searching run in separate processes, so that their peak and resident memory can be measured. The second form replays
recorded outputs with a datastore of the texts, and reports tokens per call of the model.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.replay.run import Tally, copyspec_drafter, replay
from benchmarks.transcripts import choose_rows, end_token, load_tokenizer, read_transcripts, tokenise
from copyspec.budget import Budget
from copyspec.drafters.base import Drafter
from copyspec.drafters.blend import PredictorDrafter
from copyspec.drafters.predictors.datastore import DatastorePredictor
from copyspec.retrievers import Datastore
from kit import places
from kit.reporting import command_line, machine, quantile, ratio, resident, write_json

HELD_OUT = 0.05  # fraction of the text, at its end, that is looked up and not stored
SPAN = (64, 1024)  # minimum and maximum tokens of a document: paragraphs to pages
LOOK_UPS = 2000


@dataclass(frozen=True, slots=True)
class Built:
    """Figures of building one datastore."""

    tokens: int
    seconds: float
    peak_bytes: int  # of the process, including the text's tokens
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Searched:
    """Figures of looking up held-out text in it."""

    mean_match: float
    search_us_p50: float
    search_us_p99: float
    continuations_us_p50: float  # for 32 matches of 16 tokens each
    open_seconds: float  # including checksums
    resident_bytes: int  # of the process, beyond its memory before opening the datastore: mean of samples
    resident_bytes_max: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures and return 0."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        tokens = Path(scratch) / "tokens.npy"
        documents = read_documents(options.text, options.tokenizer)
        if options.transcripts:
            store = Datastore.create(Path(scratch) / "store", documents)
            report: dict[str, object] = {"replay": _replay(store, options)}
        else:
            np.save(tokens, np.concatenate([np.array(document, np.uint32) for document in documents]))
            report = _speed(tokens, Path(scratch) / "store", options.tokens)
    if options.json:
        command = command_line("benchmarks.drafts.datastore", arguments)
        write_json(options.json, {"machine": machine(), "command": command, **report})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.drafts.datastore", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--text", nargs="+", required=True, help="text files (gzip allowed) with one document per line")
    places.add_tokenizer(parser)
    parser.add_argument("--tokens", type=int, default=10_000_000, help="size of the datastore in tokens")
    parser.add_argument("--transcripts", nargs="+", help="replay these recorded outputs instead")
    parser.add_argument("--tasks", default="chat,rag", help="tasks to replay")
    parser.add_argument("--rows", type=int, default=40, help="rows per set")
    parser.add_argument("--nodes", type=int, default=32, help="draft nodes per call")
    parser.add_argument("--scratch", help="folder for the datastore, removed afterwards")
    parser.add_argument("--json", help="write the figures to this file")
    return parser


def read_documents(paths: Sequence[str], tokenizer_file: str) -> list[list[int]]:
    tokenizer = load_tokenizer(tokenizer_file)
    documents: list[list[int]] = []
    for path in paths:
        content = Path(path).read_bytes()
        text = (gzip.decompress(content) if path.endswith(".gz") else content).decode("utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
        for start in range(0, len(lines), 1000):
            batch = tokenizer.encode_batch(lines[start : start + 1000], add_special_tokens=False)
            documents += [list(encoding.ids) for encoding in batch]
    return documents


def _speed(tokens: Path, store: Path, count: int) -> dict[str, object]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        built: Built = pool.apply(_build, (tokens, store, count))
    print(
        f"built     {built.tokens:,} tokens in {built.seconds:.1f} s, peak {built.peak_bytes / 1e9:.2f} GB, "
        f"files {built.file_bytes / 1e9:.2f} GB"
    )
    with context.Pool(1) as pool:
        searched: Searched = pool.apply(_search, (tokens, store))
    print(
        f"search    p50 {searched.search_us_p50:.1f} us, p99 {searched.search_us_p99:.1f} us, "
        f"mean match {searched.mean_match:.1f} tokens; 32 continuations p50 {searched.continuations_us_p50:.1f} us\n"
        f"resident  {searched.resident_bytes / 1e6:.0f} MB, at most {searched.resident_bytes_max / 1e6:.0f} MB; "
        f"opened in {searched.open_seconds:.2f} s with checksums"
    )
    return {"built": asdict(built), "searched": asdict(searched)}


def _spans(text: NDArray[np.uint32], count: int) -> Iterator[NDArray[np.uint32]]:
    """Yield spans of the text, drawn with a fixed seed, until they have `count` tokens in total."""
    rng = random.Random(0)
    while count > 0:
        start, size = rng.randrange(len(text)), min(rng.randint(*SPAN), count)
        span = text[start : start + size]
        count -= len(span)
        yield span


def _build(tokens: Path, folder: Path, count: int) -> Built:
    import resource

    text = np.load(tokens)
    text = text[: int(len(text) * (1 - HELD_OUT))]
    documents = iter([text]) if count == len(text) else _spans(text, count)
    started = time.perf_counter()
    store = Datastore.create(folder, documents)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Built(store.num_tokens, seconds, peak, sum(path.stat().st_size for path in folder.iterdir()))


def _search(tokens: Path, folder: Path) -> Searched:
    text = np.load(tokens)
    text = text[int(len(text) * (1 - HELD_OUT)) :].tolist()
    rng = random.Random(1)
    ends = [rng.randrange(64, len(text)) for _ in range(LOOK_UPS)]
    before = resident()
    started = time.perf_counter()
    store = Datastore(folder)
    opened = time.perf_counter() - started
    search, continuations, sizes, matched = [], [], [], 0
    for end in ends:
        context = text[end - 64 : end]
        started = time.perf_counter()
        match = store.search(context)
        searched = time.perf_counter()
        store.continuations(context, 16, 32)
        continuations.append((time.perf_counter() - searched) * 1e6)
        search.append((searched - started) * 1e6)
        matched += match.length
        sizes.append(resident() - before)
    return Searched(
        mean_match=matched / len(ends),
        search_us_p50=quantile(search, 0.5),
        search_us_p99=quantile(search, 0.99),
        continuations_us_p50=quantile(continuations, 0.5),
        open_seconds=opened,
        resident_bytes=sum(sizes) // len(sizes),
        resident_bytes_max=max(sizes),
    )


def _replay(store: Datastore, options: argparse.Namespace) -> list[dict[str, object]]:
    tokenizer = load_tokenizer(options.tokenizer)
    eos, tasks = end_token(tokenizer), options.tasks.split(",")
    rows = [row for row in read_transcripts(options.transcripts) if row.task in tasks]
    tallies: dict[tuple[str, str], Tally] = {}
    for row in choose_rows(rows, options.rows):
        tokens = tokenise(row, tokenizer, eos)
        drafters: dict[str, Drafter] = {
            "copyspec": copyspec_drafter(row.task, tokens),
            "datastore": PredictorDrafter([DatastorePredictor(store, tokens.prompt)]),
        }
        for name, drafter in drafters.items():
            replay(drafter, tokens.output, Budget(options.nodes), tallies.setdefault((row.task, name), Tally()))
    lines: list[dict[str, object]] = []
    print(f"datastore of {store.num_tokens:,} tokens, {options.nodes} nodes")
    for (task, name), tally in sorted(tallies.items()):
        per_call, median = ratio(tally.output_tokens, tally.calls), quantile(tally.microseconds, 0.5)
        print(f"{task:14} {name:10} {per_call:5.2f} tokens per call, drafting p50 {median:5.0f} us")
        lines.append(
            {"task": task, "method": name, "rows": tally.rows, "tokens_per_call": per_call, "draft_us_p50": median}
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
