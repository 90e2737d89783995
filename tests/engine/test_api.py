"""`generate`: shapes, equality with `model.generate`, stop conditions, streams, sampling, compare."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria

import copyspec
from copyspec.engine.engine import Engine
from copyspec.engine.results import Result
from tests.helpers.texts import CORPUS, bart, byte_fallback, byte_level, engine, llama, sentencepiece_like

pytestmark = pytest.mark.usefixtures("steady_drafts")

PROMPT = "The cat sat on the mat, and the dog"
REFERENCES = [*CORPUS, "", "</s><|user|>", "ünïcödé 🙂" * 5]


class Document:
    """A document as LangChain and others define it."""

    def __init__(self, page_content: str) -> None:
        self.page_content = page_content
        self.metadata = {"source": "a file"}


def plain_ids(model: PreTrainedModel, ids: list[int], **options: Any) -> list[int]:
    """Return the new tokens of transformers' greedy search."""
    inputs = torch.tensor([ids])
    output = model.generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False, **options)[0].tolist()
    return list(output[1:] if model.config.is_encoder_decoder else output[len(ids) :])


def with_config(tiny: Engine, **changes: Any) -> Engine:
    """An engine with another generation_config, one of whose end-of-sequence tokens comes second in the output."""
    model = llama(len(tiny.tokenizer), seed=7)
    ids = tiny.tokenizer(PROMPT)["input_ids"]
    model.generation_config = GenerationConfig(bos_token_id=0, pad_token_id=1)
    end = plain_ids(model, ids, max_new_tokens=2)[-1]
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=[1, end], pad_token_id=1, **changes)
    return Engine(model, tiny.tokenizer)


def test_one_prompt_gives_a_result_and_a_list_gives_a_list() -> None:
    tiny = engine()
    ids = tiny.tokenizer(PROMPT)["input_ids"]
    chat = [{"role": "user", "content": PROMPT}]
    one = tiny.generate(PROMPT, max_new_tokens=8)
    assert isinstance(one, Result) and str(one) == one.text
    assert tiny.generate(ids, max_new_tokens=8).token_ids == one.token_ids
    assert tiny.generate(torch.tensor(ids), max_new_tokens=8).token_ids == one.token_ids
    wrapped = tiny.generate(PROMPT, chat=True, max_new_tokens=8)
    assert wrapped.token_ids == tiny.generate(chat, max_new_tokens=8).token_ids
    for prompts in ([PROMPT], [ids], [chat], [PROMPT, ids, chat]):
        results = tiny.generate(prompts, max_new_tokens=8)
        assert isinstance(results, list) and len(results) == len(prompts)
    assert tiny.generate([PROMPT, ids], max_new_tokens=8)[1].token_ids == one.token_ids


@pytest.mark.parametrize(
    "references",
    [
        "a text",
        Document("a text"),
        {"text": "a text"},
        [5, 6, 7],
        ["a text", Document("another"), {"text": "third"}, [5, 6], (7, 8)],
        [[5, 6], [7, 8]],
        [["a text"], None],
        [None, None],
        [["a text"], ["another", [5, 6]]],
        [],
        None,
    ],
)
def test_references_in_every_shape_never_change_the_output(references: object) -> None:
    tiny = engine()
    prompts = [PROMPT, "He goes"]
    expected = [result.token_ids for result in tiny.generate(prompts, drafter="none", max_new_tokens=24)]
    assert [result.token_ids for result in tiny.generate(prompts, references, max_new_tokens=24)] == expected


@settings(max_examples=24)
@given(
    st.lists(st.sampled_from(REFERENCES), max_size=3),
    st.sampled_from(CORPUS),
    st.one_of(st.none(), st.sampled_from(REFERENCES)),
    st.integers(1, 40),
    st.integers(0, 2),
)
def test_greedy_output_equals_generate(
    references: list[str], prompt: str, edit: str | None, length: int, seed: int
) -> None:
    tiny = engine(seed)
    ids = tiny.tokenizer(prompt)["input_ids"]
    result = tiny.generate(prompt, references, edit_source=edit, prediction=CORPUS[0], max_new_tokens=length)
    expected = plain_ids(tiny.model, ids, max_new_tokens=length, pad_token_id=1)
    assert list(result.token_ids) == expected
    assert result.finish_reason == ("stop" if expected[-1] == 1 else "length")
    assert result.prompt_tokens == len(ids)


