"""The training script end to end on a few made-up paragraphs: it trains reproducibly, resumes, and exports."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.card import _BARS, bars
from training.data import load_prose
from training.export import export
from training.model import Shape, from_llama, hidden, init_weights, keep_layers, rotation, shape_of, to_llama
from training.optim import orthogonal
from training.plans import PRESETS
from training.train import Job, Schedule, _abort_with, clock, train

_TINY = replace(
    PRESETS["cpu"], shape=Shape(vocab=320, width=32, layers=2, heads=2, inner=48, context=256), world=1, batch=512,
    limit=256, steps=4,
)  # fmt: skip


def _state(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoint.pt", weights_only=True)["state"]


def test_a_run_repeats_itself_and_resumes(prose: Path, tmp_path: Path) -> None:
    train(prose, tmp_path / "a", _TINY, 0.0)
    train(prose, tmp_path / "b", _TINY, 0.0)
    assert torch.equal(_state(tmp_path / "a")["master"], _state(tmp_path / "b")["master"])
    train(prose, tmp_path / "a", _TINY, 0.0)  # has nothing left to do
    assert torch.load(tmp_path / "a" / "checkpoint.pt", weights_only=True)["step"] == 4
    assert torch.equal(_state(tmp_path / "a")["master"], _state(tmp_path / "b")["master"])
    train(prose, tmp_path / "b", replace(_TINY, steps=6), 0.0)
    assert torch.load(tmp_path / "b" / "checkpoint.pt", weights_only=True)["step"] == 6
    assert not torch.equal(_state(tmp_path / "a")["master"], _state(tmp_path / "b")["master"])


def test_a_run_that_was_killed_while_it_wrote_its_tokenizer_starts_again(
    prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "fsync", killed)
        train(prose, tmp_path / "run", replace(_TINY, steps=1), 0.0)
    assert not (tmp_path / "run" / "tokenizer.json").exists()
    train(prose, tmp_path / "run", replace(_TINY, steps=1), 0.0)
    assert (tmp_path / "run" / "checkpoint.pt").exists()


def test_two_processes_share_one_model(prose: Path, tmp_path: Path) -> None:
    # In a process of its own: where torch has CUDA, one in which gradients were computed cannot be forked.
    plan = replace(_TINY, world=2)
    process = multiprocessing.get_context("spawn").Process(target=train, args=(prose, tmp_path / "run", plan, 0.0))
    process.start()
    process.join()
    assert process.exitcode == 0
    state = _state(tmp_path / "run")
    assert state["places"][:, 1].tolist() == [4, 4]
    assert torch.isfinite(state["master"]).all()
    assert len((tmp_path / "run" / "pids").read_text().split()) == 2


def test_a_process_may_die_while_it_is_looked_at() -> None:
    process = multiprocessing.get_context("spawn").Process(target=os._exit, args=(3,))
    process.start()
    process.join()

    class Dies:
        sentinel, codes = process.sentinel, [None, 3]

        @property
        def exitcode(self) -> int | None:
            return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]

    barrier = threading.Barrier(2)
    _abort_with([Dies()], barrier)
    assert barrier.broken


def test_a_process_that_dies_ends_the_run(prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Job.run

    def dies(job: Job, step: int, progress: float) -> None:
        if job.rank == 1:
            os._exit(3)
        run(job, step, progress)

    monkeypatch.setattr(Job, "run", dies)
    with pytest.raises(RuntimeError, match=r"ended early \(exit codes \[3\]\)"):
        train(prose, tmp_path / "run", replace(_TINY, world=2), 0.0)


def test_the_export_loads_and_wraps_plain_text(prose: Path, tmp_path: Path) -> None:
    train(prose, tmp_path / "run", _TINY, 0.0)
    export(tmp_path / "run", tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "Correct the grammar: naïve 漢字 😀  two\n\n lines"
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(plain) == text
    wrapped = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(wrapped[:2]) == ["<s>", "<|user|>"]
    assert wrapped[2:-1] == plain
    assert tokenizer.convert_ids_to_tokens(wrapped[-1]) == "<|assistant|>"
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
    )
    assert chat == wrapped
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=3).shape[1] <= len(wrapped) + 3
    shape = shape_of(json.loads((tmp_path / "model" / "config.json").read_text()))
    again = to_llama(from_llama(model.state_dict(), shape), shape)
    assert again.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(again[name].bfloat16(), value.bfloat16()) for name, value in model.named_parameters())
    further = replace(_TINY, shape=shape, steps=1, weights=tmp_path / "model")
    train(prose, tmp_path / "further", further, 0.0)
    assert (tmp_path / "further" / "tokenizer.json").read_text() == (tmp_path / "model" / "tokenizer.json").read_text()


def test_training_forward_is_that_of_llama(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = Shape(vocab=64, width=32, layers=2, heads=2, inner=48, context=64)
    weights = init_weights(shape, torch.Generator().manual_seed(0))
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        rms_norm_eps=1e-5,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(to_llama(weights, shape), strict=False)
    ids = torch.randint(64, (2, 20), generator=torch.Generator().manual_seed(1))
    ours = hidden(weights, ids, shape, rotation(shape, "cpu", torch.float32)) @ weights["embed"].T
    torch.testing.assert_close(ours, model(ids).logits, atol=1e-5, rtol=1e-4)


def test_orthogonal_updates_have_singular_values_near_one() -> None:
    update = orthogonal(torch.randn(2, 48, 16, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(update.float())
    assert values.min() > 0.6 and values.max() < 1.3


def test_schedule_reaches_its_end_and_ignores_a_standstill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("training.train.time.time", lambda: now[0])
    schedule = Schedule(0, 1400.0, tmp_path)
    for step in range(1, 101):
        now[0] += 1.0
        schedule.advance(step)
    assert schedule.progress == pytest.approx(0.25, abs=0.01)
    now[0] += 200.0  # the process was stopped
    schedule.advance(101)
    assert schedule.progress < 0.32
    for step in range(102, 202):
        now[0] += 1.0
        schedule.advance(step)
    assert schedule.progress > 0.95 and schedule.done(202)


def test_the_file_that_moves_the_end_must_be_of_this_start_and_whole(tmp_path: Path) -> None:
    file, later = tmp_path / "finish_by", 4e9
    schedule = Schedule(0, later, tmp_path)
    schedule.advance(20)
    file.write_text("14:05")
    os.utime(file, (1e9, 1e9))
    schedule.advance(40)
    for text in ("", "14:", "14:0", "24:00", "two"):
        file.write_text(text)
        with pytest.warns(UserWarning, match=f"finish_by' is ignored: '{text}' is no clock time such as 14:05"):
            schedule.advance(60)
        assert schedule.deadline == later
    file.write_text("14:05\n")
    schedule.advance(80)
    assert schedule.deadline == clock("14:05")


def test_examples_end_in_what_the_model_should_write(prose: Path) -> None:
    import random

    maker, _ = load_prose(prose)
    for seed in range(200):
        example = maker.draw(random.Random(seed))
        assert example == maker.draw(random.Random(seed))
        assert example.answer.startswith(" ") and not example.answer.startswith("  ")
        if example.prompt.startswith("Quote"):
            assert example.answer[1:] in example.prompt


def test_card_compares_with_the_bars() -> None:
    quality = {
        "copies": {"held_out": {"exact": 0.95}, "jfleg_references": {"exact": 0.9}},
        "gec": {"jfleg_dev": {"gain": 0.6, "gain_guarded": 1.2}},
        "quotes": {"one_sentence": {"verbatim": 0.93}, "passage": {"verbatim": 0.5}},
    }
    reached = [line.split("|")[-2].strip() for line in bars(json.loads(json.dumps(quality))).splitlines()[2:]]
    assert reached == ["yes", "no", "yes", "no", "yes", "no"]
    assert set(_BARS) == {"copies", "raw", "guarded", "one_sentence", "passage"}


def test_a_smaller_model_begins_with_some_layers_of_a_larger_one(prose: Path, tmp_path: Path) -> None:
    train(prose, tmp_path / "run", _TINY, 0.0)
    export(tmp_path / "run", tmp_path / "model")
    small = replace(_TINY, shape=replace(_TINY.shape, layers=1), weights=tmp_path / "model", layers=(1,), steps=0)
    train(
        prose, tmp_path / "small", small, 0.0
    )  # the schedule ends at once, after one step at a learning rate near zero
    export(tmp_path / "small", tmp_path / "exported")
    whole, part = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("model", "exported"))
    for (name, old), new in zip(
        whole.model.layers[1].named_parameters(), part.model.layers[0].parameters(), strict=True
    ):
        assert torch.allclose(old.float(), new.float(), atol=2e-3), name


@pytest.mark.parametrize("kept", [(2,), (-1,), ()])
def test_layers_that_are_not_there_are_named(kept: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="layers 0 to 1"):
        keep_layers(init_weights(_TINY.shape, torch.Generator().manual_seed(0)), kept)
