"""JSON lines, CSV, TSV and M2: records are kept as they were, and corrections are put in the right place."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.pipelines.documents import Edit, Format, FormatError, Refusal, model_text
from copyspec.pipelines.edits.diff import merge, segment_edits
from copyspec.pipelines.formats import FormatOptions, format_of
from copyspec.pipelines.formats.m2 import NOOP, annotated, applied

FIXES = {"teh": "the", "go": "goes", "catt": "cat,"}


def fixed(text: str) -> str:
    return " ".join(FIXES.get(word, word) for word in text.split())


def run(form: Format, data: bytes, *, changes: bool = True) -> tuple[bytes, list[Refusal]]:
    written, refused = [], []
    for part in form.read(io.BytesIO(data)):
        refused += part.refused
        edits = []
        for segment in part.segments:
            text = model_text(part.text, segment)
            edits.append(segment_edits(part.text, segment, fixed(text) if changes else " ".join(text.split())))
        written.append(form.write(part, merge(*edits)))
    return b"".join(written), refused


JSONL = {
    "plain": b'{"text": "He go.", "id": 1}\n{"text": "Fine", "id": 2}\n',
    "odd spacing": b'\t{ "id" :1 ,"text":"He go" }  \r\n\r\n{"text":"x y"}',
    "escapes": b'{"text": "caf\\u00e9 \\"teh\\" \\ud83d\\ude00 \\/", "n": 1e5}\n',
    "raw unicode": '{"text": "café teh “x”", "ключ": null}\n'.encode(),
    "duplicate keys": b'{"text": "a go", "text": "teh b", "x": 1}\n',
    "broken lines": b'{"text": "He go"}\n{"text": oops}\n[1, 2]\n"text"\n{"text": 5}\n{}\n{"text": "a"} {}\n{"t',
    "lone surrogate": b'{"text": "a \\ud800 b"}\n',
    "bad bytes": b'{"text": "He go"}\n{"text": "caf\xe9", "x": 1}\n',
    "byte order mark": b'\xef\xbb\xbf{"text": "He go"}\n',
    "several paragraphs": b'{"text": "He go.\\n\\nteh end\\r\\n"}\n',
    "nested": b'{"a": {"text": "teh"}, "text": "He is", "b": [{}, "}"]}\n',
    "empty": b"",
    "blank": b"\n \n",
    "line separator": '{"text": "a\u2028b\u0085c"}\n'.encode(),
}


@pytest.mark.parametrize("name", JSONL)
def test_json_lines_without_edits_are_the_file(name: str) -> None:
    assert run(format_of("x.jsonl"), JSONL[name], changes=False)[0] == JSONL[name]


def test_json_lines_get_two_more_fields() -> None:
    data = '{"text": "He go  to teh “catt” é", "id": 1}\n{ "id":2,"text":"fine" }\r\n{"x": 0, "text": "teh"}\n'.encode()
    written, refused = run(format_of("x.jsonl"), data)
    first, second, third = written.split(b"\n")[:3]
    assert first.startswith('{"text": "He go  to teh “catt” é", "id": 1, "corrected": "He goes  to the'.encode())
    record = json.loads(first)
    assert list(record) == ["text", "id", "corrected", "edits"]
    assert record["edits"][:2] == [
        {"start": 3, "end": 5, "orig": "go", "corr": "goes"},
        {"start": 10, "end": 13, "orig": "teh", "corr": "the"},
    ]
    assert second == b'{ "id":2,"text":"fine" }\r'
    assert json.loads(third)["corrected"] == "the" and not refused


def test_json_lines_may_be_complete_or_changed_in_place() -> None:
    data = b'{"text": "teh \\u00e9", "id": 1}\n{"id": 2, "text": "fine"}\n{"text": "", "edits": [], "corrected": ""}\n'
    complete = run(format_of("x.jsonl", options=FormatOptions(every_record=True)), data)[0].splitlines()
    assert json.loads(complete[1]) == {"id": 2, "text": "fine", "corrected": "fine", "edits": []}
    assert complete[2] == b'{"text": "", "edits": [], "corrected": ""}'
    assert run(format_of("x.jsonl", options=FormatOptions(in_place=True)), data)[0] == data.replace(b"teh", b"the")


def test_json_lines_use_the_last_of_two_equal_keys() -> None:
    written, _ = run(format_of("x.jsonl"), JSONL["duplicate keys"])
    assert written.startswith(b'{"text": "a go", "text": "teh b", "x": 1, "corrected": "the b", "edits": [')


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_json_lines_written_by_copyspec_are_read_again(line_end: str) -> None:
    form = format_of("x.jsonl")
    data = f'{{"text": "café teh\\n\\nteh, \\udc80", "id": 1}}{line_end}{{"text": "fine"}}'.encode()
    written, refused = run(form, data)
    assert b"caf\xc3\xa9 the" in written and json.loads(written.splitlines()[0])["edits"][0]["corr"] == "the"
    assert [refusal.reason for refusal in refused] == ["encoding"]
    again = run(form, written)
    assert again[0] == written and [refusal.reason for refusal in again[1]] == ["encoding"]


@pytest.mark.parametrize(
    "fields",
    [
        {"edits": ["mine"], "corrected": "human gold"},
        {"corrected": "human gold"},
        {"edits": []},
        {"edits": [], "corrected": "human gold"},
        {"edits": [{"start": 0, "end": 3, "orig": "teh", "corr": "the", "by": "me"}], "corrected": "the boat"},
        {"edits": [{"start": 0, "end": 2, "orig": "teh", "corr": "the"}], "corrected": "theh boat"},
        {"edits": [{"start": -8, "end": 3, "orig": "teh", "corr": "the"}], "corrected": "the boat"},
        {"edits": [{"start": 10**30, "end": 1.5, "orig": "teh", "corr": "the"}], "corrected": "the boat"},
    ],
)
def test_json_lines_keep_fields_of_the_user(fields: dict[str, object]) -> None:
    data = f'{{"text": "teh x"}}\n\n{json.dumps({"text": "teh boat", **fields})}\n'.encode()
    written, refused = run(format_of("x.jsonl"), data)
    assert written.splitlines()[1:] == data.splitlines()[1:] and b'"corr": "the"' in written
    (refusal,) = refused
    names = " and ".join(map(repr, sorted(fields)))
    assert refusal.reason == "taken" and f"line 3 holds {names} that copyspec did not write" in refusal.detail
    assert run(format_of("x.jsonl", options=FormatOptions(in_place=True)), data)[0].count(b'"text": "the ') == 2


@pytest.mark.parametrize("field", ["corrected", "edits"])
def test_json_lines_do_not_overwrite_their_source(field: str) -> None:
    with pytest.raises(ValueError, match=f"field='{field}' is where corrections are written"):
        format_of("x.jsonl", options=FormatOptions(field=field))
    form = format_of("x.jsonl", options=FormatOptions(field=field, in_place=True))
    assert run(form, f'{{"{field}": "teh"}}'.encode())[0] == f'{{"{field}": "the"}}'.encode()


ESCAPED = '"é teh boat.\\n\\nBad \\udc80 here, \\ud800."'
HALVES = {
    "x.jsonl": f'{{"text": {ESCAPED}}}',
    "x.ipynb": f'{{"cells": [{{"cell_type": "markdown", "source": {ESCAPED}}}]}}',
}


@pytest.mark.parametrize("name", HALVES)
def test_escaped_halves_of_characters_stay_escaped(name: str) -> None:
    data, form = HALVES[name].encode(), format_of(name, options=FormatOptions(in_place=True))
    assert run(form, data)[0] == data.replace(b"teh", b"the")
    raw = data.replace(b"\\ud800", b"").replace(b"\\udc80", b"\x80")
    assert run(form, raw)[0] == raw.replace(b"teh", b"the")
    both = data.replace(b"here", b"\x80")
    written, refused = run(form, both)
    assert written == both and "beside escapes" in refused[0].detail


def test_json_lines_count_what_they_cannot_read() -> None:
    _, refused = run(format_of("x.jsonl"), JSONL["broken lines"])
    assert [refusal.reason for refusal in refused] == ["json", "json", "json", "field", "field", "json", "json"]
    assert all(
        re.match(r"line \d+ (is not a JSON object|has no text in field 'text')", refusal.detail) for refusal in refused
    )
    _, refused = run(format_of("x.jsonl"), JSONL["lone surrogate"] + JSONL["bad bytes"])
    assert [refusal.reason for refusal in refused] == ["encoding", "encoding"]
    with pytest.raises(FormatError, match=r"no text in field 'body'; it has 'text', 'id': name the field"):
        run(format_of("x.jsonl", options=FormatOptions(field="body")), JSONL["plain"])
    with pytest.raises(FormatError, match="not a JSON object"):
        run(format_of("x.jsonl"), b"He go\n")
    for value, kind in ((3, "a number"), (None, "null"), ({}, "an object"), ([], "a list"), (True, "a truth value")):
        for more, has in (({}, "no other field$"), ({"a": 1, "b": ""}, "'a', 'b': name the field$")):
            with pytest.raises(FormatError, match=f"no text in field 'text', which holds {kind}; it has {has}"):
                run(format_of("x.jsonl"), json.dumps({"text": value} | more).encode())


@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.text(max_size=9) | st.lists(st.integers()), max_size=4), max_size=6
    )
)
def test_json_lines_of_any_content(records: list[dict[str, object]]) -> None:
    lines = [json.dumps({**record, "text": "teh \ud800"[: 3 + i % 3]}) for i, record in enumerate(records)]
    data = "\n".join(lines).encode()
    written, _ = run(format_of("x.jsonl"), data)
    for i, line in enumerate(written.decode().split("\n") if records else []):
        record = json.loads(line)
        assert {**record, **json.loads(lines[i])} == record
        assert ("corrected" in record) >= (i % 3 < 2)


CSV = {
    "plain": b"id,text\n1,He go\n2,fine\n",
    "quoted": b'id,text,x\r\n1,"He go, ""teh"" end","a"\r\n"2","two\r\nlines",b\r\n',
    "semicolons": b"id;text\n1;He go, teh\n",
    "short rows": b"id,text\n1\n\n2,\n,,\n",
    "stray quotes": b'id,text\n1,a 5" pipe\n2,"not closed\n3,fine\n',
    "quote inside": b'id,text\n1,"a"b\n2,c\n',
    "byte order mark": b'\xef\xbb\xbf"text",id\n"He go",1\n',
    "bad bytes": b"id,text\n1,caf\xe9\n2,ok\n",
    "carriage returns": b"id,text\r1,He go\r2,x\r",
    "no final newline": b'text\n"a"',
    "empty": b"",
}


@pytest.mark.parametrize("name", CSV)
def test_csv_without_edits_is_the_file(name: str) -> None:
    assert run(format_of("x.csv", options=FormatOptions(column="text")), CSV[name], changes=False)[0] == CSV[name]


def test_csv_edits_one_column() -> None:
    form = format_of("x.csv", options=FormatOptions(column="text"))
    written = run(form, b'id,text,x\r\n1,"He go ""teh end""",teh\r\n2,one catt,"x"\r\n3,teh,\n')[0]
    assert written == b'id,text,x\r\n1,"He goes ""teh end""",teh\r\n2,"one cat,","x"\r\n3,the,\n'
    assert run(form, CSV["semicolons"])[0] == b"id;text\n1;He go, the\n"
    assert run(form, b'id,text\n1,"a teh\n\nb teh"\n2,teh')[0] == b'id,text\n1,"a the\n\nb the"\n2,the'
    assert run(form, CSV["stray quotes"] + b"4,teh\n")[0] == CSV["stray quotes"] + b"4,the\n"


