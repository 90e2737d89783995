"""Tests `copyspec gec` on real files: only prose may change, whatever the model writes.

    python -m tests.fuzz.real_files FOLDER [FOLDER ...] --json OUT

Every file of a known format is corrected twice. With a function that changes nothing, the file must remain the same
byte for byte. With a function that changes every second word, prose or not, behind guards that accept changed words,
everything must remain that an independent reader does not take for prose: links, headings that they name, code, tags,
time codes, placeholders, mathematics and keys by regular expressions, source files by pygments' tokens, notebooks by
their JSON, packed documents by their other members and tags.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import shutil
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from copyspec.pipelines import FileOptions, FormatOptions, FunctionCorrector, GECPipeline, GuardOptions, correct_files
from copyspec.pipelines.formats.suffixes import LANGUAGES, SUFFIXES, suffix_of  # type: ignore[import-not-found]
from kit.reporting import machine, write_json
from tests.fuzz.files_checks import Found

EVERY = 2  # every so many words, one is changed
GUARDS = GuardOptions(
    allow_names=True,
    allow_new_words=True,
    allow_swaps=True,
    any_language=True,
    max_edit_ratio=9.0,
    max_lost_ratio=9.0,
    precision=0.0,
)
_LINK = r"https?://[^\s<>\"'`\])}|\\^]+"
_UNTOLD = re.compile(r"<w:t\b[^<>]*>|<w:lastRenderedPageBreak ?/>")
"""Tags that may differ in an edited run: whether spaces are preserved, and where a page ended, which Word
recomputes."""
_CODE = r"(?s)(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)"
_LISTING = r"(?ms)(?:(?<=\n\n)|(?<=\n\+\n)|(?<=\]\n))^-{4,}$.*?^-{4,}$"  # not the underline of a title
PROTECTED: dict[str, tuple[str, ...]] = {
    "md": (_LINK, _CODE, r"(?ms)^```.*?^```", r"\]\([^)\s]*\)", r"<!--.*?-->", r"</?[a-z][^<>\n]*>"),
    "rst": (_LINK, r"(?s)``.+?``", r"(?m)^\s*\.\. [\w-]+::.*$", r":[\w:+-]+:`[^`]+`", r"(?m)^\s*:[\w -]+:",
            r"\|[\w-]+\|_?"),
    "adoc": (_LINK, r"`[^`\n]+`", r"(?m)^:[\w!-]+:.*$", r"<<[^>\n]+>>", r"\{[\w-]+\}", _LISTING,
             r"\w+::?\S*\[[^\]\n]*\]"),
    "latex": (
        r"\\[A-Za-z@]+\*?",
        r"(?<!\\)\$[^$\n]+\$",
        r"\\(?:label|ref|cite\w*|input|include|usepackage|url|begin|end)(?:\[[^\]]*\])?\{[^}]*\}",
        r"(?s)\\begin\{(verbatim|lstlisting|equation|align)\*?\}.*?\\end\{\1\*?\}",
        r"(?<!\\)%.*",
    ),
    "html": (r"(?s)<!--.*?-->", r"(?s)<(script|style|pre|code)\b.*?</\1\s*>", r"<[^<>]*>", r"&#?\w+;", _LINK),
    "po": (r"(?m)^#.*$", r'(?m)^msgid(?:_plural)? .*(?:\n".*)*', r"%\(\w+\)[sdif]", r"%[sdif]", r"\{\w*\}",
           r"<[^<>]*>", _LINK),
    "srt": (r"(?m)^.*-->.*$", r"(?m)^\d+\s*$", r"</?[a-z][^<>\n]*>", r"\{\\[^}]*\}", r"(?ms)^(?:NOTE|STYLE)\b.*?^\s*$"),
    "txt": (_LINK,),
}  # fmt: skip


def broken(text: str) -> str:
    """Change every second word of the text."""
    count = 0

    def changed(word: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return word[0] + "zz" if count % EVERY == 0 else word[0]

    return re.sub(r"[^\W\d_]{2,}", changed, text)


def stretches(name: str, data: bytes) -> Counter[str]:
    """Count the pieces of a file of that format that must remain."""
    if name in ("odt", "docx"):
        return _packed(data)
    text = data.decode("utf-8", "surrogateescape")
    if name == "ipynb":
        return _notebook(text)
    if name == "python":
        return _statements(text)
    if name in LANGUAGES:
        return _tokens(text, name)
    return _found(text, PROTECTED.get(name, ())) + _named(text, name)


def _found(text: str, patterns: Iterable[str]) -> Counter[str]:
    return Counter(match[0] for pattern in patterns for match in re.finditer(pattern, text))


def _named(text: str, name: str) -> Counter[str]:
    """Return the headings that links name, as anchors are made of them."""
    heading, link = {
        "md": (r"(?m)^#{1,6} (.+?)[ #]*$", r"\]\(#([^()\s]+)\)"),
        "rst": (r"(?m)^(\S.+)\n[=~^-]{3,}$", r"`([^`<>]+)`_"),
        "adoc": (r"(?m)^={2,5} (.+)$", r"<<_?([^<>,]+)"),
    }.get(name, ("(?!)", "(?!)"))

    def anchor(words: str) -> str:
        return re.sub(r"\W+", "-", words.replace("_", "-").lower()).strip("-")

    links = {anchor(link_text) for link_text in re.findall(link, text)}
    return Counter(heading_text for heading_text in map(anchor, re.findall(heading, text)) if heading_text in links)


def _tokens(text: str, name: str) -> Counter[str]:
    """Return everything except comments and documentation, in order."""
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment, String, Whitespace

    def is_code(kind: object) -> bool:
        return (
            kind not in Comment or kind in Comment.Preproc or kind in Comment.PreprocFile
        ) and kind not in String.Doc

    lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    code = [(str(kind), value) for kind, value in lexer.get_tokens(text) if is_code(kind) and kind not in Whitespace]
    return Counter({f"{number} {token}": 1 for number, token in enumerate(code)})


def _statements(text: str) -> Counter[str]:
    """Return a Python module without its comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for name, body in ast.iter_fields(node):
            if isinstance(body, list):
                setattr(node, name, [statement for statement in body if not _is_documentation(statement)])
    return Counter([ast.dump(tree)])


