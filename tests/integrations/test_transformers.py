"""`custom_generate=copyspec.hf` returns what `model.generate` returns: tokens, shapes, scores, streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    pipeline,
    set_seed,
)

import copyspec
from copyspec.integrations import transformers as integration
from copyspec.integrations.transformers.caches import CACHE_FIELD
from copyspec.integrations.transformers.hf import CopiedDecoderOnlyOutput
from tests.helpers.both_ways import (
    EOS,
    PAD,
    assert_caches_are_equal,
    both,
    by_copyspec,
    model_of,
    padded,
    prompts,
    tokenizer,
)
from tests.helpers.models import SEQ2SEQ, VOCAB_SIZE, tiny
from tests.helpers.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("steady_drafts")

FOLDER = Path(__file__).parent.parent.parent / "examples" / "custom_generate_folder"


class Even(LogitsProcessor):  # type: ignore[no-untyped-call]
    """Allows only even tokens after an even length."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        banned = scores.clone()
        banned[:, 1 - input_ids.shape[1] % 2 :: 2] = -torch.inf
        return banned  # type: ignore[return-value]


class After(StoppingCriteria):
    """Ends a row after a token below 30 that follows one above 60."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any) -> torch.BoolTensor:
        return (input_ids[:, -1] < 30) & (input_ids[:, -2] > 60)  # type: ignore[return-value]


OPTIONS: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.2},
    "encoder n-grams": {"encoder_no_repeat_ngram_size": 2},
    "bias": {"sequence_bias": [[[9], 3.0], [[10, 11], 5.0]], "bad_words_ids": [[12], [13, 14]]},
    # The penalty begins after min_new_tokens: transformers 5.17 makes NaN of a forbidden token's -inf.
    "lengths": {"eos_token_id": [20, 21, 22], "min_new_tokens": 6, "exponential_decay_length_penalty": (6, 1.3)},
    "least length": {"eos_token_id": [20, 21, 22], "min_length": 14, "max_new_tokens": 20},
    "forced": {"forced_eos_token_id": 20, "forced_bos_token_id": 21, "suppress_tokens": [30], "eos_token_id": 20},
    "suppressed": {"begin_suppress_tokens": [40, 41], "remove_invalid_values": True, "renormalize_logits": True},
    "prefix": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(10 + row, 90, 2 + row))},
    "own processor": {"logits_processor": LogitsProcessorList([Even()])},
    "own criterion": {"stopping_criteria": StoppingCriteriaList([After()]), "eos_token_id": EOS},
    "both": {
        "stopping_criteria": StoppingCriteriaList([After()]),
        "logits_processor": LogitsProcessorList([Even()]),
        "eos_token_id": EOS,
    },
    "time": {"max_time": 600.0},
    "total length": {"max_new_tokens": None, "max_length": 30},
    "config": {"generation_config": GenerationConfig(max_new_tokens=9, pad_token_id=PAD, do_sample=False)},
    "cache": {"cache_implementation": "static", "use_cache": True},
    "no cache": {"use_cache": False},
    "watermark": {"watermarking_config": {"bias": 2.5, "seeding_scheme": "selfhash"}},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_options_of_generation(name: str, options: dict[str, Any]) -> None:
    model = model_of(name)
    inputs = padded(prompts(4), left=name == "llama")
    if name == "t5" and "cache_implementation" in options:
        pytest.skip("not offered for T5 by transformers")
    if name == "t5" and options.get("max_length"):
        options = options | {"max_length": 12}
    plain, copied = both(model, inputs, {"references": [inputs["input_ids"][1].tolist()]}, **options)
    assert torch.equal(plain, copied)


def test_dictionary_with_scores_and_logits() -> None:
    inputs = padded(prompts(3))
    wanted = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options = {"repetition_penalty": 1.2, "eos_token_id": [20, 21, 22, 30, 31, 32], **wanted}
    plain, copied = both(model_of("llama"), inputs, {"references": prompts(3)}, **options)
    assert isinstance(copied, type(plain)) and isinstance(copied, CopiedDecoderOnlyOutput)
    assert torch.equal(plain.sequences, copied.sequences)
    width = inputs["input_ids"].shape[1]
    ends = [(plain.sequences[row, width:] != PAD).sum() for row in range(3)]
    assert len(set(map(int, ends))) > 1
    for name in ("scores", "logits"):
        assert len(getattr(plain, name)) == len(getattr(copied, name))
        for step, (expected, got) in enumerate(zip(getattr(plain, name), getattr(copied, name), strict=True)):
            for row, end in enumerate(ends):
                torch.testing.assert_close(got[row], expected[row] if step < end else torch.zeros(VOCAB_SIZE))
    assert copied.results is not None and [len(result.token_ids) for result in copied.results] == list(map(int, ends))


def test_encoder_decoder_dictionary() -> None:
    plain, copied = both(model_of("t5"), padded(prompts(2), left=False), return_dict_in_generate=True)
    assert isinstance(copied, type(plain))
    assert torch.equal(plain.sequences, copied.sequences)


class Heard:
    """A streamer that records what it receives."""

    def __init__(self) -> None:
        self.received: list[list[int] | list[list[int]] | str] = []

    def put(self, value: torch.Tensor) -> None:
        self.received.append(value.tolist())

    def end(self) -> None:
        self.received.append("end")


@pytest.mark.parametrize("rows", [1, 3])
def test_streamers_hear_what_generate_tells_them(rows: int) -> None:
    inputs, expected, heard = padded(prompts(rows)), Heard(), Heard()
    options: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": [20, 21, 22, 30, 31, 32], "pad_token_id": PAD}
    model: Any = model_of("llama")
    model.generate(**inputs, **options, streamer=expected)
    model.generate(**inputs, **options, streamer=heard, custom_generate=copyspec.hf, tokenizer=tokenizer())
    assert heard.received == expected.received
    again = Heard()
    model.generate(
        **inputs, **options, copyspec_streamer=again, copyspec_tokenizer=tokenizer(), custom_generate=copyspec.hf
    )
    assert again.received == expected.received


def test_sampling_repeats_by_torch_seed_and_rows_differ() -> None:
    inputs = padded([prompts(1)[0]] * 2)
    model: Any = model_of("llama")
    options = {"do_sample": True, "top_k": 20, "num_return_sequences": 2, "max_new_tokens": 12, "pad_token_id": PAD}

    def sampled(torch_seed: int, **more: Any) -> torch.Tensor:
        set_seed(torch_seed)
        ids: torch.Tensor = model.generate(
            **inputs, **options, custom_generate=copyspec.hf, tokenizer=tokenizer(), **more
        )
        return ids

    first = sampled(1)
    assert first.shape[0] == 4 and len({tuple(row) for row in first.tolist()}) == 4
    assert torch.equal(first, sampled(1)) and not torch.equal(first, sampled(2))
    assert torch.equal(sampled(1, seed=5), sampled(2, seed=5, references=prompts(2)))
    assert torch.equal(sampled(1, seed=5), sampled(1, seed=5, max_draft_nodes=0))


def test_sampled_frequencies_are_those_of_the_scores() -> None:
    inputs = padded(prompts(1))
    model: Any = model_of("llama")
    options = {"do_sample": True, "temperature": 0.7, "top_k": 4, "num_return_sequences": 600, "max_new_tokens": 1}
    config = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 1, "pad_token_id": PAD}
    scores = model.generate(**inputs, **options | config | {"num_return_sequences": 1}).scores[0][0]
    ids = model.generate(
        **inputs, **options, pad_token_id=PAD, custom_generate=copyspec.hf, tokenizer=tokenizer(), seed=3
    )
    counts = torch.bincount(ids[:, -1], minlength=VOCAB_SIZE).double()
    expected = scores.double().softmax(-1) * 600
    mask = expected > 0
    assert not counts[~mask].any()
    assert float(((counts - expected)[mask] ** 2 / expected[mask]).sum()) < 16.3  # chi-square, 3 degrees, p = 0.001


def test_pipelines() -> None:
    pipe: Any = pipeline("text-generation", model=model_of("llama"), tokenizer=tokenizer())
    text = " ".join(map(str, prompts(1)[0]))
    options = {"do_sample": False, "max_new_tokens": 12, "return_full_text": False}
    own = {
        "copyspec_tokenizer": tokenizer()
    }  # a pipeline does not pass on its tokenizer, and this model has no name to load one by
    expected = pipe([text, "9 10 11 " + text], **options)
    assert pipe([text, "9 10 11 " + text], **options, custom_generate=copyspec.hf, references=[text], **own) == expected
    both_at_once = pipe([text, text], **options, custom_generate=copyspec.hf, batch_size=2, **own)
    assert both_at_once == [expected[0], expected[0]]


def test_stop_strings_of_copyspec() -> None:
    inputs = padded(prompts(1))
    model: Any = model_of("llama")
    plain = model.generate(**inputs, max_new_tokens=12, pad_token_id=PAD)
    third = str(int(plain[0, inputs["input_ids"].shape[1] + 2]))
    copied = model.generate(
        **inputs, max_new_tokens=12, custom_generate=copyspec.hf, tokenizer=tokenizer(), stop=[third]
    )
    assert copied[0].tolist() == plain[0, : inputs["input_ids"].shape[1] + 3].tolist()


def test_a_folder_of_custom_generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    model, words = tiny_model(), tiny_tokenizer()
    generator: Any = model
    inputs = words("a wall, a wall, a wall", return_tensors="pt", return_token_type_ids=False)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
    text = words.decode(generator.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :])
    told: list[str] = []
    monkeypatch.setattr("transformers.generation.utils.logger.warning_once", lambda text, *_, **__: told.append(text))
    configs = [GenerationConfig(**options), GenerationConfig(**options, stop_strings=[text[5:7]])]
    for of_model, more in (
        (None, options),
        (None, options | {"stop_strings": [text[2:4]]}),
        (None, {"generation_config": configs[1]}),
        ([text[2:4]], options),
        ([text[2:4]], options | {"stop_strings": [text[5:7]]}),
        ([text[2:4]], options | {"stop_strings": None}),
        ([text[2:4]], {"generation_config": configs[0]}),
        ([text[2:4]], {"generation_config": configs[1]}),
    ):
        model.generation_config.stop_strings = of_model
        expected, heard = Heard(), Heard()
        plain = generator.generate(**inputs, **more, tokenizer=words, streamer=expected)
        own = {"references": [text], "custom_generate": str(FOLDER), "trust_remote_code": True}
        copied = generator.generate(**inputs, **more, **own, tokenizer=words, streamer=heard)
        assert torch.equal(plain, copied) and heard.received == expected.received
    assert configs[1].stop_strings == [text[5:7]] and not any("is deprecated" in text for text in told)
    with pytest.raises(TypeError, match="tokenizer must be the model's tokenizer, for stop_strings"):
        integration.generate(model, **inputs, stop_strings=["a"])


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "beams": ({"num_beams": 2}, ValueError, "num_beams=2 cannot be combined .* one beam"),
    "guidance": ({"guidance_scale": 2.0}, ValueError, "guidance_scale=2.0 .* second time"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, ValueError, "copyspec drafts itself"),
    "positions": ({"position_ids": torch.arange(9)[None] + 1}, ValueError, "leave position_ids out"),
    "mask values": ({"attention_mask": torch.full((1, 9), 2)}, ValueError, "attention_mask must hold 0 and 1 only"),
    "mask of nothing": ({"attention_mask": torch.zeros(1, 9)}, ValueError, "row 0 has no token: its attention_mask"),
    "right padding": (
        {"attention_mask": torch.tensor([[1] * 8 + [0]])},
        ValueError,
        "row 0 is padded on the right, where generate itself goes on from the padding: .*padding_side='left'",
    ),
    "watermark": (
        {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2, 3], ngram_len=2)},
        ValueError,
        "SynthIDTextWatermarkLogitsProcessor keeps a state",
    ),
    "unknown": ({"referencse": ["a"]}, ValueError, "referencse"),
    "several processes": ({"synced_gpus": True}, ValueError, "does not pass synced_gpus to the model .got bool: True"),
    "references": ({"references": [3.5]}, TypeError, "references"),
    "tokenizer": ({"tokenizer": 3}, TypeError, "tokenizer must be a transformers tokenizer; got int: 3"),
    "no tokenizer": ({"tokenizer": None, "stop": "12"}, TypeError, "give tokenizer= too"),
}


@pytest.mark.parametrize(("options", "error", "message"), WRONG.values(), ids=WRONG)
def test_what_is_not_offered_is_said(options: dict[str, Any], error: type[Exception], message: str) -> None:
    model: Any = model_of("llama")
    kwargs = {**padded(prompts(1)), "max_new_tokens": 4, "tokenizer": tokenizer(), "pad_token_id": PAD} | options
    with pytest.raises(error, match=message):
        model.generate(**kwargs, custom_generate=copyspec.hf)


def batch_of_t5(rows: int = 2) -> tuple[Any, dict[str, torch.Tensor]]:
    return model_of("t5"), padded(prompts(rows), left=False)


@pytest.mark.parametrize("name", SEQ2SEQ)
@pytest.mark.parametrize(
    "options",
    [
        {"decoder_start_token_id": 9},
        {"decoder_start_token_id": [0, 9]},
        {"generation_config": GenerationConfig(decoder_start_token_id=9, pad_token_id=PAD, max_new_tokens=12)},
        # One row begins with the start token: `generate` puts it before none.
        {"decoder_input_ids": torch.tensor([[0], [9]])},
        {"decoder_input_ids": torch.tensor([[9, 10, 11], [12, 10, 11]])},
        {"decoder_input_ids": torch.tensor([[0, 9, 10, 11, 9], [0, 13, 14, 13, 14]]), "no_repeat_ngram_size": 2},
        {"decoder_input_ids": torch.tensor([[2, *[9, 10] * 6]] * 2), "return_dict_in_generate": True},
    ],
)
def test_outputs_begin_with_the_tokens_of_the_call(name: str, options: dict[str, Any]) -> None:
    model, inputs = model_of(name), padded(prompts(2), left=False)
    plain, copied = both(model, inputs, {"references": prompts(2)}, **options)
    if "return_dict_in_generate" in options:
        assert_caches_are_equal(getattr(plain, CACHE_FIELD), getattr(copied, CACHE_FIELD))
        plain, copied = plain.sequences, copied.sequences
    assert torch.equal(plain, copied)


def test_the_start_token_of_the_model_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = batch_of_t5()
    assert torch.equal(*both(model, inputs, decoder_start_token_id=0, decoder_input_ids=torch.tensor([[0], [0]])))
    monkeypatch.setattr(model.generation_config, "decoder_start_token_id", 9)
    plain, copied = both(model, inputs)
    assert torch.equal(plain, copied) and copied[:, 0].tolist() == [9, 9]


def test_a_callers_own_encoder_outputs_are_refused() -> None:
    model, inputs = batch_of_t5()
    encoded = model.get_encoder()(**inputs)
    with pytest.raises(ValueError, match="copyspec runs the encoder itself: leave encoder_outputs out"):
        by_copyspec(model, inputs, encoder_outputs=encoded)


@pytest.mark.parametrize("eos", [-1, [EOS, -1], [EOS, VOCAB_SIZE, 10**9]])
def test_an_end_of_sequence_that_the_model_does_not_have_ends_nothing(eos: object) -> None:
    assert torch.equal(*both(model_of("llama"), padded(prompts(2)), eos_token_id=eos))


def test_rows_without_a_token_to_pad_with() -> None:
    model: Any = model_of("llama")
    inputs = padded(prompts(2))
    with pytest.raises(ValueError, match="give pad_token_id="):
        model.generate(
            **inputs,
            max_new_tokens=4,
            pad_token_id=None,
            stopping_criteria=StoppingCriteriaList([After()]),
            generation_config=GenerationConfig(max_new_tokens=4),
            custom_generate=copyspec.hf,
            tokenizer=tokenizer(),
        )


def test_recurrent_models_are_refused_or_decoded_plainly() -> None:
    model = tiny("recurrent_gemma")
    with pytest.raises(copyspec.UnsupportedModelError):
        both(model, padded(prompts(1)))
    plain, copied = both(model, padded(prompts(1)), {"on_unsupported": "plain"})
    assert torch.equal(plain, copied)


def test_a_streamer_that_fails_ends_the_call_and_the_next_one_works() -> None:
    class Failing(Heard):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.received) == 3:
                raise RuntimeError("gone")

    model: Any = model_of("llama")
    inputs = padded(prompts(1))
    with pytest.raises(RuntimeError, match="gone"):
        model.generate(
            **inputs, max_new_tokens=9, streamer=Failing(), custom_generate=copyspec.hf, tokenizer=tokenizer()
        )
    plain, copied = both(model, inputs)
    assert torch.equal(plain, copied)


def test_the_signature_names_what_generate_would_refuse() -> None:
    names = set(copyspec.hf.__signature__.parameters)
    assert {"references", "edit_source", "draft_model", "copyspec_tokenizer"} <= names
    assert "attention_mask" not in names
