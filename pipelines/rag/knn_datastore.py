"""The datastore of kNN-LM: a model's hidden states on texts, each with the token that followed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from copyspec.retrievers import ExactIndex, VectorIndex

from ..models import engine_of

if TYPE_CHECKING:
    import torch

    from copyspec import Engine

    from ..models import ModelLike

MAX_TOKENS = 1024
"""Tokens per forward pass while a datastore is built; longer texts are split into pieces of this length."""


class KNNDatastore:
    """Entries in the order of their texts: consecutive entries are consecutive tokens.

    `keys`: an index over hidden states (squared distances), `values`: the token after each. [n]
    """

    def __init__(self, keys: VectorIndex, values: NDArray[np.int64]) -> None:
        """Raises ValueError if the numbers of keys and values differ or are zero, or the metric is not "l2"."""
        if len(keys) != len(values) or not len(values):
            raise ValueError(f"a datastore needs as many keys as values, at least one: {len(keys)} and {len(values)}")
        if keys.metric != "l2":
            raise ValueError(f"the keys' index must have metric='l2', got {keys.metric!r}")
        self.keys, self.values = keys, values

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def build(cls, texts: Sequence[str], *, model: ModelLike = None, index: VectorIndex | None = None) -> KNNDatastore:
        """Build a datastore with an entry for each token of the texts except the first of each piece.

        `index`: an empty index with metric "l2"; None: exact search with NumPy."""
        if isinstance(texts, str):
            raise TypeError(f"texts must be a list of strings, got one string: write [{texts[:20]!r}...]")
        engine = engine_of(model)
        keys: list[NDArray[np.float32]] = []
        values: list[int] = []
        for text in texts:
            ids = engine.codec.encode(text).ids
            for start in range(0, len(ids), MAX_TOKENS):
                piece = ids[start : start + MAX_TOKENS]
                if len(piece) > 1:
                    keys.append(_states(engine, piece[:-1]))
                    values += piece[1:]
        if not values:
            raise ValueError(f"none of the {len(texts)} texts has two tokens")
        made = index if index is not None else ExactIndex(keys[0].shape[1], metric="l2")
        for each in keys:
            made.add(each)
        return cls(made, np.array(values, dtype=np.int64))


@contextmanager
def captured_states(engine: Engine) -> Iterator[list[torch.Tensor]]:
    """Collect the inputs of the LM head (hidden states, [1, n, d]) of each forward pass inside the `with` block."""
    head = engine.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    states: list[torch.Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0].detach()))
    try:
        yield states
    finally:
        handle.remove()


def _states(engine: Engine, ids: list[int]) -> NDArray[np.float32]:
    """The last hidden state at each token. [len(ids), d]"""
    import torch

    from copyspec.targets.hooks.inference import inference_mode

    with engine.forward_lock, inference_mode(True), captured_states(engine) as states:
        engine.model(input_ids=torch.tensor([ids], device=engine.model.device), use_cache=False)
    found: NDArray[np.float32] = states[-1][0].float().cpu().numpy()
    return found
