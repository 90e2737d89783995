"""Replays copies beside an oracle head along recorded outputs: what a head of a given accuracy adds to copying.

python -m benchmarks.replay.oracle TRANSCRIPTS... --tokenizer FILE [--accuracy .6,.7,.8] [--nodes 32] [--rows N]
                                   [--step-cost .05] [--json FILE]

After every node that it reads, the head names one token, and is right with the given probability, wherever that is; it
knows no more than its average accuracy. `cost` is passes, draft nodes and the head's steps in plain passes per output
token, over that of copies alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from tokenizers import Tokenizer

from benchmarks.replay.run import Tally, replay, row_count, row_sources
from benchmarks.transcripts import (
    TokenRow,
    Transcript,
    choose_rows,
    end_token,
    load_tokenizer,
    read_transcripts,
    tokenise,
)
from copyspec.budget import GPU_SLOPE, Budget
from copyspec.drafters import create
from copyspec.drafters.predictors.base import CalibratedPredictor, Learned, Path, TokenProbs, paths
from copyspec.tree import DraftTree
from kit.reporting import ratio, write_json

WRONG = 0
"""A token that no recorded output holds."""

PASS_SECONDS = 0.01


class OracleHead(CalibratedPredictor):
    """A head for one recorded output."""

    kind = "heads"

    def __init__(self, output: Sequence[int], accuracy: float, learned: Learned) -> None:
        super().__init__(learned)
        draw = Random(repr((output[:8], len(output))))
        self._named = [token if draw.random() < accuracy else WRONG for token in output]
        self._output, self._accuracy, self._at = list(output), accuracy, 0
        self.steps = 0
        """Steps so far, each over all nodes that it reads at once."""

    def run(self, tree: DraftTree) -> bool:
        """Read the root and the nodes of `tree`."""
        unread = [path for path in [(), *paths(tree.tokens, tree.parents)] if path not in self._predicted]
        self._predicted |= {path: self._after(path) for path in unread}
        self.steps += bool(unread)
        return bool(unread)

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        self._at += len(tokens)

    def _after(self, path: Path) -> TokenProbs:
        place = self._at + len(path)
        is_true = place < len(self._output) and list(path) == self._output[self._at : place]
        return [(self._named[place] if is_true else WRONG, self._accuracy)]


@dataclass(slots=True)
class Measured:
    """Sums over the rows of a task."""

    tally: Tally = field(default_factory=Tally)
    steps: int = 0

    def cost(self, step_cost: float) -> float:
        """Plain passes per output token."""
        return (self.tally.calls + GPU_SLOPE * self.tally.nodes + step_cost * self.steps) / self.tally.output_tokens


def measure(task: str, rows: Sequence[TokenRow], accuracy: float, nodes: int, step_cost: float) -> Measured:
    """Run copies, and a head of this accuracy if that is above 0, along the outputs of `rows`."""
    measured, learned = Measured(), Learned()
    learned.time.seconds = step_cost * PASS_SECONDS
    budget = Budget(nodes, [1.0 + GPU_SLOPE * count for count in range(nodes + 1)], PASS_SECONDS)
    for row in rows:
        head = OracleHead(row.output, accuracy, learned)
        predictors = [lambda head=head: head] if accuracy else []
        eos = frozenset({row.output[-1]})
        drafter = create(row_sources(task, row), eos, ngrams=row.ngrams, breaks=row.breaks, predictors=predictors)
        replay(drafter, row.output, budget, measured.tally)
        measured.steps += head.steps
    return measured


def figures(
    rows: Sequence[Transcript], tokenizer: Tokenizer, accuracies: Sequence[float], nodes: int, step_cost: float
) -> Iterator[dict[str, float | str]]:
    """Yield the figures of each task and accuracy; accuracy 0 is copies alone."""
    eos = end_token(tokenizer)
    for task in dict.fromkeys(row.task for row in rows):
        tokens = [tokenise(row, tokenizer, eos) for row in rows if row.task == task]
        alone = measure(task, tokens, 0.0, nodes, step_cost)
        for accuracy in (0.0, *accuracies):
            measured = measure(task, tokens, accuracy, nodes, step_cost) if accuracy else alone
            yield {
                "task": task,
                "accuracy": accuracy,
                "rows": len(tokens),
                "nodes": nodes,
                "tokens_per_pass": round(ratio(measured.tally.output_tokens, measured.tally.calls), 3),
                "steps_per_pass": round(ratio(measured.steps, measured.tally.calls), 3),
                "cost": round(ratio(measured.cost(step_cost), alone.cost(step_cost)), 3),
            }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay.oracle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("transcripts", nargs="+", help=".jsonl.gz files or folders of them")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json, gzip allowed")
    parser.add_argument(
        "--accuracy", default=".6,.7,.8", help="comma-separated, above 0, below 1 (default: %(default)s)"
    )
    parser.add_argument("--nodes", type=row_count, default=32, help="maximum draft nodes per pass (default: 32)")
    parser.add_argument("--rows", type=row_count, default=None, help="maximum number of rows per set (default: all)")
    parser.add_argument(
        "--step-cost", type=float, default=0.05, help="of a head's step, in plain passes (default: .05)"
    )
    parser.add_argument("--json", default=None, help="write the figures to this file")
    options = parser.parse_args(arguments)
    try:
        accuracies = [float(part) for part in options.accuracy.split(",")]
    except ValueError:
        accuracies = [0.0]
    if not all(0.0 < accuracy < 1.0 for accuracy in accuracies):
        parser.error(f"--accuracy: {options.accuracy!r} is no list of shares between 0 and 1, such as .6,.8")
    rows = choose_rows(read_transcripts(options.transcripts), options.rows)
    tokenizer = load_tokenizer(options.tokenizer)
    lines = []
    print(f"{'task':<18}{'accuracy':>9}{'rows':>6}{'tokens/pass':>13}{'steps/pass':>12}{'cost':>7}")
    for line in figures(rows, tokenizer, accuracies, options.nodes, options.step_cost):
        lines.append(line)
        print(
            f"{line['task']:<18}{line['accuracy']:>9}{line['rows']:>6}"
            f"{line['tokens_per_pass']:>13.2f}{line['steps_per_pass']:>12.2f}{line['cost']:>7.3f}",
            flush=True,
        )
    if options.json:
        write_json(options.json, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
