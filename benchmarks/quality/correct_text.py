"""Measures what a corrector does to correct text: ``python -m benchmarks.quality.correct_text --json OUT``.

Texts: this project's documentation, the documentation of ten installed packages (long descriptions and licences), 300
correct sentences (``data/correct_sentences.txt``), and 45 wrong ones with good corrections
(``data/wrong_sentences.txt``). Every edit is printed in context for a human to judge; the judgements are stored in
``data/correct_text_judged.json`` and counted. Every other sentence was looked at while the guards were tuned ("seen"),
the rest was not.

A wrong sentence is made worse if its output is further from every good correction than the sentence itself, in words
and punctuation marks; better if it is nearer to one, and right if it equals one.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from importlib import metadata
from pathlib import Path

from benchmarks.data import DATA
from copyspec.pipelines import (
    FORMATS,
    Done,
    Edit,
    FileJob,
    FileOptions,
    FileReport,
    GECPipeline,
    GuardOptions,
    correct_files,
    splitter,
)

ROOT = Path(__file__).parent.parent.parent
PACKAGES = (
    "click", "filelock", "httpx", "hypothesis", "jinja2", "langchain-core", "numpy", "pytest", "rich", "transformers",
    "anyio", "huggingface-hub", "packaging", "pydantic", "typer",
)  # fmt: skip
"""Candidate packages; the first ten that are installed are used."""
_SPLIT = splitter("builtin")
_AROUND = 40  # characters of context shown on either side of an edit
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Made:
    """One edit made by the corrector."""

    where: str
    was: str
    becomes: str
    context: str  # the edit in its text, as [before -> after]

    @property
    def key(self) -> str:
        return f"{self.where}: {self.context}"


class _Reader:
    """Collects the parts of every file as the pipeline reports them."""

    def __init__(self) -> None:
        self.sentences = 0
        self.made: list[Made] = []
        self.kept: Counter[str] = Counter()

    def part(self, path: str, form: object, done: Done[FileJob]) -> None:
        if done.part is None:
            return
        text = done.part.text
        self.sentences += sum(len(_SPLIT(text[segment.start : segment.end])) for segment in done.part.segments)
        self.kept.update(refusal.reason for piece in done.pieces for refusal in piece.checked.dropped)
        self.made += made_of(Path(path).name, text, done.edits)

    def end(self, report: FileReport) -> None:
        if report.error is not None:
            raise report.error


def made_of(where: str, text: str, edits: Iterable[Edit]) -> Iterator[Made]:
    """Yield the edits of a text with their context."""
    for edit in edits:
        was = text[edit.start : edit.end]
        before, behind = text[max(0, edit.start - _AROUND) : edit.start], text[edit.end : edit.end + _AROUND]
        yield Made(where, was, edit.replacement, " ".join(f"{before}[{was} -> {edit.replacement}]{behind}".split()))


def project_files() -> list[Path]:
    """List the files of this project's documentation."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def package_files(folder: Path, count: int = 10) -> list[Path]:
    """Write the documentation of up to `count` installed packages into `folder`, and list the files."""
    files: list[Path] = []
    taken = 0
    for name in PACKAGES:
        if taken == count:
            break
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        taken += 1
        described = distribution.metadata.json
        kind = str(described.get("description_content_type", "text/x-rst")).partition(";")[0]
        suffix = ".md" if kind == "text/markdown" else ".rst" if kind == "text/x-rst" and "rst" in FORMATS else ".txt"
        texts: dict[str, object] = {f"{name}{suffix}": described.get("description", "")}
        for file in distribution.files or ():
            if "dist-info" in str(file) and "licen" in file.name.lower() and file.suffix in ("", ".txt", ".md"):
                texts[f"{name}-{file.name}{'' if file.suffix else '.txt'}"] = Path(file.locate()).read_text(
                    encoding="utf-8"
                )
        for title, text in texts.items():
            (folder / title).write_text(str(text), encoding="utf-8")
            files.append(folder / title)
    return files