def test_csv_columns_by_number_and_their_errors() -> None:
    assert run(format_of("x.csv", options=FormatOptions(column=2)), b"teh,teh\nteh,teh\n")[0] == b"teh,the\nteh,the\n"
    assert run(format_of("x.csv", options=FormatOptions(column="1")), b"teh,teh\n")[0] == b"the,teh\n"
    with pytest.raises(FormatError, match="no column 'body': the first row has 'id', 'text'"):
        run(format_of("x.csv", options=FormatOptions(column="body")), CSV["plain"])
    for column in (3, "3", "9" * 5000):
        with pytest.raises(
            FormatError, match=f"no column '?{column}'?: rows have up to 2, and the first has 'teh', 'b'"
        ):
            run(format_of("x.csv", options=FormatOptions(column=column)), b"teh,b\n\nteh\n")
    title = b"a title\nteh,teh\n"
    assert run(format_of("x.csv", options=FormatOptions(column=2)), title)[0] == b"a title\nteh,the\n"
    with pytest.raises(FormatError, match=r"name the column.*'id', 'text'"):
        run(format_of("x.csv"), CSV["plain"])
    with pytest.raises(FormatError, match="from 1"):
        run(format_of("x.csv", options=FormatOptions(column=0)), CSV["plain"])


def test_tsv_quotes_are_characters_where_they_are_not_closed() -> None:
    form = format_of("x.tsv", options=FormatOptions(column="text"))
    assert (
        run(form, b'id\ttext\n1\ta, "teh" b\n2\t"teh\n3\tteh\t\n')[0] == b'id\ttext\n1\ta, "teh" b\n2\t"teh\n3\tthe\t\n'
    )


