"""Makes random hostile files of every format, and correctors with arbitrary outputs, for `tests.fuzz.files`."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable

from copyspec.pipelines import FormatOptions, GuardOptions
from tests.fuzz.files_marked_up import MARKED_UP
from tests.fuzz.files_words import ATOMS, BAD_BYTES, LINE_ENDS, WORDS, line, text

Correct = Callable[[str], str]

OPEN = GuardOptions(
    allow_numbers=True,
    allow_links=True,
    allow_code=True,
    allow_names=True,
    allow_new_words=True,
    allow_swaps=True,
    any_language=True,
    max_edit_ratio=1e9,
    max_lost_ratio=1e9,
    strip_wrappers=False,
    precision=0,
)
"""Guards that accept everything."""


MARK_LINES = [
    *("---", "```", "~~~py", "$$", "<div>", "| a | b |", "|---|---|", "===", "[x]: y", "    code", "\tcode", "# "),
    *(
        "- [ ] ",
        "> > ",
        "1) ",
        "<!-- x",
        "-->",
        "\\begin{x}",
        ":::",
        "[^1]: ",
        "<script>",
        "* * *",
        "##",
        "+++",
        "a: b",
    ),
]
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DOCX_BITS = [
    *("<w:p>", "</w:p>", "<w:r>", "</w:r>", "<w:tbl><w:tr><w:tc>", "</w:tc></w:tr></w:tbl>", "<w:tab/>", "<w:br/>"),
    *("<w:ins w:id='1'>", "</w:ins>", "<w:hyperlink>", "</w:hyperlink>", "<!-- c -->", "<?p i?>", "<w:t/>", "<x/>"),
    *("<w:r><w:r><w:t>a b</w:t></w:r></w:r>", "<w:t>a<w:b/>c</w:t>", "<w:t><![CDATA[he go]]></w:t>", "<w:p/>"),
]


def case(form: str, rng: random.Random) -> tuple[bytes, FormatOptions]:
    """Make a file of a format, and the options for reading it."""
    kind = rng.random()
    data = _FILES[form](rng)
    if kind < 0.35:
        data = mutated(data, rng)
    columns: list[str | int] = [1, 2, "text"]
    options = FormatOptions(column=rng.choice(columns), in_place=rng.random() < 0.5)
    return data, options


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Change, remove, duplicate or insert some bytes."""
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.randint(0, 9))
        new = rng.choice([b"", bytes([rng.randrange(256)]), rng.choice(BAD_BYTES), data[at:end] * 2])
        data = data[:at] + new + data[end:]
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.1 else data


def _plain(rng: random.Random) -> bytes:
    return "".join(text(rng) + rng.choice(LINE_ENDS) for _ in range(rng.randint(0, 12))).encode(
        "utf-8", "surrogatepass"
    )


def _markdown(rng: random.Random) -> bytes:
    lines = []
    for _ in range(rng.randint(0, 20)):
        start = rng.choice(MARK_LINES) * rng.choice([0, 0, 1, 1, 2, rng.randrange(9)])
        lines.append(" " * rng.choice([0, 0, 0, 2, 4]) + start + line(rng, 8) + rng.choice(LINE_ENDS))
    return "".join(lines).encode("utf-8", "surrogatepass")


def _table(delimiter: str) -> Callable[[random.Random], bytes]:
    def cell(rng: random.Random) -> str:
        value = text(rng, 6) if rng.random() < 0.8 else rng.choice(["", "=A1", "+1", "-x he go", "@he go", '"'])
        return '"' + value.replace('"', '""') + '"' if rng.random() < 0.5 else line(rng, 5).replace(delimiter, " ")

    def table(rng: random.Random) -> bytes:
        rows = [delimiter.join(("text", "text", "id")[rng.randrange(2) :])]
        rows += [delimiter.join(cell(rng) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(0, 10))]
        return rng.choice(["\n", "\r\n", "\r"]).join(rows).encode("utf-8", "surrogatepass")

    return table


def _records(rng: random.Random) -> bytes:
    lines = []
    for _ in range(rng.randint(1, 8)):
        record: dict[str, object] = {
            "text": text(rng),
            "id": rng.choice([1, 10**30, None, float("nan"), [[]], {"text": "x"}]),
        }
        lines.append(json.dumps(record, ensure_ascii=rng.random() < 0.5))
        if rng.random() < 0.1:
            lines[-1] = lines[-1].replace("{", '{"text": "he go \\ud800", ', 1)
        if rng.random() < 0.02:
            depth = rng.choice([50, 100_000])
            lines[-1] = '{"text": "he go", "id": ' + "[" * depth + "]" * depth + "}"
    return rng.choice(LINE_ENDS).join(lines).encode("utf-8", "surrogatepass")


