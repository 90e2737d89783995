"""The access log, the ids of requests, and metrics in a program of one's own."""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from copyspec.server.access import JsonFormatter
from copyspec.server.metrics import Metrics
from tests.server.test_server import ASKED, CHAT, client, post

if TYPE_CHECKING:
    from copyspec import Engine

LOG = "copyspec.server.access"


def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == LOG]


@pytest.mark.parametrize(
    ("path", "body", "status", "choices"),
    [
        (CHAT, ASKED, 200, 1),
        (CHAT, {**ASKED, "stream": True}, 200, 1),
        (CHAT, {**ASKED, "n": 3}, 200, 3),
        (CHAT, {**ASKED, "n": 2, "stream": True}, 200, 2),
        ("/v1/completions", {"prompt": ["The cat", "The sea"], "max_tokens": 3}, 200, 2),
        ("/v1/completions", {"prompt": ["The cat", "The sea"], "max_tokens": 3, "stream": True, "n": 2}, 200, 4),
        (CHAT, {**ASKED, "max_tokens": 0}, 400, 0),
        (CHAT, {**ASKED, "model": "other"}, 404, 0),
        (CHAT, "{", 400, 0),
        ("/v1/unknown%0a%1b%20x", ASKED, 404, 0),
    ],
)
async def test_each_request_has_a_line(
    engine: Engine, caplog: pytest.LogCaptureFixture, path: str, body: Any, status: int, choices: int
) -> None:
    with caplog.at_level(logging.INFO, LOG):
        answer = await post(engine, path, body)
    assert answer.status_code == status
    (record,) = lines(caplog)
    line, access = record.getMessage(), record.access
    assert line.isprintable() and line.startswith(f"POST {access['path']} {status}: ")
    assert re.search(r": \d+\.\d{3} s", line) and line.endswith(f"id {answer.headers['x-request-id']}")
    assert (access["status"], access["request_id"]) == (status, answer.headers["x-request-id"])
    if not choices:
        assert " tokens in, " not in line and "prompt_tokens" not in access
        assert access["error"] and answer.json()["error"]["message"].startswith(access["error"])
        assert repr(access["error"]) in line
        return
    tokens = (access["prompt_tokens"], access["output_tokens"])
    assert f", {tokens[0]} tokens in, {tokens[1]} out, " in line
    if not answer.text.startswith("data: "):
        usage = answer.json()["usage"]
        assert tokens == (usage["prompt_tokens"], usage["completion_tokens"])
    assert tokens[1] >= choices
    shown = JsonFormatter().format(record)
    data = json.loads(shown)
    assert "\n" not in shown and datetime.fromisoformat(data.pop("time")).tzinfo is not None and data == access


@pytest.mark.parametrize(
    ("given", "is_echoed"),
    [
        (b"abc-123", True),
        (b"req_" + b"a" * 124, True),
        (b"!~", True),
        (b"00000000-0000-4000-8000-000000000000", True),
        (None, False),
        (b"", False),
        (b"a b", False),
        (b"a" * 129, False),
        ("é".encode(), False),
        (b"a\tb", False),
        (b"a\x1b[31m", False),
    ],
)
async def test_an_id_is_echoed_or_made(engine: Engine, given: bytes | None, is_echoed: bool) -> None:
    headers: Any = [] if given is None else [(b"x-request-id", given)]
    async with client(engine, api_key="key") as http:
        for path, status in (("/health", 200), ("/v1/models", 401)):
            answers = [await http.get(path, headers=headers) for _ in range(2)]
            ids = [answer.headers["x-request-id"] for answer in answers]
            assert [answer.status_code for answer in answers] == [status] * 2
            if is_echoed:
                assert given is not None and ids == [given.decode()] * 2
            else:
                assert ids[0] != ids[1] and all(re.fullmatch("[0-9a-f]{32}", request_id) for request_id in ids)


async def test_questions_whether_it_lives_are_no_lines(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async with client(engine) as http:
        with caplog.at_level(logging.INFO, LOG):
            for path in ("/health", "/metrics"):
                await http.get(path)
            assert not lines(caplog)
            await http.get("/v1/models")
            assert len(lines(caplog)) == 1
        with caplog.at_level(logging.DEBUG, LOG):
            await http.get("/health")
            assert len(lines(caplog)) == 2


def test_metrics_of_a_program_of_ones_own(engine: Engine) -> None:
    metrics = Metrics(engine)
    results = [engine.generate("The cat", max_new_tokens=n) for n in range(1, 6)]
    samples = engine.generate("The cat", max_new_tokens=4, n=3, temperature=1.0)
    metrics.finished([*results, samples])
    metrics.began(0.2)
    metrics.answered("/mine", 200, 0.3)
    metrics.answered("/v1/models/tiny", 200, 0.3)
    text = metrics.text().decode()
    written = sum(len(result.token_ids) for result in [*results, *samples.samples])
    assert f"copyspec_output_tokens_total {float(written)}" in text
    assert f"copyspec_prompt_tokens_total {6.0 * samples.prompt_tokens}" in text
    for path in ("other", "/v1/models"):
        assert f'copyspec_requests_total{{path="{path}",status="200"}} 1.0' in text
    assert metrics.registry.get_sample_value("copyspec_rows_running") == 0
    other = Metrics(engine)
    assert "copyspec_output_tokens_total 0.0" in other.text().decode()
