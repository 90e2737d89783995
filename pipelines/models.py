"""Which engine a pipeline runs on, and how its instructions reach the model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import copyspec
from copyspec.api import load_corrector
from copyspec.engine.call_options import check_options
from copyspec.engine.draft_models import LAYERS, POOL
from copyspec.engine.inputs import PromptTooLongError
from copyspec.models.aliases import ALIASES
from copyspec.models.loading import BUNDLED, named
from copyspec.models.pretrained import Pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec import Engine

    ModelLike = str | os.PathLike[str] | PreTrainedModel | Engine | None

_ANY_TEXT = "a text"


def engine_of(model: ModelLike) -> Engine:
    """The engine of `model` as `copyspec.generate` takes it; None is the configured or bundled one."""
    return model if isinstance(model, copyspec.Engine) else copyspec.load(model)


def corrector_of(model: ModelLike) -> Engine:
    """As `engine_of`; None is the configured model, or the best of those that correct and quote."""
    return model if isinstance(model, copyspec.Engine) else load_corrector(model)


def wants_chat(engine: Engine) -> bool:
    """Whether instructions go through the model's chat template.

    They do where there is one, unless the tokenizer puts the same around a plain text, as the bundled one does:
    then spans know the characters of the prompt.
    """
    return bool(engine.tokenizer.chat_template) and not answers_plain_text(engine)


def answers_plain_text(engine: Engine) -> bool:
    """Whether the tokenizer puts the chat template's frame around a plain text, so that an answer follows, no
    continuation."""
    if not engine.tokenizer.chat_template:
        return False
    as_chat = engine.codec.encode_chat([{"role": "user", "content": _ANY_TEXT}])
    return engine.codec.encode(_ANY_TEXT, wrap=True).ids == as_chat.ids


def is_bundled(engine: Engine) -> bool:
    """Whether it is the model of the package, which knows its own instructions only."""
    path = getattr(engine.model.config, "_name_or_path", "")
    return bool(path) and os.path.realpath(path) == os.path.realpath(BUNDLED)


def corrects(engine: Engine) -> bool:
    """Whether it is a model of copyspec's own that was trained to correct and to quote sentences."""
    alias = ALIASES.get(engine.name)
    return is_bundled(engine) or (alias is not None and alias.corrects)


def corrects_by_itself(name: str) -> bool:
    """Whether the model of that name, a draft model of another one, is one that writes corrections of its own:
    copyspec's, or an encoder-decoder."""
    if name == POOL or name.startswith(LAYERS):
        return False
    place = named(name)
    alias = ALIASES.get(place)
    is_own = place == str(BUNDLED) or (alias is not None and alias.corrects)
    return is_own or bool(Pretrained(place).config().is_encoder_decoder)


def fits(engine: Engine, prompt: str, *, chat: bool) -> bool:
    """Whether `prompt` fits into the model's context."""
    try:
        engine.jobs(prompt, None, check_options({"chat": chat}))
    except PromptTooLongError:
        return False
    return True
