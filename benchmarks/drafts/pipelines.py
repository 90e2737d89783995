"""Computes the potential gain of several partial passes in flight (PPD, SPEED) from a model's early-layer agreement.

python -m benchmarks.drafts.pipelines [--prompts 6] [--tokens 48] [--json FILE]

PPD (Yang et al. 2023, arXiv 2307.05908) and SPEED (Hooper et al. 2023, arXiv 2310.12072) begin the next token before
the last one has gone through all layers, from an early layer's prediction. The gain depends on two numbers per layer:
how often its prediction is the model's token, which is measured here on the model's own greedy outputs, and the
fraction of a pass before it. From these the time per token is computed for three settings:

- a second processor that also has the weights: a right guess leaves only the layers up to the exit, at the cost of
  reading the output head once more for the guess;
- one processor, where a pass takes the time of reading the weights: tokens at different layers cannot share reads, so
  wrong guesses add time and right ones save none;
- one processor with tied layers as in SPEED (all layers share one set of weights): tokens in flight share each read.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import copyspec
from benchmarks.spec_bench import read_prompts
from kit import places
from kit.reporting import machine, write_json


@torch.inference_mode()
def agreement(engine: copyspec.Engine, prompts: list[Any], tokens: int) -> tuple[list[int], int]:
    """Return how often each layer's prediction is the model's own token, and the number of tokens."""
    model = engine.model
    layers = model.config.num_hidden_layers
    right, total = [0] * layers, 0
    base: Any = model.base_model
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    for prompt in prompts:
        result = engine.generate(prompt.chat, max_new_tokens=tokens)
        ids = [*engine.codec.encode_chat(prompt.chat).ids, *result.token_ids]
        count = len(result.token_ids)
        states = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
        own = torch.tensor(result.token_ids)
        for layer in range(1, layers):
            guesses = head(base.norm(states[layer][0, -count - 1 : -1])).argmax(-1)
            right[layer] += int((guesses == own).sum())
        total += count
    return right, total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_transcripts_folder(parser)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine = copyspec.load(options.model, dtype="float32")
    groups = read_prompts(options.transcripts, engine, -(-options.prompts // 6), 384)
    prompts = [case for cases in groups.values() for case in cases][: options.prompts]
    right, total = agreement(engine, prompts, options.tokens)
    model = engine.model
    output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    head, whole = output.weight.numel(), sum(parameter.numel() for parameter in model.parameters())
    layers = len(right)
    per_layer = (whole - head) / layers if model.config.tie_word_embeddings else (whole - 2 * head) / layers
    cost = per_layer * layers + head
    print("| layers before the guess | right | second processor | one processor | one, tied layers |")
    print("|--:|--:|--:|--:|--:|")
    rows: list[dict[str, float]] = []
    for layer in range(1, layers):
        chance, before = right[layer] / total, (per_layer * layer + head) / cost
        second = 1 / (chance * before + (1 - chance))
        wasted = (per_layer * (layers - layer)) / cost  # work on the next token until the guess proves wrong
        one = 1 / (1 + head / cost + (1 - chance) * wasted)
        tied = 1 / (chance * before + (1 - chance) * (1 + head / cost))
        rows.append({"layers": layer, "right": chance, "second": second, "one": one, "tied": tied})
        if layer % 3 == 0 or layer == layers - 1:
            print(f"| {layer} | {chance:.2f} | {second:.2f}x | {one:.2f}x | {tied:.2f}x |")
    if options.json is not None:
        write_json(options.json, {"machine": machine(), "tokens": total, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
