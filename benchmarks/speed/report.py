"""Aggregates runs of the speed benchmark into figures, and formats their table."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from statistics import median

import torch
from transformers import PreTrainedModel

from benchmarks.speed.methods import Run
from copyspec.cli.gpu_checks import copy_bandwidth
from kit.reporting import ratio

BASELINES = ("hf", "hf-prompt-lookup", "plain")
"""Methods over which speed-ups are given."""

COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}
"""Bytes of the device-to-device copy for the bandwidth baseline: well beyond any cache."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first output token that differs from the baseline's."""

    prompt: int
    position: int
    expected: int | None  # None: the expected output had ended
    got: int | None
    logit_gap: float | None = None  # difference of the two tokens' logits, in one pass over the common prefix


@dataclass(slots=True)
class Figures:
    """Figures of one method on one set of prompts. Seconds are medians of the repeats, each the sum over all
    prompts."""

    method: str
    tokens: int
    seconds_total: float
    seconds_decode: float  # after the first pass of each batch
    seconds_total_repeats: list[float]
    tokens_per_second: float  # of total seconds
    calls: int
    mean_acceptance_length: float  # tokens per row and call, including the prefill
    nodes_per_call: float
    shares: dict[str, float]  # fractions of the total seconds: draft, target, verify, rest; if known
    peak_memory_mib: float
    equal: bool
    differing_prompts: int
    first_difference: Difference | None
    speedup: dict[str, float] = field(default_factory=dict)  # over each baseline, by total seconds: see `compare`
    speedup_decode: dict[str, float] = field(default_factory=dict)


def add_up(method: str, repeats: Sequence[Sequence[Run]], expected: Sequence[Sequence[int]], peak: float) -> Figures:
    """Aggregate the runs of one method.

    `repeats`: the runs of each repeat, in the order of the prompts; `expected`: the baseline's outputs."""
    first = repeats[0]
    totals = [sum(run.total_seconds for run in runs) for runs in repeats]
    tokens = sum(len(output) for run in first for output in run.outputs)
    by_repeat = [_differences(expected, [o for run in runs for o in run.outputs]) for runs in repeats]
    differences = max(by_repeat, key=len)
    return Figures(
        method=method,
        tokens=tokens,
        seconds_total=median(totals),
        seconds_decode=median(sum(run.decode_seconds for run in runs) for runs in repeats),
        seconds_total_repeats=totals,
        tokens_per_second=ratio(tokens, median(totals)),
        calls=sum(run.calls for run in first),
        mean_acceptance_length=ratio(tokens, sum(run.row_calls for run in first)),
        nodes_per_call=ratio(sum(run.drafted for run in first), sum(run.row_calls for run in first)),
        shares=_shares([run for runs in repeats for run in runs]),
        peak_memory_mib=peak,
        equal=not differences,
        differing_prompts=len(differences),
        first_difference=differences[0] if differences else None,
    )


@torch.inference_mode()
def measure_gap(difference: Difference, prefix: Sequence[int], model: PreTrainedModel) -> Difference:
    """Return `difference` with its logit gap: near-ties flip, since passes of different shapes round differently.

    `prefix` is the prompt with the output before the difference.
    """
    if difference.expected is None or difference.got is None:
        return difference
    logits = model(torch.tensor([prefix], device=model.device), logits_to_keep=1).logits[0, -1].float()
    gap = float(logits[difference.expected] - logits[difference.got])
    return replace(difference, logit_gap=gap)


def compare(figures: Sequence[Figures]) -> None:
    """Fill in the speed-ups over the baselines that ran.

    The speed-up is the median of the ratios of total seconds in each repeat. Methods take turns within a repeat, so
    that load that lasts for minutes slows down both sides of a ratio.
    """
    by_name = {one.method: one for one in figures}
    for one in figures:
        for name in BASELINES:
            if name in by_name:
                base = by_name[name]
                pairs = zip(base.seconds_total_repeats, one.seconds_total_repeats, strict=True)
                one.speedup[name] = median(ratio(theirs, ours) for theirs, ours in pairs)
                one.speedup_decode[name] = ratio(base.seconds_decode, one.seconds_decode)


def table(figures: Sequence[Figures]) -> str:
    """Format the figures in at most 80 columns."""
    lines = [f"{'method':<17}{'tokens/s':>9}{'tok/call':>9}{'x hf':>7}{'x lookup':>9}{'x plain':>8}{'equal':>7}"]
    for one in figures:
        over = [f"{one.speedup[name]:.2f}" if name in one.speedup else "-" for name in BASELINES]
        equal = "yes" if one.equal else "NO"
        lines.append(
            f"{one.method:<17}{one.tokens_per_second:>9.1f}{one.mean_acceptance_length:>9.2f}"
            f"{over[0]:>7}{over[1]:>9}{over[2]:>8}{equal:>7}"
        )
    for one in figures:
        if one.first_difference is not None:
            d = one.first_difference
            gap = "" if d.logit_gap is None else f", logits {d.logit_gap:.2g} apart"
            lines.append(f"{one.method}: {one.differing_prompts} outputs differ, the first one's prompt is {d.prompt},")
            lines.append(f"  token {d.position}: {d.got} instead of {d.expected}{gap}")
    return "\n".join(lines)


def bandwidth(weight_bytes: int, plain: Figures | None, batches: int, device: torch.device) -> dict[str, float]:
    """GB/s at which plain decoding reads the weights, and that of a copy inside the device's memory."""
    copied = copy_bandwidth(device, COPY_BYTES.get(device.type, COPY_BYTES["cpu"]))
    result = {"device_copy_gb_per_s": copied / 1e9}
    if plain is not None and plain.calls > batches:
        result["target_pass_gb_per_s"] = weight_bytes * (plain.calls - batches) / plain.seconds_decode / 1e9
    return result


class PeakMemory:
    """Peak memory in MiB since `restart`: allocated on a GPU, elsewhere resident in the process (Linux)."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None

    def restart(self) -> None:
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
            return
        # proc(5): writing 5 resets the peak resident set size to the current one. Without it, the peak is that of the
        # whole run.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def read(self) -> float:
        """Return the peak; 0.0 where the system does not report it."""
        if self._cuda is not None:
            return torch.cuda.max_memory_allocated(self._cuda) / 2**20
        try:
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        except OSError:
            return 0.0
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def _differences(expected: Sequence[Sequence[int]], got: Sequence[Sequence[int]]) -> list[Difference]:
    """Return the first difference of each prompt whose outputs differ."""
    if len(expected) != len(got):
        raise ValueError(f"{len(got)} outputs for {len(expected)} prompts")
    differences = []
    for prompt, (wanted, actual) in enumerate(zip(expected, got, strict=True)):
        for position, (a, b) in enumerate(zip_longest(wanted, actual)):
            if a != b:
                differences.append(Difference(prompt, position, a, b))
                break
    return differences


def _shares(runs: Sequence[Run]) -> dict[str, float]:
    total = sum(run.total_seconds for run in runs)
    parts = {
        "draft": sum(run.draft_seconds for run in runs),
        "target": sum(run.target_seconds for run in runs),
        "verify": sum(run.verify_seconds for run in runs),
    }
    if not any(parts.values()):
        return {}
    parts["rest"] = total - sum(parts.values())
    return {name: ratio(seconds, total) for name, seconds in parts.items()}
