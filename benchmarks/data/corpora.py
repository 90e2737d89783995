"""Readers of corrected sentences and of passages with questions."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.data.readers import json_lines

SHORTEST = 60  # characters of a paragraph of prose
NQ_PASSAGES = frozenset({0, 121, 634, 649, 721, 775, 966, 975, 1205, 1441, 1705, 1812, 2040, 2134, 2138, 2250, 2559})
NQ_QUERIES = frozenset(
    {54, 79, 181, 375, 941, 972, 1048, 1165, 1203, 1274, 1350, 1388, 1410, 1447, 1493, 2205, 2210, 2263, 2334}
    | {2364, 2441, 2568}
)
"""Numbers of passages and questions that were left out, as close to ones that are kept for evaluation."""


def parallel(source: Path, references: list[Path], name: str) -> Iterator[dict[str, Any]]:
    """Sentences and their corrections, a file of lines each."""
    columns = [path.read_text("utf-8").splitlines() for path in (source, *references)]
    for number, (text, *corrected) in enumerate(zip(*columns, strict=True)):
        yield {"id": f"{name}-{number:04d}", "source": text.strip(), "references": [text.strip() for text in corrected]}


def m2(path: Path, sentences: Container[int]) -> Iterator[dict[str, Any]]:
    """CoNLL-2014's sentences of these numbers, with the edits and the text of both annotators."""
    for sentence, block in enumerate(path.read_text("utf-8").strip().split("\n\n"), start=1):
        if sentence not in sentences:
            continue
        lines = block.split("\n")
        edits: list[list[tuple[int, int, str, str]]] = [[], []]
        for line in lines[1:]:
            span, kind, correction, *_, annotator = line.removeprefix("A ").split("|||")
            start, end = map(int, span.split())
            if kind != "noop" and int(annotator) < len(edits):
                edits[int(annotator)].append((start, end, kind, correction))
        source = lines[0].removeprefix("S ")
        yield {
            "id": f"conll14-{sentence - 1:04d}",
            "source": source,
            "references": [_corrected(source, edit) for edit in edits],
            "edits": edits,
            "sentence": sentence,
        }


def _corrected(source: str, edits: list[tuple[int, int, str, str]]) -> str:
    tokens: list[str] = source.split()
    for start, end, _, correction in reversed(sorted(edits, key=lambda edit: edit[:2])):
        tokens[start:end] = correction.split()
    return " ".join(tokens)


def squad(archive: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """SQuAD's passages and questions."""
    with zipfile.ZipFile(archive) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".json") and not name.startswith("__"))
        articles = json.loads(files.read(name))["data"]
    passages, queries = [], []
    for article in articles:
        for number, paragraph in enumerate(article["paragraphs"]):
            name = f"squad-{article['title']}-{number:03d}"
            passages.append({"id": name, "title": article["title"].replace("_", " "), "text": paragraph["context"]})
            for asked in paragraph["qas"]:
                answers = sorted({answer["text"] for answer in asked["answers"]})
                queries.append(
                    {"id": asked["id"], "question": asked["question"].strip(), "answers": answers, "passage_id": name}
                )
    return passages, queries


def speeches(archives: Sequence[Path]) -> Iterator[str]:
    """Paragraphs of NLTK's archives of text files, each once."""
    seen = set()
    for archive in archives:
        with zipfile.ZipFile(archive) as files:
            for name in sorted(name for name in files.namelist() if name.endswith(".txt")):
                for paragraph in re.split(r"\n\s*\n", files.read(name).decode("utf-8", "replace")):
                    text = " ".join(paragraph.split())
                    if len(text) >= SHORTEST and text not in seen and "\ufffd" not in text:
                        seen.add(text)
                        yield text


def natural_questions(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The passages that answer questions of Natural Questions, each once, and the questions."""
    passages: dict[str, dict[str, Any]] = {}
    queries = []
    for number, line in enumerate(json_lines(path)):
        gold = line["ctxs"][0]
        passage = passages.setdefault(
            gold["text"], {"id": f"nq-{len(passages):05d}", "title": gold["title"], "text": gold["text"]}
        )
        queries.append(
            {
                "id": f"nqq-{number:05d}",
                "question": line["question"],
                "answers": line["answers"],
                "passage_id": passage["id"],
            }
        )
    left_out = {f"nq-{number:05d}" for number in NQ_PASSAGES}
    not_asked = {f"nqq-{number:05d}" for number in NQ_QUERIES}
    return (
        [passage for passage in passages.values() if passage["id"] not in left_out],
        [query for query in queries if query["passage_id"] not in left_out and query["id"] not in not_asked],
    )
