"""OpenAI's client for JavaScript against the server, where node finds it (`NODE_PATH`, or installed globally)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_tools import Says, engine_of
from tests.helpers.served import KEY, serving

SCRIPT = Path(__file__).with_name("openai_client.cjs")


@pytest.fixture(scope="module")
def modules() -> Path:
    """The folder of packages that has openai."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None:
        pytest.skip("there is no node")
    paths = os.environ.get("NODE_PATH", "").split(os.pathsep)
    folders = [Path(path) for path in paths if path]
    if not folders and npm is not None:
        folders = [Path(subprocess.run([npm, "root", "-g"], capture_output=True, text=True).stdout.strip())]
    folder = next((path for path in folders if (path / "openai").is_dir()), None)
    if folder is None:
        pytest.skip("node has no openai: npm install -g openai typescript")
    return folder


def run(words: Sequence[str | Path], modules: Path, folder: Path) -> str:
    environment = {**os.environ, "NODE_PATH": str(modules)}
    command = list(map(str, words))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_every_response_has_the_type_that_the_client_promises(
    modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")
    engine = engine_of("hermes")
    start = engine.start

    def told(prompt: Any, references: object, options: Any, *loop: Any) -> Any:
        """The model writes what stands in the last message, as far as a constraint lets it."""
        if isinstance(prompt, list) and isinstance(prompt[-1], dict):
            options = replace(options, logits_processor=Says(engine, prompt[-1]["content"]))
        return start(prompt, references, options, *loop)

    expected = engine.generate("A wall", max_new_tokens=5).text
    monkeypatch.setattr(engine, "start", told)
    path = tmp_path / "answers.ts"
    with serving(engine) as address:
        report = json.loads(run(["node", SCRIPT, f"{address}/v1", KEY, path], modules, tmp_path))
    assert report["plain"] == ["A wall."] * 2 and report["streamed"] == "A wall." and report["usage"]
    assert report["two"] == [0, 1] and report["cut"] == "length" and report["model"] == "tiny"
    assert report["called"] == [{"colour": "red"}] and report["reason"] == "tool_calls"
    assert report["final"] == ["Well.", "paint"] and report["asked"] and report["parsed"] == {"a": 2}
    assert report["completion"] == [expected] * 2
    assert [error[0] for error in report["errors"]] == ["BadRequestError", "NotFoundError", "AuthenticationError"]
    assert report["errors"][0][1] == "temperature"
    compiler = modules / ".bin" / "tsc"
    if not compiler.exists():
        pytest.skip("the types need typescript: npm install -g typescript")
    (tmp_path / "node_modules").symlink_to(modules, target_is_directory=True)
    settings = {"strict": True, "exactOptionalPropertyTypes": True, "noEmit": True, "skipLibCheck": True}
    settings |= {"module": "nodenext", "target": "es2022", "types": []}
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": settings, "files": [path.name]}))
    run([compiler, "-p", "tsconfig.json"], modules, tmp_path)