def _is_documentation(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _notebook(text: str) -> Counter[str]:
    book = json.loads(text)
    protected: Counter[str] = Counter()
    for cell in book.get("cells", ()):
        if cell.get("cell_type") == "markdown":
            source = cell.pop("source")
            protected += _found(source if isinstance(source, str) else "".join(source), PROTECTED["md"])
    return protected + Counter([json.dumps(book)])


def _packed(data: bytes) -> Counter[str]:
    tags_counted: Counter[str] = Counter()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.namelist():
            content = archive.read(member)
            if member.endswith(".xml"):  # text may change in any of them, but tags must not be lost or added
                tags = re.findall(r"<[^<>]*>", content.decode("utf-8", "replace"))
                tags_counted.update(f"{member} {tag}" for tag in tags if not _UNTOLD.fullmatch(tag))
            else:
                tags_counted[f"{member} {hash(content)}"] += 1
    return tags_counted


def one(path: Path, outcome: Found) -> None:
    """Test one file with both functions."""
    name, data = SUFFIXES[suffix_of(path)], path.read_bytes()
    outcome.files[name] += 1
    for what, function in (("identity", str), ("every second word", broken)):
        with tempfile.TemporaryDirectory(prefix="copyspec-real-") as folder:
            copy = Path(shutil.copy(path, folder))
            written, edits = _corrected(name, copy, function, outcome)
        outcome.edits += edits
        if what == "identity":
            if written != data:
                outcome.say("changed by nothing", str(path))
            continue
        try:
            before = stretches(name, data)
        except (ValueError, SyntaxError):
            continue  # for example invalid JSON, which was refused too
        lost = before - stretches(name, written)
        if lost:
            outcome.say("lost", str(path), f"{sum(lost.values())}: {list(lost)[:3]!r}")


def _corrected(name: str, path: Path, function: Callable[[str], str], outcome: Found) -> tuple[bytes, int]:
    runner = GECPipeline(FunctionCorrector(function, name=function.__name__), guards=GUARDS).runner
    options = FileOptions(name, FormatOptions(in_place=True), in_place=True)
    (report,) = correct_files(runner, [path], options)
    if report.error is not None:
        outcome.refused[f"{name}: {type(report.error).__name__}: {str(report.error)[:80]}"] += 1
    return path.read_bytes(), report.summary.edits


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=sys.maxsize, help="maximum files per format, the first by name")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    started, outcome, skipped = time.perf_counter(), Found(), 0
    paths = sorted(path for folder in args.folders for path in folder.rglob("*") if path.is_file())
    for path in paths:
        name = SUFFIXES.get(suffix_of(path), "csv")
        if name in ("csv", "tsv", "jsonl", "m2") or outcome.files[name] >= args.most:
            skipped += 1  # records and tables are corrected only if a field or column is named
            continue
        one(path, outcome)
    for kind, count in sorted(outcome.files.items()):
        print(f"{kind:12} {count}")
    print(
        f"{outcome.edits} edits, {skipped} files skipped, wrong: {dict(outcome.wrong)}, "
        f"refused: {dict(outcome.refused)}"
    )
    print(*outcome.examples, sep="\n")
    if args.json is not None:
        report = {
            "machine": machine(),
            "files": dict(outcome.files),
            "edits": outcome.edits,
            "refused": dict(outcome.refused),
            "wrong": dict(outcome.wrong),
            "examples": outcome.examples,
            "seconds": round(time.perf_counter() - started, 1),
        }
        write_json(args.json, report)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
