"""Measures every row of docs/gpu.md that needs a GPU, in under ten minutes.

    python -m benchmarks.gpu --json benchmarks/results/gpu.json
    python -m benchmarks.gpu --device cpu --tiny       # a one-minute test

The parts run one after the other, each in its own process with a time limit. A part that fails is reported and does not
stop the others. The report contains what each part printed and wrote.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from kit.reporting import command_line, surroundings, write_json


def parts(device: str, *, tiny: bool) -> dict[str, tuple[list[str], int]]:
    """Return the command and the time limit in seconds of each part."""
    on = ["--device", device]
    if tiny:
        return {
            "passes": (["passes", *on, "--model", "shape:tiny-llama", "--dtype", "float32", "--repeats", "2"], 120),
            "launch": (["launch", *on, "--rows", "1", "--layers", "2", "--repeats", "1"], 60),
            "outputs": (["outputs", *on, "--rows", "1", "2", "--tokens", "8", "--repeats", "1"], 120),
            "exact mode": (["exact_mode", *on, "--tokens", "16", "--new-tokens", "16"], 60),
        }
    return {
        "kernel": (["kernel_build"], 60),
        "passes": (["passes", *on], 120),
        "passes, grouped heads": (["passes", *on, "--model", "shape:llama3-8b"], 90),
        "launch": (["launch", *on], 40),
        "outputs": (["outputs", *on], 90),
        "outputs, masks": (["outputs", *on, "--attention", "masks", "--rows", "1"], 60),
        "exact mode": (["exact_mode", *on, "--tokens", "20000", "--usual", "20"], 120),
    }


def run(device: str, *, tiny: bool) -> dict[str, object]:
    """Run all parts; return the results of each, or the reason why it failed."""
    report = surroundings(device)
    for name, (words, seconds) in parts(device, tiny=tiny).items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "found.json"
            writes = [] if words[0] == "kernel_build" else ["--json", str(file)]
            command = [sys.executable, "-m", f"benchmarks.gpu.{words[0]}", *words[1:]]
            print(f"== {name}: {' '.join(command[1:])}", flush=True)
            started = perf_counter()
            part: dict[str, object] = {"command": command_line(command[2], command[3:])}
            try:
                done = subprocess.run([*command, *writes], capture_output=True, text=True, timeout=seconds)
                part |= {"exit": done.returncode, "output": done.stdout[-8000:].splitlines()}
                if done.returncode:
                    part["errors"] = done.stderr[-3000:].splitlines()
            except subprocess.TimeoutExpired:
                part["exit"] = f"not done in {seconds} s"
            if file.exists():
                part["found"] = json.loads(file.read_text())
            part["seconds"] = round(perf_counter() - started, 1)
            print(f"   exit {part['exit']}, {part['seconds']} s", flush=True)
        report[name] = part
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes that take a minute on a CPU")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device is found; --device cpu --tiny tries the programs without one", file=sys.stderr)
        return 2
    report = run(options.device, tiny=options.tiny)
    if options.json:
        write_json(options.json, {"command": command_line("benchmarks.gpu", arguments), **report})
    failed = [name for name, part in report.items() if isinstance(part, dict) and part.get("exit", 0) != 0]
    print(f"not done or not passed: {', '.join(failed)}" if failed else "all parts done")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
