"""The start-up self-test: does this architecture score a tree like each of its paths alone?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from copyspec.targets.facts import masked_attention, read_device
from copyspec.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Target

# fmt: off
KNOWN = frozenset((
    "bart", "biogpt", "bloom", "codegen", "cohere", "cohere2", "deepseek_v3", "ernie4_5", "exaone4", "falcon",
    "gemma", "gemma2", "gemma3_text", "glm4", "gpt2", "gpt_neox", "gpt_oss", "gptj", "granite", "llama",
    "llama4_text", "marian", "mbart", "ministral3", "mistral", "mixtral", "mpt", "mt5", "olmo2", "opt", "pegasus",
    "phi", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2", "t5",
))
# fmt: on
"""Model types that tests/test_target_tree.py checks; others are tested when a model of theirs is wrapped."""

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
"""Largest difference, in standard deviations of the logits. A wrong mask or position shows as 0.1 or more."""

TOLERANCE_LOW_PRECISION = 0.1

_PROMPTS = (7, 4)  # ragged, as small as can show a wrong mask or position
_BRANCHED = (ROOT, 0, 1, 0, ROOT, 4)
_CHAIN = (ROOT, 0, 1)


def is_known(model: PreTrainedModel) -> bool:
    """Whether the architecture needs no self-test. Falcon with ALiBi builds its bias inside its module."""
    return model.config.model_type in KNOWN and not getattr(model.config, "alibi", False)


def passes(target: Target, model: PreTrainedModel) -> bool:
    """Two steps of ragged rows with drafts (branched where `target` takes trees) against passes without a cache."""
    parents = _BRANCHED if target.supports_trees else _CHAIN
    prompts = [_tokens(length, 1 + row, target.vocab_size) for row, length in enumerate(_PROMPTS)]
    chains = [target.start(prompt) for prompt in prompts]
    outputs = [list(chain) for chain in chains]
    session = target.open(prompts)
    try:
        for step in range(2):
            tokens = [_tokens(len(parents), 11 + 2 * step + row, target.vocab_size) for row in range(len(prompts))]
            trees = [DraftTree(row, parents, [1.0] * len(parents), [None] * len(parents)) for row in tokens]
            logits = session.score(chains, trees)
            for row, (prompt, output, tree) in enumerate(zip(prompts, outputs, trees, strict=True)):
                for node in range(ROOT, len(tree)):
                    path = [tree.tokens[index] for index in _path(parents, node)]
                    if not _close(logits[row, 1 + node], _alone(model, prompt, [*output, *path])):
                        return False
            accepted = _path(parents, len(parents) - 1)
            session.keep([accepted] * len(prompts))
            for output, tree in zip(outputs, trees, strict=True):
                output += [*(tree.tokens[node] for node in accepted), tree.tokens[0]]
            chains = [output[-1:] for output in outputs]
    finally:
        session.close()
    return True


def attempt(target: Target, model: PreTrainedModel) -> Exception | None:
    """None where the self-test passes, else why not: an unknown architecture may raise anything."""
    try:
        passed = passes(target, model)
    except Exception as error:
        return error
    return None if passed else ValueError("logits of draft nodes differ from those of their paths alone")


@torch.inference_mode()
def _alone(model: PreTrainedModel, prompt: Sequence[int], sequence: Sequence[int]) -> torch.Tensor:
    device = read_device(model)
    ids = torch.tensor([list(sequence)], device=device)
    with masked_attention(model):
        if model.config.is_encoder_decoder:
            read = torch.tensor([list(prompt)], device=device)
            logits: torch.Tensor = model(input_ids=read, decoder_input_ids=ids, use_cache=False).logits
        else:
            logits = model(input_ids=ids, use_cache=False).logits
    return logits[0, -1]


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    tolerance = TOLERANCE.get(expected.dtype, TOLERANCE_LOW_PRECISION)
    difference = (found.float() - expected.float()).abs().max()
    return bool(difference <= tolerance * expected.float().std())


def _path(parents: Sequence[int], node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def _tokens(count: int, seed: int, vocab_size: int) -> list[int]:
    """Distinct enough token ids away from the special ones, the same each time."""
    low = min(vocab_size // 2, 100)
    return [low + (7919 * (seed + 31 * index)) % (vocab_size - low) for index in range(count)]
