"""Which models are decoded in which way, and that a model is restored afterwards."""

from __future__ import annotations

import copy
import logging
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

import copyspec
from copyspec.targets import wrap
from copyspec.targets.base import UnsupportedModelError
from copyspec.targets.dispatch import _shares_scale
from copyspec.targets.hooks.grouped import NAME as GROUPED
from copyspec.targets.selftest import checking as selftest
from copyspec.tree import EMPTY, DraftTree
from tests.helpers import models
from tests.helpers.texts import byte_level, llama
from tests.helpers.trees import Rows, fingerprint, random_tree

torch.set_num_threads(1)


def broken(model: PreTrainedModel, attribute: str) -> PreTrainedModel:
    """Make one decoder module of the model fail in the middle of a pass."""

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("device lost")

    vars(model.get_submodule(attribute))["forward"] = fail
    return model


def test_models_that_read_several_tokens_otherwise_than_one_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r'recurrent states elsewhere.*on_unsupported="plain"'):
        wrap(models.tiny("recurrent_gemma"))


def test_models_with_states_of_their_own_verify_chains(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        target = wrap(models.tiny("rwkv"))
    assert target.supports_drafts and not target.supports_trees and "on copies of its own cache" in caplog.text


def test_refused_models_are_decoded_plainly_on_request(caplog: pytest.LogCaptureFixture) -> None:
    model = models.tiny("recurrent_gemma")
    before = fingerprint(model)
    with caplog.at_level(logging.WARNING):
        target = wrap(model, on_unsupported="plain")
    assert "without drafts" in caplog.text
    assert not target.supports_drafts and not target.supports_trees
    prompts = [models.random_ids(6, seed=0), models.random_ids(3, seed=1)]
    session = target.open(prompts)
    outputs: list[list[int]] = [[], []]
    uncached = [target.start(prompt) for prompt in prompts]
    for _ in range(6):
        logits = session.score(uncached, [EMPTY, EMPTY])
        session.keep([[], []])
        uncached = [[int(row[0].argmax())] for row in logits]
        for output, ids in zip(outputs, uncached, strict=True):
            output += ids
    session.close()
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
        assert output == expected[0, len(prompt) :].tolist()
    assert fingerprint(model) == before


def test_plain_targets_take_no_drafts() -> None:
    session = wrap(models.tiny("recurrent_gemma"), on_unsupported="plain").open([[5, 6]])
    with pytest.raises(ValueError, match="trees must be empty"):
        session.score([[5, 6]], [DraftTree([7], [-1], [0.5], [None])])


@pytest.mark.parametrize("name", ["llama", "gemma2", "mpt", "t5", "bart"])
def test_self_test_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "KNOWN", frozenset())
    model = models.tiny(name)
    before = fingerprint(model)
    assert wrap(model).supports_trees
    assert fingerprint(model) == before


@pytest.mark.skipif(transformers.__version__ < "5.23", reason="before, its passes with and without a cache differ")
def test_unknown_architecture_with_a_bias_in_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.SEQ2SEQ, "umt5", models.SEQ2SEQ["t5"])
    model = models.tiny("umt5")
    target = wrap(model)
    assert target.supports_trees
    rows = Rows(model, target, (11, 4, 17))
    assert rows.step() < 1e-5
    assert rows.step() < 1e-5


def test_falcon_with_alibi_falls_back_to_chains(caplog: pytest.LogCaptureFixture) -> None:
    model = models.tiny("falcon", alibi=True)
    with caplog.at_level(logging.WARNING):
        target = wrap(model)
    assert caplog.text.count("cannot verify trees") == 1
    assert target.supports_drafts and not target.supports_trees
    rows = Rows(model, target, (11, 4, 17))
    for step in range(4):
        assert rows.step() < 1e-5
        if step == 2:
            rows.select([2, 0])
    with pytest.raises(ValueError, match="first_chain"):
        rows.session.score([[5], [6]], [DraftTree([7, 8], [-1, -1], [0.5] * 2, [None] * 2)] * 2)


