"""Draft models: resolves `draft_model=`, loads each model once per engine and matches it to the engine's tokenizer."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, Union

import torch

from copyspec.common.checks import brief
from copyspec.common.control_groups import available_memory
from copyspec.common.forks import check_forked, fork_safe
from copyspec.drafters.predictors.base import Predictor, RowContext
from copyspec.drafters.predictors.early_exit import early_exit
from copyspec.drafters.predictors.head_files import load_heads
from copyspec.drafters.predictors.heads import DraftHeads, HeadsPredictor
from copyspec.drafters.predictors.language_model import DraftModel, ModelPredictor
from copyspec.drafters.predictors.mtp_files import load_mtp, mtp_size
from copyspec.drafters.predictors.text_bridge import BridgedPredictor, Tokenizing
from copyspec.drafters.predictors.unasked import UnaskedPredictor
from copyspec.models.errors import LoadError, expanded
from copyspec.models.loading import ModelChoice, identity, load_model, resolve_name
from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.model.facts import read_device
from copyspec.targets.model.locks import lock_of
from copyspec.text.codec import Codec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Target

logger = logging.getLogger(__name__)

LAYERS = "layers:"
"""`draft_model="layers:2"`: the target's own first two layers."""

MAX_DIGITS = 9  # of a number of layers; Python reads no number of thousands

HEADS = "heads:"
"""`draft_model="heads:FOLDER"`: heads that read the target's last hidden state (`training.heads`)."""

MTP = "mtp"
"""`draft_model="mtp"`: the layer for multi-token prediction in the files that the target was loaded from."""

MTP_MEMORY = 4
"""An MTP layer drafts unasked only if available memory is so many times its weights: they are packed a second time."""


class LoadedModel(Protocol):
    """A model and its tokenizer; an engine, for example."""

    @property
    def model(self) -> PreTrainedModel: ...
    @property
    def codec(self) -> Codec: ...


DraftChoice = Union[str, "os.PathLike[str]", "PreTrainedModel", LoadedModel]

MakePredictor = Callable[[RowContext], "Predictor"]


@dataclass(frozen=True, slots=True)
class _Matched:
    """A choice that drafts, matched to the engine's tokenizer."""

    chosen: object  # held because its key may be its id
    make: MakePredictor
    target: Target | None = None  # of a model
    same_vocabulary: bool = True


