"""Word documents: tracked changes whose original and accepted texts are right, with formatting kept."""

from __future__ import annotations

import io
import re
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.pipelines.documents import Edit, FormatError, Part, model_text
from copyspec.pipelines.edits.diff import apply, merge
from copyspec.pipelines.formats import FormatOptions, format_of
from copyspec.pipelines.guards.guards import GuardOptions, check
from tests.helpers.docx import HEAD, W, docx, p, r, texts, xml_of

FIXES = {"teh": "the", "Teh": "The", "go": "goes", "has": "have", "catt": "cat"}


def corrected(data: bytes, **options: object) -> bytes:
    form = format_of("x.docx", options=FormatOptions(**options))  # type: ignore[arg-type]
    (part,) = form.read(io.BytesIO(data))
    edits = []
    for segment in part.segments:
        output = re.sub(r"[^\W_]+", lambda word: FIXES.get(word[0], word[0]), model_text(part.text, segment))
        edits.append(check(part.text, segment, output, options=GuardOptions(max_edit_ratio=1, any_language=True)).edits)
    return form.write(part, merge(*edits))


def test_without_edits_it_is_the_file() -> None:
    data = docx(p(r("Teh cat")))
    form = format_of("x.docx")
    (part,) = form.read(io.BytesIO(data))
    assert form.write(part, ()) == data
    assert not part.is_verbatim and part.text == "Teh cat\n"


def test_changes_are_tracked_and_formatting_stays() -> None:
    bold = "<w:b/>"
    data = docx(p(r("Teh c"), r("at go", bold), r(" home &amp; has <b".replace("<", "&lt;")), r(" teh", "<w:i/>")))
    new = corrected(data)
    assert texts(new) == (["Teh cat go home & has <b teh"], ["The cat goes home & have <b the"])
    xml = xml_of(new)
    assert xml.startswith(HEAD)  # everything else is unchanged
    assert '<w:ins w:id="2" w:author="copyspec"><w:r><w:t xml:space="preserve">The</w:t></w:r></w:ins>' in xml
    assert f'<w:r><w:rPr>{bold}</w:rPr><w:t xml:space="preserve">goes</w:t></w:r></w:ins>' in xml
    ids = re.findall(r'w:id="(\d+)"', xml)
    assert len(ids) == len(set(ids)) == 8
    assert zipfile.ZipFile(io.BytesIO(new)).read("word/media/image1.png") == b"\x89PNG\0"


def test_changes_may_be_made_outright() -> None:
    data = docx(p(r("Teh cat go"), r(" home", "<w:b/>")))
    new = corrected(data, in_place=True)
    assert texts(new) == (["The cat goes home"], ["The cat goes home"])
    assert "w:ins" not in xml_of(new) and "<w:b/>" in xml_of(new)


def test_words_over_several_runs() -> None:
    data = docx(p(r("I t", "<w:b/>"), r("e", "<w:i/>"), r("h catt")))
    assert texts(corrected(data)) == (["I teh catt"], ["I the cat"])
    assert '<w:r><w:rPr><w:b/></w:rPr><w:t xml:space="preserve">the</w:t></w:r></w:ins>' in xml_of(corrected(data))


def test_links_tables_notes_headers_and_boxes() -> None:
    link = f'<w:hyperlink r:id="rId1" xmlns:r="x">{r("teh link")}</w:hyperlink>'
    table = f"<w:tbl><w:tr><w:tc>{p(r('teh cell'))}</w:tc><w:tc>{p(r('12'))}</w:tc></w:tr></w:tbl>"
    box = f"<w:r><w:drawing><w:txbxContent>{p(r('teh box'))}</w:txbxContent></w:drawing></w:r>"
    note = '<w:r><w:rPr><w:vertAlign/></w:rPr><w:footnoteReference w:id="7"/></w:r>'
    data = docx(
        p(r("See "), link, note, r(", teh end")), table, p(r("teh one "), box, r(" has")),
        header1=p(r("Teh header")), footnotes=f'<w:footnote w:id="7">{p(r("teh note"))}</w:footnote>',
    )  # fmt: skip
    new = corrected(data)
    assert texts(new)[1] == ["See the link, the end", "the cell", "12", "the one  have", "the box"]
    assert texts(new)[0] == texts(data)[0]
    assert texts(new, "header1")[1] == ["The header"] and texts(new, "footnotes")[1] == ["the note"]
    assert xml_of(new).count("footnoteReference") == 1 and xml_of(new).count("<w:drawing>") == 1
    every = "".join(xml_of(new, name) for name in ("document", "header1", "footnotes"))
    ids = re.findall(r'<w:(?:ins|del) w:id="(\d+)"', every)
    assert len(ids) == len(set(ids)) and min(map(int, ids)) == 8


def test_the_model_sees_formulas_and_no_other_objects() -> None:
    note = '<w:r><w:footnoteReference w:id="7"/></w:r>'
    math = "<m:oMath><m:r><m:t>teh</m:t></m:r></m:oMath>"
    (part,) = format_of("x.docx").read(io.BytesIO(docx(p(r("teh end"), note, r(". So "), math, r(" go")))))
    assert [model_text(part.text, segment) for segment in part.segments] == ["teh end. So teh go"]
    new = corrected(docx(p(r("teh end"), note, r(". So "), math, r(" go"))))
    assert texts(new)[1] == ["the end. So  goes"] and xml_of(new).count("<m:oMath>") == 1


