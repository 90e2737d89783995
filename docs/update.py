"""Writes the generated parts of the documentation.

These are help texts in docs/cli.md, the table of options in docs/api.md and their types in
copyspec/engine/asking/keywords.py, measured tables in README.md, docs/replay.md and docs/concepts.md, and figures.

python -m docs.update            writes everything that is out of date
python -m docs.update --check    exit status 1 if something is out of date
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from docs import generated_options
from docs.site import figures, recording

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"

METHOD = "copyspec"
SURVEY = "spec-bench.json"
COPYBENCH = "copybench.json"
OFFICIAL = "correction-official.json"
PRICES = {
    "AVX2 (EPYC)": "node-prices-cpu-avx2.json",
    "AVX-512 (Xeon)": "node-prices-cpu-xeon.json",
    "AVX-512 (EPYC)": "node-prices-cpu.json",
}
PRICED = (1, 2, 4, 8, 16, 32)
"""Numbers of tokens in a pass."""
REAL = "real-smollm2-float32.json"
REAL_NOTE = (
    "smollm2: its own outputs (`python -m benchmarks.real`),\n{};\n"
    "files: `copyspec gec`, batches of 8 (`python -m benchmarks.speed.gec_files`), CPU time."
)


_SHOW_HELP = """import json
from contextlib import redirect_stdout
from io import StringIO
import typer
from copyspec.cli import main
from copyspec.cli.app import app
def show(names, command):
    with redirect_stdout(StringIO()) as shown:
        main([*names, "--help"])
    print(json.dumps([" ".join(["copyspec", *names]), shown.getvalue()]))
    for name, below in getattr(command, "commands", {}).items():
        show([*names, name], below)
