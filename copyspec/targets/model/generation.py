"""Runs `generate` up to its decoding loop, to get the tokens and arguments that a model class prepares for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig

from copyspec.targets.model.facts import read_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Arguments = dict[str, Any]


class OwnStopStrings(GenerationConfig):
    """A config that `generate` does not complete with the model's stop strings, for which it needs a tokenizer."""

    @classmethod
    def of(cls, config: GenerationConfig) -> OwnStopStrings:
        """The settings of `config` without its stop strings."""
        made = cls()
        vars(made).update(vars(config) | {"stop_strings": None})
        return made

    def update(self, defaults_only: bool = False, allow_custom_entries: bool = False, **changes: Any) -> Any:
        if defaults_only:  # `changes` are the model's config, for what is None here
            changes.pop("stop_strings", None)
        return super().update(  # type: ignore[no-untyped-call]
            defaults_only=defaults_only, allow_custom_entries=allow_custom_entries, **changes
        )


def prepared(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], first: Sequence[Sequence[int]], *, use_cache: bool
) -> tuple[torch.Tensor, Arguments]:
    """The tokens [B, L] with which `generate` enters its loop, and the arguments of `prepare_inputs_for_generation`.

    `prompts`, of one length, and `first`, the decoder's first inputs: the prompts themselves, or the start tokens of
    encoder-decoder models.
    """
    captured: list[tuple[torch.Tensor, Arguments]] = []

    def keep(
        model: object,
        input_ids: torch.Tensor,
        logits_processor: object = None,
        stopping_criteria: object = None,
        generation_config: object = None,
        **arguments: Any,
    ) -> torch.Tensor:
        captured.append((input_ids, arguments))
        return input_ids

    device = read_device(model)
    ids = torch.tensor([*map(list, prompts)], device=device)
    inputs: Arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([*map(list, first)], device=device)
    generator: Any = model  # typed Any, since its type does not show GenerationMixin's methods
    generator.generate(**inputs, custom_generate=keep, generation_config=settings(model, use_cache=use_cache))
    tokens, arguments = captured[0]
    arguments.pop("synced_gpus", None)
    arguments.pop("streamer", None)
    return tokens, arguments


def settings(model: PreTrainedModel, *, new_tokens: int = 1, **options: object) -> GenerationConfig:
    """Greedy decoding of exactly `new_tokens` more tokens, with the special tokens of `model`."""
    named = {
        name: getattr(model.generation_config, name, None)
        for name in ("pad_token_id", "bos_token_id", "decoder_start_token_id")
    }
    return OwnStopStrings(  # type: ignore[no-untyped-call]
        **{name: value for name, value in named.items() if value is not None},
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        token_healing=False,
        **options,
    )


def first_tokens(model: PreTrainedModel) -> list[int]:
    """The decoder's start token, chosen as in `generate`; the prompt goes to the encoder."""
    for config in (model.generation_config, model.config):
        token = getattr(config, "decoder_start_token_id", None)
        token = getattr(config, "bos_token_id", None) if token is None else token
        if token is not None:
            return [int(token)]
    raise ValueError(
        f"{type(model).__name__} names no first decoder token; set generation_config.decoder_start_token_id"
    )
