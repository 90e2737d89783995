"""The overhead of a static pass outside the model: kernels, copies to the device, reads."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
import torch
from torch._inductor.exc import TritonMissing
from torch.utils._python_dispatch import TorchDispatchMode

from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.static import program, static_target
from copyspec.targets.static.buffers import move
from copyspec.targets.static.layout import WORD
from copyspec.targets.static.program import EnterModel
from copyspec.targets.static.settings import size_of
from copyspec.tree import DraftTree
from copyspec.verification.picking import best_picks
from tests.helpers import models

NO_KERNELS = ("empty", "view", "expand", "slice", "select", "unsqueeze", "squeeze", "transpose", "permute", "unbind")
NO_KERNELS += ("_unsafe_view", "as_strided", "detach", "alias", "t", "narrow", "new_empty", "lift_fresh")


class Kernels(TorchDispatchMode):
    """Counts operators outside the model that are neither views nor allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.depth = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[1].split(".")[0]
        if not self.depth and name not in NO_KERNELS:
            self.outside.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("attention", "most"), [("tree", 14), ("masks", 32)])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(("rows", "layers"), [(1, 2), (8, 2), (32, 2), (1, 8)])
def test_kernels_outside_the_model(
    rows: int, layers: int, moved: bool, attention: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Kernels()
    # On a CPU, attention reads the whole pool; on a GPU, its kernel does not.
    monkeypatch.setattr(program, "kernels_run", lambda device: attention == "tree")
    monkeypatch.setattr(program, "move", lambda *places, by_kernel: move(*places))
    make = static_target.enter_causal

    def enter_causal(*arguments: Any) -> EnterModel:
        enter = make(*arguments)

        def counted(*inputs: Any) -> torch.Tensor:
            kernels.depth += 1
            try:
                return enter(*inputs)
            finally:
                kernels.depth -= 1

        return counted

    monkeypatch.setattr(static_target, "enter_causal", enter_causal)
    model = models.tiny("llama", num_hidden_layers=layers)
    prompts = [[5 + row, 6, 7] for row in range(rows)]
    options = StaticOptions(use="always", attention=attention)  # type: ignore[arg-type]
    session = wrap(model, static=options).open(prompts)
    tree = DraftTree([20, 21, 22], [-1, 0, -1], [0.5] * 3, [None] * 3)
    session.score(prompts, [tree] * rows)
    session.keep([[2 if moved else 0]] * rows)
    with kernels:
        logits = session.score([[9]] * rows, [tree] * rows)
        best_picks(logits)
    assert kernels.outside.count("copy_") == 2, "what was laid out, and the places that are written to"
    assert kernels.outside.count("_local_scalar_dense") == 0
    words = -(-size_of(4 * rows) // WORD)
    assert len(kernels.outside) <= most + 8 * words * (attention == "masks"), Counter(kernels.outside)
    session.close()


@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")  # raised by torch on Python 3.13.0 only
def test_a_pass_compiles_as_one_graph() -> None:
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    options = StaticOptions(
        use="always", compile=True, compiler="eager"
    )  # compiled as one graph, so that a graph break raises an error
    session = wrap(models.tiny("llama"), static=options).open([[5, 6, 7]])
    for token in (9, 11):
        session.score([[5, 6, 7] if token == 9 else [token]], [DraftTree([20, 21], [-1, 0], [0.5] * 2, [None] * 2)])
        session.keep([[]])
    assert session.runner == "compiled" and graphs["unique_graphs"] == before + 1
    session.close()


def without_triton(graph: object, inputs: object) -> None:
    raise TritonMissing(None)


@pytest.mark.parametrize(("name", "compiler"), [("bloom", "eager"), ("llama", without_triton)])
def test_a_model_that_cannot_be_compiled_runs_without(
    name: str, compiler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model, tree = models.tiny(name), DraftTree([20, 21], [-1, 0], [0.5] * 2, [None] * 2)
    scores = []
    plain = StaticOptions(use="always", fuse=False)
    for options in (StaticOptions(use="always", compile=True, compiler=compiler), plain):
        session = wrap(model, static=options).open([[5, 6, 7]])
        with caplog.at_level(logging.WARNING, "copyspec"):
            scores.append(session.score([[5, 6, 7]], [tree])[0].clone())
        assert session.runner == "static"
        session.close()
    assert torch.equal(*scores)
    assert ["cannot be compiled" in record.message for record in caplog.records] == [True]
