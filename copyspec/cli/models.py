"""`copyspec models`: which models have short names, which are here, and how to get one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from copyspec.cli.common import UsageError

_OTHERS = "Any folder, GGUF file or hub repository can be named too, by --model or COPYSPEC_MODEL."

models = typer.Typer(help="List models that have short names, or fetch one.", no_args_is_help=False)


@models.callback(invoke_without_command=True)
def list_models(context: typer.Context) -> None:
    # Without a docstring: the group's own help stands above the commands.
    if context.invoked_subcommand is not None:
        return
    from copyspec.models.aliases import ALIASES, ways_to_get
    from copyspec.models.loading import BUNDLED, DEFAULT, LoadError, choose_default
    from copyspec.models.resolve import is_here

    size = sum(path.stat().st_size for path in BUNDLED.glob("*.*"))
    _row(DEFAULT, size, size > 0, "comes with the package; corrects and quotes English")
    for alias in ALIASES.values():
        here = is_here(alias)
        _row(alias.name, alias.download, here, alias.about)
        typer.echo(f"{'':<29}{alias.license}; {alias.hub}")
        if not here:
            typer.echo(f"{'':<29}{ways_to_get(alias)}")
    try:
        chosen = choose_default()
    except LoadError:
        chosen = "none"
    typer.echo(f"\nWithout --model: {DEFAULT if chosen == str(BUNDLED) else chosen}. {_OTHERS}")


@models.command()
def fetch(name: Annotated[str, typer.Argument(help="A name that `copyspec models` prints.")]) -> None:
    """Download a model into the cache folder, once."""
    from copyspec.models.aliases import ALIASES
    from copyspec.models.resolve import fetch

    if name not in ALIASES:
        raise UsageError(f"{name!r} is none of the models that can be fetched: {', '.join(ALIASES)}")
    from copyspec.cli.common import quiet_libraries

    quiet_libraries()
    folder = fetch(ALIASES[name])
    print(f"{name} is in {folder}", file=sys.stderr)


def _row(name: str, size: int, here: bool, about: str) -> None:
    typer.echo(f"{name:<10}{size / 1e6:>5.0f} MB  {'here' if here else 'not here':<9} {about}")
