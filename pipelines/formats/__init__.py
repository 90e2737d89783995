"""File formats: which parts of a file are text to correct, and how corrected text is written back."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import PurePath

from ..documents import Format, FormatOptionError
from ..options import FormatOptions as FormatOptions
from . import asciidoc, gettext, html, latex, markdown, restructured, source, text
from .delimited import DelimitedFormat
from .docx import DocxFormat
from .jsonl import JSONLinesFormat
from .m2 import M2Format
from .markdown import MarkdownFormat
from .neighbours import NEVER
from .notebook import NotebookFormat
from .odt import OpenDocumentFormat
from .suffixes import LANGUAGES, SUFFIXES, risk, suffix_of
from .text import TextFormat
from .whole import Scanner, WholeFormat

__all__ = [
    "FORMATS",
    "DelimitedFormat",
    "DocxFormat",
    "FormatOptions",
    "JSONLinesFormat",
    "M2Format",
    "MarkdownFormat",
    "OpenDocumentFormat",
    "TextFormat",
    "format_of",
]


_BeginsBlock = Callable[[str], bool]
_SCANNERS: dict[str, tuple[Scanner, str, re.Pattern[str], _BeginsBlock | None]] = {
    "rst": (restructured.blocks, restructured.FORBIDDEN, restructured.BORDER, restructured.begins_block),
    "adoc": (asciidoc.blocks, asciidoc.FORBIDDEN, asciidoc.BORDER, asciidoc.begins_block),
    "latex": (latex.paragraphs, latex.FORBIDDEN, latex.BORDER, None),
    "html": (html.paragraphs, html.FORBIDDEN, html.BORDER, None),
    "srt": (text.cues, text.FORBIDDEN, text.BORDER, None),
    "po": (gettext.translations, gettext.FORBIDDEN, NEVER, None),
    **{
        name: (partial(source.comments, language=name), source.FORBIDDEN, NEVER, markdown.begins_block)
        for name in LANGUAGES
    },
}


def _scanned_as(
    scan: Scanner, forbidden: str, border: re.Pattern[str], begins_block: _BeginsBlock | None
) -> Callable[[FormatOptions], Format]:
    return lambda options: WholeFormat(
        scan, forbidden=forbidden, border=border, begins_block=begins_block, encoding=options.encoding
    )


_MAKERS: dict[str, Callable[[FormatOptions], Format]] = {
    "txt": lambda options: TextFormat(by_line=options.by_line, encoding=options.encoding),
    "lines": lambda options: TextFormat(by_line=True, encoding=options.encoding),
    "parallel": lambda options: TextFormat(by_line=True, is_tokenized=True, encoding=options.encoding),
    "md": lambda options: MarkdownFormat(encoding=options.encoding),
    "jsonl": lambda options: JSONLinesFormat(
        options.field, in_place=options.in_place, every_record=options.every_record, encoding=options.encoding
    ),
    "csv": lambda options: DelimitedFormat(options.column, encoding=options.encoding),
    "tsv": lambda options: DelimitedFormat(options.column, delimiter="\t", encoding=options.encoding),
    "docx": lambda options: DocxFormat(is_tracked=not options.in_place, author=options.author),
    "m2": lambda options: M2Format(encoding=options.encoding),
    "odt": lambda options: OpenDocumentFormat(),
    "ipynb": lambda options: NotebookFormat(encoding=options.encoding),
    **{name: _scanned_as(*scanner) for name, scanner in _SCANNERS.items()},
}
FORMATS = tuple(_MAKERS)
"""Names for `format_of`. `lines`: each line is a segment; `parallel`: as `lines`, with spaces around punctuation."""


def format_of(path: str | os.PathLike[str], name: str | None = None, *, options: FormatOptions | None = None) -> Format:
    """Return the format called `name`, or the one of the path's suffix. `-` (standard input) and no suffix: plain text,
    unless the name begins with a dot.

    Raises FormatOptionError for an unknown suffix, and for one whose files the format called `name` may damage
    (subtitles as text, for example), unless an option forces it; ValueError for an unknown name.
    """
    options = options or FormatOptions()
    suffix = suffix_of(os.fspath(path))
    if name is None:
        if suffix not in SUFFIXES:
            content = risk(suffix, "txt")
            inner = SUFFIXES.get(PurePath(PurePath(path).stem).suffix.lower(), "txt")  # of `a.docx.bak`
            reads = f"format={inner!r} reads it as {'plain text' if inner == 'txt' else 'one'}"
            hint = reads if content is None else f"such files hold {content}"
            raise FormatOptionError(f"{os.fspath(path)!r}: no format for {suffix!r} is known; {hint}")
        name = SUFFIXES[suffix]
    if name not in _MAKERS:
        raise ValueError(f"unknown format {name!r}: name one of {', '.join(FORMATS)}")
    if not options.force_format and (what := risk(suffix, name)) is not None:
        raise FormatOptionError(
            f"{os.fspath(path)!r} holds {what}, which {name!r} does not handle and a correction may damage: "
            "force_format=True takes the risk"
        )
    return _MAKERS[name](options)
