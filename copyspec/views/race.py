"""A race: several ways of decoding one prompt side by side, with the arrival times of their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from copyspec.views.escaping import safe
from copyspec.views.page import COLOURS, asset, page
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
        for landing in self.landings:
            if landing.seconds > seconds:
                break
            count = landing.tokens
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


"""A longer race is replayed faster, with a note."""

# frames per second
# plain, between, copied: readable on light and dark backgrounds


MAX_MOVING = 2_000
"""Maximum number of passes over all lanes with animated text; browsers cannot keep up with more."""

_SCRIPT = """"use strict";
document.getElementById("again").addEventListener("click", () => {
  for (const each of document.getAnimations()) { each.cancel(); each.play(); }
});
"""


def race_page(race: Race, *, title: str = "Side by side") -> Iterator[str]:
    """The page in pieces. Animations respect the reader's system setting for reduced motion."""
    moving = sum(len(lane.landings) for lane in race.lanes) <= MAX_MOVING
    style = asset("page.css") + asset("race.css") + "".join(_movements(race))
    return page(_body(race, title, moving), title=title, style=style, script=_SCRIPT)


def _movements(race: Race) -> Iterator[str]:
    """Style rules that give each bar the length and the duration of its run."""
    longest = race.seconds or 1.0
    for number, lane in enumerate(race.lanes):
        yield f"#lane{number} i {{ width: {lane.seconds / longest:.2%}; animation-duration: {lane.seconds:.3f}s; }}\n"


def _body(race: Race, title: str, moving: bool) -> Iterator[str]:
    equal = all(lane.equal for lane in race.lanes)
    yield f"<header><h1>{safe(title)}</h1>\n<p>"
    yield "All outputs are equal, token for token." if equal else f"<b>The outputs differ.</b> {safe(race.note)}"
    yield f" {safe(race.caution)}" if race.caution else ""
    yield ' <button id="again" type="button">Run again</button></p></header>\n<main>\n'
    yield '<h2>Time until the output was there</h2>\n<ul class="lanes">'
    for number, lane in enumerate(race.lanes):
        yield (
            f'<li id="lane{number}"><span class="name">{safe(lane.name)}</span><span class="bar" aria-hidden="true">'
            f'<i></i></span><span class="summary">{safe(race.summary(lane))}</span></li>\n'
        )
    yield '</ul>\n<div class="sides">\n'
    for lane in race.lanes:
        yield f'<section><h2>{safe(lane.name)}</h2>\n<div class="text" dir="auto">'
        yield from _text(lane, moving)
        yield "</div></section>\n"
    yield "</div>\n"
    yield '<p class="keys">Each shade is what one pass of the model brought.</p>\n'
    yield from _copied(race)
    yield "</main>\n"


def _text(lane: RaceLane, moving: bool) -> Iterator[str]:
    for number, landing in enumerate(lane.landings):
        delay = f' style="animation-delay:{landing.seconds:.3f}s"' if moving else ""
        yield f'<span class="p{number % 2}"{delay}>{safe(landing.text)}</span>'


def _copied(race: Race) -> Iterator[str]:
    provenance = race.copied
    if provenance is None or not provenance.pieces:
        return
    numbers = {source: number for number, source in enumerate(provenance.ranked())}
    yield '<h2>What was copied</h2>\n<div class="text" dir="auto">'
    for start, end, piece in provenance.stretches():
        text = safe(provenance.text[start:end])
        yield text if piece is None else f'<mark class="c{numbers[piece.place.source] % COLOURS}">{text}</mark>'
    yield "</div>\n<p>"
    counts = provenance.copied_characters()
    for source, number in numbers.items():
        if counts[source]:
            share = counts[source] / max(1, len(provenance.text))
            yield f'<mark class="c{number % COLOURS}">{safe(provenance.sources[source].name)}</mark> {share:.0%} '
    yield "</p>\n"
