"""Answers in the shapes in which llama-server, Ollama, LM Studio and hosted servers send them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import copyspec
from copyspec.client import sending
from copyspec.client.reading import check_model
from copyspec.client.sending import AgainError
from copyspec.engine.asking.inputs import PromptTooLongError
from copyspec.pipelines import GECPipeline, GuardOptions
from tests.helpers.fake_server import Sent, completion, fake_server

TEXT, RIGHT = "He go to the school.", "He goes to the school."


def answer(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1764457000, "choices": [choice], **more}


COUNTS = {"prompt_tokens": 21, "completion_tokens": 7, "total_tokens": 28}
BUILD = "b6990"
TIMINGS = {"cache_n": 0, "prompt_n": 21, "prompt_ms": 30.5, "predicted_n": 7, "predicted_ms": 60.1}
THINKING = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": RIGHT}]

ANSWERS = {
    "llama-server": answer({"content": RIGHT}, model="m.gguf", system_fingerprint=BUILD, usage=COUNTS, timings=TIMINGS),
    "llama-server, a thought": answer({"content": RIGHT, "reasoning_content": "Hm."}, model="/models/m.gguf"),
    "ollama": answer({"content": RIGHT}, model="m:latest", system_fingerprint="fp_ollama", usage=COUNTS),
    "ollama, a thought": answer({"content": RIGHT, "reasoning": "Hm."}, model="m", usage=COUNTS),
    "lm studio": answer({"content": RIGHT, "tool_calls": []}, model="m", logprobs=None, usage=COUNTS, stats={}),
    "tgi": answer({"content": RIGHT}, "eos_token", model="org/m") | {"id": ""},
    "deepseek": answer({"content": RIGHT, "reasoning_content": "Hm."}, model="m-2026-01-01", usage=None),
    "mistral": answer({"content": THINKING}, model="m", usage={**COUNTS, "prompt_audio_seconds": {}}),
    "no usage, no model": answer({"content": RIGHT}),
    "counts that are none": answer({"content": RIGHT}, usage={"prompt_tokens": None, "completion_tokens": 7.0}),
    "a thought in the text": answer({"content": f"<think>\nHm, go.\n</think>\n\n{RIGHT}"}, model="m"),
    "an opening that the template wrote": answer({"content": f"Hm, go.\n</think>\n\n{RIGHT}"}, model="m"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_read(name: str) -> None:
    with fake_server(lambda body: Sent(ANSWERS[name])) as server, copyspec.remote(server.url) as remote:
        correction = GECPipeline(remote, guards=GuardOptions(allow_swaps=True))(TEXT)
        assert correction.text == RIGHT
        assert correction.result is not None
        thinks = any(word in name for word in ("thought", "deepseek", "mistral", "opening"))
        assert correction.result.reasoning.startswith("Hm") == thinks
    assert len(server.bodies) == 1 and remote.usage.requests == 1


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (answer({"content": None, "reasoning_content": "Hm, go or goes, or"}, "length"), "cut"),
        (answer({"content": "", "reasoning": "Hm."}), "empty"),
        (answer({"content": None}), "empty"),
        (answer({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}), "empty"),
        (answer({"content": ""}, "load", model="m"), "unfinished"),  # Ollama, which had only loaded the model
        (answer({"content": None}, "tool_calls"), "unfinished"),
        (answer({"content": RIGHT}, "error"), "unfinished"),  # OpenRouter
    ],
)
def test_what_is_no_answer_changes_nothing(sent: dict[str, Any], reason: str) -> None:
    with fake_server(lambda body: Sent(sent)) as server, copyspec.remote(server.url) as remote:
        correction = GECPipeline(remote)(TEXT)
    assert correction.text == TEXT and [refusal.reason for refusal in correction.refused] == [reason]


LLAMA_LONG = {
    "code": 400,
    "message": "request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 9412,
    "n_ctx": 8192,
}
STUDIO_LONG = (
    "Trying to keep the first 9000 tokens when context overflows. However, the model is loaded with context length of "
    "only 4096 tokens"
)

TOO_LONG = {
    "llama-server": (400, {"error": LLAMA_LONG}),
    "llama-server, as an error of its own": (500, {"error": {**LLAMA_LONG, "code": 500, "type": "server_error"}}),
    "lm studio": (400, {"error": STUDIO_LONG}),
    "in a body that says 200": (200, {"error": LLAMA_LONG}),
    "in a body that says 200, a text": (200, {"error": STUDIO_LONG}),
    "in a body that says 200, beside no answer": (200, {"choices": None, "error": LLAMA_LONG}),
    "in a body that says 200, beside no answers": (200, {"choices": [], "error": LLAMA_LONG}),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_text_that_is_too_long_is_refused_at_once(name: str) -> None:
    status, body = TOO_LONG[name]
    with fake_server(lambda _: Sent(body, status)) as server, copyspec.remote(server.url) as remote:
        correction = GECPipeline(remote)(TEXT)
        assert [refusal.reason for refusal in correction.refused] == ["length"]
        assert len(server.bodies) == 1
        with pytest.raises(PromptTooLongError):
            remote.generate(TEXT)


def events(*args: object, done: bool = True) -> Sent:
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in args) + "data: [DONE]\n\n" * done
    return Sent(f": keep-alive\n\n{lines}".encode(), headers={"content-type": "text/event-stream"})


def piece(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


LAST = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": COUNTS}
STREAMS = {
    "llama-server": [
        piece({"role": "assistant", "content": None}),
        piece({"reasoning_content": "Hm."}),
        piece({"content": "He goes"}),
        piece({"content": " to the school."}),
        piece({}, "stop"),
        {**LAST, "timings": TIMINGS},
    ],
    "ollama": [
        piece({"role": "assistant", "content": "", "reasoning": "Hm."}),
        piece({"role": "assistant", "content": RIGHT}),
        piece({"role": "assistant", "content": ""}, "stop"),
        LAST,
    ],
    "lm studio, usage beside the end": [
        piece({"role": "assistant", "reasoning_content": "Hm."}),
        piece({"content": RIGHT}),
        piece({}, "stop", usage=COUNTS),
    ],
    "mistral": [
        piece({"role": "assistant", "content": THINKING[:1]}),
        piece({"content": THINKING[1:]}),
        piece({"content": ""}, "stop", usage=COUNTS),
    ],
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_are_read(name: str) -> None:
    with fake_server(lambda body: events(*STREAMS[name])) as server, copyspec.remote(server.url) as remote:
        chunks = list(remote.stream(TEXT))
    result = chunks[-1].result
    assert result is not None and (result.reasoning, result.content, result.finish_reason) == ("Hm.", RIGHT, "stop")
    assert "".join(chunk.content for chunk in chunks) == RIGHT and remote.usage.completion_tokens == 7


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (LLAMA_LONG, PromptTooLongError, "exceeds the available context size"),
        (STUDIO_LONG, PromptTooLongError, "context length"),
        ({"code": 500, "message": "failed to decode"}, copyspec.ServerError, "broke off: .* 500 .failed to decode"),
        ({"message": "an error of the model", "type": "api_error"}, copyspec.ServerError, "an error of the model"),
        ({"code": "rate_limit_exceeded", "message": "slow down"}, copyspec.ServerError, "slow down"),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_an_error_in_a_stream_that_began_with_status_200_is_named(
    error: object, kind: type[Exception], message: str, place: int
) -> None:
    sent = events(*STREAMS["llama-server"][:place], {"error": error}, done=False)
    with (
        fake_server(lambda body: sent) as server,
        copyspec.remote(server.url) as remote,
        pytest.raises(kind, match=message),
    ):
        list(remote.stream(TEXT))
    assert not remote.usage.requests


@pytest.mark.parametrize(
    "content", [["a text"], [{"text": "a text"}], [{"type": "output_text", "text": "a text"}], {"text": "a text"}, 5]
)
def test_contents_that_cannot_be_read_are_no_empty_answers(content: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sending, "LONGEST_PAUSE", 0.01)
    with (
        fake_server(lambda body: Sent(answer({"content": content}))) as server,
        copyspec.remote(server.url) as remote,
        pytest.raises(copyspec.ServerError, match="its answer has no text"),
    ):
        remote.generate(TEXT)


def until(count: int, sent: Sent) -> Callable[[dict[str, Any]], Sent]:
    """A server that answers so, until it has been asked that often."""
    left = count

    def reply(body: dict[str, Any]) -> Sent:
        nonlocal left
        left -= 1
        return sent if left >= 0 else Sent(completion(RIGHT))

    return reply


@pytest.mark.parametrize(
    "sent",
    [
        Sent({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503),  # llama-server
        Sent({"error": {"message": "server busy, please try again", "type": "api_error", "code": None}}, 503),  # Ollama
        Sent({"error": {"message": "Provider returned error", "code": 502}}),  # OpenRouter
        Sent({"error": {"message": "rate limited", "code": 429}}),
        Sent({"error": "The model has crashed without additional information."}, 500),  # LM Studio
    ],
)
def test_what_passes_is_asked_for_again(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "FIRST_PAUSE", 0.01)
    with fake_server(until(2, sent)) as server, copyspec.remote(server.url) as remote:
        assert GECPipeline(remote, guards=GuardOptions(allow_swaps=True))(TEXT).text == RIGHT
    assert len(server.bodies) == 3 and sum(remote.failures.values()) == 2


@pytest.mark.parametrize("status", [400, 500, 200])
def test_a_template_without_system_messages_gets_none(status: int) -> None:
    """llama-server gives the template's own error, some versions of it with status 500."""

    def reply(body: dict[str, Any]) -> Sent:
        if body["messages"][0]["role"] != "system":
            return Sent(completion(RIGHT))
        message = "Unable to generate the prompt: Jinja Exception: System role not supported"
        return Sent({"error": {"code": 400 if status == 200 else status, "message": message}}, status)

    with fake_server(reply) as server, copyspec.remote(server.url) as remote:
        result = remote.generate(TEXT, system="Be careful.")
    assert result.content == RIGHT and len(server.bodies) == 2
    assert server.bodies[1]["messages"][0]["content"] == f"Be careful.\n\n{TEXT}"


def test_a_model_that_is_not_there_is_named_at_once() -> None:
    error = {"message": 'model "m" not found, try pulling it first', "type": "not_found_error", "param": None}
    with (
        fake_server(lambda body: Sent({"error": error}, 404)) as server,
        copyspec.remote(server.url) as remote,
        pytest.raises(copyspec.ServerError, match=r"404 .*try pulling it first"),
    ):
        GECPipeline(remote)(TEXT)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ("qwen3:latest", "qwen3"),
        ("qwen3", "qwen3:latest"),
        ("/models/Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q4_K_M"),
        ("hf.co/org/Qwen3-8B-GGUF:Q4_K_M", "hf.co/org/Qwen3-8B-GGUF:Q4_K_M"),
        ("gpt-4.1-mini-2025-04-14", "gpt-4.1-mini"),
    ],
)
def test_names_of_the_same_model(found: str, name: str) -> None:
    check_model(found, (), name)
    with pytest.raises(AgainError, match="another model has answered"):
        check_model(found.replace("3", "2").replace("4", "5"), (), name)
