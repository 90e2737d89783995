"""Which configurations need no self-test: exactly those that the other tests check."""

from __future__ import annotations

import pytest
import transformers
from transformers import AutoConfig, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from copyspec.models.loading import BUNDLED
from copyspec.targets.selftest import checking as selftest
from copyspec.targets.selftest.checking import KNOWN, digest
from tests.helpers import models

PINNED = pytest.mark.skipif(
    not transformers.__version__.startswith("5.23"), reason="the fields of configurations are those of 5.23"
)


@PINNED
def test_known_are_the_shapes_that_tests_check() -> None:
    names = [*models.CAUSAL, *models.SEQ2SEQ, *models.VARIANTS]
    tested = {digest(models.tiny(name).config) for name in names}
    assert tested == KNOWN, f"write {sorted(tested - KNOWN)} instead of {sorted(KNOWN - tested)}"


@PINNED
@pytest.mark.parametrize("config", [LlamaConfig(), MistralConfig(), Qwen2Config(), Qwen3Config()], ids=type)
def test_common_checkpoints_are_known(config: PreTrainedConfig) -> None:
    assert digest(config) in KNOWN


@PINNED
def test_the_bundled_model_is_known() -> None:
    assert digest(AutoConfig.from_pretrained(BUNDLED)) in KNOWN


@pytest.mark.parametrize(
    "changed",
    [
        {"sliding_window": 8},
        {"alibi": True},
        {"use_bidirectional_attention": True},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        {"position_embedding_type": "relative_key"},
    ],
)
def test_whatever_may_change_a_mask_makes_another_shape(changed: dict[str, object]) -> None:
    assert digest(models.tiny("llama", **changed).config) not in KNOWN


def test_sizes_and_names_change_nothing() -> None:
    plain = digest(models.tiny("llama").config)
    other = {
        "vocab_size": 128,
        "num_hidden_layers": 3,
        "attention_bias": True,
        "hidden_act": "gelu",
        "rms_norm_eps": 0.1,
    }
    assert digest(models.tiny("llama", **other).config) == plain


def test_is_known_asks_for_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "KNOWN", frozenset({digest(models.tiny("llama").config)}))
    assert selftest.is_known(models.tiny("llama"))
    assert not selftest.is_known(models.tiny("qwen2"))