def test_architecture_that_fails_even_with_chains_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "KNOWN", frozenset())
    model = broken(models.tiny("llama"), "model.layers.1")
    with pytest.raises(UnsupportedModelError, match="device lost"):
        wrap(model)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("llama", "model.layers.1"),
        ("bloom", "transformer.h.1"),
        ("t5", "decoder.block.1"),
        ("bart", "model.decoder.layers.1"),
    ],
)
def test_model_is_restored_after_an_exception(name: str, part: str) -> None:
    model = broken(models.tiny(name), part)
    model.config._attn_implementation = "eager"
    before = fingerprint(model)
    target = wrap(model)
    prompts = [models.random_ids(5, seed=0), models.random_ids(3, seed=1)]
    session = target.open(prompts)
    with pytest.raises(RuntimeError, match="device lost"):
        session.score([target.start(prompt) for prompt in prompts], [random_tree(random.Random(0), 5)] * 2)
    session.close()
    assert fingerprint(model) == before


def test_attention_without_masks_is_swapped_for_the_pass() -> None:
    model = models.tiny("llama")
    model.config._attn_implementation_internal = "flash_attention_2"
    seen = []
    model.model.layers[0].register_forward_pre_hook(lambda *_: seen.append(model.config._attn_implementation))
    session = wrap(model).open([[5, 6]])
    session.score([[5, 6]], [random_tree(random.Random(0), 5)])
    assert seen == [GROUPED]  # its key heads are shared
    assert model.config._attn_implementation == "flash_attention_2"


def test_encoder_decoder_starts_with_the_models_start_token() -> None:
    target = wrap(models.tiny("bart"))
    assert target.is_encoder_decoder
    assert target.start([5, 6, 7]) == [2]
    assert wrap(models.tiny("llama")).start([5, 6, 7]) == [5, 6, 7]


@pytest.mark.parametrize(
    ("name", "length"), [("llama", 512), ("gpt2", 512), ("mpt", 512), ("bart", 256), ("t5", None), ("bloom", None)]
)
def test_max_length(name: str, length: int | None) -> None:
    assert wrap(models.tiny(name)).max_length == length


def test_wrong_models_say_what_to_pass() -> None:
    with pytest.raises(TypeError, match=r"PreTrainedModel.*'gpt2'"):
        wrap("gpt2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='"error" or "plain"'):
        wrap(models.tiny("llama"), on_unsupported="warn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        wrap(models.tiny("llama").train())
    headless = AutoModel.from_config(AutoConfig.for_model("bert", hidden_size=16, num_attention_heads=2, vocab_size=50))
    with pytest.raises(UnsupportedModelError, match="AutoModelForCausalLM"):
        wrap(headless.eval())


def test_wrong_calls_of_a_session() -> None:
    session = wrap(models.tiny("llama")).open([[5], [6]])
    with pytest.raises(ValueError, match="2 rows, got tokens of 3 and trees of 3"):
        session.score([[5], [6], [7]], [EMPTY] * 3)
    with pytest.raises(ValueError, match="2 rows, got tokens of 1 and trees of 2"):
        session.score([[5]], [EMPTY] * 2)
    with pytest.raises(ValueError, match="row 1 has no uncached tokens"):
        session.score([[5], []], [EMPTY, EMPTY])
    with pytest.raises(RuntimeError, match="call score"):
        session.keep([[], []])


@pytest.mark.parametrize("name", ["llama", "rwkv", "qwen3_next"])
def test_rows_behind_those_that_are_scored_take_no_part(name: str) -> None:
    target = wrap(models.tiny(name))
    session, both = target.open([[5, 8], [6]]), target.open([[5, 8, 7], [6]])
    session.score([[5, 8]], [EMPTY])
    session.keep([()])
    assert [*session.lengths] == [2, 0]
    torch.testing.assert_close(
        session.score([[7], [6]], [EMPTY] * 2).logits, both.score([[5, 8, 7], [6]], [EMPTY] * 2).logits
    )


def test_a_model_may_be_moved_between_sessions() -> None:
    model = models.tiny("llama")
    target = wrap(model)
    model.to("meta")
    assert target.device == torch.device("meta")


def test_a_model_may_change_its_type_between_sessions() -> None:
    model = models.tiny("llama")
    target = wrap(model)
    model.to(torch.bfloat16)
    prompts = [models.random_ids(5, seed=0), models.random_ids(3, seed=1)]
    logits = target.open(prompts).score(prompts, [random_tree(random.Random(0), 5)] * 2).logits
    assert logits.dtype == target.facts.zero.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["llama", "mpt", "bart", "mamba"])
def test_training_mode_after_wrapping_is_refused(name: str) -> None:
    model = models.tiny(name)
    target = wrap(model, on_unsupported="plain")
    model.train()
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        target.open([[5, 6]])
    model.eval()
    target.open([[5, 6]]).close()


class Passing(transformers.LlamaForCausalLM):
    """A subclass as users write it."""

    def forward(self, *args: object, **kwargs: object) -> object:
        return super().forward(*args, **kwargs)  # type: ignore[arg-type]


def passed_on(model: PreTrainedModel) -> PreTrainedModel:
    """Give the model a forward as wrappers write it."""
    forward = model.forward
    vars(model)["forward"] = lambda *args, **kwargs: forward(*args, **kwargs)
    return model


def test_a_forward_that_passes_on_what_it_gets_is_drafted_for_with_positions() -> None:
    tokenizer, model = byte_level(), llama(len(byte_level()))
    prompt = tokenizer("hello world hello world", return_tensors="pt").input_ids
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False)[0, prompt.shape[1] :].tolist()
    subclass = Passing(model.config).eval()
    subclass.load_state_dict(model.state_dict())
    for variant in (subclass, passed_on(copy.deepcopy(model))):
        engine = copyspec.load(variant, tokenizer=tokenizer)
        result = engine.generate(prompt[0].tolist(), ["hello world hello"], edit_source="hello world", max_new_tokens=8)
        assert list(result.token_ids) == expected and result.stats.num_draft_tokens


