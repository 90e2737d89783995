"""The gated delta rule over trees, against transformers' own, one token after the other."""

from __future__ import annotations

import random

import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import causal_conv1d_update, torch_recurrent_gated_delta_rule

from copyspec.targets.hooks.delta_rule import CONV, RECURRENT, Paths, TreeRule

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
                *(q[here], k[here], v[here]),
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
