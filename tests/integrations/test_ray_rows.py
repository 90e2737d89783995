"""Runs on Ray leave what is not theirs: other columns byte for byte, no row of a changed input, no folder in pieces."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from copyspec.integrations.ray import files, run, runs
from copyspec.integrations.ray.columns import ERROR
from copyspec.integrations.ray.json_rows import LineRow, dumped, written
from copyspec.integrations.ray.parts import RowPart, split


class Upper:
    def __init__(self) -> None:
        self.identity = {"task": "upper"}

    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        errors = [None if isinstance(text, str) else "no text" for text in batch["text"]]
        copied = {name: json.loads(json.dumps(list(column))) for name, column in batch.items()}
        return {**copied, "to": [isinstance(text, str) and text.upper() for text in batch["text"]], ERROR: errors}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the work in this process."""
    for module in (runs, files):
        monkeypatch.setattr(module, "mapped", lambda work, items, *_: (work(item) for item in items))


def ran(tmp_path: Path, content: bytes, name: str = "in.jsonl") -> tuple[list[str], list[str]]:
    """The lines with a result and those without one, as they are in the files."""
    (tmp_path / name).write_bytes(content)
    report = run(Upper(), tmp_path / name, tmp_path / "out", rows_per_part=2)
    done, failed = lines_in(tmp_path / "out"), lines_in(tmp_path / "out" / "failed")
    assert (report.rows, report.failed) == (len(done), len(failed))
    return done, failed


def lines_in(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().decode().split("\n")[:-1]]


VALUES = [
    "12345678901234567890123456789012345678901234567890", "1" * 5000, "1e400", "-1E-400", "0.1234567890123456789012345",
    "-0", "-0.0", "1.0", "1.10", "1E5", "NaN", "-Infinity", "true", "null", '"\\u0041\\/\\ud83d\\ude00"', '"é🙂\u2028"',
    '"\\ud800"', "[1, 2 ,3.50]", '{"a":1.0, "a":2,"b" : [ ]}', '""', '{"x": {"x": {"x": 1e999}}}', '"\\t\\"}],{"',
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:30])
@pytest.mark.parametrize(
    "form",
    [
        '{"text": "a", "x": VALUE}',
        '{"x":VALUE,"text":"a"}',
        ' { "x" : VALUE ,\t"text" : "a" } ',
        '{"\\u0078":VALUE, "text": "a"}',
    ],
)
def test_other_columns_stay_byte_for_byte(value: str, form: str, tmp_path: Path) -> None:
    line = form.replace("VALUE", value)
    (done,), failed = ran(tmp_path, line.encode() + b"\n")
    begin, end = line.strip().rsplit("}", 1)[0].rstrip(), done.rindex('"to"')
    assert not failed and done[: len(begin)] == begin and done[end:].split("}")[0].rstrip() == '"to": "A"'


def test_other_columns_stay_in_any_order(tmp_path: Path) -> None:
    draw, lines = random.Random(0), []
    for number in range(200):
        members = [f'"c{i}"{draw.choice(["", " "])}:{draw.choice(["", " "])}{draw.choice(VALUES)}' for i in range(3)]
        members += ['"text": ' + draw.choice(['"a"', "7", "null"]), f'"n": {number}']
        members += draw.choice([[], ['"to": "old"'], [f'"{ERROR}": "old"'], ['"to": 1', f'"{ERROR}":2', '"to":3']])
        draw.shuffle(members)
        lines.append("{" + draw.choice([",", ", ", " , "]).join(members) + "}")
    done, failed = ran(tmp_path, "\n".join(lines).encode())
    results = {LineRow(line)["n"]: line for line in (*done, *failed)}
    assert sorted(results) == list(range(200))
    for number, line in enumerate(lines):
        before, after = LineRow(line), LineRow(results[number])
        assert ERROR not in after
        assert after["to"] == (before["text"].upper() if isinstance(before["text"], str) else False)
        for name in (f"c{i}" for i in range(3)):
            assert members_of(after.line)[name] == members_of(before.line)[name]


def members_of(line: str) -> dict[str, str]:
    from copyspec.integrations.ray.json_rows import _members

    return {name: line[value:stop] for name, _, value, stop in _members(line)}


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_carriage_returns_between_members_are_space(end: bytes, last: bool, tmp_path: Path) -> None:
    lines = [b'{"text": "one",\r "id": 1}', b'{\r"text"\r:\r"two"\r,\r"id":\r2\r}\r', b'\r{"text": "three", "id": 3}']
    done, failed = ran(tmp_path, end.join(lines) + (end if last else b""))
    assert [json.loads(line)["id"] for line in done] == [1, 2, 3] and not failed
    assert not any("\r" in line for line in done)


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"50 %\r75 %\r100 %\nnext line\n", ["50 %\r75 %\r100 %", "next line"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb", ["a\r", "b"]),
        (b"\n\nx\x0by\x1c\n", ["", "", "x\x0by\x1c"]),
        ("a\u2028b\u0085c\n".encode(), ["a\u2028b\u0085c"]),
    ],
)
def test_lines_of_text_end_at_line_feeds(content: bytes, texts: list[str], tmp_path: Path) -> None:
    done, failed = ran(tmp_path, content, "in.txt")
    assert [json.loads(line)["text"] for line in done] == texts and not failed


