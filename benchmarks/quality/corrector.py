"""Measures a corrector: ``python -m benchmarks.quality.corrector --json OUT [--parts ...] [--rows N]``.

Parts: the GEC sets (GLEU raw, by word similarity and behind the pipeline's guards, edits by type, three confidences),
`everyday` (150 sentences with one mistake each), `alone` (share of correct text left unchanged) and `quotes`.
The JSON is written after every part, so that an interrupted run keeps its results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.quality.edit_types import Scores
from benchmarks.quality.gleu import corpus_gleu
from benchmarks.quality.guarded import SETS, Remembering
from benchmarks.quality.model import QualityModel, guarded
from benchmarks.quality.run import chosen_outputs, correct_texts, measure_quotes, sample
from copyspec import Engine
from copyspec.pipelines import GECPipeline, GuardOptions, ModelCorrector, ModelOptions
from kit import places
from kit.reporting import read_rows

EVERYDAY = Path(__file__).parent / "everyday.tsv"
CONFIDENCES = (0.5, 0.8, 0.95)
PARTS = ("everyday", *SETS, "alone", "quotes")
Table = dict[str, Any]


def read_everyday(path: Path = EVERYDAY) -> list[tuple[str, str, list[str]]]:
    """Read lines of (kind of mistake, sentence with one mistake, its accepted corrections)."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(kind, wrong, right.split("|")) for kind, wrong, right in (line.split("\t") for line in lines)]


def _corrector(engine: Engine, keep: Path | None) -> Remembering:
    return Remembering(ModelCorrector(engine, ModelOptions(by_sentence=False)), keep)


def measure_everyday(engine: Engine, keep: Path | None = None) -> Table:
    """Count sentences repaired, harmed (changed into something wrong) and left unchanged, raw and after the guards."""
    rows = read_everyday()
    sources = [wrong for _, wrong, _ in rows]
    table: Table = {"n": len(rows)}
    corrector = _corrector(engine, keep)
    behind = [done.text for done in GECPipeline(corrector)(sources)]
    for name, outputs in (("raw", [corrector.known(source) for source in sources]), ("guarded", behind)):
        hits = [output in right for output, (_, _, right) in zip(outputs, rows, strict=True)]
        left = [output == source for output, source in zip(outputs, sources, strict=True)]
        kinds: dict[str, int] = {}
        for (kind, _, _), hit in zip(rows, hits, strict=True):
            kinds[kind] = kinds.get(kind, 0) + hit
        table[name] = {
            "repaired": round(sum(hits) / len(rows), 3),
            "left": round(sum(left) / len(rows), 3),
            "other": round(1 - (sum(hits) + sum(left)) / len(rows), 3),
            "by_kind": kinds,
            "outputs": [
                {"source": source, "output": output}
                for source, output, hit, stays in zip(sources, outputs, hits, left, strict=True)
                if not hit and not stays
            ],
        }
    return table


