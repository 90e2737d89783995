"""The self-test detects broken architectures: masks, positions, windows and caches broken on purpose."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BambaConfig,
    GraniteMoeHybridConfig,
    JambaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    RecurrentGemmaConfig,
)

from copyspec.targets import wrap
from copyspec.targets.base import UnsupportedModelError
from copyspec.targets.eager.causal import CausalTarget, TreeSession
from copyspec.targets.eager.plain import PlainRow
from copyspec.targets.eager.seq2seq import Seq2SeqTarget
from copyspec.targets.model.facts import ModelFacts, read_facts
from copyspec.targets.rows import passes
from copyspec.targets.rows.passes import BoolArray, IndexArray, Pass, RowCache
from copyspec.targets.selftest import checking as selftest
from copyspec.targets.selftest import sibling
from copyspec.targets.selftest.checking import KNOWN, digest
from copyspec.targets.selftest.shrinking import shrunk
from tests.helpers import models
from tests.helpers.trees import fingerprint
from tests.helpers.vision import VISION, with_vision

torch.set_num_threads(1)

Break = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _untested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "KNOWN", frozenset())
    monkeypatch.setattr(selftest, "_findings", {})


def seen_with(patch: pytest.MonkeyPatch, **limits: Callable[[int], int]) -> None:
    """Change the limits of windows and chunks."""
    right = Pass.seen

    def seen(self: Pass, row: int, kind: str, facts: ModelFacts) -> BoolArray | None:
        values = {name: getattr(facts, name) for name in limits}
        changed = {name: limits[name](value) for name, value in values.items() if value is not None}
        return right(self, row, kind, replace(facts, **changed))

    patch.setattr(Pass, "seen", seen)


def long_windows(patch: pytest.MonkeyPatch) -> None:
    seen_with(patch, window=lambda size: size + 1)


def no_windows(patch: pytest.MonkeyPatch) -> None:
    seen_with(patch, window=lambda size: 10**9)


def long_chunks(patch: pytest.MonkeyPatch) -> None:
    seen_with(patch, chunk=lambda size: size + 1)


def windows_by_slot(patch: pytest.MonkeyPatch) -> None:
    """Use a key's slot as its position, as GPT-Neo does."""

    def slots(self: Pass, row: int) -> IndexArray:
        return np.arange(self.ends()[row])

    patch.setattr(Pass, "key_positions", slots)


def all_nodes_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(passes, "COMPILED", None)
    right = passes.ancestors
    patch.setattr(passes, "ancestors", lambda parents: (np.tri(len(parents), dtype=np.bool_), right(parents)[1]))


def late_positions(patch: pytest.MonkeyPatch) -> None:
    right = passes.ancestors

    def late(parents: Sequence[int]) -> tuple[BoolArray, list[int]]:
        on_path, depths = right(parents)
        return on_path, [min(depth, 7) for depth in depths]

    patch.setattr(passes, "COMPILED", None)
    patch.setattr(passes, "ancestors", late)


def nothing_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowCache, "move", lambda self, sources, start: None)


