"""Schemas with keywords that cannot be enforced: these are named once, everything else is enforced."""

from __future__ import annotations

import datetime
import decimal
import ipaddress
import json
import logging
import pathlib
import random
import uuid
from typing import Annotated, Any, Literal

import pytest
from pydantic import ConfigDict, Field, HttpUrl, SecretBytes, SecretStr, create_model

import copyspec
from copyspec.engine.asking.call_options import check_options
from copyspec.engine.logits import json_schemas
from copyspec.engine.logits.constraints import Constraints, why_no_schema
from copyspec.engine.logits.json_schemas import closed, followed, json_schema_of
from tests.helpers.texts import engine

pytest.importorskip("llguidance")


@pytest.fixture(autouse=True)
def unseen() -> None:
    """Schemas are named in the log once in a process."""
    json_schemas._followed_data.cache_clear()


def allows(schema: object, value: object) -> bool:
    """Whether an output constrained by the schema can be this value."""
    constraints = Constraints(engine().codec, engine().model.config.vocab_size)
    constraint = constraints.make(check_options({"json_schema": schema}), {1})
    assert constraint is not None
    matcher = constraint._matcher
    tokens = engine().codec.encode(json.dumps(value)).ids
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


LOOKAHEAD = r"^(?!a)[a-c]{1,2}$"
LEFT_OUT: list[tuple[dict[str, Any], list[object], list[object], list[str]]] = [
    ({"type": "string", "format": "path", "maxLength": 3}, ["a/b"], ["a/bc", 5], ["path"]),
    ({"type": "string", "format": "zz", "pattern": "^ab?$"}, ["ab", "a"], ["b"], ["zz"]),
    (
        {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 2},
        [["a", "a"], []],
        [["c"], ["a", "b", "a"]],
        ["uniqueItems"],
    ),
    ({"type": "string", "pattern": LOOKAHEAD, "maxLength": 4}, ["abcd"], ["abcde"], [LOOKAHEAD]),
    ({"type": "string", "pattern": r"(a|b)\1"}, ["ab"], [5], ["pattern"]),
    ({"type": "string", "pattern": r"^\bfoo\b$", "minLength": 2}, ["xy"], ["x"], ["pattern"]),
    ({"type": "integer", "not": {"const": 3}, "minimum": 2}, [3, 4], [1, "3"], ["not"]),
    ({"anyOf": [{"type": "string", "format": "binary"}, {"type": "null"}]}, ["x", None], [5], ["binary"]),
    ({"allOf": [{"type": "string", "format": "x"}, {"maxLength": 2}]}, ["ab"], ["abc"], ["x"]),
    (
        {"$defs": {"A": {"type": "string", "format": "q", "enum": ["u", "v"]}}, "$ref": "#/$defs/A"},
        ["u"],
        ["w"],
        ["q"],
    ),
    (
        {
            "type": "object",
            "properties": {
                "a": {"type": "array", "items": {"type": "string", "format": "password"}},
                "b": {"const": 1},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
            "propertyNames": {"maxLength": 9},
            "dependentRequired": {"a": ["b"]},
        },
        [{"a": ["x"], "b": 1}],
        [{"a": ["x"], "b": 2}, {"a": ["x"]}, {"a": [1], "b": 1}, {"a": [], "b": 1, "c": 1}],
        ["password", "propertyNames", "dependentRequired"],
    ),
    (
        {
            "type": "object",
            "patternProperties": {"^x": {"type": "integer"}, "^(?=y)": {}},
            "additionalProperties": False,
        },
        [{"x1": 5}, {"y": "s"}],
        [{"x1": "s"}],
        ["^(?=y)"],
    ),
    ({"if": {"const": 1}, "then": {}, "type": ["integer", "null"]}, [1, None], ["a"], ["if", "then"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, [1, 2.5], ["a"], ["oneOf"]),
    ({"contains": {"const": 1}, "type": "array", "maxItems": 1}, [[2]], [[1, 2]], ["contains"]),
]


@pytest.mark.parametrize(("schema", "allowed", "refused", "named"), LEFT_OUT, ids=range(len(LEFT_OUT)))
def test_what_cannot_be_enforced_is_named_and_the_rest_is_enforced(
    schema: dict[str, Any],
    allowed: list[object],
    refused: list[object],
    named: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert all(allows(schema, value) for value in allowed)
    assert not any(allows(schema, value) for value in refused)
    caplog.clear()
    inside = {"type": "object", "properties": {"deep": schema}, "required": ["deep"], "additionalProperties": False}
    if "$ref" in schema:
        inside = {**inside, "properties": {"deep": {"$ref": schema["$ref"]}}, "$defs": schema["$defs"]}
    assert all(allows(inside, {"deep": value}) for value in allowed[:1])
    assert not any(allows(inside, {"deep": value}) for value in refused)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(set(lines)) == 1 and all(name in lines[0] for name in named)
    assert why_no_schema(schema) is not None and why_no_schema(schema, strict=False) is None


TYPES: dict[str, tuple[object, object, object]] = {
    "path": (pathlib.Path, "a/b", 1),
    "tags": (Annotated[set[Literal["a", "b"]], Field(max_length=2)], ["a"], ["c"]),
    "id": (uuid.UUID, "123e4567-e89b-12d3-a456-426614174000", "x"),
    "address": (ipaddress.IPv4Address, "10.0.0.1", "x"),
    "network": (ipaddress.IPv4Network, "10.0.0.0/8", 1),
    "price": (decimal.Decimal, 1.5, True),
    "lasts": (datetime.timedelta, "P1D", "x"),
    "secret": (SecretStr, "s", 1),
    "key": (SecretBytes, "s", 1),
    "when": (datetime.datetime, "2024-01-02T03:04:05Z", "x"),
    "raw": (bytes, "s", 1),
    "link": (HttpUrl, "http://a.b/", 1),
    "frozen": (frozenset[int], [1], ["x"]),
    "code": (Annotated[str, Field(pattern=r"^(?!0)[0-9]{2}$")], "10", 10),
}
"""By field: a type, a value of it, and one that is not."""

CONFIG = ConfigDict(regex_engine="python-re")
Everyday = create_model("Everyday", __config__=CONFIG, **{name: (kind, ...) for name, (kind, _, _) in TYPES.items()})  # type: ignore[call-overload]


@pytest.mark.parametrize("name", TYPES)
def test_everyday_types_of_pydantic(name: str) -> None:
    kind, right, wrong = TYPES[name]
    one = create_model("One", __config__=CONFIG, **{name: (kind, ...)})  # type: ignore[call-overload]
    assert allows(one, {name: right}) and not allows(one, {name: wrong}) and not allows(one, {name: right, "more": 1})
    one.model_validate({name: right})
    listed = create_model("Listed", ones=(dict[str, list[one]], ...))  # type: ignore[valid-type]
    assert allows(listed, {"ones": {"x": [{name: right}]}}) and not allows(listed, {"ones": {"x": [{name: wrong}]}})


def test_a_class_with_all_of_them_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert allows(Everyday, {name: right for name, (_, right, _) in TYPES.items()})
    allows(Everyday, {})
    (line,) = [record.getMessage() for record in caplog.records]
    assert all(word in line for word in ("path", "uniqueItems", "password", "(?!0)"))


def spoilt(schema: object, rng: random.Random) -> object:
    """The schema with keywords that cannot be enforced at random places."""
    if not isinstance(schema, dict):
        return schema
    inside = {
        key: {name: spoilt(part, rng) for name, part in value.items()} if key == "properties" else spoilt(value, rng)
        for key, value in schema.items()
    }
    more: list[dict[str, object]] = [
        {},
        {"uniqueItems": True},
        {"not": {"const": "never"}},
        {"format": rng.choice(["path", "binary", "my-format"])} if schema.get("type") == "string" else {},
        {"pattern": rng.choice([r"(?!x)", r"(.)\1", r"\b"])} if schema.get("type") == "string" else {},
        {"propertyNames": {"pattern": "a"}},
        {"contentEncoding": "base64"},
    ]
    return {**inside, **rng.choice(more)}


@pytest.mark.parametrize("seed", range(40))
def test_spoilt_schemas_constrain_as_their_sound_ones(seed: int) -> None:
    from tests.engine.test_constraints import fits, random_schema

    rng = random.Random(seed)
    schema = random_schema(rng)
    result = engine().generate(
        "the cat", json_schema=spoilt(schema, rng), max_new_tokens=200, temperature=1.0, seed=seed
    )
    assert fits(json.loads(result.text), schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "frob", "format": "path"}, "Invalid type: frob"),
        ({"type": "string", "pattern": "a((", "format": "path"}, "regex parse error"),
        ({"type": "string", "pattern": 5}, "Expected string for 'pattern'"),
        ({"$ref": "http://x/y", "uniqueItems": True}, "http://x/y"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "nsatisfiable"),
    ],
)
def test_what_is_wrong_stays_an_error(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"json_schema is not a valid grammar: .*{message}"):
        engine().generate("a", json_schema=schema)
    assert why_no_schema(schema) and message in str(why_no_schema(schema, strict=False))


