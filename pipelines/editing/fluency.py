"""How likely texts are to the language model that a corrector was made from: a second opinion on its edits."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from copyspec.models.adapters import LowRank
from copyspec.targets.hooks.modules import cache_argument

if TYPE_CHECKING:
    from copyspec import Engine

CONTEXT_TOKENS = 80
"""Tokens before a text that are read with it."""

REMEMBERED = 1024  # texts; editors ask about the same ones again after every change


class BaseModel:
    """The model of an engine without the adapter that is merged into it, whose weights it shares."""

    def __init__(self, engine: Engine, adapter: LowRank) -> None:
        model = engine.model
        # The copy has modules of its own: with hooks, the engine's would compute as the base in other threads, too.
        self._model = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
        for name, (a, b) in adapter.parts.items():
            module = self._model.get_submodule(name.removesuffix(".weight"))
            weight = self._model.get_parameter(name)
            down, up = a.to(weight), adapter.scale * b.to(weight)
            module.register_forward_hook(partial(_without, down, up))
        self._run = engine.lend(self._model)
        self._encode = engine.codec.encode
        self._cache = cache_argument(list(inspect.signature(self._model.forward).parameters))
        self._start = engine.tokenizer.bos_token_id
        self.likelihoods = lru_cache(REMEMBERED)(self._likelihoods)

    def _likelihoods(self, before: str, texts: Sequence[str]) -> list[float]:
        """The log-probability, in nats, of each text after another one, less that of the tokens they begin with."""
        ending = before.rstrip(" ")
        answers = [self._encode(before[len(ending) :] + text).ids for text in texts]  # tokens begin with spaces
        same = next((at for at, ids in enumerate(zip(*answers, strict=False)) if len({*ids}) > 1), 0)
        lead = [self._start, *self._encode(ending).ids[-CONTEXT_TOKENS:], *answers[0][:same]]
        answers = [ids[same:] for ids in answers]
        return self._run(partial(self._read, lead, answers))

    @torch.inference_mode()
    def _read(self, lead: Sequence[int], answers: Sequence[Sequence[int]]) -> list[float]:
        """The log-probabilities of token sequences after `lead`."""
        longest = max(map(len, answers))
        labels = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in answers], device=self._model.device)
        cache = DynamicCache()
        named: dict[str, Any] = {self._cache: cache, "use_cache": True}
        first = self._model(input_ids=labels.new_tensor([lead]), logits_to_keep=1, **named)
        cache.batch_repeat_interleave(len(answers))
        rest = self._model(input_ids=labels, **named)  # a row's padding comes last, where no token before sees it
        rows = (torch.cat((first.logits[0], row)) for row in rest.logits.unbind())
        return [_likelihood(row, labels.new_tensor(ids)) for row, ids in zip(rows, answers, strict=True)]


def _likelihood(logits: torch.Tensor, ids: torch.Tensor) -> float:
    """The log-probability, in nats, of the tokens `ids`, [T], by logits of [T or more, V]."""
    logits = logits[: len(ids)].float()
    return float((logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)).sum())


def _without(down: torch.Tensor, up: torch.Tensor, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """The output of a linear layer without an update of its weight by up @ down, of [out, rank] and [rank, in]."""
    tokens: torch.Tensor = inputs[0]
    return output - tokens @ down.T @ up.T
