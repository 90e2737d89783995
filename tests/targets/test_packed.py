"""Passes over the tokens of all rows: what they compute, how many rows join and leave, and models with limits."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from copyspec.targets import wrap
from copyspec.targets.base import LAST
from copyspec.targets.cpu.linears import FastLinears
from copyspec.targets.eager import causal
from copyspec.targets.eager.causal import CausalTarget, TreeSession
from copyspec.targets.model.facts import read_facts
from copyspec.tree import EMPTY
from tests.helpers import models
from tests.helpers.trees import Rows, random_tree

torch.set_num_threads(1)

TOLERANCE = 1e-5


def without_module(name: str, **sizes: Any) -> CausalTarget:
    """A target whose layers are all PyTorch's."""
    model = models.tiny(name, **sizes)
    target = CausalTarget(model, read_facts(model))
    target.linears = FastLinears(nn.Module())
    return target


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text", "bloom", "mpt", "t5", "qwen3_next"])
def test_every_token_that_is_computed_is_needed(name: str) -> None:
    """By the linear layers of the decoder, and by the output head, which is given roots and nodes alone."""
    model, computed, scored = models.tiny(name), list[int](), list[int]()
    target, draw = wrap(model), random.Random(0)
    head = model.get_output_embeddings()
    inner = (model.get_decoder() if model.config.is_encoder_decoder else model.base_model).get_input_embeddings()
    prompts = [models.random_ids(length, seed=length) for length in (40, 3, 17, 1, 9)]
    session = target.open(prompts)
    with (
        inner.register_forward_hook(lambda module, args, output: computed.append(output.shape[:-1].numel())),
        head.register_forward_hook(lambda module, args, output: scored.append(output.shape[:-1].numel())),
    ):
        for uncached in ([target.start(prompt) for prompt in prompts], *[[[7]] * 5] * 3):
            trees = [random_tree(draw, draw.choice([0, 0, 1, 9])) for _ in uncached]
            computed.clear()
            scored.clear()
            session.score(uncached, trees)
            nodes = sum(map(len, trees))
            assert sum(computed) == sum(map(len, uncached)) + nodes
            assert sum(scored) == len(trees) + nodes or "logits_to_keep" not in target.facts.arguments
            session.keep([[]] * len(trees))
    session.close()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "falcon", "deepseek_v3", "bart", "falcon_h1"])
def test_rows_that_join_and_leave_at_random(name: str) -> None:
    model, draw = models.tiny(name), random.Random(1)
    target = wrap(model)
    rows = Rows(model, target, [draw.randint(1, 30)], seed=0)
    for step in range(12):
        assert rows.step((0, 0, 1, 5)) < TOLERANCE
        if draw.random() < 0.6:
            count = draw.randint(1, 4)
            rows.add([draw.randint(1, 30) for _ in range(count)], seed=100 + step)
        if len(rows.sequences) > 2:
            rows.select(draw.sample(range(len(rows.sequences)), draw.randint(1, len(rows.sequences))))
    rows.session.close()


