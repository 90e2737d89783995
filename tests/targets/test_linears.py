"""Linear layers for few rows: PyTorch's products, the model restored, and every assumption tested."""

from __future__ import annotations

import copy
import ctypes
import sys
from runpy import run_path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.utils.prune import l1_unstructured
from transformers import LlamaConfig, LlamaForCausalLM

from copyspec.targets import cpu, wrap
from copyspec.targets.cpu import compiled, linears
from copyspec.targets.cpu.linears import ROWS, FastLinears, Forward, instructions
from copyspec.targets.cpu.packed_weights import PackedWeights
from copyspec.tree import DraftTree

PACKED = [pytest.param(False, id="in place"), pytest.param(True, id="packed")]
needs_it = pytest.mark.skipif(not instructions(), reason="not compiled for this processor")


def layer(
    outputs: int, inputs: int, dtype: torch.dtype = torch.float32, *, bias: bool = False, seed: int = 0
) -> nn.Linear:
    torch.manual_seed(seed)
    with torch.inference_mode(False):  # as a loaded model's
        return nn.Linear(inputs, outputs, bias=bias).to(dtype).requires_grad_(False)


def product(module: nn.Linear, packed: bool) -> Forward:
    """The layer's forward with the module; `packed`: on a packed copy."""
    if not packed:
        return linears._forward(module, linears._Held())
    with torch.no_grad():
        module.weight.copy_(module.weight.bfloat16())
    prepared = linears._Held(PackedWeights.of(module.weight, 1 << 30))
    assert prepared.packed_bytes
    return linears._forward(module, prepared)


