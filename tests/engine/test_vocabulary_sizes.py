"""Models with fewer or more rows than their tokenizer has tokens: Gemma 3 1B, padded embeddings, added tokens."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

import copyspec
from copyspec.engine.engine import Engine
from tests.helpers.texts import byte_fallback, byte_level, llama

pytest.importorskip("llguidance")

ADDED = [[], ["zebra"], ["<image>"], ["<image>", " zebra", "zebra", "the mat", "true"]]
"""Tokens added to the tokenizer, some of which spell what a constraint forces."""

SCHEMA = {
    "type": "object",
    "properties": {"zebra": {"enum": ["the mat", "zebra", True]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["zebra", "n"],
    "additionalProperties": False,
}
CONSTRAINTS: list[dict[str, Any]] = [
    {"json_schema": SCHEMA},
    {"regex": "a zebra on (the mat|true)"},
    {"choices": ["zebra zebra", "true"]},
    {"grammar": 'start: "zebra" /[a-c]{1,3}/'},
]


def check(text: str, option: str) -> None:
    """Raise AssertionError for a text that the constraint does not allow."""
    if option == "json_schema":
        value = json.loads(text)
        assert value.keys() == {"zebra", "n"} and value["zebra"] in ("the mat", "zebra", True)
    elif option == "choices":
        assert text in ("zebra zebra", "true")
    else:
        assert re.fullmatch("a zebra on (the mat|true)" if option == "regex" else "zebra[a-c]{1,3}", text), text


def with_added(tokenizer: PreTrainedTokenizerFast, added: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens(added)
    return tokenizer


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize("added", ADDED, ids=len)
def test_every_constraint_with_every_size(constraint: dict[str, Any], added: list[str]) -> None:
    (option,) = constraint
    tokenizer = with_added(byte_level(), added)
    base = len(byte_level())
    for size in sorted({base, base + 1, len(tokenizer), len(tokenizer) + 1, len(tokenizer) + 67}):
        engine = Engine(llama(size), tokenizer)
        plain = engine.generate("the cat", max_new_tokens=60, drafter="none", **constraint)
        result = engine.generate("the cat", max_new_tokens=60, **constraint)
        assert result.token_ids == plain.token_ids and max(result.token_ids) < size
        check(result.text, option)
        assert result.stats.num_passes < len(result.token_ids), "forced tokens are drafted"


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("fewer", [1, 2, 3])
def test_rows_that_are_missing_inside_the_vocabulary(make: Any, fewer: int) -> None:
    tokenizer = with_added(make(), [])
    size = len(tokenizer) - fewer
    engine = Engine(llama(size), tokenizer)
    eos = tokenizer.eos_token_id
    constraints: list[dict[str, Any]] = [{"choices": ["that path", "these"]}, {"json_schema": {"enum": [1, 2]}}]
    for constraint in constraints:
        result = engine.generate([5, 6], max_new_tokens=20, stop_token_ids=[eos], **constraint)
        assert result.finish_reason == "stop" and max(result.token_ids) < size


@pytest.mark.parametrize("seed", range(6))
def test_options_and_drafts_with_sizes_that_differ(seed: int) -> None:
    """Scores, biases and draft models of other sizes: as plain decoding."""
    rng = random.Random(seed)
    tokenizer = with_added(byte_level(), rng.choice(ADDED))
    size = len(byte_level()) + rng.choice([0, 1, 5, 60])
    engine = Engine(llama(size), tokenizer)
    options: dict[str, Any] = {"logit_bias": {rng.randrange(size): rng.choice([-20.0, 20.0])}, "logprobs": 4}
    options |= rng.choice([{}, {"temperature": 1.0, "seed": seed}])
    plain = engine.generate("the cat", max_new_tokens=24, drafter="none", **options)
    for other in (size, size + 7, len(byte_level())):
        result = engine.generate("the cat", max_new_tokens=24, draft_model=llama(other, seed=1), **options)
        assert result.token_ids == plain.token_ids
        assert [logprob.token_id for logprob in result.logprobs] == list(result.token_ids)
    with pytest.raises(ValueError, match=f"{size}"):
        engine.generate("the cat", logit_bias={size: 1.0})


def test_an_end_that_only_one_side_has_ends_nothing() -> None:
    tokenizer = with_added(byte_level(), ["<end>"])
    for size in (len(tokenizer) - 1, len(tokenizer) + 5):
        engine = Engine(llama(size), tokenizer)
        last = max(size, len(tokenizer)) - 1  # a row without a token, or a token without a row
        with pytest.raises(ValueError, match=r"regex needs a token that ends the output|stop_token_ids"):
            engine.generate("the cat", regex="a+", ignore_eos=True, stop_token_ids=[last])
        assert copyspec.compare("the cat", model=engine, regex="a{3}", stop_token_ids=[1]).equal
