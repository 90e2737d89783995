"""Models that keep recurrent states: drafts, trees, batches and rewinding leave the outputs and states of plain
decoding."""

from __future__ import annotations

import gc
import random
from functools import cache, partial
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, PreTrainedModel

from copyspec.decoding.requests import Request
from copyspec.options import SamplingOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.targets.base import Target
from copyspec.targets.eager import plain
from copyspec.targets.hooks.recurrence import mixers
from copyspec.targets.recurrent import states as recurrent
from copyspec.tree import EMPTY, DraftTree
from kit.architectures import tiny
from tests.helpers import models
from tests.helpers.decoded import decoded
from tests.helpers.fakes import ScriptedDrafter
from tests.helpers.trees import Rows, fingerprint

NAMES = [*models.STATEFUL]
MORE = [
    name
    for name in ("kimi_linear", "bailing_hybrid", "nemotron_h", "jamba", "zamba", "lfm3", "zaya")
    if name in CONFIG_MAPPING
]
"""Other types that keep states, as far as transformers has them; Zaya's mixer is run level by level."""
OUTPUT = 12


@cache
def model_of(name: str) -> PreTrainedModel:
    return tiny(name, 8) if name in MORE else models.tiny(name)


@cache
def target_of(name: str) -> Target:
    """Made once: each target is tested on its model."""
    return wrap(model_of(name))


@cache
def truth(name: str, row: int) -> tuple[list[int], list[int]]:
    """A prompt, of 1 to 24 tokens, and what `generate` writes."""
    prompt = models.random_ids(1 + 7 * row % 24, seed=row)
    ids = torch.tensor([prompt])
    output = model_of(name).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=OUTPUT, min_new_tokens=OUTPUT, do_sample=False
    )
    return prompt, output[0, len(prompt) :].tolist()


def requests(name: str, rows: int, accuracy: float, sampling: SamplingOptions | None = None) -> list[Request]:
    made = []
    for row in range(rows):
        prompt, output = truth(name, row)
        drafter = partial(ScriptedDrafter, output, models.VOCAB_SIZE, accuracy, row)
        sources = [Source(output, "reference")]
        made.append(Request(prompt, OUTPUT - row % 4, sampling or SamplingOptions(), sources=sources, drafter=drafter))
    return made


@pytest.mark.parametrize(
    ("name", "batch", "accuracy"),
    [
        *((name, batch, 0.7) for name in [*NAMES, "rwkv"] for batch in (1, 4)),
        *(
            (name, batch, accuracy)
            for name in ("qwen3_next", "lfm2")
            for batch, accuracy in ((1, 1.0), (3, 0.0), (8, 0.6))
        ),
    ],
)
def test_outputs_are_those_of_generate(name: str, batch: int, accuracy: float) -> None:
    """Prompts of several lengths, whose rows join and leave."""
    outputs = decoded(target_of(name), requests(name, 8, accuracy), 9, batch_size=batch)
    assert [output for output, _ in outputs] == [truth(name, row)[1][: OUTPUT - row % 4] for row in range(8)]
    if accuracy == 1.0:
        assert sum(stats.num_passes for _, stats in outputs) < 32  # of 84 tokens


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_trees_score_as_each_path_alone(name: str) -> None:
    model = model_of(name)
    before = fingerprint(model)
    rows = Rows(model, target_of(name), (11, 4, 17))
    worst = max(rows.step() for _ in range(2))
    rows.select([2, 0])
    rows.add((6, 1))
    worst = max(worst, *(rows.step() for _ in range(3)))
    assert worst < 2e-3
    rows.session.close()
    assert fingerprint(model) == before


@pytest.mark.parametrize("most", [1, 3, 64])
def test_several_tokens_after_a_state_are_read_with_the_drafts_or_before(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "TOGETHER", most)
    rows = Rows(model_of("qwen3_5_text"), target_of("qwen3_5_text"), (11, 4, 5))
    worst = rows.step()
    for count in range(4):
        rows.sequences[0] += models.random_ids(count, seed=count)
        rows.sequences[1] += models.random_ids(2)
        worst = max(worst, rows.step())
    assert worst < 2e-3


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_states_are_those_of_the_accepted_tokens_alone(name: str) -> None:
    model, drawn = model_of(name), random.Random(3)
    rows = Rows(model, target_of(name), (9, 3))
    for _ in range(4):
        rows.step()
    text = [tokens[:cached] for tokens, cached in zip(rows.sequences, rows.cached, strict=True)]
    for row, tokens in enumerate(text):
        session: Any = target_of(name).open([rows.prompts[row]])  # some mixers read prompts otherwise
        start = drawn.randrange(1, len(rows.prompts[row]) + 1)
        for part in (tokens[:start], *([token] for token in tokens[start:])):
            session.score([part], [EMPTY])
            session.keep([[]])
        for number, expected in session._states._rows[0].items():
            state_kept = rows.session._states._rows[row][number]  # type: ignore[attr-defined]
            assert state_kept.keys() == expected.keys() and expected
            for key, state in expected.items():
                assert (state_kept[key] - state).abs().max() <= 1e-5 * max(1.0, float(state.abs().max()))
        session.close()