@needs_it
@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(32, 2048), (192, 576), (608, 544), (96, 1536), (1056, 64), (129, 544), (2045, 64)]
)
@torch.inference_mode()
def test_products_are_those_of_torch(packed: bool, threads: int, outputs: int, inputs: int) -> None:
    inputs_given = torch.randn(max(ROWS), inputs, generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for bias in (False, True):
            module = layer(outputs, inputs, bias=bias)
            forward = product(module, packed)
            exact = linear(inputs_given.double(), module.weight.double(), None if not bias else module.bias.double())
            for rows in (1, 2, 3, 7, 8, 9, 33, max(ROWS)):
                output = forward(inputs_given[:rows])
                assert output.dtype == torch.float32 and output.shape == (rows, outputs)
                torch.testing.assert_close(output.double(), exact[:rows], rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(before)


@needs_it
@pytest.mark.parametrize("packed", PACKED)
@torch.inference_mode()
def test_a_row_is_the_same_among_others(packed: bool) -> None:
    forward = product(layer(288, 576), packed)
    states = torch.randn(max(ROWS), 576)
    together = forward(states)
    for rows in (1, 2, 5, 8, 31) if packed else (2, 5, 8, 31):
        assert torch.equal(forward(states[:rows]), together[:rows])


@needs_it
def test_a_pass_uses_them_and_the_model_is_left_as_it_came() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).eval()
    target = wrap(model)
    fast = FastLinears(model)
    assert len(fast) > 0
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    with pytest.raises(RuntimeError, match="inside"), fast.used():
        assert any("forward" in vars(module) for module in layers)
        raise RuntimeError("inside")
    prompt = list(range(3, 40))
    session = target.open([prompt])
    scored = session.score([prompt], [DraftTree([5, 6, 7], [-1, 0, -1], [0.9, 0.8, 0.1])])
    session.close()
    assert not any("forward" in vars(module) for module in layers)
    with torch.inference_mode():
        theirs = model(torch.tensor([[*prompt, 5, 6]])).logits[0, -3:]
    torch.testing.assert_close(scored[0][:3], theirs, atol=1e-4, rtol=0.05)


@needs_it
def test_what_does_not_fit_is_left_to_torch() -> None:
    class Other(nn.Linear):
        pass

    hooked = layer(256, 256)
    hooked.forward = hooked.forward  # type: ignore[method-assign]  # as accelerate does
    strided = layer(256, 256)
    strided.weight = nn.Parameter(torch.randn(256, 512)[:, ::2], requires_grad=False)
    modules = [
        layer(16, 16),
        layer(31, 4096),
        layer(512, 250),
        layer(256, 256, torch.float64),
        layer(256, 256, torch.float16),
        Other(256, 256),
        hooked,
        strided,
    ]
    assert len(FastLinears(nn.ModuleList(modules))) == 0
    assert len(FastLinears(nn.ModuleList([*modules, layer(256, 256)]))) == 1


@needs_it
@pytest.mark.parametrize("packed", PACKED)
def test_weights_may_change_under_it(packed: bool) -> None:
    module = layer(256, 256)
    forward, states = product(module, packed), torch.randn(3, 256)

    def check(x: torch.Tensor) -> None:
        torch.testing.assert_close(forward(x), linear(x, module.weight, module.bias), atol=1e-4, rtol=1e-4)

    with torch.inference_mode():
        check(states)
        module.weight.mul_(2.0)
        check(states)
        module.weight = nn.Parameter(torch.randn(128, 256), requires_grad=False)
        check(states)
        module.to(torch.bfloat16)
        check(states.bfloat16())
        module.to(torch.float64)
        check(states.double())
        check(states[:0].double())


@needs_it
def test_a_forward_that_the_program_sets_later_runs_and_stays() -> None:
    module, states = layer(256, 256), torch.randn(3, 256)
    fast = FastLinears(nn.ModuleList([module]))
    assert len(fast) == 1
    patched = module.forward = lambda x: 2 * x  # type: ignore[method-assign]  # as adapters do
    with torch.inference_mode(), fast.used():
        assert torch.equal(module(states), 2 * states)
    assert vars(module)["forward"] is patched


@needs_it
@pytest.mark.parametrize("early", [True, False])
def test_weights_that_are_no_parameters_are_left_to_torch(early: bool) -> None:
    module, states = layer(256, 256), torch.randn(3, 256)
    if early:
        l1_unstructured(module, "weight", amount=0.3)
    fast = FastLinears(nn.ModuleList([module]))
    assert len(fast) == (not early)
    if not early:
        l1_unstructured(module, "weight", amount=0.3)
    with torch.inference_mode(), fast.used():
        assert torch.equal(module(states), linear(states, module.weight))
    assert "forward" not in vars(module)


@needs_it
@pytest.mark.parametrize("early", [True, False])
def test_pruned_biases_are_left_to_torch(early: bool) -> None:
    module, states = layer(256, 256, bias=True), torch.randn(3, 256)
    if early:
        l1_unstructured(module, "bias", amount=0.3)
    fast = FastLinears(nn.ModuleList([module]))
    assert len(fast) == (not early)
    if not early:
        l1_unstructured(module, "bias", amount=0.3)
    with torch.inference_mode(), fast.used():
        assert torch.equal(module(states), linear(states, module.weight, module.bias))


@needs_it
def test_packed_weights_follow_changes_that_torch_does_not_count() -> None:
    modules = nn.ModuleList([layer(256, 256), layer(96, 1536)])
    for module in modules:
        module.weight.data.copy_(module.weight.bfloat16())
    fast = FastLinears(modules)
    assert fast.packed_bytes == 2 * (256 * 256 + 96 * 1536)
    for module in modules:
        module.weight.data.add_(
            0.5 ** torch.arange(1, 2, 1 / module.weight.numel())[: module.weight.numel()].view_as(module.weight)
        )
    fast.check()
    assert fast.packed_bytes == 0  # they are no longer bfloat16
    for module in modules:
        states = torch.randn(3, module.in_features)
        with torch.inference_mode(), fast.used():
            torch.testing.assert_close(module(states), linear(states, module.weight), atol=1e-4, rtol=1e-4)


@needs_it
@torch.inference_mode()
def test_a_copy_that_shares_the_weights_multiplies_any_number_of_tokens() -> None:
    own = nn.ModuleList([layer(256, 256), layer(96, 1536)])
    for module in own:
        module.weight.data.copy_(module.weight.bfloat16())
    lent = copy.deepcopy(own, {id(weight): weight for weight in own.parameters()})
    FastLinears(own).lend(lent)
    for module, other in zip(own, lent, strict=True):
        assert "forward" in vars(other) and "forward" not in vars(module)
        for shape in ((1,), (3, 5), (2, max(ROWS)), (1, 2 * max(ROWS) + 1)):
            tokens = torch.randn(*shape, module.in_features)
            torch.testing.assert_close(other(tokens), module(tokens), atol=1e-4, rtol=1e-4)


@needs_it
def test_what_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_packed(weight: torch.Tensor, memory: int = 1 << 30) -> bool:
        return PackedWeights.of(weight, memory) is not None

    weight = torch.randn(64, 256).bfloat16().float()
    assert is_packed(weight) and is_packed(weight, weight.nbytes // 2)
    assert not is_packed(weight, weight.nbytes // 2 - 1)
    assert is_packed(weight[:48].contiguous())  # 32 of them
    assert not is_packed(weight[:, :240].contiguous()) and not is_packed(weight[:31].contiguous())
    for place in ((0, 0), (63, 255), (31, 128)):
        other = weight.clone()
        other[place] += 2.0**-20
        assert not is_packed(other)
    with torch.inference_mode():
        assert not is_packed(weight + 0)
    monkeypatch.setattr(linears, "memory_for_packing", lambda: 0)
    module = layer(256, 256)
    module.weight.data.copy_(module.weight.bfloat16())
    assert len(FastLinears(nn.ModuleList([module]))) == 1
    assert FastLinears(nn.ModuleList([module])).packed_bytes == 0


@needs_it
def test_gradients_go_through_torch() -> None:
    module = layer(256, 256).requires_grad_(True)
    linears._forward(module, linears._Held())(torch.randn(2, 256)).sum().backward()
    assert module.weight.grad is not None


@needs_it
def test_a_wrong_result_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        instructions = staticmethod(lambda: "avx2")
        pack = staticmethod(lambda packed, weight: False)

        @staticmethod
        def linear(y: int, x: int, rows: int, *rest: object) -> None:
            ctypes.memset(y, 0, 4 * 256 * rows)

    monkeypatch.setattr(linears, "_linear", Wrong)
    assert len(FastLinears(nn.ModuleList([layer(256, 256)]))) == 0


def test_a_module_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = []
    for version in (compiled.VERSION - 1, compiled.VERSION):
        module = SimpleNamespace(VERSION=version)
        monkeypatch.setattr(cpu, "_linear", module, raising=False)
        monkeypatch.setitem(sys.modules, "copyspec.targets.cpu._linear", module)
        modules.append(run_path(compiled.__file__)["_linear"])
    assert modules == [None, cpu._linear]


@needs_it
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"rows": -1}, "rows is -1"),
        ({"x": 0}, "starts at no number"),
        ({"y": 0}, "starts at no number"),
        ({"x": 6}, "starts at no number"),
        ({"weight": np.zeros((32, 8), "f")}, "multiples of 32 and 16"),
        ({"weight": np.zeros((16, 32), "f")}, "multiples of 32 and 16"),
        ({"weight": np.zeros((48, 16), np.uint32)}, "multiples of 32 and 32"),
        ({"weight": np.zeros((32, 32), "d")}, "weight has format 'd'"),
        ({"weight": np.zeros((32, 32), np.uint16)}, "weight has format 'H', not one of 'fI'"),
        ({"weight": np.zeros(32, "f")}, "weight has 1 dimensions instead of 2"),
        ({"weight": np.zeros((32, 64), "f")[:, ::2]}, "contiguous"),
        ({"weight": None}, "bytes-like"),
        ({"bias": np.zeros(31, "f")}, "bias has 31 numbers for 32 outputs"),
        ({"bias": np.zeros(32, np.uint16)}, "bias has format 'H'"),
        ({"bias": np.zeros((1, 32), "f")}, "bias has 2 dimensions instead of 1"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_the_module_trusts_no_argument(arguments: dict[str, object], message: str) -> None:
    x, y = np.ones((3, 32), "f"), np.full((3, 32), np.nan, "f")
    fields: dict[str, object] = {
        "y": y.ctypes.data,
        "x": x.ctypes.data,
        "rows": 3,
        "weight": np.ones((32, 32), "f"),
        "bias": None,
        "threads": 1,
    }
    linears._linear.linear(*fields.values())  # type: ignore[arg-type]
    assert (y == 32).all()
    with pytest.raises((TypeError, ValueError, BufferError), match=message):
        linears._linear.linear(*{**fields, **arguments}.values())  # type: ignore[arg-type]
    assert (y == 32).all()


@needs_it
@pytest.mark.parametrize(
    ("packed", "weight", "message"),
    [
        (np.zeros((32, 16), np.uint32), np.zeros((32, 64), "f"), "shapes do not fit"),
        (np.zeros((32, 8), np.uint32), np.zeros((32, 16), "f"), "multiples of 32 and 32"),
        (np.zeros((16, 16), np.uint32), np.zeros((16, 32), "f"), "multiples of 32 and 32"),
        (np.zeros((32, 16), "f"), np.zeros((32, 32), "f"), "packed has format 'f'"),
        (np.zeros((32, 16), np.uint32), np.zeros((32, 32), np.uint32), "weight has format 'I'"),
        (np.zeros((32, 16), np.uint32), np.zeros((32, 32), "d"), "weight has format 'd'"),
        (np.zeros((32, 32), np.uint32)[:, ::2], np.zeros((32, 32), "f"), "contiguous"),
        (np.zeros((32, 16), np.uint32), None, "bytes-like"),
    ],
)
def test_packing_trusts_no_argument(packed: np.ndarray, weight: object, message: str) -> None:
    for function in (linears._linear.pack, linears._linear.holds):
        with pytest.raises((TypeError, ValueError, BufferError), match=message):
            function(packed, weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(20, 64), (31, 48), (64, 40), (95, 64)])
def test_a_weight_may_be_replaced_by_one_of_any_size(shape: tuple[int, int]) -> None:
    model = nn.Sequential(nn.Linear(64, 2079))
    fast = FastLinears(model)
    model[0].weight, model[0].bias = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(shape[0]))
    fast.check()
    tokens = torch.randn(4, shape[1])
    with torch.inference_mode(), fast.used(is_pass=False):
        torch.testing.assert_close(model(tokens), nn.functional.linear(tokens, *model[0].parameters()))
