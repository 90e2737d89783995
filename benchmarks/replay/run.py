"""Replays drafters along recorded outputs of real models, without running a model.

python -m benchmarks.replay [--methods copyspec,hf-prompt-lookup] [--nodes 32]
                            [--mean-nodes 8] [--rows N] [--prompt-only] [--json FILE] [--html FILE] [--png FILE]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.replay import chart as replay_chart
from benchmarks.replay import html as replay_html
from benchmarks.replay import peers as replay_peers
from benchmarks.replay.figures import Figures
from benchmarks.replay.limits import within_mean
from benchmarks.replay.methods import NO_LIMIT, HfPromptLookup, Llma, LongestSuffix, PromptLookup, ShallowAggressive
from benchmarks.replay.terminal import terminal
from benchmarks.transcripts import (
    EDIT_TASKS,
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
from copyspec.sources import Source
from copyspec.tree import ROOT, DraftTree
from kit import places
from kit.reporting import command_line, quantile, ratio, write_json

Method = Callable[[str, TokenRow], Drafter]
"""Makes the drafter of one row from its task and tokens."""


def copyspec_drafter(task: str, row: TokenRow) -> Drafter:
    """Make the drafter that `copyspec.generate` uses by default. See `row_sources`."""
    return create(row_sources(task, row), frozenset({row.output[-1]}), ngrams=row.ngrams, breaks=row.breaks)


def row_sources(task: str, row: TokenRow) -> list[Source]:
    """Return the row's sources. As in an editing pipeline, the first reference of an editing task is the text being
    edited."""
    sources = [
        Source(tokens, "edit" if index == 0 and task in EDIT_TASKS else "reference")
        for index, tokens in enumerate(row.references)
    ]
    if not sources:
        sources += row.blocks
    return [*sources, Source(row.prompt, "prompt")]


METHODS: dict[str, Method] = {
    "copyspec": copyspec_drafter,
    "copies": lambda task, row: create(row_sources(task, row), frozenset({row.output[-1]})),
    "hf-prompt-lookup": lambda _, row: HfPromptLookup(row.prompt, row.references, row.output[-1]),
    "prompt-lookup": lambda _, row: PromptLookup(row.prompt, row.references, row.output[-1]),
    "longest-suffix": lambda _, row: LongestSuffix(row.prompt, row.references, row.output[-1]),
    "sad": lambda _, row: ShallowAggressive(row.prompt, row.references, row.output[-1]),
    "llma": lambda _, row: Llma(row.prompt, row.references, row.output[-1]),
}


def ngram_drafter(largest: int, _: str, row: TokenRow) -> Drafter:
    return PromptLookup(row.prompt, row.references, row.output[-1], largest, NO_LIMIT)


NGRAMS: dict[str, Method] = {f"ngram-{n}": partial(ngram_drafter, n) for n in range(1, 6)}
"""N-gram lookup as in serving engines: the first occurrence of the longest match of at most n tokens."""

PEERS: dict[str, Method] = {
    "arctic": lambda _, row: replay_peers.Arctic(row.prompt, row.references, row.output[-1]),
    "sglang": lambda _, row: replay_peers.SGLang(row.prompt, row.references, row.output[-1]),
}
"""Methods that need other projects' compiled code and therefore run only on request."""


@dataclass(slots=True)
class Tally:
    """Counts of one method on one set."""

    rows: int = 0
    output_tokens: int = 0
    calls: int = 0
    nodes: int = 0
    microseconds: list[float] = field(default_factory=list)  # per call, propose and accept together


def accepted_path(tree: DraftTree, output: Sequence[int], start: int) -> int:
    """Length of the longest path in `tree` that equals output[start:] as far as it goes."""
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


