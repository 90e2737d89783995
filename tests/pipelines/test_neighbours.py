"""Text that goes on in what follows gets no full stop, and text that goes on from what precedes no capital."""

from __future__ import annotations

import io
import json
import random
import re
import time
import zipfile
from collections.abc import Iterator

import pytest

from copyspec.pipelines import FormatOptions, FunctionCorrector, Runner, RunOptions, Work, format_of
from copyspec.pipelines.documents import FormatOptionError, model_text
from copyspec.pipelines.formats.suffixes import LANGUAGES
from copyspec.pipelines.formats.whole import WholeFormat
from tests.helpers.docx import W, docx, p, r

COUNT = 1000
_BEGIN = ["We", "They", "He", "She", "The result", "It", "This", "That value"]
_MIDDLE = ["have", "is", "was", "can", "has", "were", "must", "will"]
_END = [
    "a sum of parts",
    "the house on the hill",
    "one value for all",
    "three trees",
    "taken from the list",
    "in the state",
]
_LINK = ["where", "and", "or", "which", "but", "by using", "so", "that", "than", "with", "as", "for that"]
_REST = ["the sum is large", "it was made", "they are all here", "a house has two doors", "all values can be read"]


def habit(text: str) -> str:
    """What a model does that was trained on sentences: every text gets a capital and a full stop."""
    text = re.sub(r"[^\W\d_]", lambda letter: letter[0].upper(), text, count=1)
    return text if re.search(r"[.!?]\W*\Z", text) else f"{text}."


def corrected(form: str, data: bytes) -> bytes:
    made = format_of("-", form, options=FormatOptions(column=1, force_format=True))
    works = [Work(None, part) for part in made.read(io.BytesIO(data))]
    runner = Runner(FunctionCorrector(habit), RunOptions())
    return b"".join(made.write(done.part, done.edits) for done in runner.run(works) if done.part is not None)


