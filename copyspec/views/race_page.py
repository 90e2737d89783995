"""HTML page that replays a race: bars and texts grow side by side in real time."""

from __future__ import annotations

from collections.abc import Iterator

from copyspec.views.escaping import safe
from copyspec.views.page import COLOURS, asset, page
from copyspec.views.race import Race, RaceLane

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
    for number, each in enumerate(lane.landings):
        delay = f' style="animation-delay:{each.seconds:.3f}s"' if moving else ""
        yield f'<span class="p{number % 2}"{delay}>{safe(each.text)}</span>'


def _copied(race: Race) -> Iterator[str]:
    found = race.copied
    if found is None or not found.pieces:
        return
    numbers = {source: number for number, source in enumerate(found.ranked())}
    yield '<h2>What was copied</h2>\n<div class="text" dir="auto">'
    for start, end, piece in found.stretches():
        text = safe(found.text[start:end])
        yield text if piece is None else f'<mark class="c{numbers[piece.place.source] % COLOURS}">{text}</mark>'
    yield "</div>\n<p>"
    counts = found.copied_characters()
    for source, number in numbers.items():
        if counts[source]:
            share = counts[source] / max(1, len(found.text))
            yield f'<mark class="c{number % COLOURS}">{safe(found.sources[source].name)}</mark> {share:.0%} '
    yield "</p>\n"