@pytest.mark.parametrize("name", ["mamba2", "falcon_h1"])
def test_models_in_half_precision_verify_trees_and_warn_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """`generate` returns their logits in float32, which are those of half precision."""
    target = wrap(models.tiny(name).bfloat16())
    assert target.supports_trees
    target.open([[5]]).close()
    assert caplog.text.count("in which a CPU takes longer") == 1


@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_mixers_of_derived_classes_are_found(name: str) -> None:
    """As those of a program, or of `torch.nn.utils.parametrize`, which has no source."""
    model = models.tiny(name)
    for _, mixer in mixers(model):
        mixer.__class__ = type("Derived", (type(mixer),), {})
    assert len(mixers(model)) == len(mixers(model_of(name))) > 0
    assert wrap(model).supports_trees


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next"])
def test_sampled_outputs_are_those_without_drafts(name: str) -> None:
    sampling = SamplingOptions(temperature=1.0, top_p=0.9, seed=5)
    target = target_of(name)
    plainly = [output for output, _ in decoded(target, requests(name, 6, 0.7, sampling), 0)]
    assert [output for output, _ in decoded(target, requests(name, 6, 0.7, sampling), 9)] == plainly


@pytest.mark.parametrize("name", [*NAMES, "rwkv"])
def test_a_row_that_goes_back_is_read_anew(name: str) -> None:
    target, (prompt, output) = target_of(name), truth(name, 2)
    session = target.open([prompt])
    session.score([prompt], [EMPTY])
    session.keep([[]])
    session.score([output[:1]], [DraftTree.of_chain(output[1:4])])
    session.keep([[0, 1]])
    text = [*prompt, *output]
    session.trim([len(prompt) + 1])
    known = session.lengths[0]
    logits = session.score([text[known : len(prompt) + 1]], [EMPTY]) if known <= len(prompt) else None
    assert logits is not None and int(logits[0][0].argmax()) == output[1]
    session.close()


@pytest.mark.parametrize(("name", "is_known"), [("mamba2", True), ("kimi_linear", True), ("zaya", False)])
def test_nodes_are_bounded_by_the_memory_of_what_is_kept(
    name: str, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a node of a mixer that is not known, its states; else what it has written into them, which is less."""
    session: Any = target_of(name).open([[5, 6]])
    assert session.most_nodes > 1 << 20  # nothing is known yet
    session.score([[5, 6]], [EMPTY])
    session.keep([[]])
    size = sum(state.nbytes for states in session._states._rows[0].values() for state in states.values())
    monkeypatch.setattr(recurrent, "NODE_BYTES", 5 * size + 1)
    most = session.most_nodes
    assert 5 < most < 100 if is_known else most == 5
    session.close()
    outputs = decoded(target_of(name), requests(name, 1, 1.0), 12)
    assert outputs[0][0] == truth(name, 0)[1]
    assert outputs[0][1].num_draft_tokens <= most * outputs[0][1].num_passes + 12


@pytest.mark.parametrize("name", ["qwen3_next", "mamba2", "mamba", "zaya"])
def test_nothing_is_kept_after_a_call(name: str) -> None:
    target = target_of(name)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())  # others may warn if asked

    decoded(target, requests(name, 3, 0.6), 9)
    before = tensors()
    for _ in range(5):
        decoded(target, requests(name, 3, 0.6), 9)
    assert tensors() <= before


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("qwen3_next", ("in_proj_qkvz", "linear_attn.out_proj")),
        ("falcon_h1", ("mamba.in_proj", "mamba.out_proj")),
        ("mamba", ("x_proj", "out_proj")),
        ("kimi_linear", ("q_proj", "o_proj")),
        ("lfm2", ("conv.in_proj", "conv.out_proj")),
    ],
)
def test_projections_are_computed_for_all_nodes_at_once(name: str, ends: tuple[str, ...]) -> None:
    model, target = model_of(name), target_of(name)
    calls = {name: 0 for name, _ in model.named_modules() if name.endswith(ends)}
    session = target.open([[5, 6, 7]])
    session.score([[5, 6, 7]], [EMPTY])
    session.keep([[]])
    hooks = []
    for name in calls:

        def count(*_: Any, name: str = name) -> None:
            calls[name] += 1

        hooks.append(model.get_submodule(name).register_forward_hook(count))
    session.score([[8]], [DraftTree.of_chain([9, 10, 11, 12])])
    for hook in hooks:
        hook.remove()
    session.close()
    assert {*calls.values()} == {1}


def test_tokens_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of which the first token is right: each is read again until MAX_WAITING wait."""
    monkeypatch.setattr(plain, "MAX_WAITING", 4)
    read = list[int]()
    right = plain.PlainRow._read

    def counted(session: plain.PlainRow, tokens: list[int]) -> torch.Tensor:
        read.append(len(tokens))
        return right(session, tokens)

    monkeypatch.setattr(plain.PlainRow, "_read", counted)
    outputs = decoded(target_of("rwkv"), requests("rwkv", 2, 0.5), 3, batch_size=1)
    assert [output for output, _ in outputs] == [truth("rwkv", row)[1][: OUTPUT - row] for row in range(2)]
    assert max(read) <= 4 + 4 + 3
