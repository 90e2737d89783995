"""Edits of files as a tool for LangChain's agents."""

from __future__ import annotations

import os

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from ..applying.pipeline import ApplyPipeline
from ..applying.tool import edit_tool


def apply_edit_tool(pipeline: ApplyPipeline, root: str | os.PathLike[str] = ".") -> BaseTool:
    """A tool with which an agent applies edits to the files in `root`. What is refused is told to the agent."""
    return StructuredTool.from_function(edit_tool(pipeline, root, ToolException), handle_tool_error=True)
