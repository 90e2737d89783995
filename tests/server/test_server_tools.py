"""Thoughts, tools and schemas through OpenAI's client: whole and streamed, from threads and from tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import httpx
import openai
import pydantic
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from starlette.testclient import TestClient

from copyspec.server.endpoints import Server, _message
from copyspec.server.settings import ServerSettings
from tests.engine.test_tools import CHAT, PAINT, SCHEMA, WAIT, Says, engine_of
from tests.helpers.chat_templates import FAMILIES, tokenizer_of

if TYPE_CHECKING:
    from copyspec import Engine
    from copyspec.engine.running.jobs import Job

TOOLS: Any = [PAINT, WAIT]
CALL = '{"name": "paint", "arguments": {"colour": "red", "coats": 2}}'
PAINTED = ("paint", {"colour": "red", "coats": 2})
WAITED = ("wait", {})

SAID: list[tuple[str, str, str, str, Sequence[Any]]] = [
    # family, output, thought, answer, calls
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", "", [PAINTED]),
    ("hermes", f"Well. <tool_call>\n{CALL}\n</tool_call>", "", "Well.", [PAINTED]),
    ("hermes", "No call is needed.", "", "No call is needed.", []),
    ("hermes", f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", "", [PAINTED, PAINTED]),
    ("qwen3", f"<think>\nWhat?\n</think>\n\n<tool_call>\n{CALL}\n</tool_call>", "What?", "", [PAINTED]),
    ("qwen3", "<think>\nWhat is\nthis?\n</think>\n\nA wall.", "What is\nthis?", "A wall.", []),
    ("qwen3", "<think>\nWhat?\n</think>", "What?", "", []),
    ("glm", "What?</think>\n\nWell. <tool_call>wait\n</tool_call>", "What?", "Well.", [WAITED]),
    ("qwen-coder", "é <tool_call>\n<function=wait>\n</function>\n</tool_call>", "", "é", [WAITED]),
    ("mistral", f"[TOOL_CALLS][{CALL}]", "", "", [PAINTED]),
    ("mistral-named", "Well. [TOOL_CALLS]wait[ARGS]{}", "", "Well.", [WAITED]),
    ("deepseek", "<|calls_begin|><|call_begin|>wait<|sep|>{}<|call_end|><|calls_end|>", "", "", [WAITED]),
    ("minimax", '<m:tool_call><invoke name="wait"></invoke></m:tool_call>', "", "", [WAITED]),
    ("attributes", '<｜M｜calls>\n<｜M｜invoke name="wait">\n</｜M｜invoke>\n</｜M｜calls>', "", "", [WAITED]),
    ("llama", '{"name": "wait", "parameters": {}}', "", "", [WAITED]),
    ("python", "[wait()]", "", "", [WAITED]),
    (
        "harmony",
        "<|channel|>analysis<|message|>What?<|end|><|start|>assistant<|channel|>final<|message|>Well.",
        "What?",
        "Well.",
        [],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>What?<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.wait<|message|>{}",
        "What?",
        "",
        [WAITED],
    ),
]


class Scripted:
    """The server of an engine whose model writes a text. `jobs`: those of the last call."""

    def __init__(self, engine: Engine, text: str, **options: Any) -> None:
        self.engine, self.text, self.options = engine, text, options
        self.jobs: Sequence[Job] = ()
        self.app = Server(engine, ServerSettings(names=("tiny",))).app()

    @contextmanager
    def client(self) -> Iterator[Any]:
        start = self.engine.start

        def scripted(prompt: object, references: object, options: Any, loop: Any) -> Any:
            says = Says(self.engine, self.text)
            call = start(prompt, references, replace(options, logits_processor=says, **self.options), loop)
            self.jobs = call.jobs
            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.engine, "start", scripted)
            with TestClient(self.app) as http:
                yield openai.OpenAI(base_url="http://localhost/v1", api_key="any", max_retries=0, http_client=http)
        self.engine.scheduler.max_waiting = None

    @contextmanager
    def task(self) -> Iterator[Any]:
        with self.client():
            http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app))
            yield openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="any", max_retries=0, http_client=http)


def joined(events: Sequence[Any]) -> tuple[str, str, list[Any], str, Any]:
    """Thought, answer, calls, finish reason and usage of a stream's events."""
    thought = answer = reason = ""
    calls: list[Any] = []
    usage = None
    for event in events:
        usage = event.usage or usage
        for choice in event.choices:
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            answer += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or ():
                assert call.index == len(calls) and call.type == "function"
                calls.append(call)
    assert events[0].choices[0].delta.role == "assistant"
    return thought, answer, calls, reason, usage


