"""What happens to captured programs when the model, its memory or its surroundings change."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.options import StaticOptions
from copyspec.targets.selftest import checking as selftest
from copyspec.targets.static.fused_layers import fused, fused_layers
from copyspec.targets.static.running import ProgramRunner
from copyspec.targets.static.static_session import StaticSession, together
from copyspec.tree import EMPTY, DraftTree
from tests.helpers import models
from tests.helpers.static import CAPTURED, GRAPHS, expected, opened, padded_passes, scored, static_target

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
            found = second.score([[9]], [EMPTY])
            second.trim([3])
        assert torch.equal(found[0], expected(target)[0])
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


def test_a_model_that_was_moved_from_its_gpu_leaves_no_arena_there() -> None:
    target = static_target()
    opened(target).close()
    assert target.arenas._free
    target.options = StaticOptions()  # which makes no static passes on a CPU
    weight = target.model.lm_head.weight  # type: ignore[union-attr]
    weight.data = weight.detach().clone()  # type: ignore[operator, union-attr, assignment]
    session = target.open([[5, 6, 7]])
    assert not isinstance(session, StaticSession) and not target.arenas._free
    session.close()


def test_layers_of_a_refused_model_are_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    target = static_target("mpt")
    first = target.open([[5, 6, 7]])
    assert target._refused is not None
    monkeypatch.setattr(target, "_fusible", lambda: pytest.fail("tried"))
    weight = target.model.lm_head.weight  # type: ignore[union-attr]
    weight.data = weight.detach().clone()  # type: ignore[operator, union-attr, assignment]
    for session in (target.open([[5, 6, 7]]), first):
        session.close()


@torch.inference_mode()
def test_rare_sizes_share_a_padded_program_and_frequent_ones_get_their_own() -> None:
    target = static_target()
    session = target.open([[5, 6, 7]] * 3)
    assert isinstance(session, StaticSession)
    session.score([[5, 6, 7]] * 3, [EMPTY] * 3)
    session.keep([[]] * 3)
    assert session._arena is not None
    steps = session._arena.runner._steps
    tree = DraftTree([8, 9], [-1, 0], [0.5] * 2, [None] * 2)
    for trees in ([EMPTY] * 3, [tree, EMPTY, tree]):
        for _ in range(padded_passes(4, 1) - 2):
            scores = session.score([[9]] * 3, trees)
            session.trim([3] * 3)
            assert all(torch.allclose(row[:1], expected(target)[0], atol=1e-5) for row in scores)
    assert set(steps) == {(4, 33, 512)} and session.runner == "graph"
    for _ in range(4):
        session.score([[9]] * 3, [EMPTY] * 3)
        session.trim([3] * 3)
    assert set(steps) == {(4, 33, 512), (4, 1, 512)} and session.runner == "graph"
    session.close()


@pytest.mark.parametrize(("cached", "rows"), [(505, 1), (3, 64)], ids=["near the end", "too many rows"])
@torch.inference_mode()
def test_a_padded_program_has_room_and_is_not_too_large(cached: int, rows: int) -> None:
    runner = ProgramRunner(lambda size: pytest.fail("not run"), CPU, GRAPHS, nullcontext)
    assert runner.choose((1, 1, 512), cached, rows) == (1, 1, 512)
    assert runner.choose((1, 1, 1024), 495, 4) == (4, 33, 1024)
    assert runner.choose((1, 1, 512), 495, 4) == (4, 9, 512) and runner.choose((1, 1, 1024), 3, 32) == (32, 9, 1024)


@torch.inference_mode()
def test_a_rare_size_runs_in_the_smallest_captured_program_that_holds_it() -> None:
    target = static_target()
    session = target.open([[5, 6, 7]] * 8)
    assert isinstance(session, StaticSession)
    tree = DraftTree([8, 9], [-1, 0], [0.5] * 2, [None] * 2)

    def scored_rows(rows: int, passes: int) -> None:
        for _ in range(passes):
            scores = session.score([[9]] * rows, [tree] * rows)
            session.trim([3] * rows)
            assert all(torch.allclose(row[:1], expected(target)[0], atol=1e-5) for row in scores)

    session.score([[5, 6, 7]] * 8, [EMPTY] * 8)
    session.keep([[]] * 8)
    scored_rows(8, padded_passes(8, 9) + 2)
    session.select(range(4))
    scored_rows(4, padded_passes(4, 9, 9, 8) + 2)
    assert session._arena is not None
    runner = session._arena.runner
    assert {(8, 33, 512), (8, 9, 512), (4, 9, 512)} == set(runner._steps)
    assert runner.choose((2, 9, 512), 3, 8) == (4, 9, 512) == runner.choose((2, 1, 512), 3, 8)
    assert runner.choose((1, 17, 512), 3, 8) == (8, 33, 512)
    assert runner.choose((1, 65, 512), 3, 8) == (1, 65, 512), "eight rows of 129 columns are too many"
    session.close()


def test_prompts_are_grouped_by_length() -> None:
    assert together([0, 1, 2, 3], [100, 90, 400, 99]) == [[0, 1, 2, 3]]
    assert together([4, 1], [0, 700, 0, 0, 690]) == [[4, 1]] and together([0, 1, 2], [700] * 3) == [[0, 1], [2]]
    assert together([0, 1], [3000, 3000]) == [[0], [1]] and together([], []) == []


@torch.inference_mode()
def test_times_of_prompts_read_by_other_passes_or_of_captures_are_not_representative() -> None:
    target = static_target()
    session = target.open([[5] * 200])
    assert isinstance(session, StaticSession)
    settled = []
    for chain in ([5] * 200, [9], [9]):  # read by a regular session; captured; replayed
        session.score([chain], [EMPTY])
        session.keep([[]])
        settled.append(session.is_settled)
    assert settled == [False, False, True]
    session.close()
