"""HTML, LaTeX, reStructuredText, AsciiDoc, subtitles, catalogs, notebooks, source files, OpenDocument: prose is
corrected, and nothing else of the file changes."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable

import pytest

from copyspec.pipelines import Edit, FunctionCorrector, Runner, RunOptions, Work, format_of
from copyspec.pipelines.documents import FormatError, model_text
from copyspec.pipelines.formats.source import comments
from tests.fuzz.files import fuzz
from tests.fuzz.files_cases import OPEN
from tests.fuzz.files_marked_up import MARKED_UP

HTML = """<!doctype html><html><head><title>My cats</title><script>if (a<b) x("He go.")</script></head>
<body class='a>b'>
<h1>She have <em>two</em> cats</h1>
<p>Hello <b>you</b>, un<i>believ</i>able &amp; me, call <code>go()</code> now.<br>She go home.</p>
<!-- He go --><ul><li>He go <a href="go">here</a>.</li></ul><pre>He go</pre><p translate=no>He go.</p>
</body></html>"""
LATEX = r"""\documentclass{article}
\title{He go}
\begin{document}
\section[go]{He \emph{go} home}\label{sec:go}
She have two \textbf{cats}, % he go
see Section~\ref{sec:go} and \cite[p.~3]{go}.\footnote{He go.} Let $go = 1$ be.

\begin{itemize}
\item He go
\end{itemize}
\begin{equation} go \end{equation}
where it go.
\end{document} He go"""
# The lines around the title leave it room to grow: no other title is corrected.
RST = """====================
He go
====================

Hello *you*, see ``he go`` and `he go <http://go>`_::

    he go

.. note:: This are a note
   going on.

.. code-block:: python

   he go

- item one
  goes on
- item two

:param go: The thing that go
    on.

>>> go()
he go

====  ====
he    go
====  ====

term
    It go.
"""
ADOC = """= He go
Author Go <go@go.go>
:go: he go

== Section one

It go
-----
Here he go.

----
he go
----

A *bold* text and `he go` with link:go.html[he go].
// he go
It go.

[source,python]
----
he go
----

NOTE: This are a note.

* item one
comes on
term:: It go.
"""
SRT = """1
00:00:01,000 --> 00:00:02,000
<i>She have two cat.</i>
- He go.

2
00:00:03,000 --> 00:00:04,000
BOB: I is
here.
"""
PO = r"""msgid ""
msgstr ""
"Language: go\n"

#: go.c:1
msgid "he go"
msgstr ""
"She have %d cat, "
"and \"he\" go.\nHe go."

msgid "x"
msgstr "It are <b>good</"
"b> here."
"""
PYTHON = '''#!/usr/bin/env go
"""It have `code` and
more lines."""
import go  # noqa: go

# This is a comment that go
# on, see foo_bar().
# x = go(1)
sql(
    """He go."""
)


def f(go):
    """It go.

    >>> go(1)
    """
    return "# He go."  # It go here
'''
JAVASCRIPT = """/* eslint-disable go */
/**
 * Adds two
 * number.
 * @param {string} go the name of it
 */
