"""The model's or the call's generation_config is applied as `generate` applies it; explicit options take precedence."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    StopStringCriteria,
)

import copyspec
from copyspec.engine.logits import generation_config, unsupported_settings
from tests.helpers.models import tiny as tiny_model
from tests.helpers.texts import SPECIAL, bart, byte_level, llama

PROMPT = "the cat sat on the mat and the cat sat"
MARKED = "the cat sat on the mat #"
"""A prompt whose end begins no stop string in a text without this sign."""


def unmarked() -> list[int]:
    """Tokens to suppress so that an output is ASCII without the sign."""
    texts = [byte_level().decode([token]) for token in range(len(byte_level()))]
    fits = [text.isascii() and text.isprintable() and "#" not in text for text in texts]
    return [token for token in range(len(texts)) if token < len(SPECIAL) or not fits[token]]


@pytest.fixture
def tiny() -> Iterator[copyspec.Engine]:
    model = llama(len(byte_level()), seed=5)
    before = model.generation_config
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=1)
    yield copyspec.Engine(model, byte_level())
    model.generation_config = before


def generated(tiny: copyspec.Engine, config: GenerationConfig) -> list[int]:
    """Return the output of transformers."""
    ids = torch.tensor([tiny.tokenizer(PROMPT)["input_ids"]])
    output = tiny.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    tokens: list[int] = output[0, ids.shape[1] :].tolist()
    return tokens


SETTINGS: list[dict[str, Any]] = [
    {"max_new_tokens": 7},
    {"max_length": 20},
    {"max_new_tokens": 30, "no_repeat_ngram_size": 2},
    {"max_new_tokens": 30, "repetition_penalty": 1.4, "min_new_tokens": 30},
    {"max_new_tokens": 12, "bad_words_ids": [[5], [7, 8]], "suppress_tokens": [9]},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_against_generate(tiny: copyspec.Engine, settings: dict[str, Any]) -> None:
    config = GenerationConfig(eos_token_id=1, pad_token_id=1, do_sample=False, **settings)
    expected = generated(tiny, config)
    assert list(tiny.generate(PROMPT, generation_config=config).token_ids) == expected
    assert list(tiny.generate(PROMPT, generation_config=settings).token_ids) == expected
    tiny.model.generation_config = config
    assert list(tiny.generate(PROMPT).token_ids) == expected
    assert len(tiny.generate(PROMPT, max_new_tokens=3, min_new_tokens=0).token_ids) <= 3


def test_a_stop_token_of_the_call_joins_those_of_its_config(tiny: copyspec.Engine) -> None:
    free = tiny.generate(PROMPT, max_new_tokens=30, ignore_eos=True).token_ids
    end = next(token for place, token in enumerate(free) if place > 4 and token > 1 and token not in free[:place])
    other = next(token for token in range(3, 50) if token not in free)
    options: dict[str, Any] = {"min_new_tokens": 2, "max_new_tokens": 30, "stop_token_ids": [other]}
    result = tiny.generate(PROMPT, generation_config={"eos_token_id": end}, **options)
    assert result.token_ids == free[: free.index(end) + 1]


@pytest.mark.parametrize("name", ["bad_words_ids", "exponential_decay_length_penalty"])
def test_processors_see_the_stop_tokens_of_a_call_as_ends(tiny: copyspec.Engine, name: str) -> None:
    tiny.model.generation_config = GenerationConfig(bos_token_id=0, pad_token_id=1)
    free = tiny.generate(PROMPT, max_new_tokens=30).token_ids
    end = next(token for place, token in enumerate(free) if place > 4 and token not in free[:place])
    other = next(token for token in range(3, 50) if token not in free)
    settings: dict[str, Any] = {name: [[end], [other]] if name == "bad_words_ids" else (2, 1.5)}
    expected = generated(tiny, GenerationConfig(eos_token_id=[end], pad_token_id=1, max_new_tokens=30, **settings))
    result = tiny.generate(PROMPT, max_new_tokens=30, stop_token_ids=[end], generation_config=settings)
    assert list(result.token_ids) == expected and expected[-1] == end


def test_own_processors_take_the_place_of_those_of_the_config(tiny: copyspec.Engine) -> None:
    ids = torch.tensor([tiny.tokenizer(PROMPT)["input_ids"]])
    config = GenerationConfig(eos_token_id=1, pad_token_id=1, repetition_penalty=1.1, max_new_tokens=30)
    own: Any = [RepetitionPenaltyLogitsProcessor(1.8), MinNewTokensLengthLogitsProcessor(ids.shape[1], 9, [1])]
    expected = tiny.model.generate(
        ids, attention_mask=torch.ones_like(ids), generation_config=config, logits_processor=LogitsProcessorList(own)
    )[0, ids.shape[1] :].tolist()
    assert list(tiny.generate(PROMPT, generation_config=config, logits_processor=own).token_ids) == expected
    result = tiny.generate(PROMPT, max_new_tokens=30, repetition_penalty=1.1, logits_processor=own)
    assert list(result.token_ids) == expected
    limit: Any = MaxTimeCriteria(3600.0)
    assert list(tiny.generate(PROMPT, max_new_tokens=9, max_time=1e-9, stopping_criteria=limit).token_ids) == list(
        tiny.generate(PROMPT, max_new_tokens=9).token_ids
    )


def test_criteria_and_strings_take_the_places_of_those_of_the_config(tiny: copyspec.Engine) -> None:
    ids, tokenizer = torch.tensor([tiny.tokenizer(MARKED)["input_ids"]]), tiny.tokenizer
    base: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "no_repeat_ngram_size": 1}
    base["suppress_tokens"] = unmarked()

    def theirs(*criteria: Any, **options: Any) -> tuple[int, ...]:
        options |= {"attention_mask": torch.ones_like(ids), "stopping_criteria": StoppingCriteriaList(criteria)}
        output = tiny.model.generate(ids, tokenizer=tokenizer, **options)
        return tuple(output[0, ids.shape[1] :].tolist())

    tiny.model.generation_config = GenerationConfig(**base)
    free = tiny.generate(MARKED, max_new_tokens=30).token_ids
    texts = [tiny.codec.decode([token]) for token in free]
    first, *_, last = [place for place in range(3, 30) if texts[place] not in tiny.codec.decode(free[:place])]
    for settings, criterion in (
        ({"eos_token_id": free[first]}, EosTokenCriteria(free[last])),
        ({"stop_strings": [texts[first]]}, StopStringCriteria(tokenizer, [texts[last]])),
    ):
        tiny.model.generation_config = GenerationConfig(**base | settings)
        assert theirs(max_new_tokens=30) == tiny.generate(MARKED, max_new_tokens=30).token_ids == free[: first + 1]
        result = tiny.generate(MARKED, max_new_tokens=30, stopping_criteria=[criterion])
        assert result.token_ids == theirs(criterion, max_new_tokens=30) == free[: last + 1]
        assert result.stop_reason == type(criterion).__name__
    result = tiny.generate(MARKED, max_new_tokens=30, stop=[texts[last]])
    assert result.token_ids == theirs(max_new_tokens=30, stop_strings=[texts[last]]) == free[: last + 1]
    tiny.model.generation_config = GenerationConfig(**base, max_length=ids.shape[1] + 4)
    assert len(theirs()) == len(tiny.generate(MARKED).token_ids) == 4
    result = tiny.generate(MARKED, stopping_criteria=[MaxLengthCriteria(60)])
    assert result.token_ids == theirs(MaxLengthCriteria(60)) and result.prompt_tokens + len(result.token_ids) == 60


def test_a_changed_config_of_the_model_leaves_that_of_a_call_alone(tiny: copyspec.Engine) -> None:
    config, options = tiny.model.generation_config, {"ignore_eos": True}
    for settings, later in (({"max_new_tokens": 5}, 9), ({"repetition_penalty": 1.8, "max_new_tokens": 20}, 1.0)):
        for name, value in settings.items():
            setattr(config, name, value)
        before = tiny.generate(PROMPT, **options).token_ids
        setattr(config, next(iter(settings)), later)
        assert tiny.generate(PROMPT, generation_config=settings, **options).token_ids == before
        assert tiny.generate(PROMPT, **options).token_ids != before


def test_a_limit_of_the_call_is_kept_whatever_is_edited(tiny: copyspec.Engine) -> None:
    options: dict[str, Any] = {"edit_source": [5] * 30, "ignore_eos": True}
    length = len(tiny.tokenizer(PROMPT)["input_ids"])
    for settings in ({"max_new_tokens": 6}, {"max_length": length + 6}):
        assert len(tiny.generate(PROMPT, generation_config=settings, **options).token_ids) == 6
    tiny.model.generation_config.max_new_tokens = 6
    assert len(tiny.generate(PROMPT, **options).token_ids) == 60


def test_a_length_that_the_prompt_fills_is_refused(tiny: copyspec.Engine) -> None:
    ids = torch.tensor([tiny.tokenizer(PROMPT)["input_ids"]])
    length = ids.shape[1]
    for most in (2, length):
        with pytest.raises(ValueError, match="max_length"):
            generated(tiny, GenerationConfig(max_length=most, pad_token_id=1))
        with pytest.raises(
            copyspec.PromptTooLongError,
            match=f"generation_config.max_length={most} leaves no new token, as it counts the {length} before the",
        ):
            tiny.generate(PROMPT, generation_config={"max_length": most})
    assert len(tiny.generate(PROMPT, generation_config={"max_length": length + 1}).token_ids) == 1
    config: Any = tiny.model.generation_config
    config.max_length = length
    options: dict[str, Any] = {"ignore_eos": True}
    assert len(tiny.generate(PROMPT, edit_source=[5] * 30, **options).token_ids) == 60
    assert len(tiny.generate(PROMPT, max_new_tokens=3, **options).token_ids) == 3
    config.max_length = length + 9
    criterion = MaxLengthCriteria(2)
    theirs = tiny.model.generate(
        ids, attention_mask=torch.ones_like(ids), stopping_criteria=StoppingCriteriaList([criterion])
    )
    assert theirs.shape[1] - length == len(tiny.generate(PROMPT, stopping_criteria=[criterion]).token_ids) == 1


def test_min_new_tokens_takes_the_place_of_min_length(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = bart(len(byte_level())), byte_level()(PROMPT)["input_ids"]
    base: dict[str, Any] = {"bos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 1, "max_new_tokens": 20}
    monkeypatch.setattr(model, "generation_config", GenerationConfig(**base))
    engine = copyspec.Engine(model, byte_level())
    end = engine.generate(ids).token_ids[4]
    monkeypatch.setattr(model, "generation_config", GenerationConfig(**base, eos_token_id=end, min_length=12))
    lengths = []
    for least in (None, 0, 3):
        prompt = torch.tensor([ids])
        expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), min_new_tokens=least)[0, 1:].tolist()
        assert list(engine.generate(ids, min_new_tokens=least).token_ids) == expected
        lengths.append(len(expected))
    assert lengths[1] <= 5 < lengths[0]


def test_stop_strings_of_a_model_that_is_decoded_plainly() -> None:
    model = tiny_model("mamba", vocab_size=len(byte_level()))
    engine = copyspec.Engine(model, byte_level(), on_unsupported="plain")
    config: Any = model.generation_config
    config.suppress_tokens = unmarked()
    free = engine.generate(MARKED, max_new_tokens=20).token_ids
    config.stop_strings = engine.codec.decode(free[:3])
    ids = torch.tensor([byte_level()(MARKED)["input_ids"]])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, tokenizer=byte_level())
    config.token_healing = True  # is not applied, and would change the prompt
    result = engine.generate(MARKED, max_new_tokens=20)
    assert list(result.token_ids) == output[0, ids.shape[1] :].tolist() and len(result.token_ids) <= 3


def test_a_repetition_penalty_comes_after_biases_however_it_is_given(tiny: copyspec.Engine) -> None:
    for first in ({"sequence_bias": {(5,): 4.0, (9,): -2.0}}, {"encoder_repetition_penalty": 1.5}):
        config = GenerationConfig(eos_token_id=1, pad_token_id=1, max_new_tokens=30, repetition_penalty=1.7, **first)  # type: ignore[arg-type]
        expected = generated(tiny, config)
        assert list(tiny.generate(PROMPT, generation_config=config).token_ids) == expected
        result = tiny.generate(PROMPT, repetition_penalty=1.7, max_new_tokens=30, generation_config=first)  # type: ignore[call-overload]
        assert list(result.token_ids) == expected


def test_sampling_of_the_config_is_followed(tiny: copyspec.Engine, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"seed": 3, "max_new_tokens": 20}
    result = tiny.generate(PROMPT, temperature=0.7, top_p=0.9, top_k=50, **options)
    tiny.model.generation_config.do_sample = True
    tiny.model.generation_config.temperature, tiny.model.generation_config.top_p = 0.7, 0.9
    with caplog.at_level(logging.INFO, "copyspec"):
        tiny.generate(PROMPT, **options)
        followed = tiny.generate(PROMPT, **options)
    assert followed.token_ids == result.token_ids
    assert [record.getMessage() for record in caplog.records] == [
        "following the generation_config: temperature=0.7, top_k=50, top_p=0.9"
    ]
    greedy = tiny.generate(PROMPT, temperature=0, max_new_tokens=20)
    assert (
        greedy.token_ids == tiny.generate(PROMPT, max_new_tokens=20, generation_config={"do_sample": False}).token_ids
    )
    assert len(tiny.generate(PROMPT, n=2, max_new_tokens=4).samples) == 2
    assert copyspec.compare(PROMPT, model=tiny, max_new_tokens=20).equal


def test_a_config_that_samples_truncates_like_generate_whoever_gives_the_temperature(tiny: copyspec.Engine) -> None:
    options: dict[str, Any] = {"temperature": 5.0, "seed": 3, "max_new_tokens": 20, "ignore_eos": True}
    wanted = {top_k: tiny.generate(PROMPT, top_k=top_k, **options).token_ids for top_k in (0, 7, 50)}
    assert len({*wanted.values()}) == 3
    assert tiny.generate(PROMPT, **options).token_ids == wanted[0]
    config: Any = tiny.model.generation_config
    config.do_sample = True
    assert tiny.generate(PROMPT, **options).token_ids == wanted[50]
    assert tiny.generate(PROMPT, top_k=0, **options).token_ids == wanted[0]
    config.top_k = 7
    assert tiny.generate(PROMPT, **options).token_ids == wanted[7]


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({"generation_config": {"temperature": 0.7}}, "temperature=0.7"),
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"top_p": 0.9, "temperature": 0.0}, ""),
        ({"generation_config": {"temperature": 0.7, "do_sample": True}}, ""),
        ({"top_k": 0, "top_p": 1.0}, ""),
    ],
)
def test_settings_of_samples_for_a_greedy_output_are_told_once(
    tiny: copyspec.Engine, caplog: pytest.LogCaptureFixture, options: dict[str, Any], warns: str
) -> None:
    with caplog.at_level(logging.WARNING, "copyspec"):
        for _ in range(2):
            tiny.generate(PROMPT, max_new_tokens=2, **options)
    expected = f"{warns} has no effect on a greedy output: give temperature=, or do_sample in a config"
    assert [record.getMessage() for record in caplog.records] == ([expected] if warns else [])


def test_what_a_model_changes_for_its_own_generate_is_told() -> None:
    class Own(LlamaForCausalLM):
        def generate(self, *arguments: Any, **options: Any) -> Any:
            return super().generate(*arguments, **options)

    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model: Any = Own(LlamaConfig(vocab_size=9, num_attention_heads=1, **sizes))
    model.config.repetition_penalty, model.config.num_beams = 1.3, 1
    assert list(unsupported_settings.of_model(model)) == [
        "Own has a generate of its own, which is not called: outputs are those of transformers' own",
        "model.config has repetition_penalty=1.3, which is not applied; set model.generation_config.repetition_penalty",
    ]
    for usual in (llama(len(byte_level())), bart(len(byte_level()))):
        assert list(unsupported_settings.of_model(usual)) == []
    patched: Any = LlamaForCausalLM(LlamaConfig(vocab_size=9, num_attention_heads=1, **sizes))
    patched.generate = lambda *arguments, **options: None
    (note,) = unsupported_settings.of_model(patched)
    assert note.startswith("LlamaForCausalLM has a generate of its own, which is not called")


def test_values_of_calls_are_not_noted_without_end(caplog: pytest.LogCaptureFixture) -> None:
    noted: set[str] = set()
    unsupported_settings.log_once(map(str, range(2 * unsupported_settings.MAX_NOTED)), noted)
    assert len(noted) == len(caplog.records) == unsupported_settings.MAX_NOTED


def test_lists_have_one_value_per_prompt(tiny: copyspec.Engine) -> None:
    together = tiny.generate(
        [PROMPT] * 3, temperature=[0.0, 0.9, 0.9], seed=[0, 4, 5], max_new_tokens=[5, 12, 20], ignore_eos=True
    )
    alone = [
        tiny.generate(PROMPT, temperature=temperature, seed=seed, max_new_tokens=limit, ignore_eos=True)
        for temperature, seed, limit in ((0.0, 0, 5), (0.9, 4, 12), (0.9, 5, 20))
    ]
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    assert [result.seed for result in together] == [result.seed for result in alone]
    with pytest.raises(ValueError, match="seed holds 2 values for 1 prompt; give one value for all"):
        tiny.generate(PROMPT, temperature=1.0, seed=[1, 2])
    with pytest.raises(ValueError, match="temperature must be a number at least"):
        tiny.generate([PROMPT, PROMPT], temperature=[0.5, -1])


def test_time_ends_an_output_where_it_is(tiny: copyspec.Engine) -> None:
    result = tiny.generate(PROMPT, max_time=1e-9, ignore_eos=True)
    assert (len(result.token_ids), result.finish_reason, result.stop_reason) == (1, "length", "MaxTimeCriteria")
    limit = MaxLengthCriteria(result.prompt_tokens + 3)
    result = tiny.generate(PROMPT, stopping_criteria=limit, max_new_tokens=9, ignore_eos=True)
    assert (len(result.token_ids), result.finish_reason, result.stop_reason) == (3, "length", "MaxLengthCriteria")


@pytest.mark.parametrize(
    ("settings", "error", "expected"),
    [
        (
            {"bad_words_ids": [[5, 999]]},
            ValueError,
            "generation_config.bad_words_ids holds token id 999, but the model's",
        ),
        ({"suppress_tokens": [-3]}, ValueError, "generation_config.suppress_tokens holds token id -3"),
        ({"forced_eos_token_id": 999}, ValueError, "generation_config.forced_eos_token_id holds token id 999"),
        ({"sequence_bias": {(5, 999): 1.0}}, ValueError, "generation_config.sequence_bias holds token id 999"),
        ({"temprature": 1.0}, TypeError, "generation_config has no setting 'temprature'"),
        (5, TypeError, "generation_config must be a transformers GenerationConfig, or a dict of its settings; got int"),
    ],
)
def test_wrong_settings(tiny: copyspec.Engine, settings: object, error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=expected.replace("(", r"\(")):
        tiny.generate(PROMPT, generation_config=settings)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("settings", "options", "warns"),
    [
        ({"typical_p": 0.5}, {"temperature": 0.8}, "typical_p=0.5"),
        ({"top_h": 0.4}, {"temperature": 0.8}, "top_h=0.4"),
        ({"epsilon_cutoff": 0.01, "do_sample": True}, {}, "epsilon_cutoff=0.01"),
        ({"typical_p": 0.5, "do_sample": True}, {"temperature": 0.0}, ""),
        ({"eta_cutoff": 0.1}, {}, ""),
        ({"force_words_ids": [[5]]}, {}, "force_words_ids=[[5]]"),
        ({"constraints": ["a constraint"]}, {}, "constraints=['a constraint']"),
        ({"output_scores": True, "return_dict_in_generate": True}, {}, "output_scores=True"),
        ({"cache_implementation": "quantized"}, {}, "cache_implementation='quantized'"),
        ({"cache_implementation": "static"}, {}, ""),
    ],
)
def test_what_is_not_applied_is_told_once(
    tiny: copyspec.Engine,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    options: dict[str, Any],
    warns: str,
) -> None:
    for name, value in settings.items():
        setattr(tiny.model.generation_config, name, value)
    with caplog.at_level(logging.WARNING, "copyspec"):
        for _ in range(2):
            tiny.generate(PROMPT, max_new_tokens=2, **options)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ([f"generation_config has {warns}, which is not applied"] if warns else [])


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 4},
        {"guidance_scale": 2.0},
        {"typical_p": 0.5, "do_sample": True},
        {"penalty_alpha": 0.6},
        {"output_scores": True, "return_dict_in_generate": True},
        {"cache_implementation": "quantized"},
    ],
)
def test_what_is_not_applied_is_refused_in_the_config_of_a_call(
    tiny: copyspec.Engine, settings: dict[str, Any]
) -> None:
    own = tiny.model.generation_config
    assert own is not None
    name, value = next(iter(settings.items()))
    said = f"leave this setting out: the call's generation_config has {name}={value!r}"
    for config in (settings, GenerationConfig(**settings)):
        for _ in range(2):
            with pytest.raises(ValueError, match=said):
                tiny.generate(PROMPT, generation_config=config, max_new_tokens=2)
    for changed, setting in settings.items():
        setattr(own, changed, setting)
    copied = deepcopy(own)
    copied.no_repeat_ngram_size = 2
    for shared in (own, copied, settings):
        assert len(tiny.generate(PROMPT, generation_config=shared, max_new_tokens=2, ignore_eos=True).token_ids) == 2


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"num_return_sequences": 3, "do_sample": True}, {"n": 3}),
        ({"typical_p": 0.9, "do_sample": True}, {"temperature": 0}),
        ({"typical_p": 0.9}, {}),
    ],
)
def test_what_changes_nothing_in_a_call_is_no_error_in_its_config(
    tiny: copyspec.Engine, settings: dict[str, Any], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    result = tiny.generate(PROMPT, generation_config=settings, max_new_tokens=2, ignore_eos=True, **options)
    assert len(result.token_ids) == 2 and len(result.samples or [result]) == options.get("n", 1)
    assert not caplog.records


def test_a_config_from_a_folder_is_taken(tiny: copyspec.Engine, tmp_path: Path) -> None:
    GenerationConfig(eos_token_id=1, pad_token_id=1, max_new_tokens=5).save_pretrained(tmp_path)
    config = GenerationConfig.from_pretrained(tmp_path)
    assert len(tiny.generate(PROMPT, generation_config=config, ignore_eos=True).token_ids) == 5
    assert len(tiny.generate(PROMPT, generation_config=vars(config), ignore_eos=True).token_ids) == 5


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_several_end_tokens_in_any_form(tiny: copyspec.Engine, kind: Callable[[list[int]], Any]) -> None:
    free = tiny.generate(PROMPT, max_new_tokens=30, ignore_eos=True).token_ids
    end = next(token for place, token in enumerate(free) if place > 4 and token > 1 and token not in free[:place])
    unused = [token for token in range(2, 50) if token not in free]
    tiny.model.generation_config = GenerationConfig(pad_token_id=1)
    for ends in ([unused[0], end], unused[:2], [unused[0], end]):
        tiny.model.generation_config.eos_token_id = kind(ends)
        for _ in range(2):
            tokens = tiny.generate(PROMPT, max_new_tokens=30).token_ids
            assert tokens == (free[: free.index(end) + 1] if end in ends else free)


def test_no_setting_that_makes_a_processor_is_overlooked() -> None:
    """If no setting in `_PROCESSED` is on, `_processors` is not called."""
    read = re.findall(r"config\.(\w+)", inspect.getsource(generation_config._processors))
    assert set(read) == set(generation_config._PROCESSED)
