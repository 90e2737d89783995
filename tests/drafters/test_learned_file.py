"""What is learned of heads is kept for the next process; files that are broken or hostile change nothing."""

from __future__ import annotations

import json
import logging
import os
import random
import threading
from pathlib import Path

import pytest

from copyspec.drafters.predictors import learned_file
from copyspec.drafters.predictors.base import Learned
from copyspec.drafters.predictors.learned_file import LearnedFile
from tests.drafters.test_heads import engine, write


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "learned"


def used(seed: int = 0) -> Learned:
    learned, draw = Learned(), random.Random(seed)
    for _ in range(300):
        learned.reliability.record([(1, draw.random()), (2, 0.1)], draw.randrange(3))
        learned.weights.update(draw.random(), draw.uniform(-1, 1))
        learned.time.took(draw.uniform(0.001, 0.003))
    return learned


def test_what_was_learned_is_there_again(cache: Path) -> None:
    learned, restored = used(), Learned()
    LearnedFile("heads", "model").save(learned)
    LearnedFile("heads", "other").load(restored)
    assert restored.state() == Learned().state()
    LearnedFile("heads", "model").load(restored)
    assert restored.state() == learned.state() and os.listdir(cache) == [next(cache.iterdir()).name]
    for probability in (0.05, 0.35, 0.95):
        assert restored.reliability(probability) == learned.reliability(probability)
        assert restored.weights(probability) == learned.weights(probability)
    restored.time.took(50.0)  # sets up weights
    assert restored.time.seconds == learned.time.seconds


def test_a_broken_file_changes_nothing(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, learned = LearnedFile("heads"), Learned()
    file.save(used())
    (path,) = cache.iterdir()
    whole, draw = path.read_bytes(), random.Random(1)
    state = json.loads(whole)
    changed = [b"", b"[" * 4000, b"\xff" * 9, b"null", b" " * 10_000, whole[:-9]]
    for name in state:
        for value in (None, [], "x", float("nan"), -1, 1e300, [float("inf")] * 10, [True] * 10, {}):
            changed.append(json.dumps(state | {name: value}).encode())
    changed += [bytes(draw.choice([byte, draw.randrange(256)]) for byte in whole) for _ in range(50)]
    for content in changed:
        path.write_bytes(content)
        caplog.clear()
        file.load(learned)
        assert learned.state() == Learned().state()
        assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.WARNING
    path.unlink()
    path.symlink_to(os.devnull)
    file.load(learned)
    assert learned.state() == Learned().state()


def test_files_are_whole_while_threads_write(cache: Path) -> None:
    states = [used(seed) for seed in range(3)]
    known = [each.state() for each in states]

    def write_often(learned: Learned) -> None:
        for _ in range(30):
            LearnedFile("heads").save(learned)

    threads = [threading.Thread(target=write_often, args=(each,)) for each in states]
    LearnedFile("heads").save(states[0])
    for each in threads:
        each.start()
    for _ in range(60):
        read = Learned()
        LearnedFile("heads").load(read)
        assert read.state() in known
    for each in threads:
        each.join()
    assert len(list(cache.iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_left_alone(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.write_text("a file in its place")
    file = LearnedFile("heads")
    with caplog.at_level(logging.INFO):
        file.load(Learned())
        for _ in range(5):
            file.save(Learned())
    assert sum("cannot be kept" in record.message for record in caplog.records) == 1


@pytest.mark.usefixtures("steady_drafts")
def test_heads_of_a_folder_are_kept(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_file, "FIRST_SAVE", 4)
    made = engine()
    folder = write(tmp_path / "heads", made.model)
    options = {"max_new_tokens": 30, "ignore_eos": True, "draft_model": f"heads:{folder}"}
    outputs = [made.generate("The cat sat on the", **options).token_ids for _ in range(2)]
    assert len(list(cache.iterdir())) == 1
    again = engine()
    outputs.append(again.generate("The cat sat on the", **options).token_ids)
    assert outputs[0] == outputs[1] == outputs[2]
    again._drafting._loaded.clear()
    heads = again._drafting._find_heads(f"heads:{folder}").make.args[0]  # type: ignore[attr-defined]
    assert heads.state() != Learned().state()
