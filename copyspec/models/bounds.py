"""Bounds on the size of a model while it is built, before any of its weights is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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
        for each in register:
            stack.callback(each(count).remove)
        yield
