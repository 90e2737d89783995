"""Checks of a model against its weights: of its size while it is built, and of what was read into it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from copyspec.models.errors import FileError
from copyspec.models.files import CONFIG

if TYPE_CHECKING:
    import torch

# Limits on what a configuration may describe. Modules and tensors: the largest mixtures of experts have some 300,000.
# Elements of tensors: a weight takes at least one bit of the file and is counted twice (when created and when read);
# computed tables such as position tables are not in the file.
MAX_PARTS, MAX_COMPUTED, ELEMENTS_PER_BYTE = 1_000_000, 1 << 28, 2 * 8


LOADING = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Options of `from_pretrained`, which then also returns what `check_complete` takes."""

OPTIONAL_PREFIX = "pooler."
"""Prefix of weights that an encoder may lack: embeddings are made from its hidden states, not from the pooler."""


def check_complete(info: Mapping[str, Collection[Any]]) -> None:
    """Raise FileError if any weight is missing or has another shape: transformers fills it with random numbers."""
    if mismatched := sorted(info["mismatched_keys"]):
        name, shape, needed = mismatched[0]
        raise FileError(f"it has {name!r} of shape {list(shape)}, and the model needs {list(needed)}")
    if missing := sorted(name for name in info["missing_keys"] if not name.startswith(OPTIONAL_PREFIX)):
        raise FileError(f"it lacks {len(missing)} weights, {missing[0]!r} for one")


@contextmanager
def bounded(size: int | None, what: str = CONFIG) -> Iterator[None]:
    """Abort the construction of a model that has more parts than its weights can fill. `size`: bytes of the weights, if
    known; `what`: where the model is described. Raises FileError."""
    from torch.nn.modules import module

    most = None if size is None else MAX_COMPUTED + ELEMENTS_PER_BYTE * size
    thread, parts, elements = threading.get_ident(), 0, 0

    def count(_module: torch.nn.Module, name: str, part: torch.nn.Module | torch.Tensor | None) -> None:
        nonlocal parts, elements
        if threading.get_ident() != thread or part is None:
            return
        parts += 1
        elements += getattr(part, "numel", int)()
        if parts > MAX_PARTS:
            raise FileError(f"{what} describes a model of more than {MAX_PARTS:,} parts")
        if most is not None and elements > most:
            raise FileError(f"{what} describes more weights than its {size:,} bytes can hold (as far as {name})")

    register: tuple[Callable[..., Any], ...] = (
        module.register_module_module_registration_hook,
        module.register_module_parameter_registration_hook,
        module.register_module_buffer_registration_hook,
    )
    with ExitStack() as stack:
        for hook in register:
            stack.callback(hook(count).remove)
        yield