cells = st.text(st.sampled_from('ab ",\n;é'), max_size=6)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_csv_against_the_standard_library(rows: list[tuple[str, str]], end: str) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator=end).writerows([("id", "text"), *rows])
    form = format_of("x.csv", options=FormatOptions(column="text"))
    data = out.getvalue().encode()
    parts = list(form.read(io.BytesIO(data)))
    assert b"".join(form.write(part, ()) for part in parts) == data
    assert [part.text for part in parts[1:]] == [row[1] for row in rows]


M2 = (
    b"S He go to teh school .\nA 1 2|||R:VERB|||went|||REQUIRED|||-NONE-|||0\n\n"
    b"S This are fine .\n\nS All is well .\nA -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0\n"
)


def test_m2_writes_the_edits_of_the_hypothesis() -> None:
    written, refused = run(format_of("x.m2"), M2)
    assert not refused
    assert written == (
        b"S He go to teh school .\nA 1 2|||UNK|||goes|||REQUIRED|||-NONE-|||0\nA 3 4|||UNK|||the|||"
        b"REQUIRED|||-NONE-|||0\n\nS This are fine .\n\n"
        b"S All is well .\nA -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0\n"
    )


@pytest.mark.parametrize(
    "data", [b"", b"S a b\n", b"\xef\xbb\xbfS a b\r\n" + NOOP.encode() + b"\r\n\r\nS c\n\n\n", b"junk\n\n"]
)
def test_m2_without_edits_is_the_file(data: bytes) -> None:
    assert run(format_of("x.m2"), data, changes=False)[0] == data


