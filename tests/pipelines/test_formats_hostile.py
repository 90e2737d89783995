"""Hostile files of every format: read in linear time or refused, and no output of a model breaks them."""

from __future__ import annotations

import csv
import io
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable

import pytest

from copyspec.pipelines import FormatOptions, FunctionCorrector, Part, Runner, RunOptions, Work, format_of
from copyspec.pipelines.documents import Edit, FormatError, Segment
from copyspec.pipelines.edits.diff import stray
from tests.fuzz.files_cases import OPEN
from tests.helpers.docx import docx, p, r, texts


def corrected(form: str, data: bytes, correct: Callable[[str], str], **options: object) -> tuple[bytes, list[str]]:
    """Return the file corrected with open guards, and the reasons for rejected edits and skipped segments."""
    file_format = format_of("-", form, options=FormatOptions(**options))  # type: ignore[arg-type]
    runner = Runner(FunctionCorrector(correct), RunOptions(OPEN))
    out, reasons = [], []
    for done in runner.run(Work(None, part) for part in file_format.read(io.BytesIO(data))):
        assert done.part is not None
        out.append(file_format.write(done.part, done.edits))
        reasons += [refusal.reason for refusal in done.refusals]
        reasons += [refusal.reason for piece in done.pieces for refusal in piece.checked.dropped]
    return b"".join(out), reasons


def replacing(*pairs: tuple[str, str]) -> Callable[[str], str]:
    def correct(text: str) -> str:
        for was, new in pairs:
            text = text.replace(was, new)
        return text

    return correct


def seconds(form: str, data: bytes, **options: object) -> float:
    """CPU seconds for reading and writing."""
    file_format = format_of("-", form, options=FormatOptions(**options))  # type: ignore[arg-type]
    started = time.process_time()
    assert b"".join(file_format.write(part, ()) for part in file_format.read(io.BytesIO(data))) == data
    return time.process_time() - started


# -- linear time --------------------------------------------------------------------------------------------------

LONG = 60_000


