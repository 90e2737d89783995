"""The document reader for each file suffix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from copyspec.retrievers import Document

from .markup import read_html
from .notebooks import read_notebook
from .packed import read_docx, read_epub, read_pptx
from .pdf import read_pdf

DOCUMENT_READERS: Mapping[str, Callable[[Path], Document]] = {
    ".pdf": read_pdf,
    ".docx": read_docx,
    ".pptx": read_pptx,
    ".epub": read_epub,
    ".html": read_html,
    ".htm": read_html,
    ".xhtml": read_html,
    ".ipynb": read_notebook,
}
"""Readers of documents that are not plain text, for `read_documents(..., readers=DOCUMENT_READERS)`."""
