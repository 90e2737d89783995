"""A race: several ways of decoding one prompt side by side, with the arrival times of their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from copyspec.views.provenance import Provenance

SHORTEST_SECONDS = 0.3
"""Seconds of plain decoding below which one run's times depend more on what else the machine does than on the drafts:
one short text was 0.6 to 1.1 times as fast in different runs."""


@dataclass(frozen=True, slots=True)
class Landing:
    """The tokens and text added by one forward pass."""

    seconds: float  # since the run began
    tokens: int  # of the output so far
    text: str


@dataclass(frozen=True, slots=True)
class RaceLane:
    """One way of decoding, with all its passes in order."""

    name: str
    seconds: float
    passes: int
    landings: tuple[Landing, ...]
    equal: bool  # whether the output equals plain decoding, token for token

    @property
    def tokens(self) -> int:
        return self.landings[-1].tokens if self.landings else 0

    def done(self, seconds: float) -> float:
        """Fraction of the output generated after `seconds`, from 0 to 1."""
        if seconds >= self.seconds or not self.tokens:
            return 1.0
        count = 0
        for each in self.landings:
            if each.seconds > seconds:
                break
            count = each.tokens
        return count / self.tokens


@dataclass(frozen=True, slots=True)
class Race:
    """The lanes of a comparison: the first is plain decoding, the last one copied."""

    lanes: Sequence[RaceLane]
    copied: Provenance | None = None  # of the last lane's text
    note: str = ""  # where outputs differ, and by how much

    @property
    def seconds(self) -> float:
        """Seconds until the slowest lane is done."""
        return max(lane.seconds for lane in self.lanes)

    @property
    def caution(self) -> str:
        """Says that the times are too short to tell which lane is faster; "" if they are not."""
        if self.lanes[0].seconds >= SHORTEST_SECONDS:
            return ""
        return f"Plain decoding took under {SHORTEST_SECONDS} s, too short to judge speed: give a longer text."

    def times_as_fast(self, lane: RaceLane) -> float:
        """Speed-up over plain decoding."""
        return self.lanes[0].seconds / lane.seconds if lane.seconds else 0.0

    def summary(self, lane: RaceLane) -> str:
        """A lane's figures in words."""
        length = lane.tokens / lane.passes if lane.passes else 0.0
        words = [f"{lane.seconds:.2f} s"]
        if lane is not self.lanes[0]:
            words += [f"{self.times_as_fast(lane):.1f}x", "equal" if lane.equal else "DIFFERENT"]
        return ", ".join([*words, f"{lane.tokens} tokens in {lane.passes} passes ({length:.1f} a pass)"])


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
