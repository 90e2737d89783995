"""Tools and thoughts through `generate`: calls are constrained in each family's own syntax, and told apart in results
and streams, with drafts as without."""

from __future__ import annotations

import json
import logging
import random
from functools import cache, partial
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, set_seed

from copyspec import Engine
from tests.helpers.chat_templates import FAMILIES, HARMONY, tokenizer_of

pytestmark = pytest.mark.usefixtures("steady_drafts")

PAINT = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paints.",
        "parameters": {
            "type": "object",
            "properties": {
                "colour": {"enum": ["red", "blue"]},
                "coats": {"type": "integer", "minimum": 1, "maximum": 3},
                "twice": {"type": "boolean"},
            },
            "required": ["colour", "coats"],
        },
    },
}
WAIT = {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}}
NAMES = [*[name for name in FAMILIES if name != "gemma"], "harmony"]  # whose arguments no grammar describes
CHAT = [{"role": "user", "content": "The wall, please."}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


@cache
def engine_of(name: str) -> Engine:
    tokenizer = tokenizer_of(HARMONY if name == "harmony" else FAMILIES[name])
    set_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.25,
        bos_token_id=0,
        eos_token_id=1,
    )
    return Engine(LlamaForCausalLM(config).eval(), tokenizer, name=name)


class Says(LogitsProcessor):
    """Makes the model write a text as far as a constraint lets it; control tokens are written out in it."""

    def __init__(self, engine: Engine, text: str, *, ends: bool = True) -> None:
        tokenizer = engine.tokenizer
        self.tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"], *[tokenizer.eos_token_id] * ends]
        self.ends, self.start = ends, 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.start = self.start or input_ids.shape[1]
        place = input_ids.shape[1] - self.start
        if place < len(self.tokens) or self.ends:
            scores = scores.clone()
            scores[:, self.tokens[min(place, len(self.tokens) - 1)]] += 1e4
        return scores  # type: ignore[return-value]


SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_held_to_a_schema_may_be_a_call_instead(name: str) -> None:
    """As agents ask for it; where no grammar holds both, that is an error with its way out."""
    pytest.importorskip("llguidance")
    engine: Any = engine_of(name)
    thought = "</think>\n" if name == "glm" else ""

    def says(text: str, **options: Any) -> Any:
        processors = [Ends(engine), Says(engine, text, ends=bool(text) and text != thought)]
        return engine.generate(CHAT, tools=[PAINT, WAIT], max_new_tokens=400, logits_processor=processors, **options)

    try:
        answer = says(f'{thought}{{"sum": 3}}', json_schema=SUM)
    except ValueError as error:
        assert "a call cannot be allowed beside it" in str(error) and 'tool_choice="none"' in str(error)
        assert name == "harmony", error
        return
    assert json.loads(answer.content) == {"sum": 3} and not answer.tool_calls
    wanted = {"name": "paint", "arguments": {"colour": "red", "coats": 2, "twice": True}}
    written_call = {
        "type": "function",
        "id": "functions.paint:0" if name == "kimi-ids" else "abcdefghi",
        "function": wanted,
    }
    turn = {"role": "assistant", "content": "", "tool_calls": [written_call]}
    show = partial(engine.tokenizer.apply_chat_template, tools=[PAINT, WAIT], tokenize=False)
    before, whole = show(CHAT, add_generation_prompt=True).removesuffix("<think>\n"), show([*CHAT, turn])
    assert whole.startswith(before)
    written = whole[len(before) :].removesuffix("<|im_end|>\n").strip()
    called = says(thought + written.partition(thought)[2] if thought else written, json_schema=SUM)
    (call,) = called.tool_calls
    assert call.name == "paint" and (
        call.arguments == wanted["arguments"] or name == "glm"
    )  # which may space otherwise
    other = says(f"{thought}Well,", json_schema=SUM)
    assert other.tool_calls or json.loads(other.content)
    shown = says(f'{thought}{{"sum": 3}}', json_schema=SUM, tool_choice="none")
    assert json.loads(shown.content) == {"sum": 3}


@pytest.mark.parametrize("choice", ["required", "paint", {"type": "function", "function": {"name": "paint"}}])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_must_be_made_fits_a_tool(name: str, choice: object) -> None:
    """Of a model with random weights, which would write anything; those that think first are told to begin at once."""
    pytest.importorskip("llguidance")
    engine: Any = engine_of(name)
    begins = {"glm": "</think>\n", "harmony": "<|channel|>commentary to=functions."}.get(name, "")
    outputs = []
    for options in ({}, {"drafter": "none"}):
        result = engine.generate(
            CHAT,
            tools=[PAINT, WAIT],
            tool_choice=choice,
            max_new_tokens=400,
            logits_processor=[Ends(engine), Says(engine, begins, ends=False)],
            **options,
        )
        (call,) = result.tool_calls
        assert not result.parts.invalid and not result.content.strip()
        if call.name == "paint":
            assert call.arguments["colour"] in ("red", "blue") and call.arguments["coats"] in (1, 2, 3)
            assert set(call.arguments) <= {"colour", "coats", "twice"}
        else:
            assert choice == "required" and (call.name, call.arguments) == ("wait", {})
        outputs.append(result.token_ids)
    assert outputs[0] == outputs[1]


