"""The model's own `generate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch


def generated_each(model: Any, prompts: Iterable[Sequence[int]], limit: int) -> dict[tuple[int, ...], list[int]]:
    """Return the greedy output of each prompt, its end token included. Prompts of equal length share a call, so that
    none is padded."""
    outputs = dict[tuple[int, ...], list[int]]()
    ends = model.generation_config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    for length, alike in groupby(sorted(set(map(tuple, prompts)), key=len), key=len):
        rows = list(alike)
        ids = torch.tensor(rows)
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False)
        output = output[:, 1 if model.config.is_encoder_decoder else length :]
        for row, tokens in zip(rows, output.tolist(), strict=True):
            end = next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
            outputs[row] = tokens[: end + 1]
    return outputs
