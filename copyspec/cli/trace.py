"""`copyspec trace`: shows each forward pass of a run recorded by `generate --trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from copyspec.cli.common import STDIN, UsageError, cause, check_outputs
from copyspec.cli.printing import console
from copyspec.cli.showing import write_page


def trace(
    file: Annotated[Path, typer.Argument(help="File written by generate --trace or Trace.save.", show_default=False)],
    number: Annotated[int | None, typer.Option("--pass", help="Show the tree of this pass, counted from 1.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page with all passes and their trees.")] = None,
) -> None:
    """Show what each pass of a run did: its time in the model and outside, what was drafted, accepted and gained.

    A line for each pass: when it began, its time (a bar; in the model and outside), accepted and drafted tokens, and
    the text that it brought.
    """

    from copyspec.views.pass_trace import Trace
    from copyspec.views.trace_views import PASS_HEADS, pass_line, summary, trace_page, tree_lines

    check_outputs({"--html": html}, [file])
    try:
        loaded = Trace.load(file)
    except OSError as error:
        raise UsageError(f"{file}: {cause(error)}") from error
    if number is not None and not 1 <= number <= len(loaded.passes):
        raise UsageError(f"--pass {number}: the trace has passes 1 to {len(loaded.passes)}")
    if html is not None:
        write_page(html, trace_page(loaded))
        if str(html) == STDIN:
            return
    screen = console()
    longest = max((pass_.times.total for pass_ in loaded.passes), default=0.0)
    if number is not None:
        screen.print(pass_line(loaded, number - 1, longest), no_wrap=True, overflow="ellipsis")
        for line in tree_lines(loaded, loaded.passes[number - 1]):
            screen.print(line, no_wrap=True, overflow="ellipsis")
        return
    for text in summary(loaded):
        screen.print(text, markup=False)
    if loaded.passes:
        screen.print(PASS_HEADS, style="dim", no_wrap=True, overflow="ellipsis")
    for index in range(len(loaded.passes)):
        screen.print(pass_line(loaded, index, longest), no_wrap=True, overflow="ellipsis")
