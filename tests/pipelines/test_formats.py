"""Formats give back every byte that no edit touches, in bounded memory."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator

import pytest

from copyspec.pipelines.documents import Edit, Format, FormatError, model_text
from copyspec.pipelines.edits.diff import merge, segment_edits
from copyspec.pipelines.formats import FormatOptions, format_of

TEXTS = {
    "empty": b"",
    "one line": b"He go home.\n",
    "no final newline": b"He go home.\n\nShe stay",
    "crlf": b"One line.\r\n\r\nTwo line.\r\nThree.\r\n",
    "cr": b"One line.\r\rTwo line.\rThree.\r",
    "mixed ends": b"One.\r\nTwo.\nThree.\rFour.\n\r\n\r\rFive.\n\rSix.",
    "only carriage return": b"\r",
    "blank only": b"\n\n \t\r\n\r\n",
    "byte order mark": b"\xef\xbb\xbfHe go home.\n",
    "only a byte order mark": b"\xef\xbb\xbf",
    "byte order mark inside": "He \ufeffgo home.\n".encode(),
    "no-break space": "He\u00a0go  home\u202f!\n".encode(),
    "line separator": "One\u2028two\u2029three\u0085four\n".encode(),
    "vertical tab, form feed": b"One\x0btwo\x0cthree\x1cfour\n\x0c\nfive\n",
    "emoji": "A family 👩‍👩‍👧‍👦 and ❤️ 🇩🇪 👍🏽.\n".encode(),
    "combining": "Cafe\u0301 nai\u0308ve \u1112\u1161\u11ab.\n".encode(),
    "ligatures": "ﬁne ½ Ｆｕｌｌ №5 …\n".encode(),
    "bad bytes": b"Caf\xe9 is nice.\n\nThis go well.\n\xff\xfe\xfa\n",
    "bad bytes at the end": b"He go home \xe2\x82",
    "encoded surrogates": b"He \xed\xa0\x80 go.\n",
    "nul": b"He go\x00 home.\n\nShe go.\n",
    "control strings": b"<s>He go</s> <|im_end|> {x} [INST]\n",
    "cjk": "彼は学校に行く。\n他很好。\n".encode(),
    "right to left": "\u200fשלום עולם\u200e.\n".encode(),
    "leading spaces": b"   He go.  \n\tShe go.\t\n",
    "tabs": b"a\tb\t\tc\n",
    "long line": b"He go home. " * 90_000 + b"\n",
    "long line, no space": b"x" * 1_100_000,
    "many lines": b"He go home.\n" * 20_000,
    "typographic": "“He go,” she said – ‘well’ …\n".encode(),
}


def joined(form: Format, data: bytes) -> bytes:
    """Return what a corrector without corrections writes. Its output differs in white space, Unicode form and
    quotes."""
    written = []
    for part in form.read(io.BytesIO(data)):
        edits = []
        for segment in part.segments:
            text = model_text(part.text, segment)
            assert text.strip() and not any("\ud800" <= char <= "\udfff" for char in text)
            assert part.text[segment.start : segment.end].strip() == part.text[segment.start : segment.end]
            edits.append(segment_edits(part.text, segment, " ".join(text.split()) + "\n"))
        written.append(form.write(part, merge(*edits)))
    return b"".join(written)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("form", ["txt", "md", "lines", "parallel"])
def test_text_without_edits_is_the_file(form: str, name: str) -> None:
    data = TEXTS[name] if form == "txt" else TEXTS[name][:200_000]
    assert joined(format_of("-", form), data) == data


def test_parts_of_text_are_paragraphs() -> None:
    parts = list(format_of("x.txt").read(io.BytesIO(b"\n a b\nc\r\n\r\n\n--\nd\n\n 12 \n")))
    assert [part.text for part in parts] == ["\n", " a b\nc\r\n\r\n\n", "--\nd\n\n", " 12 \n"]
    assert [[part.text[s.start : s.end] for s in part.segments] for part in parts] == [[], ["a b\nc"], ["--\nd"], []]


def test_lines_keep_their_number() -> None:
    form = format_of("x.txt", options=FormatOptions(by_line=True))
    data = b"He go\n\n she go\r\nwe go"
    written = b""
    for part in form.read(io.BytesIO(data)):
        edits = [
            edit
            for segment in part.segments
            for edit in segment_edits(
                part.text, segment, model_text(part.text, segment).replace("go", "goes\n\nand goes")
            )
        ]
        written += form.write(part, edits)
    assert written == b"He goes and goes\n\n she goes and goes\r\nwe goes and goes"


def test_bad_bytes_are_counted() -> None:
    parts = list(format_of("x.txt").read(io.BytesIO(b"Caf\xe9\n\nok then\n\nno\x00\n")))
    assert [refusal.reason for part in parts for refusal in part.refused] == ["encoding", "binary"]
    assert "0xe9" in parts[0].refused[0].detail
    assert [len(part.segments) for part in parts] == [0, 1, 0]


def test_other_encodings() -> None:
    form = format_of("x.txt", options=FormatOptions(encoding="latin-1"))
    (part,) = form.read(io.BytesIO(b"Caf\xe9 go\n"))
    assert form.write(part, [Edit(5, 7, "goes")]) == b"Caf\xe9 goes\n"
    with pytest.raises(FormatError, match="cannot be written in 'latin-1'"):
        form.write(part, [Edit(5, 7, "→")])
    with pytest.raises(ValueError, match="unknown encoding 'klingon'"):
        format_of("x.txt", options=FormatOptions(encoding="klingon"))
    with pytest.raises(ValueError, match=r"'utf-16'.*convert"):
        format_of("x.txt", options=FormatOptions(encoding="utf-16"))
    with pytest.raises(ValueError, match="encoding 'utf_8_sig': name 'utf-8', with which a byte order mark stays"):
        FormatOptions(encoding="utf_8_sig")
    with pytest.raises(FormatError, match="UTF-16"):
        list(format_of("x.txt").read(io.BytesIO("hello".encode("utf-16"))))


def test_a_format_is_chosen_by_suffix_or_name() -> None:
    for path in ("a.txt", "a.TXT", "README", "-"):
        assert type(format_of(path)).__name__ == "TextFormat"
    with pytest.raises(FormatError, match=r"'a\.xyz'.*'\.xyz'.*format='txt'"):
        format_of("a.xyz")
    with pytest.raises(ValueError, match="unknown format 'word'"):
        format_of("a.txt", "word")


class Endless(io.RawIOBase):
    """A file of `size` bytes that is never in memory as a whole."""

    def __init__(self, block: bytes, size: int) -> None:
        self.block, self.left = block, size

    def readline(self, size: int | None = -1) -> bytes:  # type: ignore[override]
        assert size is not None and size > 0, "reading must be bounded"
        take = self.block[: min(size, self.left)]
        self.left -= len(take)
        return take


@pytest.mark.parametrize("block", [b"He go home, as he does.\n" * 1, b"He go home, and she " * 3000, b"x" * 60_000])
def test_memory_is_bounded(block: bytes) -> None:
    size = 24 << 20 if len(block) > 1000 else 4 << 20

    def lengths() -> Iterator[int]:
        form = format_of("x.txt")
        for part in form.read(Endless(block, size)):  # type: ignore[arg-type]
            yield len(form.write(part, ()))

    tracemalloc.start()
    assert sum(lengths()) == size
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20


def test_files_whose_name_is_all_suffix_are_not_plain_text() -> None:
    for name in (".env", "a/.ENV"):
        with pytest.raises(FormatError, match=r"no format for '\.env' is known; such files hold code"):
            format_of(name)
        with pytest.raises(FormatError, match="holds code, which 'txt' does not handle"):
            format_of(name, "txt")
    with pytest.raises(FormatError, match=r"no format for '\.bak' is known; format='docx' reads it as one"):
        format_of("a.docx.bak")
    with pytest.raises(FormatError, match=r"no format for '\.profile' is known; format='txt' reads it as plain text"):
        format_of(".profile")
    assert format_of(".profile", "txt") and format_of(".txt") and format_of(".a/README") and format_of(".")
