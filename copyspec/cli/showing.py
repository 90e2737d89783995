"""Shows outputs: coloured by source, live, as an HTML page, compared, or by their counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from copyspec.cli.common import STDIN
from copyspec.cli.printing import console, echo, echo_bytes, flush_stdout

if TYPE_CHECKING:
    from copyspec.engine.results import Chunk, Comparison, Result, Stats
    from copyspec.text.codec import Codec
    from copyspec.views.provenance import Provenance


def write_page(path: Path, pieces: Iterable[str]) -> None:
    """Write a page to a file, which appears only when it is complete; `-` is stdout."""
    if str(path) == STDIN:
        for piece in pieces:
            echo_bytes(piece.encode("utf-8", "replace"))
        flush_stdout()
        return
    from copyspec.pipelines import AtomicFile

    with AtomicFile(path) as file:
        for piece in pieces:
            file.write(piece.encode("utf-8", "replace"))


def print_coloured(provenance: Provenance) -> None:
    """Print the text on stdout, coloured if that is a terminal, and the legend of colours on stderr."""
    from copyspec.views.terminal import coloured

    screen = console(soft_wrap=True)
    if screen.is_terminal:
        screen.print(coloured(provenance, screen), soft_wrap=True)
    else:
        echo(provenance.text)
    print_legend(provenance)


def print_legend(provenance: Provenance, order: Sequence[str] = ()) -> None:
    """Print on stderr which number is which source, and without colours what was copied."""
    from copyspec.views.terminal import has_colours, legend

    screen = console(err=True)
    # The text is on stdout, and the colours of its sources are explained here.
    listed = not (has_colours(console()) and has_colours(screen))
    for line in legend(provenance, screen, order, listed=listed):
        screen.print(line, soft_wrap=not screen.is_terminal)


def comparison_text(comparison: Comparison) -> str:
    """Both texts, or one if they are equal, and the comparison."""
    plain, copied = comparison.plain.text, comparison.copied.text
    texts = [plain] if comparison.equal else [f"plain:  {plain}", f"copied: {copied}"]
    length = comparison.copied.stats.mean_acceptance_length
    lines = [*texts, str(comparison), f"{length:.2f} tokens per pass of the model"]
    return "\n".join([*lines, *filter(None, [comparison.race().caution])])


def comparison_dict(comparison: Comparison) -> dict[str, object]:
    """The comparison for JSON."""
    from dataclasses import asdict

    return {
        "equal": comparison.equal,
        "speedup": comparison.speedup,
        "plain_seconds": comparison.plain_seconds,
        "copied_seconds": comparison.copied_seconds,
        "difference": asdict(comparison.difference) if comparison.difference is not None else None,
        "plain": comparison.plain.to_dict(),
        "copied": comparison.copied.to_dict(),
    }


def print_notes(result: Result, *, with_stats: bool) -> None:
    """Print what there is to say about a result besides its text, on stderr."""
    if with_stats and result.stats.num_passes:  # a server does not count them
        _print_stats(result.stats)


def _print_stats(stats: Stats) -> None:
    lines = [
        f"tokens               {stats.num_output_tokens}, {stats.tokens_per_second:.0f} a second",
        f"passes of the model  {stats.num_passes}, {stats.mean_acceptance_length:.2f} tokens each",
        f"draft tokens         {stats.num_draft_tokens}, {stats.acceptance_rate:.0%} accepted",
    ]
    for source, count in stats.num_draft_tokens_per_source.items():
        accepted = stats.num_accepted_tokens_per_source.get(source, 0)
        lines.append(f"  from {source:<14} {count}, {accepted} accepted")
    if stats.decisions:
        decisions = ", ".join(f"{what} {count}" for what, count in stats.decisions.items())
        lines.append(f"passes by decision   {decisions}")
        lines.append(f"saved by drafting    the time of {stats.saved_passes:.1f} passes")
    if len(stats.pass_costs) > 1:
        costs = ", ".join(f"{nodes}: {cost:.2f}" for nodes, cost in stats.pass_costs.items())
        lines.append(f"cost by draft nodes  {costs}")
    echo("\n".join(lines), err=True)


def watch(chunks: Iterator[Chunk], codec: Codec) -> Result:
    """Show the text while it grows, copied tokens in the colour of their source, and return the result.

    `codec`: of the model.
    """
    from rich.live import Live

    from copyspec.views.terminal import GrowingText

    screen = console()
    growing, pieces = GrowingText(screen), _Pieces(codec)
    started, tokens, passes, copied = perf_counter(), 0, 0, 0
    result: Result | None = None
    provenance: Provenance | None = None
    with Live(console=screen, auto_refresh=False, vertical_overflow="visible") as live:
        for chunk in chunks:
            passes, tokens = passes + 1, tokens + len(chunk.token_ids)
            copied += sum(source is not None for source in chunk.sources)
            growing.append(pieces.push(chunk))
            for line in growing.settled():
                live.console.print(line)
            seconds = perf_counter() - started
            counters = (
                f"{tokens} tokens, {passes} passes, {tokens / passes:.1f} a pass, {copied / max(1, tokens):.0%} copied"
            )
            live.update(growing.tail(f"{counters}, {seconds:.1f} s"), refresh=True)
            result = chunk.result or result
        if result is not None:
            provenance = result.provenance()
            growing.finish(provenance)
        live.update(growing.tail(), refresh=True)
    assert result is not None and provenance is not None
    print_legend(provenance, growing.order)
    return result


class _Pieces:
    """Splits the text of each chunk where its source changes."""

    def __init__(self, codec: Codec) -> None:
        self._codec, self._detokenizer = codec, codec.detokenizer()
        self._waiting: list[tuple[str, str | None]] = []  # text that no chunk has had: it may begin a stop string
        self._is_first = True

    def push(self, chunk: Chunk) -> list[tuple[str, str | None]]:
        if self._is_first and not self._waiting:
            self._detokenizer = self._codec.detokenizer(chunk._before)
        for token, source in zip(chunk.token_ids, chunk.sources, strict=True):
            self._waiting.append((self._detokenizer.push([token]), source))
        if chunk.result is not None:
            self._waiting.append((self._detokenizer.finish(), None))
        if self._is_first and chunk.text:
            self._is_first = False
            self._take(chunk.skipped)
        return self._take(len(chunk.text))

    def _take(self, count: int) -> list[tuple[str, str | None]]:
        """Remove and return the next `count` characters."""
        pieces = []
        while count and self._waiting:
            text, source = self._waiting.pop(0)
            if len(text) > count:
                self._waiting.insert(0, (text[count:], source))
            pieces.append((text[:count], source))
            count -= min(count, len(text))
        return pieces
