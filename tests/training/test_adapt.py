"""Adapters: the loss is that of the model, runs are reproducible and resume, and saved adapters can be merged."""

from __future__ import annotations

import multiprocessing
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from copyspec.models.adapters import merge
from tests.helpers.texts import byte_level, llama
from training.adapt import PRESETS, adapt, edited_parts, prepare
from training.average import average
from training.data import made_ahead
from training.lora import FrozenLlama, LoraShape, save_adapter
from training.noise import OPEN_NOISES
from training.text import join_words, split_words

_PARAGRAPHS = [
    f"The {animal} lives in the {place}, and it has always liked the {food}. Many people know the {animal} of the "
    f"{place}. They have wanted to see it for {number} years, but they were waiting for a better day."
    for number, (animal, place, food) in enumerate(
        [("fox", "forest", "berries"), ("owl", "tower", "mice"), ("whale", "sea", "fish"), ("goat", "hills", "grass")]
        * 5
    )
]
_SHAPE = LoraShape(rank=4, alpha=8, first_layer=1)


@pytest.fixture
def paragraphs() -> list[str]:
    return _PARAGRAPHS


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tokenizer = byte_level()
    llama(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_loss_is_that_of_the_merged_model(base: Path, tmp_path: Path) -> None:
    frozen = FrozenLlama(base)
    adapter = frozen.new_adapter(_SHAPE, 0)
    torch.manual_seed(0)
    adapter = {
        k: (a.bfloat16().float(), torch.randn_like(b).div(20).bfloat16().float()) for k, (a, b) in adapter.items()
    }
    ids = torch.randint(0, 200, (3, 12))
    weights = torch.zeros(3, 12)
    weights[:, 5:] = torch.tensor([1.0, 2.0, 1.0, 0.0, 1.0, 1.0, 3.0])
    total, count = frozen.loss(adapter, _SHAPE, ids, weights)
    save_adapter(tmp_path / "adapter", adapter, _SHAPE, "base")
    (tmp_path / "merged").mkdir()
    merge(base, tmp_path / "adapter", tmp_path / "merged")
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits[:, :-1]
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    assert count == weights.sum()
    torch.testing.assert_close(total, (losses * weights[:, 1:].flatten()).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # the helpers start none
def test_a_run_repeats_itself_and_resumes(prose: Path, base: Path, tmp_path: Path) -> None:
    plan = replace(PRESETS["cpu"], shape=_SHAPE, batch=1024, limit=512, steps=2)
    for name in ("a", "b"):
        adapt(prose, base, tmp_path / name, plan, 0.0)
    a, b = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("a", "b"))
    assert all(torch.equal(x, y) for k in a["adapter"] for x, y in zip(a["adapter"][k], b["adapter"][k], strict=True))
    adapt(prose, base, tmp_path / "helped", replace(plan, helpers=2), 0.0)
    helped = torch.load(tmp_path / "helped" / "checkpoint.pt", weights_only=True)["adapter"]
    assert all(torch.equal(x, y) for k in helped for x, y in zip(a["adapter"][k], helped[k], strict=True))
    adapt(prose, base, tmp_path / "b", replace(plan, steps=3), 0.0)
    adapt(prose, base, tmp_path / "b", replace(plan, steps=3), 0.0)  # has nothing left to do
    assert torch.load(tmp_path / "b" / "checkpoint.pt", weights_only=True)["step"] == 3
    (tmp_path / "merged").mkdir()
    merge(base, tmp_path / "b" / "adapter", tmp_path / "merged")
    prepare(prose, base, tmp_path / "c", plan, 1)
    assert sorted(path.name for path in (tmp_path / "c" / "pools").iterdir()) == [
        "0-256-1024-512-0.npz",
        "held-256-1024-512-0.npz",
    ]
    adapt(tmp_path / "no prose", base, tmp_path / "c", plan, 0.0)
    c = torch.load(tmp_path / "c" / "checkpoint.pt", weights_only=True)
    assert all(torch.equal(x, y) for k in a["adapter"] for x, y in zip(a["adapter"][k], c["adapter"][k], strict=True))
    on = replace(plan, begin=tmp_path / "b" / "adapter", precision="bfloat16", steps=1, rate_a=0.0, rate_b=0.0)
    adapt(prose, base, tmp_path / "d", on, 0.0)
    d = torch.load(tmp_path / "d" / "checkpoint.pt", weights_only=True)["adapter"]
    b = torch.load(tmp_path / "b" / "checkpoint.pt", weights_only=True)["adapter"]
    assert all(torch.equal(x.bfloat16(), y.bfloat16()) for k in b for x, y in zip(b[k], d[k], strict=True))
    with pytest.raises(ValueError, match=r"is \(4, 32\); this run has \(2, 32\)"):
        adapt(prose, base, tmp_path / "e", replace(on, shape=replace(_SHAPE, rank=2)), 0.0)


def test_a_pool_is_whole_or_not_there(prose: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(handle: int) -> None:
        raise KeyboardInterrupt

    plan = replace(PRESETS["cpu"], shape=_SHAPE, batch=1024, limit=512, steps=1)
    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(prose, base, tmp_path / "run", plan, 1)
    assert not list((tmp_path / "run" / "pools").glob("*.npz"))


@pytest.mark.parametrize(
    ("source", "answer", "parts"),
    [
        ("He go home.", "He goes home.", [" goes"]),
        ("He go to to home", "He go to home", [" home"]),
        ("Same.", "Same.", []),
        ("i see", "I see the cat", ["I", " the cat"]),
    ],
)
def test_parts_of_the_answer_that_were_edited(source: str, answer: str, parts: list[str]) -> None:
    assert [answer[start:end] for start, end in edited_parts(source, answer)] == parts


@pytest.mark.parametrize("noise", OPEN_NOISES, ids=lambda noise: noise.name)
def test_open_noise_changes_one_place(noise: object, prose: Path) -> None:
    from training.data import load_prose
    from training.noise import Noise

    assert isinstance(noise, Noise)
    maker, _ = load_prose(prose)
    text = (
        "Although they have always been waiting for the children, who don't like it, she goes to her friends' bigger "
        "houses because those cars were quickly used by a man and something is better without them."
    )
    words = split_words(text)
    rng = random.Random(0)
    for _ in range(5):
        wrong = noise.apply(words, maker.lexicon, rng)
        assert wrong is None or (wrong != words and abs(len(wrong) - len(words)) <= 2)
        assert wrong is None or join_words(wrong)


def test_two_adapters_are_averaged(tmp_path: Path) -> None:
    for name, value in (("first", 1.0), ("second", 3.0), ("wide", 1.0)):
        (tmp_path / name).mkdir()
        tensor = torch.full((2, 4 if name == "wide" else 2), value, dtype=torch.bfloat16)
        save_file({"a": tensor}, tmp_path / name / "adapter_model.safetensors")
        (tmp_path / name / "adapter_config.json").write_text("{}")
    average(tmp_path / "first", tmp_path / "second", 0.75, tmp_path / "mean")
    assert load_file(tmp_path / "mean" / "adapter_model.safetensors")["a"].tolist() == [[2.5, 2.5]] * 2
    with pytest.raises(ValueError, match="different shapes"):
        average(tmp_path / "first", tmp_path / "wide", 0.5, tmp_path / "mean")


def test_an_error_of_a_helper_ends_the_run_and_all_helpers() -> None:
    def make(number: int) -> int:
        if number == 3:
            raise ValueError("no pool 3")
        if number == 13:
            os._exit(5)
        return number

    taken = [number for _, number in zip(range(3), made_ahead(make, 0, 2), strict=False)]
    assert taken == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(ValueError, match="no pool 3"):
        list(made_ahead(make, 0, 2))
    with pytest.raises(RuntimeError, match=r"ended \(exit code 5\)"):
        list(made_ahead(make, 10, 2))
    assert not multiprocessing.active_children()
