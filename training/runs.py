"""The files of a training run: settings, log, checkpoints, and tensors that are complete wherever they exist."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from copyspec.common.filesystem import part_name

MINUTES = "time limit in minutes, preparation included; at least one step is made (default: %(default)g)"
_WEIGHT = "weight."
_MOMENTS = ("exp_avg", "exp_avg_sq")  # what Adam keeps for each weight


def check_settings(out: Path, settings: Mapping[str, object]) -> None:
    """Store the settings of a run in `out`/plan.json. Raises ValueError if it was started with others."""
    out.mkdir(parents=True, exist_ok=True)
    path, wanted = out / "plan.json", json.loads(json.dumps(settings))
    if not path.is_file():
        path.write_text(json.dumps(wanted) + "\n", encoding="utf-8")
    elif (stored := json.loads(path.read_text(encoding="utf-8"))) != wanted:
        raise ValueError(f"{str(out)!r} holds a run of {stored!r}, not of {wanted!r}; give another --out")


def working_dtype(device: str) -> torch.dtype:
    """Data type to compute in: float32 on CPUs without instructions for bfloat16, where it takes 20 times as long."""
    is_slow = device == "cpu" and not torch.cpu._is_avx512_bf16_supported()
    return torch.float32 if is_slow else torch.bfloat16


def say_start(prepares: str, until: float | None, steps: int = 0) -> None:
    """Say what a run does before its first step, and when it ends: at the time `until`, after `steps`, if not 0."""
    ends = [] if until is None else [time.strftime("at %H:%M:%S", time.localtime(until))]
    ends += [f"after step {steps}"] if steps else []
    print(f"prepares: {prepares}; ends {' or '.join(ends)}, preparation included", flush=True)


def say_prepared(started: float, until: float | None) -> None:
    """Say how long preparation took; `until`: the end of the run, which may have passed."""
    late = "; that was all of the time, so one step is made: give more --minutes"
    is_late = until is not None and time.time() > until
    print(f"prepared after {time.time() - started:.0f} s{late if is_late else ''}", flush=True)


def say_end(out: Path, made: Path, step: int, steps: int) -> None:
    """Say what a run has written and what is left of it; `steps` 0: its time was the limit.

    Raises SystemExit, with status 1, if it has written nothing.
    """
    if not made.exists():
        raise SystemExit(f"nothing was trained: {made} does not exist; give more time, --minutes, or steps, --steps")
    left = f", {steps - step} of {steps} steps are left: the same command goes on" if step < steps else ""
    print(f"{made} after {step} steps{left}; log: {out / 'log.jsonl'}", flush=True)


def append_log(out: Path, line: Mapping[str, object]) -> None:
    """Append a line to `out`/log.jsonl, and print it."""
    text = json.dumps(line)
    with (out / "log.jsonl").open("a") as log:
        log.write(text + "\n")
    print(text, flush=True)


def exit_with(main: Callable[[], None]) -> None:
    """Run a command. Exit with status 1 and the reason, without a traceback, if its input or its disk is at fault."""
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error


def last_step(out: Path) -> int:
    """The last step in `out`/log.jsonl; 0 if there is none."""
    log = out / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, which replaces `path` once it is complete."""
    part = path.with_name(part_name(path.name))
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, part
    )  # `save` copies them twice
    part.replace(path)


def save_checkpoint(
    path: Path, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, step: int, **others: Tensor
) -> None:
    """Write the weights, what Adam keeps for them, the step and `others`."""
    tensors = {"step": torch.tensor(step), **others}
    for name, weight in weights.items():
        state = optimizer.state.get(weight, {})
        tensors[_WEIGHT + name] = weight
        tensors |= {f"state.{name}.{key}": state[key] for key in _MOMENTS if key in state}
    save_tensors(path, tensors)


def restore(path: Path, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> int:
    """Restore what `save_checkpoint` wrote, and return its step. Raises ValueError if it is of other weights."""
    tensors = load_file(path)
    shapes = {name.removeprefix(_WEIGHT): tensor.shape for name, tensor in tensors.items() if name.startswith(_WEIGHT)}
    if shapes != {name: weight.shape for name, weight in weights.items()}:
        raise ValueError(f"{str(path)!r} is a checkpoint of other weights; give another --out")
    step = int(tensors["step"])
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[_WEIGHT + name])
            moments = {key: tensors[f"state.{name}.{key}"] for key in _MOMENTS if f"state.{name}.{key}" in tensors}
            if moments:
                optimizer.state[weight] = {"step": torch.tensor(float(step)), **moments}
    return step
