"""The server in this process: OpenAI's replies, copyspec's fields, and the errors for refused requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI

import copyspec
from copyspec.drafters.copying import versions
from copyspec.drafters.copying.versions import compare
from copyspec.engine.running.scheduler import QueueFullError
from copyspec.server.endpoints import Server
from copyspec.server.replies import server_sent
from copyspec.server.settings import ServerSettings
from tests.helpers.texts import FRAME_TEMPLATE, byte_level, llama

if TYPE_CHECKING:
    from copyspec import Engine

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "The cat sat on the mat."}]
ASKED = {"messages": MESSAGES, "max_tokens": 8}


@pytest.fixture(autouse=True)
def limits(engine: Engine) -> Iterator[None]:
    yield
    engine.scheduler.max_waiting = None


def client(engine: Engine, **settings: Any) -> httpx.AsyncClient:
    app = Server(engine, ServerSettings(names=("tiny",), **settings)).app()
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://copyspec")


async def post(engine: Engine, path: str, body: object, **settings: Any) -> httpx.Response:
    async with client(engine, **settings) as http:
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        return await http.post(path, content=content, headers={"content-type": "application/json"})


def events(answer: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_chat_is_the_engines_own_answer(engine: Engine) -> None:
    expected = engine.generate(MESSAGES, max_new_tokens=8)
    answer = (await post(engine, CHAT, {**ASKED, "model": "tiny"})).json()
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert choice["finish_reason"] == expected.finish_reason
    assert answer["object"] == "chat.completion" and answer["model"] == "tiny"
    written = len(expected.token_ids)
    usage = answer["usage"]
    assert usage["completion_tokens"] == written
    assert usage["total_tokens"] == expected.prompt_tokens + written
    assert "spans" not in choice


async def test_a_stream_has_the_same_text_and_usage(engine: Engine) -> None:
    whole = (await post(engine, CHAT, ASKED)).json()
    chunks = events(await post(engine, CHAT, {**ASKED, "stream": True, "stream_options": {"include_usage": True}}))
    assert (
        "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
        == (whole["choices"][0]["message"]["content"])
    )
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_completions_of_several_prompts_whole_and_in_pieces(engine: Engine) -> None:
    prompts = ["The cat sat", "on the mat and the"]
    expected = [result.text for result in engine.generate(prompts, max_new_tokens=6)]
    asked = {"prompt": prompts, "max_tokens": 6}
    answer = (await post(engine, "/v1/completions", asked)).json()
    assert [choice["text"] for choice in answer["choices"]] == expected
    texts = ["", ""]
    for event in events(await post(engine, "/v1/completions", {**asked, "stream": True})):
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == expected
    ids = engine.codec.encode("The cat sat").ids
    answer = (await post(engine, "/v1/completions", {"prompt": ids, "max_tokens": 6})).json()
    assert answer["choices"][0]["text"] == expected[0]


@pytest.mark.parametrize("field", ["prediction", "references", "edit_source"])
@pytest.mark.usefixtures("steady_drafts")
async def test_what_is_told_changes_the_passes_and_not_the_output(engine: Engine, field: str) -> None:
    letters = {str(token): 20.0 for token in engine.codec.encode("abcdefghijklmnopqrstuvwxyz ").ids}
    asked = {
        **ASKED,
        "max_tokens": 40,
        "logit_bias": letters,
    }  # random weights would otherwise output bytes that are not text
    plain = (await post(engine, CHAT, asked)).json()
    text = plain["choices"][0]["message"]["content"]
    value = {"prediction": {"type": "content", "content": text}, "references": [text], "edit_source": text}[field]
    answer = (await post(engine, CHAT, {**asked, field: value, "spans": True})).json()
    assert answer["choices"][0]["message"]["content"] == text
    names = {"references": "references[0]"}
    assert {span["place"]["source"] for span in answer["choices"][0]["spans"]} >= {names.get(field, field)}
    assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 10


async def test_stop_strings_join_those_of_the_model(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = {str(token): 20.0 for token in engine.codec.encode("abcdefghijklmnopqrstuvwxyz ").ids}
    asked = {**ASKED, "max_tokens": 40, "logit_bias": letters}
    whole = (await post(engine, CHAT, asked)).json()["choices"][0]["message"]["content"]
    monkeypatch.setattr(engine.model.generation_config, "stop_strings", [whole[8:11]])
    before = whole[: whole.index(whole[8:11])]
    for stop, text in ((None, before), ("@", before), (["@", whole[2:4]], whole[: whole.index(whole[2:4])])):
        choice = (await post(engine, CHAT, {**asked, "stop": stop})).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")


def test_an_event_is_one_line_for_every_client() -> None:
    data = {"text": "a\u2028b\u2029c\x85d\r\n\x0b\x1eé"}
    event, end = server_sent(data).decode().splitlines()
    assert json.loads(event.removeprefix("data: ")) == data and end == ""


async def test_samples_come_side_by_side(engine: Engine) -> None:
    asked = {**ASKED, "n": 3, "temperature": 1.0, "seed": 5}
    expected = engine.generate(MESSAGES, max_new_tokens=8, n=3, temperature=1.0, seed=5)
    answer = (await post(engine, CHAT, asked)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == [
        sample.text for sample in expected.samples
    ]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]


async def test_messages_as_clients_write_them(engine: Engine) -> None:
    parts = [{"type": "text", "text": "The cat "}, {"type": "text", "text": "sat on the mat."}]
    chats = [
        [{"role": "developer", "content": "Be short."}, {"role": "user", "content": parts, "name": None}],
        [{"role": "system", "content": "Be short."}, *MESSAGES],
    ]
    texts = [(await post(engine, CHAT, {**ASKED, "messages": chat})).json()["choices"][0] for chat in chats]
    assert texts[0] == texts[1]


HARMLESS: dict[str, object] = {
    "user": "me", "store": False, "presence_penalty": 0, "frequency_penalty": 0.0, "response_format": {"type": "text"},
    "tools": [], "tool_choice": "auto", "logprobs": False, "n": 1, "stop": None, "seed": None, "stream": None,
}  # fmt: skip


async def test_fields_that_change_nothing_are_taken(engine: Engine) -> None:
    plain = (await post(engine, CHAT, ASKED)).json()["choices"]
    assert (await post(engine, CHAT, {**ASKED, **HARMLESS})).json()["choices"] == plain


NESTED: list[object] = []
for _ in range(400):
    NESTED = [NESTED]

WRONG: list[tuple[dict[str, object], str]] = [
    ({"messages": []}, "messages is empty"),
    ({"messages": "hello"}, "messages: "),
    ({"messages": [{"role": "user"}]}, "no content"),
    ({"messages": [{"content": "x"}]}, "is not a chat message"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "reads text only",
    ),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "lone surrogate"),
    ({"max_tokens": 0}, "max_tokens must be"),
    ({"max_tokens": "8"}, "max_tokens: "),
    ({"max_tokens": 10**30, "n": 10**30, "temperature": 1}, "outputs"),
    ({"temperature": -1}, "temperature must be"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": -1}, "top_p must be"),
    ({"temperature": 2.1}, "temperature must be"),
    ({"logit_bias": {"5": 101}}, "logit_bias[5] must be"),
    ({"logit_bias": {"5": -100.5}}, "logit_bias[5] must be"),
    ({"seed": -(2**63) - 1}, "seed must be"),
    ({"stream_options": {"include_usage": True}}, "stream_options is for streams only"),
    ({"n": 2, "temperature": 0}, "needs a temperature"),
    ({"n": 65, "temperature": 1}, "64 outputs (prompts times n), not 65 (--max-outputs)"),
    ({"messages": [{"role": "user"}]}, "messages[0] has no content"),
    ({"eos_token_id": 2}, "eos_token_id is not supported here"),
    ({"max_completion_tokens": 9}, "max_tokens=8 and max_completion_tokens=9 differ"),
    ({"max_new_tokens": 9}, "here it is max_tokens"),
    ({"include_stop_str_in_output": True}, "include_stop_str_in_output is not supported here: leave it out"),
    ({"reasoning_effort": "high"}, "reasoning_effort is not supported here"),
    ({"references": [[1] * 300_000]}, "1200042 characters"),
    *(
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}]}, "at most 1000000 are")
        for deep in (
            {"x" * 1_000_000: 1},
            {f"{key:010}": 1 for key in range(100_000)},
            {"a": [{"b": {"c" * 1_000_000: {}}}]},
        )
    ),
    ({"n": 4, "temperature": 1, "references": "x" * 300_000}, "times n=4, and at most 1000000"),
    ({"messages": [{"role": "user</s>", "content": "a"}]}, "write 'system', 'developer', 'user', 'assistant'"),
    ({"stop": [""]}, "stop must be"),
    ({"logit_bias": {"x": 1}}, "is not a token id"),
    ({"logit_bias": {"99999": 1}}, "99999"),
    ({"references": 3}, "references must be"),
    ({"references": [["a"], ["b"]]}, "references holds 2 lists"),
    ({"edit_source": {"a": 1}}, "edit_source must be"),
    ({"prediction": {"type": "content"}}, "prediction must be"),
    ({"tools": [{"type": "function"}]}, "tools[0] must be {'type': 'function'"),
    ({"tool_choice": "required"}, "tool_choice='required' needs tools"),
    ({"response_format": {"type": "xml"}}, "response_format is none that is known here"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs holds 'messages'"),
    ({"temprature": 1}, "did you mean 'temperature'"),
    ({"x" * 100_000: 1}, "unknown option 'xxx"),
    ({"messages": [1] * 500_000}, "messages[0] is not a chat message: 1"),
    ({"messages": [{"role": "user", "content": {"a": "x" * 10_000}}]}, "content that is not text"),
    ({"messages": [{"role": "user", "content": "x", "name": NESTED}]}, "nested more than 64 levels"),
    ({"stop": [1] * 200}, "stop must be"),
    ({"stop": [str(i) for i in range(300)]}, "stop holds 300 strings; at most 256"),
    ({"logit_bias": {"1_0": 1}}, "'1_0' is not a token id"),
    ({"logit_bias": {"1": "x"}}, "logit_bias[1] must be a number"),
    ({"references": [["a"] * 3000] * 2}, "references holds 6000 texts"),
    ({"messages": [{"role": "user", "content": "word " * 2000}]}, "context is 1024"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
async def test_wrong_values_are_named(engine: Engine, wrong: dict[str, object], words: str) -> None:
    answer = await post(engine, CHAT, {**ASKED, **wrong})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert len(answer.content) < 1000
    assert words in error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_tokens": "8"}, "max_tokens"),
        ({"stop": 3}, "stop"),
        ({"temprature": 1}, "temprature"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"max_new_tokens": 9}, "max_new_tokens"),
        ({"x" * 100_000: 1}, "x" * 64),
        ({"model": "other"}, "model"),
        ({"max_tokens": 8, "max_completion_tokens": 9}, None),
    ],
)
async def test_an_error_about_one_field_names_it(engine: Engine, wrong: dict[str, object], field: str | None) -> None:
    answer = await post(engine, CHAT, {**ASKED, **wrong})
    assert answer.status_code >= 400 and answer.json()["error"]["param"] == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"messages": ' + b"9" * 10_000 + b"}",
        b'{"a":1}',
        b'"x"',
    ],
)
async def test_bodies_that_are_none(engine: Engine, body: bytes) -> None:
    answer = await post(engine, CHAT, body)
    assert answer.status_code == 400 and answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    "prompt", [[{"input_ids": [1]}] * 100, [{"input_ids": [[1]] * 100}], [[1], {"input_ids": [1]}]]
)
async def test_prompts_that_only_python_may_give_are_refused(engine: Engine, prompt: object) -> None:
    """They would be several prompts that the limit of outputs does not count."""
    answer = await post(engine, "/v1/completions", {"prompt": prompt, "n": 16, "temperature": 1})
    assert answer.status_code == 400 and "prompt holds" in answer.json()["error"]["message"]


async def test_a_context_that_is_full_has_openais_code(engine: Engine) -> None:
    answer = await post(engine, "/v1/completions", {"prompt": "word " * 2000})
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_other_models_and_paths_are_404(engine: Engine) -> None:
    answer = await post(engine, CHAT, {**ASKED, "model": "gpt-5" * 9999})
    assert len(answer.content) < 1000
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    async with client(engine) as http:
        assert (await http.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        assert (await http.get("/v1/models/tiny")).json()["id"] == "tiny"
        assert (await http.get("/v1/models/other")).status_code == 404
        for path, told in (
            ("/v2", "Not Found: this server has /health, /metrics, /v1/models, "),
            ("/", "Not Found: this server has /health, "),
            ("/models", "Not Found: did you mean /v1/models?"),
            ("/v1//chat/completions/", "Not Found: did you mean /v1/chat/completions?"),
        ):
            assert (await http.get(path)).json()["error"]["message"].startswith(told)
        assert (await http.get(CHAT)).status_code == 405
        assert (await http.head("/health")).status_code == 200


async def test_a_key_is_asked_for(engine: Engine) -> None:
    async with client(engine, api_key="Schlüssel") as http:
        assert (await http.get("/health")).json() == {"status": "ok"}
        for wrong in ("", "Bearer", "Bearer other", "Basic Schlüssel", "Schlüssel"):
            answer = await http.get("/v1/models", headers={"authorization": wrong.encode()})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        answer = await http.get("/v1/models", headers={"authorization": "bearer Schlüssel".encode()})
        assert answer.status_code == 200


async def test_bodies_that_are_too_large_or_too_slow_are_refused(engine: Engine) -> None:
    async def pieces() -> Any:
        for _ in range(100):
            yield b" " * 100

    async def slowly() -> Any:
        yield b"{"
        await asyncio.sleep(5)

    async with client(engine, max_body_bytes=1000, read_timeout=0.1) as http:
        for content in (b" " * 1001, pieces()):
            answer = await http.post(CHAT, content=content)
            assert answer.status_code == 413 and "1000" in answer.json()["error"]["message"]
        assert (await http.post(CHAT, content=slowly())).status_code == 408


async def test_limits_of_an_output(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await post(engine, CHAT, {**ASKED, "max_tokens": 9}, max_tokens=8)).status_code == 400
    answer = (await post(engine, CHAT, {"messages": MESSAGES}, max_tokens=3)).json()
    assert answer["usage"]["completion_tokens"] <= 3
    with monkeypatch.context() as patch:
        patch.setattr(engine.model.generation_config, "max_new_tokens", 2)
        answer = (await post(engine, CHAT, {"messages": MESSAGES}, max_tokens=9)).json()
    assert answer["usage"]["completion_tokens"] == 2, "the default stays that of the model"
    sources = {"references": [["ab"]], "prediction": {"type": "content", "content": "cdefgh"}}
    answer = await post(engine, CHAT, {**ASKED, **sources}, max_characters=30)  # roles and names of fields count, too
    assert answer.status_code == 400 and "have 68 characters, and at most 30" in answer.json()["error"]["message"]
    late = await post(engine, CHAT, {**ASKED, "max_tokens": 900}, timeout=0.01)
    assert late.status_code == 504 and "0.01" in late.json()["error"]["message"]
    async with client(engine, timeout=0.01) as http:
        late = await http.post(CHAT, json={**ASKED, "max_tokens": 900, "stream": True})
    assert late.status_code == 200 and "timeout_error" in late.text and "[DONE]" not in late.text


async def test_texts_that_all_prompts_share_count_for_each(engine: Engine) -> None:
    body = {"prompt": ["a"] * 64, "max_tokens": 1}
    for shared in ({"references": ["x" * 20_000]}, {"prediction": {"type": "content", "content": "x" * 20_000}}):
        answer = await post(engine, "/v1/completions", {**body, **shared})
        assert answer.status_code == 400
        assert "shared ones for each of 64 prompts, and at most 1000000" in answer.json()["error"]["message"]
    own = {"prompt": ["a"] * 4, "references": [["x" * 200]] * 4, "max_tokens": 1}
    assert (await post(engine, "/v1/completions", own, max_characters=900)).status_code == 200
    shared = {**own, "references": ["x" * 200] * 2}
    assert (await post(engine, "/v1/completions", shared, max_characters=900)).status_code == 400


async def test_rows_with_the_same_texts_share_their_comparison(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row begins while its batch waits, and a comparison may take half a second."""
    compared: list[int] = []

    def count(matcher: object, text: list[int], other: list[int], steps: int) -> int:
        compared.append(len(text))
        return compare(matcher, text, other, steps)  # type: ignore[arg-type]

    monkeypatch.setattr(versions, "compare", count)
    texts = {"edit_source": "the cat sat on the mat", "references": ["the cat sat on a mat"]}
    samples = {**ASKED, **texts, "n": 8, "temperature": 1, "seed": 1}
    assert (await post(engine, CHAT, samples)).status_code == 200 and len(compared) == 1
    prompts = {"prompt": ["a", "b"], "max_tokens": 2, **texts, "edit_source": [texts["edit_source"]] * 2}
    assert (await post(engine, "/v1/completions", prompts)).status_code == 200 and len(compared) == 2


