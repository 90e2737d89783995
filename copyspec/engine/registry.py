"""The registry of loaded engines: loads each model once and drops the least recently used one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from copyspec.engine.engine import Engine
from copyspec.forks import at_rest, check_forked
from copyspec.models.errors import first_line, load_errors
from copyspec.models.loading import ModelChoice, identity, load_model
from copyspec.targets.base import UnsupportedModelError

# Two models can be compared without reloading either; more would fill a GPU.
MAX_LOADED = 2


class Registry:
    """Loaded engines in least-recently-used order. Thread-safe: each model is loaded once."""

    def __init__(self, max_loaded: int = MAX_LOADED) -> None:
        self.max_loaded = max_loaded
        self._engines: OrderedDict[tuple[object, ...], Engine] = OrderedDict()
        self._lock = at_rest(threading.RLock())  # protects `_engines`
        # One load at a time: during `from_pretrained` torch's default dtype and its initialisers are changed globally.
        self._loading = at_rest(threading.Lock())

    def engine(self, choice: ModelChoice) -> Engine:
        """The engine of `choice`, loaded if necessary. Loaded engines are returned while others load."""
        key = choice.key()
        while True:
            with self._lock:
                engine = self._engines.pop(key, None)
                if engine is not None and not engine.is_unloaded:
                    self._engines[key] = engine  # move to the most recently used end
                    return engine
            check_forked(self._loading, "loading a model")
            self._load(choice, key)

    def _load(self, choice: ModelChoice, key: tuple[object, ...]) -> None:
        """Load the engine of `choice`, unless another thread has done so in the meantime."""
        with self._loading:
            with self._lock:
                if key in self._engines:
                    return
            engine = load_engine(choice, self.engine)
            with self._lock:
                self._engines[key] = engine
                while len(self._engines) > self.max_loaded:
                    # Not unloaded, since a caller may still use it; it is freed with the last reference.
                    self._engines.popitem(last=False)

    def names(self) -> list[str]:
        """Names of the loaded models, least recently used first."""
        with self._lock:
            return [engine.name for engine in self._engines.values()]

    def forget(self, model: object = None) -> int:
        """Unload the engines of `model` (its name, path, object or engine; None: all) and return how many."""
        with self._lock:
            gone = [
                key
                for key, engine in self._engines.items()
                if model is None or engine is model or engine.name == model or key[0] == identity(model)
            ]
            for key in gone:
                self._engines.pop(key).unload()
            return len(gone)


def load_engine(choice: ModelChoice, load_draft: Callable[[ModelChoice], Engine] | None = None) -> Engine:
    """Load the model and its tokenizer. Raises LoadError, or UnsupportedModelError for its architecture.

    load_draft: loads the models that this one drafts with.
    """
    model, tokenizer = load_model(choice)
    if not isinstance(choice.model, str):
        return Engine(
            model, tokenizer, on_unsupported=choice.on_unsupported, static=choice.static, load_draft=load_draft
        )
    name = choice.model
    with load_errors(lambda error: f"model {name!r} cannot be used: {first_line(error)}", but=UnsupportedModelError):
        return Engine(
            model,
            tokenizer,
            name=name,
            on_unsupported=choice.on_unsupported,
            static=choice.static,
            load_draft=load_draft,
        )
