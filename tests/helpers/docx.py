"""Small files of word processors, and what tracked changes of Word say."""

from __future__ import annotations

import io
import zipfile
from xml.etree import ElementTree

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
HEAD = (
    f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\r\n<w:document xmlns:w="{W}" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" mc:Ignorable="w14" '
    'xmlns:w14="http://schemas.microsoft.com/office/word/2010/wordml"><w:body>'
)


def r(text: str, properties: str = "") -> str:
    return f'<w:r>{properties and f"<w:rPr>{properties}</w:rPr>"}<w:t xml:space="preserve">{text}</w:t></w:r>'


def p(*runs: str) -> str:
    return f'<w:p w:rsidR="1"><w:pPr><w:pStyle w:val="Body"/></w:pPr>{"".join(runs)}</w:p>'


def docx(*blocks: str, **others: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", HEAD + "".join(blocks) + "<w:sectPr/></w:body></w:document>")
        for name, body in others.items():
            root = "hdr" if "header" in name else "footnotes"
            archive.writestr(f"word/{name}.xml", f'<w:{root} xmlns:w="{W}">{body}</w:{root}>')
        archive.writestr("word/media/image1.png", b"\x89PNG\0")
    return out.getvalue()


def odt(body: str) -> bytes:
    """An OpenDocument text with this body."""
    namespace = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr("content.xml", f'<d xmlns:text="{namespace}">{body}</d>')
        archive.writestr("Pictures/a.png", b"\x00\x01")
    return out.getvalue()


def texts(data: bytes, story: str = "document") -> tuple[list[str], list[str]]:
    """Return the paragraphs of a document with its tracked changes rejected, and with them accepted."""
    root = ElementTree.fromstring(zipfile.ZipFile(io.BytesIO(data)).read(f"word/{story}.xml"))
    original, accepted = [], []
    for paragraph in root.iter(f"{{{W}}}p"):
        pair = ["", ""]
        _collect(paragraph, pair, (True, True))
        original.append(pair[0])
        accepted.append(pair[1])
    return original, accepted


def _collect(node: ElementTree.Element, pair: list[str], views: tuple[bool, bool]) -> None:
    tag = node.tag.removeprefix(f"{{{W}}}")
    views = (False, True) if tag == "ins" else (True, False) if tag == "del" else views
    text = {"tab": "\t", "br": "\n"}.get(tag, node.text or "" if tag in ("t", "delText") else "")
    if tag == "t":
        assert views != (True, False), "deleted text must be delText"
    for i in (0, 1):
        pair[i] += text if views[i] else ""
    for child in node:
        if child.tag != f"{{{W}}}p":
            _collect(child, pair, views)


def xml_of(data: bytes, name: str = "document") -> str:
    return zipfile.ZipFile(io.BytesIO(data)).read(f"word/{name}.xml").decode()
