"""`copyspec models`: lists models with short names, fetches them and removes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from copyspec.cli.common import UsageError
from copyspec.cli.printing import echo

_OTHERS = "Any folder, GGUF file or hub repository can be named too, by --model or COPYSPEC_MODEL."

models = typer.Typer(
    help="List models that have short names, fetch one, or remove what is cached.", no_args_is_help=False
)


@models.callback(invoke_without_command=True)
def list_by_default(context: typer.Context) -> None:
    # No docstring: the group's own help is shown above the commands.
    if context.invoked_subcommand is None:
        list_models()


@models.command("list")
def list_models() -> None:
    """List models that have short names, and what is cached. The default."""
    from copyspec.models.aliases import ALIASES, install_hint
    from copyspec.models.loading import BUNDLED, DEFAULT, LoadError, choose_default
    from copyspec.models.model_cache import cache_folder, made
    from copyspec.models.resolve import is_here, place

    size = sum(path.stat().st_size for path in BUNDLED.glob("*.*"))
    _row(DEFAULT, size, size > 0, "comes with the package; corrects and quotes English")
    _below(str(BUNDLED))
    for alias in ALIASES.values():
        here = is_here(alias)
        _row(alias.name, alias.download_bytes, here, alias.about)
        _below(f"{alias.license}; {alias.hub}")
        installed = alias.installed_file()
        _below(install_hint(alias) if not here else str(installed or place(alias)))
    if converted := made():
        current = tuple(f"{place(alias).name}-" for alias in ALIASES.values())
        echo(f"\nConverted models in {cache_folder() / 'models'}; `copyspec models remove NAME` frees the space:")
        for folder, bytes_ in converted:
            is_old = any(_is_of(name, folder) for name in ALIASES) and not f"{folder.name}-".startswith(current)
            echo(f"{bytes_ / 1e6:>15.0f} MB  {_name(folder)}{'  (of another version of copyspec)' if is_old else ''}")
    try:
        chosen, corrector = (
            DEFAULT if choice == str(BUNDLED) else choice
            for choice in (choose_default(), choose_default(corrects=True))
        )
    except LoadError:
        chosen = corrector = "none"
    for_gec = f" (gec: {corrector})" if corrector != chosen else ""
    echo(f"\nWithout --model: {chosen}{for_gec}. {_OTHERS}")


@models.command()
def fetch(name: Annotated[str, typer.Argument(help="A name that `copyspec models` prints.")]) -> None:
    """Download a model into the cache folder, once."""
    from copyspec.models.aliases import ALIASES
    from copyspec.models.resolve import fetch

    if name not in ALIASES:
        raise UsageError(f"{name!r} is not a model that can be fetched: {', '.join(ALIASES)}")
    from copyspec.cli.common import quiet_libraries

    quiet_libraries()
    folder = fetch(ALIASES[name])
    echo(f"{name} is in {folder}", err=True)


@models.command()
def remove(
    names: Annotated[list[str], typer.Argument(help="Folders of the cache, or short names: all folders of these.")],
) -> None:
    """Remove models from the cache folder. What is needed again is made again, or downloaded."""
    from copyspec.models.aliases import ALIASES
    from copyspec.models.model_cache import made
    from copyspec.models.model_cache import remove as remove_folder

    folders = [folder for folder, _ in made()]
    removed = dict[Path, None]()
    for name in names:
        chosen = [folder for folder in folders if folder.name == name or (name in ALIASES and _is_of(name, folder))]
        if not chosen:
            there = ", ".join(_name(folder) for folder in folders) or "nothing"
            raise UsageError(f"{name!r} is not in the cache, which holds {there}")
        removed |= dict.fromkeys(chosen)
    for folder in removed:
        remove_folder(folder)
        echo(f"removed {folder}", err=True)


def _is_of(alias: str, folder: Path) -> bool:
    """Whether a folder of the cache was made for a short name, by any version of copyspec. After the digest stand the
    version of the conversion, or the digest of a base from the hub."""
    return re.fullmatch(rf"{re.escape(alias)}-[0-9a-f]{{16}}(-[0-9a-f]+)?", folder.name) is not None


def _name(folder: Path) -> str:
    """The name of a folder of the cache on one line, whatever characters it has."""
    return folder.name if folder.name.isprintable() else repr(folder.name)


def _below(line: str) -> None:
    echo(f"{'':<35}{line}")


def _row(name: str, size: int, here: bool, about: str) -> None:
    echo(f"{name:<16}{size / 1e6:>5.0f} MB  {'here' if here else 'not here':<9} {about}")
