"""How likely texts are to the language model that a corrector was made from: a second opinion on its edits."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from copyspec.models.adapters import LowRank

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
            weight = module.weight
            down, up = a.to(weight), adapter.scale * b.to(weight)
            module.register_forward_hook(
                lambda _module, inputs, output, down=down, up=up: output - inputs[0] @ down.T @ up.T
            )
        self._encode = engine.codec.encode
        self._start = engine.tokenizer.bos_token_id
        self.likelihoods = lru_cache(REMEMBERED)(self._likelihoods)

    def _likelihoods(self, before: str, texts: Sequence[str]) -> list[float]:
        """The log-probability, in nats, of each text after another one."""
        import torch

        ending = before.rstrip(" ")
        lead = [self._start, *self._encode(ending).ids[-CONTEXT_TOKENS:]]
        answers = [self._encode(before[len(ending) :] + text).ids for text in texts]  # tokens begin with spaces
        longest = max(map(len, answers))
        rows = torch.tensor([[*lead, *ids, *[0] * (longest - len(ids))] for ids in answers], device=self._model.device)
        with torch.inference_mode():  # a row's padding comes after it, where causal attention does not see it
            logits = self._model(input_ids=rows, use_cache=False, logits_to_keep=longest + 1).logits[:, :-1]
        labels = rows[:, len(lead) :]
        chosen = logits.float().log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return [float(row[: len(ids)].sum()) for row, ids in zip(chosen, answers, strict=True)]
