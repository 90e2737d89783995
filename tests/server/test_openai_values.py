"""Values that OpenAI's API takes, and what clients of vLLM and llama.cpp expect of completions."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

import copyspec
from copyspec.server.endpoints import template_messages
from tests.helpers.texts import CHAT_TEMPLATE, byte_level, llama
from tests.server.test_server import ASKED, CHAT, MESSAGES, client, events, post

if TYPE_CHECKING:
    from copyspec import Engine

TEXTS = "/v1/completions"


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.7}, {"top_p": 0.5, "seed": -3}])
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("path", [CHAT, TEXTS])
async def test_samples_without_a_temperature_and_in_streams(
    engine: Engine, path: str, n: int, fields: dict[str, Any]
) -> None:
    prompts = ["The cat sat", "on the mat"]
    body = {**ASKED} if path == CHAT else {"prompt": prompts, "max_tokens": 8}
    body |= {"seed": 7, **fields, "n": n}
    whole = (await post(engine, path, body)).json()
    seed = body["seed"] % 2**64
    options = {**fields, "seed": seed, "n": n, "max_new_tokens": 8}
    asked: Any = MESSAGES if path == CHAT else prompts
    results = engine.generate(asked, **options)
    samples = [
        sample.text for result in (results if isinstance(results, list) else [results]) for sample in result.samples
    ]
    count = n if path == CHAT else 2 * n
    assert len(set(samples)) > 1

    def text(choice: Any) -> str:
        return str(choice["message"]["content"] if path == CHAT else choice["text"])

    assert [text(choice) for choice in whole["choices"]] == samples
    assert [choice["index"] for choice in whole["choices"]] == list(range(count))
    streamed = events(await post(engine, path, {**body, "stream": True, "stream_options": {"include_usage": True}}))
    texts, reasons = [""] * count, [None] * count
    for event in streamed[:-1]:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "") if path == CHAT else choice["text"]
        reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert texts == samples and reasons == [choice["finish_reason"] for choice in whole["choices"]]
    for name in ("prompt_tokens", "completion_tokens"):
        assert streamed[-1]["usage"][name] == whole["usage"][name]
    if path == CHAT:
        roles = [event["choices"][0]["index"] for event in streamed[:-1] if "role" in event["choices"][0]["delta"]]
        assert roles == list(range(n))


async def test_seeds_of_64_bits(engine: Engine) -> None:
    random_ = random.Random(2)
    seeds = [-1, 0, 1, -(2**63), 2**63 - 1, *[random_.randrange(-(2**63), 2**63) for _ in range(8)]]
    texts = []
    for seed in seeds:
        body = {**ASKED, "temperature": 1.5, "seed": seed}
        first, second = [(await post(engine, CHAT, body)).json()["choices"] for _ in range(2)]
        assert first == second
        texts.append(first[0]["message"]["content"])
    assert len(set(texts)) > len(texts) // 2


@pytest.mark.parametrize("temperature", [None, 0, 0.5, 1, 2])
async def test_a_top_p_of_zero_takes_the_likeliest_token(engine: Engine, temperature: float | None) -> None:
    expected = engine.generate(MESSAGES, max_new_tokens=8).text
    for seed in (1, 2):
        body = {**ASKED, "temperature": temperature, "top_p": 0, "seed": seed}
        assert (await post(engine, CHAT, body)).json()["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-12, 1e-8, 9e-7])
async def test_temperatures_that_clients_write_for_greedy(engine: Engine, temperature: float) -> None:
    expected = engine.generate(MESSAGES, max_new_tokens=8).text
    answer = await post(engine, CHAT, {**ASKED, "temperature": temperature})
    assert answer.json()["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": [str(i) for i in range(300)]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"temperature": 2.01}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 100.1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"references": 3}, "references"),
        ({"edit_source": {"a": 1}}, "edit_source"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": []}, "messages"),
        *(
            (
                {"messages": [*[{"role": "user", "content": "a"}] * at, {"role": role, "content": "a"}]},
                f"messages.[{at}].role",
            )
            for at, role in enumerate(("x", "user</s>", "User", "", "a.b(", "bot"))
        ),
        *(({"edit_source": wrong}, "edit_source") for wrong in (["a"], [None], [["a"]], [[1]], [])),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, "messages"),
        ({"stream_options": {"include_usage": False}}, "stream_options"),
    ],
)
async def test_errors_of_the_engine_name_the_field(engine: Engine, wrong: dict[str, object], field: str) -> None:
    answer = await post(engine, CHAT, {**ASKED, **wrong})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field, answer.text


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [{"input_ids": [1]}]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": "word " * 2000}, "prompt"),
        ({"tools": []}, None),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
    ],
)
async def test_errors_of_completions_name_the_field(
    engine: Engine, wrong: dict[str, object], field: str | None
) -> None:
    answer = await post(engine, TEXTS, {"prompt": "a", "max_tokens": 2, **wrong})
    assert answer.json().get("error", {}).get("param", "tools" if field is None else "") == (field or "tools")


FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|file_sep|>")


@pytest.fixture(scope="module")
def fim() -> Engine:
    tokenizer: PreTrainedTokenizerBase = deepcopy(byte_level(template=CHAT_TEMPLATE))
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in FIM[:2]])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in FIM[2:]])
    return copyspec.Engine(llama(len(tokenizer)), tokenizer, name="fim")


PROMPTS = [
    "<|fim_prefix|>def f():\n    return <|fim_suffix|>\n\nf()<|fim_middle|>",
    "<|fim_suffix|>b<|fim_prefix|>a<|fim_middle|>",
    "<|fim_prefix|><|fim_suffix|><|fim_middle|>",
    "a <|fim_middle|> é",
    "<|file_sep|>a.py\n<|fim_prefix|>x = <|fim_suffix|><|fim_middle|>",
    "<s><|user|>The cat<|assistant|>",
    "a</s>",
    "no tokens < | here |>",
    "<|fim_prefix",
    "\n<|fim_middle|>\n",
]


async def test_prompts_of_completions_hold_control_tokens(fim: Engine) -> None:
    answers = (await post(fim, TEXTS, {"prompt": PROMPTS, "max_tokens": 6})).json()["choices"]
    for prompt, choice in zip(PROMPTS, answers, strict=True):
        ids = fim.tokenizer(prompt)["input_ids"]
        expected = fim.generate(ids, max_new_tokens=6)
        assert choice["text"] == expected.text
        for fields in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
            answer = (await post(fim, TEXTS, {"prompt": prompt, "max_tokens": 6, **fields})).json()
            assert answer["usage"]["prompt_tokens"] == len(ids) and answer["choices"][0]["text"] == expected.text
        by_id = (await post(fim, TEXTS, {"prompt": ids, "max_tokens": 6, "add_special_tokens": False})).json()
        assert by_id["choices"][0]["text"] == expected.text


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_messages_of_chats_hold_none(fim: Engine, prompt: str) -> None:
    control = fim.tokenizer.convert_tokens_to_ids([*FIM, "<s>", "</s>", "<|user|>", "<|assistant|>"])
    bare = fim.codec.encode_chat([{"role": "user", "content": "a"}]).ids
    expected = sum(token in control for token in bare)
    for message in (
        {"role": "user", "content": prompt},
        {"role": "system", "content": [{"type": "text", "text": prompt}]},
    ):
        chat = [{"role": "user", "content": "a"}, message] if message["role"] == "user" else [message, *MESSAGES]
        ids = fim.codec.encode_chat(
            [{**turn, "content": prompt if turn is message else turn["content"]} for turn in chat]
        ).ids
        answer = (await post(fim, CHAT, {"messages": chat, "max_tokens": 2})).json()
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert sum(token in control for token in ids) <= 2 * expected + 2
        assert not {*fim.tokenizer.convert_tokens_to_ids(list(FIM))} & {*ids}


@pytest.mark.parametrize("path", [CHAT, TEXTS])
@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_that_end_the_output(fim: Engine, path: str, stream: bool) -> None:
    body: dict[str, Any] = {"max_tokens": 24, "stream": stream}
    body |= {"messages": MESSAGES} if path == CHAT else {"prompt": "The cat"}
    plain: Any = fim.generate(MESSAGES if path == CHAT else "The cat", max_new_tokens=24)
    for token in dict.fromkeys(plain.token_ids[2:]):
        end = plain.token_ids.index(token)
        answer = await post(fim, path, {**body, "stop_token_ids": [token]})
        choices = [event["choices"][0] for event in events(answer)] if stream else answer.json()["choices"]
        key = "delta" if stream else "message"
        texts = [choice[key].get("content") or "" if path == CHAT else choice["text"] for choice in choices]
        assert "".join(texts) == fim.codec.text_of(plain.token_ids[:end])
        assert choices[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", ["<|fim_prefix|>", ["<|fim_middle|>", "zzz"], ["</s>"]])
async def test_special_tokens_as_stop_strings(fim: Engine, stop: Any) -> None:
    first = stop if isinstance(stop, str) else stop[0]
    number = fim.tokenizer.convert_tokens_to_ids(first)
    body = {"prompt": PROMPTS[0], "max_tokens": 9, "logit_bias": {str(number): 100}, "stop": stop}
    for stream in (False, True):
        answer = await post(fim, TEXTS, {**body, "stream": stream})
        choices = [event["choices"][0] for event in events(answer)] if stream else answer.json()["choices"]
        assert ("".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]) == ("", "stop")


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "r", "strict": True, "schema": SCHEMA}},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
    ],
)
async def test_schemas_hold_in_every_form_that_clients_send(engine: Engine, form: dict[str, Any]) -> None:
    """OpenAI's, and those of llama.cpp and Together, whose schema stands beside the type."""
    pytest.importorskip("llguidance")
    answer = await post(engine, CHAT, {**ASKED, "max_tokens": 60, "response_format": form})
    assert json.loads(answer.json()["choices"][0]["message"]["content"])["a"] in (1, 2)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"content": "a", "reasoning": "b"}, {"content": "a", "reasoning_content": "b"}),
        ({"content": "a", "reasoning": "c", "reasoning_content": "b"}, {"content": "a", "reasoning_content": "b"}),
        (
            {"content": [{"type": "thinking", "thinking": "b"}, {"type": "text", "text": "a"}]},
            {"content": "a", "reasoning_content": "b"},
        ),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "b"}]}]},
            {"content": "", "reasoning_content": "b"},
        ),
    ],
)
async def test_earlier_messages_as_clients_give_them_back(
    engine: Engine, sent: dict[str, Any], meant: dict[str, Any]
) -> None:
    asked = [{"role": "user", "content": "Which?"}]
    fields = [{"role": "assistant", **message} for message in (sent, meant)]
    read = [template_messages([*asked, message, *asked]) for message in fields]
    for messages in read:
        messages[1].pop("reasoning", None)
    assert read[0] == read[1]
    for message in fields:
        assert (await post(engine, CHAT, {**ASKED, "messages": [*asked, message, *asked]})).status_code == 200


async def test_values_of_other_servers_that_change_nothing(engine: Engine) -> None:
    plain = (await post(engine, CHAT, ASKED)).json()["choices"]
    for fields in (
        {"add_generation_prompt": True, "ignore_eos": False, "min_tokens": 0},
        {"include_stop_str_in_output": False, "spaces_between_special_tokens": True},
    ):
        assert (await post(engine, CHAT, {**ASKED, **fields})).json()["choices"] == plain
    for name, value in {"add_generation_prompt": False, "ignore_eos": True, "min_tokens": 3}.items():
        answer = (await post(engine, CHAT, {**ASKED, name: value})).json()
        assert answer["error"]["param"] == name


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/health"])
async def test_addresses_that_are_asked_for_a_sign_of_life(engine: Engine, method: str, path: str) -> None:
    async with client(engine) as http:
        assert (await http.request(method, path)).status_code == 200
