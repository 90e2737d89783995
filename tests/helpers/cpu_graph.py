"""Simulates a CUDA graph on a CPU: records the operators of one run with their tensors, and replays them in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

FORBIDDEN = frozenset(
    f"aten::{name}" for name in ("_local_scalar_dense", "lift_fresh", "nonzero", "masked_select", "equal")
)
"""Operators that a capture rejects, because the host would wait for the device, or its data would be frozen."""


class _Recording(TorchDispatchMode):
    def __init__(self, tape: list[tuple[Callable[..., Any], Any, Any, list[Any], list[bool]]]) -> None:
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().split(".")[0] in FORBIDDEN:
            raise RuntimeError(f"{func.name()} in a graph")
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        storages = {
            leaf.untyped_storage().data_ptr() for leaf in pytree.tree_leaves((args, kwargs)) if _is_tensor(leaf)
        }
        made = pytree.tree_leaves(out)
        fresh = [_is_tensor(tensor) and tensor.untyped_storage().data_ptr() not in storages for tensor in made]
        writes = any(
            argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments
        )
        if writes or any(fresh):
            self.tape.append((func, args, kwargs, made, fresh))
        return out


class CpuGraph:
    """Replaces `static.running.CudaGraph`. Unlike CUDA, capturing also executes the operators."""

    def __init__(self) -> None:
        self._tape: list[tuple[Callable[..., Any], Any, Any, list[Any], list[bool]]] = []
        self.replays = 0

    @property
    def operators(self) -> int:
        """Number of recorded operators that create or write data."""
        return len(self._tape)

    @contextmanager
    def capture(self) -> Iterator[None]:
        with _Recording(self._tape):
            yield

    @torch.inference_mode()  # as on a device, where a replay is independent of modes
    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, outs, fresh in self._tape:
            again = pytree.tree_leaves(func(*args, **kwargs))
            for old, new, is_fresh in zip(outs, again, fresh, strict=True):
                if is_fresh:
                    old.copy_(new)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
