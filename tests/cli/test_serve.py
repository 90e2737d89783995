"""`copyspec serve`: its messages, what it refuses, and how it shuts down."""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Literal

import pytest

from copyspec.cli import serve
from copyspec.common.extras import install
from copyspec.server.settings import ServerSettings
from tests.helpers.commands import run

needs_server = pytest.mark.skipif(
    importlib.util.find_spec("fastapi") is None, reason="the extra copyspec[serve] is not installed"
)


def test_without_the_extra_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["copyspec.cli.serve"], "REQUIRED_PACKAGES", ("no_such_module",))
    code, out, err = run(capsys, "serve")
    assert (code, out) == (2, "") and install("serve") in err
    assert callable(serve.serve)


_TAKEN = """
import sys
from copyspec.cli import main
code = main(["serve", "-m", "default", "--port", sys.argv[1]])
sys.exit(f"{code} {'torch' in sys.modules}")
"""


@needs_server
def test_a_taken_port_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run([sys.executable, "-c", _TAKEN, port], capture_output=True, text=True, check=False)
    *said, last = done.stderr.splitlines()
    assert "take another --port" in " ".join(said)
    assert last.endswith(" False"), last


@needs_server
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--timeout", "0"], "--timeout must be a number above 0"),
        (["--batch-size", "0"], "--batch-size must be"),
        (["--api-key", ""], "--api-key (or COPYSPEC_API_KEY) is empty"),
        (["--api-key", " "], "--api-key (or COPYSPEC_API_KEY) is empty"),
        (["--api-key", " key"], "--api-key begins or ends with a space"),
        (["--max-body", "inf"], "--max-body inf: a number from 0 to 1048576"),
        (["--prefix-cache", "nan"], "--prefix-cache nan: a number from 0"),
        (["--stop-seconds", "nan"], "--stop-seconds nan: a number from 0"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid"),
    ],
)
def test_wrong_options_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    code, out, err = run(capsys, "serve", *arguments)
    assert (code, out) == (2, "") and words in err


@needs_server
@pytest.mark.parametrize(
    ("arguments", "variable", "key"),
    [
        ([], "of the variable", "of the variable"),
        ([], "", ""),
        (["--api-key", "given"], "of the variable", "given"),
    ],
)
def test_the_key_comes_from_the_option_or_the_variable(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variable: str,
    key: str,
) -> None:
    keys: list[object] = []

    def verify(settings: ServerSettings) -> None:
        keys.append(settings.api_key)
        raise ValueError("enough")

    monkeypatch.setattr(ServerSettings, "verify", verify)
    monkeypatch.setenv("COPYSPEC_API_KEY", variable)
    run(capsys, "serve", *arguments)
    assert keys == [key]


@needs_server
@pytest.mark.parametrize("key", ["key ", "", " "])
def test_a_variable_that_is_no_key_is_refused(
    key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYSPEC_API_KEY", key)
    monkeypatch.setattr("copyspec.load", lambda *_, **__: pytest.fail("it was served"))
    code, out, err = run(capsys, "serve", "--port", "0")
    words = "begins or ends with a space" if key.strip() else "(or COPYSPEC_API_KEY) is empty"
    assert code == 2 and out == "" and words in err


@needs_server
@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_has_two_forms(form: Literal["text", "json"], capsys: pytest.CaptureFixture[str]) -> None:
    from copyspec.server.access import logger

    before = logger.handlers, logger.level, logger.propagate
    try:
        serve._log_requests(form)
        logger.info("GET / 200: 1 s, id x", extra={"access": {"status": 200}})
    finally:
        logger.handlers, logger.level, logger.propagate = before
    (line,) = capsys.readouterr().err.splitlines()
    if form == "json":
        assert json.loads(line)["status"] == 200
    else:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d .* GET / 200: 1 s, id x", line)


@needs_server
def test_it_serves_until_it_is_told_to_stop(folder: Path) -> None:
    command = [sys.executable, "-m", "copyspec", "-v", "serve", "-m", str(folder), "--port", "0", "--name", "tiny"]
    command += ["--log", "json", "--chat-template-kwargs", '{"enable_thinking": false}']
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(row for row in process.stderr if "http://" in row)
        match = re.search(r"tiny on (http://\S+)/v1", line)
        assert match is not None
        body = json.dumps({"messages": [{"role": "user", "content": "The cat"}], "max_tokens": 4}).encode()
        asked = urllib.request.Request(f"{match[1]}/v1/chat/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert json.load(answer)["model"] == "tiny"
        running = http.client.HTTPConnection(match[1].removeprefix("http://"), timeout=30)
        body = json.dumps({"prompt": "The cat", "max_tokens": 900, "stream": True}).encode()
        running.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        assert running.getresponse().read(5)
        process.send_signal(signal.SIGINT)
        err = ""
        for line in process.stderr:
            err += line
            if "copyspec: stopping; running requests get" in line:
                process.send_signal(signal.SIGINT)  # and does not wait for them
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 130 and out == "" and "Traceback" not in err
        (line,) = [row for row in err.splitlines() if "/v1/chat/completions" in row]
        running.close()
        assert json.loads(line)["output_tokens"] == 4
    finally:
        process.kill()
        process.communicate()
