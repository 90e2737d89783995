"""Makes random hostile files with markup: HTML, LaTeX, subtitles, message catalogs, notebooks, source files and
others."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable

from tests.fuzz.files_words import LINE_ENDS, text

_BITS = {  # no-break spaces stand for spaces within one item
    "html": "<p> </p> <b> </b> <br> <!-- --> <script> </script> <code> </code> <pre> </pre> <td> <h1> <? <% %> "
    "<a\xa0href='x'> <![CDATA[ ]]> &amp; &lt; <p\xa0translate=no> <title> <x-y> </div> <a\xa0b=' "
    '<div\xa0class="notranslate">',
    "latex": "\\begin{document} \\end{document} \\section{ \\emph{ } { $ $$ \\[ \\] \\( % %\n "
    "\\\\ \\item \\cite{x} & ~ "
    "\\begin{equation} \\end{equation} \\footnote{ \\verb| \\label{a} \\x[y]{z} \\'e [ ] \\begin{itemize}",
    "rst": ".. ..\xa0note:: :: `` ` * ** |x| x_ [1]_ - 1. :a: === --- >>> ..\xa0_x: ..\xa0code:: +--+ |",
    "adoc": "== = ---- .... ++++ |=== [source] [x] :a: // * . NOTE: + ``` ` `x` <<x>> link:x[y] a:: {x} ==== --",
    "srt": "1\n 00:00:01,000\xa0-->\xa000:00:02,000\n <i> </i> {\\an8} - WEBVTT\n NOTE STYLE\n\n --> BOB: &amp; \\N",
    "po": 'msgid\xa0" msgstr\xa0" " "\n" \\n \\" %s %(a)s {0} _ & msgstr[1]\xa0"x" msgctxt\xa0"c" '
    '#,\xa0fuzzy #~ msgid\xa0""\n',
    "python": "# #: \"\"\" ''' \" ' def\xa0f():\n class\xa0A:\n \\ ( ) r'''x''' #!x #\xa0noqa\n "
    "@x :param\xa0x: >>> return",
    "javascript": "// /* */ /** * @param {x} ` ' \" ${ } ( ) /x/ => //\xa0eslint-disable \\",
    "c": "// /* */ #include\xa0<x> #if \\\n ' \" { } ; ///< /*!\xa0@brief //\\\n",
}
_LEADS = {
    "rst": ["", "", "  ", "    ", "- ", ".. note:: ", ".. ", ":x: ", "| ", "1. "],
    "adoc": ["", "", " ", "* ", "== ", ".", "NOTE: ", "a:: "],
    "po": ['msgid "', 'msgstr "', '"', "#. "],
    "python": ["# ", "#: ", "    # ", '    """', "x = 1  # ", ""],
    "javascript": ["// ", " * ", "/* ", "let x = 1; // ", ""],
    "c": ["// ", " * ", "/* ", "int x; // ", ""],
}
_TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
_ODT_BITS = [
    *("<t:s/>", "<t:tab/>", "<t:line-break/>", "<t:span>he go</t:span>", "<t:change/>", "<t:bookmark/>", "<!-- c -->"),
    *("<t:note><t:p>a b</t:p></t:note>", "<![CDATA[he go]]>", "<x/>", "&#38;", "&amp;", "\r\n", "<t:a>x</t:a>"),
]


def _marked_up(form: str) -> Callable[[random.Random], bytes]:
    bits = [bit.replace("\xa0", " ") for bit in _BITS[form].split(" ")]
    leads = _LEADS.get(form, ["", "", "  "])

    def file(rng: random.Random) -> bytes:
        lines = []
        for _ in range(rng.randint(0, 20)):
            pieces = [rng.choice(bits) if rng.random() < 0.4 else text(rng, 6) for _ in range(rng.randint(0, 6))]
            end = '"' if form == "po" and rng.random() < 0.7 else ""
            lines.append(rng.choice(leads) + rng.choice([" ", "", " "]).join(pieces) + end + rng.choice(LINE_ENDS))
        return "".join(lines).encode("utf-8", "surrogatepass")

    return file


def _notebook(rng: random.Random) -> bytes:
    cells = []
    for _ in range(rng.randint(0, 6)):
        lines = [text(rng, 8) + rng.choice(["\n", "\r\n", ""]) for _ in range(rng.randint(0, 5))]
        kind = rng.choice(["markdown", "markdown", "code", "raw"])
        source = lines if rng.random() < 0.7 else "".join(lines)
        cells.append({"cell_type": kind, "metadata": {"source": "he go"}, "source": source})
    notebook = {"cells": cells, "nbformat": 4, "metadata": {}}
    dumped = json.dumps(notebook, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1, 2]))
    return dumped.encode("utf-8", "surrogatepass")


def _odt(rng: random.Random) -> bytes:
    def characters() -> str:
        legal = "".join(c for c in text(rng, 5) if c in "\t\n\r" or " " <= c < "\ud800" or "\ue000" <= c < "\ufffe")
        return legal.replace("&", "&amp;").replace("<", "&lt;").replace("]]>", "")

    def paragraph() -> str:
        pieces = (characters() if rng.random() < 0.7 else rng.choice(_ODT_BITS) for _ in range(rng.randint(0, 5)))
        name = rng.choice(["p", "p", "h"])
        return f"<t:{name}>{''.join(pieces)}</t:{name}>"

    body = "".join(paragraph() for _ in range(rng.randint(0, 8)))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])) as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr("content.xml", f'<o:d xmlns:o="urn:o" xmlns:t="{_TEXT}">{body}</o:d>'.encode())
        archive.writestr(rng.choice(["Pictures/a.png", "../x"]), rng.randbytes(40))
    return out.getvalue()


MARKED_UP: dict[str, Callable[[random.Random], bytes]] = {
    **{form: _marked_up(form) for form in _BITS},
    "ipynb": _notebook,
    "odt": _odt,
}
