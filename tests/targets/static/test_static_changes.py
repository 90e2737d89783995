"""What happens to captured programs when the model, its memory or its surroundings change."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.options import StaticOptions
from copyspec.targets.selftest import checking as selftest
from copyspec.targets.static import static_target as static_target_module
from copyspec.targets.static.fused_layers import fused, fused_layers
from copyspec.targets.static.layout import Shape
from copyspec.targets.static.running import ProgramRunner
from copyspec.targets.static.static_session import StaticSession
from copyspec.tree import EMPTY, DraftTree
from tests.helpers import models
from tests.helpers.cpu_graph import CpuGraph
from tests.helpers.static import CAPTURED, expected, opened, scored, static_target

CPU = torch.device("cpu")


@torch.inference_mode()
def test_passes_captured_under_another_adapter_are_not_replayed() -> None:
    target = static_target()
    layer = target.model.model.layers[0].self_attn  # type: ignore[union-attr, index]
    layer.v_proj = adapter = models.Adapted(layer.v_proj)  # type: ignore[union-attr, arg-type, assignment]
    stream = opened(target, passes=0)
    adapter.disable_adapters = True  # in the middle of a call, whose passes must not be captured now
    for _ in range(4):
        scored(stream)
    assert stream.runner == "static"
    stream.close()
    adapter.disable_adapters = False
    again = opened(target)
    assert torch.allclose(scored(again), expected(target), atol=1e-5) and again.runner == "graph"
    adapter.disable_adapters = True
    other = opened(target)  # while the first one is open
    assert torch.allclose(scored(other), expected(target), atol=1e-5)
    assert torch.allclose(scored(again), expected(target), atol=1e-2) is False  # its cache is the first adapter's
    again.close()
    other.close()


@torch.inference_mode()
def test_modules_replaced_while_a_session_is_open_are_run() -> None:
    target = static_target()
    first = opened(target)
    assert len(target._fused) == 2
    mlp = target.model.model.layers[1].mlp  # type: ignore[union-attr, index]
    mlp.up_proj = models.Adapted(mlp.up_proj)  # type: ignore[union-attr, arg-type, assignment]
    second = opened(target)
    assert len(target._fused) == 1  # the other layer runs as it is
    assert torch.allclose(scored(second), expected(target), atol=1e-5)
    first.close()
    second.close()


def test_forwards_of_somebody_else_are_left_in_place() -> None:
    model = models.tiny("llama")
    layers, layer = fused_layers(model, CPU), model.model.layers[0]  # type: ignore[union-attr, index]
    theirs = layer.forward  # type: ignore[union-attr]
    vars(layer)["forward"] = theirs
    with fused(layers):
        assert vars(layer)["forward"] is not theirs
    assert vars(layer)["forward"] is theirs and "forward" not in vars(model.model.layers[1])  # type: ignore[union-attr, index]


def test_hooks_that_transformers_leaves_behind_change_nothing() -> None:
    target = static_target()
    target.model(torch.tensor([[5, 6]]), output_hidden_states=True, output_attentions=False)
    session = target.open([[5, 6, 7]])
    assert isinstance(session, StaticSession) and len(target._fused) == 2
    session.close()


def test_autocast_has_dynamic_passes() -> None:
    target = static_target()
    with torch.autocast("cpu", torch.bfloat16):
        session = target.open([[5, 6, 7]])
        assert not isinstance(session, StaticSession)
        session.close()


@torch.inference_mode()
def test_under_autocast_passes_are_dynamic_beside_static_ones() -> None:
    target = static_target()
    first = opened(target)
    assert first.runner == "graph"
    with torch.autocast("cpu", torch.bfloat16):
        second = target.open([[5, 6, 7]])
        assert not isinstance(second, StaticSession)
        second.score([[5, 6, 7]], [EMPTY])
        second.keep([[]])
        for _ in range(CAPTURED):
            scores = second.score([[9]], [EMPTY])
            second.trim([3])
        assert torch.equal(scores[0], expected(target)[0])
        second.close()
    assert torch.allclose(scored(first), expected(target), atol=1e-5) and first.runner == "graph"
    first.close()


@pytest.mark.parametrize("attention", ["masks", "tree"])
def test_unknown_architectures_are_tested_once_for_each_state(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "KNOWN", frozenset())
    tested, attempt = list[str](), selftest.attempt

    def counted(make: selftest.MakeTarget, model: PreTrainedModel, *, kind: str) -> str | None:
        tested.append(kind)
        return attempt(make, model, kind=kind)

    monkeypatch.setattr(selftest, "attempt", counted)
    target = static_target(options=StaticOptions(use="always", attention=attention))  # type: ignore[arg-type]
    kinds = ["static masks"] if attention == "masks" else ["static masks", "static tree"]
    for count in (1, 2):
        for _ in range(3):
            target.open([[5, 6, 7]]).close()
        assert tested == kinds * count
        target.model.lm_head.weight.data = target.model.lm_head.weight.clone()  # type: ignore[union-attr, operator]


def test_a_model_that_was_moved_from_its_gpu_leaves_no_pool_there() -> None:
    target = static_target()
    opened(target).close()
    assert target.pools._free
    target.options = StaticOptions()  # which makes no static passes on a CPU
    weight = target.model.lm_head.weight  # type: ignore[union-attr]
    weight.data = weight.detach().clone()  # type: ignore[operator, union-attr, assignment]
    session = target.open([[5, 6, 7]])
    assert not isinstance(session, StaticSession) and not target.pools._free
    session.close()


def test_layers_of_a_refused_model_are_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    target = static_target("gpt2")
    monkeypatch.setattr(static_target_module, "refusal", lambda target: "GPT2LMHeadModel is refused")
    first = target.open([[5, 6, 7]])
    assert target._refused is not None
    monkeypatch.setattr(target, "_fusible", lambda: pytest.fail("tried"))
    weight = target.model.lm_head.weight  # type: ignore[union-attr]
    weight.data = weight.detach().clone()  # type: ignore[operator, union-attr, assignment]
    for session in (target.open([[5, 6, 7]]), first):
        session.close()


@torch.inference_mode()
def test_passes_of_one_size_share_a_program_whatever_rows_they_have() -> None:
    """At most as many programs as there are sizes, and none that is captured twice."""
    target = static_target(options=StaticOptions(use="always", attention="tree", new_graph=CpuGraph))
    session, draw = target.open([[5, 6, 7]], 20), random.Random(0)
    assert isinstance(session, StaticSession)
    captured, capture = list[Shape](), ProgramRunner._capture

    def counted(runner: ProgramRunner, shape: Shape, *step: Any) -> None:
        captured.append(shape)
        capture(runner, shape, *step)

    unread, rows = [[5, 6, 7]], [1, 2, 3, 5, 8, 13]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ProgramRunner, "_capture", counted)
        for _ in range(60):
            if draw.random() < 0.3:
                wanted = draw.choice(rows)
                left = draw.sample(range(len(unread)), min(wanted, len(unread)))
                session.select(left)
                fresh = [[9] * draw.randrange(1, 30) for _ in range(wanted - len(left))]
                session.add(fresh, 20)
                unread = [*[unread[row] for row in left], *fresh]
            trees = [DraftTree.of_chain([8] * draw.choice([0, 0, 1, 4, 9])) for _ in unread]
            session.score(unread, trees)
            session.keep([()] * len(unread))
            unread = [[9] for _ in unread]
    sizes = {shape.tokens for shape in captured}
    assert len(sizes) > 3 and len(captured) <= 16 * (1 + session.pool.size.pages.bit_length()), captured
    in_pool = [shape for shape, step in session.pool.runner._steps.items() if step.graph is not None]
    assert len(in_pool) <= 16 and set(in_pool) <= set(captured)
    session.close()


@torch.inference_mode()
def test_times_of_prompts_read_by_other_passes_or_of_captures_are_not_representative() -> None:
    target = static_target()
    session = target.open([[5] * 200])
    assert isinstance(session, StaticSession)
    settled = []
    for chain in ([5] * 200, [9], [9], [9], [5] * 600):  # twice as they are, captured, replayed; in pieces
        session.score([chain], [EMPTY])
        session.keep([[]])
        settled.append(session.is_settled)
    assert settled == [False, False, False, True, False]
    session.close()
