"""Options of a command, declared where they are checked: fields of dataclasses (`copyspec.common.checks.option`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from types import GenericAlias
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with an option for each described field of its parameters that are dataclasses.

    The command itself gets the dataclasses, which check the values. `Annotated[Kind, "Title"]` is the panel of the help
    in which the options stand that name no other. Options are named as their fields, unless they have a name of their
    own; a flag without a default for "not given" has no second name that turns it off."""
    parameters: list[inspect.Parameter] = []
    kinds: dict[str, tuple[Any, dict[str, Field[Any]]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        is_annotated = get_origin(parameter.annotation) is Annotated
        kind, *titles = get_args(parameter.annotation) if is_annotated else (parameter.annotation,)
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints, described = get_type_hints(kind), [field for field in fields(kind) if "help" in field.metadata]
        made = [_parameter(field, hints[field.name], *titles) for field in described]
        parameters += made
        kinds[parameter.name] = kind, {option.name: field for option, field in zip(made, described, strict=True)}

    @wraps(command)
    def called(**values: Any) -> Any:
        for name, (kind, options) in kinds.items():
            values[name] = kind(**{field.name: _value(field, values.pop(option)) for option, field in options.items()})
        return command(**values)

    called.option_names = {  # type: ignore[attr-defined]
        name: option for kind, _ in kinds.values() for name, option in option_names(kind).items()
    }
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def option_names(kind: Any) -> dict[str, str]:
    """The options of a dataclass, by the names of its fields."""
    return {field.name: _name(field).partition("/")[0] for field in fields(kind) if "help" in field.metadata}


def _name(field: Field[Any]) -> str:
    named = (name for name in field.metadata["names"] if name.startswith("--"))
    return next(named, f"--{field.name.replace('_', '-')}")


def _parameter(field: Field[Any], hint: Any, title: str | None = None) -> inspect.Parameter:
    settings = {"rich_help_panel": title, **field.metadata}
    names, kind, own_name = settings.pop("names"), settings.pop("kind", None) or hint, _name(field)
    if get_origin(kind) is tuple:  # of several values of one kind
        kind = GenericAlias(list, get_args(kind)[:1]) | None
    if not names and kind is bool:
        names = (own_name,)
    name = own_name.partition("/")[0].removeprefix("--").replace("-", "_")
    default = None if field.default in (MISSING, ()) else field.default
    annotation = Annotated[kind, typer.Option(*names, **settings)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(field: Field[Any], value: Any) -> Any:
    return tuple(value or ()) if field.default == () else value
