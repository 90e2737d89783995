"""Decides which models cannot use static passes, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from copyspec.targets.hooks.modules import hooked
from copyspec.targets.limits import rope_limit

if TYPE_CHECKING:
    from copyspec.targets.causal import CausalTarget
    from copyspec.targets.seq2seq import Seq2SeqTarget


def refusal(target: CausalTarget | Seq2SeqTarget) -> str | None:
    """Why passes of this model cannot be static; None if no reason is known."""
    model, facts = target.model, target.facts
    name = type(model).__name__
    if not (target.supports_trees and target.supports_drafts):
        return f"{name} verifies no trees"
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        return f"{name} is on {len(devices)} devices"
    if (where := hooked(model)) is not None:
        return f"{name} has a hook of somebody's on {where}, which a replay would not run"
    if rope_limit(model.config.get_text_config(decoder=True)) is not None:
        return f"{name} looks at the largest position of a pass for its rotary frequencies"
    if facts.positions in ("none", "mpt"):
        return f"{name} takes no position of a row's own"
    return None
