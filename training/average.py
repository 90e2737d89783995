"""Averages two adapters of the same shape: ``python -m training.average FIRST SECOND --share 0.6 --out FOLDER``.

If the second was trained further from the first with another mixture, weights between them combine the strengths of
both (Wortsman et al. 2022, arXiv 2109.01903). The factors are averaged, not their products, so the rank is unchanged.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


def average(first: Path, second: Path, share: float, out: Path) -> None:
    """Write the mean with weight `share` for the second adapter. Raises ValueError if their tensors do not match."""
    before, after = load_file(first / _WEIGHTS), load_file(second / _WEIGHTS)
    if {key: value.shape for key, value in before.items()} != {key: value.shape for key, value in after.items()}:
        raise ValueError(f"{str(first)!r} and {str(second)!r} are adapters of different shapes")
    if not 0 <= share <= 1:
        raise ValueError(f"share={share!r} must be from 0 to 1")
    mean = {
        key: ((1 - share) * before[key].float() + share * after[key].float()).to(before[key].dtype) for key in before
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in mean.items()}, out / _WEIGHTS, metadata={"format": "pt"})
    shutil.copyfile(second / _CONFIG, out / _CONFIG)


def main() -> None:
    parser = argparse.ArgumentParser(description="Average two adapters of the same shape.")
    parser.add_argument("first", type=Path, help="folder of the earlier adapter")
    parser.add_argument("second", type=Path, help="folder of the later adapter")
    parser.add_argument("--share", type=float, default=0.5, help="weight of the second adapter")
    parser.add_argument("--out", type=Path, required=True, help="folder for the averaged adapter")
    options = parser.parse_args()
    average(options.first, options.second, options.share, options.out)


if __name__ == "__main__":
    main()
