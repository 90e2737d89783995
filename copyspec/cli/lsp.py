"""`copyspec lsp`: corrections in any editor through the Language Server Protocol."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from copyspec.cli.common import UsageError
from copyspec.cli.config import defaults
from copyspec.cli.correcting import corrector_of
from copyspec.cli.inputs import without, words_of
from copyspec.cli.model_options import NamedModel
from copyspec.cli.narrowing import kinds_of
from copyspec.cli.remote_options import Concurrency, ServerOptions
from copyspec.common.extras import install


def lsp(
    *,
    model: Annotated[NamedModel, "Model"],
    server: Annotated[ServerOptions, "Server"],
    concurrency: Concurrency = 32,
    delay: Annotated[float, typer.Option(help="Seconds without typing before a text is checked again.")] = 1.0,
) -> int:
    """Serve corrections to an editor, over stdin and stdout: diagnostics, and code actions that make them.

    Settings are read from [tool.copyspec] in pyproject.toml, or from .copyspec.toml. Needs
    copyspec[lsp]; docs/editors.md shows how editors start it.
    """
    if importlib.util.find_spec("pygls") is None:
        raise UsageError(f"lsp needs pygls: {install('lsp')}")
    if not delay >= 0:  # as for NaN
        raise UsageError(f"--delay {delay!r} must be at least 0")
    from copyspec.cli.language_server import Checker, serve
    from copyspec.pipelines import (
        KINDS,
        FormatOptions,
        GuardOptions,
        LateCorrector,
        ModelOptions,
        Runner,
        RunOptions,
        format_of,
        splitter,
    )

    settings = defaults()
    guards = {name: settings[name] for name in GuardOptions.__dataclass_fields__ if name in settings}
    guards["words"] = words_of([Path(path) for path in settings.get("words", ())])
    guards["protect"] = tuple(settings.get("protect", ()))
    try:
        options = ModelOptions(by_sentence=settings.get("by_sentence"))
        checked = GuardOptions(**guards)
        run = RunOptions(checked, splitter(settings.get("segmenter", "builtin"), language=checked.language))
        form = FormatOptions(by_line=settings.get("line_mode", False))
        kinds = kinds_of(settings["kinds"]) if "kinds" in settings else KINDS
        if "format" in settings:
            format_of("-", settings["format"], options=form)
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the project's settings: {error}") from error
    server = replace(server, server=server.server or settings.get("server"))
    remote = server.remote(replace(model, model=model.model or settings.get("model")), concurrency=concurrency)
    late = LateCorrector(lambda: corrector_of(model, options, remote))
    checker = Checker(
        Runner(late, run),
        kinds=kinds,
        exclude=(*settings.get("exclude", ()), *without(map(Path, settings.get("words", ())))),
        format=settings.get("format"),
        options=form,
    )
    serve(checker, delay)
    return 0
