"""Measures peers' own drafting code beside copyspec's, on recorded outputs of real models.

    python -m benchmarks.copybench --build-peers build/peers
    python -m benchmarks.copybench [TRANSCRIPTS... --tokenizer FILE] --json FILE --png FILE
    python -m benchmarks.copybench --report FILE

Every method sees the prompt and the output so far, and drafts at most so many nodes a call (`--nodes`); a peer that
drafts no trees drafts a chain of as many tokens. Settings are chosen for each method and budget on rows of the even
groups, and figures are those of rows of the odd ones. copyspec has no settings; its constants were fitted on even
groups, too. Counts are the same on every machine; times and memory are not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.copybench import build, checks, report
from benchmarks.copybench.drafters import use
from benchmarks.copybench.peers import NOT_RUN, OURS, PEERS, TOLD, Peer
from benchmarks.replay.chart import need_matplotlib
from benchmarks.replay.figures import Figures
from benchmarks.replay.run import Tally, copyspec_drafter, node_counts, replay, row_count
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
from kit import places
from kit.reporting import command_line, quantile, ratio, resident, surroundings, write_json

ROOT = Path(__file__).parents[2]
Key = tuple[str, str, str]
Sets = Mapping[Key, Sequence[TokenRow]]

MEMORY_ROWS = 20
"""Rows, the longest ones, whose drafters are held at the same time to measure their memory."""


def token_sets(rows: Sequence[Transcript], tokenizer: Any) -> dict[Key, list[TokenRow]]:
    """Tokenise rows, by task, set and model."""
    eos, sets = end_token(tokenizer), dict[Key, list[TokenRow]]()
    for row in rows:
        sets.setdefault(row.key, []).append(tokenise(row, tokenizer, eos))
    return sets


def tally(peer: Peer, folder: Path, rows: Sequence[TokenRow], nodes: int, setting: Mapping[str, Any]) -> Tally:
    """Run one method along the outputs of some rows."""
    counts = Tally()
    for row in rows:
        replay(peer.make(folder, row, nodes, **setting), row.output, Budget(nodes, chain=not peer.trees), counts)
    return counts


def search(peer: Peer, folder: Path, sets: Sets, nodes: int) -> list[tuple[float, dict[str, Any]]]:
    """Return the geometric mean over the sets of tokens per call for every setting, the best first."""
    scored = []
    for setting in peer.settings():
        tallies = [tally(peer, folder, rows, nodes, setting) for rows in sets.values()]
        scored.append((exp(mean(log(counts.output_tokens / counts.calls) for counts in tallies)), setting))
    return sorted(scored, key=lambda pair: -pair[0])


def memory(peer: Peer, folder: Path, rows: Sequence[TokenRow], nodes: int, setting: Mapping[str, Any]) -> float:
    """Kilobytes that the drafter of one row holds at the end of its output, without what all rows share: the mean of
    long rows that are held together. For a process of its own, since memory that others freed would be reused."""
    use(folder)
    tally(peer, folder, rows[:1], nodes, setting)
    before, drafters = resident(), []
    for row in rows:
        drafters.append(peer.make(folder, row, nodes, **setting))
        replay(drafters[-1], row.output, Budget(nodes, chain=not peer.trees), Tally())
    return (resident() - before) / len(drafters) / 1024


def figures(name: str, key: Key, nodes: int, counts: Tally) -> Figures:
    return Figures(
        *key,
        method=name,
        nodes=nodes,
        rows=counts.rows,
        output_tokens=counts.output_tokens,
        calls=counts.calls,
        tokens_per_call=round(ratio(counts.output_tokens, counts.calls), 4),
        nodes_per_call=round(ratio(counts.nodes, counts.calls), 3),
        draft_us_p50=round(quantile(counts.microseconds, 0.5), 1),
        draft_us_p99=round(quantile(counts.microseconds, 0.99), 1),
    )


def apart(function: Callable[..., float], *args: object) -> float:
    """Call `function` in a new process."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def told(key: Key, folder: Path, row: TokenRow, nodes: int) -> Any:
    return copyspec_drafter(key[0], row)


