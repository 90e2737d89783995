"""A model's own layer for multi-token prediction drafts in calls: by name, and unasked where its files hold one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import copyspec
from copyspec.drafters.predictors.heads import HeadsPredictor
from copyspec.engine.drafting import draft_models
from copyspec.engine.engine import Engine
from copyspec.engine.results import Result
from copyspec.literature import Contrast, MultiStep
from copyspec.models.errors import LoadError
from copyspec.options import StaticOptions
from tests.helpers import mtp
from tests.helpers.tiny import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("steady_drafts")

PROMPTS = ["some text that the model goes on with", "abc", "x"]
MIMO = "model.mtp_layers.0.input_proj.weight"
SAYS = "layer for multi-token prediction"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mtp"))


def written(folder: Path, changes: dict[str, torch.Tensor | None] | None = None) -> Path:
    tokenizer = tiny_tokenizer()
    mtp.write("MiMo", folder, changes, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(folder)
    return folder


def heads(results: list[Result]) -> int:
    return sum(result.stats.num_draft_tokens_per_source.get("heads", 0) for result in results)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_drafts_unasked(temperature: float, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = copyspec.load(folder, device="cpu")
    options = {"max_new_tokens": 20, "temperature": temperature, "seed": 1, "ignore_eos": True}
    plain = [result.token_ids for result in engine.generate(PROMPTS, drafter="none", **options)]
    with caplog.at_level(logging.INFO):
        for batch_size in (1, 3):
            drafted = engine.generate(PROMPTS, batch_size=batch_size, **options)
            assert [result.token_ids for result in drafted] == plain and heads(drafted)
    assert sum(SAYS in record.message for record in caplog.records) == 1
    for others in ({"drafter": "copy"}, {"draft_model": "layers:1"}, {"rule": MultiStep()}):
        assert not heads(engine.generate(PROMPTS, **{**options, **others, "temperature": max(temperature, 0.1)}))
    engine.unload()
    with pytest.raises(RuntimeError, match="was unloaded"):
        engine._drafting.find_unasked()


def test_it_drafts_by_name(folder: Path) -> None:
    engine = copyspec.load(folder, device="cpu")
    options = {"max_new_tokens": 20, "ignore_eos": True}
    plain = [result.token_ids for result in engine.generate(PROMPTS, drafter="none", **options)]
    for chosen in ({"draft_model": "mtp", "drafter": "model"}, {"draft_model": ["mtp", "layers:1"]}):
        drafted = engine.generate(PROMPTS, **options, **chosen)
        assert [result.token_ids for result in drafted] == plain and heads(drafted)
    with pytest.raises(ValueError, match="the model of rule= is 'mtp', which is none"):
        engine.generate(PROMPTS, rule=Contrast("mtp"))


def test_a_broken_layer_stops_only_those_who_ask_for_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = copyspec.load(written(tmp_path, {MIMO: None}), device="cpu")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert not heads(engine.generate(PROMPTS, max_new_tokens=5))
    assert [SAYS in record.message for record in caplog.records].count(True) == 1
    with pytest.raises(LoadError, match=f"draft_model='mtp' cannot be used: .*no '{MIMO}'"):
        engine.generate(PROMPTS, draft_model="mtp", max_new_tokens=5)


def test_where_it_does_not_draft_unasked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is short, and in compiled passes, which keep no states."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # it takes ten seconds
    for compiled in (False, True):
        static = StaticOptions(use="always", compile=compiled, compiler="eager")
        engine = copyspec.load(folder, device="cpu", static=static)
        assert bool(heads(engine.generate(PROMPTS[:1], max_new_tokens=5))) != compiled
    monkeypatch.setattr(draft_models, "available_memory", lambda: 1000)
    assert not heads(copyspec.load(folder, device="cpu").generate(PROMPTS, max_new_tokens=5))


def test_models_without_files_or_a_layer_have_none(engine: Engine) -> None:
    assert engine._drafting.find_unasked() == []


@pytest.mark.parametrize("where", ["run", "accept", "observe", "__init__"])
def test_an_error_of_a_layer_that_nobody_asked_for_ends_its_drafts_alone(
    where: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    plain = [
        result.token_ids
        for result in copyspec.load(folder, device="cpu").generate(PROMPTS, max_new_tokens=8, drafter="copy")
    ]
    monkeypatch.setattr(HeadsPredictor, where, broken)
    engine = copyspec.load(folder, device="cpu")
    engine._drafting.unasked = None  # loaded engines are kept
    for _ in range(2):
        assert [result.token_ids for result in engine.generate(PROMPTS, max_new_tokens=8)] == plain
    assert sum("does not draft: no memory" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(torch.OutOfMemoryError):
        engine.generate(PROMPTS, max_new_tokens=8, draft_model="mtp")
