"""Restricts a run to changed lines, to some kinds of change, or to changes the user accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from copyspec.cli.common import STDIN, UsageError
from copyspec.cli.git_changes import changed_lines

if TYPE_CHECKING:
    from copyspec.pipelines import Selection


def narrow_inputs(
    inputs: list[str],
    since: str | None,
    kinds: str | None,
    *,
    asks: bool,
    keeps_unchanged: bool = False,
    place: tuple[str, int] | None = None,
) -> tuple[list[str], Sequence[Selection]]:
    """The remaining files, and the selections that apply to them. `keeps_unchanged`: files that have not changed since
    then are copied to the output; `place`: the only file and line to correct. Raises UsageError for invalid options."""
    selections: list[Selection] = []
    if kinds is not None:
        from copyspec.pipelines import Kinds

        selections.append(Kinds(kinds_of(kinds)))
    if since is not None:
        from copyspec.pipelines import ChangedLines

        lines = changed_lines(inputs, since)
        inputs = [path for path in inputs if path in lines or keeps_unchanged]
        selections.append(ChangedLines(lines, since))
    if place is not None:
        from copyspec.pipelines import ChangedLines

        selections.append(ChangedLines({path: [range(place[1], place[1] + 1)] for path in inputs}))
    if asks:
        from copyspec.cli.asking import ChangePrompt

        if STDIN in inputs:
            raise UsageError("--patch reads answers from standard input; give files")
        selections.append(ChangePrompt())
    return inputs, selections


def kinds_of(value: str) -> set[str]:
    """The kinds that `--kinds` names. Raises UsageError for unknown ones."""
    from copyspec.pipelines import KINDS

    named = [kind.strip() for kind in value.split(",")]
    without = {kind.removeprefix("-") for kind in named if kind.startswith("-")}
    only = {kind for kind in named if not kind.startswith("-")}
    if unknown := sorted((without | only) - set(KINDS)):
        raise UsageError(f"--kinds {unknown[0]!r}: name some of {', '.join(KINDS)}")
    if without and only:
        raise UsageError(f"--kinds {value!r} names kinds to take and kinds to leave out; use only one of the two")
    return only or set(KINDS) - without
