"""Extracted documents: their text, where headings and pages begin, and hostile documents that are skipped."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from numpy.typing import NDArray

from copyspec.pipelines import DOCUMENT_READERS, FormatError
from copyspec.pipelines.extracting import pdf as pdf_module
from copyspec.pipelines.extracting.pdf import undivided
from copyspec.retrievers import Corpora, Document, HybridRetriever, read_documents, split_passages
from tests.helpers.commands import run

needs_pypdf = pytest.mark.skipif(importlib.util.find_spec("pypdf") is None, reason="pypdf is not installed")
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
A = (
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
)

HTML = """<!DOCTYPE html><html><head><title>T</title><style>p {}</style></head><body><nav>Menu</nav>
<h1>Herons &amp; co</h1><p>A heron <b>waits</b>.<br>It eats fish.</p><ul><li>One<li>Two</ul>
<table><tr><td>a</td><td>b</td></tr></table><pre>x  = 1
y</pre><script>no()</script></body></html>"""


def packed(path: Path, **files: str | bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def word(*paragraphs: tuple[str, str]) -> str:
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{text[:3]}</w:t><w:t>{text[3:]}</w:t></w:r></w:p>'
        for style, text in paragraphs
    )
    return f"<w:document {W}><w:body>{body}</w:body></w:document>"


def slide(title: str, text: str) -> str:
    def shape(kind: str, said: str) -> str:
        place = f'<p:nvSpPr><p:nvPr><p:ph type="{kind}"/></p:nvPr></p:nvSpPr>'
        return f"<p:sp>{place}<p:txBody><a:p><a:r><a:t>{said}</a:t></a:r></a:p></p:txBody></p:sp>"

    return f"<p:sld {A}>{shape('title', title)}{shape('body', text)}</p:sld>"


CONTAINER = '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
PACKAGE = (
    '<package><manifest><item id="b" href="two.xhtml"/><item id="a" href="one.xhtml"/></manifest>'
    '<spine><itemref idref="a"/><itemref idref="b"/></spine></package>'
)


FONT = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def stream(content: str, entries: str = "") -> str:
    return f"<< {entries} /Length {len(content)} >>\nstream\n{content}\nendstream"


def drawn(text: str) -> str:
    return f"BT /F1 12 Tf 72 720 Td {text} Tj ET"


def page(contents: int, forms: str = "") -> str:
    """A page whose content stream has this number. `forms`: entries of its /XObject resources."""
    resources = f"/Font << /F1 3 0 R >> /XObject << {forms} >>"
    return f"<< /Type /Page /Parent 2 0 R /Resources << {resources} >> /Contents {contents} 0 R >>"


def pdf_bytes(*pages: str) -> bytes:
    """Make a PDF with a line of text on each page."""
    kids = [4 + 2 * number for number in range(len(pages))]
    objects = [(page(kid + 1), stream(drawn(f"({text})"))) for kid, text in zip(kids, pages, strict=True)]
    return pdf_of(kids, FONT, *(part for pair in objects for part in pair))


def pdf_of(kids: list[int], *objects: str) -> bytes:
    """Make a PDF whose pages are the objects `kids`; `objects`: those from number 3 on."""
    listed = " ".join(f"{kid} 0 R" for kid in kids)
    tree = f"<< /Type /Pages /Kids [{listed}] /Count {len(kids)} >>"
    objects = ("<< /Type /Catalog /Pages 2 0 R >>", tree, *objects)
    out, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    )
    return out + f"{end}startxref\n{len(out)}\n%%EOF\n".encode()


def read(path: Path) -> Document:
    return DOCUMENT_READERS[path.suffix](path)


def test_html_is_read_by_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(HTML, encoding="utf-8")
    document = read(tmp_path / "a.html")
    assert (
        document.text
        == "Herons & co\n\nA heron waits . It eats fish.\n- One\n- Two\n\n| a | b |\nx  = 1\ny".replace(" .", ".", 1)
    )
    assert [(heading.level, heading.title) for heading in document.headings or ()] == [(1, "Herons & co")]
    (tmp_path / "b.html").write_bytes('<meta charset="latin-1"><p>Café'.encode("latin-1"))
    assert read(tmp_path / "b.html").text == "Café"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (
            "<table><tr><th>Stand<th>Goods</tr><tr><td><p>B7</p></td><td><p>honey</p><div>wax</div></td></tr></table>",
            "| Stand | Goods |\n|---|---|\n| B7 | honey wax |",
        ),
        ("<p>a<table><tr><td>one</td></tr><tr><td>two</td></tr></table>", "a\none\ntwo"),
        ("<td>a<td>b", "| a | b |"),
        (
            "<table><tr><td><h1>T</h1><p>Text</p><table><tr><td>a</td><td>b</td></tr></table></td></tr></table>",
            "T\n\nText\n\n| a | b |",
        ),
        ("<table><tr><td>a<td><td>c<tr><th>d<td>e<td>f</table>g", "| a |  | c |\n| d | e | f |\n\ng"),
    ],
)
def test_rows_of_html_tables_are_lines(page: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(page, encoding="utf-8")
    assert read(tmp_path / "a.html").text == text.replace("  ", " ")


def cell(*paragraphs: str, merged: str = "") -> str:
    return (
        f"<w:tc><w:tcPr>{merged}</w:tcPr>"
        + "".join(f"<w:p><w:r><w:t>{paragraph}</w:t></w:r></w:p>" for paragraph in paragraphs)
        + "</w:tc>"
    )


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([["Stand", "Goods"], ["B7", "honey"]], "| Stand | Goods |\n| B7 | honey |"),
        ([["one"], ["two"]], "one\n\ntwo"),
        ([["a", "b" * 401]], "a\n\n" + "b" * 401),
    ],
)
def test_rows_of_word_and_powerpoint_tables_are_lines(rows: list[list[str]], text: str, tmp_path: Path) -> None:
    made = "".join(f"<w:tr>{''.join(map(cell, row))}</w:tr>" for row in rows)
    document = word(("", "Fair")).replace("</w:body>", f"<w:tbl>{made}</w:tbl></w:body>")
    assert read(packed(tmp_path / "a.docx", **{"word/document.xml": document})).text == f"Fair\n\n{text}"
    table = f"<p:graphicFrame><a:tbl>{made.replace('w:', 'a:')}</a:tbl></p:graphicFrame>"
    shown = slide("Fair", "Text").replace("</p:sld>", f"{table}</p:sld>")
    content = read(packed(tmp_path / "a.pptx", **{"ppt/slides/slide1.xml": shown})).text
    assert content.split() == ["Fair", "Text", *text.split()]


def test_word_tables_name_columns_and_merge_cells(tmp_path: Path) -> None:
    begin, on = '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
    rows = (
        f"<w:tr><w:trPr><w:tblHeader/></w:trPr>{cell('Hall')}{cell('Stand')}</w:tr>"
        f"<w:tr>{cell('A', 'north', merged=begin)}{cell('B7')}</w:tr><w:tr>{cell(merged=on)}{cell('B9')}</w:tr>"
    )
    document = word(("TOC1", "Fair 3"), ("", "Fair")).replace("</w:body>", f"<w:tbl>{rows}</w:tbl></w:body>")
    read_document = read(packed(tmp_path / "a.docx", **{"word/document.xml": document}))
    assert read_document.text == "Fair\n\n| Hall | Stand |\n|---|---|\n| A north | B7 |\n| A north | B9 |"


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("of trans-\nparent glass", "of transparent\nglass"),
        ("is water-\nproof.", "is waterproof.\n"),
        ("retriev-\nal by", "retrieval\nby"),
        ("a well-\nknown man", "a well-known\nman"),
        ("state-of-\nthe-art work", "state-of-the-art\nwork"),
        ("Jean-\nPaul came", "Jean-Paul\ncame"),
        ("in UTF-\n8 text", "in UTF-8\ntext"),
        ("from 5-\n10 mm", "from 5-10\nmm"),
        ("die Verfas-\nsung der", "die Verfassung\nder"),
        ("soft\u00ad\nware is", "software\nis"),
        ("(inter-\nnational) law", "(international)\nlaw"),
        ("it ends -\nhere", "it ends -\nhere"),
        ("two:\n- a\n- b", "two:\n- a\n- b"),
        ("hyphen-\n\nNew", "hyphen-\n\nNew"),
    ],
)
def test_words_divided_at_the_ends_of_lines_are_joined(text: str, joined: str) -> None:
    assert undivided(text) == joined


def test_items_that_only_link_to_places_in_the_page_are_left_out(tmp_path: Path) -> None:
    page = (
        '<ul><li><a href="#a">Hours</a></li><li> <a href="#b"><b>Prices</b></a> </ul><p>See <a href="#a">hours</a>.'
        '<ul><li><a href="#a">Hours</a> of the shop<li><a href="x.html">Shop</a></ul><p><a href="#a">Top</a>'
    )
    (tmp_path / "a.html").write_text(page, encoding="utf-8")
    assert read(tmp_path / "a.html").text == "See hours.\n- Hours of the shop\n- Shop\n\nTop"


@pytest.mark.parametrize(
    "page",
    [
        "<head><title>T</title><meta charset=utf-8><style>p {}</style><body><p>Herons wait.",
        "<title>T</title><link rel=x><p>Herons wait.",
        "<html><head><title>T</title><noscript><p>No</p></noscript><template><p>No</p></template>Herons wait.",
        "<html><head><script>no()</script></head><p>Herons wait.</html>",
        "<head></head><head><title>T</title></head><body>Herons wait.",
        "<html><head><title/></head><body>Herons wait.</body></html>",
    ],
)
def test_heads_may_lack_their_tags(page: str, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(page, encoding="utf-8")
    assert read(tmp_path / "a.html").text == "Herons wait."


def test_words_are_neither_joined_nor_divided(tmp_path: Path) -> None:
    page = "<p>data<wbr>base <select><option>One<option>Two</select><table><caption>Birds</caption><tr><td>a<td>b"
    (tmp_path / "a.html").write_text(page, encoding="utf-8")
    assert read(tmp_path / "a.html").text.split() == ["database", "One", "Two", "Birds", "|", "a", "|", "b", "|"]
    (tmp_path / "a.html").write_text("One<hr>Two", encoding="utf-8")
    assert read(tmp_path / "a.html").text == "One\n\nTwo"


def test_word_powerpoint_and_epub(tmp_path: Path) -> None:
    written = word(("Heading1", "Herons"), ("Normal", "They wait."), ("Heading2", "Food"), ("", "They eat fish."))
    read_document = read(packed(tmp_path / "a.docx", **{"word/document.xml": written}))
    assert [(passage.heading, passage.text) for passage in split_passages(read_document)] == [
        ("Herons", "Herons\n\nThey wait."),
        ("Herons > Food", "Food\n\nThey eat fish."),
    ]
    slides = {f"ppt/slides/slide{number}.xml": slide(f"Part {number}", "Text") for number in (10, 2)}
    read_document = read(packed(tmp_path / "a.pptx", **slides))
    assert [(passage.page, passage.heading) for passage in split_passages(read_document)] == [
        (1, "Part 2"),
        (2, "Part 10"),
    ]
    chapters = {"OPS/one.xhtml": "<h1>One</h1><p>First.", "OPS/two.xhtml": "<h1>Two</h1><p>Second."}
    book = {"META-INF/container.xml": CONTAINER, "OPS/book.opf": PACKAGE, **chapters}
    read_document = read(packed(tmp_path / "a.epub", **book))
    assert [(passage.heading, passage.text) for passage in split_passages(read_document)] == [
        ("One", "One\n\nFirst."),
        ("Two", "Two\n\nSecond."),
    ]


@needs_pypdf
def test_pdf_knows_its_pages_and_bookmarks(tmp_path: Path) -> None:
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf_bytes("Herons wait.", "Swifts fly."))))
    writer.add_outline_item(title="Birds that fly", page_number=1)
    writer.write(tmp_path / "a.pdf")
    passages = split_passages(read(tmp_path / "a.pdf"))
    assert [(passage.page, passage.heading, passage.text) for passage in passages] == [
        (1, "", "Herons wait."),
        (2, "Birds that fly", "Swifts fly."),
    ]


@needs_pypdf
def test_damaged_bookmarks_cost_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pypdf import PdfReader

    path = file("x.pdf", pdf_bytes("Herons wait."))(tmp_path)
    monkeypatch.setattr(PdfReader, "outline", property(lambda self: self.no_such_outline))
    document = read(path)
    assert document.text.strip() == "Herons wait." and document.headings == ()


def bomb(tmp_path: Path) -> Path:
    return packed(tmp_path / "x.docx", **{"word/document.xml": b"<a>" + b" " * (9 << 20)})


def encrypted(tmp_path: Path) -> Path:
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf_bytes("Secret."))))
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(tmp_path / "x.pdf")
    return tmp_path / "x.pdf"


def file(name: str, content: bytes) -> Callable[[Path], Path]:
    def made(tmp_path: Path) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return made


LAUGHS = '<!DOCTYPE a [<!ENTITY b "ha">]><w:document xmlns:w="x">&b;</w:document>'


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (bomb, "unpacks to more than"),
        (file("x.docx", b"no zip"), "not a readable Word document"),
        (lambda folder: packed(folder / "x.docx", a=""), "the archive holds no word/document.xml"),
        (lambda folder: packed(folder / "x.docx", **{"word/document.xml": LAUGHS}), "has a document type"),
        (lambda folder: packed(folder / "x.docx", **{"word/document.xml": LAUGHS.encode("utf-16")}), "document type"),
        (lambda folder: packed(folder / "x.pptx", **{"ppt/slides/slide1.xml": "<a"}), "is not XML"),
        (lambda folder: packed(folder / "x.epub", a=""), "not an EPUB: the archive holds no META-INF/container.xml"),
        (file("x.html", b"\xff\xfa<p>"), "x.html is not UTF-8, and names no encoding"),
        pytest.param(file("x.pdf", b"%PDF-1.4\nnothing"), "not a readable PDF", marks=needs_pypdf),
        pytest.param(encrypted, "it is encrypted: save it without its password", marks=needs_pypdf),
    ],
)
def test_what_cannot_be_read_is_left_out_and_named(
    make: Callable[[Path], Path], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    (tmp_path / "good.md").write_text("Herons wait.")
    status, out, err = run(capsys, "index", "add", "c", str(tmp_path), "--dir", str(tmp_path / "corpora"))
    assert status == 0 and "1 documents" in out
    assert err.startswith("skipped: ") and said in err and err.count("\n") == 1


@pytest.mark.parametrize("piece", ["<a ", "<!-- -- ", "<![", "<a x='", "<td> ", "<td>x"])
def test_pages_that_nothing_ends_are_read_in_linear_time(piece: str, tmp_path: Path) -> None:
    """Ten times as long as an input that took the parser 40 seconds."""
    (tmp_path / "x.html").write_text("<p>Herons wait.</p>" + piece * (360_000 // len(piece)))
    started = process_time()
    assert DOCUMENT_READERS[".html"](tmp_path / "x.html").text.startswith("Herons wait.")
    assert process_time() - started < 5


def test_paragraphs_in_paragraphs_are_read_once(tmp_path: Path) -> None:
    nested = f"<w:document {W}>" + "<w:p>" * 3000 + "<w:r><w:t>Herons wait.</w:t></w:r>" + "</w:p>" * 3000
    packed(tmp_path / "x.docx", **{"word/document.xml": nested + "</w:document>"})
    shapes = f"<p:sld {A}>" + "<p:sp>" * 3000 + "<a:p><a:t>Herons wait.</a:t></a:p>" + "</p:sp>" * 3000 + "</p:sld>"
    packed(tmp_path / "x.pptx", **{"ppt/slides/slide1.xml": shapes})
    for name in ("x.docx", "x.pptx"):
        assert DOCUMENT_READERS[Path(name).suffix](tmp_path / name).text.strip() == "Herons wait."


@pytest.mark.parametrize("namespace", [r"\g<0>", r"http://purl.oclc.org/ooxml/\1/main"], ids=["usual", "strict"])
def test_text_for_old_programs_and_moved_text_is_read_once(namespace: str, tmp_path: Path) -> None:
    box = "<w:p><w:r><w:t>They wait.</w:t></w:r></w:p>"
    both = f"<mc:AlternateContent><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent>"
    moved = "<w:p><w:moveFrom><w:r><w:t>Fish.</w:t></w:r></w:moveFrom></w:p><w:p><w:r><w:t>Fish.</w:t></w:r></w:p>"
    mc = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    body = f"<w:p {mc}><w:r>{both}</w:r></w:p>{moved}</w:body>"
    cells = "".join(f"<a:tc><a:p><a:r><a:t>{text}</a:t></a:r></a:p></a:tc>" for text in ("Fish", "12"))
    files = {
        "word/document2.xml": word(("Heading1", "Herons")).replace("</w:body>", body),
        "ppt/slides/slide1.xml": slide("Herons", "They wait.").replace(
            "</p:sld>", f"<p:graphicFrame><a:tbl>{cells}</a:tbl></p:graphicFrame></p:sld>"
        ),
    }
    usual = r"http://schemas\.openxmlformats\.org/(\w+)/2006/main"
    for name, text in (("x.docx", "Herons\n\nThey wait.\n\nFish."), ("x.pptx", "Herons\nThey wait.\nFish\n12")):
        document = read(packed(tmp_path / name, **{part: re.sub(usual, namespace, xml) for part, xml in files.items()}))
        assert document.text == text and [heading.title for heading in document.headings or ()] == ["Herons"]


def test_line_breaks_and_hyphens_between_runs_are_read(tmp_path: Path) -> None:
    run = "<w:t>Herons</w:t><w:br/><w:t>wait</w:t><w:noBreakHyphen/><w:t>and</w:t><w:tab/><w:t>see</w:t>"
    files = {
        "word/document.xml": f"<w:document {W}><w:body><w:p><w:r>{run}</w:r></w:p></w:body></w:document>",
        "ppt/slides/slide1.xml": slide("Herons</a:t></a:r><a:br/><a:r><a:t>wait-and", "see"),
    }
    assert read(packed(tmp_path / "x.docx", **files)).text == "Herons wait-and see"
    assert read(packed(tmp_path / "x.pptx", **files)).text == "Herons wait-and\nsee"


def test_a_page_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    with (tmp_path / "x.html").open("wb") as file:
        file.truncate(100 << 20)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"x\.html has more than 16 MB"):
        read(tmp_path / "x.html")
    assert tracemalloc.get_traced_memory()[1] < 40 << 20
    tracemalloc.stop()


@needs_pypdf
def test_huge_pages_and_page_counts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file("x.pdf", pdf_bytes("a", "b"))(tmp_path)
    for name, said in (
        ("MAX_PAGES", "2 pages, more than 1"),
        ("MAX_PAGE_CONTENT_BYTES", r"page 1: its content stream is larger than .* split the file or remove that page"),
        ("MAX_CONTENT_BYTES", "its pages have more than .* of content: divide it"),
        ("MAX_TEXT", "million"),
    ):
        with monkeypatch.context() as patch, pytest.raises(ValueError, match=said):
            patch.setattr(pdf_module, name, 1)
            read(path)


@needs_pypdf
def test_forms_count_as_content_as_often_as_they_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forms = "/Outer 6 0 R /Inner 7 0 R"
    resources = f"/Resources << /Font << /F1 3 0 R >> /XObject << {forms} >> >>"
    entries = f"/Type /XObject /Subtype /Form /BBox [0 0 99 99] {resources}"
    inner = drawn("(Herons wait.)")
    objects = (page(5, forms), stream("/Outer Do " * 2), stream("/Inner Do", entries), stream(inner, entries))
    path = file("x.pdf", pdf_of([4], FONT, *objects))(tmp_path)
    assert read(path).text.count("Herons wait.") == 2
    monkeypatch.setattr(pdf_module, "_FORM_BYTES", 0)
    size = 2 * (len("/Outer Do ") + len("/Inner Do") + len(inner))
    monkeypatch.setattr(pdf_module, "MAX_PAGE_CONTENT_BYTES", size)
    assert read(path).text.count("Herons wait.") == 2
    monkeypatch.setattr(pdf_module, "MAX_PAGE_CONTENT_BYTES", size - 1)
    with pytest.raises(ValueError, match=r"page 1: its content stream is larger than .* with the forms that it draws"):
        read(path)


@needs_pypdf
def test_a_stream_counts_for_each_page_that_shares_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = drawn("(Herons wait.)")
    objects = (page(5), stream(content), page(5), page(5))
    path = file("x.pdf", pdf_of([4, 6, 7], FONT, *objects))(tmp_path)
    monkeypatch.setattr(pdf_module, "MAX_CONTENT_BYTES", 3 * len(content))
    assert read(path).text.count("Herons wait.") == 3
    monkeypatch.setattr(pdf_module, "MAX_CONTENT_BYTES", 3 * len(content) - 1)
    with pytest.raises(ValueError, match=r"its pages have more than .* of content: divide it"):
        read(path)


CHARACTERS = """/CIDInit /ProcSet findresource begin
12 dict begin
begincmap
1 begincodespacerange
<00> <FF>
endcodespacerange
1 beginbfchar
<01> <D83D>
endbfchar
endcmap
end end"""


@needs_pypdf
def test_characters_that_are_half_of_one_are_replaced(tmp_path: Path) -> None:
    font = FONT.replace(">>", "/ToUnicode 6 0 R >>")
    objects = (font, page(5), stream(drawn("(Herons ) Tj <01>")), stream(CHARACTERS))
    assert read(file("x.pdf", pdf_of([4], *objects))(tmp_path)).text.strip() == "Herons \ufffd"


def encode(texts: list[str]) -> NDArray[np.float32]:
    encode.count += len(texts)  # type: ignore[attr-defined]
    return np.array([[1 + text.count(letter) for letter in "aeot"] for text in texts], np.float32)


encode.count = 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["bm25", "hybrid"])
def test_unchanged_files_are_not_read_and_changed_ones_replaced(kind: str, tmp_path: Path) -> None:
    folder, corpora = tmp_path / "texts", Corpora(tmp_path / "corpora")
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.md").write_text(f"# {name}\n\nText of {name}.")

    def add() -> list[str]:
        read = list(read_documents([folder], known=corpora.stamps("c")))
        stamps = {document.file: document.stamp for document in read}
        passages = [passage for document in read for passage in split_passages(document)]
        if kind == "bm25":
            corpora.add_bm25("c", passages, stamps=stamps)
        else:
            corpora.add_hybrid("c", passages, encode, stamps=stamps)
        return [Path(document.name).stem for document in read]

    assert add() == ["a", "b", "c"] and add() == []
    (folder / "b.md").write_text("# b\n\nAnother text.")
    os.utime(folder / "b.md", ns=(1, 1))
    before = encode.count  # type: ignore[attr-defined]
    assert add() == ["b"]
    retriever, passages = corpora.open("c", encode=encode)
    assert [passage.text for passage in passages] == ["# a\n\nText of a.", "# c\n\nText of c.", "# b\n\nAnother text."]
    assert list(retriever.texts) == [passage.text for passage in passages]
    if kind == "bm25":
        assert retriever.search("another", 1)[0].id == 2
    else:
        assert isinstance(retriever, HybridRetriever)
        assert encode.count - before <= 4, "vectors of unchanged files are taken over"  # type: ignore[attr-defined]
        fresh = Corpora(tmp_path / "fresh")
        fresh.add_hybrid("c", passages, encode)
        for query in ("text a", "another"):
            assert fresh.open("c", encode=encode)[0].search(query, 3) == retriever.search(query, 3)


@pytest.mark.parametrize("as_list", [True, False])
def test_notebooks_are_their_cells(as_list: bool, tmp_path: Path) -> None:
    cells = [("markdown", "# Herons\n\nThey wait."), ("code", "x = 1\nprint(x)"), ("raw", "left"), ("markdown", "")]
    notebook_cells = [
        {"cell_type": kind, "source": source.splitlines(keepends=True) if as_list else source, "outputs": ["out"]}
        for kind, source in cells
    ]
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"cells": notebook_cells, "nbformat": 4}))
    document = read(path)
    assert document.text == "# Herons\n\nThey wait.\n\nx = 1\nprint(x)"
    assert [passage.heading for passage in split_passages(document, max_chars=30)][:1] == ["Herons"]
    old = [{"input" if one["cell_type"] == "code" else "source": one.pop("source"), **one} for one in notebook_cells]
    path.write_text(json.dumps({"worksheets": [{"cells": old[:1]}, {"cells": old[1:]}], "nbformat": 3}))
    assert read(path).text == document.text
    lists = ("3", '[{"cell_type": "code"}]', '["x"]')
    for wrong in ("{", "[]", '{"worksheets": [3]}', *(f'{{"cells": {cells_given}}}' for cells_given in lists), "\xff"):
        path.write_text(wrong, encoding="latin-1")
        with pytest.raises(FormatError, match=r"x.ipynb': not a notebook"):
            read(path)
