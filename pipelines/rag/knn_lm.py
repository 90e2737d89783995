"""kNN-LM: mixes the model's next-token distribution with what followed similar contexts in a datastore.

P = weight * P_knn + (1 - weight) * P_lm (Khandelwal et al. 2020, arXiv:1911.00172, equation 3). The speculative form
searches a cache of entries first, and verifies several tokens with one search of the datastore (RaLMSpec, Zhang et al.
2024, arXiv:2401.14021, section 5.3). The cache also takes the entries after those found, and a guess is right if it
leads to the same token, whatever its neighbours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from copyspec.common.checks import check_count, check_whole, plain_value
from copyspec.common.forks import fork_safe
from copyspec.retrievers import ExactIndex, Scheduler, Search, SpeculationStats, VectorIndex, Worker

from ..models import engine_of
from .rounds import Rounds, plainly

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
        for key in keys:
            made.add(key)
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
    vectors: NDArray[np.float32] = states[-1][0].float().cpu().numpy()
    return vectors


CONSECUTIVE = 10
"""Entries after each found one that enter the cache, the paper's n."""

CAPACITY = 4096
"""Entries in the cache; the oldest are evicted first."""


@dataclass(frozen=True, slots=True)
class KNNOptions:
    """The weighting of neighbours. All of these options affect the output."""

    neighbours: int = 8
    weight: float = 0.25  # of the neighbours' distribution
    temperature: float = 10.0  # a neighbour at this squared distance weighs exp(-distance / temperature)

    def __post_init__(self) -> None:
        check_whole("neighbours", self.neighbours, low=1)
        if not 0.0 <= self.weight <= 1.0:
            raise ValueError(f"weight must be from 0 to 1, got {self.weight!r}")
        if not self.temperature > 0.0:
            raise ValueError(f"temperature must be above 0, got {self.temperature!r}")


@dataclass(frozen=True, slots=True)
class KNNAnswer:
    """One output."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length"]
    speculation: SpeculationStats
    seconds: float


class KNNLM:
    """A decoder-only model with kNN-LM for every token. Greedy; `speculates=False` waits for every search.

    `scheduler`: plans the rounds; by default one that learns costs. Thread-safe.
    """

    def __init__(
        self,
        datastore: KNNDatastore,
        *,
        model: ModelLike = None,
        options: KNNOptions | None = None,
        speculates: bool = True,
        scheduler: Scheduler | None = None,
    ) -> None:
        """Raises ValueError for encoder-decoder models."""
        self.engine = engine_of(model)
        if self.engine.model.config.is_encoder_decoder:
            raise ValueError(f"{type(self.engine.model).__name__} is an encoder-decoder; kNN-LM needs a decoder only")
        self.datastore, self.options, self.speculates = datastore, options or KNNOptions(), speculates
        self._scheduler = scheduler or Scheduler()
        self._cache = _Entries(datastore)
        self._worker = Worker()

    def __call__(self, prompt: str, *, max_new_tokens: int = 128) -> KNNAnswer:
        """Generate up to the end of sequence or `max_new_tokens`. Raises ValueError for a prompt without tokens, or if
        the output does not fit into the model's context."""
        limit = check_count("max_new_tokens", plain_value(max_new_tokens))  # a numpy integer too, as in `generate`
        ids = self.engine.codec.encode(prompt, wrap=True).ids
        if not ids:
            raise ValueError(f"the prompt has no tokens: {prompt!r}; the model needs at least one")
        started = perf_counter()
        text = _Text(self, ids, limit)
        stats = SpeculationStats()
        if self.speculates:
            rounds = Rounds(text, self._submit, self._search, self._scheduler, guesses_first=True)
            for _ in rounds.run():
                pass
            stats = rounds.stats
        else:
            for _ in plainly(text, self._search):
                pass
        ended = text.tokens[-1] in text.ends
        codec = self.engine.codec
        written = codec.text_of(text.tokens[:-1] if ended else text.tokens, codec.context(ids))
        reason: Literal["stop", "length"] = "stop" if ended else "length"
        return KNNAnswer(written, tuple(text.tokens), reason, stats, perf_counter() - started)

    def close(self) -> None:
        """End the worker thread."""
        self._worker.close()

    def __enter__(self) -> KNNLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def guess(self, moment: Moment) -> int | None:
        """The next token according to the cached entries; None while there are none."""
        nearest = self._cache.nearest(moment.state, self.options.neighbours)
        return None if nearest is None else self._token(moment, *nearest)

    def _submit(self, moments: Sequence[Moment], then: Callable[[Sequence[int]], None]) -> Search[list[int]]:
        return self._worker.submit(lambda: self._find(moments), then)

    def _search(self, moments: Sequence[Moment]) -> Search[list[int]]:
        return Search.here(lambda: self._find(moments))

    def _find(self, moments: Sequence[Moment]) -> list[int]:
        """The next token at each moment, with one search of the datastore."""
        nearest = self.datastore.keys.search(np.stack([moment.state for moment in moments]), self.options.neighbours)
        if self.speculates:
            self._cache.add(np.concatenate([ids for ids, _ in nearest]))
        return [self._token(moment, ids, scores) for moment, (ids, scores) in zip(moments, nearest, strict=True)]

    def _token(self, moment: Moment, ids: NDArray[np.int64], scores: NDArray[np.float64]) -> int:
        """The most likely token of the mixture; ties by lowest id."""
        weights = np.exp((scores - scores.max()) / self.options.temperature)
        mixed = (1.0 - self.options.weight) * moment.probabilities
        # np.add.at, because several neighbours may have the same token.
        np.add.at(mixed, self.datastore.values[ids], self.options.weight * weights / weights.sum())
        return int(mixed.argmax())


