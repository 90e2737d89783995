"""`copyspec gec` with the bundled model, format by format: corrections are made, and every other byte stays."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest

import copyspec
from copyspec.pipelines import ModelCorrector
from copyspec.pipelines.formats.m2 import applied
from tests.helpers.commands import run_binary
from tests.helpers.docx import docx, p, r, texts, xml_of
from tests.pipelines.test_marked_up import odt

DATA = Path(__file__).parents[3] / "shared" / "data" / "gec"


def both(marked: str) -> tuple[bytes, bytes]:
    """Return the file before and after correction, from text with `[wrong|right]`; lone surrogates become bad bytes."""
    sides = (re.sub(r"\[(\w[\w ]*)\|([\w ]+)\]", rf"\{side}", marked) for side in (1, 2))
    before, after = (side.encode("utf-8", "surrogateescape") for side in sides)
    return before, after


BOAT = "The [childrens|children] came to see the boat."
YEAR = "Next year we [wants|want] to travel to the islands."
HULL = "I painted [the the|the] hull three times."
LATE = "[we|We] were late for the train."

FILES: dict[str, tuple[str, list[str]]] = {
    "a.txt": (f"\ufeff{BOAT}\r\n\r\n\t{YEAR}  \n \x0b\n\ncaf\udce9 the the\n\n{HULL}\r\rIt is late.", []),
    "b.txt": (f"{BOAT}\n\n\n{HULL}\nIt is late.\n", ["--line-mode"]),
    "c.md": (
        "---\ntitle: the the childrens\n---\n\n# The boat\n\n"
        f"{BOAT} See `the the childrens` and [the map](http://wants.example/the%20the?a=wants).\n\n"
        f"- {YEAR}\n  1. {HULL}\n\n> {LATE}\n\n| a | b |\n|---|---|\n| {HULL} | `we wants` |\n\n"
        "```python\nchildrens = 'the the'\n```\n\n    we wants code\n\n<div>the the</div>\n\n$$the the$$\n",
        [],
    ),
    "d.csv": (f'id,text,note\r\n1,"{BOAT}",the the\r\n2,{YEAR},"we, ""wants"""\r\n', ["--column", "text"]),
    "e.tsv": (f"1\t{LATE}\tthe the\n2\t{HULL}\tx\n", ["--column", "2"]),
    "f.jsonl": (f'{{"id": 1,  "body": "{BOAT}", "x": [1.50, "the the"]}}\n\n', ["--field", "body", "--untracked"]),
    "g.src": (f"{BOAT[:-1]} .\n\n{HULL[:-1]} .\nIt is late .\n", ["--format", "parallel"]),
}


