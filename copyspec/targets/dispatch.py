"""Chooses the target class for a model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import nn
from transformers import PreTrainedModel

from copyspec.options import StaticOptions
from copyspec.targets.base import Target, UnsupportedModelError
from copyspec.targets.eager.causal import CausalTarget
from copyspec.targets.eager.plain import PlainTarget
from copyspec.targets.eager.seq2seq import Seq2SeqTarget
from copyspec.targets.hooks.modules import is_spread
from copyspec.targets.hooks.recurrence import RECURRENT_KINDS, is_recurrent, mixers, special_layers
from copyspec.targets.model.facts import ATTENTION_KINDS, ModelFacts, forward_arguments, read_facts, training_error
from copyspec.targets.model.limits import rope_limit
from copyspec.targets.selftest import checking as selftest
from copyspec.targets.static.static_target import StaticTarget

logger = logging.getLogger(__name__)

_DYNAMIC = "torch.ao.nn.quantized.dynamic"

OnUnsupported = Literal["error", "plain"]
Wrapped = CausalTarget | Seq2SeqTarget


def make_target(model: PreTrainedModel, on_unsupported: OnUnsupported, static: StaticOptions | None = None) -> Target:
    """See `copyspec.targets.wrap`."""
    return _shaped(_dynamic(model, on_unsupported), static)


def _dynamic(model: PreTrainedModel, on_unsupported: OnUnsupported) -> Wrapped | PlainTarget:
    _check(model, on_unsupported)
    facts = read_facts(model)
    name = type(model).__name__
    _warn_rope_limit(model, name)
    reason = _no_drafts(model, facts)
    if reason is not None:
        return _without_drafts(model, reason, on_unsupported)
    if selftest.is_known(model):
        return _wrapped(model)
    reason = _no_masks(model, facts)
    if reason is None:
        trees = _once(_wrapped, model)
        failure = selftest.attempt(trees, model, kind="trees")
        if failure is None:
            return trees(model)
        chains = _once(partial(_wrapped, supports_trees=False), model)
        failure_of_chains = selftest.attempt(chains, model, kind="chains")
        if failure_of_chains is None:
            logger.warning("%s cannot verify trees (%s); drafts are verified as chains, row by row", name, failure)
            return chains(model)
        reason = f"{name} does not score drafts like plain decoding ({failure_of_chains})"
    replayed = partial(_plain, supports_drafts=True)
    failure = selftest.attempt(replayed, model, kind="replay")
    if failure is None:
        logger.warning("%s; drafts are verified as chains, row by row, on copies of its own cache", reason)
        return replayed(model)
    reason += f", and on copies of its own cache drafts score otherwise than in plain decoding ({failure})"
    return _without_drafts(model, reason, on_unsupported)


def _once(make: Callable[[PreTrainedModel], Wrapped], model: PreTrainedModel) -> Callable[[PreTrainedModel], Wrapped]:
    """`make`, which gives one target for all calls with this model: its weights are packed once."""
    target = make(model)
    return lambda other: target if other is model else make(other)


def _shaped(target: Wrapped | PlainTarget, static: StaticOptions | None) -> Target:
    """Wrap the target so that its passes have static shapes, if the options ask for it."""
    options = static or StaticOptions()
    options.verify()
    device, name, takes_trees = target.facts.device, type(target.model).__name__, target.supports_trees
    if options.exact and takes_trees and isinstance(target, CausalTarget) and target.may_be_exact:
        target.is_exact = True
        return target
    wanted = options.use == "always" or (options.use == "auto" and device.type == "cuda")
    if wanted and takes_trees and not isinstance(target, PlainTarget):
        return StaticTarget(target, options)
    if static is not None and (options.exact or options.compile or options.graphs or options.use == "always"):
        where = f'{device} without use="always"'
        if not takes_trees:
            where = f"{name}, whose passes read no trees"
        elif options.exact and target.is_recurrent:
            where = f"{name}, but in float32 on a CPU"
        logger.warning("%s has no effect on %s", options, where)
    return target


def _wrapped(model: PreTrainedModel, *, supports_trees: bool = True) -> Wrapped:
    kind = Seq2SeqTarget if model.config.is_encoder_decoder else CausalTarget
    return kind(model, read_facts(model), supports_trees=supports_trees)


def _plain(model: PreTrainedModel, *, supports_drafts: bool = False) -> PlainTarget:
    return PlainTarget(model, read_facts(model), supports_drafts=supports_drafts)


def _no_drafts(model: PreTrainedModel, facts: ModelFacts) -> str | None:
    """The reason, by the model's own configuration, why it cannot verify drafts; None if there is none."""
    name = type(model).__name__
    lost = {"position_ids"}.intersection(forward_arguments(model, of_class=True)) - facts.arguments
    if lost:
        return f"{name}'s forward was replaced by one without position_ids, so drafts would get wrong positions"
    if any(type(part).__module__.startswith(_DYNAMIC) for part in model.modules()):
        return (
            f"{name} quantises activations dynamically: the scales depend on all tokens of a pass, so draft nodes "
            "would change each other's logits"
        )
    if any(_reads_outliers(part) for part in model.modules()):
        return (
            f"{name} has LLM.int8 layers, which compute in 16 bits what exceeds llm_int8_threshold in any token of a "
            "pass, so draft nodes would change each other's logits: load it with llm_int8_threshold=0.0 or in 4 bits"
        )
    if any(_shares_scale(weight) for weight in model.parameters()):
        return (
            f"{name} quantises activations with one scale for all tokens of a pass, so draft nodes would change each "
            "other's logits: quantise it with granularity=PerRow(), a scale for each token"
        )
    return None


