"""`copyspec edit`: rewrites files following an instruction."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from copyspec.cli.common import CHANGED, FAILED, STDIN, UsageError, check_outputs, check_stdout, quiet_log, with_flags
from copyspec.cli.correcting import reason
from copyspec.cli.correction_options import AsDiff, Check, InPlace, Plain, Quiet, Whole, output_option
from copyspec.cli.model_options import NamedModel, model_option
from copyspec.cli.printing import echo, echo_bytes, flush_stdout
from copyspec.cli.remote_options import ServerOptions, usage_report
from copyspec.common.filesystem import read_input
from copyspec.pipelines import EditOptions

if TYPE_CHECKING:
    from copyspec import Remote
    from copyspec.pipelines import AtomicFile, Edited, EditPipeline


def edit(
    *,
    paths: Annotated[list[str], typer.Argument(help="Text or code; - is stdin.", show_default=False)],
    instruction: Annotated[str, model_option("What to do; {text} marks where the file goes, by default at the end.")],
    target: Annotated[InPlace, "Output"],
    output: Annotated[
        Path | None, output_option("Write the new version to this file; - is stdout.", "--output", "-o")
    ] = None,
    whole: Whole = False,
    diff: AsDiff = False,
    check: Check = False,
    model: Annotated[NamedModel, "Model"],
    server: Annotated[ServerOptions, "Server"],
    options: Annotated[EditOptions, "Model"],
    plain: Plain = False,
    quiet: Quiet = False,
) -> int:
    """Rewrite files under an instruction, and show a unified diff; -i writes them.

    The model reads a file whole and writes it anew, copying what stays. The bundled model knows one instruction,
    "Correct the grammar: {text}"; for others name a model that follows instructions. Exit code 1: the diff is not
    empty, or --check found changes; 2: wrong usage; 3: a file could not be read, does not fit, or its new version did
    not come to an end: it stays as it was, and the others are done.
    """
    in_place = target.in_place
    if output is not None and (in_place or len(paths) != 1):
        raise UsageError("--output is for one file, without -i")
    if str(output) == STDIN:  # "-" is stdout
        output, whole = None, True
    if STDIN in paths and (in_place or len(paths) != 1):
        raise UsageError("- is stdin: it must be the only input, without -i")
    suffix = target.suffix(paths, in_place=in_place)
    writes = in_place or output is not None
    if sum((writes, whole, diff, check)) > 1:
        raise UsageError("-i or -o, --whole, --diff and --check are different outputs; give one")
    check_outputs({"--output": output}, ())
    check_stdout(paths)
    if not instruction.strip():
        raise UsageError("--instruction is empty: say what to change")
    present = [path for path in paths if path == STDIN or os.path.exists(path)]
    for path in paths:
        if path not in present:  # found before the model is loaded
            echo(f"copyspec: {path}: {os.strerror(errno.ENOENT)}", err=True)
    if not present:
        return FAILED
    remote = server.remote(model, {"--draft-model": options.draft_models})
    with usage_report(remote, quiet=quiet), quiet_log(quiet):
        pipeline = pipeline_of(model, replace(options, drafts=not plain), remote)
        pipeline.check(instruction)
        versions = _NewVersions(in_place, suffix, output, whole, quiet, check)
        changed, failed = _edit_files(pipeline, present, instruction, versions)
    if failed or present != paths:
        return FAILED
    return CHANGED if changed and not (writes or whole) else 0


def pipeline_of(model: NamedModel, options: EditOptions, remote: Remote | None = None) -> EditPipeline:
    """Load the model, unless it is `remote`."""
    from copyspec.pipelines import EditPipeline

    return EditPipeline(remote if remote is not None else model.load(), options)


class _NewVersions:
    """Writes or prints the new versions."""

    def __init__(
        self, in_place: bool, backup: str | None, output: Path | None, whole: bool, quiet: bool, check: bool
    ) -> None:
        self.target = output
        self.in_place, self.backup, self.whole, self.quiet, self.check = in_place, backup, whole, quiet, check
        self._base = ""

    def begin(self, paths: Sequence[str]) -> None:
        """Choose the folder relative to which a diff names the files."""
        from copyspec.pipelines import base_of_diff

        self._base = base_of_diff([path for path in paths if path != STDIN])

    def tried(self, path: str) -> AtomicFile | None:
        """A discarded trial, which knows the file that the new version of `path` is to replace; None if none is
        written. Raises OSError, before the model runs for nothing, for a file that cannot be replaced."""
        from copyspec.pipelines import AtomicFile

        target = self._target(path)
        if target is None:
            return None
        trial = AtomicFile(target)
        trial.discard()  # a file that stood there while the model runs would outlive a killed process
        return trial

    def write(self, path: str, edited: Edited, data: bytes, tried: AtomicFile | None) -> Path | None:
        """Write a new version, if it goes to a file, and return the backup's path. `data`: the file as it was read. A
        file saved since then, or since it was tried, is left alone."""
        from copyspec.pipelines import AtomicFile

        if tried is None or (self.in_place and not edited.changed):
            return None
        with AtomicFile(tried.path, backup=self.backup, standing=tried.standing) as file:
            if path != STDIN and os.path.realpath(path) == os.fspath(tried.path):  # -o may name the input
                file.expect(data)
            file.write(edited.text.encode("utf-8", "surrogateescape"))
        return file.kept

    def show(self, path: str, edited: Edited, backup: Path | None) -> None:
        """Print a new version that goes to stdout, or the backup's name."""
        target = self._target(path)
        if backup is not None:
            self.tell(f"copyspec: the old {os.fspath(target or path)} is kept as {os.fspath(backup)}")
        if target is not None or self.check:
            return
        lines = [edited.text] if self.whole else edited.diff(self.name(path))
        for line in lines:
            echo_bytes(line.encode("utf-8", "surrogateescape"))
        flush_stdout()

    def _target(self, path: str) -> Path | None:
        return Path(path) if self.in_place else self.target

    def name(self, path: str) -> str:
        from copyspec.pipelines import path_in_diff

        return path if path == STDIN else path_in_diff(path, self._base)

    def tell(self, line: str) -> None:
        if not self.quiet:
            echo(line, err=True)


def _edit_files(
    pipeline: EditPipeline, paths: Sequence[str], instruction: str, versions: _NewVersions
) -> tuple[int, int]:
    """Edit the files and count those that changed and those that failed."""
    from copyspec.cli.reports import LIMITS
    from copyspec.pipelines import decoded_text

    changed = failed = 0
    versions.begin(paths)
    for path in paths:
        try:
            data = sys.stdin.buffer.read() if path == STDIN else read_input(path)
            text = decoded_text(data)
            tried = versions.tried(path)
            edited = pipeline(text, instruction, path=path)
            backup = versions.write(path, edited, data, tried) if edited.refusal is None else None
        except (OSError, ValueError) as error:
            echo(f"copyspec: {reason(path, error)}", err=True)
            failed += 1
            continue
        if edited.refusal is not None:
            echo(f"copyspec: {path} is left unchanged: {with_flags(edited.refusal.detail, LIMITS)}", err=True)
            failed += 1
            continue
        versions.show(path, edited, backup)  # a failing stdout is not the file's failure: it ends the run
        changed += edited.changed
        stats = edited.result.stats if edited.result is not None else None
        counters = "nothing to do"
        if stats is not None:
            passes = f" in {stats.num_passes} passes of the model" if stats.num_passes else ""
            counters = f"{stats.num_output_tokens} tokens{passes}"
        versions.tell(f"{path}: {'changed' if edited.changed else 'unchanged'}, {counters}")
    return changed, failed
