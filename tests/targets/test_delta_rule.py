"""The gated delta rule over trees, against transformers' own, one token after the other."""

from __future__ import annotations

import random
from functools import wraps
from typing import Any

import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import causal_conv1d_update, torch_recurrent_gated_delta_rule

from copyspec.targets.hooks.delta_rule import CONV, RECURRENT, Paths, TreeRule, follows_rule
from copyspec.targets.hooks.recurrence import mixers
from tests.helpers import models

CHANNELS, KERNEL = 5, 4


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


@pytest.mark.parametrize("seed", range(12))
def test_every_token_is_that_of_its_path_alone(seed: int) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    rows, shared, groups, keys, values = rng.randint(1, 3), rng.choice([1, 3]), rng.choice([1, 2]), 16, 8
    heads, width = shared * groups, rng.choice([KERNEL - 1, KERNEL])
    parents, spans = random_paths(rng, rows)
    count = len(parents)
    states, inputs = normal(rows, heads, keys, values), normal(rows, CHANNELS, width)
    q, k, v = normal(count, 1, shared, keys), normal(count, 1, shared, keys), normal(count, 1, heads, values)
    # Decays of nearly nothing and of nearly all: sums of their logarithms must not overflow.
    g = -torch.rand((count, 1, heads), generator=generator) * rng.choice([0.01, 1.0, 30.0])
    beta, hidden = torch.rand((count, 1, heads), generator=generator), normal(count, CHANNELS, 1)
    weight, bias = normal(CHANNELS, KERNEL), normal(CHANNELS)

    rule = TreeRule(Paths(range(count), parents, spans, torch.device("cpu")), inputs, states)
    convolved = rule._convolve(hidden, inputs, weight, bias, "silu")
    mixed, _ = rule._recur(q, k, v, g=g, beta=beta, initial_state=states, use_qk_l2norm_in_kernel=True)

    after = dict[int, tuple[torch.Tensor, torch.Tensor]]()
    for row, span in enumerate(spans):
        for token in span:
            here = slice(token, token + 1)
            state, window = after.get(parents[token], (states[row : row + 1], inputs[row : row + 1]))
            window = window.clone()  # it is updated in place
            expected = causal_conv1d_update(hidden[here], window, weight, bias, "silu")
            torch.testing.assert_close(convolved[here], expected)
            output, state = torch_recurrent_gated_delta_rule(
                *(each[here].repeat_interleave(groups, 2) for each in (q, k)),  # older transformers share no heads
                v[here],
                g=g[here],
                beta=beta[here],
                initial_state=state,
                output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )
            torch.testing.assert_close(mixed[here], output, rtol=1e-4, atol=2e-5)
            kept = rule.state(token)
            torch.testing.assert_close(kept[CONV], window)
            torch.testing.assert_close(kept[RECURRENT], state, rtol=1e-4, atol=2e-5)
            after[token] = state, window


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("decay", [1.0, 80.0])
def test_long_paths_keep_the_precision_of_single_steps(decay: float, casts: bool) -> None:
    """Also where the sums of decays are large beside one of them, and where autocast is on, which single steps, without
    matrix products, do not notice."""
    generator, count, heads, size = torch.Generator().manual_seed(3), 500, 2, 16
    shape = (1, count, heads, size)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    strengths = torch.rand(shape[:3], generator=generator)
    g = -decay * torch.where(strengths < 0.5, strengths, 1e-6 * strengths)
    beta, state = 2.0 * torch.rand(shape[:3], generator=generator), torch.randn((1, heads, size, size))
    rule = TreeRule(Paths(range(count), range(-1, count - 1), [range(count)], state.device), torch.ones(1, 1, 1), state)
    rule._convolve(torch.ones(count, 1, 1), torch.ones(1, 1, 1), torch.ones(1, 1))
    with torch.autocast("cpu", torch.bfloat16, enabled=casts):
        mixed, _ = rule._recur(
            *(each.transpose(0, 1) for each in (q, k, v, g, beta)), state, use_qk_l2norm_in_kernel=True
        )
        after = rule.state(count - 1)[RECURRENT]
    expected, last = torch_recurrent_gated_delta_rule(
        q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    torch.testing.assert_close(mixed.transpose(0, 1), expected, rtol=0, atol=2e-6 * float(expected.abs().max()))
    torch.testing.assert_close(after, last, rtol=0, atol=2e-6 * float(last.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_convolution_rounds_as_that_of_single_tokens(dtype: torch.dtype) -> None:
    generator, count, channels = torch.Generator().manual_seed(4), 40, 64
    hidden, weight, inputs = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((count, channels, 1), (channels, KERNEL), (1, channels, KERNEL))
    )
    rule = TreeRule(Paths(range(count), range(-1, count - 1), [range(count)], hidden.device), inputs, inputs)
    convolved, window = rule._convolve(hidden, inputs, weight, None, "silu"), inputs.clone()
    expected = [causal_conv1d_update(each.unsqueeze(0), window, weight, None, "silu") for each in hidden]
    assert (convolved != torch.cat(expected)).double().mean() < 0.01


def test_a_forward_that_a_program_has_wrapped_is_not_replaced() -> None:
    """A decorator may leave the name of what it wraps, and change what that returns."""
    (_, mixer), *_ = mixers(models.tiny("qwen3_5_text"))
    assert follows_rule(mixer)
    kind: Any = type(mixer)

    class Doubled(kind):  # type: ignore[misc]
        @wraps(kind.forward)
        def forward(self, *args: Any, **named: Any) -> Any:
            return 2 * super().forward(*args, **named)

    mixer.__class__ = Doubled
    assert not follows_rule(mixer)