class Ends(LogitsProcessor):
    """Favours what ends texts: closing tags, quotes and control tokens."""

    def __init__(self, engine: Engine) -> None:
        added = engine.tokenizer.get_added_vocab()
        self.ids = [
            token for text, token in added.items() if text not in ("<s>", "<|user|>", "<|assistant|>", "<|system|>")
        ]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        scores = scores.clone()
        scores[:, self.ids] += 50.0
        return scores  # type: ignore[return-value]


SAID = {
    "hermes": '<tool_call>\n{"name": "paint", "arguments": {"colour": "green"}}\n</tool_call>',
    "qwen-coder": "<tool_call>\n<function=paint>\n<parameter=colour>\ngreen\n</parameter>\n</function>\n</tool_call>",
    "glm": "</think>\n<tool_call>paint\n<arg_key>colour</arg_key>\n<arg_value>green</arg_value>\n</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "paint", "arguments": {"colour": "red", "coats": 1}}]',
    "mistral-named": '[TOOL_CALLS]paint[ARGS]{"colour": "green"}',
    "kimi": '<|section_begin|><|call_begin|>functions.paint:0<|argument|>{"colour": "green"}<|call_end|>',
    "deepseek": '<|calls_begin|><|call_begin|>paint<|sep|>{"colour": "green"}<|call_end|><|calls_end|>',
    "minimax": '<m:tool_call><invoke name="paint"><parameter name="colour">green</parameter></invoke></m:tool_call>',
    "attributes": '<｜M｜calls><｜M｜invoke name="paint"><｜M｜parameter name="colour" string="true">'
    "green</｜M｜parameter></｜M｜invoke></｜M｜calls>",
}


