"""JSON schemas as constraints: read from what callers give, closed, and without what the parser cannot enforce.

JSON Schema makes formats annotations, and lets a reader ignore keywords that it does not know. The parser (llguidance)
takes both for errors of the whole schema. Here they are left out, named in the log, and everything else is enforced.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from copyspec.common.checks import brief, cut
from copyspec.common.extras import install

logger = logging.getLogger(__name__)

MAX_OPTIONAL = 480
"""Optional properties of one object, of which each takes four alternatives of the parser."""

# Fix one style of white space: schemas do not restrict it, and a model free to write any amount may never stop.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_OPTIONS = "x-guidance"  # keyword with the parser's own options
_LENIENT = "lenient"  # the parser's option to pass over what it cannot enforce
_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # names to schemas
_OF_VALUES = ("enum", "const", "default", "examples", "example", "required", _OPTIONS)  # values, and no schemas

Schema = dict[str, Any]


def json_schema_of(value: object) -> object:
    """The schema as JSON data, from a mapping, a str of JSON, or a class with `model_json_schema` (pydantic)."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"json_schema is not JSON: {error}") from error
        except RecursionError:
            raise ValueError(f"json_schema is nested too deeply, got {brief(value)}") from None
    make = getattr(value, "model_json_schema", None)
    return closed(make()) if callable(make) else value


def closed(schema: object) -> object:
    """Forbid additional properties wherever a schema has properties and does not mention others."""

    def close(part: Schema) -> Schema:
        return {"additionalProperties": False, **part} if isinstance(part.get("properties"), dict) else part

    return _rewritten(schema, close)


def check_size(schema: object) -> None:
    """Raise ValueError for more optional properties than the parser can follow."""

    def check(part: Schema) -> Schema:
        properties, required = part.get("properties"), part.get("required")
        if isinstance(properties, dict):
            count = len(properties.keys() - (required if isinstance(required, list) else ()))
            if count > MAX_OPTIONAL:
                raise ValueError(f"an object has {count} optional properties, at most {MAX_OPTIONAL} can be")
        return part

    _rewritten(schema, check)


def followed(schema: object) -> object:
    """The schema, without what cannot be enforced; that is named in the log, once for a schema. One that is invalid
    stays invalid."""
    data = json.dumps(schema, allow_nan=False)
    reduced = _followed_data(data)
    return schema if reduced == data else json.loads(reduced)


@lru_cache(maxsize=64)  # calls come again and again with the same few schemas
def _followed_data(data: str) -> str:
    schema, dropped = _followed(json.loads(data))
    if dropped:
        logger.warning("the JSON schema is followed without what cannot be enforced: %s", "; ".join(map(cut, dropped)))
    return json.dumps(schema)


def why_no_schema(schema: object, *, strict: bool = True) -> str | None:
    """Why a JSON schema cannot constrain an output; None if it can. `strict`: every keyword must be enforced."""
    try:
        is_wrong, said = _validated(schema if strict else _followed(schema)[0])
    except (ImportError, TypeError, ValueError, RecursionError) as error:
        return first_line(str(error))
    return said[0] if is_wrong else None


def _followed(schema: object) -> tuple[object, list[str]]:
    is_wrong, _ = _validated(schema)
    if not is_wrong or not isinstance(schema, dict):
        return schema, []
    dropped = list[str]()
    rest = _rewritten(schema, lambda part: _without_patterns(part, dropped))
    assert isinstance(rest, dict)
    options = rest.get(_OPTIONS)
    lenient = {**rest, _OPTIONS: {_LENIENT: True, **(options if isinstance(options, dict) else {})}}
    is_wrong, said = _validated(lenient)
    return lenient, [] if is_wrong else list(dict.fromkeys([*dropped, *said]))


def _without_patterns(schema: Schema, dropped: list[str]) -> Schema:
    """A schema without regular expressions that the parser does not support: look-ahead, back-references. A name that
    such an expression would allow is an additional one then, so these are free. What nothing fits stays so."""
    if schema.get("not") in ({}, True):  # how zod writes what nothing fits
        return {"enum": []}
    changed = dict(schema)
    if _is_unsupported(schema.get("pattern")):
        dropped.append(f"pattern {changed.pop('pattern')!r}")
    named = schema.get("patternProperties")
    if isinstance(named, dict) and (lost := [pattern for pattern in named if _is_unsupported(pattern)]):
        dropped += [f"patternProperties {pattern!r}" for pattern in lost]
        changed["patternProperties"] = {key: value for key, value in named.items() if key not in lost}
        changed.pop("additionalProperties", None)
    return changed


def _is_unsupported(pattern: object) -> bool:
    """Whether the parser says so; one that is no regular expression at all is an error of the schema."""
    if not isinstance(pattern, str):
        return False
    is_wrong, said = _validated({"type": "string", "pattern": pattern})
    return is_wrong and any("support" in line for line in said)


def _validated(schema: object) -> tuple[bool, list[str]]:
    """Whether a schema is an error to the parser, and what it says about it."""
    matcher = library().LLMatcher
    is_wrong, said = matcher.validate_grammar_with_warnings(schema_grammar(json.dumps(schema, allow_nan=False)))
    return is_wrong, [" ".join(text.split()) for text in said]


def schema_grammar(data: str) -> str:
    """A schema, given as JSON, in the parser's language."""
    return library().LLMatcher.grammar_from_json_schema(data, defaults=JSON_STYLE)  # type: ignore[no-any-return]


def _rewritten(schema: object, change: Callable[[Schema], Schema]) -> object:
    """A schema after `change` of each schema in it, inner ones first."""
    if isinstance(schema, list):
        return [_rewritten(part, change) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inside = Schema()
    for name, value in schema.items():
        if name in _OF_SCHEMAS and isinstance(value, dict):
            inside[name] = {key: _rewritten(part, change) for key, part in value.items()}
        else:
            inside[name] = value if name in _OF_VALUES else _rewritten(value, change)
    return change(inside)


def library() -> Any:
    """llguidance. Raises ImportError with the way to install it."""
    try:
        import llguidance
    except ImportError as error:
        raise ImportError(
            f"json_schema=, regex=, choices= and grammar= need llguidance: {install('structured')}"
        ) from error
    return llguidance


def first_line(text: str) -> str:
    """The first line of a message that is not empty."""
    return cut(next((line.strip() for line in text.splitlines() if line.strip()), "unknown"))
