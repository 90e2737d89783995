"""`copyspec mcp`: edits of files for agents, through the Model Context Protocol."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from copyspec.cli.apply import loader
from copyspec.cli.common import UsageError
from copyspec.cli.model_options import MergingModel
from copyspec.cli.remote_options import ServerOptions
from copyspec.common.extras import install
from copyspec.pipelines import ApplyOptions


def mcp(
    *,
    folder: Annotated[
        Path, typer.Argument(help="The files that may be changed.", exists=True, file_okay=False)
    ] = Path(),
    model: Annotated[MergingModel, "Model"],
    server: Annotated[ServerOptions, "Server"],
    options: Annotated[ApplyOptions, "Model"],
) -> int:
    """Serve the tool apply_edit to an agent, over stdin and stdout: it applies edits to the files of a folder.

    It does what `copyspec apply -i` does: without a model where the edit says where it belongs, all files or none.
    Needs copyspec[mcp].
    """
    if importlib.util.find_spec("mcp") is None:
        raise UsageError(f"mcp needs the package of that name: {install('mcp')}")
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    from copyspec.pipelines import ApplyPipeline, edit_tool

    served = MCPServer("copyspec", log_level="WARNING")
    served.add_tool(edit_tool(ApplyPipeline(loader(model, server.remote(model)), options), folder, ToolError))
    served.run("stdio")
    return 0