@pytest.mark.parametrize("name", SAID)
def test_a_call_that_the_model_begins_fits_a_tool(name: str) -> None:
    """There is no green, and coats are missing: the text before is the model's own, the call is bent to the schema."""
    pytest.importorskip("llguidance")
    engine: Any = engine_of(name)
    text = "" if name == "glm" else "Let me see. "
    outputs = []
    for options in ({}, {"drafter": "none"}):
        result = engine.generate(
            CHAT, tools=[PAINT, WAIT], max_new_tokens=300, logits_processor=[Says(engine, text + SAID[name])], **options
        )
        call = result.tool_calls[0]
        assert call.name == "paint" and result.content.startswith(text.strip())
        assert call.arguments["colour"] in ("red", "blue") and isinstance(call.arguments.get("coats"), int)
        outputs.append(result.token_ids)
    assert outputs[0] == outputs[1]
    if name == "mistral":  # whose list, once bent, may go on for long
        return
    free = engine.generate(
        CHAT, tools=[PAINT], strict=False, max_new_tokens=150, logits_processor=Says(engine, SAID[name])
    )
    assert dict(free.tool_calls[0].arguments) == {"colour": "green"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("said", ["No call <is needed, [nor] {wanted}.", "é€ </tool", "A <think> is no thought."])
def test_other_answers_are_not_bent(name: str, said: str) -> None:
    pytest.importorskip("llguidance")
    engine: Any = engine_of(name)
    text = {"glm": "</think>", "harmony": "<|channel|>final<|message|>"}.get(name, "") + said
    for options in ({}, {"strict": False}, {"drafter": "none"}):
        result = engine.generate(CHAT, tools=[PAINT], max_new_tokens=60, logits_processor=Says(engine, text), **options)
        assert (result.content, result.tool_calls, result.parts.invalid) == (said, (), ())


@pytest.mark.parametrize(("name", "enforced"), [("glm", False), ("harmony", False), ("hermes", True)])
def test_a_choice_that_nothing_enforces_is_named(name: str, enforced: bool, caplog: pytest.LogCaptureFixture) -> None:
    engine: Any = engine_of(name)
    engine.generate(CHAT, tools=[PAINT], tool_choice="paint", strict=False, max_new_tokens=2)
    assert ("tool_choice='paint' is not enforced" in caplog.text) != enforced


STREAMED = {
    "hermes": 'Well. <tool_call>{"name": "wait", "arguments": {}}</tool_call>',
    "qwen3": '<think>\nWhat?\n</think>\n\nWell. <tool_call>{"name": "wait", "arguments": {}}</tool_call>',
    "glm": "What?</think>\n\nWell. <tool_call>wait\n</tool_call>",
    "mistral-named": "Well. [TOOL_CALLS]wait[ARGS]{}",
    "harmony": "<|channel|>analysis<|message|>What?<|end|><|start|>assistant<|channel|>final<|message|>Well.",
    "python": "[wait()]",
}


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("stop", [None, ["zzz", "l"]])
def test_streams_have_the_parts_of_results(name: str, stop: list[str] | None) -> None:
    engine: Any = engine_of(name)
    options: dict[str, object] = {"tools": [WAIT], "max_new_tokens": 80, "strict": False, "stop": stop}
    whole = engine.generate(CHAT, logits_processor=Says(engine, STREAMED[name]), **options)
    chunks = list(engine.generate(CHAT, stream=True, logits_processor=Says(engine, STREAMED[name]), **options))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert "".join(chunk.content for chunk in chunks) == whole.content
    assert "".join(chunk.reasoning for chunk in chunks) == whole.reasoning
    assert chunks[-1].result.tool_calls == whole.tool_calls
    if stop is None:
        assert whole.reasoning == ("What?" if "What?" in STREAMED[name] else "")
        assert whole.content == ("Well." if "Well." in STREAMED[name] else "")
        assert bool(whole.tool_calls) == ("wait" in STREAMED[name])
        assert whole.parts.num_reasoning_tokens >= 2 * bool(whole.reasoning)
    assert whole.to_dict()["content"] == whole.content


@pytest.mark.parametrize("name", ["qwen3", "glm", "harmony", "gemma"])
@pytest.mark.parametrize("constraint", [{"json_schema": SCHEMA}, {"regex": "[0-9]{3}"}, {"choices": ["yes", "no"]}])
def test_constraints_begin_behind_the_thought(name: str, constraint: dict[str, object]) -> None:
    pytest.importorskip("llguidance")
    engine: Any = engine_of(name)
    thought = "So {many} words, 12 <b>."
    said = {
        "qwen3": f"<think>\n{thought}\n</think>\n\nand then",
        "glm": f"{thought}</think>\n\nand then",
        "gemma": f"<|channel>thought\n{thought}\n<channel|>and then",
        "harmony": f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>and",
    }[name]
    outputs = []
    for options in ({}, {"drafter": "none"}):
        result = engine.generate(CHAT, max_new_tokens=120, logits_processor=Says(engine, said), **constraint, **options)
        assert result.reasoning == thought
        assert result.content in ('{"a": 1}', '{"a": 2}', "yes", "no") or (
            len(result.content),
            result.content.isdigit(),
        ) == (3, True)
        outputs.append(result.token_ids)
    assert outputs[0] == outputs[1]
    if name == "qwen3" and "json_schema" in constraint:  # which may leave the thought out
        plain = engine.generate(CHAT, max_new_tokens=40, logits_processor=Says(engine, "{"), **constraint)
        assert plain.reasoning == "" and plain.text == plain.content


def test_rows_of_a_batch_have_formats_of_their_own() -> None:
    engine: Any = engine_of("qwen3")
    results = engine.generate(
        [CHAT, [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<think>\na"}], "no chat"],
        max_new_tokens=6,
    )
    assert [bool(result._parts) for result in results] == [True, True, False]
    assert results[2].content == results[2].text and results[1].reasoning == results[1].text.strip()


def test_what_cannot_be_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    engine: Any = engine_of("hermes")
    with pytest.raises(ValueError, match="tool_choice='divide' is none of the tools: paint"):
        engine.generate(CHAT, tools=[PAINT], tool_choice="divide")
    with pytest.raises(ValueError, match="tool_choice='required' needs tools"):
        engine.generate(CHAT, tool_choice="required")
    with pytest.raises(TypeError, match=r"tools\[0\] must be {'type': 'function'"):
        engine.generate(CHAT, tools=[{"name": "paint"}])
    with pytest.raises(ValueError, match="tools= is read by chat templates, and prompt 0 is no chat"):
        engine.generate("The wall.", tools=[PAINT])
    with pytest.raises(ValueError, match="chat_template_kwargs= is read by chat templates"):
        engine.generate([1, 2, 3], chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(ValueError, match="tools are not supported"):
        Engine(engine.model, _without_tools(engine)).generate(CHAT, tools=[PAINT])
    pytest.importorskip("llguidance")
    with pytest.raises(ValueError, match="strict=True, and the tools' schemas cannot constrain the call"):
        engine_of("python").generate(CHAT, tools=[PAINT], strict=True, max_new_tokens=2)  # type: ignore[call-overload]
    with caplog.at_level(logging.INFO, "copyspec"):
        engine_of("llama").generate(CHAT, tools=[PAINT], max_new_tokens=2)  # type: ignore[call-overload]
    assert "tool calls are not constrained by the tools' schemas: its calls have no tags" in caplog.text


def _without_tools(engine: Engine) -> Any:
    tokenizer: Any = tokenizer_of(FAMILIES["hermes"])
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return tokenizer


def test_tools_that_are_not_to_be_called_are_not_shown() -> None:
    engine: Any = engine_of("hermes")
    hidden, without = (
        engine.generate(CHAT, max_new_tokens=2, **options)
        for options in ({"tools": [PAINT], "tool_choice": "none"}, {})
    )
    assert hidden.prompt_tokens == without.prompt_tokens


def test_variables_of_an_engine_hold_for_all_its_chats() -> None:
    tokenizer = tokenizer_of(FAMILIES["qwen3"])
    tokenizer.chat_template = "{{ messages[0].content }}{{ mood }}<think></think>"  # type: ignore[assignment]
    engine = Engine(engine_of("qwen3").model, tokenizer)
    engine.chat_template_kwargs = {"mood": " gladly"}
    whole, filled = (engine.generate(CHAT, max_new_tokens=1, chat_template_kwargs=own) for own in ({}, {"mood": ""}))  # type: ignore[call-overload]
    assert whole.prompt_tokens > filled.prompt_tokens
    with pytest.raises(ValueError, match="chat_template_kwargs holds 'messages'"):
        engine.chat_template_kwargs = {"messages": []}


LEAVES: list[tuple[dict[str, object], list[object]]] = [
    ({"enum": ["u", "v"]}, ["u", "v"]),
    ({"enum": [1, 2]}, [1, 2]),
    ({"const": True}, [True]),
    ({"const": "w"}, ["w"]),
    ({"type": "boolean"}, [True, False]),
    (
        {"type": "object", "properties": {"k": {"enum": ["u"]}}, "required": ["k"], "additionalProperties": False},
        [{"k": "u"}],
    ),
    ({"type": "array", "items": {"enum": [3]}, "minItems": 1, "maxItems": 1}, [[3]]),
]
ROOTS: list[dict[str, object]] = [
    {"type": "object"},
    {},
    {"type": ["object", "null"]},
    {"type": "object", "description": "It is."},
]


def written_anew(rng: random.Random) -> tuple[dict[str, Any], dict[str, list[object]]]:
    """A tool's parameters, written in one of the ways that a class with such fields comes in, and what each allows."""
    properties: dict[str, object] = {}
    allowed: dict[str, list[object]] = {}
    definitions: dict[str, object] = {}
    keyword = rng.choice(["$defs", "definitions"])
    for name in rng.sample("abcde", rng.randint(1, 4)):
        leaf, allowed[name] = rng.choice(LEAVES)
        for depth in range(rng.randrange(3)):
            if rng.random() < 0.7:
                definitions[f"{name}{depth}"] = leaf
                leaf = {"$ref": f"#/{keyword}/{name}{depth}"}
            else:
                leaf = {"allOf": [leaf]}
        properties[name] = {"description": "One.", **leaf} if rng.random() < 0.3 else leaf
    parameters = {**rng.choice(ROOTS), "properties": properties, "required": [*properties]}
    return parameters | ({keyword: definitions} if definitions else {}), allowed


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_holds_however_it_is_written(name: str) -> None:
    """Behind references, without a type, as a constant: in each syntax the arguments have the values and types meant,
    and a schema that allows more than objects makes no call whose arguments are none."""
    pytest.importorskip("llguidance")
    engine: Any = engine_of(name)
    begins = {
        "glm": "</think>\n", "harmony": "<|channel|>commentary to=functions.", "minimax": "<m:tool_call>",
            "attributes": "<｜M｜calls>",
    }.get(name, "")  # fmt: skip
    for seed in range(8):
        parameters, allowed = written_anew(random.Random(f"{name}{seed}"))
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        result = engine.generate(
            CHAT,
            tools=[tool, WAIT] if seed % 2 else [tool],
            tool_choice="f",
            max_new_tokens=400,
            logits_processor=[Ends(engine), Says(engine, begins, ends=False)],
        )
        (call,) = result.tool_calls
        assert call.arguments.keys() == allowed.keys(), (parameters, call)
        for key, value in call.arguments.items():
            assert any(
                value == allowed_value and type(value) is type(allowed_value) for allowed_value in allowed[key]
            ), (parameters, key, value)
