"""Where benchmarks and trainers find recorded outputs, passages, prose and tokenizers: one folder for all of them.

An option of the command comes first, then the environment variable COPYSPEC_DATA, then `build/data`, into which
`python -m benchmarks.data` writes. Where there is none of them, the sample of the repository is used.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
VARIABLE = "COPYSPEC_DATA"
BUILT = ROOT / "build" / "data"
SAMPLE = ROOT / "benchmarks" / "data" / "sample"
SAMPLE_TOKENIZER = ROOT / "copyspec" / "default_model" / "tokenizer.json"
"""The bundled model's: it is in the repository, and small."""
WHERE = f"default: ${VARIABLE}, build/data, or the sample"


def data() -> Path:
    """Return the folder of the data."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return BUILT if BUILT.is_dir() else SAMPLE


def tokenizer(name: str = "llama3") -> Path:
    """Return the tokenizer that recorded outputs are cut with."""
    return SAMPLE_TOKENIZER if data() == SAMPLE else data() / "tokenizers" / f"{name}.tokenizer.json.gz"


def add_transcripts(parser: argparse.ArgumentParser) -> None:
    """Add the argument `transcripts`, a list of paths."""
    folder = str(data() / "transcripts")
    parser.add_argument(
        "transcripts", nargs="*", default=[folder], help=f".jsonl.gz files or folders of them ({WHERE})"
    )


def add_transcripts_folder(parser: argparse.ArgumentParser) -> None:
    """Add the argument `transcripts`, one folder."""
    folder = data() / "transcripts"
    parser.add_argument(
        "transcripts", nargs="?", type=Path, default=folder, help=f"folder with one .jsonl.gz file per task ({WHERE})"
    )


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    """Add the option `--tokenizer`, a file."""
    parser.add_argument(
        "--tokenizer", default=str(tokenizer()), help="tokenizer.json, gzip allowed (default: Llama 3's of the data)"
    )


def add_data(parser: argparse.ArgumentParser, holds: str) -> None:
    """Add the option `--data`, the folder with everything, of which the command reads `holds`."""
    parser.add_argument("--data", type=Path, default=data(), help=f"folder with {holds} ({WHERE})")


def add_prose(parser: argparse.ArgumentParser) -> None:
    """Add the option `--data` of the training commands, a folder of prose."""
    folder = data() / "text"
    parser.add_argument(
        "--data",
        type=Path,
        default=folder,
        help=f"folder of prose: *.txt.gz files with one paragraph per line (default: {folder.name} in the data)",
    )


def say_sample(paths: Iterable[str | Path]) -> None:
    """Say on stderr that a command runs on the sample, if one of the paths is in it."""
    if any(Path(path).is_relative_to(SAMPLE) for path in paths):
        print("on the sample; `python -m benchmarks.data` makes the texts that the figures come from", file=sys.stderr)
