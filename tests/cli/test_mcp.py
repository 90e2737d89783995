"""`copyspec mcp`: agents call the tool over stdin and stdout, through the protocol's own client and its inspector."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from copyspec.cli import main
from copyspec.common.extras import install

BLOCK = "a.py\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n"
COMMAND = (sys.executable, "-m", "copyspec", "mcp")


def test_without_the_package_the_way_out_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["mcp"]) == 2
    assert install("mcp") in capsys.readouterr().err


async def test_a_client_applies_edits(tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp", reason='needs "copyspec[mcp]"')
    (tmp_path / "a.py").write_text("x = 1\n")
    environment = {**os.environ, "COPYSPEC_MODEL": ""}
    command = mcp.StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], str(tmp_path)], env=environment)
    async with mcp.Client(mcp.stdio_client(command)) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "apply_edit" and "search-and-replace blocks" in str(tool.description)
        done = await client.call_tool("apply_edit", {"edit": BLOCK})
        assert not done.is_error and done.content[0].text == "a.py: applied without a model"
        assert (tmp_path / "a.py").read_text() == "x = 2\n"
        for edit, said in ((BLOCK, "seems to be made already"), ("../" + BLOCK, "lies outside of"), ("", "is empty")):
            done = await client.call_tool("apply_edit", {"edit": edit})
            assert done.is_error and said in done.content[0].text


def test_the_inspector_calls_the_tool(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason='needs "copyspec[mcp]"')
    inspector = shutil.which("mcp-inspector")
    if inspector is None:
        pytest.skip("needs npm install -g @modelcontextprotocol/inspector")
    (tmp_path / "a.py").write_text("x = 1\n")
    server = {"command": COMMAND[0], "args": [*COMMAND[1:], str(tmp_path)], "env": {"PYTHONPATH": os.getcwd()}}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"copyspec": server}}))
    call = [inspector, "--cli", "--config", str(tmp_path / "servers.json"), "--server", "copyspec"]
    call += ["--method", "tools/call", "--tool-name", "apply_edit", "--tool-arg", f"edit={BLOCK}"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["content"][0]["text"] == "a.py: applied without a model"
    assert (tmp_path / "a.py").read_text() == "x = 2\n"
