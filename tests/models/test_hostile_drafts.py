"""Wrong draft models and heads: errors that name the argument, the file and the value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from copyspec.drafters.predictors.head_files import FORMAT, WEIGHTS, load_heads
from copyspec.models.errors import LoadError
from tests.helpers.texts import engine


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ("heads:~nobody-here/x", "the path of draft_model='heads:' is '~nobody-here/x', and that home folder is not"),
        ("~nobody-here", "that home folder is not known"),
        ("layers:" + "9" * 5000, r"draft_model='layers:9+\.\.\. must name a number of layers"),
        ("layers:0", "draft_model='layers:0': layers must be an integer from 1 to 1, got 0"),
    ],
)
def test_draft_models_that_cannot_be_meant(chosen: str, says: str) -> None:
    with pytest.raises((LoadError, ValueError), match=says):
        engine()._drafting.predictors([chosen])
    if not chosen.startswith("heads"):
        with pytest.raises((LoadError, ValueError), match=says.replace("draft_model", "the model of rule")):
            engine()._drafting.second(chosen)


def heads(folder: Path, tensors: Mapping[str, torch.Tensor], **changes: object) -> Path:
    """Parallel heads for the model of the tests, but for `changes` and these tensors."""
    vocabulary, size = engine().model.get_output_embeddings().weight.shape
    config = {"format": FORMAT, "kind": "parallel", "hidden_size": size, "vocab_size": vocabulary, "depth": 1}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "inner_size": 4, **changes}))
    whole = {"0.down": torch.zeros(4, size), "0.up": torch.zeros(size, 4), "probe": torch.zeros(64)}
    save_file({**whole, **tensors}, folder / WEIGHTS)
    return folder


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("probe", torch.float8_e4m3fn), ("probe", torch.int64), ("probe", torch.bool), ("probe", torch.complex64),
        ("vocabulary", torch.float32),
    ],
)  # fmt: skip
def test_heads_of_other_types(name: str, kind: torch.dtype, tmp_path: Path) -> None:
    folder = heads(tmp_path / "heads", {name: torch.ones(64).to(kind)})
    with pytest.raises(LoadError, match=rf"heads\.safetensors: '{name}' has dtype \w+; expected one of "):
        load_heads(folder, engine().model)


@pytest.mark.parametrize("name", ["rms_norm_eps", "rope_theta"])
def test_numbers_of_heads_that_are_too_large(name: str, tmp_path: Path) -> None:
    changes = {"kind": "feature", "num_attention_heads": 4, name: 10**400}
    folder = heads(tmp_path / "heads", {}, **changes)
    with pytest.raises(LoadError, match=rf"config\.json has {name}=10+\.\.\.; it is a number above 0"):
        load_heads(folder, engine().model)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    folder = heads(tmp_path / "heads", {})
    (folder / WEIGHTS).write_bytes(b"\xff" * 64)
    with pytest.raises(LoadError, match=r"heads\.safetensors cannot be read: "):
        load_heads(folder, engine().model)
