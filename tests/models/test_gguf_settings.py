"""Settings and tensors of GGUF files: each is taken over exactly, known to change nothing, or refused with its name."""

from __future__ import annotations

import copy
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, set_seed

from copyspec.models.errors import FileError
from copyspec.models.gguf import converted
from kit.gguf_files import write_llama
from tests.helpers.texts import byte_level

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

from gguf import GGUFWriter

More = Callable[[GGUFWriter], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))


HEADS = {"llama": 16, "qwen2": 16, "qwen3": 128}  # elements of a head; for the last, transformers takes no other


def model_of(kind: str, seed: int = 0, **options: Any) -> PreTrainedModel:
    """A model with random weights whose attention depends on positions."""
    set_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(
        kind,
        **sizes,
        **{"num_key_value_heads": 2, "head_dim": HEADS[kind], "max_position_embeddings": 256, "initializer_range": 0.3},
        **{"vocab_size": len(byte_level()), "bos_token_id": 0, "eos_token_id": 1, **options},
    )
    return AutoModelForCausalLM.from_config(config).eval()


def nothing(writer: GGUFWriter) -> None:
    """No further settings."""


def file(path: Path, more: More = nothing, *, kind: str = "llama", model: PreTrainedModel | None = None) -> Path:
    model = model if model is not None else model_of(kind)
    write_llama(path / "a.gguf", model, byte_level(), architecture=kind, more=more)
    return path / "a.gguf"


def check_equal(path: Path, model: PreTrainedModel, more: More, kind: str = "llama") -> Path:
    """Assert that the converted file computes what the model does."""
    folder = converted(file(path, more, kind=kind, model=model))
    read = AutoModelForCausalLM.from_pretrained(folder).eval()
    for length in (3, 40, 200):
        ids = torch.randint(5, len(byte_level()), (1, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            torch.testing.assert_close(read(ids).logits, model(ids).logits, atol=2e-3, rtol=2e-3)
    return folder


def llama3(rope: dict[str, Any], size: int) -> np.ndarray[Any, Any]:
    """The divisors that llama.cpp's converter writes."""
    factors = []
    for index in range(0, size, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (index / size)
        low, high, original = (
            rope[f"{name}"] for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        )
        smooth = min(1.0, max(0.0, (original / wave - low) / (high - low)))
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


@pytest.mark.parametrize("seed", range(8))
def test_llama_3_scaling_is_taken_over(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": rng.choice([2.0, 8.0, 32.0]),
        "low_freq_factor": 1.0,
        "high_freq_factor": rng.choice([4.0, 4.0, 2.0]),
        "original_max_position_embeddings": rng.choice([32, 64, 128]),
    }
    model = model_of("llama", seed, rope_parameters=rope)
    factors = llama3(rope, 16)
    folder = check_equal(tmp_path, model, lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    assert AutoConfig.from_pretrained(folder).rope_parameters["rope_type"] == "llama3"


ROPES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"rope_type": "linear", "factor": 4.0}, {"scaling.type": "linear", "scaling.factor": 4.0}),
    ({"rope_type": "linear", "factor": 2.0}, {"scaling.factor": 2.0}),
    ({"rope_type": "linear", "factor": 3.0}, {"scale_linear": 3.0}),
    ({"rope_type": "default"}, {"scaling.type": "none", "scaling.factor": 4.0, "scaling.finetuned": True}),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 64},
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        },
        {
            "scaling.type": "yarn",
            "scaling.factor": 2.0,
            "scaling.original_context_length": 128,
            "scaling.yarn_beta_fast": 16.0,
            "scaling.yarn_beta_slow": 2.0,
        },
    ),
    ({"rope_type": "default"}, {"dimension_count": None}),
]