class DraftModels:
    """The draft models of one engine, used without changes. Models given by name are loaded onto the engine's device in
    its dtype and kept as long as the engine; engines of one registry share them."""

    def __init__(
        self, model: PreTrainedModel, codec: Codec, load: Callable[[ModelChoice], LoadedModel] | None = None
    ) -> None:
        """`load`: loads models given by name; None: they are loaded for this engine alone."""
        self._model, self._codec, self._load_named = model, codec, load
        self._loaded: dict[object, _Matched] = {}
        self.unasked: Sequence[MakePredictor] | None = None
        """What `find_unasked` has found; None: it was not called yet."""
        self._loading = fork_safe(threading.Lock())
        self.locks: tuple[threading.RLock, ...] = ()
        """Locks of the models that draft."""

    def predictors(self, chosen: Sequence[object]) -> list[MakePredictor]:
        """A factory of row predictors for each choice. Raises ValueError, TypeError or LoadError for one that cannot
        draft."""
        return [self._find(name).make for name in chosen]

    def find_unasked(self) -> Sequence[MakePredictor]:
        """The predictor of the MTP layer in the target's files, for calls that name no draft model; none if there is no
        such layer, its files are broken or little memory is left. Whether a step of it pays is measured while it
        drafts."""
        check_forked(self._loading, "loading a draft model")
        with self._loading:
            if (unasked := self.unasked) is None:
                self._check_loaded()
                unasked = self.unasked = self._of_own_files()
        return unasked

    def _of_own_files(self) -> list[MakePredictor]:
        model = self._model
        size = mtp_size(model) * model.dtype.itemsize
        on_gpu = model.device.type == "cuda"
        memory = torch.cuda.mem_get_info(model.device)[0] if on_gpu else available_memory()
        if not size or 0 < memory < MTP_MEMORY * size:
            return []
        try:
            make = self._find_heads(MTP).make
        except LoadError as error:
            self._lose_unasked(error)
            return []
        logger.info(
            "%s drafts with the layer for multi-token prediction in its own files (%d MB), where measured times say "
            "that it pays; drafter='copy' leaves it out",
            type(model).__name__,
            size / 1e6,
        )
        return [lambda row: UnaskedPredictor(lambda: make(row), self._lose_unasked)]

    def _lose_unasked(self, error: Exception) -> None:
        name = type(self._model).__name__
        if self.unasked != []:
            logger.warning("%s: its layer for multi-token prediction does not draft: %s", name, error)
        self.unasked = []

    def second(self, chosen: object) -> Target:
        """The target of a rule's second model. Raises ValueError for a model that cannot score the target's tokens."""
        if isinstance(chosen, str) and _is_heads(chosen):
            raise ValueError(f"the model of rule= is {chosen!r}, which is none; give a smaller one, or 'layers:2'")
        try:
            match = self._find(chosen)
        except (ValueError, LoadError) as error:
            kind = LoadError if isinstance(error, LoadError) else ValueError
            raise kind(str(error).replace("draft_model", "the model of rule", 1)) from error
        target, size = match.target, self._model.config.get_text_config(decoder=True).vocab_size
        assert target is not None
        if not match.same_vocabulary or target.vocab_size != size:
            raise ValueError(
                f"the model of rule={chosen!r} has another vocabulary than the model, so it cannot score its tokens"
            )
        if target.is_encoder_decoder != bool(self._model.config.is_encoder_decoder) or not target.supports_trees:
            raise ValueError(f"the model of rule={chosen!r} cannot score this model's drafts; take one of its kind")
        return target

    def rematch(self, codec: Codec) -> None:
        """Match the draft models again after the engine's tokenizer or vocabulary has changed."""
        # Without the lock: a thread that holds the model's lock must not wait for one that loads.
        self._codec, self._loaded, self.unasked = codec, {}, None

    def unload(self) -> None:
        """Release all draft models."""
        self._loaded.clear()
        self.unasked = None
        self.__dict__.pop("_model", None)

    def _find(self, chosen: object) -> _Matched:
        self._check_loaded()
        if isinstance(chosen, str) and _is_heads(chosen):
            return self._find_heads(chosen)
        key = _key(chosen)
        if (matched := self._loaded.get(key)) is not None:
            return matched  # without the lock: a thread that holds the model's lock must not wait for one that loads
        check_forked(self._loading, "loading a draft model")
        with self._loading:
            loaded = self._loaded
            if key not in loaded:
                model, codec = self._load(chosen)
                self._check(model)
                # Of static shapes, each row of a batch would have buffers and captures of its own.
                drafting = DraftModel(wrap(model, static=StaticOptions(use="never")))
                loaded[key] = self._match(chosen, drafting, codec)
                self.locks = tuple({*self.locks, lock_of(model)})
            return loaded[key]

    def _check_loaded(self) -> None:
        if "_model" not in self.__dict__:
            raise RuntimeError("the engine was unloaded while a call was being prepared; load the model again")

    def _find_heads(self, chosen: str) -> _Matched:
        if (matched := self._loaded.get(chosen)) is None and chosen == MTP:
            heads = DraftHeads(load_mtp(self._model), self._model, MTP)
            matched = self._loaded[MTP] = _Matched(chosen, partial(HeadsPredictor, heads))
        elif matched is None:
            folder = expanded(chosen[len(HEADS) :], f"the path of draft_model={HEADS!r}")
            if chosen == HEADS:
                raise ValueError(f"draft_model={chosen!r} must name a folder, as in '{HEADS}FOLDER'")
            heads = DraftHeads(load_heads(folder, self._model), self._model, str(folder.resolve()))
            matched = self._loaded[chosen] = _Matched(chosen, partial(HeadsPredictor, heads))
        return matched

    def _load(self, chosen: object) -> tuple[PreTrainedModel, Codec]:
        """The chosen model and its tokenizer; a model object uses the target's."""
        if isinstance(chosen, str) and chosen.startswith(LAYERS):
            number = chosen[len(LAYERS) :]
            if not number.isdecimal() or len(number) > MAX_DIGITS:
                raise ValueError(f"draft_model={brief(chosen)} must name a number of layers, as in 'layers:2'")
            try:
                return early_exit(self._model, int(number)), self._codec
            except ValueError as error:
                raise ValueError(f"draft_model={chosen!r}: {error}") from error
        if isinstance(chosen, (str, os.PathLike)):
            name, device = resolve_name(chosen), read_device(self._model)
            choice = ModelChoice(name, device=device, dtype=self._model.dtype)
            if self._load_named is not None:
                named_model = self._load_named(choice)
                return named_model.model, named_model.codec
            model, tokenizer = load_model(choice)
            return model, Codec(tokenizer)
        from transformers import PreTrainedModel

        if isinstance(chosen, PreTrainedModel):
            return chosen, self._codec
        loaded: LoadedModel = chosen  # type: ignore[assignment]  # `can_draft` allows nothing else
        if getattr(loaded, "is_unloaded", False):
            raise RuntimeError(f"draft_model={chosen!r} was unloaded; load it again with copyspec.load")
        return loaded.model, loaded.codec

    def _check(self, model: PreTrainedModel) -> None:
        if model is self._model:
            raise ValueError(
                "draft_model is the target itself, so that a draft would cost as much as decoding; give a smaller "
                "model, or 'layers:2' to draft with its first two layers"
            )
        device = read_device(self._model)
        if read_device(model) != device:
            raise ValueError(
                f"draft_model is on {read_device(model)}, the model on {device}; move it with "
                f"draft_model.to({str(device)!r}), or give its name to have it loaded there"
            )

    def _match(self, chosen: object, model: DraftModel, codec: Codec) -> _Matched:
        ours, theirs = self._codec, codec
        if ours is theirs or ours.tokenizer.get_vocab() == theirs.tokenizer.get_vocab():
            return _Matched(chosen, partial(ModelPredictor, model), model.target)
        if model.target.is_encoder_decoder:
            raise ValueError("a draft model with a tokenizer of its own must be decoder-only")
        logger.info("the draft model has a tokenizer of its own: its drafts are converted as text")

        def make(row: RowContext) -> Predictor:
            return BridgedPredictor(model, row, _tokenizing(ours), _tokenizing(theirs))

        return _Matched(chosen, make, model.target, same_vocabulary=False)


def _key(chosen: object) -> object:
    return identity(resolve_name(chosen) if isinstance(chosen, (str, os.PathLike)) else chosen)


def names_model(chosen: str) -> bool:
    """Whether a str given as `draft_model` names a model; others mean parts of the target, or heads for it."""
    return not (chosen.startswith(LAYERS) or _is_heads(chosen))


def _is_heads(chosen: str) -> bool:
    return chosen == MTP or chosen.startswith(HEADS)


def can_draft(chosen: object) -> bool:
    """Whether `chosen` is of a type that `draft_model` accepts."""
    if isinstance(chosen, (str, os.PathLike)):
        return bool(os.fspath(chosen))
    from transformers import PreTrainedModel

    return isinstance(chosen, PreTrainedModel) or isinstance(getattr(chosen, "codec", None), Codec)


def _tokenizing(codec: Codec) -> Tokenizing:
    return Tokenizing(lambda text: codec.encode(text).ids, codec.decode)
