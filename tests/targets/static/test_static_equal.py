"""Static passes, captured once and replayed, give the output of `generate`, on every architecture of the test
helpers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.decoding.stats import Stats
from copyspec.options import CapturedGraph, DraftOptions, SamplingOptions, StaticOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.targets.static.layout import POSITION
from copyspec.targets.static.pools import PagePool
from copyspec.targets.static.static_session import StaticSession
from copyspec.targets.static.static_target import StaticTarget
from copyspec.tree import EMPTY
from tests.helpers import models
from tests.helpers.cpu_graph import CpuGraph
from tests.helpers.fakes import ScriptedDrafter
from tests.helpers.trees import Rows, fingerprint

torch.set_num_threads(1)

NOT_STATIC = set[str]()
NOT_CAPTURED = {"falcon"}  # it indexes with a Python list, which becomes a tensor on the host
CAPTURED = [name for name in (*models.CAUSAL, *models.SEQ2SEQ) if name not in NOT_STATIC | NOT_CAPTURED]

LENGTHS = (40, 9, 30, 52, 14, 55)  # output lengths, so that rows leave and others join; 200 tokens
PROMPTS = (11, 4, 17, 3, 25, 8)

GRAPHS = StaticOptions(use="always", new_graph=CpuGraph)


NEAR_TIE = {"cpu": 5e-6, "cuda": 5e-5}
"""Logits this close may be ordered otherwise on another processor, or, on a GPU, in another kernel."""


def truth(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """Return transformers' greedy output, up to its first near-tie."""
    ids = torch.tensor([list(prompt)], device=model.device)
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    best = torch.cat(output.logits).topk(2).values
    is_close = (best[:, 0] - best[:, 1] < NEAR_TIE[model.device.type]).tolist()
    start = 1 if model.config.is_encoder_decoder else len(prompt)
    tokens: list[int] = output.sequences[0, start:].tolist()
    return tokens[: is_close.index(True)] if True in is_close else tokens


def run(
    model: PreTrainedModel, options: StaticOptions, expected: Sequence[Sequence[int]], nodes: int = 12
) -> tuple[list[list[int]], list[Stats]]:
    """Decode three rows at a time, with seven of ten draft tokens right, some of them on side branches."""
    requests = [
        Request(
            prompt=models.random_ids(length, seed=row),
            max_new_tokens=len(expected[row]),
            sampling=SamplingOptions(),
            eos_token_ids=frozenset(),
            sources=[Source(expected[row], "edit")],
            drafter=partial(ScriptedDrafter, expected[row], models.VOCAB_SIZE, 0.7, row),
        )
        for row, length in enumerate(PROMPTS[: len(expected)])
    ]
    settings = DecodeSettings(DraftOptions(max_nodes=nodes, adaptive=False), batch_size=3)
    outputs: list[list[int]] = [[] for _ in requests]
    stats: list[Stats] = []
    for step in decode(wrap(model, static=options), requests, settings):
        for row in step:
            outputs[row.row] += row.tokens
            stats += [row.stats] if row.stats is not None else []
    return outputs, stats


