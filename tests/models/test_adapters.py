"""Adapters merged into a model at loading: the same outputs as adding them, and an error for every unsuitable
folder."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import copyspec
from copyspec.cli import main
from copyspec.models.adapters import merge, read_adapter
from copyspec.models.aliases import ADAPTER_WEIGHTS, ALIASES
from copyspec.models.errors import FileError
from copyspec.models.files import WEIGHTS
from copyspec.models.pretrained import Pretrained
from copyspec.models.resolve import is_here, place, resolve
from tests.helpers.texts import byte_level, llama

NAME = "base_model.model.model.layers.1.self_attn.q_proj"
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tokenizer = byte_level()
    copy.deepcopy(llama(len(tokenizer))).to(torch.bfloat16).save_pretrained(
        folder
    )  # a copy, since the tests share one model
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def tensors(base: Path) -> dict[str, torch.Tensor]:
    weight = AutoModelForCausalLM.from_pretrained(base).model.layers[1].self_attn.q_proj.weight
    torch.manual_seed(0)
    rows, columns = weight.shape
    return {f"{NAME}.lora_A.weight": torch.randn(4, columns), f"{NAME}.lora_B.weight": torch.randn(rows, 4) / 8}


def write(folder: Path, tensors: dict[str, torch.Tensor], config: object = CONFIG) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / ADAPTER_WEIGHTS)
    return folder


def test_merged_is_base_and_adapter(base: Path, tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    adapter = write(tmp_path / "adapter", tensors)
    (adapter / "chat_template.jinja").write_text("its own")
    (tmp_path / "merged").mkdir()
    merge(base, adapter, tmp_path / "merged")
    before, after = (AutoModelForCausalLM.from_pretrained(path, dtype="auto") for path in (base, tmp_path / "merged"))
    assert after.dtype == torch.float32
    delta = 2.0 * tensors[f"{NAME}.lora_B.weight"] @ tensors[f"{NAME}.lora_A.weight"]
    for name, weight in after.named_parameters():
        expected = before.get_parameter(name).float()
        if name == "model.layers.1.self_attn.q_proj.weight":
            expected = expected + delta
        assert torch.equal(weight, expected), name
    assert (tmp_path / "merged" / "chat_template.jinja").read_text() == "its own"


def test_rounded_weights_are_bfloat16_and_their_sums_keep_the_update(
    base: Path, tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Of updates far smaller than the spacing of bfloat16, which rounding to the nearest number would undo."""
    tensors[f"{NAME}.lora_A.weight"] = torch.ones_like(tensors[f"{NAME}.lora_A.weight"])
    tensors[f"{NAME}.lora_B.weight"] = torch.full_like(tensors[f"{NAME}.lora_B.weight"], 2e-6)
    adapter, weights = write(tmp_path / "adapter", tensors), []
    for number in range(2):
        folder = tmp_path / f"merged-{number}"
        folder.mkdir()
        merge(base, adapter, folder, is_rounded=True)
        weights.append(load_file(folder / WEIGHTS)["model.layers.1.self_attn.q_proj.weight"])
    before = load_file(base / WEIGHTS)["model.layers.1.self_attn.q_proj.weight"].float()
    weight, again = weights
    assert torch.equal(weight, again)
    assert torch.equal(weight, weight.bfloat16().float())
    moved = weight - before
    assert (moved.abs() <= 2.0**-7 * before.abs() + 2e-5).all()
    deviation = float(moved.std()) * weight.numel() ** -0.5
    assert abs(float(moved.mean()) - 1.6e-5) < 3 * deviation and 4 * deviation < 1.6e-5


