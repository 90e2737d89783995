"""Measures the bundled model: ``python -m benchmarks.quality --model default --json OUT``.

Corrections (GLEU with all references, next to that of the unchanged source), correct text left alone, single mistakes
repaired by kind, sentences quoted, tokens per second. JFLEG dev was used during development; GMEG dev and CoNLL-2014
were not. Answers are greedy, from copyspec's engine; tokens per second are those of ``model.generate``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.quality.gleu import corpus_gleu, sentence_gleu
from benchmarks.quality.model import CORRECT, GUARD, QualityModel, guarded
from copyspec.models.loading import resolve_name
from kit import places
from kit.reporting import read_rows
from training.text import held_out, read_paragraphs, split_sentences, straight_quotes, well_formed

_GEC_SETS = ("jfleg_dev", "gmeg_wiki_dev", "conll14")
_SHOWN = 10
_STOPWORDS = "a an the of in on at to for and or is are was were be by with from that this it as did do does"
Row = dict[str, Any]


def sample(rows: Sequence[Any], count: int | None, seed: int) -> list[Any]:
    """Draw ``count`` rows with a fixed seed, in file order; all rows if ``count`` is None or larger."""
    if count is None or count >= len(rows):
        return list(rows)
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), count))]


def share(hits: Sequence[bool]) -> float:
    """Fraction of true values, 0 for none."""
    return sum(hits) / len(hits) if hits else 0.0


def measure_gec(model: QualityModel, data: Path, name: str, count: int | None, seed: int) -> tuple[Row, list[Row]]:
    """Return GLEU x 100 of source, output and guarded output, and one row per sentence."""
    rows = sample(read_rows(data / "gec" / f"{name}.jsonl.gz"), count, seed)
    sources, references = [r["source"] for r in rows], [r["references"] for r in rows]
    outputs = model.corrections(sources)
    guarded_texts = [guarded(s, o) for s, o in zip(sources, outputs, strict=True)]
    gleu = {
        key: round(100 * corpus_gleu(sources, texts, references), 2)
        for key, texts in (("source", sources), ("output", outputs), ("guarded", guarded_texts))
    }
    changed = share([s != o for s, o in zip(sources, outputs, strict=True)])
    table = {"n": len(rows), **gleu, "changed": round(changed, 3)}
    table["gain"], table["gain_guarded"] = (
        round(gleu["output"] - gleu["source"], 2),
        round(gleu["guarded"] - gleu["source"], 2),
    )
    return table, [{**row, "output": output} for row, output in zip(rows, outputs, strict=True)]


def chosen_outputs(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the first ten changed sentences whose GLEU rises, and the first ten whose GLEU falls, in file order."""
    rows_by_kind: dict[str, list[Row]] = {"good": [], "bad": []}
    for row in rows:
        if row["output"] == row["source"]:
            continue
        gain = sentence_gleu(row["source"], row["output"], row["references"]) - sentence_gleu(
            row["source"], row["source"], row["references"]
        )
        kind = "good" if gain > 0 else "bad"
        if gain and len(rows_by_kind[kind]) < _SHOWN:
            rows_by_kind[kind].append({"source": row["source"], "output": row["output"], "gain": round(100 * gain, 1)})
    return rows_by_kind


def measure_copies(model: QualityModel, texts: Sequence[str]) -> Row:
    """Fraction of correct texts that are returned unchanged, character by character."""
    outputs = model.corrections(texts)
    return {"n": len(texts), "exact": round(share([o == t for o, t in zip(outputs, texts, strict=True)]), 4)}


