"""Targets: models that are run through their public forward, with a KV cache that holds draft trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.options import StaticOptions
    from copyspec.targets.base import Target


def wrap(
    model: PreTrainedModel,
    *,
    on_unsupported: Literal["error", "plain"] = "error",
    static: StaticOptions | None = None,
) -> Target:
    """Wrap `model` as a target that scores draft trees. The model itself is never altered.

    Where the architecture cannot verify drafts (recurrent layers cannot be rolled back), "error" raises
    UnsupportedModelError, and "plain" returns a target that decodes without drafts. `static`: options of passes with
    static shapes; None: use those on CUDA devices.
    """
    from copyspec.targets.dispatch import make_target  # loads torch and transformers

    return make_target(model, on_unsupported, static)