def _no_masks(model: PreTrainedModel, facts: ModelFacts) -> str | None:
    """The reason, by the model's own configuration, why it takes no masks of ours; None if there is none."""
    name = type(model).__name__
    if is_recurrent(model) and not (special_layers(model) and mixers(model)):
        return f"{name} keeps recurrent states elsewhere than in transformers' cache"
    unknown = sorted(set(facts.kinds) - ATTENTION_KINDS - RECURRENT_KINDS)
    return f"{name} has layers of kind {unknown[0]!r}, which cannot be masked for drafts" if unknown else None


def _reads_outliers(part: nn.Module) -> bool:
    """Whether this is a layer of bitsandbytes that multiplies columns with outliers separately, in 16 bits."""
    threshold = getattr(getattr(part, "state", None), "threshold", 0.0)
    return type(part).__name__ == "Linear8bitLt" and threshold > 0.0


def _shares_scale(weight: torch.Tensor) -> bool:
    """Whether this is a weight of torchao whose inputs are quantised by the largest number of all tokens of a pass."""
    if getattr(weight, "act_quant_scale", None) is not None:  # measured beforehand
        return False
    settings = getattr(weight, "act_quant_kwargs", None)
    granularity = getattr(settings, "granularity", None)
    if type(weight).__name__ == "LinearActivationQuantizedTensor":  # of torchao's first version
        granularity = getattr(weight, "quant_kwargs", {}).get("activation_granularity")
    return type(granularity).__name__ == "PerTensor" or getattr(settings, "use_dynamic_per_tensor_scale", False) is True


def _check(model: PreTrainedModel, on_unsupported: str) -> None:
    if on_unsupported not in ("error", "plain"):
        raise ValueError(f'on_unsupported must be "error" or "plain", got {on_unsupported!r}')
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"a target wraps a transformers PreTrainedModel, got {type(model).__name__}: {model!r:.80}")
    name = type(model).__name__
    if not model.can_generate():
        raise UnsupportedModelError(
            f"{name} has no language-model head; load it with AutoModelForCausalLM or AutoModelForSeq2SeqLM"
        )
    if model.main_input_name != "input_ids":
        raise UnsupportedModelError(
            f"{name} reads {model.main_input_name}; only models that read token ids are decoded"
        )
    if model.training:
        raise training_error(model)
    if is_spread(model):
        raise UnsupportedModelError(
            f"{name} is spread over several processes (tensor parallelism, FSDP or ZeRO-3), which must make the same "
            "passes, and each would size its drafts by the times that it measures: load the model in one process, with "
            'device_map="auto" for several GPUs, or call model.generate without custom_generate'
        )


def _warn_rope_limit(model: PreTrainedModel, name: str) -> None:
    rope = rope_limit(model.config.get_text_config(decoder=True))
    if rope is not None:
        logger.warning(
            "%s changes its rotary frequencies (%s) once a pass reaches beyond %d positions, which must not "
            "depend on drafts; prompt and output together are limited to %d tokens",
            name,
            rope.rope_type,
            rope.positions,
            rope.positions,
        )


def _without_drafts(model: PreTrainedModel, reason: str, on_unsupported: str) -> PlainTarget:
    if on_unsupported == "error":
        raise UnsupportedModelError(f'{reason}; on_unsupported="plain" decodes it without drafts')
    failure = selftest.attempt(_plain, model, kind="plain")
    if failure is not None:
        raise UnsupportedModelError(f"{reason}, and its plain decoding differs from its own generate ({failure})")
    logger.warning("%s; it is decoded without drafts", reason)
    return _plain(model)