def _half(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[f"{NAME}.lora_B.weight"]


def _nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.lora_B.weight"][3, 1] = float("nan")


def _other_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.lora_A.weight"] = torch.randn(4, 7)


def _other_rank(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.lora_A.weight"] = torch.randn(5, 8)


def _huge(tensors: dict[str, torch.Tensor]) -> None:
    for name in tensors:
        tensors[name] = tensors[name] * 1e30


def _whole_weight(tensors: dict[str, torch.Tensor]) -> None:
    tensors["base_model.model.lm_head.weight"] = torch.zeros(2, 2)


def _numbers(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.lora_B.weight"] = torch.zeros(8, 4, dtype=torch.int64)


def _nowhere(tensors: dict[str, torch.Tensor]) -> None:
    for half in "AB":
        tensors[f"base_model.model.other.lora_{half}.weight"] = tensors.pop(f"{NAME}.lora_{half}.weight")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_half, "one half"),
        (_nan, "not finite"),
        (_other_shape, "the base's is"),
        (_other_rank, "r=4"),
        (_huge, "not finite with the adapter"),
        (_whole_weight, "not part of a LoRA adapter"),
        (_numbers, "no matrix"),
        (_nowhere, "its base does not have"),
        (dict.clear, "holds nothing"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    damage: Callable[[dict[str, torch.Tensor]], None],
    said: str,
    base: Path,
    tensors: dict[str, torch.Tensor],
    tmp_path: Path,
) -> None:
    damage(tensors)
    adapter = write(tmp_path / "adapter", tensors)
    (tmp_path / "merged").mkdir()
    with pytest.raises(FileError, match=said):
        merge(base, adapter, tmp_path / "merged")
    assert not (tmp_path / "merged" / "model.safetensors").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"peft_type": "IA3"}, {"r": 0}, {"r": "4"}, {"r": 1 << 40}, {"r": True}, {"lora_alpha": None},
        {"lora_alpha": float("inf")}, {"lora_alpha": 10**400},
        {"use_dora": True}, {"bias": "all"}, {"rank_pattern": {"q": 8}}, {"layer_replication": [[0, 2], [1, 2]]},
        {"modules_to_save": ["lm_head"]}, {"init_lora_weights": "pissa_niter_4"}, {"init_lora_weights": "OLoRA"},
        {"alpha_pattern": {"q": 8}}, {"fan_in_fan_out": True}, {"lora_bias": True}, {"use_qalora": True},
        {"trainable_token_indices": [1, 2]}, {"target_parameters": ["experts.up_proj"]}, {"arrow_config": {"top_k": 2}},
        {"alora_invocation_tokens": [5, 6]}, {"use_bdlora": {"nblocks": 2}}, {"init_lora_weights": "milora"},
        {"init_lora_weights": "loftq"}, {"init_lora_weights": "new_start"}, {"a_setting_of_tomorrow": 1},
        {"bias": "lora_only"}, {"peft_type": "PROMPT_TUNING"}, {"peft_type": "TRAINABLE_TOKENS"}, {"peft_type": "LOHA"},
    ],
)  # fmt: skip
def test_other_kinds_of_adapter_are_refused(
    change: dict[str, Any], tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    with pytest.raises(FileError, match=next(iter(change))):
        read_adapter(write(tmp_path / "adapter", tensors, CONFIG | change))


@pytest.mark.parametrize(
    "change",
    [
        {"use_dora": False, "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": None, "lora_bias": False},
        {"use_rslora": True, "task_type": "CAUSAL_LM", "lora_dropout": 0.1, "peft_version": "0.19.0"},
        {"init_lora_weights": "gaussian", "layers_to_transform": [1], "layers_pattern": "layers", "revision": None},
        {"alora_invocation_tokens": None, "trainable_token_indices": None, "target_parameters": None, "eva_config": {}},
        {"init_lora_weights": True, "megatron_core": "megatron.core", "qalora_group_size": 16, "exclude_modules": "x"},
    ],
)
def test_settings_that_change_nothing_are_let_through(
    change: dict[str, Any], tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    read = read_adapter(write(tmp_path / "adapter", tensors, CONFIG | change))
    assert read.scale == (4.0 if change.get("use_rslora") else 2.0)


@pytest.mark.parametrize(
    "name",
    [
        f"{NAME}.lora_magnitude_vector",
        f"{NAME}.lora_B.bias",
        f"{NAME}.lora_embedding_A",
        f"{NAME}.base_layer.bias",
        "base_model.model.lm_head.weight",
        "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
        "prompt_embeddings",
        f"{NAME}.ia3_l",
    ],
)
def test_weights_that_nobody_takes_are_named(name: str, tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"has '{name[:90]}"):
        read_adapter(write(tmp_path / "adapter", {**tensors, name: torch.ones(4)}))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"peft_type":' * 50_000])
def test_a_configuration_that_is_none(content: bytes, tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    adapter = write(tmp_path / "adapter", tensors)
    (adapter / "adapter_config.json").write_bytes(content)
    with pytest.raises(FileError, match=r"adapter_config\.json"):
        read_adapter(adapter)


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0{}      "])
def test_weights_that_are_none(content: bytes, tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    adapter = write(tmp_path / "adapter", tensors)
    (adapter / ADAPTER_WEIGHTS).write_bytes(content)
    with pytest.raises(FileError, match=r"adapter_model\.safetensors"):
        read_adapter(adapter)


def test_files_that_are_missing(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    adapter = write(tmp_path / "adapter", tensors)
    (adapter / ADAPTER_WEIGHTS).unlink()
    with pytest.raises(FileError, match=r"there is no adapter_model\.safetensors"):
        read_adapter(adapter)


def test_a_folder_of_an_adapter_is_a_model(
    base: Path, tensors: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    named = {**CONFIG, "base_model_name_or_path": str(base)}
    adapter = write(tmp_path / "my adapter", {name: 40 * tensor for name, tensor in tensors.items()}, named)
    engine = copyspec.load(adapter, device="cpu")
    elsewhere = write(
        tmp_path / "moved", load_file(adapter / ADAPTER_WEIGHTS), {**named, "base_model_name_or_path": "x/y"}
    )
    beside = copyspec.load(base, adapter=elsewhere, device="cpu")
    plain = copyspec.load(base, device="cpu", dtype="float32")
    try:
        prompt = "The cat sat on the mat. The cat"
        ids = engine.tokenizer(prompt, return_tensors="pt")
        own = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        before = own.generate(**ids, max_new_tokens=12, do_sample=False)
        own.model.layers[1].self_attn.q_proj.weight.data += (
            2.0 * 1600 * tensors[f"{NAME}.lora_B.weight"] @ tensors[f"{NAME}.lora_A.weight"]
        )
        after = own.generate(**ids, max_new_tokens=12, do_sample=False)
        written = engine.generate(prompt, max_new_tokens=12, ignore_eos=False).token_ids
        assert list(written) == after[0, ids["input_ids"].shape[1] :].tolist() != before[0, len(written) :].tolist()
        assert len(list((tmp_path / "cache" / "models").glob("my-adapter-*"))) == 1
        for loaded_again in (beside, copyspec.load(base, adapter=str(elsewhere), device="cpu")):
            assert loaded_again is beside and loaded_again.generate(prompt, max_new_tokens=12).token_ids == written
        assert plain.generate(prompt, max_new_tokens=12).token_ids != written, "another model than without the adapter"
    finally:
        for loaded in (engine, beside, plain):
            copyspec.unload(loaded)


def test_an_adapters_own_tokenizer_needs_no_base(
    base: Path, tensors: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    adapter = write(tmp_path / "adapter", tensors, {**CONFIG, "base_model_name_or_path": "no/such-model"})
    own = copy.deepcopy(byte_level())
    own.add_tokens(["<own>"])
    own.save_pretrained(adapter)
    engine = copyspec.load(base, adapter=adapter, tokenizer=adapter, device="cpu")
    try:
        assert engine.tokenizer.convert_tokens_to_ids("<own>") == len(own) - 1
    finally:
        copyspec.unload(engine)


def test_adapters_that_cannot_be_meant(base: Path, tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    adapter = write(tmp_path / "adapter", tensors)
    for name, beside, says in (
        (base, tmp_path / "nowhere", "nowhere' is not the folder of an adapter: there is no such folder"),
        (base, base, "is not the folder of an adapter but of a whole model, with a config.json: give it as model="),
        (base, tmp_path, "there is no adapter_config.json in it"),
        (adapter, adapter, "model= names another adapter as the base"),
    ):
        with pytest.raises(copyspec.LoadError, match=says):
            copyspec.load(name, adapter=beside, device="cpu")
    for wrong in (7, "", [adapter]):
        with pytest.raises(TypeError, match="adapter must be a folder"):
            copyspec.load(base, adapter=wrong)  # type: ignore[arg-type]
    model = AutoModelForCausalLM.from_pretrained(base)
    with pytest.raises(ValueError, match="adapter cannot be changed any more"):
        copyspec.load(model, adapter=adapter)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        (None, "names no base_model_name_or_path"),
        (7, "names no base_model_name_or_path"),
        ("{adapter}", "names another adapter"),
        ("{empty}", "has no config.json"),
        ("a" * 5000, "names no base_model_name_or_path"),
        ("~nobody-here", "that home folder is not known"),
        ("no/such-model", "cannot be downloaded: .+; give the folder of the base as model="),
    ],
)
def test_adapters_whose_base_is_not_there(
    named: object, says: str, tensors: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    places = {"adapter": tmp_path / "adapter", "empty": tmp_path / "empty"}
    name = named.format(**places) if isinstance(named, str) else named
    adapter = write(tmp_path / "adapter", tensors, {**CONFIG, "base_model_name_or_path": name})
    with pytest.raises(copyspec.LoadError, match=says):
        copyspec.load(adapter, device="cpu")


@pytest.mark.parametrize("named", [True, False])
def test_a_base_is_downloaded_with_the_callers_options(
    named: bool, tensors: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    adapter = write(tmp_path / "adapter", tensors, {**CONFIG, "base_model_name_or_path": "no/such-model"})
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **options: asked.append(options) or tmp_path)
    hub = {"local_files_only": True, "token": "a"}
    with pytest.raises(copyspec.LoadError, match=r"no config\.json"):
        if named:
            copyspec.load("no/such-model", adapter=adapter, revision="b", model_kwargs=hub)
        else:
            copyspec.load(adapter, revision="b", model_kwargs=hub)
    assert asked and all(options.items() >= {**hub, "revision": "b"}.items() for options in asked)


def test_a_short_name_with_an_adapter_is_never_the_bare_model(
    base: Path,
    tensors: dict[str, torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    adapter = write(tmp_path / "adapter", tensors)
    alias = replace(
        ALIASES["smollm2"], name="tuned", base="bare", module="not_installed", hub="org/tiny", adapter=adapter
    )
    monkeypatch.setitem(ALIASES, "tuned", alias)
    asked: list[tuple[str, object]] = []
    download = "huggingface_hub.snapshot_download"
    monkeypatch.setattr(download, lambda name, **options: asked.append((name, options["token"])) or base)
    merged = resolve("tuned", hub={"token": "a"})
    assert asked == [("org/tiny", "a")] and not is_here(alias)
    mine = Path(resolve(str(base), str(adapter)))
    assert (Path(merged) / "model.safetensors").read_bytes() == (mine / "model.safetensors").read_bytes()
    shutil.copytree(merged, place(alias))  # as merged into the package's model, which was removed since
    monkeypatch.setattr(download, None)
    assert is_here(alias) and resolve("tuned") == str(place(alias))
    capsys.readouterr()
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith(f"  {Path(merged).name}") for line in lines), "it is of this version"
    assert main(["models", "remove", "tuned"]) == 0 and mine.is_dir()
    assert not Path(merged).exists() and not place(alias).exists()


@pytest.fixture
def placed(base: Path, tensors: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An adapter beside its base, in folders of the test's own."""
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(base, tmp_path / "base")
    return write(tmp_path / "adapter", tensors, {**CONFIG, "base_model_name_or_path": "~/base"})


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 20 << 30)


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("adapter/other.json", _pipe, "other.json is not a regular file"),
        ("adapter/chat_template.jinja", _zeros, "chat_template.jinja is not a regular file"),
        ("adapter/adapter_model.safetensors", _pipe, "adapter_model.safetensors is not a regular file"),
        ("adapter/adapter_model.safetensors", _sparse, "adapter_model.safetensors has more than 1024 MB"),
        ("adapter/adapter_config.json", _sparse, "adapter_config.json has more than 64 MB"),
        ("base/config.json", _pipe, "base of the adapter, '~/base', cannot be used: config.json is not a regular file"),
        ("base/config.json", _zeros, "config.json is not a regular file"),
        ("base/config.json", _sparse, "config.json has more than 64 MB"),
        ("base/config.json", Path.unlink, "base of the adapter, '~/base', has no config.json"),
        ("base/tokenizer.json", _sparse, "tokenizer.json has more than 128 MB"),
        ("base/tokenizer.json", _pipe, "tokenizer.json is not a regular file"),
        ("base/model.safetensors", Path.unlink, "has no single model.safetensors"),
    ],
)
def test_folders_are_checked_before_they_are_read(
    name: str, change: Callable[[Path], None], says: str, placed: Path, tmp_path: Path
) -> None:
    change(tmp_path / name)
    with pytest.raises(copyspec.LoadError, match=says):
        Pretrained(str(placed)).config()
    assert not (tmp_path / "cache").exists()


def test_what_is_not_read_of_an_adapter_does_not_matter(placed: Path) -> None:
    before = resolve(str(placed))
    (placed / "folder.json").mkdir()
    (placed / "broken.json").symlink_to("nowhere")
    _sparse(placed / "1.json")
    assert resolve(str(placed)) == before


@pytest.mark.parametrize(
    "name",
    ["base/generation_config.json", "base/tokenizer_config.json", "base/chat_template.jinja", "base/config.json",
     "adapter/chat_template.jinja"],
)  # fmt: skip
def test_a_merged_model_is_made_again_when_its_sources_change(name: str, placed: Path, tmp_path: Path) -> None:
    before = resolve(str(placed))
    with (tmp_path / name).open("a") as file:
        file.write(" ")
    after = resolve(str(placed))
    assert after != before
    if not name.endswith("/config.json"):
        assert (Path(after) / Path(name).name).read_bytes() == (tmp_path / name).read_bytes()


def test_bases_that_are_quantised_are_refused(placed: Path, tmp_path: Path) -> None:
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    weights = load_file(tmp_path / "base" / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    save_file({**weights, name: weights[name].to(torch.int8)}, tmp_path / "base" / "model.safetensors")
    with pytest.raises(FileError, match=r"of which the base has integers: torch\.int8"):
        resolve(str(placed))
    (tmp_path / "base" / "config.json").write_text(json.dumps({**config, "quantization_config": {"bits": 8}}))
    with pytest.raises(FileError, match="has a quantization_config"):
        resolve(str(placed))


def test_all_files_of_the_tokenizer_go_with_the_weights(placed: Path, tmp_path: Path) -> None:
    names = ("tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "special_tokens_map.json")
    before = resolve(str(placed))
    for name in names:
        (tmp_path / "base" / name).write_text("{}")
    after = Path(resolve(str(placed)))
    assert after != Path(before)
    for name in names:
        assert (after / name).read_text() == "{}"
    _sparse(tmp_path / "base" / "vocab.json")
    with pytest.raises(FileError, match=r"vocab\.json has more than 128 MB"):
        resolve(str(placed))


def test_a_model_is_resolved_once(placed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(*arguments: Any) -> str:
        asked.append(arguments)
        return resolve(*arguments)

    monkeypatch.setattr("copyspec.models.pretrained.resolve", counted)
    pretrained = Pretrained(str(placed))
    pretrained.model(AutoModelForCausalLM, pretrained.config())
    pretrained.tokenizer()
    assert len(asked) == 1


def test_a_full_disk_while_merging_says_what_to_do(placed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **options: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(copyspec.LoadError, match=r"No space left on device.+make room, or set COPYSPEC_CACHE"):
        resolve(str(placed))
