"""The document reader for each file suffix."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from copyspec.common.filesystem import read_input
from copyspec.retrievers import Document

from ..documents import FormatError
from .markup import read_html
from .packed import read_docx, read_epub, read_pptx
from .pdf import read_pdf

_TEXTS = ("markdown", "heading", "code")


def read_notebook(path: Path) -> Document:
    """Read a notebook's cells, with empty lines between them. Raises FormatError, a ValueError, for other files."""
    try:
        notebook = json.loads(str(read_input(path), "utf-8"))
        sheets = notebook.get("worksheets", [notebook])  # of nbformat 3 and older
        cells = [cell for sheet in sheets for cell in sheet["cells"] if cell["cell_type"] in _TEXTS]
        sources = [cell["input" if "input" in cell else "source"] for cell in cells]
        texts = [source if isinstance(source, str) else "".join(source) for source in sources]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{str(path)!r}: not a notebook ({type(error).__name__}: {error})") from None
    return Document(str(path), "\n\n".join(text.strip() for text in texts if text.strip()))


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
