"""Tools: shown through the chat template, called by a scripted model, and parsed from its output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import pytest

pytest.importorskip("langchain_core")

import torch
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel
from transformers import LogitsProcessor
from typing_extensions import TypedDict

from copyspec import Engine
from copyspec.pipelines.langchain import ChatCopySpec
from copyspec.pipelines.langchain.messages import encoded_prompt
from tests.helpers.tiny import tiny_engine, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("steady_drafts")

TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }}: {{ t.function.description }}\n{% endfor %}"
    "Answer with <tool_call>.\n{% endif %}"
    "{% for m in messages %}<|{{ 'assistant' if m.role == 'assistant' else 'user' }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies."""
    return a * b


@tool
def shout(text: str) -> str:
    """Shouts."""
    return text.upper()


class Joke(BaseModel):
    """A joke."""

    setup: str
    punchline: str


class Script(LogitsProcessor):
    """Makes the model output what `write` returns for its prompt."""

    def __init__(self, write: Callable[[str], str]) -> None:
        self.write = write
        self.tokenizer = tiny_tokenizer()
        self.start = 0
        self.tokens: list[int] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if not self.tokens:
            self.start = input_ids.shape[1]
            text = self.write(self.tokenizer.decode(input_ids[0]))
            self.tokens = [*self.tokenizer(text)["input_ids"], self.tokenizer.eos_token_id]
        forced = torch.full_like(scores, -1e9)
        forced[:, self.tokens[min(input_ids.shape[1] - self.start, len(self.tokens) - 1)]] = 0.0
        return forced  # type: ignore[return-value]


@cache
def engine() -> Engine:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return Engine(tiny_model(), tokenizer, name="tiny")


@pytest.fixture
def llm() -> ChatCopySpec:
    return ChatCopySpec(model=engine(), max_tokens=200)


def says(text: str) -> Script:
    return Script(lambda prompt: text)


def test_tools_reach_the_prompt_and_calls_come_back(llm: ChatCopySpec) -> None:
    prompts: list[str] = []

    def write(prompt: str) -> str:
        prompts.append(prompt)
        return "Let me see. " + CALL

    answer = llm.bind_tools([multiply, shout]).invoke("6 times 7?", logits_processor=Script(write))
    assert prompts[0].startswith("multiply: Multiplies.\nshout: Shouts.")
    assert answer.content == "Let me see."
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("multiply", {"a": 6, "b": 7})]
    assert answer.tool_calls[0]["id"] and answer.response_metadata["finish_reason"] == "tool_calls"
    cut = llm.bind_tools([multiply]).invoke(
        "6 times 7?", max_tokens=90, logits_processor=says(CALL + " and so on" * 99)
    )
    assert len(cut.tool_calls) == 1 and cut.response_metadata["finish_reason"] == "length"


@pytest.mark.parametrize("is_parallel", [None, True, False])
def test_one_call_where_several_are_not_wanted(llm: ChatCopySpec, is_parallel: bool | None) -> None:
    more = {} if is_parallel is None else {"parallel_tool_calls": is_parallel}
    bound = llm.bind_tools([multiply, shout], strict=False, **more)
    whole = bound.invoke("6 times 7?", logits_processor=says(CALL + CALL))
    chunks: Any = list(bound.stream("6 times 7?", logits_processor=says(CALL + CALL)))
    streamed = sum(chunks[1:], chunks[0])
    assert len(whole.tool_calls) == len(streamed.tool_calls) == (1 if is_parallel is False else 2)


def test_streams_hold_calls_back_and_show_text(llm: ChatCopySpec) -> None:
    bound = llm.bind_tools([multiply])
    chunks = list(bound.stream("6 times 7?", logits_processor=says("Let me see. " + CALL)))
    joined = sum(chunks[1:], chunks[0])
    assert isinstance(joined, AIMessageChunk)
    assert joined.content.rstrip() == "Let me see."  # type: ignore[union-attr]
    assert [(call["name"], call["args"]) for call in joined.tool_calls] == [("multiply", {"a": 6, "b": 7})]
    assert not [chunk for chunk in chunks if "tool_call" in str(chunk.content)]
    assert joined.response_metadata["finish_reason"] == "tool_calls"
    plain = list(bound.stream("hi", logits_processor=says("No tool is needed for this.")))
    assert len(plain) > 2 and "".join(str(chunk.content) for chunk in plain) == "No tool is needed for this."


