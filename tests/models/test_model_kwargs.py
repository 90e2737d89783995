"""Options of `from_pretrained`: those that only change how a model is stored change no output; others are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import BitsAndBytesConfig

import copyspec
from copyspec.models.loading import ModelChoice
from copyspec.models.model_kwargs import check_model_kwargs
from tests.helpers.texts import byte_level, llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_level()
    llama(len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def unloaded() -> Iterator[None]:
    yield
    copyspec.unload()


def test_attention_and_places_change_no_output(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    prompt, options = "The cat sat on the mat. The cat", {"max_new_tokens": 16, "ignore_eos": True}
    plain = copyspec.load(folder, device="cpu")
    wanted = plain.generate(prompt, prompt, **options).token_ids  # type: ignore[arg-type]
    eager = copyspec.load(folder, device="cpu", model_kwargs={"attn_implementation": "eager"})
    assert eager is not plain and eager.model.config._attn_implementation == "eager"
    assert eager is copyspec.load(folder, device="cpu", model_kwargs={"attn_implementation": "eager"})
    places = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= {f"model.layers.{i}": "disk" if i % 2 else "cpu" for i in range(plain.model.config.num_hidden_layers)}
    kwargs = {"device_map": places, "offload_folder": tmp_path / "off", "local_files_only": True}
    spread = copyspec.load(folder, model_kwargs=kwargs)
    assert any(parameter.is_meta for parameter in spread.model.parameters())
    for engine in (eager, spread):
        assert engine.generate(prompt, prompt, **options).token_ids == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"trust_remote_code": True}, "holds 'trust_remote_code'; that is trust_remote_code= here"),
        ({"torch_dtype": "float32"}, "that is dtype= here"),
        ({"use_safetensors": False}, "holds 'use_safetensors', which is not passed on; it may hold attn_"),
        ({"weights_only": False}, "not passed on"),
        ({"use_kernels": True}, "not passed on"),
        ({"kernel_config": {}}, "not passed on"),
        ({"code_revision": "main"}, "not passed on"),
        ({"subfolder": "../x"}, "not passed on"),
        ({"state_dict": {}}, "not passed on"),
        ({"_fast_init": 1, 7: 1}, "not passed on"),
        ({"attn_implementation": "kernels-community/flash-attn"}, "must be one of eager, sdpa"),
        ({"attn_implementation": ["eager"]}, "must be one of eager, sdpa"),
        ({"device_map": "meta"}, "must be 'auto', 'balanced'"),
        ({"device_map": {"": "meta"}}, "must be 'auto', 'balanced'"),
        ({"device_map": {}}, "must be 'auto', 'balanced'"),
        ({"max_memory": "20GiB"}, "a dict from devices"),
        ({"offload_buffers": "yes"}, "must be True or False"),
        ({"quantization_config": {"quant_method": "x", "more": {"y": 1}}}, "a dict of plain values"),
        ({"quantization_config": object()}, "a quantization config of transformers"),
        ({"token": ["hf_secret"]}, r"must be a str; got another value"),
    ],
)
def test_other_options_are_refused(given: dict[Any, Any], says: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        copyspec.load(folder, model_kwargs=given)
    assert "secret" not in str(raised.value)


def test_options_that_do_not_go_together(folder: Path) -> None:
    with pytest.raises(TypeError, match="model_kwargs must be a dict"):
        copyspec.load(folder, model_kwargs=["token"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"device='cpu' and model_kwargs\['device_map'\] are given"):
        copyspec.load(folder, device="cpu", model_kwargs={"device_map": "auto"})
    for unused in ({"max_memory": {0: "20GiB"}}, {"offload_folder": "x"}, {"offload_buffers": True}):
        (name,) = unused
        with pytest.raises(ValueError, match=rf"model_kwargs\['{name}'\] has no effect without device='auto' or a dev"):
            copyspec.load(folder, device="cpu", model_kwargs=unused)
    with pytest.raises(ValueError, match="model_kwargs cannot be changed any more"):
        copyspec.load(llama(300), tokenizer=byte_level(), model_kwargs={"token": "hf_secret"})
    with pytest.raises(ValueError, match="is a loaded LlamaForCausalLM: revision cannot be changed any more"):
        copyspec.load(llama(300), tokenizer=byte_level(), revision="main")
    checked = check_model_kwargs({"token": "hf_secret", "quantization_config": BitsAndBytesConfig(load_in_8bit=True)})
    assert checked.hub == {"token": "hf_secret"} and set(checked.model) == {"quantization_config"}
    assert "secret" not in repr(ModelChoice("x", model_kwargs=checked))
    assert check_model_kwargs({"token": None, "max_memory": {0: "20GiB", "cpu": 1 << 30}}).hub == {}