@dataclass(frozen=True, slots=True)
class Moment:
    """The model's state and distribution at a position."""

    state: NDArray[np.float32]  # [d], the input of the LM head
    probabilities: NDArray[np.float64]  # [V], the model's own


class _Text:
    """One output, token by token (see `rounds.Task`). An answer is the next token."""

    def __init__(self, pipeline: KNNLM, prompt: list[int], limit: int) -> None:
        from transformers import DynamicCache

        from copyspec.targets.hooks.modules import cache_argument
        from copyspec.targets.model.facts import forward_arguments

        self._pipeline, self._engine, self._start = pipeline, pipeline.engine, len(prompt)
        context = self._engine.max_length
        room = limit if context is None else context - len(prompt) + 1
        if room < 1:
            raise ValueError(f"a prompt of {len(prompt)} tokens leaves no room in the model's context")
        self._limit = min(limit, room)
        self._cache = DynamicCache()
        # The logits of all tokens of a long prompt take gigabytes.
        arguments = forward_arguments(self._engine.model)
        self._keywords: dict[str, object] = {"use_cache": True, cache_argument(arguments): self._cache}
        if "logits_to_keep" in arguments:
            self._keywords["logits_to_keep"] = 1
        self.tokens: list[int] = []
        self.ends = _ends(self._engine)
        self._moment = self._read(prompt)

    @property
    def position(self) -> int:
        return len(self.tokens)

    def query(self) -> Moment:
        return self._moment

    def guess(self, query: Moment) -> int | None:
        return self._pipeline.guess(query)

    def same(self, guess: int, truth: int) -> bool:
        return guess == truth

    def reads(self, answer: int) -> bool:
        return False

    def take(self, answer: int) -> None:
        self.tokens.append(answer)

    def advance(self, abandon: Callable[[], bool]) -> bool:
        if self.tokens[-1] in self.ends or len(self.tokens) >= self._limit:
            return True
        self._moment = self._read(self.tokens[-1:])
        return False

    def back(self, position: int) -> None:
        del self.tokens[position:]
        surplus = self._cache.get_seq_length() - (self._start + position)
        if surplus:
            self._cache.crop(-surplus)

    def _read(self, tokens: Sequence[int]) -> Moment:
        import torch

        from copyspec.targets.hooks.inference import inference_mode

        engine = self._engine
        with engine.forward_lock, inference_mode(True), captured_states(engine) as states:
            ids = torch.tensor([list(tokens)], device=engine.model.device)
            logits = engine.model(input_ids=ids, **self._keywords).logits
        probabilities = logits[0, -1].double().softmax(-1).cpu().numpy()
        return Moment(states[-1][0, -1].float().cpu().numpy(), probabilities)


class _Entries:
    """Cached entries in one matrix; the oldest are evicted first."""

    def __init__(self, datastore: KNNDatastore) -> None:
        self._datastore = datastore
        self._keys = np.empty((CAPACITY, datastore.keys.dimension), np.float32)
        self._squares = np.empty(CAPACITY, np.float32)  # squared norms of the keys
        self._ids = np.full(CAPACITY, -1, np.int64)
        self._held: set[int] = set()
        self._next = 0
        self._lock = fork_safe(threading.Lock())

    def add(self, ids: NDArray[np.int64]) -> None:
        """Add the found entries, and the CONSECUTIVE ones after each."""
        near = np.unique(ids[:, None] + np.arange(CONSECUTIVE + 1))
        with self._lock:
            new = [int(index) for index in near if index < len(self._datastore) and int(index) not in self._held]
            if not new:
                return
            new = new[-CAPACITY:]
            slots = (self._next + np.arange(len(new))) % CAPACITY
            self._held -= set(self._ids[slots].tolist())
            self._held |= set(new)
            self._ids[slots] = new
            vectors = self._datastore.keys.vectors(new)
            self._keys[slots], self._squares[slots] = vectors, np.einsum("nd,nd->n", vectors, vectors)
            self._next = int(slots[-1] + 1) % CAPACITY

    def nearest(self, state: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        """Return ids and scores of the `k` nearest entries, as a search would; None while there are none."""
        with self._lock:
            count = len(self._held)
            if not count:
                return None
            # Squared distances minus |state|^2 have the same order, and need no copy of the matrix.
            distances = self._squares[:count] - 2.0 * (self._keys[:count] @ state)
            best = np.argpartition(distances, min(k, count) - 1)[:k]
            ids, difference = self._ids[best], self._keys[best] - state
        return ids, -np.einsum("nd,nd->n", difference, difference).astype(np.float64)


def _ends(engine: Engine) -> frozenset[int]:
    """The model's end-of-sequence tokens."""
    config = engine.model.generation_config
    eos = config.eos_token_id if config is not None else None
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)