@pytest.mark.parametrize(
    "said",
    [
        'The call would be: {"name": "multiply", "arguments": {"a": 6, "b": 7}}',
        "See [1] and {2}, a list: [3]. ",
        f"A {CALL} B",
        f"{CALL}\nDone. {CALL} ",
        "<tool_call>{not json</tool_call>",
        '<tool_call>"so"</tool_call>',
        'Look: <tool_call>{"name": "multiply", "arguments": {"a": 6, "b": "lo',
        '{"name": "multiply", "arguments": {"a": 6, "b": 7}}',
    ],
)
def test_streams_hold_the_calls_and_the_text_of_invoke(llm: ChatCopySpec, said: str) -> None:
    bound = llm.bind_tools([multiply], strict=False)
    whole = bound.invoke("6 times 7?", logits_processor=says(said))
    for options in ({}, {"drafter": "none"}):
        chunks = list(bound.stream("6 times 7?", logits_processor=says(said), **options))
        joined = sum(chunks[1:], chunks[0])
        assert isinstance(joined, AIMessageChunk) and isinstance(whole, AIMessage)
        assert joined.content == whole.content
        assert [(call["name"], call["args"]) for call in joined.tool_calls] == [
            (call["name"], call["args"]) for call in whole.tool_calls
        ]
        assert len(joined.invalid_tool_calls) == len(whole.invalid_tool_calls)
        turns = [[HumanMessage("6 times 7?"), said, HumanMessage("So?")] for said in (whole, joined)]
        asked = [encoded_prompt(engine(), messages).ids for messages in turns]
        assert asked[0] == asked[1], "in the next turn both are shown as they were written"


@pytest.mark.parametrize("choice", ["any", "required", True, "multiply", {"function": {"name": "multiply"}}])
def test_a_choice_forces_a_call(llm: ChatCopySpec, choice: object) -> None:
    bound = llm.bind_tools([multiply], tool_choice=choice, strict=False)  # type: ignore[arg-type]
    script = says('{"a": 2, "b": 3}}</tool_call>')
    assert bound.invoke("hi", logits_processor=script).tool_calls[0]["args"] == {"a": 2, "b": 3}
    streamed = list(bound.stream("hi", logits_processor=says('{"a": 2, "b": 3}}</tool_call>')))
    assert sum(streamed[1:], streamed[0]).tool_calls[0]["name"] == "multiply"  # type: ignore[attr-defined]


@tool
def paint(colour: Literal["red", "blue"], twice: bool) -> str:
    """Paints."""
    return colour


@pytest.mark.parametrize(("choice", "names"), [("any", {"paint", "shelve"}), ("paint", {"paint"})])
def test_forced_calls_hold_to_the_schemas_of_the_tools(llm: ChatCopySpec, choice: str, names: set[str]) -> None:
    pytest.importorskip("llguidance")
    shelve = {
        "name": "shelve",
        "description": "Shelves.",
        "parameters": {"type": "object", "properties": {"at": {"enum": [1, 2]}}, "required": ["at"]},
    }
    bound = llm.bind_tools([paint, shelve], tool_choice=choice, strict=True)
    plain = bound.bind(drafter="none")
    for prompt in ("the wall", "a shelf, twice", "red red red"):
        answer = bound.invoke(prompt)
        (call,) = answer.tool_calls
        assert call["name"] in names and not answer.content and not answer.invalid_tool_calls
        fits = {"paint": lambda args: set(args) == {"colour", "twice"}, "shelve": lambda args: args["at"] in (1, 2)}
        assert fits[call["name"]](call["args"])
        streamed = sum(chunks[1:], chunks[0]) if (chunks := list(bound.stream(prompt))) else None
        for other in (plain.invoke(prompt), streamed):
            assert isinstance(other, AIMessage)
            assert [(made["name"], made["args"]) for made in other.tool_calls] == [(call["name"], call["args"])]
        stats = [message.response_metadata["copyspec"]["num_passes"] for message in (answer, plain.invoke(prompt))]
        assert stats[0] < stats[1] / 2, "names and marks are drafted"


def test_a_call_that_the_model_begins_holds_to_the_schemas(llm: ChatCopySpec) -> None:
    """The text before the tag is the model's own; after it, the output is constrained to a tool's schema."""
    pytest.importorskip("llguidance")
    text = "Let me see. "
    bad = text + '<tool_call>{"name": "divide", "arguments": {"a": "six"}}'
    bound = llm.bind_tools([multiply, paint])
    free = bound.invoke("6 times 7?", logits_processor=says(bad), strict=False)
    assert free.invalid_tool_calls or free.tool_calls[0]["name"] == "divide"
    outputs = []
    for options in ({}, {"drafter": "none"}):
        answer = bound.invoke("6 times 7?", logits_processor=says(bad), **options)
        (call,) = answer.tool_calls
        assert answer.content == text.strip() and not answer.invalid_tool_calls
        names = {"multiply": {"a", "b"}, "paint": {"colour", "twice"}}
        assert set(call["args"]) == names[call["name"]]
        outputs.append((call["name"], call["args"]))
    assert outputs[0] == outputs[1], "with drafts as without"
    for said in ("No <tool> is needed, nor <tool_ca... \u00e9\u20ac.", '{"name": "divide"}', "<|user|>a</tool_call>"):
        contents = [bound.invoke("hi", logits_processor=says(said), strict=strict).content for strict in (None, False)]
        assert contents[0] == contents[1], "text is not bent"
    with pytest.raises(ValueError, match=r"strict=True, .* its calls have no tags"):
        other = tiny_tokenizer()
        other.chat_template = TEMPLATE.replace("<tool_call>", "").replace("</tool_call>", "")
        bare = ChatCopySpec(model=Engine(tiny_model(), other, name="bare"), max_tokens=9)
        bare.bind_tools([multiply], strict=True).invoke("hi")