def test_sound_schemas_stay_as_they_are_and_strictness_can_be_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    sound = {"type": "object", "properties": {"format": {"enum": [{"format": "path", "pattern": "(?!a)"}]}}}
    assert followed(sound) is sound and not caplog.records
    strict = {"type": "string", "format": "path", "x-guidance": {"lenient": False}}
    with pytest.raises(ValueError, match="Unknown format: path"):
        engine().generate("a", json_schema=strict)


def test_only_schemas_are_closed() -> None:
    """Not the table of properties with the name `properties`, nor values that look like schemas."""
    looks = {"properties": {"a": 1}}
    schema = {"properties": {"properties": {"type": "object", "default": looks}, "b": {"enum": [looks]}}}
    assert closed(schema) == {**schema, "additionalProperties": False}
    nested = create_model("Nested", properties=(dict[str, int], ...))
    assert allows(nested, {"properties": {"a": 1}}) and not allows(nested, {"properties": {"a": 1}, "b": 1})
    assert json_schema_of(nested)["additionalProperties"] is False  # type: ignore[index]
    assert copyspec.generate("a", model=engine(), json_schema={"const": looks}, max_new_tokens=60).text == json.dumps(
        looks
    )


@pytest.mark.parametrize("nothing", [{"not": {}}, {"not": True}, {"not": {}, "description": "None."}, False])
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_schema_that_nothing_fits_is_no_choice(
    nothing: object, keyword: str, caplog: pytest.LogCaptureFixture
) -> None:
    """zod's optional members of unions, between the others and inside of them."""
    inner = {keyword: [nothing, {"enum": ["x"]}]}
    schema = {"type": "object", "properties": {"a": {"anyOf": [inner, {"type": "null"}]}}, "required": ["a"]}
    assert allows(schema, {"a": "x"}) and allows(schema, {"a": None})
    assert not any(allows(schema, {"a": value}) for value in ("y", 4, True, {}, []))
    assert not caplog.records
