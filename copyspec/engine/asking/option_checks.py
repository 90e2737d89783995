"""Checks and parsing of single call options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from copyspec.common.checks import check_type, plain_value
from copyspec.engine.drafting.output_cache import OutputCache

if TYPE_CHECKING:
    from copyspec.drafters.custom import OwnDrafter

MAX_DIGITS = 18  # of a token id; more cost time to parse, and no vocabulary has them
DRAFTERS = ("auto", "copy", "model", "none")


def check_config(name: str, value: object) -> None:
    fits = isinstance(value, Mapping) or callable(getattr(value, "to_diff_dict", None))
    check_type(fits, name, value, "a transformers GenerationConfig, or a dict of its settings")


def check_cache(name: str, value: object) -> None:
    check_type(isinstance(value, OutputCache), name, value, "an OutputCache: copyspec.OutputCache('a namespace')")


def check_rendered(name: str, value: object) -> None:
    """Raise TypeError for anything but True, False and "auto"."""
    fits = isinstance(value, bool) or (isinstance(value, str) and value == "auto")
    check_type(fits, name, value, "True, False or 'auto'")


def check_tools(name: str, value: object) -> None:
    """Raise TypeError for anything but tools in OpenAI's format."""
    wanted = "{'type': 'function', 'function': {'name': ..., 'parameters': {...}}}"
    check_type(isinstance(value, (list, tuple)), name, value, f"a list of tools: [{wanted}]")
    assert isinstance(value, (list, tuple))
    for i, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        is_named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
        check_type(
            is_named, f"{name}[{i}]", tool, "{'type': 'function', 'function': {'name': ..., 'parameters': {...}}}"
        )


def check_choice(name: str, value: object) -> None:
    """Raise TypeError for anything but a choice of tools."""
    fits = value is None or isinstance(value, (str, bool, Mapping))
    check_type(fits, name, value, '"auto", "none", "required", the name of a tool, or OpenAI\'s form of one')


def check_constraint(json_schema: object, regex: object, choices: object, grammar: object) -> None:
    """Raise TypeError or ValueError for an invalid constraint, or for more than one."""
    given = {"json_schema": json_schema, "regex": regex, "choices": choices, "grammar": grammar}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} are given: an output has one constraint")
    fits = json_schema is None or isinstance(json_schema, (str, Mapping)) or hasattr(json_schema, "model_json_schema")
    check_type(fits, "json_schema", json_schema, "a mapping, a str of JSON or a pydantic class")
    for name, what in (("regex", "a regular expression"), ("grammar", "a grammar")):
        value = given[name]
        check_type(value is None or (isinstance(value, str) and bool(value)), name, value, f"a str with {what}")
    fits = choices is None or (
        isinstance(choices, (list, tuple)) and bool(choices) and all(isinstance(one, str) and one for one in choices)
    )
    check_type(fits, "choices", choices, "a list of strings, none of them empty")


def parse_drafters(given: object) -> tuple[str, tuple[OwnDrafter, ...]]:
    """The name of the built-in drafter ("own": none) and the caller's drafter factories, from a name, a factory or a
    list."""
    wanted = "'auto', 'copy', 'model', 'none', a function that makes a drafter, or a list of these"
    each = list(given) if isinstance(given, (list, tuple)) else [given]
    names = [one for one in each if isinstance(one, str)]
    own = tuple(one for one in each if not isinstance(one, str))
    makes = all(callable(one) or hasattr(one, "predictor") for one in own)
    check_type(bool(each) and makes and all(name in DRAFTERS for name in names), "drafter", given, wanted)
    if len(names) > 1 or ("none" in names and own):
        raise ValueError(
            f"drafter={given!r} holds {' and '.join(map(repr, names))}; a list holds one name, and not 'none'"
        )
    return names[0] if names else "own", own  # type: ignore[return-value]


def parse_draft_models(value: object, name: str = "draft_model") -> tuple[object, ...]:
    from copyspec.engine.drafting.draft_models import can_draft

    models = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for model in models:
        wanted = "a hub id, a folder, a transformers model, an Engine or 'layers:2'"
        check_type(can_draft(model), name, model, wanted)
    return models


def check_rule(name: str, value: object) -> None:
    """Raise TypeError for anything but a rule, and for a rule whose second model is none."""
    members = ("name", "model", "check", "uses_drafts", "picks")
    missing = [each for each in members if not hasattr(value, each)]
    wanted = "an object of copyspec.literature, such as MultiStep()"
    if 0 < len(missing) < len(members):
        wanted += f", or one of your own with all members of copyspec.verification.rule.Rule: it has no {missing[0]!r}"
    check_type(not missing and not isinstance(value, type), name, value, wanted)
    if (model := getattr(value, "model", None)) is not None:
        parse_draft_models(model, f"the model of {name}")


def parse_token_ids(value: object) -> frozenset[int]:
    value = plain_value(value)
    if value is None:
        return frozenset()
    check_type(isinstance(value, (list, tuple, set, frozenset)), "stop_token_ids", value, "a list of token ids")
    assert isinstance(value, Iterable)
    ids: list[int] = []
    for token in map(plain_value, value):
        whole = isinstance(token, int) and not isinstance(token, bool) and token >= 0
        check_type(whole, "stop_token_ids", token, "a list of token ids (for strings there is stop=)")
        assert isinstance(token, int)
        ids.append(token)
    return frozenset(ids)


def parse_bias(value: Any) -> Any:
    """`logit_bias` with integers as token ids: JSON has only strings as keys. What is no mapping stays, for a check."""
    if not isinstance(value, Mapping):
        return value
    biases: dict[object, object] = {}
    for key, bias in value.items():
        token = plain_value(key)
        if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) <= MAX_DIGITS:
            token = int(token)
        if token in biases:
            raise ValueError(f"logit_bias has two values for token id {token!r}: give one")
        biases[token] = plain_value(bias)
    return biases


def parse_callables(name: str, value: object) -> tuple[Any, ...]:
    if value is None:
        return ()
    items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        check_type(callable(item) and not isinstance(item, type), name, item, "an instance of it, or a list of them")
    return items