def expected_of(model: PreTrainedModel, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    return [
        truth(model, models.random_ids(prompt, seed=row), count)
        for row, (prompt, count) in enumerate(zip(PROMPTS, lengths, strict=False))
    ]


def counted() -> tuple[list[CpuGraph], Callable[[], CapturedGraph]]:
    made: list[CpuGraph] = []

    def new_graph() -> CapturedGraph:
        made.append(CpuGraph())
        return made[-1]

    return made, new_graph


def test_most_types_are_captured() -> None:
    assert len([name for name in CAPTURED if name in models.CAUSAL]) >= 30


@pytest.mark.parametrize("name", CAPTURED)
def test_replayed_passes_decode_what_generate_does(name: str) -> None:
    model = models.tiny(name)
    before = fingerprint(model)
    made, new_graph = counted()
    lengths = LENGTHS if name in ("llama", "gemma3_text", "t5") else LENGTHS[1:3]
    expected = expected_of(model, lengths)
    outputs, stats = run(model, StaticOptions(use="always", new_graph=new_graph), expected)
    assert outputs == expected
    assert sum(graph.replays for graph in made) >= 1
    assert {stat.runner for stat in stats} <= {"graph", "static"}
    assert fingerprint(model) == before


@pytest.mark.parametrize("name", sorted(NOT_STATIC | NOT_CAPTURED))
def test_others_are_decoded_without_and_say_so_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model = models.tiny(name)
    expected = expected_of(model, LENGTHS[1:3])
    with caplog.at_level(logging.WARNING, "copyspec"):
        outputs, stats = run(model, GRAPHS, expected)
    assert outputs == expected
    assert {stat.runner for stat in stats} == {"static" if name in NOT_CAPTURED else "eager"}
    assert len([record for record in caplog.records if "static" in record.message or "capt" in record.message]) == 1


@pytest.mark.parametrize("name", ["llama", "llama4_text", "bloom", "bart"])
def test_nodes_equal_paths_alone(name: str) -> None:
    model = models.tiny(name)
    target = wrap(model, static=GRAPHS)
    rows = Rows(model, target, (11, 4, 17))
    for _ in range(3):
        assert rows.step() < 1e-5
    rows.select([2, 0])
    rows.add((20, 3))
    for sizes in [(0, 3, 6, 9), (0,), (40,), (0,), (70, 3)]:
        assert rows.step(sizes) < 1e-5
    rows.session.close()


def test_a_number_of_the_host_in_the_program_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a program that reads a length on the host replays the length of its capture."""
    from copyspec.targets.static import program

    def baked(work: program.PassInputs, slots: torch.Tensor) -> torch.Tensor:
        first = work.fields[POSITION].numpy().tolist()[0]  # not an operator, so that a graph does not record it
        fields = work.fields.clone()
        fields[POSITION] += first - fields[POSITION, 0]
        return original(work._replace(fields=fields), slots)

    model = models.tiny("llama")
    expected = expected_of(model, LENGTHS[:1])
    assert run(model, GRAPHS, expected)[0] == expected
    original = program.seen
    monkeypatch.setattr(program, "seen", baked)
    assert run(model, StaticOptions(use="always"), expected)[0] == expected
    assert run(model, GRAPHS, expected)[0] != expected


def test_a_capture_refuses_what_waits_for_the_device() -> None:
    values, graph = torch.arange(3), CpuGraph()
    with pytest.raises(RuntimeError, match="_local_scalar_dense"), graph.capture():
        int(values[1])
    with pytest.raises(RuntimeError, match="lift_fresh"), CpuGraph().capture():
        values[[0]]


@pytest.mark.parametrize("compiled", [False, True])
def test_sessions_that_keep_states_are_dynamic_where_compiled_passes_were_not_asked_for(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StaticTarget, "device", torch.device("cuda"))
    inner = wrap(models.tiny("llama"))
    for use, is_kept in (("auto", not compiled), ("always", True)):
        target = StaticTarget(inner, StaticOptions(use=use, compile=compiled, compiler="eager"))  # type: ignore[arg-type]
        for states, is_static in ((False, True), (True, is_kept), (False, True)):
            session = target.open([[5, 6, 7]], keeps_states=states)
            joining = target.open([[5, 6]])
            assert isinstance(session, StaticSession) == isinstance(joining, StaticSession) == is_static
            session.close()
            joining.close()
            del session, joining


@pytest.mark.parametrize("name", models.CAUSAL)
@pytest.mark.parametrize("is_exact", [False, True])
@torch.inference_mode()
def test_long_prompts_are_read_in_pieces(name: str, is_exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = list[PagePool](), PagePool.__init__

    def counted(pool: PagePool, *arguments: object) -> None:
        made.append(pool)
        make(pool, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PagePool, "__init__", counted)
    model = models.tiny(name)
    prompts = [models.random_ids(length, seed=length) for length in (140, 470, 150, 135)]
    session = wrap(model, static=StaticOptions(use="always", exact=is_exact)).open(prompts)
    if is_exact and not isinstance(session, StaticSession):
        pytest.skip("it has no exact mode")
    assert isinstance(session, StaticSession)
    made.clear()  # those of the model's self test
    passes: list[int] = []
    with model.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    ):
        logits = session.score(prompts, [EMPTY] * 4)
    assert passes == [512, 512, 64] if is_exact else [512, 384], "tokens of each pass"
    assert len(made) == 1, "a pool that grows is there twice while it is copied"
    for row, prompt in zip(logits, prompts, strict=True):
        alone = model(torch.tensor([prompt])).logits[0, -1]
        torch.testing.assert_close(row[0], alone, atol=2e-5, rtol=1e-4)
    session.close()
