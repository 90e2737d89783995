"""Mixers over trees, against transformers' own functions, one token after the other."""

from __future__ import annotations

import random
from functools import wraps
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.mamba.modeling_mamba import mamba_selective_state_update
from transformers.models.mamba2.modeling_mamba2 import mamba2_selective_state_update
from transformers.models.qwen3_5.modeling_qwen3_5 import causal_conv1d_update, torch_recurrent_gated_delta_rule

from copyspec.targets.hooks.recurrence import mixers
from copyspec.targets.recurrent import paths as paths_module
from copyspec.targets.recurrent import recurrences
from copyspec.targets.recurrent.paths import Paths
from copyspec.targets.recurrent.recurrences import RULES, After
from copyspec.targets.recurrent.tree_mixers import CONV, TreeRun, takes_trees
from tests.helpers import models

CHANNELS, KERNEL = 5, 4
KEYS, VALUES = 16, 8
OWN: dict[str, Any] = {
    rule.__name__: rule
    for rule in (
        torch_recurrent_gated_delta_rule,
        recurrent_kimi_delta_attention,
        mamba2_selective_state_update,
        mamba_selective_state_update,
    )
}
DELTA = ("torch_recurrent_gated_delta_rule", "recurrent_kimi_delta_attention")


def random_paths(rng: random.Random, rows: int) -> tuple[list[int], list[range]]:
    """Parents of the tokens of some rows, chains and trees, and the tokens of each row; a row may have none."""
    parents, spans = list[int](), list[range]()
    for row in range(rows):
        first, branches = len(parents), rng.choice([0.0, 0.2])
        for token in range(first, first + rng.randint(0 if row else 1, 40)):
            is_root = token == first or rng.random() < branches / 2
            last = rng.randrange(first, token) if not is_root and rng.random() < branches else token - 1
            parents.append(-1 if is_root else last)
        spans.append(range(first, len(parents)))
    return parents, spans


