"""Tests whether a model works with tree attention: compares a small pass with it to the same pass with masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from copyspec.targets.hooks.attention import masked_attention
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.static.buffers import CacheLayout, KeyValues
from copyspec.targets.static.packing import pack
from copyspec.targets.static.program import StaticProgram, enter_causal
from copyspec.targets.static.tree_attention import KINDS, NAME, callers
from copyspec.tree import DraftTree

if TYPE_CHECKING:
    from copyspec.targets.causal import CausalTarget
    from copyspec.targets.seq2seq import Seq2SeqTarget

TREE = DraftTree([1, 2, 3, 4, 5], [-1, 0, -1, 2, 0], [0.5] * 5, [None] * 5)
SLOTS = 16

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
"""Maximum difference, in standard deviations of the logits, in full precision."""

TOLERANCE_LOW_PRECISION = 0.25


@in_inference_mode
def attention_refusal(target: CausalTarget | Seq2SeqTarget, layout: CacheLayout) -> str | None:
    """Why the model cannot use tree attention; None if it can."""
    model, facts, name = target.model, target.facts, type(target.model).__name__
    if target.is_encoder_decoder:
        return f"{name} reads an encoder's states"
    if facts.positions != "argument":
        return f"{name} adds a bias to its attention scores, or reads positions in its layers"
    if not KINDS.issuperset(facts.kinds):
        return f"{name} has layers of kind {sorted(set(facts.kinds) - KINDS)[0]!r}"
    key_values = KeyValues(layout, 1, SLOTS)
    nodes, enter = 1 + len(TREE), enter_causal(model, facts)
    found: list[torch.Tensor] = []
    for by_tree in (True, False):
        program = StaticProgram(enter, model, facts, key_values, (1, nodes, SLOTS), tree_attention=by_tree)
        packed = np.zeros((program.fields(), 1, nodes), np.int64)
        pack(packed, [0], [[0]], [TREE], [[]], SLOTS - 1)
        with masked_attention(model, facts.configs, NAME if by_tree else facts.attention), callers() as layers:
            try:
                found.append(program(torch.from_numpy(packed).to(facts.device)).double())
            except Exception as error:  # from a layer that does not understand the mask
                return f"{name} takes no tree mask ({type(error).__name__}: {error})".splitlines()[0]
        if by_tree and len(layers) != len(layout.planes):
            return f"{name} asks for attention in {len(layers)} of {len(layout.planes)} layers"
    by_tree_mask, by_mask = found
    limit = TOLERANCE.get(facts.zero.dtype, TOLERANCE_LOW_PRECISION)
    if not bool(((by_tree_mask - by_mask).abs().amax() <= limit * by_mask.std()).item()):
        return f"{name} scores otherwise with tree attention"
    return None
