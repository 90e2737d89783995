"""What `model.generate(custom_generate=copyspec.hf)` is given: output equals that of `generate`, or the argument is
refused by name."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import copyspec
from copyspec.integrations.transformers.caches import CACHE_FIELD
from copyspec.literature import Pool
from copyspec.targets.model.facts import forward_arguments
from tests.helpers.both_ways import (
    NEW_TOKENS,
    PAD,
    assert_caches_are_equal,
    both,
    by_copyspec,
    by_transformers,
    model_of,
    padded,
    prompts,
    tokenizer,
)
from tests.helpers.models import CAUSAL, SEQ2SEQ, STATEFUL, VARIANTS, VOCAB_SIZE, spread_logits, tiny
from tests.helpers.vision import VISION, with_vision

pytestmark = pytest.mark.usefixtures("steady_drafts")

REFUSED = re.compile(r"row \d is padded on the (left|right)|row \d has masked tokens|token_type_ids")


def drawn(rng: random.Random, model: Any) -> dict[str, Any]:
    """Random rows with a random mask, and arguments that a tokenizer may add."""
    rows, width = rng.randint(1, 3), rng.randint(6, 11)
    ids = torch.tensor([[rng.randrange(8, VOCAB_SIZE) for _ in range(3)] * 4 for _ in range(rows)])[:, :width]
    kind = rng.choice(["none", "whole", "left", "left", "right", "between", "both"])
    mask = torch.ones_like(ids)
    for row in mask:
        if kind in ("left", "both"):
            row[: rng.randint(0, width // 2)] = 0
        if kind in ("between", "both"):
            row[rng.randint(1, width - 2)] = 0
        if kind == "right":
            row[width - rng.randint(0, 3) :] = 0
    inputs: dict[str, Any] = {"input_ids": ids} if kind == "none" else {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in forward_arguments(model) and rng.random() < 0.3:
        inputs["token_type_ids"] = torch.full_like(ids, rng.randint(0, 1))
    if model.config.is_encoder_decoder and rng.random() < 0.3:
        inputs["decoder_attention_mask"] = torch.ones(rows, 1, dtype=torch.long)
    return inputs


@pytest.mark.parametrize("name", [*CAUSAL, *SEQ2SEQ, *VARIANTS])
def test_drawn_arguments_give_the_output_of_generate_or_are_refused_by_name(name: str) -> None:
    model, rng, refused = model_of(name), random.Random(name), 0
    for count in range(12):
        if count >= 7 and refused < count:
            break
        inputs = drawn(rng, model)
        options: dict[str, Any] = {
            "return_dict_in_generate": True,
            "output_logits": True,
            "repetition_penalty": rng.choice([1.0, 1.3]),
            "eos_token_id": rng.choice([None, [20, 21, 22, 30, 31, 32, 40]]),
            "max_new_tokens": rng.randint(1, 10),
        }
        plain = by_transformers(model, inputs, **options)
        try:
            own = {rng.choice(["references", "edit_source"]): plain.sequences.tolist()}  # the most helpful ones
            copied = by_copyspec(model, inputs, own, **options)
        except ValueError as error:
            assert REFUSED.search(str(error))
            refused += 1
            continue
        assert torch.equal(plain.sequences, copied.sequences) and plain.sequences.dtype == copied.sequences.dtype
        for expected, got in zip(plain.logits, copied.logits, strict=True):
            goes_on = got.ne(0).any(1)
            torch.testing.assert_close(got[goes_on], expected[goes_on], atol=1e-3, rtol=1e-3)
    assert refused < count


def test_processors_see_masked_tokens() -> None:
    ids = torch.tensor([[9, 10, 11, 9, 10, 12, 9, 10], [30, 31, 30, 31, 30, 31, 30, 31]])
    inputs = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0, 1, 1]])}
    for options in ({"no_repeat_ngram_size": 2}, {"repetition_penalty": 2.0}, {"bad_words_ids": [[10, 40]]}):
        assert torch.equal(*both(model_of("llama"), inputs, **options))


@pytest.mark.parametrize(
    "name",
    ["MBart", "Bart", "Pegasus", "Marian", "Blenderbot", "BlenderbotSmall", "PLBart", "Mvp", "BigBirdPegasus", "TrOCR"],
)
def test_decoders_that_count_padding_take_rows_without_it(name: str) -> None:
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCAB_SIZE,
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=48,
        pad_token_id=PAD,
        eos_token_id=None,
        decoder_start_token_id=2,
        is_encoder_decoder=False,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    spread_logits(model)
    with pytest.raises(ValueError, match=f"row 0 is padded on the left, and {name}ForCausalLM counts from the padding"):
        by_copyspec(model, padded(prompts(2)))
    assert torch.equal(*both(model, padded(prompts(1) * 2)))


@pytest.mark.parametrize("name", ["rwkv", *STATEFUL])
def test_rows_that_change_each_other_in_generate_are_refused(name: str) -> None:
    model = model_of(name)
    for rows in (1, 2, 3):
        inputs = {"input_ids": torch.tensor([[9 + row, 20, 21, 9 + row, 20] for row in range(rows)])}
        plain = by_transformers(model, inputs)
        alone = torch.cat([by_transformers(model, {"input_ids": ids[None]}) for ids in inputs["input_ids"]])
        assert torch.equal(plain, alone) is (name != "rwkv" or rows == 1)
        if torch.equal(plain, alone):
            assert torch.equal(plain, by_copyspec(model, inputs))
        else:
            with pytest.raises(ValueError, match="RwkvForCausalLM lets the rows of a batch change each other"):
                by_copyspec(model, inputs)


def test_chunks_counted_from_padding_are_refused() -> None:
    model = model_of("llama4_text")
    with pytest.raises(ValueError, match="row 0 is padded on the left, and Llama4ForCausalLM counts"):
        by_copyspec(model, padded(prompts(2)))
    short = {"input_ids": torch.tensor([[0, 9], [9, 10]]), "attention_mask": torch.tensor([[0, 1], [1, 1]])}
    assert torch.equal(*both(model, short, max_new_tokens=4))  # all within the first chunk


@pytest.mark.parametrize("name", VISION)
def test_models_that_read_images_take_text_alone(name: str) -> None:
    model = with_vision(name)
    for inputs in (padded(prompts(1)), padded(prompts(3, seed=1)), {"input_ids": torch.tensor(prompts(1, seed=2))}):
        plain = by_transformers(model, inputs)
        try:
            assert torch.equal(plain, by_copyspec(model, inputs, {"references": plain.tolist()}))
        except copyspec.UnsupportedModelError:  # it attends to later tokens of a prompt in some versions
            assert name == "paligemma2"
            return
    if "mm_token_type_ids" in forward_arguments(model):
        types = torch.zeros_like(inputs["input_ids"])
        assert torch.equal(*both(model, inputs | {"mm_token_type_ids": types}))
    with pytest.raises(ValueError, match=r"does not pass mm_encoder_outputs to the model|not used by the model"):
        by_copyspec(model, inputs, mm_encoder_outputs={"image": torch.ones(1, 4, 32)})


@pytest.mark.parametrize("name", ["gemma3", "llava", "internvl", "vipllava", "aya"])
def test_an_image_is_refused_by_its_name(name: str) -> None:
    model: Any = with_vision(name)
    count = sum(map(len, model.get_image_features(torch.zeros(1, 3, 28, 28)).pooler_output))
    ids = torch.tensor([[9, *[VOCAB_SIZE - 1] * count, 10, 11, 12]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.zeros(1, 3, 28, 28)}
    by_transformers(model, inputs, max_new_tokens=2)
    with pytest.raises(ValueError, match=r"does not pass pixel_values to the model \(got a tensor of shape \[1, 3, 28"):
        by_copyspec(model, inputs)


def test_token_types_of_zeros_where_the_model_has_a_table_of_them_or_ignores_them() -> None:
    gemma = with_vision("gemma3")
    inputs = padded(prompts(2))
    zeros = {"token_type_ids": torch.zeros_like(inputs["input_ids"])}
    assert torch.equal(*both(gemma, inputs | zeros))
    for name in ("gpt2", "gptj", "codegen"):
        plain = by_transformers(model_of(name), inputs | zeros)
        assert not torch.equal(plain, by_transformers(model_of(name), inputs))
        with pytest.raises(ValueError, match="does not pass token_type_ids to the model"):
            by_copyspec(model_of(name), inputs | zeros)
    bert = transformers.BertLMHeadModel(
        transformers.BertConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            is_decoder=True,
            eos_token_id=None,
        )
    ).eval()
    spread_logits(bert)
    whole = padded(prompts(1))
    types = torch.zeros_like(whole["input_ids"])
    assert torch.equal(*both(bert, whole | {"token_type_ids": types}))
    with pytest.raises(ValueError, match="does not pass token_type_ids to the model"):
        by_copyspec(bert, whole | {"token_type_ids": types + 1})


@pytest.mark.parametrize("name", ["llama", "gpt2", "gptj", "codegen", "t5", "phi"])
def test_token_types_in_encodings(name: str) -> None:
    rows = prompts(2)
    encoding = {key: value.tolist() for key, value in padded(rows, left=False).items()}
    encoding["token_type_ids"] = [[0] * len(row) for row in encoding["input_ids"]]
    model = model_of(name)
    options: dict[str, Any] = {"model": model, "tokenizer": tokenizer(), "max_new_tokens": 4}
    one = {key: value[1] for key, value in encoding.items()}
    for prompt in (encoding, one, [one]):
        if name in ("gpt2", "gptj", "codegen"):
            with pytest.raises(TypeError, match=r"prompt 0 is an encoding with token_type_ids, to which \w+ adds"):
                copyspec.generate(prompt, **options)
        else:
            copyspec.generate(prompt, **options)
    copyspec.unload(model)


def own_inputs(self: Any, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
    """As an adapter with a prompt of its own prepares inputs: the model reads other tokens than the ids."""
    prepared: dict[str, Any] = type(self).prepare_inputs_for_generation(self, input_ids, **kwargs)
    return prepared | {"input_ids": prepared["input_ids"].flip(1)}


ADAPTERS: dict[str, Callable[[Any], Any]] = {
    "method": lambda model: MethodType(own_inputs, model),
    "function": lambda model: functools.partial(own_inputs, model),
    "lambda": lambda model: lambda ids, **kwargs: own_inputs(model, ids, **kwargs),
    "wrapped": lambda model: functools.wraps(model.prepare_inputs_for_generation)(functools.partial(own_inputs, model)),
}


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_a_model_whose_inputs_another_prepares_is_refused(name: str, adapter: Callable[[Any], Any]) -> None:
    model: Any = tiny(name)
    inputs = padded(prompts(2), left=name != "t5")
    plain = by_transformers(model, inputs)
    model.prepare_inputs_for_generation = adapter(model)
    with pytest.raises(TypeError, match=f"{type(model).__name__} whose prepare_inputs_for_generation was replaced by"):
        by_copyspec(model, inputs)
    with pytest.raises(TypeError, match="prepare_inputs_for_generation was replaced by"):
        copyspec.generate(prompts(1)[0], model=model, tokenizer=tokenizer(), max_new_tokens=4)
    # As PEFT leaves it behind.
    model.prepare_inputs_for_generation = MethodType(type(model).prepare_inputs_for_generation, model)
    assert torch.equal(plain, by_copyspec(model, inputs))
    del model.prepare_inputs_for_generation
    model._update_model_kwargs_for_generation = lambda *args, **kwargs: kwargs
    with pytest.raises(TypeError, match="_update_model_kwargs_for_generation was replaced by"):
        by_copyspec(model, inputs)


def test_inputs_prepared_by_a_changed_class_are_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("qwen2")
    original = type(model).prepare_inputs_for_generation

    def shifted(self: Any, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        prepared: dict[str, Any] = original(self, input_ids, **kwargs)
        return prepared | {"position_ids": prepared["position_ids"] * 2}

    monkeypatch.setattr(type(model), "prepare_inputs_for_generation", shifted)
    inputs = padded(prompts(1))
    plain, copied = both(model, inputs)
    assert torch.equal(plain, copied)  # by the class's own steps
    monkeypatch.undo()
    assert not torch.equal(plain, by_transformers(model, inputs))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT asks for it
def test_adapters_of_peft() -> None:
    peft = pytest.importorskip("peft")
    inputs, kind = padded(prompts(2)), {"task_type": "CAUSAL_LM"}
    base = tiny("llama", seed=4)
    alone = by_transformers(base, inputs)
    config = peft.LoraConfig(**kind, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    lora = peft.get_peft_model(base, config).eval()
    plain, copied = both(lora, inputs)
    assert torch.equal(plain, copied) and not torch.equal(plain, alone)
    for config in (
        peft.PromptTuningConfig(**kind, num_virtual_tokens=5),
        peft.PromptEncoderConfig(**kind, num_virtual_tokens=5, encoder_hidden_size=16),
        peft.PrefixTuningConfig(**kind, num_virtual_tokens=5),
    ):
        base = tiny("llama", seed=4)
        adapted = peft.get_peft_model(base, config).eval()
        with pytest.raises(TypeError, match="prepare_inputs_for_generation was replaced by <bound method Peft"):
            by_copyspec(adapted, inputs)
        assert torch.equal(alone, by_copyspec(base, inputs))


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "qwen3", "gemma2", "phi", "t5", "bart"])
def test_a_call_without_texts_needs_no_tokenizer(name: str) -> None:
    model = model_of(name)
    inputs = padded(prompts(3), left=not model.config.is_encoder_decoder)
    plain = by_transformers(model, inputs)
    for own in ({}, {"references": plain.tolist()}, {"edit_source": prompts(3)}, {"drafter": Pool()}):
        assert torch.equal(plain, by_copyspec(model, inputs, {"tokenizer": None, **own}))
    result = by_copyspec(model, inputs, {"tokenizer": None}, return_dict_in_generate=True).results[0]
    assert result.text == "" and len(result.token_ids) == NEW_TOKENS
    for own in ({"references": ["12"]}, {"edit_source": ["1", "2", "3"]}, {"prediction": "12"}, {"stop": ["12"]}):
        with pytest.raises(TypeError, match=r"without a name to find|holds a text, .*; give tokenizer="):
            by_copyspec(model, inputs, {"tokenizer": None, **own})


EMBEDDED: dict[str, dict[str, Any]] = {
    "plain": {},
    "ends": {"eos_token_id": list(range(8, 60))},
    "one token": {"max_new_tokens": 1},
    "one token that may end": {"max_new_tokens": 1, "eos_token_id": list(range(8, 60))},
    "two tokens": {"max_new_tokens": 2},
    "scores": {"suppress_tokens": [9, 20, 57], "output_scores": True, "output_logits": True},
    "static": {"cache_implementation": "static"},
}


@pytest.mark.parametrize("options", EMBEDDED.values(), ids=EMBEDDED)
@pytest.mark.parametrize(
    "name", ["llama", "gemma3_text", "gpt2", "mistral", "opt", "qwen3", "bloom", "cohere2", "falcon", "phi", "olmo2"]
)
def test_embeddings_are_read_by_generate_and_tokens_follow(name: str, options: dict[str, Any]) -> None:
    model, generator = model_of(name), torch.Generator().manual_seed(len(name))
    is_plain, ends = not options, options.get("eos_token_id", ())
    options = {"max_new_tokens": 8, **options}
    for rows in (1, 3):
        inputs = padded(prompts(rows))
        embeds = torch.randn(*inputs["input_ids"].shape, 32, generator=generator) * 0.7
        mask = {"attention_mask": inputs["attention_mask"]}
        for extra in ({}, mask, inputs) if is_plain else (inputs,) if rows == 1 else (mask,):
            call = {"inputs_embeds": embeds, **extra}
            plain = by_transformers(model, call, return_dict_in_generate=True, **options)
            own = {"references": plain.sequences.tolist()}
            copied = by_copyspec(model, call, own, return_dict_in_generate=True, **options)
            assert torch.equal(plain.sequences, copied.sequences)
            assert_caches_are_equal(getattr(plain, CACHE_FIELD), getattr(copied, CACHE_FIELD))
            for field in ("scores", "logits") if "output_scores" in options else ():
                for expected, got in zip(plain[field], copied[field], strict=True):
                    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)
            width = inputs["input_ids"].shape[1] if "input_ids" in extra else 0
            for result, row in zip(copied.results, plain.sequences[:, width:].tolist(), strict=True):
                assert list(result.token_ids) == row[: len(result.token_ids)]
                assert (result.finish_reason == "stop") is (row[len(result.token_ids) - 1] in ends)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2", "mistral", "bloom"])
def test_embeddings_continue_from_a_filled_cache(name: str) -> None:
    model, embeds = model_of(name), torch.randn(2, 14, 32, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[0, 0, *[1] * 12], [1] * 14])
    first = {"inputs_embeds": embeds[:, :9], "attention_mask": mask[:, :9]}
    outputs = []
    for function in (by_transformers, by_copyspec):
        cache = getattr(function(model, first, return_dict_in_generate=True, max_new_tokens=1), CACHE_FIELD)
        outputs.append(function(model, {"inputs_embeds": embeds, "attention_mask": mask, CACHE_FIELD: cache}))
    assert torch.equal(*outputs)


def test_embeddings_stream_sample_and_are_refused_beside_what_does_not_fit() -> None:
    model, inputs = model_of("llama"), padded(prompts(2))
    call = {"inputs_embeds": torch.randn(2, 12, 32), "attention_mask": inputs["attention_mask"]}
    told: dict[str, list[Any]] = {"plain": [], "copied": []}
    for key, function in (("plain", by_transformers), ("copied", by_copyspec)):
        streamer = SimpleNamespace(put=lambda value, key=key: told[key].append(value.tolist()), end=lambda: None)
        function(model, call, streamer=streamer, eos_token_id=list(range(20, 50)))
    assert told["plain"] == told["copied"]
    samples = []
    for seed in (1, 1, 2):
        transformers.set_seed(seed)
        samples.append(by_copyspec(model, call, do_sample=True, num_return_sequences=2))
    assert torch.equal(samples[0], samples[1]) and not torch.equal(samples[0], samples[2])
    for more, message in (
        (
            {"output_hidden_states": True, "return_dict_in_generate": True},
            "output_hidden_states=True cannot be combined",
        ),
        ({"attention_mask": inputs["attention_mask"].flip(1)}, "row 0 is padded on the right"),
        ({"position_ids": torch.arange(12).repeat(2, 1) + 1}, "leave position_ids out"),
    ):
        with pytest.raises(ValueError, match=message):
            by_copyspec(model, call | more)
    with pytest.raises(ValueError, match="does not pass inputs_embeds to the model"):
        by_copyspec(model_of("t5"), {"inputs_embeds": torch.randn(2, 5, 32)})