def test_fields_tabs_and_hidden_text_stay() -> None:
    def char(kind: str) -> str:
        return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'

    field = char("begin") + "<w:r><w:instrText>DATE teh</w:instrText></w:r>" + char("separate") + r("teh") + char("end")
    tab = "<w:r><w:t>teh</w:t><w:tab/><w:t>teh</w:t><w:br/><w:t>go</w:t></w:r>"
    data = docx(p(r("On "), field, r(" teh")), p(tab), p(r("x "), r("teh", "<w:vanish/>"), r(" teh")))
    new = corrected(data)
    assert texts(new)[1] == ["On teh the", "the\tthe\ngoes", "x teh the"]
    assert texts(new)[0] == texts(data)[0]


def test_paragraphs_with_tracked_changes_are_left_and_counted() -> None:
    data = docx(p(r("teh "), f'<w:ins w:id="4">{r("new")}</w:ins>'), p(r("teh")))
    (part,) = format_of("x.docx").read(io.BytesIO(data))
    assert [refusal.reason for refusal in part.refused] == ["tracked"]
    assert texts(corrected(data))[1] == ["teh new", "the"]


def test_what_is_no_document() -> None:
    form = format_of("x.docx")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a", "b")
    for data, message in [
        (b"", "not a readable Word document"),
        (b"He go", r"not a readable Word document \(\.docx\)"),
        (out.getvalue(), r"no word/document\.xml"),
        (docx("<w:p>"), "malformed"),
    ]:
        with pytest.raises(FormatError, match=message):
            list(form.read(io.BytesIO(data)))
    assert list(form.read(io.BytesIO(docx())))
    bad = io.BytesIO()
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("word/document.xml", '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>')
    with pytest.raises(FormatError, match="document type"):
        list(form.read(io.BytesIO(bad.getvalue())))
    with pytest.raises(ValueError, match="beyond its paragraph"):
        (part,) = form.read(io.BytesIO(docx(p(r("ab")), p(r("cd")))))
        form.write(part, [Edit(1, 4, "x")])
    with pytest.raises(TypeError, match="another format"):
        form.write(Part("x"), ())


@pytest.mark.parametrize("run", ["<r>", '<r w:rsidR="1">'])
def test_a_namespace_without_a_prefix_is_refused(run: str) -> None:
    """Tracked changes have attributes, which are in no namespace without a prefix."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        xml = f'<document xmlns="{W}" xmlns:w="{W}"><body><p>{run}<t>teh cat</t></r></p></body></document>'
        archive.writestr("word/document.xml", xml)
    with pytest.raises(FormatError, match="the XML has no namespace prefixes: save the document in a word processor"):
        list(format_of("x.docx").read(io.BytesIO(out.getvalue())))


@pytest.mark.parametrize("author", ["a\x01b", "\ud800", "\uffff"])
def test_an_author_that_xml_cannot_hold_is_refused(author: str) -> None:
    with pytest.raises(ValueError, match=r"author='.*' holds '.*', which no Word document can: leave it out"):
        format_of("x.docx", options=FormatOptions(author=author))
    with pytest.raises(TypeError, match="author must be a str; got NoneType: None"):
        format_of("x.docx", options=FormatOptions(author=None))  # type: ignore[arg-type]


pieces = st.lists(st.sampled_from(["a", "b c", " ", "teh &amp;", "d."]), min_size=1, max_size=6)


@given(pieces, st.data())
def test_any_edits_give_both_texts(runs: list[str], data: st.DataObject) -> None:
    form = format_of("x.docx")
    (part,) = form.read(io.BytesIO(docx(p(*(r(text, "<w:b/>" * (i % 2)) for i, text in enumerate(runs))))))
    text = part.text[:-1]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    edits = [Edit(start, end, data.draw(st.sampled_from(["", "x", " <y>"]))) for start, end in spans]
    new = form.write(part, edits)
    assert texts(new) == ([text], [apply(text, edits)])


def test_word_processors_libraries_read_it() -> None:
    library = pytest.importorskip("docx")
    document = library.Document()
    document.add_heading("Teh heading")
    paragraph = document.add_paragraph("teh ")
    paragraph.add_run("bold catt").bold = True
    document.add_table(1, 1).cell(0, 0).text = "teh cell"
    document.sections[0].header.paragraphs[0].text = "Teh header"
    out = io.BytesIO()
    document.save(out)
    new = corrected(out.getvalue(), in_place=True)
    again = library.Document(io.BytesIO(new))
    assert [paragraph.text for paragraph in again.paragraphs] == ["The heading", "the bold cat"]
    assert again.paragraphs[1].runs[-1].bold and again.tables[0].cell(0, 0).text == "the cell"
    assert again.sections[0].header.paragraphs[0].text == "The header"
    assert texts(corrected(out.getvalue()))[1][:2] == ["The heading", "the bold cat"]
