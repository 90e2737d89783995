"""Builds a tiny sibling of a model: the same class and architecture with random weights, for cheap tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import GenerationConfig

from copyspec.common.building import building
from copyspec.targets.hooks.attention import configs, use_masked_attention
from copyspec.targets.selftest.shrinking import shrunk

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

WINDOW, POSITIONS = 8, 64
"""A sibling's sliding windows and chunks, and its number of positions if it has a table of them."""

MAX_PARAMETERS = 20_000_000
"""Larger siblings are not built: some of their sizes have unknown names and were not reduced."""

_SEED = 20_260_101


def small_config(model: PreTrainedModel) -> PreTrainedConfig:
    """Return a small configuration of `model` with attention that takes masks. Raises what its type raises for it."""
    config = shrunk(model.config, window=WINDOW, positions=POSITIONS)
    use_masked_attention(model, configs(config))
    return config


def build(kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model with random weights: float32, on the CPU, in eval mode. torch's global generators are not used."""
    with building(), torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind(config).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"its small sibling would have {size:,} parameters")
    generator = torch.Generator().manual_seed(_SEED)
    with building(), torch.device("cpu"), _OwnGenerator(generator), torch.no_grad():
        made: Any = kind(config)  # typed Any, since its `to` is typed as a function of its class
        model: PreTrainedModel = made.to(torch.float32).eval()
        for parameter in model.parameters():
            # Unit gain, because the usual initialisation gives nearly constant logits, which hide a wrong mask.
            if parameter.dim() >= 2:
                parameter.normal_(std=float(parameter.shape[-1]) ** -0.5)
            elif not parameter.isfinite().all():
                parameter.zero_()
    model.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=None, bos_token_id=1)  # type: ignore[no-untyped-call]
    if config.is_encoder_decoder:
        model.generation_config.decoder_start_token_id = 2
    return model


class _OwnGenerator(TorchFunctionMode):
    """Make this thread draw from its own generator while the mode is active; other threads are not affected."""

    _DRAWS = frozenset(
        {"normal_", "uniform_", "exponential_", "bernoulli_", "random_", "cauchy_", "log_normal_", "geometric_"}
        | {"normal", "rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "trunc_normal_"}
        | {"kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "orthogonal_", "sparse_"}
    )

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if getattr(func, "__name__", "") in self._DRAWS and named.get("generator") is None:
            tensor = next(
                (argument for argument in [*args, *named.values()] if isinstance(argument, torch.Tensor)), None
            )
            device = named.get("device") or ("cpu" if tensor is None else tensor.device)
            if torch.device(device).type == "cpu":
                named["generator"] = self._generator
        return func(*args, **named)
