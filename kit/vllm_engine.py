"""A miniature vLLM engine: a runner that creates a proposer, rows that change slots, requests that come and go.

The "model" of a request is its script: the tokens that it generates, whatever is drafted. As in vLLM, the runner
verifies the chain drafted for a row, adds the model's own token, and passes only tokens to the proposer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

MAX_LENGTH = 256


@dataclass
class Parameters:
    """Stands in for `vllm.SamplingParams`."""

    max_tokens: int | None = 64
    min_tokens: int = 0
    extra_args: dict[str, Any] | None = None
    temperature: float = 0.0
    seed: int | None = None

    def clone(self) -> Parameters:
        return replace(self, extra_args=None if self.extra_args is None else dict(self.extra_args))


@dataclass
class Request:
    """Stands in for vLLM's `CachedRequestState`."""

    prompt_token_ids: list[int]
    script: list[int]
    sampling_params: Parameters
    output: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    unread: int = 0  # remaining steps until its prompt is read
    drafted: int = 0
    steps: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)


class Runner:
    """Stands in for vLLM's `GPUModelRunner`."""

    def __init__(self, config: Any, *, hidden: bool = False) -> None:
        from copyspec.integrations.vllm import Proposer

        self.effective_drafter_max_model_len = MAX_LENGTH
        self.drafter = Proposer(config)
        if hidden:  # without the attributes by which the proposer would recognise it
            self.load_model(self.drafter)
        self.requests: dict[str, Request] = {}
        self.input_batch = SimpleNamespace(req_ids=[])
        if not hidden:
            self.load_model(self.drafter)

    def load_model(self, drafter: Any) -> None:
        drafter.load_model(None)

    def add(self, key: str, request: Request) -> Request:
        self.requests[key] = request
        self.input_batch = SimpleNamespace(req_ids=[*self.input_batch.req_ids, key])  # recreated, as vLLM may do
        return request

    def remove(self, key: str) -> None:
        """Remove a request that ended or was aborted; the last row moves into its slot."""
        del self.requests[key]
        ids = self.input_batch.req_ids
        slot, last = ids.index(key), ids.pop()
        if last != key:
            ids[slot] = last

    def step(self) -> list[list[int]]:
        """Run one pass over all rows; return the tokens sampled in each."""
        sampled = [self._sample(self.requests[key]) for key in self.input_batch.req_ids]
        ids = np.zeros((len(sampled), MAX_LENGTH + 8), dtype=np.int32)
        totals = np.zeros(len(sampled), dtype=np.int32)
        for slot, key in enumerate(self.input_batch.req_ids):
            request = self.requests[key]
            tokens = request.prompt_token_ids + request.output
            ids[slot, : len(tokens)], totals[slot] = tokens, len(tokens)
        drafts = self.drafter.propose(sampled, totals, ids, slot_mappings=None)
        assert len(drafts) == len(sampled)
        for key, draft in zip(self.input_batch.req_ids, drafts, strict=True):
            self.requests[key].drafts = draft
            self.requests[key].drafted += len(draft)
        for key in [key for key, request in self.requests.items() if len(request.output) == len(request.script)]:
            self.remove(key)
        return drafts

    def _sample(self, request: Request) -> list[int]:
        if request.unread:
            request.unread -= 1
            return []
        request.steps += 1
        rest = request.script[len(request.output) :]
        count = 0
        while count < len(request.drafts) and count + 1 < len(rest) and request.drafts[count] == rest[count]:
            count += 1
        sampled = rest[: count + 1]
        request.output += sampled
        return sampled


@contextmanager
def fake_vllm(tokenizer: Any, *, broken: bool = False) -> Iterator[None]:
    """Install modules under vLLM's names. `broken`: its sampler loses the parameters of draft tokens, as on a CPU."""
    import torch

    def expand(x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, *replace: int) -> torch.Tensor:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
        return x.new_full((num_tokens,), -7) if broken else torch.repeat_interleave(x, counts)

    names = ("vllm", "vllm.tokenizers", "vllm.v1", "vllm.v1.sample", "vllm.v1.sample.rejection_sampler")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, name, ModuleType(name))
        sys.modules["vllm"].__version__ = "0.32.0"  # type: ignore[attr-defined]
        sys.modules["vllm.tokenizers"].cached_tokenizer_from_config = lambda model: tokenizer  # type: ignore[attr-defined]
        sys.modules["vllm.v1.sample.rejection_sampler"].expand_batch_to_tokens = expand  # type: ignore[attr-defined]
        yield


def engine_config(tokens: int = 16, **additional: Any) -> Any:
    """Stands in for `VllmConfig`."""
    model = SimpleNamespace(
        max_model_len=MAX_LENGTH,
        get_vocab_size=lambda: 259,
        try_get_generation_config=lambda: {"eos_token_id": 0},
    )
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=tokens),
        model_config=model,
        additional_config={"copyspec": {"adaptive": False, **additional}},
    )
