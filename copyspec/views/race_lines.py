"""Shows in a terminal how fast the same prompt was decoded in several ways, the lanes of a race: growing bars, and
lines with the figures."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter, sleep

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from copyspec.views.race import Race

LONGEST_SECONDS = 8.0
"""A longer race is replayed faster, with a note."""

_FRAMES = 20  # frames per second
_STYLES = ("#8b9096", "#c77800", "#1f9d4d")  # plain, between, copied: readable on light and dark backgrounds


def replay(race: Race, console: Console) -> None:
    """Replay the race in real time. For terminals only."""
    pace = max(1.0, race.seconds / LONGEST_SECONDS)
    started = perf_counter()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while (now := (perf_counter() - started) * pace) < race.seconds:
            live.update(Group(*_frame(race, now, console.width, pace)), refresh=True)
            sleep(1 / _FRAMES)


def _frame(race: Race, now: float, width: int, pace: float) -> Iterator[Text]:
    names = max(len(lane.name) for lane in race.lanes)
    room = max(8, width - names - 12)
    for number, lane in enumerate(race.lanes):
        filled = round(room * lane.done(now))
        seconds = min(now, lane.seconds)
        line = Text(f"{lane.name:<{names}} ", no_wrap=True)
        line.append("━" * filled, _style(race, number))
        line.append("─" * (room - filled), "dim")
        yield line.append(f" {seconds:6.2f} s")
    if pace > 1:
        yield Text(f"shown {pace:.1f} times as fast as it was", style="dim")


def lines(race: Race, width: int) -> Iterator[Text]:
    """For each lane a bar proportional to its time, and its figures below."""
    names = max(len(lane.name) for lane in race.lanes)
    room = max(8, min(60, width - names - 2))
    for number, lane in enumerate(race.lanes):
        bar = "━" * max(1, round(room * lane.seconds / race.seconds)) if race.seconds else ""
        yield Text(f"{lane.name:<{names}} ", no_wrap=True).append(bar, _style(race, number))
        yield Text(f"{'':<{names}} {race.summary(lane)}", no_wrap=True, overflow="ellipsis")
    for sentence in filter(None, (race.note, race.caution)):
        yield Text(sentence)


def _style(race: Race, number: int) -> str:
    return _STYLES[0] if number == 0 else _STYLES[2] if number == len(race.lanes) - 1 else _STYLES[1]
