"""Presets: how each kind of corrector is prompted, and the error for a model of another kind."""

from __future__ import annotations

import pytest

from copyspec import Engine
from copyspec.pipelines import GECPipeline, GuardOptions, ModelCorrector, ModelOptions
from copyspec.pipelines.editing.presets import PRESETS
from tests.helpers.texts import bart, byte_level, llama

pytestmark = pytest.mark.usefixtures("steady_drafts")


@pytest.fixture(scope="module")
def encoder_decoder() -> Engine:
    tokenizer = byte_level(template=None)
    return Engine(bart(len(tokenizer)), tokenizer)


@pytest.fixture(scope="module")
def chat() -> Engine:
    tokenizer = byte_level()
    return Engine(llama(len(tokenizer)), tokenizer)


def test_each_kind_is_asked_as_it_was_trained(encoder_decoder: Engine, chat: Engine) -> None:
    for name, engine in (("coedit", encoder_decoder), ("t5-gec", encoder_decoder), ("chat", chat)):
        corrector = ModelCorrector(engine, ModelOptions(preset=name))
        preset = PRESETS[name]
        assert (corrector.instruction, corrector.by_sentence) == (preset.instruction, preset.by_sentence)
        own = ModelCorrector(engine, ModelOptions(preset=name, instruction="Mend: {text}", by_sentence=False))
        assert own.instruction == "Mend: {text}" and not own.by_sentence
        text = "she have two cat. he go home."
        done = GECPipeline(engine, preset=name, max_new_tokens=24)(text)
        assert done.text == GECPipeline(engine, preset=name, max_new_tokens=24, drafts=False)(text).text


def test_a_model_of_another_kind_is_refused(encoder_decoder: Engine, chat: Engine) -> None:
    for name, engine in (("coedit", chat), ("t5-gec", chat), ("chat", encoder_decoder)):
        with pytest.raises(ValueError, match=f"preset='{name}' is for .+leave the preset out"):
            ModelCorrector(engine, ModelOptions(preset=name))
    bare = byte_level(template=None)
    with pytest.raises(ValueError, match="needs a chat template"):
        ModelCorrector(Engine(llama(len(bare)), bare), ModelOptions(preset="chat"))
    with pytest.raises(ValueError, match="preset='t5' must be one of coedit, t5-gec, chat"):
        ModelOptions(preset="t5")


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_confidence_is_a_probability(value: float) -> None:
    with pytest.raises(ValueError, match=r"min_confidence=.+at least 0 and below 1"):
        GuardOptions(min_confidence=value)