def odt(*paragraphs: str) -> bytes:
    names = {"t": "text", "o": "office", "b": "table", "d": "drawing", "s": "style"}
    spaces = " ".join(f'xmlns:{key}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for key, name in names.items())
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("content.xml", f"<o:d {spaces}>{''.join(paragraphs)}</o:d>")
    return out.getvalue()


def cues(*texts: str, comma: str = ",", numbers: bool = True, head: str = "") -> str:
    times = (f"00:00:0{n}{comma}000 --> 00:00:0{n}{comma}900\n" for n in range(1, 10))
    return head + "".join(f"{n}\n" * numbers + f"{next(times)}{text}\n\n" for n, text in enumerate(texts, 1))


def notebook(*cells: tuple[str, str]) -> bytes:
    listed = [{"cell_type": kind, "metadata": {}, "source": source} for kind, source in cells]
    return json.dumps({"cells": listed, "metadata": {}, "nbformat": 4}).encode()


def catalog(*texts: str) -> str:
    entries = (f'msgid "text {n}"\nmsgstr "{text}"\n\n' for n, text in enumerate(texts))
    return 'msgid ""\nmsgstr "Language: en\\n"\n\n' + "".join(entries)


# `{a}` begins a sentence that goes on in `{b}`; `{i}` is an item of a list, or a cell of a table.
_BETWEEN = {
    "md": (
        "$$⏎x = 1⏎$$¦```⏎make⏎```¦    make all¦![Made](a.png)¦<div>x</div>¦- {i}⏎- {i}¦> {i}¦"
        "\\begin{equation}⏎x⏎\\end{equation}¦| A | B |⏎|---|---|¦***¦1. {i}⏎2. {i}¦<!-- x -->¦¦`make`¦"
        "{{< figure >}}¦[^1]: {i}¦[x]: http://x.org¦+ {i}⏎⏎  + {i}¦- [ ] {i}¦![](a.png)"
    ),
    "txt": ("    x = 1¦    X := A + B¦- {i}⏎- {i}¦1. {i}⏎2. {i}¦¦* {i}¦(a) {i}⏎(b) {i}¦	Make all"),
    "html": (
        "<br>¦<br><img src=a><br/>¦</p><pre>x</pre><p>¦</p><ul><li>{i}<li>{i}</ul><p>¦</p><p>¦<hr>¦"
        "</p><ul><li><p>{i}</p></li><li>{i}</li></ul><p>¦</p><math><mi>x</mi></math><p>¦<input>¦"
        "<video></video>¦</p><table><tr><th><p>{i}</p></th><td>{i}</td></tr></table><p>¦"
        "</p><dl><dt>{i}<dd>{i}</dl><p>¦</p><table><tr><td><div>{i}</div><td>{i}<tr><td>{i}</table><p>¦"
        "</p><blockquote>{i}</blockquote><p>"
    ),
    "latex": (
        "\\begin{equation} x = 1 \\end{equation}¦\\[ x = 1 \\]¦$$x$$¦\\begin{verbatim}⏎x⏎\\end{verbatim}¦¦"
        "\\begin{itemize} \\item {i} \\item {i} \\end{itemize}¦\\begin{figure}\\caption{{i}}\\end{figure}¦"
        "\\begin{tabular}{c} x \\end{tabular}¦\\begin{description}\\item[x] {i}\\end{description}¦"
        "\\includegraphics{a}¦\\begin{lstlisting}⏎x⏎\\end{lstlisting}¦\\begin{align}⏎x⏎\\end{align}¦"
        "\\lstinputlisting{a.c}¦\\hline"
    ),
    "rst": (
        ".. math:: x = 1¦.. image:: a.png¦- {i}⏎- {i}¦1. {i}⏎⏎2. {i}¦==== ====⏎A    B⏎==== ====¦::⏎⏎  x¦"
        ".. code-block:: sh⏎⏎    make¦>>> x¦x⏎    {i}¦:field: {i}¦| {i}⏎| {i}¦#. {i}⏎#. {i}¦¦a. {i}¦.. [1] {i}¦"
        "-a  {i}¦+---+⏎| A |⏎+---+¦.. x:: y¦.. _x:¦.. |x| image:: y"
    ),
    "adoc": (
        "[stem]⏎++++⏎x = 1⏎++++¦----⏎make⏎----¦* {i}⏎* {i}¦. {i}⏎. {i}¦x:: {i}¦image::a.png[]¦¦|===⏎| x⏎|===¦"
        " make all¦<1> {i}¦'''¦- {i}¦a. {i}¦[source]⏎x¦include::a[]¦....⏎x⏎...."
    ),
}
_ALONE = {
    "md": (
        '$x$ {b}.¦`x` {b}.¦<img src="a.png"> {b}.¦| {i} | {i} |⏎|--|--|⏎| {i} | {i} |¦{a}<br>⏎{b}.¦{a}:⏎⏎* {i}¦'
        "> {a}⏎>⏎> {b}.¦# {i}¦{i}⏎===¦{a},⏎⏎{b}.¦*{a}*⏎⏎*{b}*.¦- {i}: {i}"
    ),
    "txt": ("{a},⏎⏎{b}.¦{a}:⏎- {i}⏎- {i}¦{a}:⏎⏎1. {i}¦- {i}.⏎- {i}.¦{a}⏎⏎{b}⏎⏎{b}."),
    "lines": ("{a}⏎{b}.¦{a},⏎{b}.¦- {i}⏎- {i}¦{a}⏎⏎{b}.¦1. {i}⏎2. {i}"),
    "html": (
        "<h3>The title<div>{i}.</div></h3>¦<p><code>x</code> {b}.</p>¦<td>{i}</td>¦<h1>{i}</h1>¦"
        "<li>{i}.¦<img src=a> {b}.¦<button>{i}</button>"
    ),
    "latex": ("{a} \\\\ {b}.¦$x$ {b}.¦\\section{{i}}¦\\ref{a} {b}.¦\\(x\\) {b}.¦\\item {i}¦\\emph{{a}}⏎⏎\\emph{{b}}."),
    "rst": ("{a}::⏎⏎    make⏎⏎{b}.¦``x`` {b}.¦:math:`x` {b}.¦* {i}¦|x| {b}."),
    "adoc": ("`x` {b}.¦== {i}¦.{i}⏎----⏎x⏎----¦{a} +⏎{b}.¦{x} {b}.¦a:: {i}"),
    "csv": ("{i}⏎{i}¦{a}⏎{b}"),
    "python": (
        '# {a}⏎x = 1⏎# {b}.¦# {a}⏎#⏎# {b}.¦# {b}.¦def f():⏎    """{i}"""¦# - {i}⏎# - {i}¦x = 1  # {i}.¦'
        "def f():⏎    '''Do.⏎⏎    {a}::⏎⏎        x⏎⏎    {b}.⏎    '''¦"
        "def f():⏎    '''Do.⏎⏎    Args:⏎        x: {i}⏎        y (int): {i}.⏎⏎    Returns:⏎        {i}.⏎    '''"
    ),
    "bash": ("# {a}⏎x=1⏎# {b}.¦# {a}⏎#⏎# {b}.¦# - {i}⏎# - {i}¦x=1 # {i}."),
    "ruby": ("# {a}⏎x = 1⏎# {b}.¦# {a}⏎#⏎# {b}.¦# - {i}⏎# - {i}¦=begin⏎{a}⏎⏎{b}.⏎=end¦# @param x [Int] {i}."),
}
_SLASHES = (
    "// {a}⏎x⏎// {b}.¦/* {a} */ int x;⏎/* {b}. */¦/**⏎ * {a}⏎ *⏎ * {b}.⏎ */¦// - {i}⏎// - {i}¦int x; // {i}.¦"
    "/**⏎ * Does it.⏎ * @param x {i}⏎ * @return {i}.⏎ */¦/// {a}⏎///⏎/// {b}.⏎int x;¦/// - Parameter x: {i}."
)
_PACKED = ("docx", "odt", "srt", "po", "ipynb", "jsonl")
FORMS = sorted({*_ALONE, *LANGUAGES, *_PACKED})


def listed(text: str) -> list[str]:
    return text.replace("⏎", "\n").split("¦")


def shapes(form: str) -> Iterator[str]:
    for inner in listed(_BETWEEN[form]) if form in _BETWEEN else ():
        apart = "" if form == "html" else "\n\n"
        yield f"{'<p>' * (form == 'html')}{{a}}{apart}{inner}{apart}{{b}}."
        if form == "latex":
            yield f"{{a}}\n{inner}\n{{b}}."
    yield from listed(_ALONE.get(form, _SLASHES))


def packed(form: str, rng: random.Random, a: str, b: str, i: str) -> bytes:
    options: dict[str, list[bytes]] = {
        "docx": [
            docx(p(r(a)), p('<w:r><w:drawing><a:x xmlns:a="a"/></w:drawing></w:r>'), p(r(f"{b}."))),
            docx(p(r(a)), p("<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>"), p(r(f"{b}."))),
            docx(
                p(r(a)), p("<m:oMath><m:r><m:t>X=</m:t></m:r><m:r><m:t>A &amp; B</m:t></m:r></m:oMath>"), p(r(f"{b}."))
            ),
            docx(p(r(a)), p(r(f"{b}."))),
            docx(f"<w:tbl><w:tr><w:tc>{p(r(i))}</w:tc><w:tc>{p(r(f'{i}.'))}</w:tc></w:tr></w:tbl>"),
            docx(p(r(a)).replace("Body", "ListBullet").replace("<w:pPr>", "<w:pPr><w:numPr/>"), p(r(f"{b}."))),
            docx(p("<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>", r(f" {b}."))),
            docx(p(r(a)), p(r("make")).replace("Body", "SourceCode"), p(r(f"{b}."))),
            docx(p(r(i)).replace("Body", "Heading1"), p(r(i)).replace("Body", "Caption")),
        ],
        "odt": [
            odt(f"<t:p>{a}</t:p><t:p><d:frame/></t:p><t:p>{b}.</t:p>"),
            odt(f"<t:p>{a}</t:p><t:p>{b}.</t:p>"),
            odt(f"<t:list><t:list-item><t:p>{i}</t:p></t:list-item></t:list><t:p>{b}.</t:p>"),
            odt(f"<b:table><b:table-row><b:table-cell><t:p>{i}.</t:p></b:table-cell></b:table-row></b:table>"),
            odt(f'<t:p>{a}</t:p><t:p t:style-name="Preformatted_20_Text">make</t:p><t:p>{b}.</t:p>'),
            odt(f"<t:p><d:frame/> {b}.</t:p>"),
            odt(f"<t:h>{i}</t:h>"),
        ],
        "srt": [
            cues(a, f"{b}.").encode(),
            cues(f"{a},", f"<i>{b}</i>.").encode(),
            cues(a, f"{b}.", comma=".", numbers=False, head="WEBVTT\n\n").encode(),
            cues(f"- {a}", f"- {b}.").encode(),
            f"0:00:01.000,0:00:02.000\n{a}\n\n0:00:02.000,0:00:03.000\n{b}.\n".encode(),
        ],
        "po": [catalog(a, f"{b}.").encode(), catalog(f"{a}\\n{b}.").encode(), catalog(i).encode()],
        "ipynb": [
            notebook(("markdown", a), ("code", "x"), ("markdown", f"{b}.")),
            notebook(("markdown", f"{a}\n\n$$x$$\n\n{b}.")),
            notebook(("markdown", f"- {i}\n- {i}")),
        ],
        "jsonl": [
            json.dumps({"text": f"{a}\n\n{b}."}).encode(),
            json.dumps({"text": f"- {i}\n- {i}"}).encode(),
            json.dumps({"text": f"{a}\n\n    x = 1\n\n{b}."}).encode(),
        ],
    }
    return rng.choice(options[form])


def document(form: str, rng: random.Random) -> bytes:
    """A random file of text that goes on."""

    def part(*lists: list[str]) -> str:
        return " ".join(rng.choice(words) for words in lists)

    if form in _PACKED:
        return packed(form, rng, part(_BEGIN, _MIDDLE, _END), part(_LINK, _REST), part(_LINK, _REST))
    pieces = {"{a}": (_BEGIN, _MIDDLE, _END), "{b}": (_LINK, _REST), "{i}": (_LINK, _REST)}
    text = re.sub(r"\{[abi]\}", lambda place: part(*pieces[place[0]]), rng.choice(list(shapes(form))))
    return (text + rng.choice(["", "\n", "\n\n"])).encode()


@pytest.mark.parametrize("form", FORMS)
def test_what_goes_on_gets_no_capital_and_no_full_stop(form: str) -> None:
    rng = random.Random(form)
    for _ in range(COUNT // len(FORMS) + 1):
        data = document(form, rng)
        assert corrected(form, data) == data


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("md", "# A trip\n\n@", "# A trip\n\n&."),
        ("md", "---\ntitle: x\n---\n\n@\n\n> It is.", "---\ntitle: x\n---\n\n&.\n\n> It is."),
        ("md", "It is **good**.\n\n@\n\n## Next", "It is **good**.\n\n&.\n\n## Next"),
        ("txt", "@\n\nThere it is. @\n", "&.\n\nThere it is. @.\n"),
        ("html", "<h1>A trip</h1>\n<p>@</p>\n", "<h1>A trip</h1>\n<p>&.</p>\n"),
        ("html", "<body><p>It is.</p><div><b>@</b></div>", "<body><p>It is.</p><div><b>&.</b></div>"),
        ("latex", "\\section{A}\\label{a}\n@", "\\section{A}\\label{a}\n&."),
        ("latex", "\\x{a}\n\\begin{document}\n@\n\\end{document}", "\\x{a}\n\\begin{document}\n&.\n\\end{document}"),
        ("rst", "A\n=\n\n@\n\n.. note:: @\n", "A\n=\n\n@\n\n.. note:: @.\n"),
        ("rst", "It is.\n\n.. note::\n\n   @\n", "It is.\n\n.. note::\n\n   &.\n"),
        ("rst", "Abc\n===\n\n@\n\nIt is.\n", "Abc\n===\n\n&.\n\nIt is.\n"),
        ("adoc", "== A\n\n@\n\n== B\n", "== A\n\n&.\n\n== B\n"),
        ("srt", cues("It is.", "@."), cues("It is.", "&.")),
    ],
)  # fmt: skip
def test_where_a_sentence_begins_and_ends_it_gets_both(form: str, text: str, expected: str) -> None:
    text, expected = (
        written.replace("@", "we was in the house").replace("&", "We was in the house") for written in (text, expected)
    )
    assert corrected(form, text.encode()).decode() == expected