def add(writer: GGUFWriter, key: str, value: object) -> None:
    """Add a setting of the type of its value."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        assert isinstance(value, list)
        writer.add_array(key, value)


@pytest.mark.parametrize(("rope", "settings"), ROPES, ids=range(len(ROPES)))
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_scaled_rotary_embeddings_are_taken_over(
    kind: str, rope: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    model = model_of(kind, rope_parameters={"rope_theta": 10000.0, **rope})

    def more(writer: GGUFWriter) -> None:
        for name, value in settings.items():
            add(writer, f"{kind}.rope.{name}", HEADS[kind] if value is None else value)

    check_equal(tmp_path, model, more, kind)


def test_long_and_short_factors_are_taken_over(tmp_path: Path) -> None:
    long, short = (np.linspace(1, top, 8).astype(np.float32) for top in (6, 2))
    rope = {
        "rope_type": "longrope",
        "long_factor": long.tolist(),
        "short_factor": short.tolist(),
        "rope_theta": 10000.0,
    }
    model = model_of("llama", rope_parameters={**rope, "original_max_position_embeddings": 64, "attention_factor": 1.2})

    def more(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_factors_long.weight", long)
        writer.add_tensor("rope_factors_short.weight", short)
        add(writer, "llama.rope.scaling.original_context_length", 64)
        add(writer, "llama.rope.scaling.attn_factor", 1.2)

    check_equal(tmp_path, model, more)


TAKEN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {"rms_norm_eps": 1e-6}, {}),
    ("llama", {}, {"logit_scale": 1.0, "attn_logit_softcapping": 0.0, "attention.causal": True}),
    ("llama", {}, {"attention.sliding_window": 256, "expert_count": 0, "expert_used_count": 0}),
    ("llama", {}, {"attention.scale": 0.25, "attention.key_length": 16, "attention.value_length": 16}),
    ("qwen2", {}, {"attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0}),
    ("qwen3", {}, {"attention.key_length": 128, "tensor_data_layout": "plain"}),
]


@pytest.mark.parametrize(("kind", "options", "settings"), TAKEN, ids=range(len(TAKEN)))
def test_what_changes_nothing_is_let_through(
    kind: str, options: dict[str, Any], settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def more(writer: GGUFWriter) -> None:
        for name, value in settings.items():
            add(writer, f"{kind}.{name}", value)
        for key in ("general.description", "quantize.imatrix.file", "mradermacher.quantized_by"):
            add(writer, key, "x")
        for name in ("fim_pre_token_id", "mask_token_id"):
            add(writer, f"tokenizer.ggml.{name}", 2)
        add(writer, "general.sampling.temp", 0.5)
        add(writer, "tokenizer.chat_template.tools", "x")
        writer.add_tensor("blk.0.attn_rot_embd", np.ones(8, dtype=np.float32))

    check_equal(tmp_path, model_of(kind, **options), more, kind)
    lines = " ".join(record.getMessage() for record in caplog.records)
    assert "general.sampling.temp" in lines and "tokenizer.chat_template.tools" in lines


REFUSED: list[tuple[str, object]] = [
    ("llama.attention.sliding_window", 16),
    ("llama.attention.scale", 0.5),
    ("llama.logit_scale", 0.5),
    ("llama.residual_scale", 2.0),
    ("llama.embedding_scale", 2.0),
    ("llama.attn_logit_softcapping", 30.0),
    ("llama.final_logit_softcapping", 30.0),
    ("llama.expert_count", 8),
    ("llama.expert_weights_scale", 2.5),
    ("llama.attention.key_length", 32),
    ("llama.attention.clamp_kqv", 8.0),
    ("llama.attention.max_alibi_bias", 8.0),
    ("llama.attention.causal", False),
    ("llama.pooling_type", 1),
    ("llama.something.new", 1),
    ("llama.rope.scaling.type", "dynamic"),
    ("llama.rope.scaling.yarn_log_multiplier", 0.1),
    ("llama.rope.scaling.attn_factor", 1.5),
    ("llama.rope.freq_base_swa", 500.0),
    ("tokenizer.ggml.suppress_tokens", [1, 2]),
    ("tokenizer.ggml.something_new", 1),
    ("tokenizer.ggml.add_space_prefix", True),
]


@pytest.mark.parametrize(("key", "value"), REFUSED, ids=[key for key, _ in REFUSED])
def test_what_cannot_be_taken_over_is_named(key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"its header has {key}="):
        converted(file(tmp_path, lambda writer: add(writer, key, value)))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("general.type", "adapter", "general.type"),
        ("qwen2.rope.freq_base", 5.0, "settings of 'qwen2'"),
        ("adapter.lora.alpha", 5.0, "settings of 'adapter'"),
        ("tokenizer.ggml.eot_token_id", 70000, "70000 as a token that ends"),
    ],
)
def test_files_of_another_kind_are_refused(key: str, value: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=says):
        converted(file(tmp_path, lambda writer: add(writer, key, value)))


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_q.bias",
        "blk.1.attn_output.bias",
        "output.bias",
        "blk.0.attn_q_norm.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.attn_sinks.weight",
        "blk.1.post_ffw_norm.weight",
        "something.weight",
        "output_norm.bias",
        "cls.weight",
    ],
)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_tensors_that_nobody_takes_are_named(kind: str, name: str, tmp_path: Path) -> None:
    if (kind, name) == ("qwen2", "blk.0.attn_q.bias"):
        pytest.skip("this model has it")
    with pytest.raises(FileError, match=f"it has the tensor '{name}'"):
        converted(file(tmp_path, lambda writer: writer.add_tensor(name, np.ones(64, dtype=np.float32)), kind=kind))


def test_divisors_that_are_no_known_scaling_are_named(tmp_path: Path) -> None:
    odd = np.array([1, 5, 1, 2, 9, 1, 1, 3], dtype=np.float32)
    with pytest.raises(FileError, match=r"'rope_freqs.weight', whose divisors are not those of Llama 3"):
        converted(file(tmp_path, lambda writer: writer.add_tensor("rope_freqs.weight", odd)))
    with pytest.raises(FileError, match=r"'rope_factors_short.weight'"):
        converted(file(tmp_path, lambda writer: writer.add_tensor("rope_factors_long.weight", odd)))


@pytest.mark.parametrize("template", [None, "plain", "ends"])
@pytest.mark.parametrize("ends", [{}, {"eot": 2}, {"eom": 3}, {"eot": 2, "eom": 4}, {"eot": 1}])
def test_every_end_of_a_turn_ends(
    ends: dict[str, int], template: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = copy.deepcopy(byte_level())
    end = "<|system|>" if template == "ends" else "</s>"
    turn = "{% for m in messages %}<|user|>{{ m['content'] }}" + end + "\n{% endfor %}"
    tokenizer.chat_template = turn if template else "x"

    def more(writer: GGUFWriter) -> None:
        for name, token in ends.items():
            add(writer, f"tokenizer.ggml.{name}_token_id", token)

    write_llama(tmp_path / "a.gguf", model_of("llama"), tokenizer, more=more)
    with caplog.at_level("WARNING", "copyspec"):
        folder = converted(tmp_path / "a.gguf")
    read = GenerationConfig.from_pretrained(folder).eos_token_id
    assert set(read if isinstance(read, list) else [read]) == {1, *ends.values()}
    is_missing = template == "ends" and 4 not in ends.values()
    assert ("ends turns with '<|system|>'" in caplog.text) == is_missing


@pytest.mark.parametrize("bos", [None, True, False])
@pytest.mark.parametrize("eos", [None, True, False])
def test_tokens_that_the_file_adds_are_added(bos: bool | None, eos: bool | None, tmp_path: Path) -> None:
    def more(writer: GGUFWriter) -> None:
        for name, value in (("bos", bos), ("eos", eos)):
            if value is not None:
                add(writer, f"tokenizer.ggml.add_{name}_token", value)

    try:
        tokenizer = AutoTokenizer.from_pretrained(converted(file(tmp_path, more)))
    except FileError as error:  # a class of transformers that cannot
        assert "tokenizer.ggml.add_" in str(error)
        return
    ids = tokenizer("the cat")["input_ids"]
    assert bos is None or (ids[0] == 0) == bos
    assert eos is None or (ids[-1] == 1) == eos


def test_ways_to_split_that_transformers_does_not_know_are_named(tmp_path: Path) -> None:
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    if not hasattr(mapping, "GGUF_PRE_TOKENIZER_SPLITS"):
        pytest.skip("this version of transformers splits by the architecture")
    path = file(tmp_path)
    for known in (b"llama3", b"smollm"):
        (tmp_path / "b.gguf").write_bytes(_with_pre(path.read_bytes(), known))
        converted(tmp_path / "b.gguf")
    (tmp_path / "c.gguf").write_bytes(_with_pre(path.read_bytes(), b"deepseek-llm"))
    with pytest.raises(FileError, match=r"tokenizer.ggml.pre=deepseek-llm, a way to split"):
        converted(tmp_path / "c.gguf")


def _with_pre(content: bytes, name: bytes) -> bytes:
    """The file with another way to split; the padding before the tensors stays right."""
    key = struct.pack("<Q", 18) + b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    assert content.count(key) == 1
    old = key + struct.pack("<Q", 5) + b"gpt-2"
    grown = len(name) - 5
    # A setting of the file's own takes up what is missing to a multiple of the alignment.
    pad = -grown % 32
    filler = (
        struct.pack("<Q", 1)
        + b"x"
        + struct.pack("<I", 8)
        + struct.pack("<Q", (pad - 21) % 32)
        + b"y" * ((pad - 21) % 32)
    )
    new = key + struct.pack("<Q", len(name)) + name + filler
    magic, version, tensors, settings = struct.unpack_from("<4sIQQ", content)
    head = struct.pack("<4sIQQ", magic, version, tensors, settings + 1)
    return head + content[len(head) :].replace(old, new)


def test_tokenizers_of_bytes_are_those_of_gpt2() -> None:
    """Before 5.24, transformers gives them SentencePiece's decoder and tokens for bytes."""
    from tokenizers.decoders import ByteFallback, Replace, Sequence

    from copyspec.models.gguf import _settle_bytes
    from tests.helpers.texts import byte_level

    tokenizer = copy.deepcopy(byte_level())
    backend = tokenizer.backend_tokenizer
    backend.decoder, backend.model.byte_fallback = Sequence([ByteFallback(), Replace("▁", " ")]), True
    _settle_bytes(None, tokenizer)
    text = "a ▁b é 😀"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True).endswith(text)
    assert not backend.model.byte_fallback and "ByteLevel" in str(backend.decoder)