def read(calls: Sequence[Any] | None) -> list[Any]:
    """Names and arguments of calls, whose ids must differ."""
    ids = [call.id for call in calls or ()]
    assert len(set(ids)) == len(ids) and all(call_id.isalnum() and len(call_id) == 9 for call_id in ids)
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls or ()]


@pytest.mark.parametrize(("name", "text", "thought", "answer", "calls"), SAID)
def test_thoughts_and_calls_have_fields_of_their_own(
    name: str, text: str, thought: str, answer: str, calls: Sequence[Any]
) -> None:
    scripted = Scripted(engine_of(name), text, strict=False)
    asked: dict[str, Any] = {"model": "tiny", "messages": CHAT, "tools": TOOLS, "max_tokens": 150}
    with scripted.client() as client:
        whole = client.chat.completions.create(**asked)
        streamed = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        pieces = joined(list(streamed))
    choice = whole.choices[0]
    assert getattr(choice.message, "reasoning_content", "") == thought
    assert choice.message.content == (answer if answer or not calls else None)
    assert read(choice.message.tool_calls) == list(calls)
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    assert bool(whole.usage.completion_tokens_details.reasoning_tokens) == bool(thought)
    assert pieces[:2] == (thought, answer) and read(pieces[2]) == list(calls)
    assert pieces[3] == choice.finish_reason
    details = [usage.completion_tokens_details for usage in (pieces[4], whole.usage)]
    assert details[0].reasoning_tokens == details[1].reasoning_tokens
    assert pieces[4].completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize(("name", "text", "thought", "answer", "calls"), SAID[::2])
async def test_tasks_get_the_same(name: str, text: str, thought: str, answer: str, calls: Sequence[Any]) -> None:
    scripted = Scripted(engine_of(name), text, strict=False)
    asked: dict[str, Any] = {"model": "tiny", "messages": CHAT, "tools": TOOLS, "max_tokens": 150}
    with scripted.task() as client:
        whole = await client.chat.completions.create(**asked)
        pieces = joined([event async for event in await client.chat.completions.create(**asked, stream=True)])
    message = whole.choices[0].message
    assert (message.content or "", read(message.tool_calls)) == (answer, list(calls))
    assert (pieces[:2], read(pieces[2])) == ((thought, answer), list(calls))


@pytest.mark.parametrize(("name", "said"), [(name, text) for name, text, _, _, calls in SAID if len(calls) > 1])
@pytest.mark.parametrize("is_parallel", [None, True, False])
def test_one_call_where_several_are_not_wanted(name: str, said: str, is_parallel: bool | None) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": CHAT, "tools": TOOLS, "max_tokens": 150}
    asked |= {} if is_parallel is None else {"parallel_tool_calls": is_parallel}
    with Scripted(engine_of(name), said, strict=False).client() as client:
        calls = client.chat.completions.create(**asked).choices[0].message.tool_calls
        streamed = joined(list(client.chat.completions.create(**asked, stream=True)))
    assert read(calls) == read(streamed[2]) == [PAINTED] * (1 if is_parallel is False else 2)


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("allowed", ["paint", "wait"])
def test_calls_of_allowed_tools(mode: str, allowed: str) -> None:
    pytest.importorskip("llguidance")
    engine: Any = engine_of("hermes")
    tools = [{"type": "function", "function": {"name": allowed}}]
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    asked: dict[str, Any] = {"model": "tiny", "messages": CHAT, "tools": TOOLS, "max_tokens": 150}
    with Scripted(engine, f"<tool_call>\n{CALL}\n</tool_call>").client() as client:
        answer = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
        assert {call.function.name for call in answer.message.tool_calls} == {allowed}
        tools[0]["function"] = {"name": "fly"}
        with pytest.raises(openai.BadRequestError, match="tool_choice allows 'fly', which is none of the tools"):
            client.chat.completions.create(**asked, tool_choice=choice)


