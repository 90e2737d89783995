"""Decodes whole requests."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.decoding.stats import Stats
from copyspec.options import DraftOptions
from copyspec.targets.base import Target


def decoded(
    target: Target, requests: Sequence[Request], nodes: int, *, batch_size: int = 8, adaptive: bool = False
) -> list[tuple[list[int], Stats]]:
    """Return each row's output and counters, with up to `nodes` draft nodes per call."""
    outputs: list[list[int]] = [[] for _ in requests]
    stats: dict[int, Stats] = {}
    settings = DecodeSettings(draft=DraftOptions(max_nodes=nodes, adaptive=adaptive), batch_size=batch_size)
    for step in decode(target, requests, settings):
        for output in step:
            outputs[output.row] += output.tokens
            if output.stats is not None:
                stats[output.row] = output.stats
    return [(tokens, stats[row]) for row, tokens in enumerate(outputs)]
