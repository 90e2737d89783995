"""The GPU benchmarks, run on a CPU in small sizes."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import copyspec
from benchmarks.gpu import __main__ as everything
from benchmarks.gpu import exact_mode, launch, outputs, passes, simulation
from benchmarks.gpu.transcripts import exchanged, together
from benchmarks.speed.prompts import Case
from copyspec.cli.gpu_checks import gpu_checks
from copyspec.sources import Source

CPU = ["--device", "cpu"]


def test_passes(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    model = ["--model", "shape:tiny-llama", "--dtype", "float32", "--repeats", "1", "--context", "40", "--long", "80"]
    assert passes.main([*CPU, *model, "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert {"G0", "dynamic", "static", "graph, masks", "graph, tree attention", "G7"} <= set(report)
    assert report["graph, masks"]["G1_share_of_copy"] > 0 and report["G0"]["ratio"] > 0


def test_outputs_of_every_way_are_equal(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    sizes = ["--rows", "1", "2", "--tokens", "6", "--repeats", "1", "--dtype", "float32"]
    assert outputs.main([*CPU, "--model", str(folder), *sizes, "--json", str(file)]) == 0
    for rows, methods in json.loads(file.read_text()).items():
        assert {method["equal"] for method in methods.values()} == {f"{rows} of {rows}"}


def test_exact_mode_goes_on_where_it_was_stopped(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    words = [*CPU, "--model", str(folder), "--new-tokens", "8", "--json", str(file)]
    assert exact_mode.main([*words, "--tokens", "8"]) == 0
    first = json.loads(file.read_text())["cases"]
    assert exact_mode.main([*words, "--tokens", "16"]) == 0
    report = json.loads(file.read_text())
    assert report["cases"][:1] == first and report["tokens"] == 16 and report["outputs_that_differ"] == 0
    with pytest.raises(SystemExit, match=r"found\.json holds another run: its batch is 1, not 2"):
        exact_mode.main([*words, "--tokens", "24", "--batch", "2"])
    assert json.loads(file.read_text()) == report


def test_launch(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main([*CPU, "--rows", "2", "--layers", "1", "--repeats", "1"]) == 0
    assert "us from read to launch, bar 225" in capsys.readouterr().out


def test_simulated_batches_gain_where_they_copy_and_lose_little_where_not() -> None:
    draw = random.Random(0)

    def case(*, copies: bool) -> Case:
        text = [draw.randrange(500) for _ in range(80)]
        output = text[5:60] if copies else [draw.randrange(500) for _ in range(55)]
        return Case([*text, 500], (Source(text, "edit"),), [*output, 501])

    for copies, first, later in ((True, 1.25, 0.6), (False, 1.3, 1.06)):
        cases = [case(copies=copies) for _ in range(20)]
        for times in simulation.MODELS.values():
            report = simulation.measure(cases, times, nodes=32, tokens=60, batch=20, calls=6)
            plain, ours = (report[name]["seconds"] for name in ("plain", "copyspec"))
            assert ours[0] < first * plain[0] and ours[-1] < later * plain[-1], report


def test_too_few_prompts_for_a_simulated_batch_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["</s>", "a", "b", "the", "cat", "sat"]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="a"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    row = {"task": "gec", "model": "m", "prompt": "a b", "references": ["the cat sat"], "output": "the cat sat"}
    with gzip.open(tmp_path / "t.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row | {"id": f"set-{i}", "group": str(i)}) + "\n" for i in range(3))
    words = [str(tmp_path / "t.jsonl.gz"), "--tokenizer", str(tmp_path / "t.json"), "--tasks", "gec", "--calls", "1"]
    assert simulation.main([*words, "--batch", "2", "--prompts", "3", "--json", str(tmp_path / "found.json")]) == 0
    assert set(json.loads((tmp_path / "found.json").read_text())["found"]) == set(simulation.MODELS)
    with pytest.raises(SystemExit):
        simulation.main([*words, "--batch", "2"])
    assert "6 prompts are wanted, and there are 3: raise --rows" in capsys.readouterr().err


def test_everything_says_that_there_is_no_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert everything.main([]) == 2
    assert "--device cpu --tiny" in capsys.readouterr().err
    assert [(name, good) for name, _, good in gpu_checks(None)] == [("GPU", False)]


def test_a_part_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = {"one": (["nothing"], 30), "two": (["kernel_build", "--help"], 60)}
    monkeypatch.setattr(everything, "parts", lambda device, tiny: parts)
    assert everything.main(["--device", "cpu", "--json", str(tmp_path / "all.json")]) == 1
    report = json.loads((tmp_path / "all.json").read_text())
    assert (report["one"]["exit"], report["two"]["exit"]) == (1, 0) and "No module" in report["one"]["errors"][-1]


def test_the_time_of_all_parts_is_below_ten_minutes() -> None:
    assert sum(seconds for _, seconds in everything.parts("cuda", tiny=False).values()) < 600


def test_doctor_checks_passes_and_equality(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, loaded = copyspec.load, list[copyspec.Engine]()
    monkeypatch.setattr("copyspec.api.load", lambda *args, **named: loaded.append(load(*args, **named)) or loaded[-1])
    checks = list(gpu_checks(str(folder), "cpu"))
    assert len(loaded) == 5 and all(model.is_unloaded for model in loaded), "one at a time has to fit the GPU"
    assert all(passed for _, _, passed in checks)
    names = [name for name, _, _ in checks]
    assert names[0] == "copy bandwidth" and names[-2:] == ["equality, masks", "equality, tree"] and len(names) == 6
    assert "of copy bandwidth" in checks[1][1] and "(static)" in checks[2][1]


def test_rows_decoded_together_share_no_token() -> None:
    sets = {
        "a": [Case([1, 7, 1], (Source([7, 1], "reference"),), [7, 0]), Case([3], (), [4])],
        "b": [Case([1], (), [0])],
    }
    (batch,), ends = together(sets, 2, end=0)
    first, second = batch
    assert first.prompt == [3, 2, 3] and first.sources[0].tokens == [2, 3] and first.recorded == [2, 0]
    assert second.prompt == [4] and second.recorded == [1] and ends == {0, 1}
    with pytest.raises(ValueError, match="--batch 4 needs as many prompts; there are 3"):
        together(sets, 4, end=0)


def test_exchanged_prompts_have_the_outputs_of_another_task() -> None:
    sets = {"a": [Case([1], (), [2]), Case([3], (), [4])], "b": [Case([5], (), [6])]}
    assert [case.recorded for cases in exchanged(sets).values() for case in cases] == [[6], [6], [2]]
    with pytest.raises(ValueError, match="two tasks or more, got those of b"):
        exchanged({"b": sets["b"]})
