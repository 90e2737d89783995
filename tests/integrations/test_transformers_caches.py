"""What `model.generate(custom_generate=copyspec.hf)` leaves behind besides tokens, and continues from: caches, hidden
states and attentions are those of `generate`."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StaticCache

import copyspec
from copyspec.integrations.transformers.caches import CACHE_FIELD
from tests.helpers.both_ways import (
    NEW_TOKENS,
    assert_caches_are_equal,
    both,
    by_copyspec,
    by_transformers,
    model_of,
    padded,
    prompts,
)
from tests.helpers.models import CAUSAL, RECURRENT, SEQ2SEQ, VARIANTS, VOCAB_SIZE, tiny
from tests.helpers.vision import with_vision

pytestmark = pytest.mark.usefixtures("steady_drafts")

ENDS = [20, 21, 22, 30, 31, 32]
DICT = {"return_dict_in_generate": True}


def cache_of(output: Any) -> Any:
    return getattr(output, CACHE_FIELD)


def rows_for(model: PreTrainedModel, seed: int) -> dict[str, torch.Tensor]:
    rng = random.Random(seed)
    count = 1 if model.config.model_type == "llama4_text" else rng.randint(1, 3)
    return padded(prompts(count, seed=seed), left=not model.config.is_encoder_decoder)


@pytest.mark.parametrize("name", [*CAUSAL, *SEQ2SEQ, *VARIANTS])
def test_the_cache_that_comes_back_is_that_of_generate(name: str) -> None:
    model = model_of(name)
    for seed in range(3):
        options = DICT | {"max_new_tokens": 1 + 6 * seed, "eos_token_id": ENDS if seed else None}
        plain, copied = both(model, rows_for(model, seed), **options)
        assert torch.equal(plain.sequences, copied.sequences)
        if cache_of(plain) is None:  # MPT's configuration asks for none
            assert cache_of(copied) is None
        else:
            assert_caches_are_equal(cache_of(plain), cache_of(copied))
    assert cache_of(by_copyspec(model, rows_for(model, 0), **DICT, use_cache=False)) is None


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mistral", "gpt2", "phi3-window", "qwen3_moe"])
def test_a_static_cache_comes_back_where_one_is_asked_for(name: str) -> None:
    plain, copied = both(model_of(name), padded(prompts(2)), **DICT, cache_implementation="static")
    assert type(cache_of(copied)) is StaticCache
    assert_caches_are_equal(cache_of(plain), cache_of(copied))


CONTINUED = [name for name in [*CAUSAL, *VARIANTS] if name not in ("mpt",)]


@pytest.mark.parametrize("name", CONTINUED)
def test_a_call_continues_from_a_filled_cache(name: str) -> None:
    """Both forms that `generate` takes: the whole text, or its new tokens with a mask for all."""
    model, rng = model_of(name), random.Random(name)
    for seed in range(3):
        inputs = rows_for(model, seed)
        kinds = [DynamicCache(config=model.config), DynamicCache(), StaticCache(config=model.config, max_cache_len=80)]
        seed -= name == "llama4_text" and seed == 2  # transformers 5.17 raises for its static cache
        start: dict[str, Any] = {CACHE_FIELD: kinds[seed], "eos_token_id": ENDS, "max_new_tokens": 8}
        first = by_transformers(model, inputs, **DICT, **start)
        cache, ids = cache_of(first), first.sequences
        more = torch.tensor([[rng.randrange(8, VOCAB_SIZE) for _ in range(5)] for _ in ids])
        ids = torch.cat([ids, more], dim=1)
        ones = torch.ones(len(ids), ids.shape[1] - inputs["input_ids"].shape[1], dtype=torch.long)
        mask = torch.cat([inputs["attention_mask"], ones], dim=1)
        for ids_given in (ids, ids[:, int(cache.get_seq_length()) :]):
            options = DICT | {"output_logits": True, "repetition_penalty": 1.2, "max_new_tokens": 6}
            turn = {"input_ids": ids_given, "attention_mask": mask}
            own, ours = copy.deepcopy(cache), copy.deepcopy(cache)
            plain = by_transformers(model, turn, **options, **{CACHE_FIELD: own})
            copied = by_copyspec(model, turn, **options, **{CACHE_FIELD: ours})
            assert torch.equal(plain.sequences, copied.sequences)
            for expected, got in zip(plain.logits, copied.logits, strict=True):
                torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)
            assert cache_of(copied) is ours
            assert_caches_are_equal(own, ours)


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral", "gpt2", "bloom", "opt", "qwen2", "cohere2", "falcon"])
def test_a_chat_keeps_its_cache(name: str) -> None:
    """Turns with and without copyspec alternate on one cache, which the caller made."""
    model, rng = model_of(name), random.Random(name)
    ids = {"plain": torch.tensor(prompts(1)), "mixed": torch.tensor(prompts(1))}
    caches = {"plain": DynamicCache(config=model.config), "mixed": DynamicCache(config=model.config)}
    for turn in range(4):
        more = torch.tensor([[rng.randrange(8, VOCAB_SIZE) for _ in range(rng.randint(1, 6))]])
        for kind, cache in caches.items():
            ids[kind] = torch.cat([ids[kind], more], dim=1)
            inputs = {"input_ids": ids[kind], "attention_mask": torch.ones_like(ids[kind])}
            call = by_copyspec if kind == "mixed" and turn % 2 == 0 else by_transformers
            ids[kind] = call(model, inputs, **{CACHE_FIELD: cache}, max_new_tokens=7)
        assert torch.equal(ids["plain"], ids["mixed"])
        assert_caches_are_equal(caches["plain"], caches["mixed"])


def test_tokens_that_the_cache_holds_are_not_read_again() -> None:
    model = model_of("llama")
    inputs = padded(prompts(1))
    first = by_transformers(model, inputs, **DICT)
    ids = torch.cat([first.sequences, torch.tensor([[9, 10]])], dim=1)
    turn = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    result = by_copyspec(model, turn, **DICT, **{CACHE_FIELD: cache_of(first)}).results[0]
    assert result.stats.num_cached_tokens == first.sequences.shape[1] - 1


def test_models_that_read_images_continue_a_text() -> None:
    for name in ("gemma3", "llava", "qwen2_5_vl", "qwen3_vl", "mistral3", "smolvlm"):
        model = with_vision(name)
        first = by_copyspec(model, padded(prompts(2)), **DICT)
        ids = torch.cat([first.sequences, torch.full((2, 3), 9)], dim=1)
        mask = torch.cat([padded(prompts(2))["attention_mask"], torch.ones(2, NEW_TOKENS + 3, dtype=torch.long)], dim=1)
        own, turn = copy.deepcopy(cache_of(first)), {"input_ids": ids, "attention_mask": mask}
        plain = by_transformers(model, turn, **{CACHE_FIELD: own})
        assert torch.equal(plain, by_copyspec(model, turn, **{CACHE_FIELD: cache_of(first)}))


def test_caches_that_cannot_be_continued_are_refused() -> None:
    model, inputs = model_of("llama"), padded(prompts(2))
    cache = cache_of(by_transformers(model, inputs, **DICT))
    for ids, message in (
        (inputs["input_ids"], r"holds 21 tokens, and of the 12 ids none follows them"),
        (torch.full((1, 40), 9), r"holds 2 rows, and the ids have 1"),
    ):
        call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), CACHE_FIELD: copy.deepcopy(cache)}
        with pytest.raises(ValueError, match=message):
            by_copyspec(model, call)
    mask = torch.ones(2, 20, dtype=torch.long)
    with pytest.raises(ValueError, match="attention_mask has 20 columns, and past_key_values holds 21, and the ids 12"):
        by_copyspec(model, {"input_ids": inputs["input_ids"], "attention_mask": mask}, **{CACHE_FIELD: cache})

    class Rounded(type(cache.layers[0])):  # type: ignore[misc]
        """As a layer that keeps its tokens in another form."""

    cache.layers[1].__class__ = Rounded
    ids = torch.full((2, 40), 9)
    with pytest.raises(ValueError, match="past_key_values holds tokens in a Rounded, from which copyspec cannot"):
        by_copyspec(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, **{CACHE_FIELD: cache})
    t5, call = model_of("t5"), padded(prompts(2), left=False)
    cache = cache_of(by_transformers(t5, call, **DICT))
    with pytest.raises(ValueError, match="past_key_values holds tokens, and copyspec begins an encoder-decoder"):
        by_copyspec(t5, call, **{CACHE_FIELD: cache})


@pytest.mark.parametrize(
    "name", ["llama", "gemma3_text", "mistral", "gpt2", "falcon", "qwen3", "opt", "t5", "bart", "mt5"]
)
@pytest.mark.parametrize("seed", range(2))
def test_hidden_states_and_attentions_are_those_of_generate(name: str, seed: int) -> None:
    model = tiny(name, seed=seed, attn_implementation="eager")
    for options in ({}, {"use_cache": False}, {"max_new_tokens": 1}, {"eos_token_id": ENDS}):
        wanted = DICT | {"output_hidden_states": True, "output_attentions": True}
        inputs = rows_for(model, seed)
        if "use_cache" in options:
            inputs = {key: value[-1:] for key, value in inputs.items()}  # of padding, eager attention makes noise
        plain, copied = both(model, inputs, **wanted, **options)
        assert torch.equal(plain.sequences, copied.sequences)
        fields = [key for key in plain if "hidden_states" in key or "attentions" in key]
        assert len(fields) == (5 if model.config.is_encoder_decoder else 2)
        for field in fields:
            torch.testing.assert_close(copied[field], plain[field], atol=1e-4, rtol=1e-4)
    copyspec.unload(model)


def test_what_has_no_states_of_each_token_is_refused() -> None:
    model, inputs = model_of("llama"), padded(prompts(1))
    for options, message in (
        ({"output_hidden_states": True, "prefill_chunk_size": 4}, "output_hidden_states=True with prefill_chunk_size"),
        ({"output_attentions": True, "cache_implementation": "static"}, "output_attentions=True cannot be combined"),
    ):
        with pytest.raises(ValueError, match=message):
            by_copyspec(model, inputs, **DICT, **options)


@pytest.mark.parametrize("name", [*RECURRENT])
def test_recurrent_models_leave_their_state_behind_but_do_not_continue_from_one(name: str) -> None:
    model, inputs = tiny(name), padded(prompts(1))
    plain, copied = both(model, inputs, {"on_unsupported": "plain"}, **DICT)
    assert torch.equal(plain.sequences, copied.sequences)
    assert type(cache_of(plain)) is type(cache_of(copied))
