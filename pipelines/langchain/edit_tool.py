"""Edits of files as a tool for LangChain's agents."""

from __future__ import annotations

import os

from langchain_core.tools import BaseTool, StructuredTool

from ..applying.pipeline import ApplyPipeline
from ..applying.tool import EditTool


def apply_edit_tool(pipeline: ApplyPipeline, root: str | os.PathLike[str] = ".") -> BaseTool:
    """A tool with which an agent applies edits to the files in `root`. What is refused is told to the agent."""
    tool = EditTool(pipeline, root)

    def apply_edit(edit: str, path: str = "", instruction: str = "") -> str:
        try:
            return tool(edit, path, instruction)
        except ValueError as error:
            return f"Error: {error}"

    return StructuredTool.from_function(apply_edit, name=tool.NAME, description=tool.DESCRIPTION)
