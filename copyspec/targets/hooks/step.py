"""One step of `generate`: how the model's own loop updates its arguments between passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.utils.generic import ModelOutput

if TYPE_CHECKING:
    from transformers import GenerationMixin


def next_arguments(
    generation: GenerationMixin, arguments: dict[str, Any], outputs: ModelOutput | None = None, count: int = 1
) -> dict[str, Any]:
    """The arguments of a pass over `count` more tokens, made of those of the last one as in `generate`. `outputs`: that
    pass's; None: of more tokens of the same pass, as `generate` makes them for drafts."""
    updated: dict[str, Any] = generation._update_model_kwargs_for_generation(
        ModelOutput() if outputs is None else outputs,  # type: ignore[no-untyped-call]
        arguments,
        is_encoder_decoder=generation.config.is_encoder_decoder,  # type: ignore[attr-defined]
        num_new_tokens=count,
    )
    return updated
