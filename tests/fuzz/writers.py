"""Tests killed writers, and concurrent writers and readers.

python -m tests.fuzz.writers --kills 200 --seconds 60 --json OUT

Kills: each writer (indexes of every kind, corpora, journals, the output cache, files corrected in place) runs in a
process that is killed with SIGKILL at a random moment. What it leaves must be readable, in its old or its new state,
and the next writer continues from it. Concurrency: three processes add to one corpus, four read it and one lists it. In
the end every reported addition must be there, and every read must have seen a complete state, with at least as many
passages as the read before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from copyspec.retrievers import Corpora, IndexFileError, Passage, load_corpus, load_passages, load_retriever
from kit.reporting import command_line, machine, write_json
from tests.fuzz.bases import encode
from tests.fuzz.writers_kinds import BATCH, KINDS, NAME, Writer, items

WRITERS, READERS = 3, 4
LARGEST = 30 * BATCH  # a writer starts over beyond this size, so that writes keep taking about the same time


def killed(writer: Writer, before: int, after_seconds: float | None) -> tuple[str, float]:
    """Start a write in a process and kill it after so many seconds; return the outcome and the time it took.

    The outcome is "done" if the write had ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.write(writing, b".")
            writer.write(before)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    started = time.perf_counter()
    if after_seconds is not None:
        time.sleep(after_seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    seconds = time.perf_counter() - started
    if os.WIFSIGNALED(status):
        return "killed", seconds
    return ("done" if os.WEXITSTATUS(status) == 0 else "failed"), seconds


def kills(count: int, seed: int, kinds: Sequence[str] = KINDS) -> dict[str, object]:
    """Kill `count` writers at random moments, and check what they leave."""
    rng, outcomes, broken = random.Random(seed), Counter[str](), list[str]()
    states: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="writers-") as place:
        for turn, kind in enumerate(kinds):
            mine = count // len(kinds) + (turn < count % len(kinds))
            writer, number, state = Writer(kind, Path(place, kind)), 0, 0
            writer.begin()
            times = list[float]()
            ended = 0
            while ended < mine:
                if state >= (BATCH if kind == "file" else LARGEST):
                    number, state = number + 1, 0
                    writer = Writer(kind, Path(place, f"{kind}-{number}"))
                    writer.begin()
                if not times:  # one write is not killed, to measure how long it takes
                    probe = Writer(kind, Path(place, f"{kind}-probe"))
                    probe.begin()
                    times += [killed(probe, 0, None)[1], killed(probe, 0 if kind == "file" else BATCH, None)[1]]
                outcome, seconds = killed(writer, state, rng.random() * statistics.median(times[-9:]))
                outcomes[outcome] += 1
                ended += outcome == "killed" or outcome == "failed"
                if outcome == "done":
                    times.append(seconds)
                try:
                    assert outcome != "failed", "the writer raised"
                    total = writer.state()
                    allowed = range(state, state + BATCH + 1) if kind == "journal" else (state, state + BATCH)
                    assert total in allowed, f"{total} of {state} and {BATCH} more"
                    assert outcome != "done" or total == state + BATCH, f"{total} after a write that ended"
                    states["new" if total > state else "old"] += 1
                    state = total
                except Exception as error:
                    broken.append(f"{kind}, {outcome}: {error!r}")
                    print(broken[-1], file=sys.stderr, flush=True)
                    state = LARGEST
            if state < LARGEST and kind != "file":  # the next writer removes what killed ones left
                writer.write(state)
                if left := writer.leftovers():
                    broken.append(f"{kind} leaves {left}")
    return {"kills": count, "seed": seed, **outcomes, **states, "broken": len(broken), "what": broken}