@settings(max_examples=10)
@given(st.data(), st.integers(1, 5), st.one_of(st.just(0.0), st.floats(0.01, 1.0)))
def test_a_batch_gives_what_its_prompts_give_alone(data: st.DataObject, batch_size: int, temperature: float) -> None:
    tiny = engine()
    texts = st.sampled_from(REFERENCES)
    prompts = data.draw(st.lists(st.sampled_from(CORPUS), min_size=1, max_size=6))
    references = [data.draw(st.lists(texts, max_size=2)) for _ in prompts]
    edits = [data.draw(st.one_of(st.none(), texts)) for _ in prompts]
    options: dict[str, Any] = {"temperature": temperature, "seed": 9, "max_new_tokens": 16, "stop": ["q", " t"]}
    together = tiny.generate(prompts, references, edit_source=edits, batch_size=batch_size, **options)
    for i, result in enumerate(together):
        alone = tiny.generate(prompts[i], references[i], edit_source=edits[i], **options)
        assert (result.token_ids, result.text, result.stop_reason) == (alone.token_ids, alone.text, alone.stop_reason)


@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.3},
        {"bad_words_ids": [[40, 41], [50]], "min_length": 13},
        {"min_new_tokens": 3, "suppress_tokens": [60, 61, 62], "begin_suppress_tokens": [70]},
        {"forced_eos_token_id": 1, "forced_bos_token_id": 9},
        {"sequence_bias": [[[45], 4.0]], "exponential_decay_length_penalty": (5, 1.2)},
        {"temperature": 0.3, "top_p": 0.2, "do_sample": True},
        {"remove_invalid_values": True},
    ],
)
def test_the_models_generation_config_is_honoured(changes: dict[str, Any]) -> None:
    configured = with_config(engine(), **changes)
    ids = configured.tokenizer(PROMPT)["input_ids"]
    sampling = {"temperature": None, "top_p": None}  # transformers warns about them in greedy search
    for length in (3, 25):
        expected = plain_ids(configured.model, ids, max_new_tokens=length, **sampling)
        assert list(configured.generate(PROMPT, CORPUS, max_new_tokens=length).token_ids) == expected


