"""`copyspec apply`: applies the edits that agents write to files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from copyspec.cli.common import (
    CHANGED,
    FAILED,
    STDIN,
    UsageError,
    check_stdout,
    quiet_log,
    read,
    read_prompt,
    with_flags,
)
from copyspec.cli.correcting import reason
from copyspec.cli.correction_options import AsDiff, Check, InPlace, Plain, Quiet, Whole, input_option, output_option
from copyspec.cli.model_options import MergingModel, NamedModel, model_option
from copyspec.cli.printing import echo, echo_bytes, flush_stdout
from copyspec.cli.remote_options import ServerOptions, usage_report
from copyspec.common.filesystem import read_input
from copyspec.pipelines import ApplyOptions

if TYPE_CHECKING:
    from copyspec import Chunk, Engine, Remote
    from copyspec.pipelines import Applied, FileApplied

_NAMED = ("form", "syntax", "max_new_tokens")  # options in details of refusals


def apply(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files, or their folder. Default: the current one. - is stdin.", show_default=False),
    ] = None,
    edit: Annotated[str | None, input_option("File with the edit. Default: stdin.", "--edit", "-e")] = None,
    instruction: Annotated[str, model_option("What the edit does; without one, what to change.")] = "",
    target: Annotated[InPlace, "Output"],
    whole: Whole = False,
    stream: Annotated[
        bool, output_option("Print the new version as a model writes it: check the exit code.", "--stream")
    ] = False,
    diff: AsDiff = False,
    check: Check = False,
    model: Annotated[MergingModel, "Model"],
    server: Annotated[ServerOptions, "Server"],
    options: Annotated[ApplyOptions, "Model"],
    plain: Plain = False,
    quiet: Quiet = False,
) -> int:
    """Apply an edit to files, and show a unified diff; -i writes them, all or none.

    The edit may be search-and-replace blocks, a unified diff or a patch between *** Begin Patch and *** End Patch, a
    snippet with marks such as `# ... existing code ...`, or a whole file. Where its lines stand in the file once, it is
    applied without a model. Otherwise the model that --model or --server names merges it, and its output is checked.
    Exit code 1: the diff is not empty, or --check found changes; 2: wrong usage; 3: a part of the edit does not fit, is
    cut or is for another file, or the model's output cannot be trusted: then no file is changed.
    """
    from copyspec.models.errors import LoadError
    from copyspec.pipelines import (
        ApplyPipeline,
        EditError,
        FileApplied,
        FormatError,
        JournalError,
        NoFileError,
        apply_to_files,
        decoded_text,
        finish_writing,
        write_files,
    )

    paths = paths or []
    folders = [path for path in paths if os.path.isdir(path)]
    from_instruction = bool(instruction) and edit is None
    if STDIN in paths and (target.in_place or len(paths) > 1 or (edit in (None, STDIN) and not from_instruction)):
        raise UsageError("- is stdin: it must be the only file, without -i, and the edit in a file: --edit FILE")
    if sum((target.in_place, whole or stream, diff, check)) > 1:
        raise UsageError("-i, --whole (or --stream), --diff and --check are different outputs; give one")
    if folders and (len(paths) > 1 or from_instruction):
        raise UsageError(f"{folders[0]!r} is a folder: give it alone, with an edit, or name files")
    if (from_instruction and not paths) or (stream and len(paths) != 1):
        raise UsageError(f"{'--stream' if stream else '--instruction'} needs a file: name one")
    suffix = target.suffix(paths, in_place=target.in_place)
    check_stdout([path for path in [*paths, edit or STDIN] if path not in folders])
    text = ""
    if not from_instruction:
        text = read_prompt(STDIN, None) if edit is None or edit == STDIN else read(Path(edit), "--edit")
    remote = server.remote(model, {"--draft-model": options.draft_models})
    root = Path(folders[0] if folders else ".")
    with usage_report(remote, quiet=quiet), quiet_log(quiet):
        pipeline = ApplyPipeline(loader(model, remote), replace(options, drafts=not plain))
        try:
            if target.in_place and (count := finish_writing(root)) and not quiet:
                echo(f"copyspec: finished an interrupted run: wrote {count} more files", err=True)
            if stream or STDIN in paths:
                (path,) = paths
                data = sys.stdin.buffer.read() if path == STDIN else read_input(path)
                try:
                    file = decoded_text(data)
                except FormatError as error:
                    raise FormatError(f"{path!r}: {error}") from error
                name = None if path == STDIN else path
                if stream:
                    applied = _streamed(pipeline.stream(file, text, instruction, path=name))
                else:
                    applied = pipeline(file, text, instruction, path=name)
                outcomes = [FileApplied(Path(path), applied, None)]
            else:
                files = [] if folders else [Path(path) for path in paths]
                outcomes = list(apply_to_files(pipeline, text, root, files, instruction))
            is_refused = any(outcome.applied.refusal is not None for outcome in outcomes)
            backups = list[Path]()
            if target.in_place and not is_refused:
                backups = write_files([outcome.change for outcome in outcomes if outcome.is_changed], root, suffix)
        except (ConnectionError, LoadError):  # of the model, not of the files
            raise
        except (OSError, FormatError, JournalError) as error:
            missing = [path for path in paths if path != STDIN and not os.path.lexists(path)]
            if missing and isinstance(error, (FileNotFoundError, NoFileError)):  # the edit may create other files
                raise UsageError(f"there is no file {missing[0]!r}") from error
            where = "the edit" if isinstance(error, EditError) else getattr(error, "filename", None)
            echo(f"copyspec: {reason(where, error) if where else error}", err=True)
            return FAILED
        _tell(outcomes, backups, is_refused, quiet)
        if is_refused:
            return FAILED
        if not (target.in_place or check or stream):
            _print(outcomes, whole)
    is_changed = any(outcome.is_changed for outcome in outcomes)
    return CHANGED if is_changed and not (target.in_place or whole or stream) else 0


def loader(named: NamedModel, remote: Remote | None) -> Callable[[], Engine] | Remote | None:
    """The model that merges; None if none is named: the bundled model and SmolLM2 cannot merge."""
    if remote is not None:
        return remote
    return named.load if named.model or os.environ.get("COPYSPEC_MODEL") else None


def _streamed(steps: Generator[Chunk, None, Applied]) -> Applied:
    """The outcome of steps, with the new version printed while it is made."""
    is_shown = False
    while True:
        try:
            chunk = next(steps)
        except StopIteration as done:
            made: Applied = done.value
            break
        echo_bytes(chunk.content.encode())
        flush_stdout()
        is_shown = True
    if not is_shown and made.refusal is None:
        echo_bytes(made.text.encode())
    return made


def _print(outcomes: Sequence[FileApplied], whole: bool) -> None:
    """Print the new versions, or what changes."""
    from copyspec.pipelines import base_of_diff, path_in_diff

    base = base_of_diff([os.fspath(outcome.path) for outcome in outcomes if os.fspath(outcome.path) != STDIN])
    for outcome in outcomes:
        path, applied = os.fspath(outcome.path), outcome.applied
        name = path if path == STDIN else path_in_diff(path, base)
        for line in [applied.text] if whole else applied.diff(name):
            echo_bytes(line.encode("utf-8", "surrogateescape"))
    flush_stdout()


def _tell(outcomes: Sequence[FileApplied], backups: Sequence[Path], is_refused: bool, quiet: bool) -> None:
    """Say on stderr what became of each file."""
    for outcome in outcomes:
        refusal = outcome.applied.refusal
        if refusal is not None:
            detail = with_flags(refusal.detail, {name: f"--{name.replace('_', '-')}" for name in _NAMED})
            detail = detail.replace("give a model", "name a model (--model or --server)")
            echo(f"copyspec: {outcome.path} is left unchanged: {detail}", err=True)
        elif not quiet:
            how = f"could be {outcome.applied.how}, and is left unchanged too" if is_refused else outcome.applied.how
            stats = outcome.applied.result.stats if outcome.applied.result is not None else None
            passes = f", {stats.num_output_tokens} tokens in {stats.num_passes} passes" if stats is not None else ""
            echo(f"{outcome.path}: {how}{passes}", err=True)
    for path in () if quiet else backups:
        echo(f"copyspec: an old file is kept as {os.path.relpath(path)}", err=True)