@pytest.mark.parametrize("most", [32, 9])
def test_models_that_take_few_tokens_at_a_time(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as have buffers for as many tokens as positions (BigBird)."""
    target, counts = wrap(models.tiny("gpt2", n_positions=32)), list[int]()
    assert target.most_tokens == 32
    monkeypatch.setattr(target, "most_tokens", most)
    rows = Rows(target.model, target, [11, 20, 15], seed=2)
    with target.model.base_model.wte.register_forward_hook(lambda *call: counts.append(call[2].shape[1])):
        assert rows.step((4,)) < TOLERANCE and rows.step((0, 2)) < TOLERANCE
    assert max(counts) <= max(most, 20 + 4)
    rows.session.close()


def test_states_of_rows_in_passes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    target, chains = wrap(models.tiny("llama")), [[5, 6, 7], [8], [9, 4]]
    trees = [random_tree(random.Random(row), 4) for row in range(3)]
    states_of_passes: list[list[torch.Tensor]] = [[], []]
    for states in states_of_passes:
        session = target.open(chains)
        scores, of_rows = session.score_with_states(chains, trees, [1])
        assert of_rows is not None and len(of_rows) == 3
        states += [*scores, *[of_row[layer] for of_row in of_rows for layer in (LAST, 1)]]
        session.close()
        monkeypatch.setattr(target, "most_tokens", 4)
    for one, other in zip(*states_of_passes, strict=True):
        torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=TOLERANCE)


def test_experts_with_a_capacity_limit_a_pass() -> None:
    model = models.tiny("t5")
    model.config.expert_capacity = 5
    assert wrap(model).most_tokens == 5 and wrap(model).open([[5]]).most_nodes == 4


@pytest.mark.parametrize("name", ["llama", "falcon", "bart"])
def test_numbers_that_overflow_stay_in_their_row(name: str) -> None:
    """As those of somebody else's request in half precision might."""
    model = models.tiny(name)
    target = wrap(model)
    rows = Rows(model, target, [12, 7, 9], seed=3)
    assert rows.step() < TOLERANCE
    session = rows.session
    assert isinstance(session, TreeSession)
    with torch.inference_mode():
        for buffers in session._rows[1].layers.values():
            buffers.values.fill_(float("nan"))
    uncached = [sequence[cached:] for sequence, cached in zip(rows.sequences, rows.cached, strict=True)]
    scores = session.score(uncached, [EMPTY, EMPTY, EMPTY])
    assert [bool(row.isfinite().all()) for row in scores] == [True, False, True]
    session.close()


@pytest.mark.parametrize("changed", [0, 1], ids=["keys", "values"])
def test_a_model_that_attends_in_its_own_way_is_noticed(changed: int) -> None:
    """By its source it calls transformers' interface, but with others than the cache has returned (DiffLlama)."""
    target = without_module("llama")
    assert target.attends_by_row
    for layer in target.model.base_model.layers:
        layer.self_attn.forward = _with_a_copy(layer.self_attn, changed)
    rows = Rows(target.model, target, [6, 9], seed=4)
    assert rows.step() < TOLERANCE and not target.attends_by_row and rows.step() < TOLERANCE


def _with_a_copy(attention: Any, changed: int) -> Any:
    """The attention's forward, on a copy of the keys or of the values that the cache returns."""

    class Copying:
        def __init__(self, cache: Any) -> None:
            self._cache = cache

        def update(self, *args: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
            keys, values = self._cache.update(*args, **named)
            return (keys.clone(), values) if changed == 0 else (keys, values.clone())

    forward = type(attention).forward

    def forwarded(*args: Any, **named: Any) -> Any:
        name = next(name for name in ("cache", "past_key_values") if name in named)
        cache = named[name] and Copying(named[name])
        return forward(attention, *args, **{**named, name: cache})

    return forwarded


def test_experts_with_a_capacity_are_packed_as_far_as_it_goes() -> None:
    """Switch Transformers drops what exceeds it, and reads more of its encoder's output than the states."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    experts = {"num_experts": 2, "expert_capacity": 64, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    config = AutoConfig.for_model(
        "switch_transformers", vocab_size=models.VOCAB_SIZE, decoder_start_token_id=0, **sizes, **experts
    )
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32).eval()
    models.spread_logits(model)
    target = wrap(model)
    rows = Rows(model, target, [5, 9, 7, 6], seed=6)
    assert target.supports_trees and rows.session.most_nodes == 63
    for _ in range(3):
        assert rows.step((0, 40)) < TOLERANCE


def test_a_copy_that_is_made_during_a_pass_works() -> None:
    model, copies = models.tiny("llama"), list[Any]()
    target, ids = wrap(model), torch.tensor([[5, 6, 7]])
    expected = model(ids).logits

    def take_copy(*call: object) -> None:
        with torch.inference_mode(False):
            copies.append(copy.deepcopy(model))

    session = target.open([[5, 6], [7]])
    with model.base_model.register_forward_hook(take_copy):
        session.score([[5, 6], [7]], [EMPTY, EMPTY])
    session.close()
    assert torch.equal(copies[0](ids).logits, expected) and wrap(copies[0]).facts.attention == target.facts.attention


def test_an_attention_that_asks_for_its_name_is_left_alone() -> None:
    """GPT-2 upcasts where its implementation is called "eager"."""
    assert wrap(models.tiny("gpt2")).attends_by_row
    assert not wrap(models.tiny("gpt2", reorder_and_upcast_attn=True)).attends_by_row


def test_rows_of_a_large_joint_pass_are_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "JOINT_LIMIT", 200)
    model = models.tiny("falcon")
    rows = Rows(model, wrap(model), [9, 4, 11, 6, 3], seed=8)
    for _ in range(3):
        assert rows.step((0, 2, 5)) < TOLERANCE


def test_masks_of_another_type_are_left_to_torch() -> None:
    """Embeddings in half precision, whose numbers a hook turns into those of the layers."""
    model = models.tiny("llama")
    embeddings = model.get_input_embeddings().to(torch.bfloat16)
    embeddings.register_forward_hook(lambda module, args, output: output.float())
    target = CausalTarget(model, read_facts(model))
    rows = Rows(model, target, [12, 7, 9], seed=9)
    assert rows.step((0,)) < TOLERANCE