def rows_mixed_up(patch: pytest.MonkeyPatch) -> None:
    right = TreeSession.select
    patch.setattr(TreeSession, "select", lambda self, rows: right(self, sorted(rows)))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("mistral", long_windows),
        ("mistral", no_windows),
        ("gemma2", windows_by_slot),
        ("llama4_text", long_chunks),
        ("llama", all_nodes_seen),
        ("qwen3", late_positions),
        ("t5", late_positions),
        ("gpt2", nothing_moved),
        ("bart", rows_mixed_up),
    ],
)
def test_what_is_wrong_is_found(name: str, damage: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.tiny(name)
    damage(monkeypatch)
    kind = Seq2SeqTarget if model.config.is_encoder_decoder else CausalTarget
    assert selftest.attempt(lambda inner: kind(inner, read_facts(inner)), model, kind="trees") is not None


@pytest.mark.parametrize("name", VISION)
def test_a_trial_on_the_model_itself_leaves_what_the_last_call_left(name: str) -> None:
    """Models that read images keep how far the rows of a call are from their lengths, for who continues its cache."""
    model = with_vision(name)
    holders = [module for module in model.modules() if hasattr(module, selftest.DELTAS)]
    left = torch.tensor([[5], [-2], [7], [1]])
    for module in holders:
        setattr(module, selftest.DELTAS, left)
    try:
        selftest._failure(lambda inner: CausalTarget(inner, read_facts(inner)), model, selftest._brief)
        assert all([getattr(module, selftest.DELTAS) is left for module in holders])
    finally:
        for module in holders:
            setattr(module, selftest.DELTAS, None)
    assert bool(holders) == name.startswith("qwen")


def test_no_weak_scale_hides_a_wrong_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest damage, a window longer by one token, exceeds the tolerance a hundred times."""
    model = models.tiny("mistral")
    long_windows(monkeypatch)
    fault = selftest.attempt(lambda inner: CausalTarget(inner, read_facts(inner)), model, kind="trees")
    assert fault is not None
    assert float(fault.split("differ by ")[1].split()[0]) > 0.1


@pytest.mark.parametrize(
    ("name", "settings", "outcome"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}, "plain"),
        ("llama", {"attention_chunk_size": models.WINDOW}, "plain"),
        ("falcon", {"alibi": True}, "chains"),
        ("opt", {"do_layer_norm_before": False}, "trees"),
    ],
)
def test_a_flag_makes_a_known_type_unknown(name: str, settings: dict[str, Any], outcome: str) -> None:
    assert digest(models.tiny(name).config) in KNOWN
    model = models.tiny(name, **settings)
    assert digest(model.config) not in KNOWN
    target = wrap(model, on_unsupported="plain")
    support = "trees" if target.supports_trees else "chains" if target.supports_drafts else "plain"
    assert support == outcome


def test_classes_from_elsewhere_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.tiny("llama")
    monkeypatch.setattr(selftest, "KNOWN", KNOWN)
    assert selftest.is_known(model)
    model.__class__ = type("LlamaForCausalLM", (type(model),), {"__module__": "transformers_modules.somebody"})
    assert not selftest.is_known(model)


@pytest.mark.parametrize("name", ["recurrent_gemma", "llama"])
def test_plain_decoding_is_tested_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = PlainRow._pass

    def wrong(self: PlainRow, count: int, *, is_first: bool) -> torch.Tensor:
        return right(self, count, is_first=is_first).roll(1, -1)

    monkeypatch.setattr(PlainRow, "_pass", wrong)
    monkeypatch.setattr("copyspec.targets.dispatch._no_drafts", lambda model, facts: "it is so")
    with pytest.raises(UnsupportedModelError, match="it is so, and its plain decoding differs"):
        wrap(models.tiny(name), on_unsupported="plain")


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_a_sibling_leaves_no_trace(name: str) -> None:
    model = models.tiny(name)
    before, state, default = fingerprint(model), torch.get_rng_state(), torch.get_default_dtype()
    made = sibling.build(type(model), sibling.small_config(model))
    assert fingerprint(model) == before
    assert torch.equal(torch.get_rng_state(), state) and torch.get_default_dtype() == default
    assert made.dtype == torch.float32 and made.device.type == "cpu" and not made.training
    again = sibling.build(type(model), sibling.small_config(model))
    assert all(map(torch.equal, made.parameters(), again.parameters()))


def test_a_verdict_holds_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(models.tiny("qwen2"))
    monkeypatch.setattr(sibling, "build", lambda *_: pytest.fail("tested twice"))
    assert wrap(models.tiny("qwen2", seed=1, vocab_size=80)).supports_trees


def test_a_verdict_holds_in_every_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose name a sibling keeps: classes from outside transformers may read files of it."""
    built, build = list[str](), sibling.build

    def recorded(kind: Any, config: PreTrainedConfig) -> Any:
        built.append(config.name_or_path)
        return build(kind, config)

    monkeypatch.setattr(sibling, "build", recorded)
    for folder in ("/models/one", "/models/other"):
        model = models.tiny("llama")
        model.config.name_or_path = folder
        assert wrap(model).supports_trees
    assert built == ["/models/one"]


def test_models_without_a_sibling_are_tested_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("sizes do not fit")

    monkeypatch.setattr(sibling, "build", fail)
    assert wrap(models.tiny("gemma2")).supports_trees
    with pytest.raises(UnsupportedModelError, match=r"window of 512 tokens is beyond a self-test.*sizes do not fit"):
        wrap(models.tiny("mistral", sliding_window=512))


def test_siblings_that_do_not_work_are_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sibling.build

    def misshapen(*args: Any) -> Any:
        made = right(*args)
        made.lm_head = torch.nn.Linear(7, 9)
        return made

    monkeypatch.setattr(sibling, "build", misshapen)
    assert wrap(models.tiny("qwen2")).supports_trees


def test_gpt_neo_is_not_verified_by_tree(caplog: pytest.LogCaptureFixture) -> None:
    """It builds its own masks by column: 9 of 30 ragged batches were wrong when its self-test was too short."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    config = GPTNeoConfig(
        vocab_size=models.VOCAB_SIZE, hidden_size=32, num_layers=2, attention_types=[[["global", "local"], 1]],
        num_heads=4, window_size=6, max_position_embeddings=64, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        target = wrap(GPTNeoForCausalLM(config).eval())
    assert target.supports_drafts and not target.supports_trees
    assert "cannot verify trees" in caplog.text


@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "mamba2", "lfm2", "t5", "bart"])
def test_any_token_may_end_or_pad_a_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the model itself, as where no sibling can be built. The reference of recurrent models is `generate`."""
    monkeypatch.setattr(sibling, "small_config", lambda model: models.tiny("llama").config)
    monkeypatch.setattr(sibling, "build", lambda kind, config: 1 / 0)
    for end in (models.VOCAB_SIZE - 1, [60, 70, 80, 95]):
        model = models.tiny(name)
        model.generation_config.eos_token_id = end
        model.generation_config.pad_token_id = models.VOCAB_SIZE - 2
        assert wrap(model).supports_drafts


@pytest.mark.parametrize("expand", [1, 2, 4])
def test_mixers_with_heads_have_a_sibling(expand: int) -> None:
    for heads, size in ((expand * 4, 16), (expand, 64)):
        model = models.tiny("mamba2", hidden_size=64, expand=expand, num_heads=heads, head_dim=size, n_groups=1)
        assert sibling.build(type(model), sibling.small_config(model)).config.hidden_size < 64


def _kinds(config: PreTrainedConfig) -> dict[str, set[str]]:
    names = ("layer_types", "layers_block_type", "block_types", "mlp_layer_types")
    return {name: {*map(str, value)} for name in names if (value := getattr(config, name, None))}


@pytest.mark.parametrize("seed", range(8))
def test_a_sibling_has_every_kind_of_layer_however_a_configuration_names_them(seed: int) -> None:
    """Lists of numbers (Bamba), periods (Jamba), cycles (RecurrentGemma), a value a layer (Granite 4)."""
    draw = random.Random(seed)
    layers = draw.randint(9, 40)
    period = draw.randint(3, 8)
    some = sorted(draw.sample(range(layers), draw.randint(1, layers - 2)))
    kinds = [draw.choice(["mamba", "attention"]) for _ in range(layers - 2)] + ["mamba", "attention"]
    for config in (
        BambaConfig(num_hidden_layers=layers, attn_layer_indices=some),
        JambaConfig(num_hidden_layers=layers, attn_layer_period=period, attn_layer_offset=draw.randrange(period)),
        RecurrentGemmaConfig(num_hidden_layers=layers, block_types=["recurrent"] * period + ["attention"]),
        GraniteMoeHybridConfig(num_hidden_layers=layers, layer_types=kinds),
    ):
        small = shrunk(config, window=8, positions=64)
        assert _kinds(small).keys() == _kinds(config).keys()
        assert all(_kinds(small)[name] == of for name, of in _kinds(config).items()), config.model_type
        assert small.num_hidden_layers <= 4
        if config.model_type == "bamba":
            assert 0 < len(small.attn_layer_indices) < small.num_hidden_layers


@pytest.mark.parametrize("period", [None, 0, 4, [1, 2], 1.5])
@pytest.mark.parametrize("offset", [None, 0, 3, [1, 2]])
def test_periods_that_are_none_are_kept(period: Any, offset: Any) -> None:
    """Configurations of a program's own models name things as they like."""
    values: dict[str, Any] = {"num_hidden_layers": 12, "some_layer_period": period, "some_layer_offset": offset}
    small = shrunk(PreTrainedConfig(**values), window=8, positions=64)
    assert small.some_layer_period == (2 if period == 4 else period)
    assert small.some_layer_offset == (1 if offset == 3 else offset)


class RowsMixed(LlamaForCausalLM):
    """Rows of a batch change each other, as in models whose experts take so many tokens of a batch."""

    def forward(self, *args: Any, **named: Any) -> Any:
        output: Any = super().forward(*args, **named)
        others = output.logits.sum(0, keepdim=True) - output.logits
        output.logits = output.logits + others.roll(1, -1)
        return output


def test_drafts_are_compared_with_texts_alone_where_rows_of_a_batch_change_each_other() -> None:
    model = RowsMixed(models.tiny("llama").config).eval()
    models.spread_logits(model)
    assert wrap(model).supports_trees  # whose passes have one row