def test_a_forward_that_takes_no_positions_any_more_is_refused() -> None:
    model = copy.deepcopy(llama(len(byte_level())))
    vars(model)["forward"] = lambda input_ids, attention_mask=None, past_key_values=None, use_cache=None: None
    with pytest.raises(UnsupportedModelError, match=r"forward was replaced by one without position_ids.*plain"):
        wrap(model)


def test_logits_that_are_not_those_of_the_passed_tokens_are_refused() -> None:
    model = copy.deepcopy(llama(len(byte_level())))
    model.lm_head.register_forward_hook(lambda _, args, output: output[:, -1:])
    engine = copyspec.load(model, tokenizer=byte_level())
    with pytest.raises(ValueError, match=r"forward returned logits of shape \[1, 1, 3\d\d\], but \[1, at least"):
        engine.generate("hello world hello world", ["hello world hello"], max_new_tokens=8)


@pytest.mark.parametrize("numbers", [0, 2])
def test_scores_that_are_no_numbers_are_named(numbers: int) -> None:
    """Their argmax is token 0, which many tokenizers write as "!", or read as the end."""
    model = copy.deepcopy(llama(len(byte_level())))
    engine = copyspec.load(model, tokenizer=byte_level())
    expected = engine.generate("hello", max_new_tokens=4).token_ids

    def spoil(module: object, args: object, output: torch.Tensor) -> torch.Tensor | None:
        passes.append(1)
        return output * float("nan") if len(passes) > numbers else None

    handle = model.lm_head.register_forward_hook(spoil)
    for options in ({}, {"logprobs": 1}, {"temperature": 0.7, "seed": 1}, {"repetition_penalty": 1.2}):
        passes: list[int] = []
        with pytest.raises(ValueError, match=rf"scores are NaN at output token {numbers}: .*dtype='float32'"):
            engine.generate("hello", references=[" world"], max_new_tokens=4, drafter="none", **options)  # type: ignore[call-overload]
    handle.remove()
    assert engine.generate("hello", max_new_tokens=4).token_ids == expected


