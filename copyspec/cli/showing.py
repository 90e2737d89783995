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
    """Print on stderr which number is which source. `skipped`: characters of the text that were not shown."""
    from copyspec.views.terminal import legend

    screen = console(err=True)
    for line in legend(found, screen, order, skipped):
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
    print_legend(found, growing.order)
    return result


class _Pieces:
    """Splits the text of each chunk where its source changes."""

    def __init__(self, codec: Codec, shown: Callable[[str], str]) -> None:
        from copyspec.text.stops import Detokenizer

        self._detokenizer = Detokenizer(codec.decode, takes_back=codec.takes_back)
        self._shown = shown
        self._waiting: list[tuple[str, str | None]] = []  # text held back so far, because it may begin a stop string
        self._is_first = True

    def push(self, chunk: Chunk) -> list[tuple[str, str | None]]:
        for token, source in zip(chunk.token_ids, chunk.sources, strict=True):
            self._waiting.append((self._detokenizer.push([token]), source))
        if chunk.result is not None:
            self._waiting.append((self._detokenizer.finish(), None))
        if self._is_first and chunk.text:
            self._skip_space(chunk.text)
        left, pieces = len(chunk.text), []
        while left and self._waiting:
            text, source = self._waiting.pop(0)
            if len(text) > left:
                self._waiting.insert(0, (text[left:], source))
            pieces.append((text[:left], source))
            left -= min(left, len(text))
        if self._is_first and pieces and any(text for text, _ in pieces):
            self._is_first = False
            whole = "".join(text for text, _ in pieces)
            cut = len(whole) - len(self._shown(whole))
            return [(text[cut:] if index == 0 else text, source) for index, (text, source) in enumerate(pieces)]
        return pieces

    def _skip_space(self, text: str) -> None:
        """Remove a leading space that the result's text does not have."""
        at = next((i for i, (piece, _) in enumerate(self._waiting) if piece), None)
        if at is not None and self._waiting[at][0].startswith(" ") and not text.startswith(" "):
            self._waiting[at] = self._waiting[at][0][1:], self._waiting[at][1]