def test_m2_drops_others_annotations() -> None:
    written, _ = run(format_of("x.m2"), M2, changes=False)
    assert written == M2.replace(b"A 1 2|||R:VERB|||went|||REQUIRED|||-NONE-|||0", NOOP.encode())


tokens = st.lists(st.sampled_from(["a", "b", "c", ",", "."]), max_size=8).map(" ".join)


@given(tokens, tokens)
def test_m2_annotations_give_the_hypothesis_exactly(source: str, hypothesis: str) -> None:
    lines = annotated(source, hypothesis)
    assert applied(source, lines) == hypothesis
    assert (lines == [NOOP]) == (source == hypothesis)
    assert applied(source, lines, annotator=1) == source


def test_m2_lines_that_are_none() -> None:
    with pytest.raises(FormatError, match="no annotation: 'A x'"):
        applied("a", ["A x"])


def test_m2_keeps_annotations_of_what_nobody_looked_at() -> None:
    judged, mine = b"S He go .\n", b"A 0 1|||R:X|||b|||REQUIRED|||-NONE-|||0\n"
    for block in (b"S a | b\n" + mine, b"S 1 2\n" + mine, b"S caf\xe9 x\n" + mine, b"S\n" + NOOP.encode() + b"\n"):
        for data in (block + b"\n" + judged + mine, judged + mine + b"\n" + block):
            written, _ = run(format_of("x.m2"), data)
            assert block in written and written.count(b"S He go .\nA 1 2|||UNK|||goes|||") == 1
            assert written.count(mine) == data.count(mine) - 1


def test_columns_are_names_or_numbers() -> None:
    options = FormatOptions(column=np.int64(2))  # type: ignore[arg-type]
    assert run(format_of("x.csv", options=options), b"teh,teh\n")[0] == b"teh,the\n"
    for column in (True, 2.0, ["text"]):
        with pytest.raises(TypeError, match="column must be a name in the first row, or a number from 1; got"):
            format_of("x.csv", options=FormatOptions(column=column))  # type: ignore[arg-type]


def test_json_lines_may_be_as_long_as_a_book() -> None:
    words = ("fine" * 10 + " ") * 55_000
    data = f'{{"text": "teh {words}", "id": 1}}\n{{"text": "teh", "id": 2}}\n'.encode()
    written, refused = run(format_of("x.jsonl", options=FormatOptions(in_place=True)), data)
    assert written == data.replace(b"teh", b"the") and not refused


def test_json_lines_in_another_encoding_get_escapes() -> None:
    form = format_of("x.jsonl")
    (part,) = form.read(io.BytesIO(b'{"text": "fur", "name": "M\xfcller"}\n'))
    assert b'"M\xfcller", "corrected": "f\\u00fcr"' in form.write(part, [Edit(0, 3, "für")])
    (part,) = form.read(io.BytesIO('{"text": "fur", "name": "Müller"}\n'.encode()))
    assert '"Müller", "corrected": "für"'.encode() in form.write(part, [Edit(0, 3, "für")])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_for_excel_names_the_delimiter(end: str) -> None:
    for mark, before in ((";", "sep=;"), ("\t", "SEP=\t"), (":", "\ufeffsep=:")):
        data = end.join([before, f"id{mark}text,more", f"1{mark}teh b", ""]).encode()
        written = run(format_of("x.csv", options=FormatOptions(column="text,more")), data)[0]
        assert written == data.replace(b"teh", b"the")
    assert run(format_of("x.csv", options=FormatOptions(column=1)), b"sep=;")[0] == b"sep=;"


def test_delimiters_in_quotes_are_none() -> None:
    form = format_of("x.csv", options=FormatOptions(column="text"))
    assert run(form, b'"a, b, c";text\n"d, e";teh\n')[0] == b'"a, b, c";text\n"d, e";the\n'