function f() { // TODO(go): do it better
  // if (go) {
  return "// He go"; /* it go */
}
"""
FILES = {
    "html": (HTML, ["My cats", "She have two cats", None, "She go home.", "He go here."]),
    "latex": (LATEX, ["He go home", None, "He go", "where it go."]),
    "rst": (
        RST,
        [
            *("He go", None, "This are a note going on.", "item one goes on", "item two", "The thing that go on."),
            *("term", "It go."),
        ],
    ),
    "adoc": (
        ADOC,
        ["He go", "Section one", "Here he go.", None, "This are a note.", "item one comes on", "term", "It go."],
    ),
    "srt": (SRT, ["She have two cat.", "- He go.", "I is here."]),
    "po": (PO, ['She have %d cat, and \\"he\\" go.', "He go.", "It are <b>good</b> here."]),
    "python": (
        PYTHON,
        ["It have `code` and more lines.", "This is a comment that go on, see foo_bar().", "It go.", "It go here"],
    ),
    "javascript": (
        JAVASCRIPT,
        ["Adds two number.", "@param {string} go the name of it", "TODO(go): do it better", "it go"],
    ),
}


def segments(form: str, text: str) -> list[str]:
    """Return the texts that a model is given."""
    parts = format_of("-", form).read(io.BytesIO(text.encode()))
    return [model_text(part.text, segment) for part in parts for segment in part.segments]


def corrected(form: str, data: bytes, correct: Callable[[str], str]) -> bytes:
    file_format = format_of("-", form)
    runner = Runner(FunctionCorrector(correct), RunOptions(OPEN))
    works = (Work(None, part) for part in file_format.read(io.BytesIO(data)))
    return b"".join(file_format.write(done.part, done.edits) for done in runner.run(works) if done.part is not None)


@pytest.mark.parametrize("form", FILES)
def test_prose_is_found_and_nothing_else(form: str) -> None:
    text, wanted = FILES[form]
    sentences = segments(form, text)
    assert len(sentences) == len(wanted)
    assert all(want is None or got == want for got, want in zip(sentences, wanted, strict=True)), sentences


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_numbers_of_cues_are_no_prose_without_blank_lines(end: str) -> None:
    text = SRT.replace("\n\n", "\n").replace("\n", end)
    assert segments("srt", text) == ["She have two cat.", "- He go.", "I is here."]


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_correction_lands_in_prose(form: str, end: str) -> None:
    """`go` also occurs in code, names, links and comments for tools, where it must stay."""
    text = FILES[form][0].replace("\n", end)
    assert corrected(form, text.encode(), lambda text: " ".join(text.split())) == text.encode()
    out = corrected(form, text.encode(), lambda text: text.replace(" go", " goes").replace("have", "has")).decode()
    assert out != text and out.replace("goes", "go").replace("has", "have") == text
    assert len(segments(form, out)) == len(segments(form, text))
    for line, new in zip(text.splitlines(), out.splitlines(), strict=True):
        if line != new:
            assert not any(mark in line for mark in ("http", "link:", "script", "noqa", "x = ", ">>>", "msgid"))


def test_a_sentence_goes_on_past_inline_markup() -> None:
    """Tags are hidden from the model unless that would join words. A replacement of a word stays inside its tags."""
    out = corrected("html", b"<p>She <b>have</b> two <i>cat</i>.</p>", lambda text: text.replace("cat", "cats"))
    assert out == b"<p>She <b>have</b> two <i>cats</i>.</p>"
    assert segments("html", "<p>She <b>have</b> un<i>do</i>ne it.</p>") == ["She have un<i>do</i>ne it."]
    out = corrected("latex", rb"She \emph{have} two cat.", lambda text: text.replace("have", "has"))
    assert out == rb"She \emph{has} two cat."


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("form", "text", "wrong", "right", "is_made"),
    [
        ("md", "It is at the end of the\nthe - sign here.\n", "the the", "the", False),
        ("md", "It is that of the\nthe 1. FC Nuremberg.\n", "the the", "the", False),
        ("md", "You press the\nthe + key here.\n", "the the", "the", False),
        ("md", "The + operator adds them.\n", "The +", "+", False),
        ("md", "It is here. The + operator adds them.\n", "The +", "+", True),
        ("md", "- The + operator adds them.\n", "The +", "+", False),
        ("md", "> It is that of the\n> the # sign here.\n", "the the", "the", False),
        ("md", "> It is that of the\n> the\n> cat here.\n", "the the", "the", True),
        ("md", "It is that of the\nthe cat here.\n", "the the", "the", True),
        ("md", "It is that of the\nthe\ncat here.\n", "the the", "the", True),
        ("rst", "The - sign is here.\n", "The -", "-", False),
        ("adoc", "It is that of the\nthe . sign here.\n", "the the", "the", False),
        ("python", "# It is that of the\n# the - sign here.\n", "the the", "the", False),
    ],
)
def test_no_line_newly_begins_with_markup(
    form: str, text: str, wrong: str, right: str, is_made: bool, end: str
) -> None:
    data = text.replace("\n", end).encode()
    assert (corrected(form, data, lambda shown: shown.replace(wrong, right)) != data) == is_made


@pytest.mark.parametrize("form", ["latex", "rst", "adoc"])
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_do_not_change_what_is_prose(form: str, end: str) -> None:
    """In particular a carriage return and its line feed are one line end, not a blank line."""
    more = {
        "latex": "It go\nhome now.\n\nUse \\verb|go\nto| it.\\\nIt go\\\n\nhome.\n",
        "rst": "It go\nhome, `he\ngo`_ now|\nhe go| to.\n\nA\\\nb go.\n",
        "adoc": "It go +\nhome `now\n// he go\nor` not.\n",
    }
    for text in (FILES[form][0], more[form]):
        assert segments(form, text.replace("\n", end)) == segments(form, text)
    assert "home" in " ".join(segments(form, more[form]))


@pytest.mark.parametrize(
    ("form", "text", "wanted"),
    [
        ("adoc", "= He go\nAuthor Go\n\nIt go.\n", ["He go", "It go."]),
        ("adoc", "He go\n=====\nAuthor Go\n\nIt go.\n", ["It go."]),
        ("adoc", "\n= He go\nAuthor Go\n\nIt go.\n", ["He go", "It go."]),
        ("rst", ".. code::\n\n   he go\n\nIt go.\n", ["It go."]),
        ("rst", "It\ngo.\n", ["It go."]),
        ("latex", "\\section{He go}\nIt go.\n", ["He go", "It go."]),
    ],
)
def test_a_byte_order_mark_hides_no_markup(form: str, text: str, wanted: list[str]) -> None:
    for marked in (text, "\ufeff" + text):
        assert segments(form, marked) == wanted
        out = corrected(form, marked.encode(), lambda text: text.replace("It", "That"))
        assert out.decode() == marked.replace("It", "That")


@pytest.mark.parametrize("form", ["html", "rst", "adoc"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_front_matter_is_no_prose(form: str, end: str) -> None:
    body = {"html": "<p>It go.</p>\n", "rst": "It go.\n", "adoc": "= It go.\nAuthor Go\n"}[form]
    for text in ("---\ntitle: He go\ntags:\n- go <a\n\n---\n", "+++\ntitle = 'He go'\n+++\n", "---\na: go\n...\n"):
        assert segments(form, f"{text}{body}".replace("\n", end)) == ["It go."]
        assert segments(form, f"\ufeff{text}{body}".replace("\n", end)) == ["It go."]
    # A transition, and front matter that nothing closes.
    for text in ("---\n\nHe go.\n\n---\n\n", "---\nb: c\n\nHe go.\n\n"):
        assert "He go." in " ".join(segments(form, f"{text}{body}".replace("\n", end)))


@pytest.mark.parametrize(
    ("code", "after"),
    [
        *((code, "") for code in (r"\verb|he go|", r"\verb*+he go+", r"\verb |he go|", r"\Verb!he go!")),
        *((code, "|that go|") for code in (r"\lstinline{he go}", r"\lstinline[a=b]{he go}", r"\mintinline{c}{he go}")),
        *((code, "{that go}") for code in (r"\lstinline|he go|", r"\lstinline!he {go!", r"\lstinline[a=b]|he go|")),
        *(
            (code, "{that go}")
            for code in (r"\mintinline{c}|he go|", r"\mintinline[a=b]{c}{he go}", r"\mint{c}|he go|")
        ),
    ],
)
def test_inline_code_in_latex_is_kept(code: str, after: str) -> None:
    text = f"It go to {code}{after} now."
    out = corrected("latex", text.encode(), lambda text: text.replace("go", "goes")).decode()
    assert out == f"It goes to {code}{after.replace('go', 'goes')} now."


WITHOUT_PROSE = (
    "flalign flalign* IEEEeqnarray IEEEeqnarray* dmath dmath* empheq vmatrix tabulary tabu tblr longtblr xltabular "
    "tikzpicture forest algorithmic BVerbatim"
)


@pytest.mark.parametrize(
    "content",
    [
        *(rf"\begin{{{name}}} he go \end{{{name}}}" for name in WITHOUT_PROSE.split()),
        r"\begin{tabular}{l} a & \begin{tabular}{c} b \end{tabular} \\ he go \end{tabular}",
        r"\begin{tabular}{l} \begin {tabular}{c} b \end {tabular} \\begin{tabular} he go \end{tabular}",
        "\\begin{tabular}{l} % \\begin{tabular}\n he go \\% \\\\% \\begin{tabular}\n \\end{tabular}",
        "\\begin{tabular}{l} a \\\\ % \\end{tabular}\n he go \\end{tabular}",
        *(
            rf"\begin{{{name}}} \begin{{{name}}} % he go \end{{{name}}}"
            for name in ("verbatim", "lstlisting", "minted", "comment", "Highlighting")
        ),
    ],
)
def test_environments_without_prose_are_left_out_to_their_end(content: str) -> None:
    assert segments("latex", f"He has {content} and it go.") == ["He has", "and it go."]


@pytest.mark.parametrize(
    ("definition", "name"),
    [
        (r"\lstnewenvironment{python}[1][]{\lstset{a=#1}}{}", "python"),
        (r"\newtcblisting[auto counter]{go}{listing only}", "go"),
        (r"\DeclareTCBListing{go}{O{}}{listing only}", "go"),
        (r"\DefineVerbatimEnvironment{Go}{Verbatim}{gobble=0}", "Go"),
        (r"\newminted{ruby}{linenos}", "rubycode"),
        (r"\newminted{ruby}{linenos}", "rubycode*"),
        (r"\newminted[go]{ruby}{linenos}", "go"),
    ],
)
def test_environments_that_the_document_defines_as_listings_are_left_out(definition: str, name: str) -> None:
    body = rf"He has \begin{{{name}}} \begin{{go}} % he go \end{{{name}}} and it go."
    for text in (body, rf"\begin{{document}} {body} \end{{document}}"):
        assert segments("latex", f"{definition}\n\n{text}")[-2:] == ["He has", "and it go."]


@pytest.mark.parametrize(
    "address",
    [r"\url{go.org/a%20b}", r"\href{go.org/a%20b}{he \} go}", r"\href[a=b]{go.org/%7E}{go}", r"\path{a%go}"],
)
def test_a_percent_sign_in_an_address_begins_no_comment(address: str) -> None:
    text = f"It go to {address} and it go. % he go }}\n\n\\section{{It go}} It go."
    out = corrected("latex", text.encode(), lambda text: text.replace("t go", "t goes")).decode()
    assert out == text.replace("It go", "It goes").replace("it go", "it goes")
    assert segments("latex", rf"\begin{{tabular}}{{l}} {address} \end{{tabular}} It go.") == ["It go."]


@pytest.mark.parametrize("name", ["navtitle", "!toc", "page-aliases", "_content-type"])
@pytest.mark.parametrize("mark", [":", " :"])
def test_attributes_of_asciidoc_are_left_out(name: str, mark: str) -> None:
    text = f":{name}{mark} he go home\n:description: they was here\n\n= A title\n\nIt go.\n"
    assert segments("adoc", text) == ["A title", "It go."]
    assert segments("adoc", f"A title: here\n\n:{name}{mark} he go home\nIt go.\n")[-1] == "It go."


@pytest.mark.parametrize("attributes", ["[source,ruby]", "[listing]\n.Caption go", "[source]\n[go]"])
@pytest.mark.parametrize("mark", ["--", "====", "****"])
def test_listings_in_open_blocks_of_asciidoc_are_left_out(attributes: str, mark: str) -> None:
    text = f"{attributes}\n{mark}\nputs x\n\nhe go home\n{mark}\nIt go.\n\n[NOTE]\n{mark}\nHe go.\n{mark}\n"
    assert segments("adoc", text) == ["It go.", "He go."]
    # A listing without delimiters ends at the blank line, and may hold lines like them.
    assert segments("adoc", f"{attributes}\nputs x\n{mark}\nhe go\n\nIt go.\n") == ["It go."]


def test_a_title_may_not_outgrow_its_underline() -> None:
    """Docutils warns of an underline that is shorter than its title, and of an overline too."""
    for title in ("He go\n=====\n", "=====\nHe go\n=====\n", "He go home now\n----\n", "He go ::\n========\n"):
        assert segments("rst", f"{title}\nIt go.\n") == ["It go."]
    for title in ("He go\n==============\n", "  He go\n  =============\n", f"{'=' * 15}\n  He go\n{'=' * 15}\n"):
        assert segments("rst", f"{title}\nIt go.\n") == ["He go", "It go."]
    # Wide characters fill two columns; an indentation below an overline counts.
    for title in ("去去去去\n==============\n", "==============\n  He go\n==============\n"):
        assert segments("rst", f"{title}\nIt go.\n") == ["It go."]
    # Too short to be an underline: docutils takes the line for text.
    assert segments("rst", "He go home.\n--\n") == ["He go home."]


def test_a_literal_block_may_follow_colons_on_their_own_line() -> None:
    for text in ("He go:\n::\n\n   it go\n\nIt go.\n", "He go:\n\n::\n\n   it go\n\nIt go.\n"):
        assert segments("rst", text) == ["He go:", "It go."]


def test_items_of_restructured_text_may_hold_directives() -> None:
    text = "* .. code-block:: sh\n\n     it go\n\n* It go.\n\n1. - .. note:: He go\n        home.\n\n     She go.\n"
    assert segments("rst", text) == ["It go.", "He go home.", "She go."]


def test_the_output_of_a_doctest_is_kept() -> None:
    for text in (
        "For example:\n>>> go()\n'They is here'\n\nIt go.\n",
        "For example:\n\n* >>> go()\n  he go\n\nIt go.\n",
    ):
        assert segments("rst", text) == ["For example:", "It go."]
        assert segments("python", f'"""{text}"""') == ["For example:", "It go."]


def test_names_of_classes_and_types_in_restructured_text_are_no_prose() -> None:
    text = ".. container:: go box\n\n   It go.\n\n:type go: he go\n:rtype: he\n  go\n:param go: He go.\n"
    assert segments("rst", text) == ["It go.", "He go."]


@pytest.mark.parametrize("is_list", [True, False])
def test_notebooks_change_in_the_lines_of_markdown_cells(is_list: bool) -> None:
    lines = ["# He go\n", "\n", "It go\n", "home `go` «é».\n"]
    code = {"cell_type": "code", "source": ["# it go"], "outputs": ["it go"]}
    cells = [{"cell_type": "markdown", "source": lines if is_list else "".join(lines), "id": "go"}, code]
    data = json.dumps({"cells": cells, "metadata": {"source": "it go"}}, indent=1, ensure_ascii=False).encode()
    out = corrected("ipynb", data, lambda text: text.replace("It go", "It goes"))
    assert out == data.replace(b"It go", b"It goes") and out != data
    two = corrected("ipynb", data, lambda text: text.replace("go home", "went away"))
    source = json.loads(two)["cells"][0]["source"]
    assert "".join(source) == "".join(lines).replace("go\nhome", "went\naway")


@pytest.mark.parametrize("is_list", [True, False])
@pytest.mark.parametrize("sheets", [1, 3])
def test_notebooks_of_nbformat_3_change_in_their_worksheets(is_list: bool, sheets: int) -> None:
    lines = ["It go\n", "home.\n"]
    cells = [
        {"cell_type": "heading", "level": 2, "source": "He goed"},
        {"cell_type": "markdown", "source": lines if is_list else "".join(lines)},
        {"cell_type": "code", "input": ["# It go"], "outputs": ["It go"]},
    ]
    data = json.dumps({"metadata": {"name": "It go"}, "nbformat": 3, "worksheets": [{"cells": cells}] * sheets})
    out = corrected("ipynb", data.encode(), lambda text: text.replace("It go", "It goes").replace("goed", "went"))
    made = [cell for sheet in json.loads(out)["worksheets"] for cell in sheet["cells"]]
    assert ["".join(cell.get("source", cell.get("input"))) for cell in made] == [
        "He went", "It goes\nhome.\n", "# It go",
    ] * sheets  # fmt: skip
    assert out.decode() == data.replace('"It go\\n', '"It goes\\n').replace("goed", "went")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"worksheets": [1]}', "no object"),
        (b'{"worksheets": [{}]}', "no 'cells'"),
        (b"{}", "no 'cells'"),
        (b"[1]", "no object"),
        (b'{"cells": 1}', "not a list"),
        (b'{"cells": []} x', "more text after"),
    ],
)
def test_what_is_no_notebook_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        list(format_of("-", "ipynb").read(io.BytesIO(data)))


def odt(body: str) -> bytes:
    namespace = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr("content.xml", f'<d xmlns:text="{namespace}">{body}</d>')
        archive.writestr("Pictures/a.png", b"\x00\x01")
    return out.getvalue()


def content(data: bytes) -> str:
    return zipfile.ZipFile(io.BytesIO(data)).read("content.xml").decode()


def test_opendocument_texts_keep_their_elements() -> None:
    body = (
        "<text:h>He go to the school</text:h><text:p>She <text:span>have</text:span><text:s/>two &amp; three cat"
        "<text:note><text:p>It go.</text:p></text:note>.</text:p><text:p>He<text:change/> go.</text:p>"
    )
    data = odt(body)
    assert corrected("odt", data, lambda text: text) == data
    # Text is inserted after an element that ends with its start tag, not after the next tag.
    form = format_of("-", "odt")
    (part,) = form.read(io.BytesIO(odt('<text:h>A<text:s text:c="1>0"/>&amp; B</text:h>')))
    place = part.text.index("&")
    assert '"1>0"/>a &amp; B</text:h>' in content(form.write(part, [Edit(place, place, "a ")]))
    # In a CDATA section, entities are plain text; insertions are placed outside of it.
    (part,) = form.read(io.BytesIO(odt("<text:p>A <![CDATA[b\n&c]]> d.</text:p>")))
    for place in map(part.text.index, ("b", "&", " d")):
        written = form.write(part, [Edit(place, place, "<x>")])
        (again,) = form.read(io.BytesIO(written))
        assert again.text == f"{part.text[:place]}<x>{part.text[place:]}", content(written)
    changes = {"She": ("have", "has"), "He ": ("go to", "goes <&> to")}
    out = corrected("odt", data, lambda text: text.replace(*changes.get(text[:3], "  ")))
    assert content(out) == content(data).replace("have", "has").replace("go to", "goes &lt;&amp;&gt; to")
    out = corrected("odt", data, lambda text: text.replace("cat", "cats").replace("It go", "It goes"))
    assert content(out) == content(data).replace("cat<", "cats<").replace("It go", "It goes")
    with pytest.raises(FormatError, match=r"no content\.xml"):
        empty = io.BytesIO()
        zipfile.ZipFile(empty, "w").close()
        list(format_of("-", "odt").read(io.BytesIO(empty.getvalue())))


@pytest.mark.parametrize(
    ("name", "form", "holds"),
    [
        ("a.srt", "txt", "time codes"),
        ("a.rst", "txt", "directives"),
        ("a.tex", "md", "commands"),
        ("a.py", "html", "code"),
    ],
)
def test_another_format_does_not_damage_a_file(name: str, form: str, holds: str) -> None:
    with pytest.raises(FormatError, match=holds):
        format_of(name, form)


SIZE = 30_000


@pytest.mark.parametrize(
    ("form", "unit"),
    [
        *(
            ("html", unit)
            for unit in ("<", "<a ", "<div>", "<!--", "</p>", "<a b='", "<script>", "<code>", "<p>x", "<i>")
        ),
        *(("latex", unit) for unit in ("{", "\\x{", "$", "\\(", "%\n", "\\begin{equation}", "\\section{", "\\verb|")),
        *(("latex", unit) for unit in ("\\verb|\r", "\\lstinline!", "\\lstinline[", "\\begin{tabular}", "\\mint{c}")),
        *(("latex", unit) for unit in ("\\url{%", "\\url[%", "\\newminted[", "\\newminted{a}{}\\begin{acode}\n")),
        *(("latex", unit) for unit in ("\\begin{tabular}\\end{tabular}", "\\begin{tabular}%", "\\begin{verbatim}")),
        *((form, "---\na: b\n\r") for form in ("html", "rst", "adoc")),
        *(("rst", unit) for unit in ("- ", ".. ", "`", "``", "a_", "|a", "x\n", "a::\n b\n\n", ":", "=\n", "a\n==\n")),
        *(("adoc", unit) for unit in ("= ", "`", "[", "<<", "a:b[", "x::", ".x\n", "//\n", "a:", "= a\n")),
        *(("srt", unit) for unit in ("1\n", "00:00:01,000 --> 00:00:02,000\n", "<i>", "{\\", "- <i>\n")),
        *(("po", unit) for unit in ('msgstr "a\\n"\n', '"a"\n', "\\", "_", "%(")),
        *(("python", unit) for unit in ("# a\n", "a.", '"""', "(")),
        *(("c", unit) for unit in ("/*", "// a\n", "{", "a")),
    ],
)
def test_hostile_repetition_takes_linear_time(form: str, unit: str) -> None:
    start = {"srt": "00:00:01,000 --> 00:00:02,000\n", "po": 'msgid "a"\nmsgstr "b"\n', "python": "# ", "c": "// "}
    data = (start.get(form, "a ") + unit * (SIZE // len(unit))).encode()
    started = time.process_time()
    file_format = format_of("-", form)
    assert b"".join(file_format.write(part, ()) for part in file_format.read(io.BytesIO(data))) == data
    assert time.process_time() - started < 2.5


@pytest.mark.parametrize("language", ["python", "c"])
@pytest.mark.parametrize("run", [" \n", "\x0c\n", "\n\t", " \t"])
def test_comments_are_found_behind_white_space_without_end(language: str, run: str) -> None:
    mark = {"python": "#", "c": "//"}[language]
    text = f"{mark} he go{run * 15_000}x\n\n{mark} We is late.\n" + "\n" * 200 + f"\t{mark} The boats is here."
    started = time.process_time()
    sentences = [text[prose.start : prose.end] for prose in comments(text, language)]
    assert time.process_time() - started < 1
    assert sentences[-2:] == ["We is late.", "The boats is here."]
    assert sentences[0].startswith("he go")


@pytest.mark.parametrize("form", MARKED_UP)
def test_random_hostile_files(form: str) -> None:
    outcome = fuzz(5, 7, formats=[form])
    assert not outcome.wrong, outcome.examples


def test_code_and_formulas_of_html_stay() -> None:
    text = "<p>Run <tt>git comit</tt> where \\(y = a x\\) is, \\[a x\\] or $$a = x$$ go.</p>"
    (segment,) = [segment for part in format_of("a.html").read(io.BytesIO(text.encode())) for segment in part.segments]
    (part,) = [part for part in format_of("a.html").read(io.BytesIO(text.encode())) if part.segments]
    protected = [part.text[start:end] for start, end in segment.protected]
    assert protected == ["<tt>git comit</tt>", "\\(y = a x\\)", "\\[a x\\]", "$$a = x$$"]


def test_elements_inside_a_sentence_that_are_not_translated_do_not_divide_it() -> None:
    text = '<p>He use <span class="notranslate">git go</span> and <b translate="no">go</b> here.</p>'
    assert segments("html", text) == [text[3:-4]]
    out = corrected("html", text.encode(), lambda text: text.replace("use", "uses").replace("go", "goes")).decode()
    assert out == text.replace("use ", "uses ")
    assert segments("html", "<p>He go.</p><div translate=no>She go.</div><p>It go.</p>") == ["He go.", "It go."]
    assert segments("html", "<p>He <svg><path d='M0 go'/></svg> go.</p>") == ["He  go."], "drawings are not shown"


def test_code_of_php_is_no_prose() -> None:
    text = "<p>He go <?= $x->go ?> here.</p><?php if ($a > 1 and he go): ?><p>It go.</p><?php he -> go"
    assert segments("html", text) == ["He go  here.", "It go."]


def test_directives_inside_a_paragraph_of_asciidoc_are_hidden() -> None:
    text = "He go home.\nifdef::go[]\nIt go\nendif::[]\naway.\ninclude::go.adoc[]\n"
    assert segments("adoc", text) == ["He go home. It go away."]
    out = corrected("adoc", text.encode(), lambda text: text.replace("go", "goes")).decode()
    assert out == text.replace("He go", "He goes").replace("It go", "It goes")


def test_the_option_of_a_line_break_in_latex_is_no_prose() -> None:
    assert segments("latex", "He go \\\\[2pt plus 1fill] it go. \\\\* [1em]\nShe go.") == ["He go", "it go.", "She go."]


@pytest.mark.parametrize("form", ["html", "latex", "python"])
def test_a_file_in_another_encoding_gets_no_utf8(form: str) -> None:
    """Only its paragraphs without other characters can be corrected."""
    frame = {"html": "<p>{}</p>\n", "latex": "{}\n\n", "python": "# {}\n\n"}[form]
    text = "".join(map(frame.format, ("He go to the cafe.", "He go to Zürich.")))
    for encoding, cafe in (("latin-1", "cafe"), ("utf-8", "café")):
        wanted = text.replace("He go to the cafe", f"He goes to the {cafe}")
        if encoding == "utf-8":
            wanted = wanted.replace("go to Z", "goes to Z")
        out = corrected(form, text.encode(encoding), lambda text: text.replace("go ", "goes ").replace("cafe", "café"))
        assert out == wanted.encode(encoding)


def test_braces_in_a_comment_after_a_line_break_of_latex_close_nothing() -> None:
    assert segments("latex", "\\author{he \\\\% }\n go \\% }\nIt go.") == ["It go."]


def test_comments_do_not_begin_the_document_of_latex() -> None:
    text = "% Before \\begin{document}:\n\\go He go.\n\\begin{document}\nIt go.\n\\end{document}\n"
    assert segments("latex", text) == ["It go."]
    assert segments("latex", "50 \\% \\begin {document} It go.") == ["It go."]
