"""The engine that a pipeline runs on, and how instructions are given to its model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import copyspec
from copyspec.engine.call_options import check_options
from copyspec.engine.inputs import PromptTooLongError
from copyspec.models.aliases import ALIASES, Alias
from copyspec.models.loading import BUNDLED, BUNDLED_LANGUAGES, DEFAULT, resolve_name
from copyspec.models.pretrained import Pretrained
from copyspec.models.resolve import place

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec import Engine

    ModelLike = str | os.PathLike[str] | PreTrainedModel | Engine | None


def engine_of(model: ModelLike) -> Engine:
    """The engine for `model`, as in `copyspec.generate`; None is the configured or bundled one."""
    return model if isinstance(model, copyspec.Engine) else copyspec.load(model)


def engine_and_options(
    model: ModelLike, options: Mapping[str, object], others: Iterable[str] = ()
) -> tuple[Engine, dict[str, Any]]:
    """The engine for `model`, loaded as the options of `copyspec.load` among `options` say, and the options left, which
    are those of calls. Raises TypeError or ValueError, before a model is loaded, for an unknown or invalid one. Those
    named in `others` are left to the caller."""
    from copyspec.api import LoadOptions

    loading = {name: value for name, value in options.items() if name in LoadOptions.__annotations__}
    given = {name: value for name, value in options.items() if name not in loading}
    check_options(given, (*LoadOptions.__annotations__, *others))
    return copyspec.load(model, **loading), given  # type: ignore[arg-type]  # load says what is wrong with them


def correction_engine_of(model: ModelLike) -> Engine:
    """The engine for `model`; None is the configured one, or the best available model for correcting and quoting."""
    from copyspec.api import load_corrector

    return model if isinstance(model, copyspec.Engine) else load_corrector(model)


def wants_chat(engine: Engine) -> bool:
    """Whether instructions are put through the model's chat template.

    They are if there is one, unless the tokenizer itself applies it to plain text, as the bundled one does: then spans
    can refer to characters of the prompt.
    """
    return bool(engine.tokenizer.chat_template) and not answers_plain_text(engine)


def chat_option(engine: Engine) -> Literal[True, "auto"]:
    """The option `chat` for an instruction. Never False, which would send it raw to a model that answers plain text."""
    return True if wants_chat(engine) else "auto"


def answers_plain_text(engine: Engine) -> bool:
    """Whether the tokenizer applies the chat template to plain text, so that the model answers instead of continuing
    it."""
    return engine.codec.frames


def is_bundled(engine: Engine) -> bool:
    """Whether it is the bundled model, which knows only the instructions it was trained on."""
    path = getattr(engine.model.config, "_name_or_path", "")
    return bool(path) and os.path.realpath(path) == os.path.realpath(BUNDLED)


def corrects(engine: Engine) -> bool:
    """Whether it is one of copyspec's own models, trained to correct and to quote sentences."""
    alias = ALIASES.get(engine.name)
    return is_bundled(engine) or (alias is not None and alias.corrects)


def own_alias(engine: Engine) -> Alias | None:
    """The short name of the model; None for others, and if an adapter of the user's is merged into it, which makes
    another model under the same name."""
    alias = ALIASES.get(engine.name)
    if alias is None:
        return None
    # The name of its folder begins with that of `place`; with an adapter of the user's, with the adapter's name.
    folder = os.path.basename(getattr(engine.model.config, "_name_or_path", ""))
    return alias if folder.startswith(place(alias).name) else None


def corrected_languages(engine: Engine) -> Sequence[str]:
    """Codes of the languages that the model was trained to correct; none: unknown."""
    if is_bundled(engine):
        return BUNDLED_LANGUAGES
    alias = own_alias(engine)
    return () if alias is None else alias.languages


def name_of(engine: Engine) -> str:
    """The name by which people give the model; the bundled one is loaded by its path, which nobody types."""
    return DEFAULT if is_bundled(engine) else engine.name


def corrects_by_itself(name: str) -> bool:
    """Whether the draft model of that name writes full corrections by itself: copyspec's own, or an
    encoder-decoder."""
    from copyspec.engine.draft_models import names_model

    if not names_model(name):
        return False
    model = resolve_name(name)
    alias = ALIASES.get(model)
    is_own = model == str(BUNDLED) or (alias is not None and alias.corrects)
    return is_own or bool(Pretrained(model).config().is_encoder_decoder)


def fits(engine: Engine, prompt: str, *, chat: Literal[True, "auto"]) -> bool:
    """Whether `prompt` fits into the model's context."""
    try:
        engine.jobs(prompt, None, check_options({"chat": chat}))
    except PromptTooLongError:
        return False
    return True
