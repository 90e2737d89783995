"""HTML: paragraphs, headings, items and cells are text; tags, scripts, code and preformatted text are kept.

Tags are found like the HTML standard's tokenizer does (WHATWG, 13.2.5). No tree is built, since the end of a paragraph
follows from tag names alone. After something that is never closed (a comment, a script, a quotation mark in a tag) the
rest of the file is not prose.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from copyspec.common.lists import Lists

from .reading import body_start
from .segments import merged_spans
from .whole import Prose

FORBIDDEN = "<>&{}"

_INLINE, _CODE, _SKIPPED, _TITLES, _LABELS, _ITEMS, _LISTS, _VOID, _RAW_NAMES = map(
    Lists(__file__).words, ("inline", "code", "skipped", "titles", "labels", "items", "lists", "void", "raw")
)
_IN_SENTENCE = _INLINE | _CODE
_CLOSED = _CODE | _SKIPPED  # skipped up to their closing tag
_FOLLOWED = _TITLES | _LABELS | _ITEMS | _LISTS
BORDER = re.compile(
    r"(?:\s|<!--[^>]{0,2000}-->|<(?:!(?!--)|\?)[^<>]*>|</?(?:p|div|h[1-6]|html|head|body|title|meta|link|main|article|section"
    r"|header|footer|nav|aside|hgroup|center|a|abbr|b|em|font|i|mark|small|span|strong|u)\b[^<>]*>)*",
    re.I,
)
"""Tags between two paragraphs."""
_RAW = {name: re.compile(rf"</{name}(?=[\s/>])", re.I) for name in _RAW_NAMES}
_KEPT = re.compile(r"translate\s*=\s*[\"']?no\b|class\s*=\s*(?:\"[^\"]*\bnotranslate\b|'[^']*\bnotranslate\b)", re.I)
_SPECIAL = re.compile(r"<!--|<!\[CDATA\[|<\?(?:php|=)|<[!?%]|</?[a-zA-Z]")
_CLOSINGS = {"<!--": "-->", "<![CDATA[": "]]>", "<!": ">", "<?": ">", "<?php": "?>", "<?=": "?>", "<%": "%>"}
"""How each ends; the code of PHP may hold `>`."""
_NAME = re.compile(r"[^\s/>]+")
_STEP = re.compile(r">|=\s*([\"'])")
_ENTITY = re.compile(r"&(?:[a-zA-Z][a-zA-Z0-9]{0,40}|#\w{1,10});")
_FORMULA = re.compile(
    r"\\\([^\n]{1,200}?\\\)|\\\[[^\\]{1,400}(?:\\[^\]][^\\]{0,400}){0,40}\\\]|\$\$(?=[^$]*[\\^_=])[^$]{1,1000}\$\$"
)
"""Of MathJax and KaTeX."""


@dataclass(frozen=True, slots=True)
class _Tag:
    start: int
    end: int  # exclusive
    name: str  # in lower case
    is_closing: bool
    is_empty: bool  # has no closing tag
    is_kept: bool  # marked by its author as not to be translated


@dataclass(slots=True)
class _Block:
    """The text since the last tag that ended a paragraph."""

    start: int
    is_title: bool = False
    is_item: bool = False
    markup: list[tuple[int, int]] = field(default_factory=list)
    fixed: list[tuple[int, int]] = field(default_factory=list)

    def prose(self, text: str, end: int) -> Iterator[Prose]:
        if self.start < end:
            spans = [match.span() for kind in (_ENTITY, _FORMULA) for match in kind.finditer(text, self.start, end)]
            yield Prose(
                self.start,
                end,
                self.markup,
                merged_spans(self.fixed, spans),
                is_title=self.is_title,
                is_item=self.is_item,
            )


class _Items:
    """Follows headings, labels, items and cells; closing tags of the last two may be missing."""

    def __init__(self) -> None:
        self.open: list[str] = []  # also lists, tables and rows
        self.counts = Counter[str]()

    @property
    def are_open(self) -> bool:
        return sum(self.counts[name] for name in _LISTS) < len(self.open)

    def pass_over(self, tag: _Tag) -> None:
        if tag.name not in _FOLLOWED:
            return
        if not tag.is_closing:
            if tag.name in _ITEMS and self.open and self.open[-1] in _ITEMS:
                self.counts[self.open.pop()] -= 1  # the next item closes the one before
            self.open.append(tag.name)
            self.counts[tag.name] += 1
        while tag.is_closing and self.counts[tag.name]:
            name = self.open.pop()
            self.counts[name] -= 1
            if name == tag.name:
                break


def paragraphs(text: str) -> Iterator[Prose]:
    """Yield the text between tags that end a paragraph."""
    block, items = _Block(body_start(text)), _Items()
    skipped: _Tag | None = None  # the open element whose content is skipped
    depth, at = 0, block.start
    while True:
        match = (_SPECIAL if skipped is None else _RAW.get(skipped.name, _SPECIAL)).search(text, at)
        if match is None:
            break
        if match[0] in _CLOSINGS:
            end = text.find(_CLOSINGS[match[0]], match.end())
            if end < 0:
                return
            at = end + len(_CLOSINGS[match[0]])
            if skipped is None:
                block.markup.append((match.start(), at))
            continue
        tag = _tag(text, match.start())
        if tag is None:
            return
        at = tag.end
        if skipped is not None:
            if tag.name == skipped.name and not tag.is_empty:
                depth += -1 if tag.is_closing else 1
            if depth == 0:
                if skipped.name in _IN_SENTENCE:
                    spans = block.markup if skipped.name == "svg" else block.fixed  # a drawing is not shown
                    spans.append((skipped.start, at))
                else:
                    block = _Block(at, is_item=items.are_open)
                skipped = None
        elif not tag.is_closing and not tag.is_empty and (tag.name in _CLOSED or tag.is_kept):
            if tag.name not in _IN_SENTENCE:
                yield from block.prose(text, tag.start)
            skipped, depth = tag, 1
        elif tag.name in _IN_SENTENCE:
            block.markup.append((tag.start, at))
        else:
            yield from block.prose(text, tag.start)
            items.pass_over(tag)
            name = "" if tag.is_closing else tag.name
            block = _Block(at, name in _TITLES, items.are_open)
    if skipped is None:
        yield from block.prose(text, len(text))


def _tag(text: str, start: int) -> _Tag | None:
    """Parse the tag at `start`; None if the file ends inside it."""
    is_closing = text.startswith("</", start)
    match = _NAME.match(text, start + 1 + is_closing)
    assert match is not None, "a letter stands there"
    at = match.end()
    while step := _STEP.search(text, at):
        at = step.end()
        if step[1] is None:
            name = match[0].lower()
            is_empty = name in _VOID or (text[at - 2] == "/" and name in _CLOSED)
            is_kept = not is_closing and at > match.end() + 1 and _KEPT.search(text, start, at) is not None
            return _Tag(start, at, name, is_closing, is_empty, is_kept)
        at = text.find(step[1], at) + 1
        if at == 0:
            return None
    return None
