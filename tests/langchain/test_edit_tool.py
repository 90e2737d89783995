"""The tool with which LangChain's agents edit files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_core")
agents = pytest.importorskip("langchain.agents")

from langchain_core.language_models import GenericFakeChatModel  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage  # noqa: E402

from copyspec.pipelines import ApplyPipeline  # noqa: E402
from copyspec.pipelines.langchain import apply_edit_tool  # noqa: E402
from kit.oracle_model import OracleModel  # noqa: E402

BLOCK = "a.py\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n"


class Scripted(GenericFakeChatModel):
    """Calls what it is told to."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Scripted:
        (tool,) = tools
        assert tool.name == "apply_edit" and set(tool.args) == {"edit", "path", "instruction"}
        return self


def test_an_agent_edits_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    arguments = [{"edit": BLOCK}, {"edit": BLOCK}, {"edit": "# ...\nz = 3\n", "path": "a.py", "instruction": "Add z"}]
    calls = [
        AIMessage("", tool_calls=[{"name": "apply_edit", "args": argument, "id": str(number)}])
        for number, argument in enumerate(arguments)
    ]
    pipeline = ApplyPipeline(OracleModel("x = 2\ny = 1\nz = 3\n"))
    model = Scripted(messages=iter([*calls, AIMessage("Done.")]))
    agent = agents.create_agent(model, [apply_edit_tool(pipeline, tmp_path)])
    messages = agent.invoke({"messages": [HumanMessage("Edit")]})["messages"]
    told = [message.content for message in messages if isinstance(message, ToolMessage)]
    assert told[0] == "a.py: applied without a model" and told[2] == "a.py: merged by the model"
    assert "nothing was written. a.py: the part at line 2 of the edit seems to be made already" in told[1]
    assert (tmp_path / "a.py").read_text() == "x = 2\ny = 1\nz = 3\n"


def test_files_outside_of_the_folder_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    tool = apply_edit_tool(ApplyPipeline(), tmp_path / "in")
    for arguments in ({"edit": BLOCK, "path": "../a.py"}, {"edit": f"../{BLOCK}"}):
        assert "lies outside of" in tool.invoke(arguments)
    assert (tmp_path / "a.py").read_text() == "x = 1\n"