def _process(work: Callable[[], dict[str, object]]) -> tuple[int, int]:
    """Run `work` in a process; return its id, and the descriptor from which its report is read."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        os.close(reading)
        try:
            said = work()
        except BaseException:
            said = {"error": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(said, pipe)
    finally:
        os._exit(0)


def _adding(corpora: Corpora, kind: str, who: int, until: float) -> dict[str, object]:
    added, locked, failed, number = list[str](), 0, list[str](), 0
    while time.monotonic() < until:
        number += 1
        (passage,) = items([who * 1_000_000 + number])
        try:
            _add(corpora, kind, [passage])
            added.append(passage.text)
        except BlockingIOError:
            locked += 1
        except Exception:
            failed.append(traceback.format_exc(limit=-5))
        time.sleep(0.02)
    return {"added": added, "locked": locked, "failed": failed}


def _add(corpora: Corpora, kind: str, passages: Sequence[Passage]) -> None:
    if kind == "bm25":
        corpora.add_bm25(NAME, passages)
    else:
        corpora.add_dense(NAME, passages, encode)


def _reading(corpora: Corpora, who: int, until: float, removed: bool) -> dict[str, object]:
    reads, gone, failed, most = 0, 0, list[str](), 0
    while time.monotonic() < until:
        try:
            reads += 1
            if who == 0:
                corpora.all()
                continue
            if who == 1:
                retriever = load_retriever(corpora.path(NAME), encode=encode)
                passages = load_passages(corpora.path(NAME), retriever.texts)
            else:
                retriever, passages = load_corpus(corpora.path(NAME), encode=encode)
            assert [passage.text for passage in passages] == list(retriever.texts)
            for passage in passages:
                assert items([passage.start // 10]) == [passage], passage
            assert removed or len(passages) >= most, f"{len(passages)} passages after {most}"
            assert retriever.search(passages[-1].text, 1)
            most = len(passages)
        except IndexFileError as error:
            if removed and ("there is no index" in str(error) or "are not the first of them" in str(error)):
                gone += 1
            else:
                failed.append(traceback.format_exc(limit=-5))
        except Exception:
            failed.append(traceback.format_exc(limit=-5))
    return {"reads": reads, "gone": gone, "failed": failed}


def _removing(corpora: Corpora, until: float) -> dict[str, object]:
    removed, locked, failed = 0, 0, list[str]()
    while time.monotonic() < until:
        time.sleep(0.3)
        try:
            corpora.remove(NAME)
            removed += 1
        except BlockingIOError:
            locked += 1
        except ValueError as error:
            if "there is no corpus" not in str(error):
                failed.append(traceback.format_exc(limit=-5))
        except Exception:
            failed.append(traceback.format_exc(limit=-5))
    return {"removed": removed, "locked": locked, "failed": failed}


def at_once(seconds: float, kind: str, *, removing: bool = False) -> dict[str, object]:
    """Run three writers and four readers on one corpus, and one process that keeps removing it if `removing` is set."""
    with tempfile.TemporaryDirectory(prefix="writers-") as place:
        corpora = Corpora(place)
        _add(corpora, kind, items([0]))
        until = time.monotonic() + seconds
        works: list[Callable[[], dict[str, object]]] = [
            partial(_adding, corpora, kind, who, until) for who in range(1, WRITERS + 1)
        ]
        works += [partial(_reading, corpora, who, until, removing) for who in range(READERS)]
        works += [lambda: _removing(corpora, until)] if removing else []
        reports = []
        for child, pipe in [_process(work) for work in works]:
            with os.fdopen(pipe) as file:
                reports.append(json.load(file))
            os.waitpid(child, 0)
        failed = [failure for report in reports for failure in report.get("failed", [report.get("error")])]
        lost = 0
        if not removing:
            texts = [passage.text for passage in load_corpus(corpora.path(NAME), encode=encode)[1]]
            added = [text for report in reports for text in report.get("added", ())]
            lost = len(set(added) - set(texts)) + len(texts) - len(set(texts))
        for failure in failed[:5]:
            print(failure, file=sys.stderr, flush=True)
        figures = {name: sum(report.get(name, 0) for report in reports) for name in ("reads", "gone", "locked")}
        figures["added"] = sum(len(report.get("added", ())) for report in reports)
        return {"kind": kind, "seconds": seconds, "removing": removing, **figures, "lost": lost, "failed": len(failed)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="duration of the test with concurrent writers and readers"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write the report to this file")
    options = parser.parse_args(arguments)
    command = command_line("tests.fuzz.writers", arguments)
    report: dict[str, object] = {"command": command, "machine": machine()}
    report["kills"] = ended = kills(options.kills, options.seed)
    print(f"kills: {json.dumps(ended)}", flush=True)
    together = [at_once(options.seconds, "bm25"), at_once(options.seconds / 2, "exact")]
    together.append(at_once(options.seconds / 2, "bm25", removing=True))
    report["at once"] = together
    for figures in together:
        print(f"at once: {json.dumps(figures)}", flush=True)
    if options.json:
        write_json(options.json, report)
    return int(bool(ended["broken"]) or any(figures["lost"] or figures["failed"] for figures in together))


if __name__ == "__main__":
    sys.exit(main())