@pytest.mark.parametrize("form", sorted({*_BETWEEN, "srt", "lines"}))
def test_much_between_two_paragraphs_takes_little_time(form: str) -> None:
    for unit in (
        "\n",
        " ",
        "\t\r",
        "<!-- x -->",
        "% x \n",
        "\\begin{document}",
        "[x]\n",
        "=",
        ">",
        "==\n",
        "- ",
        "1\n",
    ):
        start = time.process_time()
        data = f"He go.\n\n{unit * (20_000 // len(unit))}he go.\n".encode()
        list(format_of("-", form).read(io.BytesIO(data)))
        assert time.process_time() - start < 3, unit


def styles(*listed: str) -> str:
    return f'<w:styles xmlns:w="{W}">{"".join(listed)}</w:styles>'


def style(name: str, *properties: str) -> str:
    return f'<w:style w:type="paragraph" w:styleId="{name}">{"".join(properties)}</w:style>'


@pytest.mark.parametrize(
    ("style_id", "expected"),
    [
        ("Body", "sentence"),
        ("Mine", "title"),
        ("Deep", "title"),
        ("Outlined", "title"),
        ("Numbered", "item"),
        ("SourceCode", "code"),
        ("Based", "code"),
        ("HTMLPreformatted", "code"),
        ("AppendixNumber", "title"),
        ("Circle", "sentence"),
    ],
)
def test_what_a_style_of_a_word_document_says(style_id: str, expected: str) -> None:
    def based(on: str) -> str:
        return f'<w:basedOn w:val="{on}"/>'

    known = styles(
        style("Mine", '<w:name w:val="Chapter heading"/>'),
        style("Deep", '<w:name w:val="x"/>', based("Mine")),
        style("Outlined", '<w:name w:val="y"/>', '<w:pPr><w:outlineLvl w:val="2"/></w:pPr>'),
        style("Numbered", '<w:name w:val="z"/>', "<w:pPr><w:numPr/></w:pPr>"),
        style("Based", '<w:name w:val="a"/>', based("SourceCode")),
        style("Circle", '<w:name w:val="c"/>', based("Circle")),
        style("Body", '<w:name w:val="Body text"/>', '<w:pPr><w:outlineLvl w:val="9"/></w:pPr>'),
    )
    data = docx(p(r("it is what we need here")).replace("Body", style_id))
    out = io.BytesIO(data)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("word/styles.xml", known)
    (part,) = format_of("a.docx").read(io.BytesIO(out.getvalue()))
    kinds = [("title" if segment.is_title else "sentence" if segment.begins else "item") for segment in part.segments]
    assert kinds == ([] if expected == "code" else [expected])