BROKEN = [
    ("hermes", '<tool_call>\n{"name": "paint", "argu', "", '<tool_call>\n{"name": "paint", "argu'),
    ("hermes", "Well. <tool_call>\npaint it\n</tool_call>", "Well.", "paint it"),
    ("deepseek", "<|calls_begin|><|call_begin|>wait<|sep|>{no", "", "{no"),
    ("mistral-named", "Well. [TOOL_CALLS]wait[ARGS]{,}", "Well.", "{,}"),
    ("qwen3", "<think>a</think>b <tool_call>{]</tool_call>", "b", "{]"),
]


@pytest.mark.parametrize(("name", "text", "begins", "holds"), BROKEN)
def test_a_call_that_cannot_be_read_is_in_the_answer(name: str, text: str, begins: str, holds: str) -> None:
    scripted = Scripted(engine_of(name), text, strict=False)
    asked: dict[str, Any] = {"model": "tiny", "messages": CHAT, "tools": TOOLS, "max_tokens": 150}
    with scripted.client() as client:
        choice = client.chat.completions.create(**asked).choices[0]
        pieces = joined(list(client.chat.completions.create(**asked, stream=True)))
    assert choice.message.content.startswith(begins) and holds.replace("<tool_call>\n", "") in choice.message.content
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    assert pieces[1:4] == (choice.message.content, [], "stop")


@pytest.mark.parametrize("name", [*FAMILIES])
def test_an_answer_goes_back_as_the_template_wants_it(name: str) -> None:
    """Calls and results of tools in the history: arguments are objects there, and content is never None."""
    engine = engine_of(name)
    function = {"name": "paint", "arguments": '{"colour": "red", "coats": 2}'}
    for content in (None, "Well.", [{"type": "text", "text": "We"}, {"type": "refusal", "refusal": "ll."}]):
        history: Any = [
            *CHAT,
            {
                "role": "assistant",
                "content": content,
                "refusal": None,
                "tool_calls": [
                    {"id": "abcdefghi", "type": "function", "function": function},
                    {"id": "bbcdefghi", "type": "function", "function": {"name": "wait", "arguments": ""}},
                ],
            },
            {"role": "tool", "tool_call_id": "abcdefghi", "content": "done"},
            {"role": "tool", "tool_call_id": "bbcdefghi", "content": [{"type": "text", "text": "done, too"}]},
        ]
        scripted = Scripted(engine, "Done.")
        with scripted.client() as client:
            client.chat.completions.create(model="tiny", messages=history, tools=TOOLS, max_tokens=40)
        calls = [{"name": "paint", "arguments": PAINTED[1]}, {"name": "wait", "arguments": {}}]
        shown = [
            *CHAT,
            {
                "role": "assistant",
                "content": "Well." if content else "",
                "tool_calls": [
                    {"id": called["id"], "type": "function", "function": call}
                    for called, call in zip(history[1]["tool_calls"], calls, strict=True)
                ],
            },
            {"role": "tool", "tool_call_id": "abcdefghi", "content": "done"},
            {"role": "tool", "tool_call_id": "bbcdefghi", "content": "done, too"},
        ]
        ids = engine.tokenizer.apply_chat_template(shown, tools=TOOLS, add_generation_prompt=True)["input_ids"]
        assert list(scripted.jobs[0].request.prompt) == list(ids)


