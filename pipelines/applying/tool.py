"""Edits of files as a function that agents call."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path

from ..documents import FormatError
from ..editing.journal import JournalError
from .files import apply_to_files, check_inside, finish_writing, write_files
from .pipeline import ApplyPipeline

ApplyEdit = Callable[[str, str, str], str]


def edit_tool(
    pipeline: ApplyPipeline, root: str | os.PathLike[str] = ".", error: Callable[[str], Exception] = ValueError
) -> ApplyEdit:
    """A function for agents that applies edits to the files in `root`, and to no others. It returns a line for each
    file, and raises `error` with a text for the agent if nothing was written."""
    folder = Path(root)

    def apply_edit(edit: str, path: str = "", instruction: str = "") -> str:
        """Apply an edit to files. The edit is one of: search-and-replace blocks (<<<<<<< SEARCH, =======,
        >>>>>>> REPLACE) below the name of their file; a unified diff; a patch from *** Begin Patch to *** End Patch;
        the lines that change, with comments such as '... existing code ...' for those that stay; a whole new file. All
        files are written, or none. path: the file, if the edit does not name it; instruction: what the edit does."""
        lines, refused = list[str](), list[str]()
        try:
            finish_writing(folder)
            paths = [check_inside(folder, path)] if path else []
            outcomes = list(apply_to_files(pipeline, edit, folder, paths, instruction))
            for outcome in outcomes:
                name, refusal = os.path.relpath(outcome.path, folder), outcome.applied.refusal
                lines.append(f"{name}: {outcome.applied.how}")
                refused += [f"{name}: {refusal.detail}"] if refusal is not None else []
            if refused:
                raise FormatError(f"nothing was written. {'; '.join(refused)}")
            write_files([outcome.change for outcome in outcomes if outcome.is_changed], folder)
        except (OSError, FormatError, JournalError) as failed:
            raise error(str(failed)) from failed
        return "\n".join(lines)

    apply_edit.__doc__ = inspect.getdoc(apply_edit)  # it is sent to models, who need no indentation
    return apply_edit
