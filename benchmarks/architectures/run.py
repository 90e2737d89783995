"""Compares every architecture of transformers with its own `generate`, token for token.

    python -m benchmarks.architectures --json benchmarks/results/architectures.json --jobs 2
    python -m benchmarks.architectures --only gpt_neo moshi

For every causal and encoder-decoder type of the installed transformers a tiny model with random weights is built from
its configuration, with windows of 8 and of 24 tokens if it has any. Ragged batches whose rows join and leave, with
right, wrong and partly right drafts, are compared with `generate` for each prompt. Outcomes:

    trees, chains   drafts are verified, and every output is equal
    plain           refused with a reason; decoded without drafts on request, and every output is equal
    refused         refused with a reason, without drafts too
    no text         `generate` itself does not accept a prompt of tokens alone
    not built       no tiny model could be built
    wrong           an output differs

Types already in the file named by `--json` are skipped, so that a run can be resumed.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic

import torch
import transformers

from benchmarks.architectures import check as checking
from copyspec.targets import wrap
from copyspec.targets.base import Target, UnsupportedModelError
from copyspec.targets.selftest.shrinking import windows
from kit.architectures import model_types, tiny
from kit.reporting import resumed, write_json

WINDOWS = (8, 24)
VERSIONS = {"transformers": transformers.__version__, "torch": torch.__version__}
TRIAL_TIMEOUT = 900.0
"""Time limit per type, in seconds."""


@dataclass(slots=True)
class Finding:
    type: str
    outcome: str
    model: str = ""
    windows: tuple[int, ...] = ()
    outputs: int = 0  # number of outputs compared
    ties: int = 0
    reason: str = ""


def examine(model_type: str) -> Finding:
    """Test a type with every window, and return the worst finding."""
    findings: list[Finding] = []
    for window in WINDOWS:
        finding = _examine(model_type, window)
        findings.append(finding)
        if finding.outcome == "not built" or not finding.windows:
            break
    worst = max(findings, key=lambda finding: _ORDER.index(finding.outcome))
    worst.windows = tuple(window for finding in findings for window in finding.windows)
    worst.outputs, worst.ties = sum(finding.outputs for finding in findings), sum(finding.ties for finding in findings)
    return worst


_ORDER = ("trees", "chains", "plain", "refused", "no text", "not built", "wrong")


def _examine(model_type: str, window: int) -> Finding:
    try:
        model = tiny(model_type, window)
    except Exception as error:
        return Finding(model_type, "not built", reason=_error_text(error))
    used = (window,) if windows(model.config) else ()
    finding = Finding(model_type, "trees", type(model).__name__, used)
    try:
        vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
        cases = checking.cases(model, vocab_size)
    except Exception as error:
        finding.outcome, finding.reason = "no text", _error_text(error)
        return finding
    try:
        target = wrap(model)
    except UnsupportedModelError as error:
        finding.reason = _error_text(error)
        try:
            target = wrap(model, on_unsupported="plain")
        except UnsupportedModelError as without:
            finding.outcome, finding.reason = "refused", _error_text(without)
            return finding
    finding.outcome = _kind(target)
    try:
        differences = list(checking.differences(model, target, cases))
    except Exception as error:
        finding.outcome, finding.reason = "wrong", _error_text(error)
        return finding
    finding.outputs, finding.ties = len(differences), differences.count("tie")
    wrong = [difference for difference in differences if difference not in (None, "tie")]
    if wrong:
        finding.outcome, finding.reason = "wrong", f"{_kind(target)}: {len(wrong)} outputs, {wrong[0]}"
    return finding


def _kind(target: Target) -> str:
    return "trees" if target.supports_trees else "chains" if target.supports_drafts else "plain"


def _error_text(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def _work(model_type: str, answer: Connection) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    try:
        finding = examine(model_type)
    except BaseException as error:
        finding = Finding(model_type, "wrong", reason=f"{type(error).__name__}: {error}"[:400])
    answer.send(asdict(finding))


def run(types: Sequence[str], jobs: int) -> Iterator[Finding]:
    """Run each type in a process of its own, `jobs` at a time, so that a crash or a hang affects only that type."""
    waiting = list(types)
    running: dict[Connection, tuple[str, BaseProcess, float]] = {}
    context = multiprocessing.get_context("fork")
    while waiting or running:
        while waiting and len(running) < jobs:
            ours, theirs = context.Pipe(duplex=False)
            started = context.Process(target=_work, args=(waiting[0], theirs))
            started.start()
            theirs.close()
            running[ours] = waiting.pop(0), started, monotonic()
        ready = wait(list(running), timeout=1.0)
        for pipe in [pipe for pipe in running if pipe in ready]:
            model_type, process, _ = running.pop(pipe)
            try:
                finding = Finding(**pipe.recv())
            except EOFError:
                finding = Finding(model_type, "wrong", reason="the process died")
            process.join()
            yield finding
        for pipe, (model_type, process, since) in list(running.items()):
            if monotonic() - since > TRIAL_TIMEOUT:
                process.kill()
                del running[pipe]
                yield Finding(model_type, "wrong", reason=f"not done after {TRIAL_TIMEOUT:.0f} seconds")


def table(findings: Sequence[Finding]) -> dict[str, object]:
    """Build the report that `--json` writes."""
    counts = Counter(finding.outcome for finding in findings)
    return {
        **VERSIONS,
        "counts": {outcome: counts[outcome] for outcome in _ORDER},
        "types": [asdict(finding) for finding in sorted(findings, key=lambda finding: finding.type)],
    }


_MEANING = {
    "trees": "Drafts verified as trees, in batches; outputs equal",
    "chains": "Drafts verified as chains, row by row; outputs equal",
    "plain": 'Refused with a reason; `on_unsupported="plain"` decodes without drafts; outputs equal',
    "refused": "Refused with a reason, without drafts too",
    "no text": "Not tested: `generate` needs more than a prompt of tokens (images, sounds, codebooks), or other sizes",
    "not built": "Not tested: no tiny model could be built from the type's configuration",
    "wrong": "An output differs",
}


def markdown(findings: Sequence[Finding]) -> str:
    """Format the page docs/architectures.md."""
    outputs, ties = sum(finding.outputs for finding in findings), sum(finding.ties for finding in findings)
    lines = [
        "# Architectures",
        "",
        f"{outputs:,} outputs were compared with `generate` of transformers {transformers.__version__}; {ties}",
        "differed at a near-tie (scores within 1e-5 of their standard deviation). `python -m benchmarks.architectures`",
        "runs a tiny model with random weights of every causal and encoder-decoder type: windows of 8 and 24 tokens,",
        "ragged batches whose rows join and leave, and drafts that are right, wrong and sometimes right.",
        "",
        "| outcome | types |",
        "|---|---|",
    ]
    for outcome in _ORDER:
        names = [
            f"`{finding.type}`"
            for finding in sorted(findings, key=lambda finding: finding.type)
            if finding.outcome == outcome
        ]
        if names:
            lines.append(f"| {_MEANING[outcome]}: **{len(names)}** | {', '.join(names)} |")
    lines += [
        "",
        "What of a model with recurrent states has the bits of plain decoding, and what is within 1e-5, by family:",
        "[states bit for bit](concepts.md#states-bit-for-bit).",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.architectures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="TYPE", default=[], help="test only these types (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes at a time (default: 1)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="results file; types that it already contains are skipped"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write docs/architectures.md to this file")
    options = parser.parse_args(arguments)
    known: list[Finding] = []
    if before := resumed(options.json, VERSIONS):
        known = [Finding(**fields) for fields in before["types"]]
        known = [finding for finding in known if finding.type not in options.only]
    done = {finding.type for finding in known}
    types = [name for name in options.only or model_types() if name not in done]
    findings = known
    for finding in run(types, options.jobs):
        findings.append(finding)
        print(f"{finding.outcome:9} {finding.type:28} {finding.reason[:200]}", flush=True)
        if options.json is not None:
            write_json(options.json, table(findings))
    if options.markdown is not None:
        options.markdown.write_text(markdown(findings))
    counts = Counter(finding.outcome for finding in findings)
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in _ORDER if counts[outcome]))
    return 1 if counts["wrong"] else 0