def test_a_loop_of_calls_and_results_ends() -> None:
    """What a client does: it sends back the messages that it got."""
    engine = engine_of("hermes")
    messages: list[Any] = [*CHAT]
    for text in (f"<tool_call>\n{CALL}\n</tool_call>", "It is red."):
        with Scripted(engine, text).client() as client:
            choice = client.chat.completions.create(
                model="tiny", messages=messages, tools=TOOLS, parallel_tool_calls=True, max_tokens=150
            ).choices[0]
        messages.append(choice.message)
        for call in choice.message.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "painted"})
    assert messages[-1].content == "It is red." and len(messages) == 4


@pytest.mark.parametrize("name", ["hermes", "qwen3", "qwen-coder", "minimax", "deepseek", "mistral-named", "keyed"])
def test_a_call_that_must_be_made_fits_a_tool(name: str) -> None:
    pytest.importorskip("llguidance")
    scripted = Scripted(engine_of(name), "")
    for choice in ("required", {"type": "function", "function": {"name": "paint"}}):
        with scripted.client() as client:
            answer = client.chat.completions.create(
                model="tiny", messages=CHAT, tools=[WAIT, PAINT], tool_choice=choice, max_tokens=300
            ).choices[0]
        for called, arguments in read(answer.message.tool_calls):
            assert choice == "required" or called == "paint"
            assert called == "wait" or arguments["colour"] in ("red", "blue")
        assert answer.message.tool_calls or answer.finish_reason == "length"
    with scripted.client() as client:
        client.chat.completions.create(model="tiny", messages=CHAT, tools=TOOLS, tool_choice="none", max_tokens=5)
    plain = engine_of(name).codec.encode_chat(CHAT).ids
    assert list(scripted.jobs[0].request.prompt) == plain


@pytest.mark.parametrize(
    ("format", "answers"),
    [
        ({"type": "text"}, None),
        ({"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}, dict),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [[1], [2]]}}}, list),
        ({"type": "json_object"}, dict),
    ],
)
@pytest.mark.parametrize("name", ["hermes", "qwen3"])
def test_response_formats(name: str, format: Any, answers: Any) -> None:
    pytest.importorskip("llguidance")
    text = "<think>\nHm.\n</think>\n\n{}" if name == "qwen3" else "{}"
    with Scripted(engine_of(name), text).client() as client:
        asked = {"model": "tiny", "messages": CHAT, "response_format": format, "max_tokens": 60}
        message = client.chat.completions.create(**asked).choices[0].message
        pieces = joined(list(client.chat.completions.create(**asked, stream=True)))
    assert pieces[1] == message.content
    assert getattr(message, "reasoning_content", "") == ("Hm." if name == "qwen3" else "")
    assert message.content == "{}" if answers is None else isinstance(json.loads(message.content), answers)


@pytest.mark.parametrize(
    ("choice", "text", "is_call"),
    [
        ("auto", '<tool_call>\n{"name": "paint", "arguments": {"colour": "red", "coats": 2}}\n</tool_call>', True),
        ("auto", '{"colour": "blue", "coats": 1}', False),
        ("none", '{"colour": "blue", "coats": 1}', False),
        ("required", '{"colour": "blue", "coats": 1}', True),
    ],
)
def test_a_response_format_beside_tools(choice: str, text: str, is_call: bool) -> None:
    """As agents send them."""
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    asked: Any = {"tools": TOOLS, "tool_choice": choice, "response_format": form, "max_tokens": 90}
    with Scripted(engine_of("hermes"), text).client() as client:
        message = client.chat.completions.create(model="tiny", messages=CHAT, **asked).choices[0].message
    assert bool(message.tool_calls) == is_call
    if not is_call:
        assert isinstance(json.loads(message.content or ""), dict)


VARIABLES = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "[{{ reasoning_effort }}|{{ enable_thinking }}|{{ tone }}]{% if add_generation_prompt %}:{% endif %}"
)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "[||]"),
        ({"chat_template_kwargs": {"tone": "dry"}}, "[||dry]"),
        ({"reasoning_effort": "high"}, "[high||]"),
        ({"reasoning_effort": "none"}, "[none||]"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "[high||]"),
        ({"chat_template_kwargs": {"enable_thinking": False, "tone": 3}}, "[|False|3]"),
        ({"chat_template_kwargs": {}, "reasoning_effort": None}, "[||]"),
    ],
)
def test_variables_of_the_template(fields: dict[str, Any], shown: str) -> None:
    engine = engine_of("hermes")
    scripted = Scripted(engine, "Yes.")
    with pytest.MonkeyPatch.context() as patch, scripted.client() as client:
        patch.setattr(engine.tokenizer, "chat_template", VARIABLES)
        client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=9, extra_body=fields)
    assert engine.tokenizer.decode(scripted.jobs[0].request.prompt).endswith(f"{shown}:")