def _m2(rng: random.Random) -> bytes:
    lines = []
    for _ in range(rng.randint(1, 6)):
        lines.append("S " + " ".join(text(rng, 8).split()))
        lines += ["A 0 1|||X|||a b|||REQUIRED|||-NONE-|||0"] * rng.randrange(3) + [""]
    return rng.choice(["\n", "\r\n"]).join(lines).encode("utf-8", "surrogatepass")


def _docx(rng: random.Random) -> bytes:
    def xml_text() -> str:
        legal = "".join(c for c in text(rng, 5) if c in "\t\n\r" or " " <= c < "\ud800" or "\ue000" <= c < "\ufffe")
        return legal.replace("&", "&amp;").replace("<", "&lt;").replace("\r", " ").replace("]]>", "")

    def run() -> str:
        return f'<w:r>{rng.choice(["", "<w:rPr><w:b/></w:rPr>"])}<w:t xml:space="preserve">{xml_text()}</w:t></w:r>'

    def paragraph() -> str:
        inside = "".join(run() if rng.random() < 0.85 else rng.choice(DOCX_BITS) for _ in range(rng.randint(0, 5)))
        return f"<w:p>{inside}</w:p>"

    body = "".join(paragraph() for _ in range(rng.randint(0, 8)))
    if rng.random() < 0.02:
        body += "<w:p>" * 2000 + run() + "</w:p>" * 2000
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>')
        if rng.random() < 0.3:
            archive.writestr("word/header1.xml", f'<w:hdr xmlns:w="{W}">{paragraph()}</w:hdr>')
        archive.writestr(rng.choice(["word/media/a.png", "../x", "/y"]), rng.randbytes(40))
    return out.getvalue()


_FILES: dict[str, Callable[[random.Random], bytes]] = {
    **MARKED_UP,
    "txt": _plain,
    "lines": _plain,
    "parallel": _plain,
    "md": _markdown,
    "csv": _table(","),
    "tsv": _table("\t"),
    "jsonl": _records,
    "m2": _m2,
    "docx": _docx,
}
FORMATS = tuple(_FILES)

_BROUGHT = [
    *ATOMS,
    "=cmd()",
    "=HYPERLINK(1)",
    "\ud800",
    "\udcff",
    "\x7f",
    "\u2066",
    "\ue000",
    "\uffff",
    "\r\n",
    "-NONE-",
]


def _scattered(text: str, rng: random.Random) -> str:
    """Randomly replace, extend or remove words."""
    words = []
    for word in text.split(" "):
        roll = rng.random()
        if roll < 0.1:
            word = rng.choice(_BROUGHT)
        elif roll < 0.2:
            word = rng.choice([word + rng.choice(_BROUGHT), rng.choice(_BROUGHT) + word])
        elif roll < 0.25:
            at = rng.randrange(len(word) + 1)
            word = word[:at] + rng.choice(_BROUGHT) + word[at:]
        elif roll < 0.35:
            word = rng.choice(["", word.title(), word + "s", word[:-1], rng.choice(WORDS)])
        words.append(word)
    return " ".join(words)


def corrector(rng: random.Random) -> Correct:
    """Make a function that stands in for a hostile model. Its output depends only on the text."""
    seed = rng.randrange(1 << 30)
    kind = rng.choice(list(_HOSTILE))

    def correct(text: str) -> str:
        return _HOSTILE[kind](text, random.Random(f"{seed}{text}"))

    return correct


_HOSTILE: dict[str, Callable[[str, random.Random], str]] = {
    "scattered": _scattered,
    "scattered again": _scattered,
    "identity": lambda text, rng: text,
    "nothing": lambda text, rng: rng.choice(["", " ", "\n"]),
    "huge": lambda text, rng: (text + " ") * 30,
    "in front": lambda text, rng: rng.choice(_BROUGHT) + rng.choice(["", " "]) + text,
    "first word": lambda text, rng: rng.choice(_BROUGHT) + text[len(text.split(" ")[0]) :],
    "no first word": lambda text, rng: text[len(text.split(" ")[0]) :],
    "behind": lambda text, rng: text + rng.choice(["", " "]) + rng.choice(_BROUGHT),
    "capitals": lambda text, rng: text.upper(),
    "title": lambda text, rng: text.title(),
    "reversed": lambda text, rng: " ".join(reversed(text.split(" "))),
    "unreadable": lambda text, rng: text.encode().decode("ascii", "replace") if text.isprintable() else text + "\ufffd",
    "apart": lambda text, rng: text.replace("<|end", "<|end ").replace("[", "[ ").replace("{{", "{ {"),
    "talk": lambda text, rng: f'Sure! Here is the corrected text:\n\n"{_scattered(text, rng)}"\n\nNote: =1+1 \ufffd',
    "other letters": lambda text, rng: text.replace("a", "\u0430").replace("e", "字"),
}
