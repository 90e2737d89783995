"""Code that relies on vLLM's internals: finding the model runner, and fixing two of its behaviours.

vLLM passes the proposer the tokens of each row, but neither the row's request nor its parameters. The model runner has
both; it creates the proposer and calls its `load_model`, where it is found in the call stack.
"""

from __future__ import annotations

import importlib
import logging
import sys
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

TESTED = ("0.32",)
"""Versions of vLLM that the tests of this plug-in were run with."""

NO_LIMIT = 1 << 30


def find_runner() -> Any | None:
    """The model runner that called `load_model`, found in the call stack; None if there is no such object."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if owner is not None and hasattr(owner, "input_batch") and isinstance(getattr(owner, "requests", None), dict):
            return owner
        frame = frame.f_back
    return None


def limit_rows_alone(runner: Any) -> None:
    """Turn off vLLM's own limit at the model's context, because the proposer limits each row itself.

    Once a single row comes within one draft of the model's context, vLLM would stop drafting for all rows and verify
    zeros instead of drafts.
    """
    if hasattr(runner, "effective_drafter_max_model_len"):
        runner.effective_drafter_max_model_len = NO_LIMIT


def mend_sampler() -> bool:
    """Fix vLLM's sampler if necessary, and return whether sampled rows can be verified.

    vLLM's CPU build (0.32) expands temperature, top-k and top-p over the draft tokens with an operator that writes into
    a copy. It then reads uninitialised memory, and all rows of a batch with one sampled request are wrong, including
    greedy ones.
    """
    try:
        sampler: Any = importlib.import_module("vllm.v1.sample.rejection_sampler")
        expand = sampler.expand_batch_to_tokens
    except (ImportError, AttributeError):
        return True  # another version, for which no fault is known
    if _expands(expand):
        return True
    sampler.expand_batch_to_tokens = _expand
    logger.warning("vLLM's expand_batch_to_tokens loses its result on this platform: copyspec has replaced it")
    return _expands(_expand)


def check_version() -> None:
    """Warn about untested versions of vLLM, since its proposer interface is experimental."""
    version = str(getattr(importlib.import_module("vllm"), "__version__", "unknown"))
    if not version.startswith(tuple(f"{tested}." for tested in TESTED)):
        tried = ", ".join(TESTED)
        logger.warning("copyspec's plug-in was tested with vLLM %s; this is %s: compare outputs first", tried, version)


def check_layers(vllm_config: Any) -> None:
    """Raise ValueError for models with recurrent states on a CPU.

    There, vLLM (0.32) gives Qwen3.5's gated delta rule a wider window of convolution as soon as speculation is
    configured, with which outputs are wrong within a few tokens, even if nothing is ever drafted.
    """
    device = getattr(getattr(vllm_config, "device_config", None), "device_type", None)
    if device == "cpu" and getattr(vllm_config.model_config, "has_inner_state", False):
        raise ValueError(
            "vLLM's CPU build computes models with recurrent states wrongly once speculation is configured, even "
            "without drafts: leave out speculative_config, or run such a model with copyspec.generate"
        )


def _expands(expand: Any) -> bool:
    import torch

    try:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        values = torch.tensor([0.75, 0.5], device=device)
        expanded = expand(values, torch.tensor([3, 5], dtype=torch.int32, device=device), 5)
        return bool(expanded.tolist() == [0.75] * 3 + [0.5] * 2)
    except Exception:
        logger.debug("expand_batch_to_tokens failed its test", exc_info=True)
        return False


def _expand(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Repeat each row's value for each of its draft tokens. [rows] -> [num_tokens]"""
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    values = torch.repeat_interleave(x, counts, output_size=num_tokens)
    return values.masked_fill(values == replace_from, replace_to) if replace_from != replace_to else values
