"""Decides which models cannot use static passes, tree attention or fused layers, and why. The latter two are tried: a
small pass with them is compared with the same pass without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from copyspec.targets.base import Target
from copyspec.targets.hooks.attention import masked_attention
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.hooks.modules import hooked
from copyspec.targets.hooks.recurrence import mixers
from copyspec.targets.model.limits import rope_limit
from copyspec.targets.recurrent.tree_mixers import takes_passes
from copyspec.targets.static.buffers import CacheLayout
from copyspec.targets.static.fused_layers import fused
from copyspec.targets.static.layout import PagedRow, Shape, lay_out
from copyspec.targets.static.pools import PagePool, PoolSize
from copyspec.targets.static.program import StaticProgram, enter_causal
from copyspec.targets.static.tree_attention import KINDS, NAME, callers
from copyspec.targets.static.triton_kernels import on_device
from copyspec.tree import DraftTree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.hooks.recurrence import LayerParts
    from copyspec.targets.model.facts import ModelFacts
    from copyspec.targets.static.fused_layers import FusedLayer

TREE = DraftTree([1, 2, 3, 4, 5], [-1, 0, -1, 2, 0], [0.5] * 5, [None] * 5)
TOKENS = 64
"""Of the passes: kernels work on more queries at a time than TREE has nodes, and need more memory for them."""

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
"""Maximum difference, in standard deviations of the logits, in full precision."""

TOLERANCE_LOW_PRECISION = 0.25


class DynamicTarget(Target, Protocol):
    """A target whose passes have any shape, in the place of which static ones are made."""

    model: PreTrainedModel
    layer_parts: Sequence[LayerParts]
    is_recurrent: bool

    @property
    def facts(self) -> ModelFacts: ...


def refusal(target: DynamicTarget) -> str | None:
    """Why passes of this model cannot be static; None if no reason is known."""
    model, facts = target.model, target.facts
    name = type(model).__name__
    if not (target.supports_trees and target.supports_drafts):
        return f"{name} verifies no trees"
    if any([part.indexes for part in target.layer_parts]):
        return f"{name} keeps an indexer's keys beside keys and values"
    if not all([takes_passes(mixer) for _, mixer in mixers(model)]):
        return f"{name} keeps states that are read step by step"
    if hasattr(model.config, "expert_capacity"):
        return f"{name} has experts that drop tokens beyond a capacity, padding included"
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        return f"{name} is on {len(devices)} devices"
    if (where := hooked(model)) is not None:
        return f"{name} has a hook on {where}, which a captured pass would not run"
    if rope_limit(model.config.get_text_config(decoder=True)) is not None:
        return f"{name} looks at the largest position of a pass for its rotary frequencies"
    if facts.positions == "none" and not target.layer_parts:
        return f"{name} takes no positions"
    return None


@in_inference_mode
def attention_refusal(target: DynamicTarget, layout: CacheLayout) -> str | None:
    """Why the model cannot use tree attention; None if it can."""
    facts, name = target.facts, type(target.model).__name__
    if target.is_encoder_decoder:
        return f"{name} reads an encoder's states"
    if facts.positions not in ("argument", "none"):
        return f"{name} adds a bias to its attention scores, or reads positions in its layers"
    if not KINDS.issuperset(facts.kinds):
        return f"{name} has layers of kind {sorted(set(facts.kinds) - KINDS)[0]!r}"
    pool = PagePool(PoolSize(layout, 1, 3))
    with callers() as layers:
        try:
            by_tree_mask = _logits(target, pool, NAME)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # from a layer that does not understand the mask
            return f"{name} takes no tree mask ({type(error).__name__}: {error})".splitlines()[0]
    if len(layers) != len(layout.planes):
        return f"{name} asks for attention in {len(layers)} of {len(layout.planes)} layers"
    if not _is_close(by_tree_mask, _logits(target, pool, facts.attention), facts):
        return f"{name} scores otherwise with tree attention"
    return None


@in_inference_mode
def fusing_refusal(
    target: DynamicTarget, layout: CacheLayout, attention: str | None, layers: Sequence[FusedLayer]
) -> str | None:
    """Why the model cannot use `layers`; None if it can. `attention`: the name of its implementation."""
    pool, name = PagePool(PoolSize(layout, 1, 3)), type(target.model).__name__
    expected = _logits(target, pool, attention)
    try:
        logits = _logits(target, pool, attention, layers)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # from sizes that the kernels do not take, or a compiler that is missing
        return f"the kernels do not run on {name} ({type(error).__name__}: {error})".splitlines()[0]
    if not all(layer.entered for layer in layers):
        return f"{name} does not call its layers as fused layers expect it"
    return None if _is_close(logits, expected, target.facts) else f"{name} scores otherwise with fused layers"


def _logits(
    target: DynamicTarget,
    pool: PagePool,
    attention: str | None,
    layers: Sequence[FusedLayer] = (),
) -> torch.Tensor:
    """Logits of a token and TREE, [1 + nodes, V]."""
    model, facts, shape = target.model, target.facts, Shape.of(TOKENS, TOKENS)
    program = StaticProgram(
        enter_causal(model, facts),
        model,
        facts,
        pool.key_values,
        pool.block_table,
        shape,
        TOKENS,
        states=pool.states,
        tree_attention=attention == NAME,
    )
    row = PagedRow(0, [1, 2])
    pool.write_block_table(row.number, row.pages)
    packed = np.zeros(sum(shape.parts), np.int64)
    lay_out(packed, shape, [0], [row], [[0]], [TREE], [1 + len(TREE)], [], pool.scratch, TOKENS)
    with on_device(facts.device), masked_attention(model, facts.configs, attention), fused(layers):
        return program(torch.from_numpy(packed).to(facts.device))[: 1 + len(TREE)].double()


def _is_close(logits: torch.Tensor, expected: torch.Tensor, facts: ModelFacts) -> bool:
    limit = TOLERANCE.get(facts.zero.dtype, TOLERANCE_LOW_PRECISION)
    return bool(((logits - expected).abs().amax() <= limit * expected.std()).item())
