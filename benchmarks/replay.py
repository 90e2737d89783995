"""Replay: drafts alone, on recorded outputs of real models. No model runs.

python -m benchmarks.replay TRANSCRIPTS... --tokenizer FILE [--methods copyspec,prompt-lookup] [--nodes 32]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from tokenizers import Tokenizer

from benchmarks.replay_methods import Llma, LongestSuffix, PromptLookup, ShallowAggressive
from benchmarks.transcripts import (
    EDIT_TASKS,
    TokenRow,
    Transcript,
    choose_rows,
    end_token,
    load_tokenizer,
    quantile,
    ratio,
    read_transcripts,
    tokenise,
    write_json,
)
from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.base import Drafter
from copyspec.sources import Source
from copyspec.tree import ROOT, DraftTree

BASELINE = "prompt-lookup"
Method = Callable[[str, TokenRow], Drafter]
"""Makes the drafter of one row from its task and tokens."""


def copyspec_drafter(task: str, row: TokenRow) -> Drafter:
    """What an editing pipeline would say: the first reference of an editing task is the text being edited."""
    sources = [
        Source(tokens, "edit" if index == 0 and task in EDIT_TASKS else "reference")
        for index, tokens in enumerate(row.references)
    ]
    return create([*sources, Source(row.prompt, "prompt")], frozenset({row.output[-1]}))


METHODS: dict[str, Method] = {
    "copyspec": copyspec_drafter,
    "prompt-lookup": lambda _, row: PromptLookup(row.prompt, row.references, row.output[-1]),
    "longest-suffix": lambda _, row: LongestSuffix(row.prompt, row.references, row.output[-1]),
    "sad": lambda _, row: ShallowAggressive(row.prompt, row.references, row.output[-1]),
    "llma": lambda _, row: Llma(row.prompt, row.references, row.output[-1]),
}


@dataclass(slots=True)
class Tally:
    """Counts of one method on one set."""

    rows: int = 0
    output_tokens: int = 0
    calls: int = 0
    nodes: int = 0
    microseconds: list[float] = field(default_factory=list)  # [calls], propose and accept together


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the JSON."""

    task: str
    set: str
    model: str
    method: str
    nodes: int
    rows: int
    output_tokens: int
    calls: int
    tokens_per_call: float
    nodes_per_call: float
    draft_us_p50: float
    draft_us_p99: float


def accepted_path(tree: DraftTree, output: Sequence[int], start: int) -> int:
    """How many of output[start:] the longest path of `tree` that equals them holds."""
    children = {
        (parent, token): node for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    node, length = ROOT, 0
    while start + length < len(output):
        child = children.get((node, output[start + length]))
        if child is None:
            break
        node, length = child, length + 1
    return length


def replay(drafter: Drafter, output: Sequence[int], budget: Budget, tally: Tally) -> None:
    """Runs `drafter` along `output`: accept the longest path that equals it, then one token of the target's own."""
    at = 0
    tally.rows += 1
    tally.output_tokens += len(output)
    while at < len(output):
        started = time.perf_counter()
        tree = drafter.propose(budget)
        proposed = time.perf_counter()
        joined = output[at : at + accepted_path(tree, output, at) + 1]
        told = time.perf_counter()
        drafter.accept(joined)
        ended = time.perf_counter()
        at += len(joined)
        tally.calls += 1
        tally.nodes += len(tree)
        tally.microseconds.append((proposed - started + ended - told) * 1e6)


def run(rows: Iterable[Transcript], tokenizer: Tokenizer, methods: Sequence[str], nodes: int) -> list[Figures]:
    """Figures by task, set, model and method."""
    budget, eos = Budget(nodes), end_token(tokenizer)
    tallies: dict[tuple[str, str, str, str], Tally] = {}
    for row in rows:
        tokens = tokenise(row, tokenizer, eos)
        for method in methods:
            drafter = METHODS[method](row.task, tokens)
            replay(drafter, tokens.output, budget, tallies.setdefault((*row.key, method), Tally()))
    return [
        Figures(
            *key,
            nodes=nodes,
            rows=tally.rows,
            output_tokens=tally.output_tokens,
            calls=tally.calls,
            tokens_per_call=round(ratio(tally.output_tokens, tally.calls), 4),
            nodes_per_call=round(ratio(tally.nodes, tally.calls), 3),
            draft_us_p50=round(quantile(tally.microseconds, 0.5), 1),
            draft_us_p99=round(quantile(tally.microseconds, 0.99), 1),
        )
        for key, tally in tallies.items()
    ]


def table(figures: Sequence[Figures], methods: Sequence[str]) -> str:
    """Tokens per call by set, ratios to prompt lookup in brackets, then the median ratio of each task's sets."""
    by_key: dict[tuple[str, str, str], dict[str, Figures]] = {}
    for line in figures:
        by_key.setdefault((line.task, line.set, line.model), {})[line.method] = line
    head = f"{'task / set / model':<62}{'rows':>5} " + "".join(f"{method:>18}" for method in methods)
    lines, ratios = [head], dict[tuple[str, str], list[float]]()
    for key, found in by_key.items():
        cells = ""
        for method in methods:
            share = ratio(found[method].tokens_per_call, found[BASELINE].tokens_per_call) if BASELINE in found else 0.0
            ratios.setdefault((key[0], method), []).append(share)
            cells += f"{found[method].tokens_per_call:>11.2f} ({share:.2f})"
        lines.append(f"{' / '.join(key)[:61]:<62}{found[methods[0]].rows:>5} {cells}")
    lines.append("median over the sets of a task of the ratio to prompt-lookup")
    for task in dict.fromkeys(key[0] for key in by_key):
        cells = "".join(f"{statistics.median(ratios[task, method]):>18.2f}" for method in methods)
        lines.append(f"{task:<62}{'':>5} {cells}")
    for method in methods:
        p50 = statistics.median(line.draft_us_p50 for line in figures if line.method == method)
        lines.append(f"draft_us p50, median over sets, {method}: {p50:.0f}")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("transcripts", nargs="+", help=".jsonl.gz files or folders of them")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json, gzip allowed")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated, of: %(default)s")
    parser.add_argument("--nodes", type=int, default=32, help="draft nodes a call, at most")
    parser.add_argument("--rows", type=int, default=None, help="rows of each set, at most (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of rows")
    parser.add_argument("--json", default=None, help="where to write the figures")
    options = parser.parse_args(arguments)
    unknown = [method for method in options.methods.split(",") if method not in METHODS]
    if unknown:
        parser.error(f"--methods: no method {unknown[0]!r}; there are {', '.join(METHODS)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    methods = options.methods.split(",")
    try:
        rows = choose_rows(read_transcripts(options.transcripts), options.rows, options.seed)
        tokenizer = load_tokenizer(options.tokenizer)
    except ValueError as error:
        print(f"benchmarks.replay: {error}", file=sys.stderr)
        return 2
    figures = run(rows, tokenizer, methods, options.nodes)
    print(table(figures, methods))
    if options.json:
        write_json(options.json, [asdict(line) for line in figures])
    return 0


if __name__ == "__main__":
    sys.exit(main())