def correct_sentences() -> list[str]:
    """Read the correct sentences, in order."""
    lines = (DATA / "correct_sentences.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("== ")]


def wrong_sentences() -> list[tuple[str, list[str]]]:
    """Read the wrong sentences with their good corrections."""
    sentences: list[tuple[str, list[str]]] = []
    for line in (DATA / "wrong_sentences.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("-> "):
            sentences[-1][1].append(line[3:])
        elif line and not line.startswith("# "):
            sentences.append((line, []))
    return sentences


def judged_wrong(source: str, output: str, accepted: Sequence[str]) -> str:
    """Return `right`, `better`, `left`, `other` or `worse`."""
    if output == source:
        return "left"
    if output in accepted:
        return "right"
    before, after = (min(_away(text, good) for good in accepted) for text in (source, output))
    return "better" if after < before else "worse" if after > before else "other"


def _away(text: str, other: str) -> int:
    left, right = _WORD.findall(text), _WORD.findall(other)
    same = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return len(left) + len(right) - 2 * sum(block.size for block in same)


def measure_files(pipeline: GECPipeline, files: Sequence[Path]) -> tuple[int, list[Made], Counter[str]]:
    """Run the pipeline on files; return the number of sentences, the edits made, and counts of rejected ones by
    reason."""
    reader = _Reader()
    for _ in correct_files(pipeline.runner, files, FileOptions(), listeners=[reader]):
        pass
    return reader.sentences, reader.made, reader.kept


def measure(pipeline: GECPipeline, *, limit: int | None, with_files: bool) -> dict[str, object]:
    """Run all measurements. `limit`: maximum sentences of each list."""
    sets: dict[str, tuple[int, list[Made], Counter[str]]] = {}
    if with_files:
        sets["project"] = measure_files(pipeline, project_files())
        with tempfile.TemporaryDirectory() as folder:
            sets["packages"] = measure_files(pipeline, package_files(Path(folder)))
    right = correct_sentences()[:limit]
    corrections = pipeline(right)
    for name, start in (("correct, seen", 0), ("correct, not seen", 1)):
        chosen = corrections[start::2]
        made = [edit for done in chosen for edit in made_of("sentence", done.source, done.edits)]
        sets[name] = len(chosen), made, Counter(refusal.reason for done in chosen for refusal in done.dropped)
    wrong = wrong_sentences()[:limit]
    outputs = [done.text for done in pipeline([source for source, _ in wrong])]
    rows = [
        {"source": source, "output": output, "verdict": judged_wrong(source, output, accepted)}
        for (source, accepted), output in zip(wrong, outputs, strict=True)
    ]
    path = DATA / "correct_text_judged.json"
    judged: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    figures = {
        name: {
            "sentences": count,
            "edits": [{**asdict(edit), "judged": judged.get(edit.key, "?")} for edit in made],
            "left out": dict(dropped),
        }
        for name, (count, made, dropped) in sets.items()
    }
    return {"sets": figures, "wrong": rows, "verdicts": dict(Counter(row["verdict"] for row in rows))}


def show(result: dict[str, object]) -> str:
    """Format the result as text."""
    lines: list[str] = []
    sets: dict[str, dict[str, object]] = result["sets"]  # type: ignore[assignment]
    for name, row in sets.items():
        edits: list[dict[str, str]] = row["edits"]  # type: ignore[assignment]
        count = int(str(row["sentences"]))
        damage = sum(edit["judged"] not in ("good", "harmless") for edit in edits)
        rate = 1000 * damage / count if count else 0.0
        lines.append(
            f"{name}: {count} sentences, {len(edits)} edits, {damage} damage or not judged: {rate:.1f} per 1,000"
        )
        lines += [f"  {edit['judged']:<9}{edit['where']}: {edit['context']}" for edit in edits]
    lines.append(f"wrong sentences: {result['verdicts']}")
    rows: list[dict[str, str]] = result["wrong"]  # type: ignore[assignment]
    lines += [f"  {row['verdict']:<7}{row['source']} -> {row['output']}" for row in rows if row["verdict"] != "left"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a corrector does to correct text.")
    parser.add_argument("--model", help="hub id or folder (default: the bundled model)")
    parser.add_argument("--limit", type=int, help="maximum sentences of each list")
    parser.add_argument("--no-files", action="store_true", help="omit the documentation files")
    parser.add_argument("--no-guards", action="store_true", help="turn off the guards on words, swaps and margins")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    args = parser.parse_args()
    guards = GuardOptions(
        allow_new_words=args.no_guards, allow_swaps=args.no_guards, precision=0.0 if args.no_guards else 0.9
    )
    pipeline = GECPipeline(args.model, guards=guards)
    result = measure(pipeline, limit=args.limit, with_files=not args.no_files)
    print(show(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