def test_schemas_that_cannot_constrain(llm: ChatCopySpec, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("llguidance")
    odd = {"name": "odd", "description": "Odd.", "parameters": {"type": "object", "not": {"required": ["x"]}}}
    with pytest.raises(ValueError, match=r"strict=True, and the tools' schemas cannot constrain the call: .*not"):
        llm.bind_tools([odd], tool_choice="odd", strict=True).invoke("hi")
    caplog.set_level("INFO", "copyspec")
    script = says('{"name": "odd", "arguments": {"x": 1}}</tool_call>')
    answer = llm.bind_tools([odd], tool_choice="odd").invoke("hi", logits_processor=script)
    assert answer.tool_calls[0]["args"] == {"x": 1}
    assert "the JSON schema is followed without what cannot be enforced: " in caplog.text and "not" in caplog.text


def test_choices_that_cannot_be_meant_are_named(llm: ChatCopySpec) -> None:
    with pytest.raises(ValueError, match="tool_choice='divide' is none of the tools: multiply"):
        llm.bind_tools([multiply], tool_choice="divide").invoke("hi")
    unseen = llm.bind_tools([multiply], tool_choice="none").invoke("hi", logits_processor=says(CALL))
    assert unseen.tool_calls == [] and CALL in str(unseen.content)
    plain = tiny_tokenizer()
    without = ChatCopySpec(model=Engine(tiny_model(), plain, name="plain"), max_tokens=4)
    with pytest.raises(ValueError, match="tools are not supported"):
        without.bind_tools([multiply]).invoke("hi")


def test_tools_that_a_provider_runs_are_refused(llm: ChatCopySpec) -> None:
    with pytest.raises(ValueError, match=r"tools must be functions, .*; got {'type': 'web_search'}"):
        llm.bind_tools([multiply, {"type": "web_search"}]).invoke("hi")


def test_structured_output(llm: ChatCopySpec) -> None:
    script = '{"setup": "Why?", "punchline": "Because."}}</tool_call>'
    joke = llm.with_structured_output(Joke).invoke("a joke", logits_processor=says(script), strict=False)
    assert joke == Joke(setup="Why?", punchline="Because.")
    said = says("nonsense")
    raw = llm.with_structured_output(Joke, include_raw=True).invoke("a joke", logits_processor=said, strict=False)
    assert isinstance(raw, dict) and raw["parsed"] is None and raw["raw"].invalid_tool_calls


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_typed_dicts_are_read_as_dicts(llm: ChatCopySpec, method: Any) -> None:
    pytest.importorskip("llguidance")

    class Riddle(TypedDict):
        """A riddle."""

        question: str

    script = says('{"question": "Why?"}')
    assert llm.with_structured_output(Riddle, method=method).invoke("one", logits_processor=script) == {
        "question": "Why?"
    }


def test_an_agent_calls_its_tool_and_answers() -> None:
    agents = pytest.importorskip("langchain.agents")

    def write(prompt: str) -> str:
        return "It is 42." if "42" in prompt else CALL

    class Scripted(ChatCopySpec):
        def call_options(self, stop: object, kwargs: object) -> dict[str, object]:
            return {**super().call_options(stop, kwargs), "logits_processor": Script(write)}  # type: ignore[arg-type]

    agent = agents.create_agent(Scripted(model=engine(), max_tokens=200), [multiply])
    for answer in (
        agent.invoke({"messages": [HumanMessage("6 times 7?")]}),
        asyncio.run(agent.ainvoke({"messages": [HumanMessage("6 times 7?")]})),
    ):
        assert [message.type for message in answer["messages"]] == ["human", "ai", "tool", "ai"]
        assert answer["messages"][-1].content == "It is 42."
    streamed = [chunk for chunk, _ in agent.stream({"messages": [HumanMessage("6 times 7?")]}, stream_mode="messages")]
    assert "".join(str(chunk.content) for chunk in streamed if isinstance(chunk, AIMessageChunk)) == "It is 42."


@pytest.mark.parametrize("tools", [[], [multiply]], ids=["alone", "with tools"])
def test_an_agent_answers_in_a_schema(tools: list[Any]) -> None:
    pytest.importorskip("llguidance")
    agents = pytest.importorskip("langchain.agents")
    script = says('{"name": "Joke", "arguments": {"setup": "Why?", "punchline": "Because."}}')
    llm = ChatCopySpec(model=engine(), max_tokens=200, model_kwargs={"logits_processor": script})
    answer = agents.create_agent(llm, tools, response_format=Joke).invoke({"messages": [HumanMessage("a joke")]})
    assert answer["structured_response"] == Joke(setup="Why?", punchline="Because.")
    plain = ChatCopySpec(model=tiny_engine(name="plain"))
    with pytest.raises(ValueError, match="tools are not supported"):
        agents.create_agent(plain, tools, response_format=Joke).invoke({"messages": [HumanMessage("a joke")]})


def test_the_type_of_an_answer_is_a_message(llm: ChatCopySpec) -> None:
    assert isinstance(llm.bind_tools([]).invoke("hi", max_tokens=3), AIMessage)