def reason_missing(peer: Peer, folder: Path, row: TokenRow, nodes: int) -> str:
    """Why a peer cannot draft here; "" if it can."""
    try:
        setting = peer.settings()[-1]
        peer.make(folder, row, nodes, **setting).propose(Budget(nodes, chain=not peer.trees))
    except (ImportError, OSError) as error:
        return f"not there: {error}"
    return ""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Search the settings, measure all methods, check them, and return the report."""
    folder, tokenizer = options.peers, load_tokenizer(options.tokenizer)
    rows = read_transcripts(options.transcripts)
    halves = [[row for row in rows if int(row.group, 16) % 2 == half] for half in (0, 1)]
    chosen = [replace(row, references=()) for row in choose_rows(halves[0], options.search_rows)]
    fitted = token_sets(chosen, tokenizer)
    measured = choose_rows(halves[1], options.rows)
    sets = token_sets([replace(row, references=()) for row in measured], tokenizer)
    full = token_sets(measured, tokenizer)
    longest = sorted((row for rows in sets.values() for row in rows), key=lambda row: -len(row.prompt))[:MEMORY_ROWS]
    use(folder)
    lines: list[Figures] = []
    described: dict[str, dict[str, Any]] = {}
    missing = {name: reason_missing(peer, folder, longest[-1], options.nodes[0]) for name, peer in PEERS.items()}
    missing = {name: why for name, why in missing.items() if why}
    for name, peer in {**OURS, **PEERS}.items():
        if name in missing:
            continue
        described[name] = {"code": peer.code, "trees": peer.trees, "shipped": peer.shipped, "best": {}, "tried": {}}
        for nodes in options.nodes:
            tried = search(peer, folder, fitted, nodes) if peer.grid else [(0.0, dict(peer.shipped))]
            best = tried[0][1]
            described[name]["best"][nodes], described[name]["tried"][nodes] = best, tried
            lines_of_sets = [
                figures(name, key, nodes, tally(peer, folder, token_rows, nodes, best))
                for key, token_rows in sets.items()
            ]
            lines += lines_of_sets
            print(f"{name}, {nodes} nodes, {best}: {report.overall(lines_of_sets):.3f}", file=sys.stderr, flush=True)
        best = described[name]["best"][options.nodes[-1]]
        described[name]["kilobytes"] = round(apart(memory, peer, folder, longest, options.nodes[-1], best), 1)
        described[name]["check"] = checks.check(name, peer, folder, sets, best, options.nodes[-1])
    for nodes in options.nodes:
        for key, token_rows in full.items():
            peer = Peer("copyspec", partial(told, key), trees=True)
            lines.append(figures(TOLD, key, nodes, tally(peer, folder, token_rows, nodes, {})))
    return {
        "command": command_line("benchmarks.copybench"),
        **surroundings("cpu"),
        "versions_of_peers": build.versions(),
        "methods": described,
        "not_run": {**NOT_RUN, **missing},
        "memory_of": {"rows": len(longest), "tokens": round(mean(len(row.prompt) for row in longest))},
        "figures": [asdict(line) for line in lines],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.copybench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    parser.add_argument(
        "--peers",
        type=Path,
        default=ROOT / "build" / "peers",
        help="folder that --build-peers filled (default: build/peers); peers that are not there are left out, and said",
    )
    parser.add_argument("--build-peers", type=Path, metavar="FOLDER", help="fetch and compile the peers' code, and end")
    parser.add_argument("--nodes", type=node_counts, default=[8, 32], help="most draft nodes of a call: 8,32")
    parser.add_argument("--rows", type=row_count, default=100, help="rows of each set that are measured (default: 100)")
    parser.add_argument("--search-rows", type=row_count, default=12, help="rows of each set to choose settings on")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--png", type=Path, help="draw the chart to this file")
    parser.add_argument("--report", type=Path, help="print the tables of this report instead of measuring")
    options = parser.parse_args(arguments)
    if options.build_peers:
        return build.build(options.build_peers)
    if options.png:
        need_matplotlib()
    if options.report:
        result = json.loads(options.report.read_text(encoding="utf-8"))
    else:
        places.say_sample(options.transcripts)
        try:
            result = measure(options)
        except (ValueError, ImportError, OSError) as error:
            parser.error(str(error))
    if options.json and not options.report:
        write_json(options.json, result)
    print(report.tables(result))
    if options.png:
        report.draw(result, options.png)
    return 0
