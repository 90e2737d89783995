"""Edits of files as a tool that agents call."""

from __future__ import annotations

import os
from pathlib import Path

from ..documents import FormatError
from ..editing.journal import JournalError
from .files import apply_to_files, finish_writing, write_files
from .pipeline import ApplyPipeline


class EditTool:
    """Applies edits to the files of a folder, and says what became of them. Other files are never touched."""

    NAME = "apply_edit"
    DESCRIPTION = (
        "Apply an edit to files. The edit is one of: search-and-replace blocks (<<<<<<< SEARCH, =======, "
        ">>>>>>> REPLACE) below the name of their file; a unified diff; a patch from *** Begin Patch to *** End Patch; "
        "the lines that change with comments such as '... existing code ...' for those that stay; or a whole new file. "
        "All files are written, or none. `path`: the file, if the edit does not name it; `instruction`: what the edit "
        "does, in a sentence."
    )

    def __init__(self, pipeline: ApplyPipeline, root: str | os.PathLike[str] = ".") -> None:
        self._pipeline, self._root = pipeline, Path(root)

    def __call__(self, edit: str, path: str = "", instruction: str = "") -> str:
        """Apply an edit and return a line for each file. Raises ValueError, whose text is for the agent, if nothing
        was written."""
        try:
            finish_writing(self._root)
            paths = [self._inside(path)] if path else []
            outcomes = list(apply_to_files(self._pipeline, edit, self._root, paths, instruction))
            lines, refused = list[str](), list[str]()
            for each in outcomes:
                name, refusal = os.path.relpath(each.path, self._root), each.applied.refusal
                lines.append(f"{name}: {each.applied.how}")
                refused += [f"{name}: {refusal.detail}"] if refusal is not None else []
            if refused:
                raise FormatError(f"nothing was written. {'; '.join(refused)}")
            write_files([each.change for each in outcomes if each.is_changed], self._root)
        except (OSError, FormatError, JournalError) as error:
            raise ValueError(str(error)) from error
        return "\n".join(lines)

    def _inside(self, path: str) -> Path:
        found = self._root / path
        if not Path(os.path.realpath(found)).is_relative_to(os.path.realpath(self._root)):
            raise FormatError(f"{path!r} lies outside of the folder that may be changed")
        return found
