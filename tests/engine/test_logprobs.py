"""Log-probabilities equal those of plain decoding and transformers' output_scores."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import torch

import copyspec
from copyspec.engine.results.logprobs import LogprobRecorder, TokenLogprob
from copyspec.literature import MultiStep
from tests.helpers.texts import new_engine

PROMPT = "the cat sat on the mat and the cat sat"


@pytest.fixture(scope="module")
def tiny() -> copyspec.Engine:
    return new_engine(5)


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3}, {"temperature": 0.8, "top_k": 9, "seed": 2}])
def test_against_plain_decoding(tiny: copyspec.Engine, options: dict[str, Any]) -> None:
    settings = {"logprobs": 3, "max_new_tokens": 30, "ignore_eos": True, **options}
    drafted = tiny.generate([PROMPT] * 2, [PROMPT], **settings)
    plain = tiny.generate(PROMPT, drafter="none", **settings)
    without = tiny.generate(PROMPT, [PROMPT], **{**settings, "logprobs": None})
    assert plain.token_ids == without.token_ids and without.logprobs == ()
    for result in drafted:
        assert result.token_ids == plain.token_ids == tuple(logprob.token_id for logprob in result.logprobs)
        for one, other in zip(result.logprobs, plain.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert len(one.top) == 3 and one.top[0].logprob >= one.logprob - 1e-6
            assert [token.logprob for token in one.top] == pytest.approx(
                [token.logprob for token in other.top], abs=1e-4
            )


def test_against_transformers(tiny: copyspec.Engine) -> None:
    ids = torch.tensor([tiny.tokenizer(PROMPT)["input_ids"]])
    config: dict[str, Any] = {"max_new_tokens": 20, "repetition_penalty": 1.2, "do_sample": False}
    output = tiny.model.generate(
        ids, attention_mask=torch.ones_like(ids), output_scores=True, return_dict_in_generate=True, **config
    )
    result = tiny.generate(PROMPT, [PROMPT], logprobs=2, max_new_tokens=20, repetition_penalty=1.2)
    assert list(result.token_ids) == output.sequences[0, ids.shape[1] :].tolist()
    for one, scores in zip(result.logprobs, output.scores, strict=True):
        expected = scores[0].float().log_softmax(-1)
        assert one.logprob == pytest.approx(float(expected[one.token_id]), abs=1e-4)
        assert [token.token_id for token in one.top] == expected.topk(2).indices.tolist()


def test_streams_and_dictionaries(tiny: copyspec.Engine) -> None:
    whole = tiny.generate(PROMPT, logprobs=1, max_new_tokens=12)
    chunks = list(tiny.generate(PROMPT, logprobs=1, max_new_tokens=12, stream=True))
    streamed = [logprob.token_id for chunk in chunks for logprob in chunk.logprobs]
    assert streamed == [logprob.token_id for logprob in whole.logprobs] == list(whole.token_ids)
    assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks)
    loaded = json.loads(json.dumps(whole.to_dict()))
    assert loaded["logprobs"][0]["top"][0].keys() == {"token_id", "token", "logprob", "top"}
    sampled = tiny.generate(PROMPT, n=2, temperature=1.0, max_new_tokens=4)
    assert [sample["text"] for sample in sampled.to_dict()["samples"]] == [sample.text for sample in sampled.samples]  # type: ignore[attr-defined]


def test_wrong_numbers(tiny: copyspec.Engine) -> None:
    with pytest.raises(ValueError, match="logprobs must be an integer >= 0, got -1"):
        tiny.generate(PROMPT, logprobs=-1)
    with pytest.raises(ValueError, match="logprobs=1 works with the default rule only"):
        tiny.generate(PROMPT, logprobs=1, rule=MultiStep(), temperature=1.0)


def test_a_caller_reads_while_the_next_token_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's thread reduces the scores of a position while the caller takes the same position."""
    recorder = LogprobRecorder(1, 1, [], lambda tokens: str(tokens))
    known, taken = LogprobRecorder._know, list[TokenLogprob]()
    reader = threading.Thread(target=lambda: taken.extend(recorder.take(0, [2])))

    def interrupted(self: LogprobRecorder, position: int, row: torch.Tensor, token: int) -> None:
        if threading.current_thread() is not reader:
            reader.start()
            reader.join(timeout=0.1)
        known(self, position, row, token)

    monkeypatch.setattr(LogprobRecorder, "_know", interrupted)
    scores = torch.arange(4.0)[None]
    recorder(torch.tensor([[0]]), scores)
    recorder(torch.tensor([[0, 2]]), scores)
    reader.join()
    assert [logprob.token_id for logprob in taken] == [2]
    assert taken[0].logprob == pytest.approx(float(scores[0].log_softmax(-1)[2]))