def replay(
    drafter: Drafter,
    output: Sequence[int],
    budget: Budget,
    tally: Tally,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Run `drafter` along `output`: each call accepts the longest matching path and one token of the target's own."""
    at = 0
    tally.rows += 1
    tally.output_tokens += len(output)
    while at < len(output):
        started = clock()
        tree = drafter.propose(budget)
        proposed = clock()
        joined = output[at : at + accepted_path(tree, output, at) + 1]
        accepting = clock()
        drafter.accept(joined)
        ended = clock()
        at += len(joined)
        tally.calls += 1
        tally.nodes += len(tree)
        tally.microseconds.append((proposed - started + ended - accepting) * 1e6)


def replay_all(method: Method, task: str, rows: Sequence[TokenRow], budget: Budget) -> Tally:
    """Run one method along the outputs of `rows`."""
    tally = Tally()
    for row in rows:
        replay(method(task, row), row.output, budget, tally)
    return tally


def run(
    rows: Sequence[Transcript],
    tokenizer: Tokenizer,
    methods: Sequence[str],
    nodes: Iterable[int],
    mean_nodes: float | None = None,
    progress: Callable[[int], None] = lambda done: None,
    *,
    chain: bool = False,
) -> list[Figures]:
    """Measure the figures of each node limit, task, set, model and method.

    `mean_nodes`: maximum average of nodes per call, for each method on each set. `progress` is called with the
    number of rows done. `chain`: draft chains instead of trees.
    """
    limits, eos = list(nodes), end_token(tokenizer)
    sets: dict[tuple[str, str, str], list[Transcript]] = {}
    for row in rows:
        sets.setdefault(row.key, []).append(row)
    figures, done = [], 0
    for key, members in sets.items():
        progress(done)
        tokens = [tokenise(row, tokenizer, eos) for row in members]
        for most in limits:
            for name in methods:
                measure = partial(replay_all, (METHODS | NGRAMS | PEERS)[name], key[0], tokens)
                tally = within_mean(measure, mean_nodes, most) if mean_nodes else measure(Budget(most, chain=chain))
                figures.append(_figures((*key, name, most), tally, mean_nodes))
        done += len(members)
    progress(done)
    return sorted(figures, key=lambda line: limits.index(line.nodes))


def _figures(key: tuple[str, str, str, str, int], tally: Tally, mean_nodes: float | None) -> Figures:
    return Figures(
        *key,
        rows=tally.rows,
        output_tokens=tally.output_tokens,
        calls=tally.calls,
        tokens_per_call=round(ratio(tally.output_tokens, tally.calls), 4),
        nodes_per_call=round(ratio(tally.nodes, tally.calls), 3),
        draft_us_p50=round(quantile(tally.microseconds, 0.5), 1),
        draft_us_p99=round(quantile(tally.microseconds, 0.99), 1),
        mean_nodes=mean_nodes,
    )


def show_progress(total: int) -> Callable[[int], None]:
    """Return a function that shows the number of rows done on a terminal's stderr, and does nothing elsewhere."""

    def progress(done: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done}/{total} rows", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return progress


def node_counts(text: str) -> list[int]:
    """Parse `--nodes`: comma-separated integers above 0."""
    try:
        counts = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of nodes: give 1 or more, or several: 16,32,64")
    return counts


def positive(text: str) -> float:
    """Parse `--mean-nodes`."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 1.0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no mean of nodes: give a number of 1 or more")
    return number


def row_count(text: str) -> int:
    """Parse `--rows`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows: give 1 or more, or leave it out for all")
    return int(text)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    parser.add_argument(
        "--methods",
        default=",".join(METHODS),
        help=(
            "comma-separated methods (default: %(default)s); also ngram-1 to ngram-5 and, where installed, "
            "arctic and sglang"
        ),
    )
    parser.add_argument("--nodes", type=node_counts, default=[32], help="maximum draft nodes per call (default: 32)")
    parser.add_argument("--mean-nodes", type=positive, default=None, help="maximum average of draft nodes per call")
    parser.add_argument(
        "--prompt-only", action="store_true", help="give drafters only the prompt, without the rows' references"
    )
    parser.add_argument(
        "--chain",
        action="store_true",
        help="draft chains of up to --nodes tokens, as on targets that cannot verify trees",
    )
    parser.add_argument("--rows", type=row_count, default=None, help="maximum number of rows per set (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed for choosing the rows")
    parser.add_argument("--json", default=None, help="write the figures to this file")
    parser.add_argument("--html", default=None, help="write an HTML page with chart and tables to this file")
    parser.add_argument("--png", default=None, help="draw the chart to this file (needs matplotlib)")
    options = parser.parse_args(arguments)
    methods = options.methods.split(",")
    unknown = [method for method in methods if method not in METHODS | NGRAMS | PEERS]
    if unknown:
        parser.error(f"--methods: no method {unknown[0]!r}; there are {', '.join(METHODS | NGRAMS | PEERS)}")
    for method, module in (("arctic", replay_peers.ARCTIC), ("sglang", replay_peers.SGLANG)):
        if method in methods:
            try:
                replay_peers.need(module)
            except ImportError as error:
                parser.error(f"--methods: {method} {error}")
    for name in ("json", "html", "png"):  # fail before minutes of work, not after
        file = getattr(options, name)
        if file and not Path(file).parent.is_dir():
            parser.error(f"--{name}: there is no folder for {file!r}: make it first")
    if options.png:
        try:
            replay_chart.need_matplotlib()
        except ImportError as error:
            parser.error(f"--png: {error}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    methods = list(dict.fromkeys(options.methods.split(",")))
    try:
        rows = choose_rows(read_transcripts(options.transcripts), options.rows, options.seed)
        if options.prompt_only:
            rows = [replace(row, references=()) for row in rows]
        tokenizer = load_tokenizer(options.tokenizer)
    except ValueError as error:
        print(f"benchmarks.replay: {error}", file=sys.stderr)
        return 2
    figures = run(
        rows, tokenizer, methods, options.nodes, options.mean_nodes, show_progress(len(rows)), chain=options.chain
    )
    print(terminal(figures))
    if options.json:
        write_json(options.json, [asdict(line) for line in figures])
    command = command_line("benchmarks.replay", arguments)
    if options.html:
        Path(options.html).write_text(replay_html.page(figures, command), encoding="utf-8")
    if options.png:
        replay_chart.png(replay_chart.Chart.of(figures), options.png)
    return 0
