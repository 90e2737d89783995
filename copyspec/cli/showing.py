"""Shows the outputs of `generate` and `rag`: coloured by source, live, or as an HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from copyspec.cli.common import STDIN
from copyspec.cli.printing import console, echo, echo_bytes, flush_stdout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from copyspec.engine.results import Chunk, Result
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


def print_coloured(found: Provenance, text: str) -> None:
    """Print the text on stdout, coloured if that is a terminal, and the legend of colours on stderr.

    `text`: the visible part of `found.text`, which is all of it or all but its leading space.
    """
    from copyspec.views.terminal import coloured

    screen = console(soft_wrap=True)
    if screen.is_terminal:
        screen.print(coloured(found, screen)[len(found.text) - len(text) :], soft_wrap=True)
    else:
        echo(text)
    print_legend(found, skipped=len(found.text) - len(text))


def print_legend(found: Provenance, order: Sequence[str] = (), skipped: int = 0) -> None:
    """Print on stderr which number is which source, and without colours what was copied. `skipped`: characters of the
    text that were not shown."""
    from copyspec.views.terminal import has_colours, legend

    screen = console(err=True)
    # The text is on stdout, and the colours of its sources are explained here.
    listed = not (has_colours(console()) and has_colours(screen))
    for line in legend(found, screen, order, skipped, listed=listed):
        screen.print(line, soft_wrap=not screen.is_terminal)


def watch(chunks: Iterator[Chunk], codec: Codec, shown: Callable[[str], str]) -> Result:
    """Show the text while it grows, copied tokens in the colour of their source, and return the result.

    `codec`: of the model; `shown`: formats the beginning of the text.
    """
    from rich.live import Live

    from copyspec.views.terminal import GrowingText

    screen = console()
    growing, pieces = GrowingText(screen), _Pieces(codec, shown)
    started, tokens, passes, copied = perf_counter(), 0, 0, 0
    result: Result | None = None
    found: Provenance | None = None
    with Live(console=screen, auto_refresh=False, vertical_overflow="visible") as live:
        for chunk in chunks:
            passes, tokens = passes + 1, tokens + len(chunk.token_ids)
            copied += sum(source is not None for source in chunk.sources)
            growing.land(pieces.push(chunk))
            for line in growing.settled():
                live.console.print(line)
            seconds = perf_counter() - started
            counters = (
                f"{tokens} tokens, {passes} passes, {tokens / passes:.1f} a pass, {copied / max(1, tokens):.0%} copied"
            )
            live.update(growing.tail(f"{counters}, {seconds:.1f} s"), refresh=True)
            result = chunk.result or result
        if result is not None:
            found = result.provenance()
            growing.finish(found)
        live.update(growing.tail(), refresh=True)
    assert result is not None and found is not None
    print_legend(found, growing.order, skipped=len(result.text) - len(shown(result.text)))
    return result


class _Pieces:
    """Splits the text of each chunk where its source changes."""

    def __init__(self, codec: Codec, shown: Callable[[str], str]) -> None:
        from copyspec.text.stops import Detokenizer

        self._detokenizer = Detokenizer(codec.decode, takes_back=codec.takes_back)
        self._shown = shown
        self._waiting: list[tuple[str, str | None]] = []  # text that no chunk has had: it may begin a stop string
        self._is_first = True

    def push(self, chunk: Chunk) -> list[tuple[str, str | None]]:
        for token, source in zip(chunk.token_ids, chunk.sources, strict=True):
            self._waiting.append((self._detokenizer.push([token]), source))
        if chunk.result is not None:
            self._waiting.append((self._detokenizer.finish(), None))
        text = chunk.text
        if self._is_first and text:
            self._is_first, text = False, self._shown(text)
            self._take(chunk.skipped + len(chunk.text) - len(text))
        return self._take(len(text))

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
