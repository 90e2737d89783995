"""Calls of `model.generate` with and without `custom_generate=copyspec.hf`."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import copyspec
from tests.helpers.models import VOCAB_SIZE, tiny

PAD, EOS = 0, 7
NEW_TOKENS = 10


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word: "12" is token 12."""
    backend = Tokenizer(WordLevel({str(token): token for token in range(VOCAB_SIZE)}, unk_token="3"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="0", eos_token=str(EOS))


@cache
def model_of(name: str) -> PreTrainedModel:
    return tiny(name)


def padded(rows: list[list[int]], *, left: bool = True) -> dict[str, torch.Tensor]:
    longest = max(map(len, rows))
    pads = [[PAD] * (longest - len(row)) for row in rows]
    masks = [[1] * len(row) for row in rows]
    blank = [[0] * len(pad) for pad in pads]
    ids = [p + r if left else r + p for r, p in zip(rows, pads, strict=True)]
    mask = [b + m if left else m + b for m, b in zip(masks, blank, strict=True)]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def prompts(rows: int, seed: int = 0) -> list[list[int]]:
    """Make repetitive prompts of different lengths."""
    rng = random.Random(seed)
    return [[rng.randrange(8, VOCAB_SIZE) for _ in range(3 + row)] * 3 for row in range(rows)]


def by_transformers(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    """Return the result of transformers."""
    return model.generate(**inputs, **{"do_sample": False, "max_new_tokens": NEW_TOKENS, "pad_token_id": PAD} | options)


def by_copyspec(model: Any, inputs: dict[str, Any], own: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return the result of transformers with copyspec."""
    options = {"custom_generate": copyspec.hf, "tokenizer": tokenizer(), **options, **(own or {})}
    return by_transformers(model, inputs, **options)


def both(model: Any, inputs: dict[str, Any], own: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return the results of transformers and of transformers with copyspec."""
    return by_transformers(model, inputs, **options), by_copyspec(model, inputs, own, **options)


def assert_caches_are_equal(expected: Any, got: Any) -> None:
    """Check that two caches are of one kind, and hold the same keys and values."""
    assert type(expected) is type(got)
    for own, other in zip(_layers(expected), _layers(got), strict=True):
        assert type(own) is type(other)
        if getattr(own, "keys", None) is None:
            assert getattr(other, "keys", None) is None
            continue
        assert int(own.get_seq_length()) == int(other.get_seq_length())
        torch.testing.assert_close(other.keys, own.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(other.values, own.values, atol=1e-4, rtol=1e-4)


def _layers(cache: Any) -> list[Any]:
    if hasattr(cache, "self_attention_cache"):
        return [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
    return list(cache.layers)
