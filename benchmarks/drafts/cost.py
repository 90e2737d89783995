"""Measures the cost of drafting: microseconds per call of propose and accept, by context length. No model runs.

`edit`, `reference` and `prompt` copy from that kind of source only. `datastore` and `model` copy from the prompt and
also draft from a datastore of the text, or from a draft model that answers instantly and whose prefill is left out.

python -m benchmarks.drafts.cost --text FILE [--context 1000,32000] [--repeat 5] [--json OUT]

The time of a call is its median over several runs that draft the same tokens. `first` is the first run alone, which
includes the interpreter's warm-up and any disturbance on the machine.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from tokenizers import Tokenizer

from benchmarks import transcripts
from benchmarks.replay.run import Tally, replay
from benchmarks.transcripts import end_token, load_tokenizer
from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.base import Drafter
from copyspec.drafters.blend import BlendDrafter
from copyspec.drafters.predictors.base import CalibratedPredictor, Learned, TokenProbs, paths
from copyspec.drafters.predictors.base import Path as DraftPath
from copyspec.drafters.predictors.datastore import DatastorePredictor, Store
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.retrievers import Datastore
from copyspec.sources import Source
from copyspec.tree import DraftTree
from kit import places
from kit.reporting import machine, quantile, ratio, write_json

OUTPUT_TOKENS = 1000
EDIT_EVERY = 15  # one token in this many is changed, as in corrected drafts
KINDS = ("edit", "reference", "prompt", "datastore", "model")
RIGHT = 6  # of ten most likely tokens of the stand-in model


class Oracle(CalibratedPredictor):
    """A draft model without a forward pass, whose predictions are not calibrated. A fixed fraction of its most likely
    tokens is right."""

    def __init__(self, output: Sequence[int]) -> None:
        super().__init__(Learned())
        self._output, self._at = output, 0
        self.reading = 0.0
        """Seconds spent in `run`, which stands for the model's forward pass."""

    def predict(self, path: DraftPath) -> TokenProbs | None:
        return self._predicted.get(path)

    def time(self) -> float:
        """Current time in seconds, less the time spent in `run`."""
        return perf_counter() - self.reading

    def run(self, tree: DraftTree) -> bool:
        started = perf_counter()
        for path in ((), *paths(tree.tokens, tree.parents)):
            at = self._at + len(path)
            number = hash((at, path))
            other = [self._output[(number >> bits) % len(self._output)] for bits in range(7)]
            place = 0 if number % 10 < RIGHT else 1
            tokens = dict.fromkeys([*other[:place], self._output[min(at, len(self._output) - 1)], *other[place:]])
            self._predicted[path] = [(token, 0.5 / 2**rank) for rank, token in enumerate(tokens)]
        self.reading += perf_counter() - started
        return True

    def accept(self, tokens: Sequence[int]) -> None:
        self._predicted.clear()
        self._at += len(tokens)


@dataclass(frozen=True, slots=True)
class Cost:
    """One line of the JSON."""

    context: int
    kind: str
    nodes: int
    calls: int
    tokens_per_call: float
    draft_us_p50: float
    draft_us_p99: float
    first_us_p50: float


def read_tokens(text: Path, tokenizer: Tokenizer, count: int) -> tuple[list[int], int]:
    """Return the first `count` tokens of a text file (gzip allowed), and the end-of-sequence token."""
    content = text.read_bytes()
    decoded = (gzip.decompress(content) if text.suffix == ".gz" else content).decode("utf-8")
    tokens = list(tokenizer.encode(decoded[: 12 * count], add_special_tokens=False).ids)
    if len(tokens) < count:
        raise ValueError(f"{str(text)!r} holds {len(tokens)} tokens, {count} are needed: give a longer text")
    return tokens[:count], end_token(tokenizer)


def measure(
    context: Sequence[int],
    kind: str,
    eos: int,
    nodes: int,
    ngrams: NGrams | None = None,
    repeat: int = 1,
    store: Store | None = None,
) -> Cost:
    """Measure drafting along an output that copies the end of `context` with one token in EDIT_EVERY changed.

    `repeat`: number of runs along the output."""
    rng = random.Random(0)
    output = [rng.choice(context) if rng.random() < 1 / EDIT_EVERY else token for token in context[-OUTPUT_TOKENS:]]
    sources = [Source(context, "prompt")]
    if kind == "edit":
        sources.insert(0, Source(context[-OUTPUT_TOKENS:], "edit"))
    elif kind == "reference":
        sources.insert(0, Source(context, "reference"))
    tallies = [Tally() for _ in range(repeat)]
    for tally in tallies:
        clock = perf_counter
        if kind == "model":
            oracle = Oracle([*output, eos])
            drafter: Drafter = BlendDrafter(sources, [oracle], eos=eos, ngrams=ngrams)
            clock = oracle.time
        elif store is not None and kind == "datastore":
            drafter = BlendDrafter(sources, [DatastorePredictor(store, context)], eos=eos, ngrams=ngrams)
        else:
            drafter = create(sources, {eos}, ngrams=ngrams)
        replay(drafter, [*output, eos], Budget(nodes), tally, clock)
    first = tallies[0]
    microseconds = [median(times) for times in zip(*(tally.microseconds for tally in tallies), strict=True)]
    return Cost(
        context=len(context),
        kind=kind,
        nodes=nodes,
        calls=first.calls,
        tokens_per_call=round(ratio(first.output_tokens, first.calls), 3),
        draft_us_p50=round(quantile(microseconds, 0.5), 1),
        draft_us_p99=round(quantile(microseconds, 0.99), 1),
        first_us_p50=round(quantile(first.microseconds, 0.5), 1),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.drafts.cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places.add_tokenizer(parser)
    parser.add_argument(
        "--text", required=True, type=Path, help="text file of prose, longer than the contexts; gzip allowed"
    )
    parser.add_argument("--context", default="1000,32000", help="comma-separated context lengths in tokens")
    parser.add_argument("--nodes", type=int, default=32, help="maximum draft nodes per call")
    parser.add_argument("--repeat", type=int, default=5, help="number of runs along each output")
    parser.add_argument("--json", default=None, help="write the figures to this file")
    options = parser.parse_args(arguments)
    if options.repeat < 1:
        parser.error(f"--repeat {options.repeat} measures nothing: give 1 or more")
    lengths = [int(length) for length in options.context.split(",")]
    try:
        tokenizer = load_tokenizer(options.tokenizer)
        tokens, eos = read_tokens(options.text, tokenizer, max(lengths))
    except (OSError, ValueError) as error:
        print(f"benchmarks.drafts.cost: {error}", file=sys.stderr)
        return 2
    ngrams = transcripts.ngrams(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        documents = [tokens[at : at + OUTPUT_TOKENS] for at in range(0, len(tokens), OUTPUT_TOKENS)]
        store = Datastore.create(Path(folder, "store"), documents)
        costs = [
            measure(tokens[:length], kind, eos, options.nodes, ngrams, options.repeat, store)
            for length in lengths
            for kind in KINDS
        ]
    print(f"{'context':>8} {'kind':<10}{'tokens/call':>12}{'p50 us':>9}{'p99 us':>9}{'first p50':>11}")
    for cost in costs:
        print(
            f"{cost.context:>8} {cost.kind:<10}{cost.tokens_per_call:>12.2f}{cost.draft_us_p50:>9.0f}"
            f"{cost.draft_us_p99:>9.0f}{cost.first_us_p50:>11.0f}"
        )
    if options.json:
        write_json(options.json, {"machine": machine(), "costs": [asdict(cost) for cost in costs]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