@pytest.mark.parametrize("name", FILES)
def test_only_mistakes_change(
    name: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    marked, options = FILES[name]
    before, after = both(marked)
    file, right, missing = tmp_path / name, tmp_path / f"right{Path(name).suffix}", tmp_path / "missing.txt"
    file.write_bytes(before)
    right.write_bytes(after)
    code, out, err = run_binary(capfdbinary, "gec", file, *options)
    assert (code, out) == (0, after) and "1 changed" in err
    is_text = b"caf\xe9" not in before  # what is no text cannot be checked
    code, out, err = run_binary(capfdbinary, "gec", "--check", file, right, *options)
    assert (code, out) == (1 if is_text else 3, b"") and f"would change {file}" in err
    assert f"would change {right}" not in err
    assert run_binary(capfdbinary, "gec", "--check", right, *options)[:2] == (0 if is_text else 3, b"")
    code, out, _ = run_binary(capfdbinary, "gec", "--diff", file, *options, "-q")
    assert code == (1 if is_text else 3) and out.startswith(f"--- a/{name}\n".encode())
    assert run_binary(capfdbinary, "gec", "-i", "--backup", missing, file, *options)[0] == 3
    assert file.read_bytes() == after and Path(f"{file}.bak").read_bytes() == before


def test_edits_of_a_file_applied_to_its_bytes_give_the_output(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    before, after = both(FILES["c.md"][0])
    file = tmp_path / "c.md"
    file.write_bytes(before)
    rows = [json.loads(line) for line in run_binary(capfdbinary, "gec", file, "--edits", "-")[1].splitlines()]
    assert len(rows) == after.count(b"children ") + 4
    made = before
    for row in reversed(rows):
        assert made[row["byte_start"] : row["byte_end"]].decode() == row["orig"]
        made = made[: row["byte_start"]] + row["corr"].encode() + made[row["byte_end"] :]
    assert made == after
    code, out, err = run_binary(
        capfdbinary, "gec", file, "--html", tmp_path / "c.html", "--edits", tmp_path / "c.jsonl"
    )
    assert (code, out) == (0, b""), "a page is shown in place of the text"
    assert run_binary(capfdbinary, "gec", file, "--edits", tmp_path / "c.jsonl")[:2] == (0, after)
    assert f"--html: {tmp_path / 'c.html'}\n" in err and f"--edits: {tmp_path / 'c.jsonl'}\n" in err
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "<title>c.md</title>" in page and str(tmp_path) not in page


def test_headings_cells_and_lone_words_stay(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The bundled model turns these into sentences ("Task. Task."), which must not be applied, in plain text either."""
    pages = {
        "a.md": b"# Task\n\nOwner\n\n| Task | Owner | Due date |\n|---|---|---|\n| Total | Anna | Monday |\n",
        "a.txt": b"Task\n\nDue date\n\nIt is late.\n\nDear Anna,\n",
    }
    for name, page in pages.items():
        (tmp_path / name).write_bytes(page)
        code, out, err = run_binary(capfdbinary, "gec", tmp_path / name)
        assert (code, out) == (0, page), name
    assert "fragment" in err


def test_json_lines_tell_the_correction_beside_the_text(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    before, after = both(f'{{"text": "{BOAT}", "id": 7}}\n{{"text": "It is late.", "id": 8}}\n')
    (tmp_path / "a.jsonl").write_bytes(before)
    code, out, _ = run_binary(capfdbinary, "gec", tmp_path / "a.jsonl")
    first, second = out.splitlines(keepends=True)
    record, right = json.loads(first), json.loads(after.splitlines()[0])
    assert code == 0 and second == before.splitlines(keepends=True)[1]
    assert (record.pop("corrected"), record.pop("edits")[0]["corr"]) == (right["text"], "children")
    assert record == json.loads(before.splitlines()[0])


def test_m2_annotations_give_the_corrected_sentence(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    before, after = (side.decode() for side in both(f"{BOAT[:-1]} .\n{HULL[:-1]} .\nIt is late ."))
    (tmp_path / "a.m2").write_text("".join(f"S {line}\n\n" for line in before.splitlines()))
    code, out, _ = run_binary(capfdbinary, "gec", tmp_path / "a.m2")
    blocks = out.decode().strip().split("\n\n")
    assert code == 0 and [block.splitlines()[0][2:] for block in blocks] == before.splitlines()
    sentences = [applied(block.splitlines()[0][2:], block.splitlines()[1:]) for block in blocks]
    assert sentences == after.splitlines()


def test_word_documents_hold_both_texts(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    file, bold = tmp_path / "a.docx", "<w:b/>"
    file.write_bytes(
        docx(
            p(r("The child"), r("rens came", bold), r(" to see the boat.")), header1=p(r("Next year we wants to sail."))
        )
    )
    code, out, _ = run_binary(capfdbinary, "gec", file)
    assert code == 0
    assert texts(out) == (["The childrens came to see the boat."], ["The children came to see the boat."])
    assert texts(out, "header1")[1] == ["Next year we want to sail."] and xml_of(out).count(bold) >= 1
    assert run_binary(capfdbinary, "gec", "--check", file)[0] == 1
    code, out, _ = run_binary(capfdbinary, "gec", "--diff", file)
    assert code == 1 and b"\n# -The childrens came to see the boat.\n" in out and b"\n# +The children came" in out
    assert run_binary(capfdbinary, "gec", "-i", "--untracked", file)[0] == 0
    assert texts(file.read_bytes())[0] == ["The children came to see the boat."]


@pytest.mark.parametrize("option", ["--check", "--diff", "--list=text"])
def test_a_document_with_tracked_changes_is_not_called_right(
    option: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What an earlier run wrote is not read before somebody has accepted it."""
    file = tmp_path / "a.docx"
    file.write_bytes(docx(p(r("The childrens came to see the boat."))))
    assert run_binary(capfdbinary, "gec", "-i", file)[0] == 0
    code, out, err = run_binary(capfdbinary, "gec", option, "-q", file)
    assert (code, out) == (3, b"") and f"{file} holds tracked changes in 'The " in err
    assert "accept or reject them in Word first" in err
    code, _, err = run_binary(capfdbinary, "gec", "-i", file)
    assert code == 0 and "accept or reject them in Word first" in err and "1 tracked" in err
    inserted = f'<w:ins w:id="1" w:author="a">{r("We saw it. ")}</w:ins>'
    file.write_bytes(docx(p(inserted, r("copyspec: ignore")), p(r("It is here."))))
    code, out, err = run_binary(capfdbinary, "gec", option, file)
    assert (code, out) == (0, b"") and "1 ignored" in err and "tracked" not in err


def test_the_bundled_model_says_that_it_corrects_english(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("Das ist ein Satz, und wir werden ihn nicht mit dem Auto fahren.\n")
    code, _, err = run_binary(capfdbinary, "gec", file, "--language", "de", "--model", "default")
    assert code == 0 and f"{file} holds text in 'de', which the model was not trained to correct" in err
    corrector = ModelCorrector(copyspec.load("default"))
    assert corrector.languages == ("en",) and corrector.identity["model"] == "default", "no path in a journal"


@pytest.mark.parametrize("option", ["--check", "--diff", "--list=text"])
def test_a_broken_record_is_not_called_right(
    option: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "We went home."}\n\n{"text": "We wants\n')
    code, out, err = run_binary(capfdbinary, "gec", option, "-q", file)
    assert (code, out) == (3, b"") and f'{file} line 3 is not a JSON object: \'{{"text": "We wants' in err
    code, out, err = run_binary(capfdbinary, "gec", file)
    assert (code, out) == (0, file.read_bytes()) and "line 3 is not a JSON object" in err and "1 json" in err


def test_an_open_document_is_compared_by_its_text(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    file = tmp_path / "a.odt"
    file.write_bytes(odt("<text:p>The childrens came to see the boat.</text:p>"))
    code, out, _ = run_binary(capfdbinary, "gec", "--diff", file)
    assert code == 1 and b"\n# -The childrens came to see the boat.\n# +The children came" in out and b"PK" not in out


def test_a_diff_of_a_folder_applies_without_its_packed_files(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.docx", "b.txt", "c.docx", "d.txt", "e.odt"):
        words = "The childrens came to see the boat."
        data = {"x": docx(p(r(words))), "t": f"{words}\n".encode(), "d": odt(f"<text:p>{words}</text:p>")}
        (tmp_path / name).write_bytes(data["d" if name.endswith("odt") else name[-1]])
    monkeypatch.chdir(tmp_path)
    code, diff, _ = run_binary(capfdbinary, "gec", "--diff", ".")
    subprocess.run(["git", "apply", "-"], input=diff, cwd=tmp_path, check=True)
    assert code == 1 and diff.count(b"\n# @@") == 3
    assert {(tmp_path / name).read_bytes() for name in ("b.txt", "d.txt")} == {b"The children came to see the boat.\n"}


def test_a_corpus_keeps_its_lines(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Part of JFLEG dev: the number of lines stays, and each line is corrected as if it were alone."""
    if not (DATA / "jfleg_dev.jsonl.gz").exists():
        pytest.skip("no JFLEG here")
    with gzip.open(DATA / "jfleg_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        sources = [json.loads(line)["source"] for line in file]
    lines = [*sources[:24], "", *sources[40:44]]
    (tmp_path / "a.src").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    code, out, _ = run_binary(
        capfdbinary, "gec", tmp_path / "a.src", "--format", "parallel", "--dtype", "float32", "--edits", "-"
    )
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and rows and {row["line"] for row in rows} <= set(range(1, 30)) - {25}
    code, out, _ = run_binary(capfdbinary, "gec", tmp_path / "a.src", "--format", "parallel", "--dtype", "float32")
    output = out.decode().split("\n")
    assert code == 0 and len(output) == len(lines) + 1 and output[24] == "" == output[-1]
    changed = {number for number, (line, new) in enumerate(zip(lines, output, strict=False), 1) if line != new}
    assert changed == {row["line"] for row in rows}
