"""Shows a trace: in a terminal totals, a line per forward pass and its draft tree, and all of it as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from copyspec.tree import ROOT
from copyspec.views.escaping import safe, visible
from copyspec.views.page import COLOURS, asset, page
from copyspec.views.pass_trace import Trace, TraceNodes, TracePass

_BAR = 16  # width of the longest bar in cells
_MAX_DEPTH = 24  # forks that are indented; in a file of somebody else there may be millions


def chains(nodes: TraceNodes, path: tuple[int, ...]) -> Iterator[tuple[int, list[int], bool]]:
    """Split the tree into chains: (depth in forks, nodes, whether they were accepted).

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
    single = sum(len(each.tokens) <= 1 for each in trace.passes)
    decisions: dict[str, int] = {}
    for each in trace.passes:
        if len(each.tokens) <= 1:
            name = each.decision or "no draft"
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
    each = trace.passes[number]
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{number + 1:5} {each.times.start:8.3f}s ")
    cells = round(_BAR * each.times.total / longest) if longest else 0
    inside = round(cells * each.times.model / each.times.total) if each.times.total else 0
    line.append("█" * inside, "blue")
    line.append("░" * (cells - inside) + " " * (_BAR - cells), "yellow")
    line.append(f"{1000 * each.times.model:7.1f} {1000 * each.times.outside:6.1f} ms ")
    line.append(f"{len(each.path):3}/{len(each.nodes):<3}", "green" if each.path else "dim")
    line.append(" ")
    gained = [trace.text([token]) for token in each.tokens]
    line.append(_one_line("".join(gained[: len(each.path)])), "bold green")
    line.append(_one_line("".join(gained[len(each.path) :])))
    return line


def tree_lines(trace: Trace, each: TracePass) -> Iterator[Text]:
    """The tree of a pass: + accepted, - rejected; each chain with its drafter and its first node's probability."""
    if not len(each.nodes):
        yield Text(f"  no draft ({each.decision})" if each.decision else "  no draft")
    for depth, chain, accepted in chains(each.nodes, each.path):
        line = Text("  " * (min(depth, _MAX_DEPTH) + 1), no_wrap=True, overflow="ellipsis")
        style = "bold green" if accepted else "dim"
        line.append(f"{'+' if accepted else '-'} {_one_line(trace.text([each.nodes.tokens[n] for n in chain]))}", style)
        line.append(f"  {each.nodes.drafters[chain[0]]}, {each.nodes.probability(chain[0]):.0%}")
        yield line
    own = each.tokens[len(each.path) :]
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