class Case:
    """Random inputs of a recurrence. Decays are of nearly nothing or of nearly all: sums of their logarithms must not
    overflow."""

    def __init__(self, name: str, count: int, rows: int, strength: float, seed: int, groups: int = 2) -> None:
        self.name, self._generator, heads, shared = name, torch.Generator().manual_seed(seed), 2 * groups, 2
        self.named: dict[str, Any]
        if name in DELTA:
            shared = heads if name == "recurrent_kimi_delta_attention" else shared
            self.states = self.normal(rows, heads, KEYS, VALUES)
            by_channel = () if name == "torch_recurrent_gated_delta_rule" else (KEYS,)
            self.tokens = {
                "query": self.normal(count, 1, shared, KEYS),
                "key": self.normal(count, 1, shared, KEYS),
                "value": self.normal(count, 1, heads, VALUES),
                "g": -strength * self.uniform(count, 1, heads, *by_channel),
                "beta": self.uniform(count, 1, heads),
            }
            self.named = {"use_qk_l2norm_in_kernel": True}
            return
        several = name == "mamba2_selective_state_update"
        inner = (heads, VALUES) if several else (VALUES,)
        self.states = self.normal(rows, *inner, KEYS)
        self.tokens = {
            "hidden_states": self.normal(count, *inner),
            "dt": self.normal(count, *inner[:1], *[1] * several).expand(count, *inner),
            "B": self.normal(count, *[shared] * several, KEYS),
            "C": self.normal(count, *[shared] * several, KEYS),
            "z": self.normal(count, *inner),
        }
        decay = -strength * (self.uniform(heads, 1, 1).expand(*inner, KEYS) if several else self.uniform(*inner, KEYS))
        bias = self.normal(inner[0], *[1] * several).expand(inner)
        self.named = {"A": decay, "D": self.normal(*inner), "dt_bias": bias, "dt_softplus": True}

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self._generator)

    def at_once(self, paths: Paths) -> tuple[torch.Tensor, After]:
        """The outputs of all tokens, and the states."""
        state = "initial_state" if self.name in DELTA else "state"
        result, after = RULES[self.name](
            nn.Identity(), OWN[self.name], paths, **{state: self.states}, **self.tokens, **self.named
        )
        return result[0] if self.name in DELTA else result, after

    def step(self, state: torch.Tensor, here: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The output of one token, and the state after it, by transformers' own function."""
        tokens, state = {name: tensor[here] for name, tensor in self.tokens.items()}, state.clone()
        if self.name not in DELTA:
            return OWN[self.name](state, **tokens, **self.named), state  # the state is updated in place
        groups = self.states.shape[1] // tokens["key"].shape[2]  # older transformers share no heads
        tokens |= {name: tokens[name].repeat_interleave(groups, 2) for name in ("query", "key")}
        output, state = OWN[self.name](**tokens, initial_state=state, output_final_state=True, **self.named)
        return output, state


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("seed", range(8))
def test_every_token_is_that_of_its_path_alone(seed: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    rows = rng.randint(1, 3)
    parents, spans = random_paths(rng, rows)
    monkeypatch.setattr(recurrences, "PIECE_BYTES", rng.choice([1, 1 << 14, 1 << 26]))
    monkeypatch.setattr(paths_module, "TOGETHER", rng.choice([1, 256]))
    case = Case(name, len(parents), rows, rng.choice([0.01, 1.0, 30.0]), seed, rng.choice([1, 2]))
    mixed, state_after = case.at_once(Paths(range(len(parents)), parents, spans, torch.device("cpu")))
    after = dict[int, torch.Tensor]()
    for row, span in enumerate(spans):
        for token in span:
            here = slice(token, token + 1)
            output, state = case.step(after.get(parents[token], case.states[row : row + 1]), here)
            torch.testing.assert_close(mixed[here], output, rtol=1e-4, atol=2e-5)
            torch.testing.assert_close(state_after(token), state[0], rtol=1e-4, atol=2e-5)
            after[token] = state


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("decay", [1.0, 80.0])
@pytest.mark.parametrize("name", OWN)
def test_long_paths_keep_the_precision_of_single_steps(name: str, decay: float, casts: bool) -> None:
    """Also where the sums of decays are large beside one of them, and where autocast is on, which single steps of a
    delta rule, without matrix products, do not notice."""
    count = 300
    case = Case(name, count, 1, decay, 3)
    strong = case.uniform(count) < 0.5
    for key in ("g", "dt"):
        if key in case.tokens:
            shape = (count, *[1] * (case.tokens[key].dim() - 1))
            case.tokens[key] = torch.where(strong.view(shape), case.tokens[key], 1e-6 * case.tokens[key])
    with torch.autocast("cpu", torch.bfloat16, enabled=casts):
        paths = Paths(range(count), range(-1, count - 1), [range(count)], torch.device("cpu"))
        mixed, state_after = case.at_once(paths)
        last = state_after(count - 1)
    state, outputs = case.states, list[torch.Tensor]()
    for token in range(count):
        output, state = case.step(state, slice(token, token + 1))
        outputs.append(output)
    if not casts or name in DELTA:
        expected = torch.cat(outputs)
        torch.testing.assert_close(mixed, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))
    torch.testing.assert_close(last, state[0], rtol=0, atol=2e-6 * float(state.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_convolution_is_that_of_single_tokens(dtype: torch.dtype) -> None:
    """In half precision it rounds alike."""
    rng, generator, rows = random.Random(4), torch.Generator().manual_seed(4), 3
    parents, spans = random_paths(rng, rows)
    hidden, weight, inputs = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((len(parents), CHANNELS, 1), (CHANNELS, KERNEL), (rows, CHANNELS, KERNEL))
    )
    run = TreeRun(Paths(range(len(parents)), parents, spans, hidden.device))
    convolved, windows, differ = run._convolve(hidden, inputs, weight, None, "silu"), dict[int, torch.Tensor](), 0
    for row, span in enumerate(spans):
        for token in span:
            window = windows.get(parents[token], inputs[row : row + 1]).clone()  # it is updated in place
            expected = causal_conv1d_update(hidden[token : token + 1], window, weight, None, "silu")
            differ += int((convolved[token] != expected[0]).sum())
            torch.testing.assert_close(convolved[token], expected[0])
            assert run.state(token, {CONV: window})[CONV].equal(window)
            windows[token] = window
    assert dtype == torch.float32 or differ < 0.01 * convolved.numel()


@pytest.mark.parametrize("name", [*DELTA, "mamba2_selective_state_update"])
def test_memory_between_tokens_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 tokens, no tensor that is made on the way is larger than a piece, or than what the tokens themselves and
    one head's products take."""
    count, sizes = 300, list[int]()
    monkeypatch.setattr(recurrences, "PIECE_BYTES", 1 << 16)
    case = Case(name, count, 1, 1.0, 0)
    exponential = torch.Tensor.exp

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return exponential(tensor)

    monkeypatch.setattr(torch.Tensor, "exp", counted)
    case.at_once(Paths(range(count), range(-1, count - 1), [range(count)], torch.device("cpu")))
    assert max(sizes, default=0) <= count * count


@pytest.mark.parametrize("name", ["qwen3_5_text", "mamba2", "mamba", "lfm2"])
def test_a_forward_that_a_program_has_wrapped_is_not_replaced(name: str) -> None:
    """A decorator may leave the name of what it wraps, and change what that returns."""
    (_, mixer), *_ = mixers(models.tiny(name))
    assert takes_trees(mixer)
    kind: Any = type(mixer)

    class Doubled(kind):  # type: ignore[misc]
        @wraps(kind.forward)
        def forward(self, *args: Any, **named: Any) -> Any:
            return 2 * super().forward(*args, **named)

    mixer.__class__ = Doubled
    assert not takes_trees(mixer)