@pytest.mark.parametrize(
    ("template", "effort", "shown"),
    [
        ("{{ enable_thinking is defined and not enable_thinking }}", "none", "True"),
        ("{{ enable_thinking is defined }}", "low", None),
        ("x", "none", "x"),
        ("x", "high", None),
    ],
)
def test_an_effort_that_the_template_does_not_read(template: str, effort: str, shown: str | None) -> None:
    tokenizer = tokenizer_of(FAMILIES["hermes"])
    engine = engine_of("hermes")
    scripted = Scripted(engine, "Yes.")
    with pytest.MonkeyPatch.context() as patch, scripted.client() as client:
        patch.setattr(engine.tokenizer, "chat_template", template)
        asked = {"model": "tiny", "messages": CHAT, "max_tokens": 9, "reasoning_effort": effort}
        if shown is None:
            with pytest.raises(openai.BadRequestError, match="reasoning_effort is not supported here") as refused:
                client.chat.completions.create(**asked)
            assert refused.value.param == "reasoning_effort"
            return
        client.chat.completions.create(**asked)
    assert tokenizer.decode(scripted.jobs[0].request.prompt) == shown


CALLED: Any = {"role": "assistant", "content": None}


@pytest.mark.parametrize(
    ("fields", "words", "field"),
    [
        ({"tools": [{"name": "paint"}]}, "tools[0] must be", "tools"),
        ({"tools": TOOLS, "tool_choice": "divide"}, "tool_choice='divide' is none of the tools", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "is none of the tools", "tool_choice"),
        *(
            (
                {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": tools}}},
                "allowed_tools.tools must be a list",
                "tool_choice",
            )
            for tools in (None, 5, "paint", ["paint"], [{"type": "function", "name": "paint"}])
        ),
        ({"tool_choice": "required"}, "tool_choice='required' needs tools", "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format is none", "response_format"),
        ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs holds", "chat_template_kwargs"),
        ({"messages": [*CHAT, {**CALLED, "tool_calls": 3}]}, "messages[1].tool_calls must be a list", "messages"),
        ({"messages": [*CHAT, {**CALLED, "tool_calls": [{}]}]}, "messages[1].tool_calls[0] is no call", "messages"),
        ({"messages": [*CHAT, {**CALLED, "function_call": {"name": "a"}}]}, "give tool_calls", "messages"),
        ({"messages": [*CHAT, CALLED]}, "messages[1] has no content", "messages"),
        *(
            (
                {"messages": [*CHAT, {**CALLED, "tool_calls": [{"function": {"name": "a", "arguments": arguments}}]}]},
                "messages[1].tool_calls[0].function.arguments is no JSON object",
                "messages",
            )
            for arguments in ("{", "[1]", "3", "null", [1], "[" * 5000)
        ),
    ],
)
def test_what_cannot_be_asked_is_named(fields: dict[str, Any], words: str, field: str) -> None:
    with Scripted(engine_of("hermes"), "Yes.").client() as client, pytest.raises(openai.BadRequestError) as refused:
        fields = dict(fields)
        body = {"messages": fields.pop("messages", CHAT), "extra_body": fields}
        client.chat.completions.create(model="tiny", max_tokens=9, **body)
    assert words in refused.value.message and refused.value.param == field


class Painting(pydantic.BaseModel):
    colour: Literal["red", "blue"]
    coats: int


@pytest.mark.parametrize("name", ["hermes", "qwen3", "mistral-named"])
def test_helpers_of_the_client_read_answers(name: str) -> None:
    pytest.importorskip("llguidance")
    tool = openai.pydantic_function_tool(Painting, name="paint")
    text = next(said for family, said, *_ in SAID if family == name and ("paint" in said or "wait" in said))
    scripted = Scripted(engine_of(name), text.replace("wait", "paint"))
    with scripted.client() as client:
        asked: dict[str, Any] = {"model": "tiny", "messages": CHAT, "max_tokens": 200}
        for choice in ("auto", "required"):
            answer = client.chat.completions.parse(**asked, tools=[tool], tool_choice=choice).choices[0].message
            (call,) = answer.tool_calls
            assert isinstance(call.function.parsed_arguments, Painting)
            with client.chat.completions.stream(**asked, tools=[tool], tool_choice=choice) as stream:
                whole = stream.get_final_completion().choices[0]
            assert whole.message.tool_calls[0].function.arguments == call.function.arguments
            assert whole.finish_reason == "tool_calls"
    with Scripted(engine_of(name), '{"colour": "blue", "coats": 12}').client() as client:
        answer = client.chat.completions.parse(**asked, response_format=Painting).choices[0].message
        assert answer.parsed == Painting(colour="blue", coats=12)


@pytest.mark.parametrize("name", ["hermes", "qwen3", "qwen-coder", "deepseek"])
def test_langchains_model_of_openai_calls_tools(name: str) -> None:
    pytest.importorskip("llguidance")
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    text = next(said for family, said, *_ in SAID if family == name and ("paint" in said or "wait" in said))
    scripted = Scripted(engine_of(name), text)
    with scripted.client(), TestClient(scripted.app) as http:
        llm = chat(base_url="http://localhost/v1", api_key="any", model="tiny", max_tokens=200, http_client=http)
        bound = llm.bind_tools(TOOLS)
        answer = bound.invoke("The wall, please.")
        (call,) = answer.tool_calls
        pieces = list(bound.stream("The wall, please."))
        joined = pieces[0]
        for piece in pieces[1:]:
            joined += piece
        assert [(made["name"], made["args"]) for made in joined.tool_calls] == [(call["name"], call["args"])]
        history = ["The wall, please.", answer, ToolMessage("done", tool_call_id=call["id"])]
        bound.invoke([HumanMessage(history[0]), *history[1:]])
        assert "done" in scripted.engine.tokenizer.decode(scripted.jobs[0].request.prompt)
    for method in ("json_schema", "function_calling"):
        scripted = Scripted(engine_of(name), '{"colour": "blue", "coats": 2}' if method == "json_schema" else text)
        with scripted.client(), TestClient(scripted.app) as http:
            llm = chat(base_url="http://localhost/v1", api_key="any", model="tiny", max_tokens=200, http_client=http)
            structured = llm.with_structured_output(Painting, method=method)
            assert isinstance(structured.invoke("The wall, please."), Painting)


def test_many_thoughts_are_read_in_linear_time() -> None:
    begun = time.process_time()
    parts = [{"type": kind, kind: f"{n} "} for n in range(20_000) for kind in ("thinking", "text")]
    fields = _message("messages[0]", {"role": "assistant", "content": parts})
    assert time.process_time() - begun < 2
    assert fields["content"] == fields["reasoning_content"] == "".join(f"{n} " for n in range(20_000))