def test_code_in_a_sentence_of_a_document_stays_and_is_shown() -> None:
    for form, data in (
        ("docx", docx(p(r("Use "), r("make all", '<w:rStyle w:val="HTMLCode"/>'), r(" for it.")))),
        ("docx", docx(p(r("Use "), "<m:oMath><m:t>make </m:t><m:t>all</m:t></m:oMath>", r(" for it.")))),
        ("odt", odt('<t:p>Use <t:span t:style-name="Source_20_Text">make all</t:span> for it.</t:p>')),
        ("odt", odt('<s:style s:name="T1" s:parent-style-name="Source_20_Text"/>'
                    '<t:p>Use <t:span t:style-name="T1">make all</t:span> for it.</t:p>')),
    ):  # fmt: skip
        (part,) = format_of("-", form).read(io.BytesIO(data))
        (segment,) = part.segments
        assert model_text(part.text, segment) == "Use make all for it."
        assert [part.text[start:end] for start, end in segment.protected] == ["make all"]


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("md", "See [[1]](a.md#b) for [[2]](c).", ["[[1]](a.md#b)", "[[2]](c)"]),
        ("md", "(a-label)=\n# A title\n\nIt go.", []),
        ("adoc", "Read pass:[<b\nid=x>]it go[] and xref:a:b.adoc#c[it\ngo] and `it\ngo`.",
         ["pass:[<b\nid=x>]", "[", "]", "xref:a:b.adoc#c[it\ngo]", "`it\ngo`"]),
        ("adoc", "Use ``it go'' with `x`.", ["``", "`x`"]),
        ("rst", ":code:`it.go`: It goes on\n-------------------------------------\n\nIt go.", [":code:`it.go`"]),
        ("rst", "The ``x``it go ``y`` and ``z``.", ["``x``it go ``y``", "``z``"]),
        ("rst", "Write to me@x.org or https://x.org/it.", ["me@x.org", "https://x.org/it"]),
        ("html", "<p>See https://x.org/it, it go.</p>", ["https://x.org/it"]),
    ],
)  # fmt: skip
def test_markup_that_stays(form: str, text: str, expected: list[str]) -> None:
    parts = list(format_of("-", form).read(io.BytesIO(text.encode())))
    spans = [(part.text, span) for part in parts for segment in part.segments for span in segment.protected]
    assert [text[start:end] for text, (start, end) in spans] == expected


def test_files_that_are_no_text_say_what_they_are() -> None:
    for name, what in (("a.1", "commands"), ("a.3pm", "commands"), ("a.man", "commands"), ("a.mk", "code")):
        with pytest.raises(FormatOptionError, match=f"holds {what}"):
            format_of(name, "txt")
    with pytest.raises(FormatOptionError, match=r"no format for '\.1' is known; such files hold commands"):
        format_of("page.1")
    assert isinstance(format_of("a.asc"), WholeFormat)
    for value, kind in ((5, "a number"), ([], "a list"), (None, "null"), (True, "a truth value"), ({}, "an object")):
        data = json.dumps({"text": value, "id": 1}).encode()
        with pytest.raises(FormatOptionError, match=f"in field 'text', which holds {kind}; it has 'id'"):
            list(format_of("a.jsonl").read(io.BytesIO(data)))
