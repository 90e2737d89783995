"""Every training command ends with a file that loads, or with status 1 and the reason."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.texts import byte_level, llama
from training import adapt, train
from training.export import export
from training.lora import LoraShape
from training.model import Shape
from training.optim import orthogonal
from training.runs import append_log, exit_with, say_end, working_dtype

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "train": ["--out", "RUN"],
    "adapt": ["--out", "RUN", "--base", "MODEL"],
    "heads": ["--out", "RUN", "--model", "MODEL"],
    "distill": ["--out", "RUN", "--teacher", "MODEL", "--student", "layers:1"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_level()
    llama(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(monkeypatch: pytest.MonkeyPatch, module: object, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["train", *words])
    module.main()


def test_without_time_a_model_is_trained_for_a_step(
    prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = replace(
        train.PRESETS["cpu"], shape=Shape(vocab=320, width=32, layers=2, heads=2, inner=48, context=256), world=1,
        batch=512, limit=256,
    )  # fmt: skip
    monkeypatch.setitem(train.PRESETS, "cpu", tiny)
    run(monkeypatch, train, "--data", str(prose), "--out", str(tmp_path / "run"), "--minutes", "0")
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"prepares: .*; ends at \d\d:\d\d:\d\d, preparation included", lines[0])
    assert re.fullmatch(r"prepared after \d+ s; that was all of the time, .*: give more --minutes", lines[1])
    assert json.loads(lines[2])["step"] == 1 and "checkpoint.pt after 1 steps; log" in lines[3]
    export(tmp_path / "run", tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_without_time_an_adapter_is_trained_for_a_step(
    prose: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = replace(adapt.PRESETS["cpu"], shape=LoraShape(rank=4, alpha=8, first_layer=1), batch=512)
    monkeypatch.setitem(adapt.PRESETS, "cpu", tiny)
    arguments = ["--data", str(prose), "--base", str(model), "--out", str(tmp_path / "run"), "--minutes", "0"]
    run(monkeypatch, adapt, *arguments)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("prepares: ") and lines[1].startswith("prepared after")
    assert json.loads(lines[2])["step"] == 1 and "adapter after 1 steps; log" in lines[3]
    assert load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")


@pytest.mark.parametrize("name", COMMANDS)
def test_without_prose_the_reason_is_said(name: str, model: Path, tmp_path: Path) -> None:
    words = [word.replace("RUN", str(tmp_path / "run")).replace("MODEL", str(model)) for word in COMMANDS[name]]
    command = [sys.executable, "-m", f"training.{name}", *words, "--data", str(tmp_path / "none"), "--minutes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no paragraphs in" in done.stderr and "--data" in done.stderr
    assert re.match(r"prepares: .*; ends at \d\d:\d\d:\d\d", done.stdout)


def test_a_run_that_made_nothing_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"nothing was trained: .*heads.* --minutes"):
        say_end(tmp_path, tmp_path / "heads", 0, 5)
    append_log(tmp_path, {"step": 3})
    say_end(tmp_path, tmp_path / "log.jsonl", 3, 5)
    assert "after 3 steps, 2 of 5 steps are left: the same command goes on" in capsys.readouterr().out


def test_what_a_run_computes_in_is_no_slower_than_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, wanted in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has: has)
        assert working_dtype("cpu") == wanted and working_dtype("cuda") == torch.bfloat16
        assert orthogonal(torch.randn(2, 8, 4)).dtype == torch.float32


def test_other_errors_keep_their_traceback() -> None:
    def wrong() -> None:
        raise TypeError("a mistake of the program")

    with pytest.raises(TypeError):
        exit_with(wrong)
