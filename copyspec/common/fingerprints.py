"""Fingerprints: short hashes that record from what an index was built."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE = "def f(x):\n\treturn x + 1  # The quick brown fox, naïve 東京 🙂 1234567"


def fingerprint(*values: object) -> str:
    """A short hash of values that JSON can represent; the same for equal values on every machine."""
    text = json.dumps(values, ensure_ascii=True, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash that is equal for tokenizers with the same vocabulary and the same tokens for a probe text."""
    return fingerprint(
        sorted(tokenizer.get_vocab().items()), list(tokenizer(_PROBE, add_special_tokens=False)["input_ids"])
    )