@pytest.mark.parametrize(
    "text",
    [
        "a" + "`" * LONG,
        "a " + " ".join("`" * n for n in range(1, 340)),
        "a " + "<a> " * (LONG // 4),
        "a " + "<!--" * (LONG // 4),
        "a " + "{{" * (LONG // 2),
        "# a" + " " * LONG + "b",
        "# a" + " #" * (LONG // 2) + "b",
        "- " * (LONG // 2) + "b",
        "1. > " * (LONG // 5) + "b",
        "> " * (LONG // 2) + "b",
        "| a " * (LONG // 4) + "|\n|---|\n" + "| b " * (LONG // 4),
        "a](" * (LONG // 3),
        "\r" * LONG,
    ],
    ids=lambda text: text[:12],
)
def test_markdown_takes_linear_time(text: str) -> None:
    assert seconds("md", text.encode()) < 1.5


def test_records_and_cells_take_linear_time() -> None:
    quoted = b'text\n"' + b"he go, " * (1 << 18) + b'"\n"a",' + b'"' * 60_001
    assert seconds("csv", quoted, column=1) < 3
    for value in (b"[" * 100_000 + b"]" * 100_000, b"9" * 1_000_000, b"[" * 100_000):
        line = b'{"text": "he go", "n": 1}\n{"text": "he go", "n": ' + value + b"}\n"
        assert seconds("jsonl", line) < 2


@pytest.mark.parametrize(
    "body",
    [
        "<w:p>" * 8000 + r("a") + "</w:p>" * 8000,
        p(*[r("a")] * 8000),
        p("<w:r>" + "<w:t>a</w:t>" * 8000 + "</w:r>"),
        f'<w:p a="{"x" * 1_000_000}">{r("a")}</w:p>',
    ],
    ids=["nested", "runs", "texts", "attribute"],
)
def test_word_documents_take_linear_time(body: str) -> None:
    form, data = format_of("a.docx"), docx(body)
    started = time.process_time()
    (part,) = form.read(io.BytesIO(data))
    edits = [Edit(at, at + 1, "b") for at in range(0, len(part.text) - 1, 2) if part.text[at] == "a"]
    assert form.write(part, edits) != data
    assert time.process_time() - started < 3


# -- archives that lie --------------------------------------------------------------------------------------------


def understated(data: bytes, name: bytes, size: int) -> bytes:
    """Return the archive with a smaller size of a file in both of its headers."""
    for mark, place in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = data.index(mark)
        while name not in data[at : at + 100]:
            at = data.index(mark, at + 4)
        data = data[: at + place] + struct.pack("<I", size) + data[at + place + 4 :]
    return data


def test_archives_unpack_in_bounded_memory() -> None:
    bomb = docx(p(r("a" * (40 << 20))))
    for data in (bomb, understated(bomb, b"word/document.xml", 100)):
        tracemalloc.start()
        with pytest.raises(FormatError, match=r"unpacks to more than 8 MB|not a readable Word document"):
            list(format_of("a.docx").read(io.BytesIO(data)))
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
        tracemalloc.stop()


def test_the_limit_on_unpacking_counts_all_files() -> None:
    half = p(r("a" * (5 << 20)))
    with pytest.raises(FormatError, match=r"the text up to 'word/header1\.xml' unpacks to more than 8 MB: .* 64 MB at"):
        list(format_of("a.docx").read(io.BytesIO(docx(half, header1=half))))


def test_archives_that_no_word_processor_writes_are_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("word/document.xml", "<a/>")
    packed = out.getvalue()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("word/document.xml", "<a/>")
        archive.writestr("word/document.xml", "<b/>")
    broken = bytearray(docx(p(r("he go home"))))
    broken[broken.index(b"word/document.xml") + 40] ^= 0xFF
    for data, message in [
        (packed, "packed by method 12"),
        (out.getvalue(), "same name"),
        (bytes(broken), "readable Word"),
    ]:
        with pytest.raises(FormatError, match=message):
            list(format_of("a.docx").read(io.BytesIO(data)))


def test_other_files_of_an_archive_are_copied_as_they_are() -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b"mine"
        archive.writestr("word/media/big.bin", bytes(50 << 20))
        archive.writestr("../x", b"y", zipfile.ZIP_BZIP2)
        with zipfile.ZipFile(io.BytesIO(docx(p(r("he go"))))) as inside:
            archive.writestr("word/document.xml", inside.read("word/document.xml"))
    tracemalloc.start()
    new, _ = corrected("docx", data.getvalue(), lambda text: text.replace("go", "goes"))
    assert tracemalloc.get_traced_memory()[1] < 20 << 20, "what is not changed is not unpacked"
    tracemalloc.stop()
    with zipfile.ZipFile(io.BytesIO(new)) as archive:
        assert archive.testzip() is None and archive.comment == b"mine" and archive.read("../x") == b"y"
        assert archive.getinfo("../x").compress_type == zipfile.ZIP_BZIP2
    assert texts(new)[1] == ["he goes"]


# -- what models write --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "tsv"])
@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "＝", "= ", " ="])
def test_no_cell_becomes_a_formula(form: str, start: str) -> None:
    mark = "," if form == "csv" else "\t"
    cells = ["he go home", '"he go home"', " he go home", "the he go home"]
    data = "\n".join(f"{cell}{mark}x" for cell in cells).encode()
    for correct in (lambda text: start + text, lambda text: start + text[2:], lambda text: text.replace("he ", start)):
        out, _ = corrected(form, data, correct, column=1)
        for line in out.decode().splitlines():
            assert line.lstrip('" ')[:1] in "ht", out
    with pytest.raises(FormatError, match="formula"):
        (part, *_) = format_of("-", form, options=FormatOptions(column=1)).read(io.BytesIO(data))
        format_of("-", form, options=FormatOptions(column=1)).write(part, [Edit(0, 2, "=1")])


def test_formulas_stay_and_what_only_looks_like_one_is_corrected() -> None:
    data = b"=HYPERLINK(a go),x\n- he go,x\n@anna he go,x\n"
    out, reasons = corrected("csv", data, lambda text: text.replace("go", "goes"), column=1)
    assert out == data.replace(b"he go", b"he goes") and reasons == ["formula"]
    assert corrected("csv", b"the =1+1 is,x\n", lambda text: text[4:], column=1)[0] == b"the =1+1 is,x\n"


def test_quotes_and_delimiters_keep_their_cells() -> None:
    data = b'a,text\n1,he go\n2,5" pipes he go\n3,"he go"\n'
    for brought in ('"', ",", '","', '""', "\n", "\r\n=1"):
        out, _ = corrected("csv", data, lambda text, brought=brought: text.replace("go", "go" + brought), column="text")
        form = format_of("-", "csv", options=FormatOptions(column="text"))
        parts = list(form.read(io.BytesIO(out)))
        assert len(parts) == 4 and parts[2].text.startswith('5" pipes he go') and out.count(b"\n") == 4
    assert b'2,5" pipes he go\n' in corrected("csv", data, lambda text: text.replace('"', ""), column="text")[0]


@pytest.mark.parametrize(
    "inside", ["we see it, we has one catt here\n" * 200, "we has one catt here, " * 5000], ids=["lines", "line"]
)
def test_no_quotes_come_into_a_cell_that_is_too_long(inside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would end it. In a cell whose end is known, a new comma brings quotes."""
    monkeypatch.setattr("copyspec.pipelines.formats.delimited._RECORD_LIMIT", 1000)
    monkeypatch.setattr("copyspec.pipelines.formats.reading.LINE_LIMIT", 1000)
    data = f'id,text,more\n1,we has one catt here,x\n2,"{inside}",y\n3,we see teh boat here,z\n'.encode()
    out, reasons = corrected("csv", data, replacing(("teh", "the"), ("catt", "cat,")), column="text")
    assert out.startswith(b'id,text,more\n1,"we has one cat, here",x\n2,"')
    assert out.endswith(b'",y\n3,we see the boat here,z\n') and out.count(b'"') == 4
    assert set(reasons) == {"markup"}
    rows = list(csv.reader(io.StringIO(out.decode(), newline="")))
    assert [row[0] for row in rows] == ["id", "1", "2", "3"]


@pytest.mark.parametrize(
    "char", ["\ufffd", "\ud800", "\0", "\x1b", "\u202e", "\u2066", "\ufeff", "\u200b", "\uffff", "\x85"]
)
@pytest.mark.parametrize("form", ["txt", "md", "csv", "jsonl", "m2", "docx"])
def test_characters_that_are_no_text_are_never_written(form: str, char: str) -> None:
    line = "he go to the house of his mother ."
    data = {"jsonl": f'{{"text": "{line}"}}', "m2": f"S {line}"}.get(form, line).encode()
    data = docx(p(r(line))) if form == "docx" else data
    for correct in (
        lambda text: text.replace("house", f"ho{char}se"),
        lambda text: text.replace("of", f"of {char} of"),
    ):
        out, _ = corrected(form, data, correct, column=1, in_place=True)
        text = "".join(texts(out)[1]) if form == "docx" else out.decode("utf-8", "surrogatepass")
        assert char not in text
    file_format = format_of("-", form, options=FormatOptions(column=1))
    (part, *_) = file_format.read(io.BytesIO(data))
    if char != "\x85":
        with pytest.raises(FormatError, match="which is not text"):
            file_format.write(part, [Edit(0, 2, char)])


def test_characters_of_the_text_may_be_copied() -> None:
    assert stray("a\u200bb", "x\u200b") is None and stray("a\u200b\u200b", "x\u200b") == "\u200b"
    assert stray("می\u200cخواهم 👩\u200d👧 é", "") is None and stray("a\tb", "") == "\t"


TOKENS = ["<|endoftext|>", "[INST]", "[/INST]", "<s>", "</s>", "<pad>", "<<SYS>>", "{{x}}", "{name}", "<extra_id_0>"]


@pytest.mark.parametrize(
    "token", [*TOKENS, "<｜begin▁of▁sentence｜>", "[MASK]", "<0x0A>", "%(name)s", "${x}", "<a href='x y'>"]
)
@pytest.mark.parametrize("form", ["txt", "md", "csv", "jsonl", "m2", "docx"])
def test_special_tokens_stay(form: str, token: str) -> None:
    line = f"he go to {token} the house of his mother ."
    escaped = line.replace("&", "&amp;").replace("<", "&lt;")
    data = {"jsonl": f'{{"text": "{line}"}}', "m2": f"S {line}"}.get(form, line).encode()
    data = docx(p(r(escaped[:6]), r(escaped[6:]))) if form == "docx" else data
    inside = len(token) // 2
    for broken in (token[:inside] + " " + token[inside:], token[:inside] + token[inside:].upper() + "x", ""):
        out, _ = corrected(
            form,
            data,
            lambda text, broken=broken: text.replace(token, broken).replace("go", "goes"),
            column=1,
            in_place=True,
        )
        text = texts(out)[1][0] if form == "docx" else out.decode()
        assert token in text and (form == "m2" or "goes" in text)


# -- labels -------------------------------------------------------------------------------------------------------


def label_parts() -> list[tuple[str, bytes, dict[str, object]]]:
    cell = "<w:tbl><w:tr><w:tc><w:p>{}</w:p></w:tc></w:tr></w:tbl>"
    heading = '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr>{}</w:p>'
    return [
        ("csv", b"x,text\n1,total cost of it\n", {"column": "text"}),
        ("tsv", b'1\t"total cost of it"\n', {"column": 2}),
        ("md", b"| a | b |\n|---|---|\n| **total** cost of it | c |\n", {}),
        ("md", b"# total cost of it\n", {}),
        ("docx", docx(cell.format(r("total cost of it"))), {"in_place": True}),
        ("docx", docx(heading.format(r("total cost of it"))), {"in_place": True}),
    ]


@pytest.mark.parametrize(("form", "data", "options"), label_parts())
def test_cells_and_headings_take_on_no_capital(form: str, data: bytes, options: dict[str, object]) -> None:
    for new in ("Total", "The total", "Totals", "The"):
        out, _ = corrected(
            form, data, lambda text, new=new: text.replace("total", new).replace("cost", "costs"), **options
        )
        text = texts(out)[1][0] if form == "docx" else out.decode()
        assert "total" in text and ("costs" in text) == (new != "Totals"), text  # which looks like an agreement
    out, reasons = corrected(form, data, lambda text: text + ".", **options)
    assert out == data and "fragment" in reasons


def test_cells_that_are_sentences_are_corrected_as_such() -> None:
    assert corrected("csv", b"we was late.,x\n", lambda text: "We were late.", column=1)[0] == b"We were late.,x\n"
    (part,) = format_of("a.docx").read(io.BytesIO(docx(p(r("total cost")))))
    assert isinstance(part, Part) and part.segments == (Segment(0, 10),)


# -- encodings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("shift_jis", b"ok \x81\x5f he go\n"),
        ("cp932", b"\xfa\x54 he go\n"),
        ("utf-7", b"+AGEAYg- he go\n"),
        ("iso2022_jp", b'\x1b$B$"'),
    ],
)
def test_encodings_that_do_not_come_back_are_refused(encoding: str, data: bytes) -> None:
    form = format_of("-", "txt", options=FormatOptions(encoding=encoding))
    try:
        parts = list(form.read(io.BytesIO(data)))
    except FormatError as error:
        assert "does not come back" in str(error)
        return
    assert b"".join(form.write(part, ()) for part in parts) == data


def test_names_that_are_not_marked_as_utf8_are_not_rewritten() -> None:
    """Their bytes would stand in one of the two places where an archive has names, and other ones in the other."""
    data, form = docx(p(r("he go"))).replace(b"image1", b"im\x81ge1"), format_of("a.docx")
    (part,) = form.read(io.BytesIO(data))
    assert form.write(part, ()) == data
    with pytest.raises(FormatError, match=r"'word/media/imüge1\.png' in the archive is not marked as UTF-8.*: save"):
        form.write(part, [Edit(3, 5, "goes")])


NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"


def packed_text(body: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("content.xml", f'<d xmlns:t="{NAMESPACE}"><t:p>He go{body}home.</t:p></d>')
    return out.getvalue()


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("odt", packed_text(f"<t:s{' ' * (1 << 20)}/>")),
        ("po", b'msgid "x"\nmsgstr "' + b"he go " * (1 << 18) + b'"\n'),
    ],
    ids=["odt", "po"],
)
def test_long_tags_and_strings_take_little_memory(form: str, data: bytes) -> None:
    tracemalloc.start()
    file_format = format_of("-", form)
    assert b"".join(file_format.write(part, ()) for part in file_format.read(io.BytesIO(data))) == data
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()