show([], typer.main.get_command(app()))
"""


def help_texts() -> str:
    """Return the `--help` of every command at 80 columns, as fenced blocks. A subprocess is used to set COLUMNS."""
    environment = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1", "TERM": "dumb"}
    environment.pop("FORCE_COLOR", None)
    command = [sys.executable, "-c", _SHOW_HELP]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    blocks = []
    for line in done.stdout.splitlines():
        name, shown = json.loads(line)
        text = "\n".join(line.rstrip() for line in shown.strip("\n").splitlines())
        blocks.append(f"## `{name}`\n\n```text\n{text.strip()}\n```")
    return "\n\n".join(blocks)


def measured() -> str:
    """Format a section with a table of every committed run of the speed benchmark; empty if there is none."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("speed*.json"))]
    if not reports:
        return ""
    rows = [row for report in reports for row in _rows(report)]
    conditions: list[str] = []
    if (RESULTS / REAL).exists():
        real_rows, condition = _real_section(json.loads((RESULTS / REAL).read_text(encoding="utf-8")))
        rows, conditions = [*real_rows, *rows], [condition]
    for path in sorted(RESULTS.glob("gec-files*.json")):
        rows += _file_rows(json.loads(path.read_text(encoding="utf-8")))
    head = [
        "| model, text | precision | tokens per pass | by drafts: over plain "
        "| by faster layers: plain over `generate` | both: over `generate` | over prompt lookup | equal |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    commands = sorted({f"`{re.sub(r' --json .*', '', report['command'])}`" for report in reports})
    first = reports[0]
    machine, versions = first["machine"], first["versions"]
    where = first.get("gpu", {}).get("name") or f"{machine['processor']}, {machine['cpus']} cores"
    return "\n".join(
        [
            "## Measured",
            "",
            *head,
            *rows,
            "",
            f"{where}; torch {versions['torch']}, transformers {versions['transformers']}; {first['date']} (bundled "
            "texts).",
            "Wall times of the same prompts in one process, medians of repeats. `generate` and prompt lookup are",
            "transformers' own, plain is copyspec without drafts. Commands:",
            *(f"{command}" + ("," if command != commands[-1] else ".") for command in commands),
            *([REAL_NOTE.format("; ".join(conditions))] if conditions else []),
        ]
    )


def _precision(report: Mapping[str, Any]) -> str:
    """Return the dtype, and the processor's vector instructions where the report names them."""
    instructions = report.get("machine", {}).get("instructions")
    return f"{report['dtype']}, {instructions}" if instructions else str(report["dtype"])


def _real_section(report: dict[str, Any]) -> tuple[list[str], str]:
    """Return a row per task of a real model's run, and how it was measured."""
    from benchmarks.real.report import equal, figures, published

    suffix, time = published(report)
    threads = f"{time} of one thread" if report["threads"] == 1 else f"{report['threads']} threads"
    processor = str(report["machine"]["processor"]).replace("(R)", "").removesuffix(" Processor")
    repeats = "one repeat" if report["repeats"] == 1 else f"medians of {report['repeats']}"
    rows = []
    for task in dict.fromkeys(run["task"] for run in report["runs"]):
        runs = [run for run in report["runs"] if run["task"] == task]
        values = figures(runs, ("generate", "lookup", "plain"))
        over = _speedups(*(values[f"over {name}{suffix}"] for name in ("generate", "lookup", "plain")))
        cells = [f"{report['model']}, {task.replace('_', ' ')}", _precision(report), f"{values['tokens a pass']:.1f}"]
        rows.append(f"| {' | '.join([*cells, *over, equal(runs)])} |")
    return rows, f"{report['dtype']}: {threads}, {processor}, {repeats}"


def _speedups(generate: float | None, lookup: float | None, plain: float) -> list[str]:
    """Return the cells of the four speedups: by copying, by layers, by both, over prompt lookup."""
    layers = None if generate is None else generate / plain
    return ["" if value is None else f"{value:.2f}x" for value in (plain, layers, generate, lookup)]


def _rows(report: dict[str, object]) -> list[str]:
    rows = []
    sets = report["sets"]
    assert isinstance(sets, list)
    for one in sets:
        figures = {method["method"]: method for method in one["methods"]}
        if METHOD not in figures:
            continue
        own = figures[METHOD]
        over = _speedups(*(own["speedup"].get(name) for name in ("hf", "hf-prompt-lookup", "plain")))
        name = f"bundled, {'random tokens: nothing to copy' if one['name'] == 'uncopyable' else one['name']}"
        rows.append(
            f"| {name} | {report['dtype']} | {own['mean_acceptance_length']:.1f} "
            f"| {' | '.join(over)} | {'yes' if own['equal'] else 'no'} |"
        )
    return rows


def _file_rows(report: dict[str, Any]) -> list[str]:
    """Return a row per kind of file corrected by `copyspec gec`: CPU time relative to batches of the same size."""
    rows = []
    model = "bundled" if report["model"] == "default" else report["model"]
    for kind, methods in report["inputs"].items():
        own = methods["copied"]
        over = {name: methods[name]["cpu_seconds"] / own["cpu_seconds"] for name in ("plain", "hf") if name in methods}
        texts, beside = methods["texts"], methods.get("hf", own)["differing"]
        equal = "yes" if not own["differing"] else f"{texts - own['differing']} of {texts}"
        equal += f"; `generate` {texts - beside} of {texts}" if beside != own["differing"] else ""
        cells = [_precision(report), "", *_speedups(over.get("hf"), None, over["plain"]), equal]
        rows.append(f"| {model}, file: {kind} | {' | '.join(cells)} |")
    return rows


def between(text: str, name: str, content: str) -> str:
    """Replace what is between the markers `<!-- name:begin -->` and `<!-- name:end -->` in `text` by `content`."""
    pattern = re.compile(f"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the text has no markers <!-- {name}:begin --> and <!-- {name}:end -->")
    body = f"\n{content}\n\n" if content else ""
    return pattern.sub(lambda match: match[1] + body + match[2], text)


def replayed() -> Iterator[tuple[str, str, Callable[[], str]]]:
    """Yield the tables of the replay, made from its committed figures, if any."""
    from benchmarks.replay import markdown_tables, other_tables

    yield from (("docs/replay.md", name, make) for name, make in other_tables.PARTS)
    report = markdown_tables.read()
    if report is not None:
        for name, make in markdown_tables.PARTS:
            yield "docs/replay.md", name, partial(make, report)


def surveyed() -> str:
    """Return the table of docs/survey.md, made from its committed figures."""
    from benchmarks.spec_bench import table

    return table(json.loads((RESULTS / SURVEY).read_text(encoding="utf-8")))


def copied() -> str:
    """Return the tables of docs/copybench.md, made from its committed figures."""
    from benchmarks.copybench.report import tables

    return tables(json.loads((RESULTS / COPYBENCH).read_text(encoding="utf-8")))


def corrected() -> str:
    """Return the table of correctors in docs/benchmarks.md, made from its committed figures."""
    from benchmarks.quality.official import table

    return table(json.loads((RESULTS / OFFICIAL).read_text(encoding="utf-8")))


def node_prices() -> str:
    """Return the table of docs/concepts.md: the time of passes by number of tokens, one thread."""
    lines = [f"| tokens | {' | '.join(map(str, PRICED))} |", "|---|" + "--:|" * len(PRICED)]
    for machine, name in PRICES.items():
        report = json.loads((RESULTS / name).read_text(encoding="utf-8"))
        tables = [table for table in report["tables"] if (table["threads"], table.get("rows", 1)) == (1, 1)]
        for table in tables:
            of_torch, of_module = (
                {price["tokens"]: price["cpu_seconds"] for price in way} for way in table["prices"].values()
            )
            where = f"{machine}, " if table is tables[0] else ""
            for seconds, way in ((of_torch, "PyTorch's products"), (of_module, "copyspec")):
                costs = " | ".join(f"{seconds[tokens] / of_torch[1]:.2f}" for tokens in PRICED)
                lines.append(f"| {where}{table['dtype']}, {way} | {costs} |")
                where = ""
    return "\n".join(lines)


def sampled() -> str:
    """Return the table of docs/benchmarks.md: figures on the sample of the repository."""
    from benchmarks.figures import table

    return table()


PARTS = (
    ("docs/benchmarks.md", "sample", sampled),
    ("docs/concepts.md", "node-prices", node_prices),
    ("docs/survey.md", "spec-bench", surveyed),
    ("docs/copybench.md", "copybench", copied),
    ("docs/benchmarks.md", "correction", corrected),
    ("docs/cli.md", "help", help_texts),
    ("docs/api.md", "options", generated_options.table),
    ("README.md", "measured", measured),
)
FIGURES = {**figures.FILES, "run.svg": recording.picture}
KEYWORDS = ROOT / "copyspec" / "engine" / "asking" / "keywords.py"


def main() -> int:
    stale = [_written(KEYWORDS, generated_options.keywords())]
    for file, name, make in (*PARTS, *replayed()):
        path = ROOT / file
        before = path.read_text(encoding="utf-8")
        stale.append(_written(path, between(before, name, make())))
    stale += [_written(ROOT / "docs" / "figures" / name, draw()) for name, draw in FIGURES.items()]
    changed = list(dict.fromkeys(filter(None, stale)))
    if changed:
        print(f"{'out of date' if '--check' in sys.argv[1:] else 'updated'}: {', '.join(changed)}")
    return 1 if changed and "--check" in sys.argv[1:] else 0


def _written(path: Path, text: str) -> str:
    """Return the file's name if its content is not `text`, which is then written unless --check is given; else ""."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return ""
    if "--check" not in sys.argv[1:]:
        path.write_text(text, encoding="utf-8")
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    raise SystemExit(main())