def measure_repairs(model: QualityModel, folder: Path, count: int, seed: int) -> Row:
    """Fraction of held-out sentences with one inserted mistake that are repaired, by kind of mistake."""
    from training.data import load_prose
    from training.noise import NOISES
    from training.text import join_words, split_words

    _, prose = load_prose(folder)
    rng = random.Random(seed)
    kinds = [(noise, undo) for noise in NOISES if (undo := noise.undo) is not None]
    cases: list[tuple[str, str, str]] = []
    for noise, undo in kinds:
        for sentence in rng.sample(prose.sentences, len(prose.sentences)):
            words = split_words(sentence)
            wrong = noise.apply(words, prose.lexicon, rng) if undo(words, prose.lexicon) == words else None
            if wrong is not None:
                cases.append((noise.name, join_words(wrong), sentence))
            if sum(case[0] == noise.name for case in cases) == count:
                break
    outputs = model.corrections([wrong for _, wrong, _ in cases])
    table: Row = {}
    for noise, _ in kinds:
        hits = [
            (o == right, o == wrong)
            for (name, wrong, right), o in zip(cases, outputs, strict=True)
            if name == noise.name
        ]
        repaired, left = share([h[0] for h in hits]), share([h[1] for h in hits])
        table[noise.name] = {"n": len(hits), "repaired": round(repaired, 3), "unchanged": round(left, 3)}
    return table


def _content(text: str) -> set[str]:
    return {word.strip(".,;:?!\"'()").lower() for word in text.split()} - {*_STOPWORDS.split()}


def best_overlap(question: str, sentences: Sequence[str]) -> str:
    """Return the first sentence with the most question words."""
    return max(sentences, key=lambda s: len(_content(question) & _content(s)))


def measure_quotes(model: QualityModel, data: Path, count: int | None, seed: int) -> Row:
    """Measure quoting from whole SQuAD passages and from the one sentence that word overlap selects."""
    passages = {
        row["id"]: " ".join(row["text"].split()) for row in read_rows(data / "retrieval" / "passages_squad.jsonl.gz")
    }
    rows = sample(read_rows(data / "retrieval" / "queries_squad.jsonl.gz"), count, seed)
    questions = [row["question"].strip() for row in rows]
    texts = [passages[row["passage_id"]] for row in rows]
    split = [split_sentences(text) for text in texts]
    rng = random.Random(seed)
    chosen = [best_overlap(q, s) for q, s in zip(questions, split, strict=True)]
    drawn = [rng.choice(s) for s in split]

    def holds(quotes: Sequence[str]) -> float:
        return round(share([any(a in q for a in r["answers"]) for q, r in zip(quotes, rows, strict=True)]), 3)

    table: Row = {"n": len(rows), "random_holds": holds(drawn), "overlap_holds": holds(chosen)}
    for name, contexts, options in (("passage", texts, split), ("one_sentence", chosen, [[c] for c in chosen])):
        quotes = model.quotes(questions, contexts)
        table[name] = {
            "verbatim": round(share([bool(q) and q in g for q, g in zip(quotes, contexts, strict=True)]), 3),
            "whole_sentence": round(share([q in o for q, o in zip(quotes, options, strict=True)]), 3),
            "holds": holds(quotes),
            "examples": [{"question": q, "quote": a} for q, a in zip(questions[:5], quotes[:5], strict=True)],
        }
    return table


def _whole(sentence: str) -> bool:
    """Whether this is a sentence of usual length that ends in a full stop, so that it is not a heading."""
    return 20 <= len(sentence) <= 320 and well_formed(sentence)


