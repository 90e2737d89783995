"""Presets: how known kinds of correctors are prompted, and what kind of model each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    """How a kind of model is prompted for a correction."""

    instruction: str  # `{text}` marks the place of the text
    by_sentence: bool
    is_encoder_decoder: bool  # False: a decoder-only model with a chat template
    example: str  # of such a model on the hub


PRESETS: Mapping[str, Preset] = {
    "coedit": Preset("Fix grammatical errors in this sentence: {text}", True, True, "grammarly/coedit-large"),
    "t5-gec": Preset("grammar: {text}", True, True, "vennify/t5-base-grammar-correction"),
    "chat": Preset(
        "Correct the spelling and grammar of the text below. Change only what is wrong, and answer with the corrected "
        "text and nothing else.\n\n{text}",
        False,
        False,
        "Qwen/Qwen2.5-1.5B-Instruct",
    ),
}


def preset_of(name: str) -> Preset:
    """Return the preset. Raises ValueError for an unknown name."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"preset={name!r} must be one of {', '.join(PRESETS)}")
    return PRESETS[name]


def check_fits(name: str, model: str, *, is_encoder_decoder: bool, has_template: bool) -> None:
    """Raise ValueError if the model is not of the kind that the preset is for."""
    preset = preset_of(name)
    if preset.is_encoder_decoder != is_encoder_decoder:
        kinds = ("a decoder-only model", "an encoder-decoder")
        raise ValueError(
            f"preset={name!r} is for {kinds[preset.is_encoder_decoder]} such as {preset.example}, and {model!r} is "
            f"{kinds[is_encoder_decoder]}; leave the preset out, or give instruction="
        )
    if not preset.is_encoder_decoder and not has_template:
        raise ValueError(f"preset={name!r} needs a chat template, and {model!r} has none; give instruction= instead")
