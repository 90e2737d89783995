"""Shows a trace: in a terminal totals, a line per forward pass and its draft tree, and all of it as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from copyspec.tree import ROOT
from copyspec.views.escaping import safe, visible
from copyspec.views.page import COLOURS, asset, page
from copyspec.views.pass_trace import Trace, TraceNodes, TracePass

_BAR = 16  # width of the longest bar in cells
_MAX_DEPTH = 24  # levels of indentation; a trace read from a file may have millions


def chains(nodes: TraceNodes, path: tuple[int, ...]) -> Iterator[tuple[int, list[int], bool]]:
    """Split the tree into chains: (number of branchings above it, its nodes, whether they were accepted).

    A chain continues while a node has a single child with the same drafter and the same outcome.
    """
    accepted, children = set(path), nodes.children()
    open_chains = [(0, node) for node in reversed(children.get(ROOT, []))]
    while open_chains:
        depth, node = open_chains.pop()
        chain = [node]
        while len(below := children.get(chain[-1], [])) == 1:
            after = below[0]
            same = (after in accepted) == (node in accepted) and nodes.drafters[after] == nodes.drafters[node]
            if not same:
                break
            chain.append(after)
        yield depth, chain, node in accepted
        open_chains += [(depth + 1, child) for child in reversed(children.get(chain[-1], []))]


def summary(trace: Trace) -> list[str]:
    """The totals of the run, and where its time went."""
    totals = trace.totals()
    outside = totals.draft_seconds + totals.verify_seconds + totals.other_seconds
    model = totals.target_seconds + totals.prefill_seconds
    tokens, passes = totals.num_output_tokens, totals.num_passes
    lines = [
        f"{tokens} tokens in {passes} passes, {tokens / max(1, passes):.2f} each",
        f"in the model {model:.3f} s (first pass {totals.prefill_seconds:.3f} s), outside {outside:.3f} s "
        f"(drafting {totals.draft_seconds:.3f} s)",
        f"{totals.num_draft_tokens} tokens drafted, {totals.num_accepted_tokens} accepted",
    ]
    for name, count in totals.num_draft_tokens_per_source.items():
        lines.append(f"  {name}: {count}, {totals.num_accepted_tokens_per_source.get(name, 0)} accepted")
    single = sum(len(pass_.tokens) <= 1 for pass_ in trace.passes)
    decisions: dict[str, int] = {}  # whether passes of one token had a draft, and if not, why: see `Stats.decisions`
    for pass_ in trace.passes:
        if len(pass_.tokens) <= 1:
            name = pass_.decision or "no draft"
            decisions[name] = decisions.get(name, 0) + 1
    if single:
        why = ", ".join(f"{name} {count}" for name, count in sorted(decisions.items(), key=lambda item: -item[1]))
        lines.append(f"{single} pass{'' if single == 1 else 'es'} brought one token: {why}")
    if trace.omitted.num_passes:
        lines.append(f"{trace.omitted.num_passes} later passes were only counted")
    return lines


PASS_HEADS = f"{'pass':>5} {'start':>9} {'time':<{_BAR}}{'model':>7} {'outside':>7}  accepted text"
"""Heads of the columns of `pass_line`."""


def pass_line(trace: Trace, number: int, longest: float) -> Text:
    """One pass: start, time in the model and outside, accepted and drafted tokens, and the text it added."""
    pass_ = trace.passes[number]
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{number + 1:5} {pass_.times.start:8.3f}s ")
    cells = round(_BAR * pass_.times.total / longest) if longest else 0
    inside = round(cells * pass_.times.model / pass_.times.total) if pass_.times.total else 0
    line.append("█" * inside, "blue")
    line.append("░" * (cells - inside) + " " * (_BAR - cells), "yellow")
    line.append(f"{1000 * pass_.times.model:7.1f} {1000 * pass_.times.outside:6.1f} ms ")
    line.append(f"{len(pass_.path):3}/{len(pass_.nodes):<3}", "green" if pass_.path else "dim")
    line.append(" ")
    gained = [trace.text([token]) for token in pass_.tokens]
    line.append(_one_line("".join(gained[: len(pass_.path)])), "bold green")
    line.append(_one_line("".join(gained[len(pass_.path) :])))
    return line


def tree_lines(trace: Trace, pass_: TracePass) -> Iterator[Text]:
    """The tree of a pass: + accepted, - rejected; each chain with its drafter and its first node's probability."""
    if not len(pass_.nodes):
        yield Text(f"  no draft ({pass_.decision})" if pass_.decision else "  no draft")
    for depth, chain, accepted in chains(pass_.nodes, pass_.path):
        line = Text("  " * (min(depth, _MAX_DEPTH) + 1), no_wrap=True, overflow="ellipsis")
        style = "bold green" if accepted else "dim"
        line.append(
            f"{'+' if accepted else '-'} {_one_line(trace.text([pass_.nodes.tokens[n] for n in chain]))}", style
        )
        line.append(f"  {pass_.nodes.drafters[chain[0]]}, {pass_.nodes.probability(chain[0]):.0%}")
        yield line
    own = pass_.tokens[len(pass_.path) :]
    if own:
        yield Text(f"  = {_one_line(trace.text(own))}  the model itself", "bold")


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "⏎").replace("\t", " ")


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
    longest = max((pass_.times.total for pass_ in trace.passes), default=0.0) or 1.0
    for number, pass_ in enumerate(trace.passes, 1):
        yield _pass(trace, number, pass_, longest, drafters)
    yield "</main>\n"


