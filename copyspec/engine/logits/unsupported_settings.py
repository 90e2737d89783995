"""Tells which settings of generation copyspec does not apply. Those of a model are logged once; what a call asks for
and cannot have is an error (`generation_config.check_applied`)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from logging import getLogger
from typing import TYPE_CHECKING, Any

from transformers import GenerationMixin

from copyspec.common.checks import plain_value

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

logger = getLogger(__name__)

# Settings that are ignored with a warning; `ignored` handles those that need a different message.
_NOT_APPLIED = (
    *("token_healing", "dola_layers", "penalty_alpha", "constraints", "force_words_ids"),
    *("output_scores", "output_logits", "output_attentions", "output_hidden_states"),
)
_NOT_SAMPLED = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")
_OF_SAMPLES = ("temperature", "top_k", "top_p", "min_p")
_OFF = (None, 0, 0.0, 1.0)

_MISPLACED = (
    *("max_length", "min_length", "do_sample", "temperature", "top_p", "num_beams", "repetition_penalty"),
    *("no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
)
"""Settings that were once read from a model's own config, where `generate` refuses them now."""

MAX_NOTED = 1000
"""Most warnings that are logged: some hold values of calls, so that there is no end of them."""


def log_once(texts: Iterable[str], noted: set[str]) -> None:
    """Log the warnings that are not `noted` yet, and note them."""
    for text in texts:
        if text not in noted and len(noted) < MAX_NOTED:
            noted.add(text)
            logger.warning("%s", text)


def ignored(config: GenerationConfig, n: int = 1) -> Iterator[str]:
    """Warnings about the config's settings that a call for `n` outputs does not apply; `not_sampled` has those of
    sampling alone."""
    if (beams := config.num_beams or 1) > 1:
        yield f"generation_config has num_beams={beams}; copyspec decodes with one beam, as num_beams=1 does"
    if (count := config.num_return_sequences or 1) not in (1, n):
        yield f"generation_config has num_return_sequences={count}, which is not applied; give n={count}"
    if config.guidance_scale not in (None, 1):
        yield f"generation_config has guidance_scale={config.guidance_scale}, which is not applied"
    for name in _NOT_APPLIED:
        value = getattr(config, name, None)
        if value:
            yield f"generation_config has {name}={value!r}, which is not applied"
    if config.cache_implementation == "quantized":  # the other caches change no output
        yield "generation_config has cache_implementation='quantized', which is not applied"
    if config.watermarking_config is not None:
        yield "generation_config has a watermarking_config, which is not applied"


def not_sampled(config: GenerationConfig) -> Iterator[str]:
    """Warnings about the config's truncations that samples are not subject to."""
    for name in _NOT_SAMPLED:
        if (value := getattr(config, name, None)) not in _OFF:
            yield f"generation_config has {name}={value!r}, which is not applied"


def not_greedy(settings: Mapping[str, object]) -> Iterator[str]:
    """Warnings about settings of sampling in what the caller of a greedy output has given."""
    for name in _OF_SAMPLES:
        if (value := plain_value(settings.get(name))) not in _OFF:
            yield f"{name}={value!r} has no effect on a greedy output: give temperature=, or do_sample in a config"


def of_model(model: PreTrainedModel) -> Iterator[str]:
    """Warnings about what the model's own class and config change for its own `generate` alone."""
    generate: Any = model.generate  # of its class, or set on the object
    if getattr(generate, "__func__", None) is not GenerationMixin.generate:
        name = type(model).__name__
        yield f"{name} has a generate of its own, which is not called: outputs are those of transformers' own"
    declared = inspect.signature(type(model.config)).parameters
    for name in _MISPLACED:
        value = vars(model.config).get(name)
        if name not in declared and value not in _OFF:
            yield f"model.config has {name}={value!r}, which is not applied; set model.generation_config.{name}"
