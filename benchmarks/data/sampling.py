"""Writes the sample of the repository: some twenty rows of each task whose licence lets them be given on.

python -m benchmarks.data.sampling [--data FOLDER]

Rows of other projects come from the full data. Corrections are written here, by SmolLM2 with the project's adapter, of
texts of this repository: the recorded ones may not be given on.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import copyspec
from benchmarks.data import DATA, lines
from benchmarks.data.making import write_rows
from benchmarks.data.readers import Row, flattened, json_lines
from benchmarks.transcripts import choose_rows, read_transcripts
from kit import places

PERMITTED = {
    "chat": ("specbench_mtbench", "rest_mtbench", "medusa_mtbench", "copyspec_mtbench"),
    "math": ("specbench_math_reasoning", "copyspec_gsm"),
    "multiturn_edit": ("copyspec_redundant", "copyspec_gsm"),
    "rag": ("specbench_rag",),
    "code_edit": ("canitedit",),
}
"""Sets by task whose origins state a licence that permits it (benchmarks/data/sample/README.md). Not among them: news
articles and web pages, whose publishers' terms no licence of a repository covers."""
MODELS = {
    "canitedit": ("Qwen2.5-Coder-7B-Instruct",),
    "copyspec_redundant": ("Qwen2.5-7B-Instruct", "Qwen2.5-32B-Instruct"),
}
"""Of these sets, only outputs of models whose own licence is a free one."""
ROWS = 20  # per task
CORRECTED_BY = "smollm2-correct"
INSTRUCTION = "Correct the grammar: "
PASSAGE_STEP, QUESTION_STEP, PROSE_STEP = 16, 3, 6  # every how manyth is kept


def permitted(folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of each task, drawn with a fixed seed, as many of each set."""
    for task, names in PERMITTED.items():
        path = folder / "transcripts" / f"{task}.jsonl.gz"
        rows = read_transcripts([path])
        chosen = [row for row in rows if row.set in names and row.model in MODELS.get(row.set, (row.model,))]
        sets = len({row.key for row in chosen})
        ids = {row.id for row in choose_rows(chosen, -(-ROWS // sets))}
        yield task, [row for row in json_lines(path) if row["id"] in ids]


def corrected() -> Iterator[tuple[str, list[Row]]]:
    """Yield corrections of the benchmark's sentences and paragraphs."""
    engine = copyspec.load(CORRECTED_BY, dtype="float32")
    for task, texts in (("gec", lines()[:ROWS]), ("gec_document", lines(DATA / "paragraphs.txt"))):
        rows = []
        for number, text in enumerate(texts):
            prompt = INSTRUCTION + text
            output = engine.generate(prompt, edit_source=text, chat=True, max_new_tokens=512).text.strip()
            rows.append(_row(f"own_{task}", task, CORRECTED_BY, number, prompt, text, output))
        yield task, rows


def passages(folder: Path) -> tuple[list[Row], list[Row]]:
    """Return passages of SQuAD and some of their questions."""
    retrieval = folder / "retrieval"
    chosen = json_lines(retrieval / "passages_squad.jsonl.gz")[::PASSAGE_STEP]
    ids = {row["id"] for row in chosen}
    asked = [row for row in json_lines(retrieval / "queries_squad.jsonl.gz") if row["passage_id"] in ids]
    return chosen, asked[::QUESTION_STEP]


def _row(name: str, task: str, model: str, number: int, prompt: str, reference: str, output: str) -> Row:
    group = hashlib.sha256(reference.encode("utf-8")).hexdigest()[:12]
    head = {"id": f"{name}-{number:05d}", "task": task, "model": model, "group": group}
    return {**head, "prompt": flattened([prompt]), "references": [reference], "output": output}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_data(parser, "transcripts/")
    options = parser.parse_args(arguments)
    for task, rows in chain(permitted(options.data), corrected()):
        write_rows(places.SAMPLE / "transcripts" / f"{task}.jsonl.gz", rows)
        print(f"{task}: {len(rows)} rows")
    prose = gzip.decompress((options.data / "text" / "speeches.txt.gz").read_bytes()).decode("utf-8").splitlines(True)
    (places.SAMPLE / "text").mkdir(exist_ok=True)
    text = "".join(prose[::PROSE_STEP]).encode("utf-8")
    (places.SAMPLE / "text" / "speeches.txt.gz").write_bytes(gzip.compress(text, mtime=0))
    for kind, rows in zip(("passages", "queries"), passages(options.data), strict=True):
        write_rows(places.SAMPLE / "retrieval" / f"{kind}_squad.jsonl.gz", rows)
        print(f"{kind}: {len(rows)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