def measure_set(engine: Engine, data: Path, name: str, count: int | None, keep: Path | None = None) -> Table:
    """Measure one GEC set. The model corrects each sentence only once."""
    rows = sample(read_rows(data / "gec" / f"{name}.jsonl.gz"), count, 0)
    sources, references = [row["source"] for row in rows], [row["references"] for row in rows]
    corrector = _corrector(engine, keep)
    free = GuardOptions(
        True, True, True, True, 1e9, 1e9, strip_wrappers=False, allow_new_words=True, allow_swaps=True,
        any_language=True, precision=0.0,
    )  # fmt: skip
    outputs: dict[str, list[str]] = {}
    settings = {"guards": GuardOptions(), "guards, the bundled model's margins": GuardOptions(calibration="default")}
    settings |= {"guards, swaps, precision 0": GuardOptions(precision=0.0, allow_swaps=True)}
    settings |= {f"confidence {p}": replace(free, min_confidence=p) for p in CONFIDENCES}
    for label, guards in settings.items():
        outputs[label] = [done.text for done in GECPipeline(corrector, guards=guards)(sources)]
    known = [corrector.known(source) for source in sources]
    outputs = {
        "raw": known,
        "words shared 0.6": [guarded(s, o, 0.6) for s, o in zip(sources, known, strict=True)],
        **outputs,
    }
    table: Table = {"n": len(rows), "source": round(100 * corpus_gleu(sources, sources, references), 2)}
    for label, texts in outputs.items():
        scores = Scores()
        for source, text, wanted in zip(sources, texts, references, strict=True):
            scores.add(source, text, wanted)
        gain = 100 * corpus_gleu(sources, texts, references) - table["source"]
        changed = sum(source != text for source, text in zip(sources, texts, strict=True))
        edits = scores.table() if label in ("raw", "guards") else {"all": scores.total.row()}
        table[label] = {"gain": round(gain, 2), "changed": changed, "edits": edits}
    table["shown"] = chosen_outputs([{**row, "output": output} for row, output in zip(rows, known, strict=True)])
    return table


def measure_alone(engine: Engine, sets: Mapping[str, Sequence[str]], keep: Path | None = None) -> Table:
    """Fraction of correct texts returned unchanged, character by character, raw and after the guards."""
    corrector, table = _corrector(engine, keep), {}
    for name, texts in sets.items():
        behind = [done.text for done in GECPipeline(corrector)(texts)]
        table[name] = {
            "n": len(texts),
            "exact": round(sum(corrector.known(text) == text for text in texts) / len(texts), 4),
            "exact, guarded": round(sum(a == b for a, b in zip(texts, behind, strict=True)) / len(texts), 4),
        }
    return table


def measure_usual(engine: Engine, texts: Sequence[str], keep: Path | None = None) -> Table:
    """Fraction of correct texts that the pipeline with default settings, sentence by sentence, leaves unchanged."""
    corrector = Remembering(ModelCorrector(engine, ModelOptions(by_sentence=True)), keep)
    behind = [done.text for done in GECPipeline(corrector)(texts)]
    exact = sum(a == b for a, b in zip(texts, behind, strict=True))
    return {"n": len(texts), "exact": "", "exact, guarded": round(exact / len(texts), 4)}


def measure(model: QualityModel, part: str, data: Path, count: int | None, keep: Path | None = None) -> Table:
    """Measure one part."""
    if part == "everyday":
        return measure_everyday(model.engine, keep)
    if part in SETS:
        return measure_set(model.engine, data, part, count, keep)
    if part == "quotes":
        return measure_quotes(model, data, count or 600, 0)
    references = [row["references"][0] for row in sample(read_rows(data / "gec" / "jfleg_dev.jsonl.gz"), count, 0)]
    texts = correct_texts(data, references, count or 600, 0)
    table = measure_alone(model.engine, texts, keep)
    paragraphs = texts["held_out_paragraphs"]
    table["held_out_paragraphs by sentence"] = measure_usual(model.engine, paragraphs, keep)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-correct", help="alias, hub id or folder")
    places.add_data(parser, "gec/, retrieval/ and text/")
    parser.add_argument(
        "--parts", type=lambda value: value.split(","), default=list(PARTS), help="parts to measure (default: all)"
    )
    parser.add_argument("--rows", type=int, help="rows per set, drawn with a fixed seed (default: all)")
    parser.add_argument(
        "--keep", type=Path, help="file that stores the model's answers, so that an interrupted run can be resumed"
    )
    parser.add_argument("--json", type=Path, help="write the result to this file, after every part")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"--parts: no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    torch.set_num_threads(options.threads)
    model = QualityModel(options.model, torch.float32)
    result: Table = {}
    for part in options.parts:
        result[part] = measure(model, part, options.data, options.rows, options.keep)
        shown = {key: value for key, value in result[part].items() if key != "shown"}
        print(part, json.dumps(shown, indent=1, ensure_ascii=False), flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
