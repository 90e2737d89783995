"""Kinds of correctors that users have, by name: how each is asked, and what it must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    """How a kind of model is asked for a correction."""

    instruction: str  # `{text}` is where the text goes
    by_sentence: bool
    is_encoder_decoder: bool  # else a model with a chat template
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
    """Raises ValueError for a name that is none."""
    if name not in PRESETS:
        raise ValueError(f"preset={name!r} must be one of {', '.join(PRESETS)}")
    return PRESETS[name]


def check_fits(name: str, model: str, *, is_encoder_decoder: bool, has_template: bool) -> None:
    """Raises ValueError where a model is of another kind than the preset is for."""
    preset = preset_of(name)
    if preset.is_encoder_decoder != is_encoder_decoder:
        kinds = ("a decoder-only model", "an encoder-decoder")
        raise ValueError(
            f"preset={name!r} is for {kinds[preset.is_encoder_decoder]} such as {preset.example}, and {model!r} is "
            f"{kinds[is_encoder_decoder]}; leave the preset out, or give instruction="
        )
    if not preset.is_encoder_decoder and not has_template:
        raise ValueError(f"preset={name!r} needs a chat template, and {model!r} has none; give instruction= instead")
