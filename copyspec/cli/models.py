"""`copyspec models`: which models have short names, which are here, and how to get one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from copyspec.cli.common import UsageError

models = typer.Typer(help="List the models that have short names, or fetch one.", no_args_is_help=False)


@models.callback(invoke_without_command=True)
def list_models(context: typer.Context) -> None:
    # Without a docstring: the group's own help stands above the commands.
    if context.invoked_subcommand is not None:
        return
    from copyspec.models.aliases import ALIASES
    from copyspec.models.resolve import is_here

    _row("default", "10 MB", "here", "comes with the package; corrects and quotes English")
    for alias in ALIASES.values():
        _row(alias.name, f"{alias.download / 1e6:.0f} MB", "here" if is_here(alias) else "not here", alias.about)
        typer.echo(f"{'':<28}{alias.license}, {alias.hub}")
    typer.echo("\nAny folder, GGUF file or hub repository can be named too: --model, COPYSPEC_MODEL.")


@models.command()
def fetch(name: Annotated[str, typer.Argument(help="Of the list that `copyspec models` prints.")]) -> None:
    """Download a model into the cache folder, once."""
    from copyspec.models.aliases import ALIASES
    from copyspec.models.resolve import fetch

    if name not in ALIASES:
        raise UsageError(f"{name!r} is none of the models that can be fetched: {', '.join(ALIASES)}")
    folder = fetch(ALIASES[name])
    print(f"{name} is in {folder}", file=sys.stderr)


def _row(name: str, size: str, where: str, about: str) -> None:
    typer.echo(f"{name:<10}{size:>7}  {where:<9}{about}")