def test_what_json_lacks_is_written_as_protobuf_does() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.timezone.utc)
    row = {
        "raw": b"\x00\xff", "when": moment, "day": moment.date(), "time": moment.time(), "nan": math.nan,
        "list": [-math.inf, {"a": (b"a", np.float32("inf"))}], "price": decimal.Decimal("1.10"), "int": np.int64(2**62),
        "array": np.array([1.5, math.nan]), "text": "é", "none": None, "yes": True,
    }  # fmt: skip
    assert json.loads(written(row, {"to": b"x"}, without="yes"), parse_constant=pytest.fail) == {
        "raw": "AP8=", "when": "2026-01-02T03:04:05.678901+00:00", "day": "2026-01-02", "time": "03:04:05.678901",
        "nan": "NaN", "list": ["-Infinity", {"a": ["YQ==", "Infinity"]}], "price": "1.10", "int": 2**62,
        "array": [1.5, "NaN"], "text": "é", "none": None, "to": "eA==",
    }  # fmt: skip
    assert dumped(2**70) == str(2**70)


def rows(number: int) -> bytes:
    return b"".join(b'{"text": "row %d"}\n' % i for i in range(number))


CHANGES = {
    "inserted before": b'{"text": "new"}\n' + rows(12),
    "another row": rows(12).replace(b"row 7", b"row 0"),
    "another end": rows(11) + b'{"text": "row xy"}\n',
    "cut": rows(9),
    "empty": b"",
    "longer line": rows(12).replace(b"row 5", b"row 5 and more"),
    "lines exchanged": b"".join(reversed(rows(12).splitlines(keepends=True))),
    "other ends": rows(12).replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_input_that_changes_meanwhile_is_an_error(name: str, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(rows(12))
    parts, times = list(split([str(file)], 4)), file.stat()
    file.write_bytes(CHANGES[name])
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    writer, errors = runs.PartWriter(Upper(), tmp_path / "out"), 0
    for part in parts:
        try:
            writer(part.to_dict())
        except ValueError as error:
            assert "in.jsonl' has changed while it was worked on" in str(error)
            errors += 1
    texts = [json.loads(line)["text"] for line in lines_in(tmp_path / "out")]
    assert errors > 0 and len(texts) == len(set(texts)) and set(texts) <= {f"row {i}" for i in range(12)}


def test_parts_of_an_unknown_digest_are_read() -> None:
    assert RowPart("a.txt", 0, 0, 1).digest == ""


@pytest.mark.parametrize("end", range(1, 12))
@pytest.mark.parametrize("where", ["fsync", "replaced"])
def test_a_run_that_is_killed_anywhere_goes_on(
    end: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output, calls = tmp_path / "in.jsonl", tmp_path / "out", 0
    source.write_bytes(rows(3) + b'{"text": 7}\n' + b"broken\n" + rows(2))

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls == end:
            raise KeyboardInterrupt

    plain = Path.replace
    with monkeypatch.context() as patch:
        if where == "fsync":
            patch.setattr(runs.os, "fsync", lambda _: count())
        else:
            patch.setattr(Path, "replace", lambda self, target: (plain(self, target), count())[0])
        with pytest.raises(KeyboardInterrupt):
            run(Upper(), source, output, rows_per_part=2)
    report = run(Upper(), source, output, rows_per_part=2)
    assert (report.rows, report.failed) == (5, 2)
    done = [json.loads(line)["to"] for line in lines_in(output)]
    assert done == ["ROW 0", "ROW 1", "ROW 2", "ROW 0", "ROW 1"]
    assert len(lines_in(output / "failed")) == 2


def test_failures_of_an_attempt_that_was_killed_do_not_stay(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(rows(2))
    (part,) = split([str(tmp_path / "in.jsonl")], 4)
    left = tmp_path / "out" / "failed" / f"{part.name}.jsonl"
    left.parent.mkdir(parents=True)
    left.write_text('{"error": "no memory"}\n')
    assert runs.PartWriter(Upper(), tmp_path / "out")(part.to_dict())["failed"] == 0 and not left.exists()