def correct_texts(data: Path, references: Sequence[str], rows: int, seed: int) -> dict[str, list[str]]:
    """Collect correct texts: held-out sentences and paragraphs, references of JFLEG, sentences of SQuAD."""
    unseen = [p for p in read_paragraphs(data / "text") if held_out(p)]
    sentences = [straight_quotes(s) for p in unseen for s in split_sentences(p) if _whole(s)]
    paragraphs = [
        straight_quotes(" ".join(p)) for p in map(split_sentences, unseen) if 3 <= len(p) <= 6 and all(map(_whole, p))
    ]
    squad = [s for r in read_rows(data / "retrieval" / "passages_squad.jsonl.gz") for s in split_sentences(r["text"])]
    return {
        "held_out": sample(sentences, rows, seed),
        "held_out_paragraphs": sample(paragraphs, rows // 4, seed),
        "jfleg_references": list(references),
        "squad": sample([s for s in squad if _whole(s)], rows, seed),
    }


def evaluate(
    model: QualityModel, data: Path, rows: int | None, repairs: int, seed: int, whole: Sequence[str] = ()
) -> Row:
    """Run all measurements, as one JSON object. Of the GEC sets in ``whole``, all rows are used whatever ``rows``
    is."""
    result: Row = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, bfloat16",
        "parameters": sum(p.numel() for p in model.model.parameters()),
        "megabytes": round(sum(f.stat().st_size for f in model.folder.iterdir() if f.is_file()) / 1e6, 2),
        "guard": GUARD,
        "gec": {},
    }
    for name in _GEC_SETS:
        result["gec"][name], outputs = measure_gec(model, data, name, None if name in whole else rows, seed)
        if name == "jfleg_dev":
            result["outputs"] = chosen_outputs(outputs)
            references = [row["references"][0] for row in outputs]
    right = correct_texts(data, references, rows or 600, seed)
    result["copies"] = {name: measure_copies(model, texts) for name, texts in right.items()}
    if not model.is_encoder_decoder:  # encoder-decoder models only correct
        result["quotes"] = measure_quotes(model, data, rows or 600, seed)
    if repairs:
        result["repairs"] = measure_repairs(model, data / "text", repairs, seed)
    result["tokens_per_second"] = round(model.tokens_per_second(right["held_out"][:12]), 1)
    return result


def show(result: Row) -> str:
    """Format the result as text."""
    lines = [
        f"{result['parameters']:,} parameters, {result['megabytes']} MB, {result['tokens_per_second']} tokens/s greedy"
    ]
    lines.append(f"{'GLEU':<20}{'n':>6}{'source':>9}{'output':>9}{'guarded':>9}{'changed':>9}")
    for name, row in result["gec"].items():
        lines.append(
            f"{name:<20}{row['n']:>6}{row['source']:>9.2f}{row['output']:>9.2f}{row['guarded']:>9.2f}{row['changed']:>9.3f}"
        )
    lines += [f"copied exactly: {name:<20}{row['n']:>6}{row['exact']:>9.3f}" for name, row in result["copies"].items()]
    if "quotes" in result:
        quotes = result["quotes"]
        lines.append(f"quotes (n {quotes['n']}); holds the answer without a model:")
        lines.append(f"  random {quotes['random_holds']}, word overlap {quotes['overlap_holds']}")
        for name in ("passage", "one_sentence"):
            shown = (f"{key} {quotes[name][key]}" for key in ("verbatim", "whole_sentence", "holds"))
            lines.append(f"  {name:<14}" + ", ".join(shown))
    lines += [
        f"one mistake, {name:<18}n {row['n']:>4}  repaired {row['repaired']:.2f}  left {row['unchanged']:.2f}"
        for name, row in result.get("repairs", {}).items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the quality of the bundled model.")
    parser.add_argument("--model", default="default", help='"default" or a model folder')
    places.add_data(parser, "gec/, retrieval/ and text/")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--rows", type=int, help="rows per set, drawn with the seed (default: all, 600 of large sets)")
    parser.add_argument("--repairs", type=int, default=60, help="sentences per kind of single mistake; 0 omits them")
    parser.add_argument("--whole", action="append", default=[], choices=_GEC_SETS, help="use all rows of this set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--instruction", default=CORRECT, help="put before a text to be corrected")
    parser.add_argument("--threads", type=int, help="number of torch threads")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    folder = Path(resolve_name(args.model))
    result = evaluate(
        QualityModel(folder, instruction=args.instruction), args.data, args.rows, args.repairs, args.seed, args.whole
    )
    options = ["--repairs", args.repairs, "--seed", args.seed]
    options += ["--rows", args.rows] if args.rows else []
    result["options"] = " ".join(str(part) for part in [*options, *(f"--whole {name}" for name in args.whole)])
    print(show(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
