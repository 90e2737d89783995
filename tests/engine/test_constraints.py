"""Constrained output: valid, equal to plain constrained decoding, and faster where the grammar forces tokens."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import copyspec
from copyspec.literature import TopKGap, Typical
from tests.helpers.texts import new_engine

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def tiny() -> copyspec.Engine:
    return new_engine(5)


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Make a schema whose outputs are finite."""
    kind = rng.choice(["string", "integer", "boolean", "enum", *(["object", "array"] * 2 if depth else [])])
    if kind == "string":
        return {"type": "string", "maxLength": rng.randint(1, 8)}
    if kind == "integer":
        return {"type": "integer", "minimum": 0, "maximum": rng.choice([9, 99, 5000])}
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", "blue", "the cat", 7, None, True], 3)}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth - 1), "minItems": 1, "maxItems": 2}
    if kind == "object":
        names = rng.sample(["name", "age", "colour", "the mat", "school", "items"], rng.randint(1, 3))
        fields = {name: random_schema(rng, depth - 1) for name in names}
        return {"type": "object", "properties": fields, "required": names, "additionalProperties": False}
    return {"type": "boolean"}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Check independently whether a value matches a schema of `random_schema`."""
    if "enum" in schema:
        return any(value == item and type(value) is type(item) for item in schema["enum"])
    if schema["type"] == "object":
        fields = schema["properties"]
        return set(value) == set(fields) and all(fits(value[name], fields[name]) for name in fields)
    if schema["type"] == "array":
        return 1 <= len(value) <= 2 and all(fits(item, schema["items"]) for item in value)
    if schema["type"] == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    if schema["type"] == "integer":
        return type(value) is int and 0 <= value <= schema["maximum"]
    return type(value) is bool


@pytest.mark.parametrize("seed", range(4))
def test_schemas_give_valid_json_equal_to_plain(tiny: copyspec.Engine, seed: int) -> None:
    rng = random.Random(seed)
    passes = tokens = 0
    for _ in range(3):
        schema = random_schema(rng)
        options: dict[str, Any] = {"json_schema": schema, "max_new_tokens": 200}
        options |= rng.choice([{}, {"temperature": 1.0, "seed": seed}])
        plain = tiny.generate("the cat sat on", drafter="none", **options)
        result = tiny.generate("the cat sat on", **options)
        assert result.token_ids == plain.token_ids
        assert fits(json.loads(result.text), schema), (schema, result.text)
        passes, tokens = passes + result.stats.num_passes, tokens + len(result.token_ids)
    assert tokens > passes


def test_batches_streams_and_the_other_forms(tiny: copyspec.Engine) -> None:
    schema = json.dumps(
        {
            "type": "object",
            "properties": {"name": {"enum": ["the cat", "the sea"]}},
            "required": ["name"],
            "additionalProperties": False,
        }
    )
    results = tiny.generate(["a", "the mat", "b"], json_schema=schema, max_new_tokens=60)
    assert all(json.loads(result.text)["name"] in ("the cat", "the sea") for result in results)
    assert all(result.stats.num_passes < len(result.token_ids) for result in results)
    streamed = "".join(chunk.text for chunk in tiny.generate("a", json_schema=schema, max_new_tokens=60, stream=True))
    assert streamed == results[0].text
    chosen = tiny.generate("the cat", choices=['yes, "we" can', "no", "perhaps\nnot"], temperature=1.0, n=4)
    assert {sample.text for sample in chosen.samples} <= {'yes, "we" can', "no", "perhaps\nnot"}
    assert tiny.generate("the cat", choices=["a\x7f\\", "a\x7f\\u"]).text in ("a\x7f\\", "a\x7f\\u")
    matched = tiny.generate("the cat", regex=r"[0-9]{3}-[a-f]{2}", max_new_tokens=20, logprobs=2)
    assert re.fullmatch(r"[0-9]{3}-[a-f]{2}", matched.text) and matched.finish_reason == "stop"
    assert copyspec.compare("the cat", model=tiny, json_schema=schema, max_new_tokens=60).equal


def fresh_processor(engine: copyspec.Engine, regex: str) -> Any:
    from copyspec.engine.asking.call_options import check_options
    from copyspec.engine.logits.constraints import Constraints

    constraints = Constraints(engine.codec, engine.model.config.vocab_size)
    made = constraints.make(check_options({"regex": regex}), {1})
    assert made is not None
    return made.processor(0)


@pytest.mark.parametrize("rule", [Typical(), TopKGap()], ids=["typical", "top-k-gap"])
def test_lossy_rules_stay_in_the_grammar(tiny: copyspec.Engine, rule: Typical | TopKGap) -> None:
    """They score several branches of a tree, and a mask of one must not follow another."""
    options: dict[str, Any] = {"regex": "((the|a) (cat|sea) (sat|was) on ){4,9}", "max_new_tokens": 60}
    sampled: list[dict[str, Any]] = [{"temperature": 1.5, "seed": seed} for seed in range(6)]
    for sampling in sampled if isinstance(rule, Typical) else [{}]:
        result = tiny.generate("the cat sat on a sea was on the sea " * 3, rule=rule, **options, **sampling)
        processor, ids = fresh_processor(tiny, options["regex"]), torch.tensor([result.token_ids])
        for at, token in enumerate(result.token_ids):
            assert processor(ids[:, :at], torch.zeros(1, tiny.model.config.vocab_size))[0, token].isfinite(), (
                result.text
            )


def test_grammar_masks_of_branches_are_those_of_their_own_path(tiny: copyspec.Engine) -> None:
    def mask(processor: Any, text: str) -> list[bool]:
        ids = torch.tensor([tiny.tokenizer(text)["input_ids"]])
        return processor(ids, torch.zeros(1, size)).isfinite()[0].tolist()  # type: ignore[no-any-return]

    size = tiny.model.config.vocab_size
    regex = "the (cat sat|sea) on"
    processor = fresh_processor(tiny, regex)
    for text in ("", "the", "the cat", "the sea", "the cat s", "the ", "the sea o", "the cat sat on"):
        assert mask(processor, text) == mask(fresh_processor(tiny, regex), text), text


def test_the_page_runs_as_it_stands(tiny: copyspec.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```", page.partition("## Constraints")[2], re.DOTALL | re.MULTILINE)
    exec(code, {"engine": tiny})
    weather, chosen = capsys.readouterr().out.splitlines()
    assert json.loads(weather)["weather"] in ("sun", "rain") and chosen in ("sun", "rain")


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"regex": "a(("}, ValueError, "regex is not a valid grammar: "),
        ({"json_schema": {"type": "frob"}}, ValueError, "json_schema is not a valid grammar: Invalid type: frob"),
        ({"json_schema": "{"}, ValueError, "json_schema is not JSON: "),
        ({"json_schema": 5}, TypeError, "json_schema must be a mapping, a str of JSON or a pydantic class; got int: 5"),
        ({"regex": "a", "choices": ["a"]}, ValueError, "regex and choices are given: an output has one constraint"),
        ({"choices": "ab"}, TypeError, "choices must be a list of strings, none of them empty; got str: 'ab'"),
        ({"regex": "a", "ignore_eos": True}, ValueError, "regex needs a token that ends the output"),
        ({"choices": ["a"], "min_new_tokens": 9}, ValueError, "the grammar only allows tokens that another option"),
        ({"regex": re.compile("a")}, TypeError, "regex must be a str with a regular expression; got Pattern"),
    ],
)
def test_what_is_no_constraint(
    tiny: copyspec.Engine, options: dict[str, Any], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        tiny.generate("a", **options)


PROPERTIES = {f"p{i}": {"type": "integer"} for i in range(481)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"json_schema": "[" * 100_000}, r"json_schema is nested too deeply, got '\[\["),
        ({"json_schema": {"items": [{"properties": PROPERTIES}]}}, "481 optional properties, at most 480 can be"),
        ({"choices": [f"choice {i}" for i in range(1901)]}, "choices holds 1901 strings, and at most 1900 can be"),
        ({"grammar": "start: " + " | ".join(f'"{i}"' for i in range(2500))}, "after 1 tokens the grammar cannot be"),
    ],
    ids=["depth", "properties", "choices", "alternatives"],
)
def test_grammars_too_large_to_follow(tiny: copyspec.Engine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.generate("the cat", max_new_tokens=3, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "(" * 20_000},
        {"regex": "(" * 20_000 + ")" * 20_000},
        {"regex": "[" * 20_000},
        {"regex": "a{" * 9_000},
        {"regex": "(?P<a>" * 9_000},
        {"regex": "\\" + "q" * 20_000},
        {"regex": "(?" + "x" * 9_999 + ")"},
        {"regex": "\\p{" + "L" * 9_999 + "}"},
        {"regex": "é" * 9_999 + "("},
        {"grammar": "(" * 20_000},
        {"grammar": "start: " + "a" * 20_000},
        {"grammar": 'start: "' + "a" * 20_000},
        {"json_schema": {"type": "x" * 20_000}},
        {"json_schema": {"$ref": "#/" + "x" * 20_000}},
        {"json_schema": {"type": "string", "pattern": "(" * 20_000}},
        {"json_schema": {"type": "object", "properties": {"a": {"type": "x" * 20_000}}}},
        {"json_schema": "{" * 20_000},
    ],
    ids=lambda options: str(options)[:40],
)
def test_messages_about_long_constraints_are_cut(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))} ") as caught:
        new_engine().generate("the", max_new_tokens=1, **options)
    assert len(str(caught.value)) < 800