async def test_in_another_application_the_same_paths_need_no_key(engine: Engine) -> None:
    parent = FastAPI()
    parent.mount("/llm", Server(engine, ServerSettings(api_key="key")).app())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(parent), base_url="http://copyspec") as http:
        assert (await http.get("/llm/health")).json() == {"status": "ok"}
        assert (await http.get("/llm/v1/models")).status_code == 401
        counters = (await http.get("/llm/metrics")).text
    assert 'copyspec_requests_total{path="/health",status="200"} 1.0' in counters
    assert 'copyspec_requests_total{path="/v1/models",status="401"} 1.0' in counters


async def test_a_full_queue_asks_to_come_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise QueueFullError("256 requests wait")

    monkeypatch.setattr(engine.scheduler, "submit", full)
    answer = await post(engine, CHAT, ASKED)
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1"


async def test_an_error_while_decoding_is_told_and_logged(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("the device is gone")

    monkeypatch.setattr(type(engine), "steps", fails)
    answer = await post(engine, CHAT, ASKED, batch_size=3)  # so that no batch of another test is used
    assert answer.status_code == 500 and "the device is gone" in answer.json()["error"]["message"]
    answer = await post(engine, CHAT, {**ASKED, "stream": True}, batch_size=3)
    assert "server_error" in answer.text
    assert "a request failed" in caplog.text


async def test_callers_at_once_get_their_own_answers(engine: Engine) -> None:
    chats = [[{"role": "user", "content": f"Say {i} and the cat."}] for i in range(20)]
    expected = [engine.generate(chat, max_new_tokens=12).text for chat in chats]
    async with client(engine, batch_size=4) as http:
        asked = [http.post(CHAT, json={"messages": chat, "max_tokens": 12}) for chat in chats]
        answers = await asyncio.gather(*asked)
        counters = (await http.get("/metrics")).text
    assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == expected
    assert 'copyspec_requests_total{path="/v1/chat/completions",status="200"} 20.0' in counters
    assert "copyspec_rows_running 0.0" in counters


async def test_nothing_is_decoded_for_a_client_that_has_gone(engine: Engine) -> None:
    for stream in (False, True):
        app = Server(engine, ServerSettings()).app()
        body = json.dumps({**ASKED, "max_tokens": 900, "stream": stream}).encode()
        disconnected = asyncio.Event()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive(messages: list[Any] = messages, disconnected: asyncio.Event = disconnected) -> Any:
            if messages:
                return messages.pop()
            while not engine.scheduler.running:
                await asyncio.sleep(0.005)
            disconnected.set()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await asyncio.sleep(0)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers, "query_string": b""}
        scope |= {"raw_path": CHAT.encode(), "root_path": "", "scheme": "http", "http_version": "1.1"}
        await asyncio.wait_for(app({**scope, "asgi": {"version": "3.0", "spec_version": "2.3"}}, receive, send), 10)
        assert disconnected.is_set()
        for _ in range(200):
            if not engine.scheduler.running:
                break
            await asyncio.sleep(0.01)
        assert engine.scheduler.running == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"api_key": " "}, r"api_key \(or COPYSPEC_API_KEY\) is empty"),
        ({"api_key": "key "}, "api_key begins or ends with a space"),
        ({"api_key": "a\nb"}, "api_key holds characters"),
        ({"batch_size": 0}, "batch_size"),
        ({"timeout": 0}, "timeout"),
        ({"names": ("",)}, "name"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ServerSettings(**settings).verify()


async def test_an_idle_server_takes_a_request_of_more_outputs_than_may_wait(engine: Engine) -> None:
    answer = await post(engine, CHAT, {**ASKED, "n": 3, "temperature": 1}, max_waiting=1)
    assert answer.status_code == 200 and len(answer.json()["choices"]) == 3


async def test_completions_read_a_text_as_generate_does(engine: Engine) -> None:
    prompt = "The cat sat on"
    tokenizer = byte_level(template=FRAME_TEMPLATE, wraps=True)
    framing = copyspec.Engine(llama(len(tokenizer)), tokenizer, name="framing")
    for served in (engine, framing):
        plain = served.generate(prompt, max_new_tokens=8)
        answer = (await post(served, "/v1/completions", {"prompt": prompt, "max_tokens": 8})).json()
        assert answer["choices"][0]["text"] == plain.text
        assert answer["usage"]["prompt_tokens"] == plain.prompt_tokens
    raw = framing.codec.encode(prompt).ids
    assert plain.prompt_tokens == len(raw) + 3, "<s><|user|> ... <|assistant|>"
    answer = (await post(framing, "/v1/completions", {"prompt": raw, "max_tokens": 8})).json()
    assert answer["usage"]["prompt_tokens"] == len(raw)


async def test_completions_have_no_log_probabilities(engine: Engine) -> None:
    answer = await post(engine, "/v1/completions", {"prompt": "The cat sat on", "logprobs": 0})
    assert answer.status_code == 400 and "logprobs is not supported" in answer.text


async def test_a_body_that_is_not_sent_as_json_is_named(engine: Engine) -> None:
    async with client(engine) as http:
        answer = await http.post(CHAT, content=json.dumps(ASKED), headers={"content-type": "text/plain"})
    assert answer.status_code == 415 and "Content-Type: application/json" in answer.json()["error"]["message"]


async def test_errors_name_the_served_model_and_no_folder(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.tokenizer, "chat_template", None)
    monkeypatch.setattr(engine.tokenizer, "name_or_path", "/srv/private/model")
    answer = await post(engine, CHAT, ASKED)
    assert answer.status_code == 400
    assert "/srv" not in answer.text and "'tiny' has no chat template" in answer.json()["error"]["message"]
