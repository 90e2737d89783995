"""Shared by the benchmarks: rows of files, `generate` in batches, arithmetic, the machine, and report files."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

INSTRUCTIONS = {"avx512f": "AVX-512", "avx2": "AVX2"}
"""Vector instructions that decide what a pass costs, by their flags in /proc/cpuinfo, the newest first."""


INPUTS = "inputs are not in the repository; docs/benchmarks.md#inputs describes them"


def read_rows(path: str | Path, *fields: str) -> list[dict[str, Any]]:
    """Read a file of JSON lines, gzipped or not. Raises ValueError that names the file if there is none, and for a line
    that is not JSON or has not these fields."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {str(path)!r}: {INPUTS}")
    opener = gzip.open if str(path).endswith(".gz") else open
    rows: list[dict[str, Any]] = []
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                for name in fields:
                    if not isinstance(row, dict) or name not in row:
                        raise ValueError(f"it is no object with the field {name!r}")
                rows.append(row)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{str(path)!r}, line {len(rows) + 1}, cannot be read: {error}") from error
    return rows


def generate_padded(
    model: PreTrainedModel, prompts: Sequence[list[int]], ends: Container[int], *, pad: int, **options: object
) -> list[list[int]]:
    """Decode prompts as one batch with the model's own greedy `generate`, and return its outputs up to their ends.

    Prompts are padded with `pad`: on the left, where `generate` of a decoder needs it, or on the right of an encoder.
    """
    import torch

    width, is_encoder_decoder = max(map(len, prompts)), model.config.is_encoder_decoder

    def filled(row: list[int], value: int) -> list[int]:
        padding = [value] * (width - len(row))
        return row + padding if is_encoder_decoder else padding + row

    generate = cast("Callable[..., torch.Tensor]", model.generate)
    tokens = generate(
        torch.tensor([filled(prompt, pad) for prompt in prompts], device=model.device),
        attention_mask=torch.tensor([filled([1] * len(prompt), 0) for prompt in prompts], device=model.device),
        do_sample=False,
        pad_token_id=pad,
        **options,
    )
    return [until_end(row, ends) for row in tokens[:, 1 if is_encoder_decoder else width :].tolist()]


def until_end(tokens: list[int], ends: Container[int]) -> list[int]:
    """Cut a row after its end of sequence: the rest is padding of the batch."""
    for position, token in enumerate(tokens):
        if token in ends:
            return tokens[: position + 1]
    return tokens


def without_cudnn_attention() -> None:
    """Disable cuDNN attention in this process, for all methods. On a Hopper GPU it plans each new length of a sequence,
    for 60 to 1,450 ms; transformers' own methods, which use it by default, are faster without."""
    import torch

    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(False)


def quantile(values: Sequence[float], q: float) -> float:
    """Return the nearest-rank quantile, q in [0, 1]; 0.0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def ratio(numerator: float, denominator: float) -> float:
    """Return the quotient, or 0.0 if the denominator is 0."""
    return numerator / denominator if denominator else 0.0


def resident() -> int:
    """Return the resident bytes of this process; 0 where the system does not report them."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def machine() -> dict[str, str | int]:
    """Describe the machine for the head of a report, since times depend on it."""
    flags = _described("flags").split()
    return {
        "system": platform.system(),
        "processor": _described("model name") or platform.processor() or platform.machine(),
        "cpus": os.cpu_count() or 0,
        "instructions": next((name for flag, name in INSTRUCTIONS.items() if flag in flags), ""),
        "python": platform.python_version(),
    }


def conditions() -> dict[str, Any]:
    """Describe machine and versions for the head of a report, since times and rounding depend on them."""
    import torch
    import transformers

    facts = {"machine": machine(), "torch": torch.__version__, "transformers": transformers.__version__}
    return facts | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def surroundings(device: str) -> dict[str, object]:
    """Describe machine, versions and date."""
    import torch
    import transformers

    import copyspec

    head: dict[str, object] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "versions": {
            "copyspec": copyspec.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }
    if device == "cuda":
        head["gpu"] = {"name": torch.cuda.get_device_name(), "clocks_as_found": _clocks()}
    return head


def command_line(module: str, words: Sequence[str] | None = None) -> str:
    """Return the command that runs `module` with these arguments, by default those of the process."""
    return shlex.join(["python", "-m", module, *(sys.argv[1:] if words is None else words)])


def resumed(path: Path | None, head: Mapping[str, Any], older: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the report that a run continues; an empty one if there is none yet.

    Raises SystemExit, which names the difference, if a field of `head` has another value there: settings, machines and
    versions must not be mixed in one report. A field that the report lacks has its value in `older`, or any.
    """
    if path is None or not path.exists():
        return {}
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if different := list(_different({**(older or {}), **report}, json.loads(json.dumps(head)))):
        raise SystemExit(f"{path} holds another run: {', '.join(different)}; remove it, or name another file")
    return report


def kept_rows(path: Path | None, made_with: Mapping[str, Any]) -> list[Any]:
    """Return the rows that earlier runs kept in `path`, JSON lines of which the first is `made_with`; begin a new file.

    Raises SystemExit if the rows were made with something else.
    """
    if path is None:
        return []
    rows: list[Any] = read_rows(path) if path.exists() else []
    if not rows:
        path.write_text(json.dumps(made_with) + "\n", encoding="utf-8")
    elif rows[0] != made_with:
        raise SystemExit(
            f"{path} holds rows of {rows[0]!r:.300}, not of {made_with!r}; remove it, or name another file"
        )
    return rows[1:]


def write_json(file: str | Path, content: Sequence[object] | Mapping[str, object]) -> None:
    Path(file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _different(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Describe the fields that both have with different values, also of mappings in them."""
    for name in (name for name in now if name in before and before[name] != now[name]):
        if isinstance(before[name], dict) and isinstance(now[name], dict):
            yield from _different(before[name], now[name])
        else:
            yield f"its {name} is {before[name]!r}, not {now[name]!r}"


def _described(name: str) -> str:
    """What Linux says about the processor under `name`; empty elsewhere."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def _clocks() -> str:
    query = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "not known"
