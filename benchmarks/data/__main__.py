"""Makes the recorded outputs, passages and tokenizers that the figures were measured with, from their public origins.

python -m benchmarks.data [FOLDER] [--only transcripts gec retrieval text tokenizers] [--host URL]

Files are downloaded with git from repositories at fixed commits and put into FOLDER, by default build/data, where every
benchmark looks for them. What is there already is kept, so that an interrupted run resumes. A file whose rows are not
those that were measured is not written. The exit status is 1 if something could not be made; the figures that lack it
are named. Licences are those of the origins (--list): several allow measurement only.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.data import making
from benchmarks.data.origins import HOST, ORIGINS, Checkouts, Unreachable
from benchmarks.data.other import PRODUCTS
from benchmarks.data.sets import SETS
from kit import places

KINDS = ("transcripts", "gec", "retrieval", "text", "tokenizers")
FIGURES = {
    "transcripts": "docs/replay.md, docs/survey.md, docs/benchmarks.md and the SmolLM2 rows of README.md",
    "gec": "docs/default_model.md, docs/correct_model.md, and the rows `file: jfleg` of README.md",
    "retrieval": "docs/rag.md (RaLMSpec, kNN-LM), docs/langchain.md and docs/retrieval.md",
    "text": "none: it is prose for training commands to run on, not that of the docs",
    "tokenizers": "docs/replay.md and docs/gpu.md",
}
"""Pages whose figures come from each kind of file."""

PROSE = """The prose of the docs' training runs and large datastores is not made: its paragraphs were chosen by hand.
Commands run on text/speeches.txt.gz, or on any folder of prose, with other figures than those of
docs/default_model.md, docs/correct_model.md, docs/small_models.md, docs/survey.md (training) and docs/retrieval.md."""


def listed() -> str:
    """Return the origins, their commits and licences as a table."""
    lines = [f"{origin.name:40} {origin.commit:.8}  {origin.licence or 'not stated'}" for origin in ORIGINS.values()]
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=places.BUILT, help="default: build/data")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="default: everything")
    parser.add_argument("--host", default=HOST, help="where repositories are cloned from (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print origins, commits and licences, and end")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        print(listed())
        return 0
    checkouts = Checkouts(options.folder / "origins", options.host)
    failed: dict[str, list[str]] = {}
    if "transcripts" in options.only:
        reasons = making.make(options.folder, checkouts, making.Measured.read())
        print(f"transcripts: {len(SETS) - len(reasons)} of {len(SETS)} sets")
        failed["transcripts"] = [f"{key}: {reason}" for key, reason in reasons.items()]
    for product in PRODUCTS:
        kind = product.name.split("/")[0]
        if kind not in options.only:
            continue
        try:
            if not product.is_in(options.folder):
                product.write(options.folder, checkouts)
            print(product.name)
        except (Unreachable, making.Different, KeyError, ValueError, OSError) as error:
            failed.setdefault(kind, []).append(f"{product.name}: {error}")
    for kind, said in failed.items():
        if said:
            print(f"\nNot made of {kind}; without it, figures of {FIGURES[kind]} are not those of the docs:")
            print("\n".join(f"  {reason}" for reason in said))
    print(f"\n{PROSE}")
    return int(any(failed.values()))


if __name__ == "__main__":
    raise SystemExit(main())
