"""The correction model: its base with the adapter merged, and the default for corrections."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import copyspec
from copyspec.models.adapters import read_adapter
from copyspec.models.aliases import ALIASES, CORRECTOR
from copyspec.models.loading import BUNDLED, about_default, choose_default
from copyspec.models.resolve import place
from copyspec.pipelines import GECPipeline, ModelCorrector, ModelOptions
from copyspec.pipelines.models import corrects
from tests.helpers.smollm2 import needs_smollm2
from tests.helpers.tiny import tiny_engine

pytestmark = pytest.mark.skipif(CORRECTOR not in ALIASES, reason="needs the adapter in copyspec/correct_adapter")


def test_the_adapter_is_sound_and_small() -> None:
    adapter = ALIASES[CORRECTOR].adapter
    assert adapter is not None
    assert read_adapter(adapter).parts and ALIASES[CORRECTOR].languages == ("en",)
    assert sum(path.stat().st_size for path in adapter.iterdir()) < 12e6


def test_its_languages_and_margins_are_those_of_its_own_adapter() -> None:
    own = place(ALIASES[CORRECTOR])
    engine = tiny_engine(name=CORRECTOR)
    for folder, languages in ((own.name, ("en",)), (f"{own.name}-of-hub", ("en",)), ("mine-0123456789abcdef", ())):
        engine.model.config._name_or_path = str(own.with_name(folder))
        corrector = ModelCorrector(engine)
        assert (corrector.languages, corrector.calibration) == (languages, CORRECTOR if languages else None)


def test_without_its_base_the_bundled_model_corrects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COPYSPEC_MODEL", raising=False)
    for is_here in (False, True):
        monkeypatch.setattr("copyspec.models.loading.is_ready", lambda alias, is_here=is_here: is_here)
        assert choose_default(corrects=True) == (CORRECTOR if is_here else str(BUNDLED))
    assert choose_default() == "smollm2"
    assert CORRECTOR in about_default(CORRECTOR) and "fetch" not in about_default(CORRECTOR, corrects=True)
    monkeypatch.setattr("copyspec.models.aliases.Alias.installed_file", lambda alias: None)
    assert "`copyspec models fetch smollm2` (93 MB" in about_default(str(BUNDLED), corrects=True)
    assert "fetch" not in about_default(str(BUNDLED))
    monkeypatch.setenv("COPYSPEC_MODEL", "default")
    assert choose_default(corrects=True) == "default"


@needs_smollm2
@pytest.mark.usefixtures("steady_drafts")
def test_it_corrects_and_equals_plain_decoding() -> None:
    engine = copyspec.load(CORRECTOR)
    assert corrects(engine) and ModelCorrector(engine, ModelOptions()).by_sentence
    text = "There are several reason for it. He recieved the letter."
    done = GECPipeline(engine)(text)
    assert done.text == GECPipeline(engine, drafts=False)(text).text
    assert done.text == "There are several reasons for it. He received the letter."
    copyspec.unload(CORRECTOR)


@needs_smollm2
def test_its_second_opinion_is_that_of_its_base() -> None:
    texts = ("It occurs in in nodes.", "It occurs in nodes.")
    engine = copyspec.load(CORRECTOR, dtype="float32")
    fluency = ModelCorrector(engine).fluency
    assert fluency is not None and ModelCorrector(tiny_engine()).fluency is None
    base = copyspec.load("smollm2", dtype="float32")
    adapter = read_adapter(ALIASES[CORRECTOR].adapter)
    for name, (a, b) in adapter.parts.items():  # without what the merged weights were rounded by
        own, merged = base.model.get_parameter(name), engine.model.get_parameter(name)
        without = merged - adapter.scale * b.float() @ a.float()
        assert ((without - own).abs() <= 2.0**-6 * merged.abs() + 1e-6).all()
        own.data = without
    start = [base.tokenizer.bos_token_id]
    for before, space in (("", ""), ("A list.\n\n", ""), ("A list. ", " ")):
        lead = start + list(base.codec.encode(before.rstrip(" ")).ids)
        expected = list[float]()
        for text in texts:
            ids = torch.tensor([[*lead, *base.codec.encode(space + text).ids]])
            with torch.inference_mode():
                logits = base.model(ids).logits[0, len(lead) - 1 : -1].float().log_softmax(-1)
            expected.append(float(logits.gather(-1, ids[0, len(lead) :, None]).sum()))
        one, other = fluency(before, texts)  # without what both begin with
        assert other - one == pytest.approx(expected[1] - expected[0], abs=1e-3)


@needs_smollm2
def test_its_second_opinion_in_half_precision() -> None:
    corrector = ModelCorrector(copyspec.load(CORRECTOR, dtype="bfloat16"))
    assert corrector.fluency is not None
    wrong, right = corrector.fluency("", ("He go to school.", "He goes to school."))
    assert right > wrong + 2
