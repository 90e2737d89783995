"""One step of `generate`: what the model's own loop hands from one pass to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import GenerationMixin
    from transformers.utils import ModelOutput


def next_arguments(
    generation: GenerationMixin, outputs: ModelOutput, arguments: dict[str, Any], *, is_encoder_decoder: bool
) -> dict[str, Any]:
    """Arguments of the next pass, as `generate` makes them of this one's."""
    updated: dict[str, Any] = generation._update_model_kwargs_for_generation(
        outputs, arguments, is_encoder_decoder=is_encoder_decoder
    )
    return updated
