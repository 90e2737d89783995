"""One step of `generate`: how the model's own loop updates its arguments between passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.utils.generic import ModelOutput

if TYPE_CHECKING:
    from transformers import GenerationMixin


def next_arguments(
    generation: GenerationMixin, outputs: ModelOutput, arguments: dict[str, Any], *, is_encoder_decoder: bool
) -> dict[str, Any]:
    """The arguments of the next pass, computed from this pass's as in `generate`."""
    updated: dict[str, Any] = generation._update_model_kwargs_for_generation(
        outputs, arguments, is_encoder_decoder=is_encoder_decoder
    )
    return updated


def more_arguments(
    generation: GenerationMixin, arguments: dict[str, Any], count: int, *, is_encoder_decoder: bool
) -> dict[str, Any]:
    """The arguments of a pass over `count` more tokens than the next one, as `generate` makes them for drafts."""
    updated: dict[str, Any] = generation._update_model_kwargs_for_generation(
        ModelOutput(),  # type: ignore[no-untyped-call]
        arguments,
        is_encoder_decoder=is_encoder_decoder,
        num_new_tokens=count,
    )
    return updated
