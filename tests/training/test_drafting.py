"""Training of drafters: the commands run from a fresh clone, resume, and improve."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

import copyspec
from tests.helpers.texts import byte_level, llama
from training import distill, heads
from training.chat_requests import Requests
from training.outputs import (
    LOOP,
    OutputPlan,
    StateRecorder,
    answer,
    check_plan,
    own_requests,
    read_shard,
    states_of,
    until_loop,
)
from training.runs import restore, save_checkpoint

PARAGRAPHS = [
    f"The {animal} lives in the {place} and has always liked the {food} there. Many people know the {animal} well, and "
    f"they have wanted to see it for {number} years."
    for number, (animal, place, food) in enumerate([("fox", "forest", "berries"), ("owl", "tower", "mice")] * 6)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_level(template=None)
    made = copy.deepcopy(llama(len(tokenizer)))
    with torch.no_grad():
        made.get_output_embeddings().weight.mul_(4.0)  # more certain, so that drafts are likely to be right
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text("\n".join(PARAGRAPHS))
    return folder


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["recurrent", "recurrent --layers 1 0", "parallel", "feature"])
def test_heads_are_trained_resumed_and_used(kind: str, model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = f"--model {model} --data {data} --out {out} --kind {kind} --depth 2 --inner 8 --vocabulary 64 --batch 16"
    command += " --rows 3 --tokens 8 --shards 5 --dtype float32 --seed 1 --rate 0.02 --span 8"
    heads.main([*command.split(), "--steps", "30"])
    before = lines(out / "log.jsonl")
    states = {path.name for path in (out / "states").iterdir()}
    heads.main([*command.split(), "--steps", "60"])
    after = lines(out / "log.jsonl")
    assert before[-1]["step"] == 30 and after[: len(before)] == before and after[-1]["step"] == 60
    assert after[-1]["loss"] < before[0]["loss"]
    assert {path.name for path in (out / "states").iterdir()} == states
    tokens, recorded = read_shard(out / "states" / "outputs-00000.safetensors")[0]
    assert len(tokens) == len(recorded) <= 8
    engine = copyspec.load(str(model))
    plain = engine.generate(PARAGRAPHS[0], max_new_tokens=24, drafter="none")
    drafted = engine.generate(PARAGRAPHS[0], max_new_tokens=24, draft_model=f"heads:{out / 'heads'}", drafter="model")
    assert drafted.token_ids == plain.token_ids and drafted.stats.draft_seconds > 0
    with pytest.raises(ValueError, match="give another --out"):
        heads.main([*command.replace("--inner 8", "--inner 9").split(), "--steps", "61"])
    with pytest.raises(ValueError, match=r"holds a run of .*; give another --out"):
        check_plan(out / "states", "another", OutputPlan())


def test_without_time_heads_are_trained_on_what_was_read(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One shard takes all the time of a short run, which still ends with heads, and says what is left."""
    out = tmp_path / "run"
    command = f"--model {model} --data {data} --out {out} --depth 2 --inner 8 --vocabulary 64 --batch 16 --tokens 8"
    heads.main([*command.split(), "--own", "0", "--dtype", "float32", "--steps", "50", "--minutes", "0"])
    shown = capsys.readouterr().out
    assert "1 of 60 shards were read" in shown and "heads after 10 steps, 40 of 50 steps are left" in shown
    assert len(read_shard(out / "states" / "outputs-00000.safetensors")) == heads.ROWS_A_MINUTE
    result = copyspec.generate(PARAGRAPHS[0], max_new_tokens=4, model=str(model), draft_model=f"heads:{out / 'heads'}")
    assert result.stats.draft_seconds > 0
    heads.main([*command.split(), "--own", "0", "--dtype", "float32", "--steps", "20", "--shards", "1"])
    assert "heads after 20 steps; log" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shards", "prose", "begins"), [(4, 2, [0, 1, 2, 3]), (3, 0, [0, 1]), (2, 5, [0, 1]), (1, 1, [0])]
)
def test_learning_begins_once_answers_give_a_vocabulary(
    shards: int, prose: int, begins: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, learned = list[int](), list[list[int]]()

    class Run:
        def __init__(self, *args: object) -> None:
            self.is_done, self.step = shards > 1, 0

        def read(self, requests: object, number: int, every: int) -> None:
            read.append(number)

        def learn(self, steps: int, until: float) -> None:
            learned.append(read.copy())
            self.is_done = True

    monkeypatch.setattr(heads, "HeadRun", Run)
    monkeypatch.setattr(heads, "Requests", lambda data: None)
    monkeypatch.setattr(heads, "say_end", lambda *args: None)
    monkeypatch.setattr(copyspec, "load", lambda *args, **options: None)
    words = ["--data", "texts", "--out", str(tmp_path), "--shards", str(shards), "--prose", str(prose)]
    heads.main(words)
    assert learned[0] == begins and read == list(range(shards))


def test_an_output_is_cut_where_it_repeats_itself() -> None:
    once = list(range(20))
    assert until_loop(once) == 20
    assert until_loop([*once, *once]) == 20 + LOOP - LOOP


def test_a_checkpoint_restores_its_weights_and_no_others(tmp_path: Path) -> None:
    def fresh(**sizes: int) -> tuple[dict[str, torch.Tensor], torch.optim.Optimizer]:
        weights = {name: torch.ones(size, requires_grad=True) for name, size in sizes.items()}
        return weights, torch.optim.AdamW(weights.values(), lr=0.1)

    def step(weights: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
        torch.stack([(weight**2).sum() for weight in weights.values()]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    path, (weights, optimizer), (again, resumed) = tmp_path / "a.safetensors", fresh(a=2, b=3), fresh(a=2, b=3)
    step(weights, optimizer)
    save_checkpoint(path, weights, optimizer, 1, vocabulary=torch.arange(4))
    assert restore(path, again, resumed) == 1 and [path.name for path in tmp_path.iterdir()] == [path.name]
    step(weights, optimizer)
    step(again, resumed)
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    for others in ({"a": 2}, {"a": 2, "b": 4}, {"a": 2, "b": 3, "c": 1}):
        with pytest.raises(ValueError, match=r"a\.safetensors' is a checkpoint of other weights; give another --out"):
            restore(path, *fresh(**others))


@pytest.mark.parametrize("kind", distill.DIVERGENCES)
def test_divergences(kind: str) -> None:
    torch.manual_seed(0)
    p, q = torch.randn(4, 9), torch.randn(4, 9, requires_grad=True)
    loss = distill.divergence(kind, p, q)
    a, b = (logits.double().softmax(-1) for logits in (p, q))
    middle = (a + b) / 2
    expected = {
        "forward": (a * (a / b).log()).sum(-1),
        "reverse": (b * (b / a).log()).sum(-1),
        "js": ((a * (a / middle).log()) + (b * (b / middle).log())).sum(-1) / 2,
        "tv": (a - b).abs().sum(-1) / 2,
    }[kind]
    torch.testing.assert_close(loss.double(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(distill.divergence(kind, p, p), torch.zeros(4), atol=1e-6, rtol=0)


def test_a_student_comes_closer_and_drafts(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = f"--teacher {model} --student layers:1 --data {data} --out {out} --rows 3 --tokens 8 --rate 0.01"
    command += " --divergence forward --on-policy 0.3"
    distill.main([*command.split(), "--steps", "20"])
    distill.main([*command.split(), "--steps", "40"])
    log = lines(out / "log.jsonl")
    assert [line["step"] for line in log] == [20, 40] and log[1]["loss"] < log[0]["loss"]
    with pytest.raises(ValueError, match=r"holds a run of .*'divergence': 'forward'.*; give another --out"):
        distill.main([*command.replace("forward", "tv").split(), "--steps", "41"])
    engine = copyspec.load(str(model))
    options = {"draft_model": str(out / "student"), "drafter": "model", "max_new_tokens": 16}
    plain = engine.generate(PARAGRAPHS[0], max_new_tokens=16, drafter="none")
    assert engine.generate(PARAGRAPHS[0], **options).token_ids == plain.token_ids
    boosted = [*command.replace(str(out), str(tmp_path / "second")).split(), "--boost", str(out / "student")]
    distill.main([*boosted, "--steps", "1"])
    assert (tmp_path / "second" / "student").is_dir()


def test_without_time_a_student_is_trained_for_a_step(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"--teacher {model} --student layers:1 --data {data} --out {tmp_path / 'run'} --rows 2 --tokens 4"
    distill.main([*command.split(), "--minutes", "0", "--steps", "9"])
    assert "student after 1 steps, 8 of 9 steps are left" in capsys.readouterr().out
    assert copyspec.load(str(tmp_path / "run" / "student")).generate("The fox", max_new_tokens=2).text


def test_texts_without_a_paragraph_to_ask_about_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Only headings.\nAnd short lines.\n")
    with pytest.raises(ValueError, match=r"no paragraph in .* has 12 words and is not held out"):
        Requests(tmp_path)


def test_the_model_writes_requests_itself(model: Path) -> None:
    """Magpie: sampled after the opening of a user's turn, a function of the seed; none without a chat template."""
    silent = copyspec.load(str(model))
    assert own_requests(silent, 4, 1) == []
    chatty = copy.deepcopy(silent.model)
    with torch.no_grad():
        chatty.generation_config.eos_token_id = chatty.config.eos_token_id = 2
        chatty.get_output_embeddings().weight.mul_(0.1)  # nearly uniform, so that some requests end
    template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}"
    engine = copyspec.load(chatty, tokenizer=byte_level(template=template))
    requests = own_requests(engine, 128, 1)
    assert len(requests) > 1 and requests == own_requests(engine, 128, 1) != own_requests(engine, 128, 2)
    assert all("[user]" not in request for request in requests)


def test_recorded_states_are_those_that_tokens_are_chosen_from(model: Path) -> None:
    """Whatever is copied: the last state gives the output's tokens, and inner ones equal those of one long pass."""
    engine, recorders = copyspec.load(str(model)), list[StateRecorder]()
    prompts = [engine.codec.encode(text).ids for text in (PARAGRAPHS[0] + PARAGRAPHS[0], PARAGRAPHS[1])]
    outputs = answer(engine, prompts, 24, 3, sampled=0.0, recorders=recorders, layers=(1,))
    assert len(recorders) == 2
    for prompt, output in zip(prompts, outputs, strict=True):
        states = states_of(recorders, prompt, output).float()
        ids = torch.tensor([[*prompt, *output[:-1]]])
        with torch.no_grad():
            layers = engine.model(ids, output_hidden_states=True).hidden_states
        expected = torch.cat([layers[-1], layers[1]], -1)[0, len(prompt) - 1 :]
        torch.testing.assert_close(states, expected, atol=0.02, rtol=0.02)