@pytest.mark.parametrize("name", ["bart", "marian", "t5"])
def test_offloaded_models_have_their_drafts_scored(name: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    tree, logits = DraftTree([20, 21, 22], [-1, 0, -1], [0.5] * 3, [None] * 3), []
    for model in (models.tiny(name), accelerate.disk_offload(models.tiny(name), str(tmp_path))):
        target = wrap(model)
        session = target.open([[5, 6, 7]])
        session.score([target.start([5, 6, 7])], [tree])
        session.keep([[2]])
        logits.append(session.score([[30]], [tree]).logits)
    assert torch.equal(*logits)


class Linear8bitLt(nn.Linear):
    """A stand-in for the layer of bitsandbytes, which needs a GPU."""

    state = SimpleNamespace(threshold=6.0)


def test_outliers_of_int8_layers_are_refused_drafts() -> None:
    model = copy.deepcopy(llama(len(byte_level())))
    layer = model.model.layers[0].mlp.down_proj
    layer.__class__ = Linear8bitLt
    with pytest.raises(UnsupportedModelError, match=r"llm_int8_threshold=0\.0.*plain"):
        wrap(model)
    assert not wrap(model, on_unsupported="plain").supports_drafts
    layer.state = SimpleNamespace(threshold=0.0)
    assert wrap(model).supports_drafts


class PerTensor:
    """A stand-in for torchao's."""


class PerRow:
    """A stand-in for torchao's."""


@pytest.mark.parametrize(
    ("settings", "is_drafted_for"),
    [
        ({"act_quant_kwargs": SimpleNamespace(granularity=PerTensor())}, False),
        ({"act_quant_kwargs": SimpleNamespace(granularity=PerTensor()), "act_quant_scale": 0.1}, True),
        ({"act_quant_kwargs": SimpleNamespace(granularity=PerRow())}, True),
        ({"act_quant_kwargs": SimpleNamespace(use_dynamic_per_tensor_scale=True)}, False),
        ({"act_quant_kwargs": None}, True),
    ],
)
def test_one_scale_for_the_activations_of_a_pass_is_refused_drafts(
    settings: dict[str, object], *, is_drafted_for: bool
) -> None:
    model = copy.deepcopy(llama(len(byte_level())))
    vars(model.model.layers[0].mlp.down_proj.weight).update(settings)
    if not is_drafted_for:
        with pytest.raises(UnsupportedModelError, match=r"one scale for all tokens of a pass.*PerRow\(\).*plain"):
            wrap(model)
    assert wrap(model, on_unsupported="plain").supports_drafts is is_drafted_for


@pytest.mark.parametrize(("granularity", "is_drafted_for"), [(PerTensor(), False), (PerRow(), True)])
def test_one_scale_of_torchaos_first_version_is_refused_drafts(granularity: object, *, is_drafted_for: bool) -> None:
    weight = type("LinearActivationQuantizedTensor", (), {"quant_kwargs": {"activation_granularity": granularity}})()
    assert _shares_scale(weight) is not is_drafted_for


@pytest.mark.parametrize(
    ("name", "spread", "alone"),
    [
        ("_tp_size", 2, 1),
        ("_device_mesh", SimpleNamespace(size=lambda: 2), SimpleNamespace(size=lambda: 1)),
    ],
)
def test_models_that_are_spread_over_processes_are_refused(name: str, spread: object, alone: object) -> None:
    model = models.tiny("llama")
    setattr(model, name, spread)
    for on_unsupported in ("error", "plain"):
        with pytest.raises(UnsupportedModelError, match=r'spread over several processes.*device_map="auto"'):
            wrap(model, on_unsupported=on_unsupported)  # type: ignore[arg-type]
    for one_process in (alone, None):
        setattr(model, name, one_process)
        assert wrap(model).supports_drafts


def test_models_of_fsdp_are_refused_in_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.tiny("llama")
    vars(model.model.layers[0])["_is_fsdp_managed_module"] = True
    assert wrap(model).supports_drafts
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    with pytest.raises(UnsupportedModelError, match="spread over several processes"):
        wrap(model)


def test_a_model_whose_scales_depend_on_the_pass_is_decoded_plainly_on_request() -> None:
    model = copy.deepcopy(llama(len(byte_level())))
    layer = model.model.layers[0].mlp
    layer.down_proj.__class__ = type(
        "Linear", (nn.Linear,), {"__module__": "torch.ao.nn.quantized.dynamic.modules.linear"}
    )
    with pytest.raises(UnsupportedModelError, match=r"quantises activations dynamically.*plain"):
        wrap(model)
    assert not wrap(model, on_unsupported="plain").supports_drafts
