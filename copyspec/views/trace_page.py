"""HTML page of a trace: a timeline of forward passes with the draft tree of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from copyspec.views.escaping import safe
from copyspec.views.page import COLOURS, asset, page
from copyspec.views.pass_trace import Trace, TracePass
from copyspec.views.trace_lines import chains, summary


def trace_page(trace: Trace, *, title: str = "What each pass did") -> Iterator[str]:
    """The page in pieces. It needs no script."""
    style = asset("page.css") + asset("trace.css")
    return page(_body(trace, title), title=title, style=style)


def _body(trace: Trace, title: str) -> Iterator[str]:
    drafters = {name: number for number, name in enumerate(trace.totals().num_draft_tokens_per_source)}
    yield f"<header><h1>{safe(title)}</h1>\n<ul>"
    for line in summary(trace):
        yield f"<li>{safe(line.strip())}</li>"
    keys = " ".join(f'<span class="drafter c{index % COLOURS}">{safe(name)}</span>' for name, index in drafters.items())
    yield f'</ul>\n<p>Drafted by: {keys} <span class="drafter">the model itself</span>. Bars: time '
    yield '<span class="in">in the model</span> and <span class="out">outside</span>.</p></header>\n<main>\n'
    longest = max((each.times.total for each in trace.passes), default=0.0) or 1.0
    for number, each in enumerate(trace.passes, 1):
        yield _pass(trace, number, each, longest, drafters)
    yield "</main>\n"


def _pass(trace: Trace, number: int, each: TracePass, longest: float, drafters: Mapping[str, int]) -> str:
    times = each.times
    inside, outside = times.model / longest, times.outside / longest
    bar = f'<i class="in" style="width:{inside:.2%}"></i><i class="out" style="width:{outside:.2%}"></i>'
    times_text = f"{1000 * times.model:.1f} + {1000 * times.outside:.1f} ms"
    drafted = f"{len(each.path)} of {len(each.nodes)}" if len(each.nodes) else each.decision or "no draft"
    gained = "".join(_gained(trace, each, drafters))
    tree = "".join(_tree(trace, each, drafters))
    return (
        f'<details><summary><span class="n">{number}</span><span class="at">{times.start:.3f} s</span>'
        f'<span class="bar" aria-hidden="true">{bar}</span><span class="ms">{times_text}</span>'
        f'<span class="kept">{safe(drafted)}</span><span class="gain">{gained}</span></summary>{tree}</details>\n'
    )


def _gained(trace: Trace, each: TracePass, drafters: Mapping[str, int]) -> Iterator[str]:
    for place, token in enumerate(each.tokens):
        text = safe(trace.text([token]))
        if place < len(each.path):
            colour = drafters[each.nodes.drafters[each.path[place]]] % COLOURS
            yield f'<span class="drafter c{colour}">{text}</span>'
        else:
            yield f'<span class="drafter">{text}</span>'


def _tree(trace: Trace, each: TracePass, drafters: Mapping[str, int]) -> Iterator[str]:
    if not len(each.nodes):
        yield "<p>Nothing was drafted.</p>"
        return
    yield '<ul class="tree">'
    for depth, chain, accepted in chains(each.nodes, each.path):
        drafter = each.nodes.drafters[chain[0]]
        text = safe(trace.text([each.nodes.tokens[node] for node in chain]))
        word = "accepted" if accepted else "refused"
        yield (
            f'<li class="{word}" style="margin-left:{min(depth, 24)}rem">'
            f'<span class="drafter c{drafters[drafter] % COLOURS}">{text}</span> '
            f"<small>{word}, {safe(drafter)}, {each.nodes.probability(chain[0]):.0%}</small></li>"
        )
    yield "</ul>"
