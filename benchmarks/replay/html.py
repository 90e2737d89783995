"""Renders the replay's figures as one HTML page (chart, tables, setup) without scripts or external files."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from html import escape

import copyspec
from benchmarks.replay.chart import COLOURS, Chart, svg
from benchmarks.replay.figures import Figures, Grid, by_limit

DARK = ("#8ab4f8", "#fb923c", "#a8b0bb", "#6ee7a0", "#e58bf2", "#eac54f", "#5fd3e6", "#ff8ab5")
"""Colours of the methods on a dark background."""


def _colours(colours: Sequence[str]) -> str:
    return " ".join(f"--m{index}: {colour};" for index, colour in enumerate(colours))


_STYLE = f"""
:root {{ color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --faint: #5b5b5b; --line: #dcdfe3; --span: #b9bec5;
  {_colours(COLOURS)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e8e8e8; --paper: #16181b; --faint: #a8a8a8; --line: #33373d;
  --span: #5a6068; {_colours(DARK)} }} }}
body {{ margin: 0 auto; padding: 2rem 1rem 6rem; max-width: 60rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, sans-serif; }}
h1 {{ font-size: 1.4rem; }} h2 {{ font-size: 1.1rem; margin-top: 2.5rem; }}
code {{ overflow-wrap: anywhere; }} .faint, small {{ color: var(--faint); }}
.wide {{ overflow-x: auto; }} svg {{ display: block; min-width: 44rem; width: 100%; height: auto; }}
svg text {{ fill: var(--ink); font: 12px system-ui, sans-serif; }} svg .task {{ font-weight: 600; font-size: 13px; }}
svg .tick {{ fill: var(--faint); text-anchor: middle; }} svg .grid {{ stroke: var(--line); }}
svg .span {{ stroke: var(--span); }}
{" ".join(f".m{index} {{ fill: var(--m{index}); }}" for index in range(len(COLOURS)))}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.85rem; min-width: 100%; }}
th, td {{ padding: 0.2rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); }}
th:first-child, td:first-child {{ text-align: left; }} thead th {{ vertical-align: bottom; }}
tr.task th {{ padding-top: 0.9rem; text-align: left; }} td small {{ display: block; }}
@media print {{ svg {{ print-color-adjust: exact; }} }}
"""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Replay of recorded outputs</title>
<style>{style}</style>
</head>
<body>
<h1>Replay of recorded outputs: tokens per call</h1>
<p>{rows} recorded outputs of real models in {sets} sets are followed token by token. Before every call the drafter
proposes a tree of next tokens ({limits}); the longest path that equals the recorded output is accepted, and the call
adds one token of the model's own. <b>Tokens per call</b> is output tokens over calls, so 1 is plain decoding. No model
runs: these figures say how good the drafts are, not how long a call takes.</p>
<h2>{title}</h2>
<div class="wide">
{svg}
</div>
{tables}
<h2>How it was measured</h2>
<p><code>{command}</code></p>
<p class="faint">copyspec {version}, {date}. Microseconds are those of the machine it ran on.</p>
</body>
</html>
"""


def page(figures: Sequence[Figures], command: str) -> str:
    """Render the page. `command`: the command that measured the figures."""
    limits = by_limit(figures)
    grids = {limit: Grid(lines) for limit, lines in limits.items()}
    first = next(iter(grids.values()))
    keys = [key for keys in first.tasks.values() for key in keys]
    chart = Chart.of(figures)
    return _PAGE.format(
        style=_STYLE,
        rows=f"{sum(first.rows(key) for key in keys):,}",
        sets=len(keys),
        limits=escape("; ".join(limits)),
        title=escape(chart.title),
        svg=svg(chart),
        tables="\n".join(_table(limit, grid) for limit, grid in grids.items()),
        command=escape(command),
        version=escape(copyspec.__version__),
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    )


def _table(limit: str, grid: Grid) -> str:
    names = "".join(f'<th scope="col">{escape(method)}</th>' for method in grid.methods)
    lines = [
        f"<h2>Figures, {escape(limit)}</h2>",
        "<p>Tokens per call, below them nodes per call.</p>",
        f'<div class="wide"><table><thead><tr><th scope="col">set</th><th scope="col">rows</th>{names}</tr></thead>',
        "<tbody>",
    ]
    for task, keys in grid.tasks.items():
        lines.append(
            f'<tr class="task"><th scope="rowgroup" colspan="{2 + len(grid.methods)}">{escape(task)}</th></tr>'
        )
        for key in keys:
            shown = [grid.cell(key, method) for method in grid.methods]
            cells = "".join(
                f"<td>{one.tokens_per_call:.2f}<small>{one.nodes_per_call:.1f}</small></td>" for one in shown
            )
            lines.append(f"<tr><td>{escape(grid.label(key))}</td><td>{grid.rows(key)}</td>{cells}</tr>")
    if grid.baseline is not None:
        said = f"ratio to {grid.baseline}, median over the sets of a task"
        lines.append(f'<tr class="task"><th scope="rowgroup" colspan="{2 + len(grid.methods)}">{said}</th></tr>')
        for task in grid.tasks:
            cells = "".join(f"<td>{grid.ratio(task, method):.2f}</td>" for method in grid.methods)
            lines.append(f"<tr><td>{escape(task)}</td><td></td>{cells}</tr>")
    cells = "".join(f"<td>{grid.median(method, 'draft_us_p50'):.0f}</td>" for method in grid.methods)
    lines.append(f"<tr><td>microseconds a draft, median</td><td></td>{cells}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])
