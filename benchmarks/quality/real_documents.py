"""Runs a corrector over real documents and lists every edit for readers to judge::

    python -m benchmarks.quality.real_documents FOLDER ... --outcomes FILE --json OUT

The files are drawn by a seed from the folders, as many of each format. The corrector's outputs are kept in a journal,
so that another run asks for new texts only, and changed guards are measured in seconds. `--verdicts` names a JSON
object from edits, by their keys, to the verdict of each reader ("good", "taste", "harmful"); two readers who disagree
count as harmful.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path

from copyspec.pipelines import Edit, GECPipeline, GuardOptions, Work
from copyspec.pipelines.editing.journal import Journal
from copyspec.pipelines.editing.runner import Piece  # type: ignore[import-not-found]
from copyspec.pipelines.formats import format_of  # type: ignore[import-not-found]
from copyspec.pipelines.formats.suffixes import SUFFIXES  # type: ignore[import-not-found]

LEAST, MOST = 500, 4000  # bytes of a file
_LARGER = {"ipynb": 40_000, "po": 60_000, "docx": 60_000}  # most bytes where few of them are prose
_AROUND = 60  # characters of context on either side of an edit
_SKIPPED = (
    "licen",
    "copying",
    "changelog",
    "copyright",
    "notice",
    "requirements",
    "sources",
    "top_level",
    "authors",
    "entry_points",
    "vendor",
    "cmakelists",
)
"""Beginnings and parts of names of files that are no documentation: legal texts, lists of names."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One edit of one file, as a reader sees it."""

    file: str
    form: str
    line: int
    context: str  # with the edit as [before -> after]
    account: str  # its kind and margin, and what the document says of its words

    @property
    def key(self) -> str:
        return f"{self.file}: {self.context}"


def drawn(folders: Iterable[Path], forms: Sequence[str], count: int, seed: int) -> list[tuple[Path, Path, str]]:
    """Draw `count` files of each format, as (folder, file, format); more than two of one directory only where other
    directories have no more."""
    by_form: dict[str, list[tuple[Path, Path]]] = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            form = "source" if path.suffix in (".py", ".c", ".h", ".js", ".ts") else SUFFIXES.get(path.suffix.lower())
            name = path.name.lower()
            if (
                form not in forms
                or not path.suffix
                or any(part in name for part in _SKIPPED)
                or not path.is_file()
                or path.is_symlink()
            ):
                continue
            if LEAST <= path.stat().st_size <= _LARGER.get(form, MOST):
                by_form[form].append((folder, path))
    chosen: list[tuple[Path, Path, str]] = []
    for form in forms:
        files = by_form[form]
        random.Random(f"{seed} {form}").shuffle(files)
        of_directory: Counter[Path] = Counter()
        ranked: list[tuple[bool, Path, Path]] = []
        for folder, path in files:
            of_directory[path.parent] += 1
            ranked.append((of_directory[path.parent] > 2, folder, path))
        ranked.sort(key=itemgetter(0))
        chosen += [(folder, path, form) for _, folder, path in ranked[:count]]
    return chosen


def corrected(
    pipeline: GECPipeline, files: Iterable[tuple[Path, Path, str]], journal: Journal, words: Counter[str]
) -> Iterator[Listed]:
    """Yield the edits of all files, and count the words that were asked about, by format. A file that `gec` refuses is
    named on standard error."""

    def works() -> Iterator[Work[tuple[str, str]]]:
        for folder, path, form in files:
            try:
                with path.open("rb") as stream:
                    parts = list(format_of(path).read(stream))
            except (OSError, ValueError) as error:
                print(f"{path}: left out: {error}", file=sys.stderr)
                continue
            yield from (Work((str(path.relative_to(folder)), form), part, journal, parts) for part in parts)

    line, last = 1, ""
    for done in pipeline.runner.run(works()):
        assert done.part is not None
        text, (name, form) = done.part.text, done.owner
        line, last = line if name == last else 1, name
        asked = [piece.segment for piece in done.pieces if not _is_foreign(piece)]
        words[form] += sum(len(text[edit.start : edit.end].split()) for edit in asked)
        verdicts = [verdict for piece in done.pieces for verdict in piece.checked.verdicts]
        for edit in done.edits:
            was, before = text[edit.start : edit.end], text[max(0, edit.start - _AROUND) : edit.start]
            behind = text[edit.end : edit.end + _AROUND]
            context = " ".join(f"{before}[{was} -> {edit.replacement}]{behind}".split())
            account = next((verdict.account() for verdict in verdicts if _has(verdict.edit, edit)), "")
            yield Listed(name, form, line + text.count("\n", 0, edit.start), context, account)
        line += text.count("\n")


def _is_foreign(piece: Piece) -> bool:
    """Whether a text was left alone because of its language."""
    return piece.checked.refusal is not None and piece.checked.refusal.reason == "language"


def _has(change: Edit, edit: Edit) -> bool:
    return change.start <= edit.start and edit.end <= change.end


def counted(edits: Sequence[Listed], words: Counter[str], verdicts: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Count the verdicts of edits; disagreement is harm."""

    def verdict(edit: Listed) -> str:
        judgements = set(verdicts.get(edit.key, ["not judged"]))
        return judgements.pop() if len(judgements) == 1 else "harmful"

    total = Counter(map(verdict, edits))
    forms = {form: Counter(verdict(edit) for edit in edits if edit.form == form) for form in words}
    return {
        "words": sum(words.values()),
        "edits": len(edits),
        "verdicts": dict(total),
        "harmful per 1,000 words": round(1000 * total["harmful"] / max(1, sum(words.values())), 3),
        "formats": {form: {"words": words[form], **counts} for form, counts in forms.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="List the edits of a corrector in real documents.")
    parser.add_argument("folders", type=Path, nargs="+", help="where documents are looked for")
    parser.add_argument("--forms", nargs="+", default=["md", "rst", "html", "txt", "adoc", "source"])
    parser.add_argument("--count", type=int, default=50, help="files of each format (default: %(default)s)")
    parser.add_argument(
        "--skip", type=int, default=0, help="first files of each format that are left out: settings were chosen on them"
    )
    parser.add_argument("--seed", type=int, default=65)
    parser.add_argument("--model", default="smollm2-correct")
    parser.add_argument("--outcomes", type=Path, required=True, help="journal of the corrector's outputs; continued")
    parser.add_argument("--verdicts", type=Path, help="JSON object from edits to verdicts")
    parser.add_argument("--json", type=Path, help="write counts and edits to this file")
    args = parser.parse_args()
    pipeline = GECPipeline(args.model, guards=GuardOptions())
    identity = {"input": "real documents", **pipeline.corrector.identity}
    words: Counter[str] = Counter()
    seen = {path for _, path, _ in drawn(args.folders, args.forms, args.skip, args.seed)}
    drawn_files = drawn(args.folders, args.forms, args.skip + args.count, args.seed)
    files = [file for file in drawn_files if file[1] not in seen]
    with Journal(args.outcomes, identity, resume=True) as journal:
        edits = list(corrected(pipeline, files, journal, words))
    verdicts = json.loads(args.verdicts.read_text(encoding="utf-8")) if args.verdicts else {}
    result = {"files": len(files), **counted(edits, words, verdicts)}
    print(json.dumps(result, indent=1))
    if args.json:
        listed = [{**asdict(edit), "verdicts": verdicts.get(edit.key)} for edit in edits]
        args.json.write_text(json.dumps({**result, "list": listed}, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
