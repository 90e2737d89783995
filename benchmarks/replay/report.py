"""Measures the replay for the documentation, and writes its figures, its chart and the tables of docs/replay.md.

python -m benchmarks.replay.report --measure                         measure (some minutes) and write everything
python -m benchmarks.replay.report                                   write tables and chart from the stored figures
python -m benchmarks.replay.report --peers FILE                      the same, with figures of the peers' own code
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import copyspec
from benchmarks.replay.chart import Chart, need_matplotlib, png
from benchmarks.replay.figures import Figures
from benchmarks.replay.markdown_tables import OWN, PARTS, RESULTS, ROOT, Report, read
from benchmarks.transcripts import choose_rows, load_tokenizer, read_transcripts
from docs.update import between
from kit import places
from kit.reporting import machine, write_json

PAGE = ROOT / "docs" / "replay.md"
CHART = ROOT / "docs" / "replay.png"

ROWS, FEW_ROWS = 200, 20  # per set: rows of the main figures, and of those for which peers were measured
NODES = (32, 16, 64)  # node limits; the chart shows the first
MEAN_NODES, MEAN_MOST = 8, 64  # maximum average per call, and maximum in any one call


def measure(transcripts: Sequence[str], tokenizer_file: str) -> Report:
    """Run the replays. Raises ValueError if the files are missing."""
    import transformers

    from benchmarks.replay.run import METHODS, run, show_progress

    tokenizer, rows = load_tokenizer(tokenizer_file), read_transcripts(transcripts)
    many, few = choose_rows(rows, ROWS), choose_rows(rows, FEW_ROWS)
    figures = run(many, tokenizer, list(METHODS), NODES[:1], progress=show_progress(len(many)))
    figures += run(many, tokenizer, [OWN], NODES[1:], progress=show_progress(len(many)))
    mean_figures = run(many, tokenizer, [OWN], [MEAN_MOST], MEAN_NODES, show_progress(len(many)))
    few_figures = run(few, tokenizer, [OWN], NODES[:1]) + run(few, tokenizer, [OWN], [MEAN_MOST], MEAN_NODES)
    words = ["python -m benchmarks.replay.report", *(Path(file).name for file in transcripts)]
    return Report(
        command=" ".join([*words, "--tokenizer", Path(tokenizer_file).name]),
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        machine=machine(),
        versions={
            "copyspec": copyspec.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        rows=ROWS,
        figures=figures,
        mean_figures=mean_figures,
        few_rows=FEW_ROWS,
        few_figures=few_figures,
        peer_figures=[],
    )


def filled(page: str, report: Report) -> str:
    """Return the page's text with the tables filled in between their markers."""
    for name, make in PARTS:
        page = between(page, name, make(report))
    return page


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("transcripts", nargs="*", help=f".jsonl.gz files or folders of them ({places.WHERE})")
    places.add_tokenizer(parser)
    parser.add_argument("--measure", action="store_true", help="measure; else the figures on disk are used")
    parser.add_argument("--peers", help="figures of the peers' own code, as written by `benchmarks.replay --json`")
    options = parser.parse_args(arguments)
    known = read()
    if options.measure or options.transcripts:
        try:
            report = measure(options.transcripts or [str(places.data() / "transcripts")], options.tokenizer)
        except ValueError as error:
            print(f"benchmarks.replay.report: {error}", file=sys.stderr)
            return 2
    elif known is None:
        parser.error(f"there are no figures at {RESULTS.relative_to(ROOT)}: measure them with --measure")
    else:
        report = known
    if options.peers:
        lines = json.loads(Path(options.peers).read_text(encoding="utf-8"))
        report = replace(report, peer_figures=[Figures(**line) for line in lines])
    elif known is not None:
        report = replace(report, peer_figures=known.peer_figures)
    write_json(RESULTS, asdict(report))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), report), encoding="utf-8")
    try:
        need_matplotlib()
    except ImportError as error:
        print(f"{CHART.relative_to(ROOT)} stays as it is: {error}", file=sys.stderr)
    else:
        png(Chart.of(report.figures), CHART)
    return 0


if __name__ == "__main__":
    sys.exit(main())
