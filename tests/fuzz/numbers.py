"""Makes model folders with absurd numbers in their configurations, and with random byte changes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz.kinds import CONFIG, FILES, GENERATION, Change, edit

NUMBERS: tuple[Any, ...] = (10**9, 10**12, 10**30, -1, 0, 1.5, "x", None, [1], {}, float("nan"), True)
SIZES = (
    "num_hidden_layers",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "hidden_act",
    "dtype",
    "model_type",
    "architectures",
    "pad_token_id",
    "tie_word_embeddings",
    "is_encoder_decoder",
    "layer_types",
    "sliding_window",
    "attention_bias",
)


def numbers() -> Iterator[tuple[str, Change]]:
    """Absurd values in the configurations."""
    for name in SIZES:
        for value in NUMBERS:
            yield f"config: {name}={value!r}", partial(_set, CONFIG, name, value)
    for name in ("eos_token_id", "pad_token_id", "max_length", "temperature", "bad_words_ids", "suppress_tokens"):
        for value in NUMBERS:
            yield f"generation: {name}={value!r}", partial(_set, GENERATION, name, value)
    for kind in ("gpt2", "gpt_neo", "t5", "bart", "mixtral", "mamba", "qwen2", "bert", "opt", "bloom"):
        for name, value in (("num_hidden_layers", 10**9), ("num_experts", 10**9), ("n_positions", 10**7), ("", 0)):
            yield f"{kind}: {name}={value}", partial(_other, kind, name, value)


def _other(kind: str, name: str, value: int, folder: Path, _canary: Path) -> None:
    more = {name: value, "num_local_experts": value} if name else {}
    aliases = {
        "num_hidden_layers": ("n_layer", "num_layers", "encoder_layers"),
        "n_positions": ("max_position_embeddings",),
    }
    more |= dict.fromkeys(aliases.get(name, ()), value)
    config = json.loads((folder / CONFIG).read_text())
    sizes = {key: config[key] for key in ("vocab_size", "hidden_size", "num_attention_heads") if key in config}
    (folder / CONFIG).write_text(json.dumps({"model_type": kind, **sizes, **more}))


def _set(file: str, name: str, value: object, folder: Path, _canary: Path) -> None:
    edit(folder, file, **{name: value})


def flips(count: int, seed: int = 0) -> Iterator[tuple[str, Change]]:
    """Files with bytes changed, cut off or duplicated at random."""
    for number in range(count):
        name = FILES[number % len(FILES)]
        yield f"flipped: {name} {number}", partial(_flip, name, seed * 1_000_003 + number)


def _flip(name: str, seed: int, folder: Path, _canary: Path) -> None:
    chance = random.Random(seed)
    content = bytearray((folder / name).read_bytes())
    what = chance.randrange(4)
    at = chance.randrange(min(len(content), 4096))
    if what == 0:
        del content[at:]
    elif what == 1:
        content[at:at] = content[: chance.randrange(64)]
    else:
        for _ in range(chance.choice((1, 1, 8))):
            content[chance.randrange(min(len(content), 4096))] = chance.randrange(256)
    (folder / name).write_bytes(content)
