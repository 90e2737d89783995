"""Counts right answers to a hundred questions about the docs of three installed packages and of this project.

    python -m benchmarks.quality.document_answers [--half NAME] [--model NAME] [--quote] --json OUT

The texts are the descriptions of orjson, regex and tqdm in their packages, and a handbook of README, CONTRIBUTING and
two pages of docs. The questions and answers in `document_questions.tsv` were written before anything was tuned; every
second one is held out. Thirty more in `document_questions_new.tsv` (`--half new`) are about two other packages and
other kinds of text (recipes, a lease, questions and answers, a changelog, in `documents/`), searched together and
without the first texts. Sixty in `document_questions_fresh.tsv` (`--half fresh`) are about two more packages and three
texts in `documents/fresh`; no text answers twenty of them. An answer is right if a quote of at most MAX_CHARS
characters contains an accepted answer, punctuation and line breaks aside. No text answers the last ten of the hundred
either; for these, giving no answer is right. Wrong answers that are marked as not sure are counted separately.
Questions whose texts have changed since are left out and named. With `--quote` the model quotes from the best passage
by itself (`copyspec.pipelines.answer`).
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import metadata
from pathlib import Path

from kit.reporting import machine, write_json

QUESTIONS = sorted(Path(__file__).parent.glob("document_questions*.tsv"))
DOCUMENTS = Path(__file__).with_name("documents")
ROOT = Path(__file__).parents[2]
PACKAGES = {"new": ("idna", "colorama"), "fresh": ("rich", "typer")}  # of the others: FIRST_PACKAGES
FIRST_PACKAGES = ("orjson", "regex", "tqdm")
HANDBOOK = ("README.md", "CONTRIBUTING.md", "docs/concepts.md", "docs/retrieval.md")
MAX_CHARS = 600  # of an answer: a long paragraph; otherwise quoting a whole document would answer every question


@dataclass(frozen=True, slots=True)
class Question:
    """A question; a right answer contains one of `answers`. If `answers` is empty, no text answers it."""

    half: str
    document: str
    text: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A question with the answer given."""

    question: str
    document: str
    verdict: str  # right, wrong, doubted (wrong but marked as not sure), none (none given although there is one)
    is_sure: bool
    answer: str


def plain(text: str) -> str:
    """Normalise text for comparison: no backticks or asterisks, single spaces, lower case."""
    return re.sub(r"[`*]", "", re.sub(r"\s+", " ", text)).lower()


def read_questions(half: str) -> list[Question]:
    """Read the questions of one part, or of both halves of the hundred."""
    lines = [line for path in QUESTIONS for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    rows = [line.split("\t") for line in lines]
    made = [Question(row[0], row[1], row[2], tuple(filter(None, row[3].split("|")))) for row in rows]
    halves = ("tuned", "held-out") if half == "both" else (half,)
    return [question for question in made if question.half in halves]


def write_texts(folder: Path, half: str) -> dict[str, str]:
    """Write the documents of a part as files into `folder`; return their texts by the names used in the questions."""
    texts = {}
    for name in PACKAGES.get(half, FIRST_PACKAGES):
        about = metadata(name)
        texts[name] = str(about.get_payload() or about["Description"])  # type: ignore[attr-defined]
        (folder / f"{name}.md").write_text(texts[name], encoding="utf-8")
    own = DOCUMENTS / "fresh" if half == "fresh" else DOCUMENTS
    for path in sorted(own.glob("*.*")) if half in PACKAGES else ():
        texts[path.stem] = path.read_text(encoding="utf-8")
        (folder / path.name).write_text(texts[path.stem], encoding="utf-8")
    for file in () if half in PACKAGES else HANDBOOK:
        text = (ROOT / file).read_text(encoding="utf-8")
        texts["handbook"] = texts.get("handbook", "") + text
        (folder / Path(file).name).write_text(text, encoding="utf-8")
    return texts


def verdict(question: Question, answer: str, is_found: bool, is_sure: bool) -> str:
    """Judge an answer; see `Row.verdict`."""
    if not is_found:
        return "none" if question.answers else "right"
    words = plain(answer)
    if len(answer) <= MAX_CHARS and any(plain(accepted) in words for accepted in question.answers):
        return "right"
    return "wrong" if is_sure else "doubted"


def answered(questions: list[Question], model: str | None, folder: Path, *, quote: bool = False) -> Iterator[Row]:
    """Answer each question from an index of the files in `folder`; `quote`: by the model alone."""
    from copyspec.pipelines import DocumentAnswers
    from copyspec.pipelines import answer as quoted
    from copyspec.retrievers import Corpora, read_documents, split_passages

    corpora = Corpora(folder / "corpora")
    documents = list(read_documents(sorted(folder.glob("*.*"))))
    corpora.add_bm25("docs", [passage for document in documents for passage in split_passages(document)])
    retriever, passages = corpora.open("docs")
    answer = DocumentAnswers(
        retriever, model=None if quote else model, contexts=[passage.context for passage in passages]
    )
    for question in questions:
        if quote:
            quotation = quoted(question.text, retriever, model=model)
            said = verdict(question, quotation.text, quotation.is_found, is_sure=True)
            yield Row(question.text, question.document, said, True, quotation.text)
            continue
        reply = answer(question.text)
        said = verdict(question, reply.text, reply.is_found, reply.is_sure)
        yield Row(question.text, question.document, said, reply.is_sure, reply.text)


def main() -> None:
    """Print the counts and every answer that is not right, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("tuned", "held-out", "new", "fresh", "both"), default="both")
    parser.add_argument("--model", help="model (default: none, answers are found by words alone)")
    parser.add_argument("--quote", action="store_true", help="let the model alone quote from the best passage")
    parser.add_argument("--quiet", action="store_true", help="print only the counts")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quote and not options.model:
        parser.error("--quote needs --model: it is the model that quotes")
    report: dict[str, object] = {"machine": machine(), "model": options.model, "max_chars": MAX_CHARS}
    report |= {"by the model alone": True} if options.quote else {}
    with tempfile.TemporaryDirectory() as folder:
        texts = write_texts(Path(folder), options.half)
        for half in ("tuned", "held-out") if options.half == "both" else (options.half,):
            questions = []
            for question in read_questions(half):
                if question.answers and not any(
                    plain(answer) in plain(texts.get(question.document, "")) for answer in question.answers
                ):
                    print(f"left out, the text has changed: {question.text}")
                else:
                    questions.append(question)
            began = time.perf_counter()
            rows = list(answered(questions, options.model, Path(folder), quote=options.quote))
            seconds = time.perf_counter() - began
            counts = {name: sum(row.verdict == name for row in rows) for name in ("right", "none", "doubted", "wrong")}
            report[half] = {"questions": len(rows), **counts, "seconds": seconds, "rows": [asdict(row) for row in rows]}
            print(f"{half}: {len(rows)} questions, {counts}, {seconds / len(rows):.2f} s each")
            for row in rows if not options.quiet else ():
                if row.verdict != "right":
                    print(f"  {row.verdict:<8}{row.question}\n          {' '.join(row.answer.split())[:150]}")
    if options.json:
        write_json(options.json, report)


if __name__ == "__main__":
    main()
