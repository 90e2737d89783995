"""Tells from a Word document's styles which paragraphs are headings, items or code (ECMA-376 part 1, 17.7)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .archives import parse, unpacked, xml_parser

_STYLES = "word/styles.xml"
_TITLE = re.compile(r"head(?!er)|title|caption|toc|appendix|label", re.I)
_CODE = re.compile(
    r"(?:\b|_|(?<=[a-z]))code|source ?text|verbatim|preformatted|listing|macro|terminal|console|typewriter"
    r"|html ?(?:code|keyboard|sample|variable)|\bkbd\b"
)
"""Names in lower case."""
_DEPTH = 20
"""Maximum number of styles of which each is based on the next."""


@dataclass(slots=True)
class Style:
    """What a style says about the text that has it."""

    is_title: bool = False
    is_item: bool = False
    is_code: bool = False
    base: str = ""  # the style that it is based on

    @classmethod
    def named(cls, name: str) -> Style:
        return cls(bool(_TITLE.search(name)), False, bool(_CODE.search(name.lower())))


class Styles:
    """The styles of a document, by their ids."""

    def __init__(self, data: bytes) -> None:
        """`data`: the document. Raises FormatError as `unpacked` and `parse`."""
        files = unpacked(data, lambda names: [_STYLES] if _STYLES in names else [], "Word document (.docx)", "")
        self._known: Mapping[str, Style] = _Parser(files[_STYLES]).known if files else {}

    def of(self, name: str) -> Style:
        """The style with this id, with what it takes over from those that it is based on."""
        merged, at = Style(), name
        for _ in range(_DEPTH):
            style = self._known.get(at, Style())
            for source in (style, Style.named(at)):  # some documents have no list of styles
                merged.is_title |= source.is_title
                merged.is_item |= source.is_item
                merged.is_code |= source.is_code
            at = style.base
        return merged


class _Parser:
    def __init__(self, xml: bytes) -> None:
        self.known: dict[str, Style] = {}
        self.style = Style()
        parser = xml_parser(xml)
        parser.StartElementHandler = self._start
        parse(parser, xml)

    def _start(self, expanded: str, attributes: dict[str, str]) -> None:
        name = expanded.rpartition(" ")[2]
        values = {key.rpartition(" ")[2]: value for key, value in attributes.items()}
        if name == "style":
            self.style = self.known[values.get("styleId", "")] = Style()
        elif name == "name":
            named = Style.named(values.get("val", ""))
            self.style.is_title, self.style.is_code = named.is_title, named.is_code
        elif name == "basedOn":
            self.style.base = values.get("val", "")
        elif name == "outlineLvl":
            self.style.is_title |= is_outlined(values.get("val", ""))
        elif name == "numPr":
            self.style.is_item = True


def is_outlined(level: str) -> bool:
    """Whether an outline level is that of a heading; level 9 is body text."""
    return level in set("012345678")