def _pass(trace: Trace, number: int, pass_: TracePass, longest: float, drafters: Mapping[str, int]) -> str:
    times = pass_.times
    inside, outside = times.model / longest, times.outside / longest
    bar = f'<i class="in" style="width:{inside:.2%}"></i><i class="out" style="width:{outside:.2%}"></i>'
    times_text = f"{1000 * times.model:.1f} + {1000 * times.outside:.1f} ms"
    drafted = f"{len(pass_.path)} of {len(pass_.nodes)}" if len(pass_.nodes) else pass_.decision or "no draft"
    gained = "".join(_gained(trace, pass_, drafters))
    tree = "".join(_tree(trace, pass_, drafters))
    return (
        f'<details><summary><span class="n">{number}</span><span class="at">{times.start:.3f} s</span>'
        f'<span class="bar" aria-hidden="true">{bar}</span><span class="ms">{times_text}</span>'
        f'<span class="kept">{safe(drafted)}</span><span class="gain">{gained}</span></summary>{tree}</details>\n'
    )


def _gained(trace: Trace, pass_: TracePass, drafters: Mapping[str, int]) -> Iterator[str]:
    for place, token in enumerate(pass_.tokens):
        text = safe(trace.text([token]))
        if place < len(pass_.path):
            colour = drafters[pass_.nodes.drafters[pass_.path[place]]] % COLOURS
            yield f'<span class="drafter c{colour}">{text}</span>'
        else:
            yield f'<span class="drafter">{text}</span>'


def _tree(trace: Trace, pass_: TracePass, drafters: Mapping[str, int]) -> Iterator[str]:
    if not len(pass_.nodes):
        yield "<p>Nothing was drafted.</p>"
        return
    yield '<ul class="tree">'
    for depth, chain, accepted in chains(pass_.nodes, pass_.path):
        drafter = pass_.nodes.drafters[chain[0]]
        text = safe(trace.text([pass_.nodes.tokens[node] for node in chain]))
        word = "accepted" if accepted else "rejected"
        yield (
            f'<li class="{word}" style="margin-left:{min(depth, _MAX_DEPTH)}rem">'
            f'<span class="drafter c{drafters[drafter] % COLOURS}">{text}</span> '
            f"<small>{word}, {safe(drafter)}, {pass_.nodes.probability(chain[0]):.0%}</small></li>"
        )
    yield "</ul>"