@pytest.mark.parametrize("changes", [{"bad_words_ids": 3}, {"suppress_tokens": "x"}, {"no_repeat_ngram_size": "2"}])
def test_what_a_generation_config_cannot_mean_is_said(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the model's generation_config cannot be applied: "):
        with_config(engine(), **changes).generate(PROMPT, CORPUS, max_new_tokens=3)


@pytest.mark.parametrize("forced", [None, 9])
def test_tokens_suppressed_at_the_beginning_are_those_of_the_first_place(forced: int | None) -> None:
    for ids in ([40], [40, 41, 42]):
        model = llama(len(byte_level()), seed=7)
        model.generation_config = GenerationConfig(bos_token_id=0, pad_token_id=1)
        free = plain_ids(model, ids, max_new_tokens=3)
        configured = with_config(engine(), begin_suppress_tokens=sorted({*free}), forced_bos_token_id=forced)
        expected = plain_ids(configured.model, ids, max_new_tokens=12)
        assert list(configured.generate(ids, max_new_tokens=12).token_ids) == expected


def test_the_callers_repetition_penalty_takes_the_place_of_the_models() -> None:
    ids = byte_level()(PROMPT)["input_ids"]
    outputs = {}
    for configured in (1.0, 1.2, 1.4):
        penalised = with_config(engine(), repetition_penalty=configured)
        for asked in (None, 1.0, 1.2):
            options: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": 20}
            outputs[configured, asked] = penalised.generate(ids, repetition_penalty=asked, **options).token_ids
    assert len({*outputs.values()}) == 3
    assert outputs[1.4, 1.0] == outputs[1.2, 1.0] == outputs[1.0, None]
    assert outputs[1.4, 1.2] == outputs[1.0, 1.2] == outputs[1.2, None]


def test_several_ends_of_sequence_and_what_comes_back_for_them() -> None:
    tiny = engine()
    free = tiny.generate(PROMPT, ignore_eos=True, max_new_tokens=20).token_ids
    end = free[9]
    at = free.index(end)
    assert len(with_config(tiny).generate(PROMPT, max_new_tokens=20).token_ids) == 2
    stopped = tiny.generate(PROMPT, ignore_eos=True, stop_token_ids=[end], max_new_tokens=20)
    assert stopped.token_ids == free[: at + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", end)
    assert stopped.text == tiny.codec.decode(free[:at])
    result = tiny.generate(PROMPT, ignore_eos=True, stop_token_ids=[end], include_stop=True, max_new_tokens=20)
    assert result.text == tiny.codec.decode(free[: at + 1])


@pytest.mark.parametrize(
    "changes",
    [
        {"no_repeat_ngram_size": 2, "min_length": 8, "forced_bos_token_id": 5, "num_beams": 4, "length_penalty": 2.0},
        {"repetition_penalty": 1.3, "encoder_no_repeat_ngram_size": 1, "forced_eos_token_id": 1},
        {"begin_suppress_tokens": [7, 8], "min_new_tokens": 4, "encoder_repetition_penalty": 0.7},
    ],
)
def test_the_generation_config_of_encoder_decoder_models(
    changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = sentencepiece_like()
    model = bart(len(tokenizer))
    before = model.generation_config
    try:
        model.generation_config = GenerationConfig(
            decoder_start_token_id=1, bos_token_id=1, eos_token_id=1, pad_token_id=0, **changes
        )
        two = Engine(model, tokenizer)
        notes = [record.getMessage() for record in caplog.records]
        assert len(notes) == ("num_beams" in changes)
        assert all("num_beams=4; copyspec decodes with one beam" in note for note in notes)
        ids = tokenizer("the cat sat on the school")["input_ids"]
        greedy = {"num_beams": 1, "length_penalty": None}
        expected = plain_ids(model, ids, max_new_tokens=20, **(greedy if "num_beams" in changes else {}))
        assert list(two.generate(ids, ["the sea"], max_new_tokens=20).token_ids) == expected
    finally:
        model.generation_config = before


@pytest.mark.parametrize(
    "changes", [{"decoder_start_token_id": 5}, {"decoder_start_token_id": [1, 5]}, {"bos_token_id": 5}]
)
def test_a_calls_own_start_token_is_refused(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = sentencepiece_like()
    model = bart(len(tokenizer))
    start = None if "bos_token_id" in changes else 1
    own = GenerationConfig(decoder_start_token_id=start, bos_token_id=1, eos_token_id=1, pad_token_id=0)
    monkeypatch.setattr(model, "generation_config", own)
    two = Engine(model, tokenizer)
    for config in (changes, GenerationConfig(**changes)):
        with pytest.raises(ValueError, match=r"has \w+=.*5.* model's own start token, 1: set model\.generation_config"):
            two.generate("the cat sat", generation_config=config)
    same = two.generate("the cat sat", generation_config=own, max_new_tokens=8)
    assert same.token_ids == two.generate("the cat sat", max_new_tokens=8).token_ids


def test_encoder_decoder_models_read_the_prompt_in_the_encoder() -> None:
    tokenizer = sentencepiece_like()
    two = Engine(bart(len(tokenizer)), tokenizer)
    for prompt in ("the cat sat", "The school near the sea"):
        expected = plain_ids(two.model, tokenizer(prompt)["input_ids"], max_new_tokens=20)
        for edit in (None, "the cat sat"):
            assert list(two.generate(prompt, ["the sea"], edit_source=edit, max_new_tokens=20).token_ids) == expected
    with pytest.raises(ValueError, match="prompt 0 has 201 tokens, but the model's context is 64"):
        two.generate([5] * 201)


def test_a_stop_string_at_every_place_ends_the_output_as_plain_decoding_does() -> None:
    tiny = engine()
    free = tiny.generate(PROMPT, ignore_eos=True, max_new_tokens=32)
    text = free.text
    options: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": 32}
    for start in range(0, len(text) - 3, 2):
        stop = text[start : start + 3]
        if "\ufffd" in stop:
            continue
        results = [
            tiny.generate(
                PROMPT, [text], stop=[stop, "never seen"], ignore_eos=True, drafter=drafter, max_new_tokens=32
            )
            for drafter in ("auto", "none")
        ]
        assert results[0].token_ids == results[1].token_ids
        for result in results:
            assert (result.finish_reason, result.stop_reason) == ("stop", stop)
            assert result.text == text[: text.index(stop)]
            assert stop in tiny.codec.decode(result.token_ids)
            assert stop not in tiny.codec.decode(result.token_ids[:-1])
        pieces = [chunk.text for chunk in tiny.stream(PROMPT, [text], stop=stop, **options)]
        assert "".join(pieces) == results[0].text
        whole = tiny.generate(PROMPT, stop=stop, include_stop=True, **options)
        assert whole.text == text[: text.index(stop) + len(stop)]


class AfterTokens(StoppingCriteria):
    """Ends an output when it has so many tokens together with its prompt."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        return torch.tensor([input_ids.shape[1] >= self.count])


@pytest.mark.parametrize("extra", range(1, 12))
def test_stopping_criteria_end_the_output(extra: int) -> None:
    tiny = engine()
    ids = tiny.tokenizer(PROMPT)["input_ids"]
    result = tiny.generate(PROMPT, CORPUS, stopping_criteria=AfterTokens(len(ids) + extra), ignore_eos=True)
    assert len(result.token_ids) == extra
    assert (result.finish_reason, result.stop_reason) == ("stop", "AfterTokens")


def test_logits_processors_of_the_caller_are_applied() -> None:
    from transformers import SuppressTokensLogitsProcessor

    tiny = engine()
    first = tiny.generate(PROMPT, max_new_tokens=10).token_ids
    banned = SuppressTokensLogitsProcessor([first[0]])
    result = tiny.generate(PROMPT, logits_processor=banned, max_new_tokens=10)
    assert first[0] not in result.token_ids
    assert tiny.generate(PROMPT, logit_bias={first[0]: -1e9}, max_new_tokens=10).token_ids == result.token_ids


@settings(max_examples=18)
@given(
    st.sampled_from(CORPUS),
    st.lists(st.text(alphabet="the ca\ufffd🙂é", min_size=1, max_size=3), max_size=2),
    st.one_of(st.just(0.0), st.floats(0.01, 1.5)),
    st.integers(0, 2),
)
def test_the_pieces_of_a_stream_join_to_the_text(prompt: str, stop: list[str], temperature: float, seed: int) -> None:
    tiny = engine(seed)
    options: dict[str, Any] = {"stop": stop, "temperature": temperature, "seed": 5, "max_new_tokens": 30}
    whole = tiny.generate(prompt, CORPUS, **options)
    chunks = list(tiny.stream(prompt, CORPUS, **options))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == whole.token_ids
    assert chunks[-1].result is not None and chunks[-1].result.text == whole.text
    assert all(chunk.result is None for chunk in chunks[:-1])
    assert not any(chunk.text.endswith("\ufffd") for chunk in chunks[:-1])


@pytest.mark.parametrize("seed", range(4))
def test_streams_of_byte_fallback_tokenizers_join_to_the_text(seed: int) -> None:
    tiny = Engine(llama(len(byte_fallback()), seed), byte_fallback())
    for stop in (None, "a", "\ufffd"):
        options: dict[str, Any] = {"temperature": 1.5, "seed": seed, "stop": stop, "max_new_tokens": 60}
        whole = tiny.generate("that é 🙂", CORPUS, **options)
        pieces = [chunk.text for chunk in tiny.stream("that é 🙂", CORPUS, **options)]
        assert "".join(pieces) == whole.text
        assert all(span.end_char <= len(whole.text) for span in whole.spans)


def test_a_stream_of_several_prompts_says_which_is_which() -> None:
    tiny = engine()
    results = tiny.generate(CORPUS, max_new_tokens=12)
    texts = [""] * len(CORPUS)
    for chunk in tiny.generate(CORPUS, stream=True, max_new_tokens=12):
        texts[chunk.index] += chunk.text
    assert texts == [result.text for result in results]


def test_sampling_is_the_same_with_and_without_drafts() -> None:
    tiny = engine()
    for options in ({"top_k": 20}, {"top_p": 0.9, "min_p": 0.01}, {"repetition_penalty": 1.2}):
        runs = [
            tiny.generate(CORPUS, REFERENCES, temperature=0.9, seed=3, drafter=drafter, max_new_tokens=30, **options)
            for drafter in ("auto", "none")
        ]
        assert [r.token_ids for r in runs[0]] == [r.token_ids for r in runs[1]]


def test_equal_prompts_without_a_seed_get_outputs_of_their_own() -> None:
    tiny = engine()
    options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 20}
    streamed = [copyspec.Input(PROMPT) for _ in range(3)]
    for results in (
        tiny.generate([PROMPT] * 3, **options),
        [result for _, result in tiny.generate_each(streamed, **options) if result is not None],
        [tiny.generate(PROMPT, **options) for _ in range(3)],
        [comparison.plain for comparison in copyspec.compare([PROMPT] * 3, model=tiny, **options)],
    ):
        assert len({result.token_ids for result in results}) == len(results) == 3
        for result in results:
            assert tiny.generate(PROMPT, seed=result.seed, **options).token_ids == result.token_ids
    placed = tiny.generate([CORPUS[0], PROMPT, PROMPT], seed=5, **options)
    assert placed[1].token_ids == placed[2].token_ids == tiny.generate(PROMPT, seed=5, **options).token_ids


def test_both_sides_of_a_comparison_share_drawn_seeds() -> None:
    for comparison in copyspec.compare([PROMPT, CORPUS[0]], model=engine(), temperature=1.0, max_new_tokens=20):
        assert (
            comparison.plain.seed == comparison.copied.seed
            and comparison.plain.token_ids == comparison.copied.token_ids
        )


def test_samples_differ_and_the_result_is_the_first() -> None:
    result = engine().generate(PROMPT, temperature=1.0, seed=1, n=3, max_new_tokens=20)
    assert len(result.samples) == 3 and result.samples[0].token_ids == result.token_ids
    assert len({sample.token_ids for sample in result.samples}) == 3
    assert repr(result).startswith(f"Result({result.text!r}, {len(result.token_ids)} tokens in ")
    assert repr(result).endswith(", finish_reason='length', 3 samples)") and len(repr(result)) < 400
    assert result.stats.num_output_tokens == len(result.token_ids)


def test_max_new_tokens_its_default_and_the_context() -> None:
    tiny = engine()
    assert len(tiny.generate(PROMPT, max_tokens=5, ignore_eos=True).token_ids) == 5
    long = tiny.generate([5] * 250, ignore_eos=True)
    assert len(long.token_ids) == 256 - 250 + 1 and long.finish_reason == "length"
    with pytest.raises(ValueError, match="prompt 0 has 257 tokens, but the model's context is 256; shorten it"):
        tiny.generate([5] * 257)


def test_counters_agree_with_each_other() -> None:
    stats = engine().generate(PROMPT, edit_source=CORPUS[1], max_new_tokens=40, ignore_eos=True).stats
    assert stats.num_output_tokens == stats.num_passes + stats.num_accepted_tokens == 40
    assert 0 < stats.num_drafts <= stats.num_passes
    assert stats.num_draft_tokens == sum(stats.num_draft_tokens_per_source.values()) > 0
    assert stats.num_accepted_tokens == sum(stats.num_accepted_tokens_per_source.values())
    assert stats.num_accepted_tokens == sum(stats.num_accepted_tokens_per_pos)
    assert 0 < sum(stats.decisions.values()) <= stats.num_passes
    assert stats.prefill_seconds > 0 and stats.target_seconds > 0 and stats.pass_seconds > 0


def test_the_default_length_grows_with_the_text_being_edited() -> None:
    from copyspec.engine.asking.call_options import check_options

    tiny = engine()
    jobs, _ = tiny.jobs("a", None, check_options({}))
    assert jobs[0].request.max_new_tokens == 256  # the end of the context
    tokenizer = sentencepiece_like()
    from copyspec.engine.asking.inputs import Prompt
    from copyspec.engine.drafting.draft_models import DraftModels
    from copyspec.engine.results.spans import Reference
    from copyspec.engine.running.jobs import JobMaker
    from copyspec.targets.rows.prefixes import PrefixCache
    from copyspec.text.codec import Codec

    class Endless:
        is_encoder_decoder, max_length, vocab_size, supports_drafts = False, None, 999, True
        keeps_states = False
        encoder_length = None
        device = torch.device("cpu")

        def start(self, prompt: list[int]) -> list[int]:
            return prompt

    model, codec = llama(len(byte_level())), Codec(tokenizer)
    maker = JobMaker(Endless(), codec, model, DraftModels(model, codec), PrefixCache())  # type: ignore[arg-type]
    for length, limit in ((100, 512), (300, 600)):
        edit = Reference("edit_source", None, ids=[5] * length)
        (job,) = maker.make([Prompt(ids=[5], edit=edit)], check_options({}))
        assert job.request.max_new_tokens == limit


def test_the_default_length_is_that_of_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copyspec.engine.logits.generation_config.DEFAULT_MAX_NEW_TOKENS", 20)
    tiny = engine()
    options: dict[str, Any] = {"edit_source": [5] * 30, "ignore_eos": True}
    plain, copied = (tiny.generate(PROMPT, drafter=drafter, **options) for drafter in ("none", "auto"))
    assert len(plain.token_ids) == 60 and plain.token_ids == copied.token_ids
    assert copyspec.compare(PROMPT, model=tiny, **options).equal  # type: ignore[union-attr]


@settings(max_examples=12)
@given(st.data())
def test_ids_that_the_model_does_not_have_are_never_drafted(data: st.DataObject) -> None:
    tiny = engine()
    plain = tiny.generate(PROMPT, drafter="none", max_new_tokens=30, ignore_eos=True)
    texts = []
    for _ in range(2):
        ids = list(plain.token_ids)
        for at in data.draw(st.lists(st.integers(0, 29), min_size=1, max_size=3)):
            ids[at : at + 1] = data.draw(st.sampled_from([[999], [999, ids[at]], [999] * 3]))
        texts.append(ids)
    result = tiny.generate(PROMPT, [texts[0]], edit_source=texts[1], max_new_tokens=30, ignore_eos=True)
    assert result.token_ids == plain.token_ids
    assert all(0 <= span.start < span.end <= 30 for span in result.spans)


def test_an_end_of_sequence_that_the_model_does_not_have_is_no_draft() -> None:
    model = llama(len(byte_level()), seed=7)
    before = model.generation_config
    try:
        model.generation_config = GenerationConfig(eos_token_id=[900], pad_token_id=1)
        odd = Engine(model, byte_level())
        plain = odd.generate(PROMPT, drafter="none", max_new_tokens=20)
        assert odd.generate(PROMPT, edit_source=plain.text, max_new_tokens=20).token_ids == plain.token_ids
    finally:
        model.generation_config = before


def test_numbers_of_numpy_are_numbers_and_none_is_the_default() -> None:
    tiny = engine()
    ids = np.array(tiny.tokenizer(PROMPT)["input_ids"])
    same: dict[str, Any] = {"stop_token_ids": [np.int64(5)], "logit_bias": {np.int64(9): np.float32(0.5)}}
    numbers: dict[str, Any] = {"temperature": np.float32(0.5), "top_k": np.int64(9), "seed": np.int64(3)}
    result = tiny.generate(list(ids), [list(ids)], max_new_tokens=np.int64(9), n=None, batch_size=None, **same)  # type: ignore[arg-type]
    expected = tiny.generate(ids.tolist(), stop_token_ids=[5], logit_bias={9: 0.5}, max_new_tokens=9)
    assert result.token_ids == expected.token_ids
    assert tiny.generate([list(ids)], max_new_tokens=3, stop_token_ids=np.array([5]), **numbers)[0].seed == 3


def test_stop_strings_of_the_generation_config_end_the_output(caplog: pytest.LogCaptureFixture) -> None:
    tiny = engine()
    with caplog.at_level(logging.INFO, "copyspec"):
        free = with_config(tiny, max_time=9.0).generate(PROMPT, ignore_eos=True, max_new_tokens=30).text
    assert "following the generation_config: max_time=9.0" in caplog.text
    stop = free.rstrip("\ufffd")[-3:]
    for strings in (stop, [stop, "never seen"]):
        configured = with_config(tiny, stop_strings=strings)
        result = configured.generate(PROMPT, ignore_eos=True, max_new_tokens=30)
        assert (result.stop_reason, result.text) == (stop, free[: free.index(stop)])
        pieces = [chunk.text for chunk in configured.stream(PROMPT, ignore_eos=True, max_new_tokens=30)]
        assert "".join(pieces) == result.text


def test_a_stream_of_several_samples_says_which_is_which() -> None:
    options: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 4, "max_new_tokens": 12}
    for prompts in ([PROMPT], [PROMPT, "The sea"]):
        whole = engine().generate(prompts, **options)
        texts = {(index, sample): "" for index in range(len(prompts)) for sample in range(3)}
        results = {}
        for chunk in engine().generate(prompts, stream=True, **options):
            texts[chunk.index, chunk.sample] += chunk.text
            if chunk.result is not None:
                results[chunk.index, chunk.sample] = chunk.result.token_ids
        for place, text in texts.items():
            sample = whole[place[0]].samples[place[1]]
            assert (text, results[place]) == (sample.text, sample.token_ids)


def test_stats_are_under_vllms_names() -> None:
    tiny = engine()
    plain = tiny.generate(PROMPT, drafter="none", max_new_tokens=30, ignore_eos=True)
    assert plain.stats.num_drafts == 0 and plain.stats.num_passes == 30 and plain.stats.mean_acceptance_length == 1.0
    stats = tiny.generate(PROMPT, [plain.text], max_new_tokens=30, ignore_eos=True).stats
    assert 0 < stats.num_accepted_tokens <= stats.num_draft_tokens
    assert stats.num_accepted_tokens + stats.num_passes >= 30
    assert stats.mean_acceptance_length == 30 / stats.num_passes
    assert sum(stats.num_accepted_tokens_per_pos) == stats.num_accepted_tokens
    assert sum(stats.num_accepted_tokens_per_source.values()) == stats.num_accepted_tokens
    assert 0 < stats.acceptance_rate <= 1 < stats.mean_acceptance_length
    assert stats.seconds > 0 and stats.tokens_per_second > 0
    assert set(stats.to_dict()) >= {"num_drafts", "mean_acceptance_length", "acceptance_rate", "seconds"}


def test_references_of_the_block_around_the_call_are_used() -> None:
    tiny = engine()
    plain = tiny.generate(PROMPT, drafter="none", max_new_tokens=30, ignore_eos=True)
    with copyspec.references(Document(plain.text), ["more"]), copyspec.references("inner"):
        inside = tiny.generate(PROMPT, max_new_tokens=30, ignore_eos=True)
    outside = tiny.generate(PROMPT, max_new_tokens=30, ignore_eos=True)
    assert inside.token_ids == outside.token_ids == plain.token_ids
    assert "a file" in {span.place.source for span in inside.spans}
    assert inside.stats.num_draft_tokens_per_source.get("reference", 0) > 0
    assert "reference" not in outside.stats.num_draft_tokens_per_source


def test_a_prediction_in_openais_shape_is_one_reference() -> None:
    tiny = engine()
    plain = tiny.generate(PROMPT, drafter="none", max_new_tokens=30, ignore_eos=True)
    parts = [{"type": "text", "text": plain.text[:10]}, {"type": "text", "text": plain.text[10:]}]
    for content in (plain.text, parts):
        prediction = {"type": "content", "content": content}
        result = tiny.generate(PROMPT, prediction=prediction, max_new_tokens=30, ignore_eos=True)
        assert result.token_ids == plain.token_ids
        assert any("prediction" in {p.source for p in (s.place, *s.ties)} for s in result.spans)


def test_compare_shows_equality_times_and_scores() -> None:
    tiny = engine()
    comparison = copyspec.compare(PROMPT, CORPUS, model=tiny, max_new_tokens=20)
    assert isinstance(comparison, copyspec.Comparison)
    assert comparison.equal and comparison.difference is None
    assert comparison.plain.stats.num_drafts == 0 < comparison.copied.stats.num_drafts
    assert comparison.speedup > 0 and "outputs equal" in str(comparison)
    both = copyspec.compare(CORPUS, model=tiny, max_new_tokens=8)
    assert isinstance(both, list) and len(both) == len(CORPUS)


def test_the_first_difference_has_position_tokens_and_scores() -> None:
    from dataclasses import replace

    from copyspec.engine.asking.call_options import check_options
    from copyspec.engine.comparison import first_difference
    from copyspec.engine.results import Comparison

    tiny = engine()
    options = check_options({"max_new_tokens": 20})
    (job,), _ = tiny.jobs(PROMPT, None, options)
    for outputs in tiny.steps([job.request], options, keep_margins=True):
        job.add(outputs[0])
    plain = job.result
    assert plain is not None
    other = replace(plain, token_ids=(*plain.token_ids[:4], 60, *plain.token_ids[5:]))
    difference = first_difference(tiny, plain, other)
    assert difference is not None and difference.position == 4
    assert (difference.plain_token, difference.copied_token) == (plain.token_ids[4], 60)
    assert difference.plain_margin is not None and difference.plain_margin.token == plain.token_ids[4]
    text = str(Comparison(plain, other, 1.0, 1.0, difference))
    assert "differ at token 4" in text and "runner-up" in text
    shorter = first_difference(tiny, plain, replace(plain, token_ids=plain.token_ids[:7]))
    assert shorter is not None and (shorter.position, shorter.copied_token) == (7, None)


def test_scores_are_looked_up_only_where_outputs_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from copyspec.engine import comparison as module

    tiny = engine()
    runs: list[bool] = []
    run = module._run

    def other(job_engine: Engine, job: Any, options: Any, *, keep_margins: bool = False, landed: Any = None) -> Result:
        runs.append(keep_margins)
        result = run(job_engine, job, options, keep_margins=keep_margins, landed=landed)
        flipped = (*result.token_ids[:3], 60, *result.token_ids[4:])
        return replace(result, token_ids=flipped) if differs and options.drafts else result

    monkeypatch.setattr(module, "_run", other)
    differs = False
    assert copyspec.compare(PROMPT, model=tiny, max_new_tokens=9).equal and runs == [False, False]
    differs = True
    comparison = copyspec.compare([PROMPT], model=tiny, max_new_tokens=9)[0]
    assert runs[2:] == [False, False, True, True]
    assert comparison.difference is not None and comparison.difference.position == 3
    assert comparison.difference.plain_margin is not None
    assert comparison.difference.plain_margin.token == comparison.plain.token_ids[3]


def test_byte_level_outputs_may_be_no_text_at_all() -> None:
    result = engine(1).generate([5], ignore_eos=True, temperature=3.0, seed=2, max_new_tokens=60)
    assert result.text == byte_level().decode(list(result.token_ids), skip_special_tokens=True)


def test_a_near_tie_is_called_by_its_name() -> None:
    from copyspec import Difference
    from copyspec.engine.results import describe
    from copyspec.verification.margins import Margin

    plain, copied = Margin(4, 7.1234567, 5, 7.1234562), Margin(5, 7.1234565, 4, 7.1234562)
    tied = Difference(3, 4, 5, "a", "b", plain, copied)
    assert tied.near_tie is not None and 0 < tied.near_tie < 1e-6
    assert describe(tied).endswith("a near-tie: 7e-08 of the scores apart, within the rounding of float32")
    for other in (Margin(5, 7.2, 4, 7.1), Margin(5, 7.1, 6, 7.1), None):
        apart = Difference(3, 4, 5, "a", "b", plain, other)
        assert apart.near_tie is None and "near-tie" not in describe(apart)


def test_own_drafters_get_sources_of_token_ids_alone() -> None:
    """The blocks of a prompt also hold marks, where an output may leave them."""
    paragraph = "The cat sat on the mat, and the dog sat on the cat, because the school is near the sea and the sky."
    seen: list[Any] = []

    class Nothing:
        def propose(self, budget: object) -> copyspec.DraftTree:
            return copyspec.DraftTree()

        def accept(self, tokens: object) -> None:
            pass

    def factory(context: copyspec.DraftContext) -> Any:
        seen.extend(context.sources)
        assert all(context.decode(source.tokens) for source in context.sources)
        return Nothing()

    prompt = f"Correct this:\n\n{paragraph}\n\n{paragraph}"
    plain = engine().generate(prompt, drafter="none", max_new_tokens=4)
    assert engine().generate(prompt, drafter=["auto", factory], max_new_tokens=4).token_ids == plain.token_ids
    assert [source.kind for source in seen] == ["prompt"]
