"""Measures drafters that predict blocks of tokens: PaSS's look-ahead embeddings, SpecDec's non-autoregressive decoder.

python -m benchmarks.drafts.blocks lookahead FOLDER shared/data/transcripts [--per-group 1] [--json FILE]
python -m benchmarks.drafts.blocks block FOLDER shared/data/gec/jfleg_dev.jsonl.gz [--texts 30] [--json FILE]

FOLDER comes from ``training.lookahead`` (SmolLM2 on Spec-Bench's prompts) or ``training.block_drafter`` (the bundled
corrector). The predictions after each token of the model's plain output are computed beforehand. The engine then drafts
them, alone and together with copies, and its outputs are compared with the plain ones. Tokens per pass therefore leave
out the drafter's own time. Look-ahead embeddings would also have to follow every node of a draft tree (as in PPD),
which means more nodes per pass than are counted here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import copyspec
from benchmarks.reporting import machine, read_rows, write_json
from benchmarks.spec_bench import read_prompts
from copyspec.budget import Budget
from copyspec.drafters.custom import DraftContext
from copyspec.tree import ROOT, DraftTree
from training.block_drafter import load_block, said_behind
from training.lookahead import load_embeddings, said_at

WIDTH = 3  # tokens drafted per position; those of the next position continue the most likely one
INSTRUCTION = "Correct the grammar: "

Guess = list[list[tuple[int, float]]]
"""For each position of a block, its most likely tokens and their probabilities."""


@dataclass(frozen=True)
class Guesses:
    """Precomputed predictions, by the number of output tokens so far."""

    table: Sequence[Guess]

    def __call__(self, context: DraftContext) -> GuessDrafter:
        """Return the drafter of a row."""
        return GuessDrafter(self.table)


class GuessDrafter:
    """Drafts precomputed predictions."""

    def __init__(self, table: Sequence[Guess]) -> None:
        self._table, self._known = table, 0

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most likely chain of the block, with the alternatives of each position as siblings."""
        guess = self._table[self._known] if self._known < len(self._table) else []
        nodes: list[tuple[float, int, int, int]] = []  # score, token, level of its parent in the chain
        score = 1.0
        for level, found in enumerate(guess):
            nodes += [(score * chance, token, level, rank) for rank, (token, chance) in enumerate(found)]
            score *= found[0][1]
        likeliest = sorted(nodes, key=lambda each: (-each[0], each[2]))
        kept = likeliest[: budget.cut([each[0] for each in likeliest])]
        chain = [each for each in kept if each[3] == 0]
        order = [*chain, *(each for each in kept if each[3] and each[2] <= len(chain))]
        parents = [each[2] - 1 if each[2] else ROOT for each in order]
        return DraftTree([each[1] for each in order], parents, [each[0] for each in order], [None] * len(order))

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance by the accepted tokens."""
        self._known += len(tokens)


Guesser = Callable[[Sequence[int], torch.Tensor], torch.Tensor]
"""Maps text and positions [n] to logits of the block after each position, [n, K, V].

The block starts after the token that follows the position."""


@torch.no_grad()
def table_of(guesser: Guesser, prompt: Sequence[int], output: Sequence[int]) -> list[Guess]:
    """Compute the predictions after 0, 1, ... output tokens. There are none before the prompt has been read."""
    places = len(prompt) - 1 + torch.arange(len(output) - 1)
    found = guesser([*prompt, *output], places).float().softmax(-1).topk(WIDTH)
    pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
    guesses = [[list(zip(*each, strict=True)) for each in zip(*pair, strict=True)] for pair in pairs]
    return [[], *guesses]


def methods(table: list[Guess]) -> dict[str, dict[str, Any]]:
    """Return the call options of each method by name."""
    return {
        "copy": {"drafter": "copy"},
        "block": {"drafter": Guesses(table)},
        "copy + block": {"drafter": ["copy", Guesses(table)]},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("lookahead", "block"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", help="smollm2 for look-ahead; for blocks the bundled model")
    parser.add_argument("--per-group", type=int, default=1)
    parser.add_argument("--texts", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=64, help="maximum output tokens, for look-ahead")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    ahead = given.kind == "lookahead"
    engine = copyspec.load(given.model or ("smollm2" if ahead else "default"), dtype="float32")
    calls: list[tuple[Any, dict[str, Any]]] = []
    if ahead:
        embeddings = load_embeddings(given.folder)
        groups = read_prompts(given.data, engine, given.per_group, 384)
        options = {"max_new_tokens": given.tokens}
        calls += [
            (case.chat, {"references": case.references, **options}) for cases in groups.values() for case in cases
        ]
    else:
        drafter = load_block(given.folder)
        rows = read_rows(given.data)[: given.texts]
        calls += [(INSTRUCTION + row["source"], {"edit_source": row["source"]}) for row in rows]

    def guesser(ids: Sequence[int], places: torch.Tensor) -> torch.Tensor:
        if ahead:
            return said_at(engine.model, ids, places, embeddings)[0]
        return said_behind(drafter, engine.model, ids, places)

    counts: dict[str, list[int]] = {}
    for prompt, options in calls:
        unread = {name: value for name, value in options.items() if name == "max_new_tokens"}
        plain = engine.generate(prompt, drafter="none", **unread)
        read = engine.codec.encode_chat(prompt).ids if ahead else engine.codec.encode(prompt, wrap=True).ids
        if len(plain.token_ids) < 2:
            continue
        for name, each in methods(table_of(guesser, read, plain.token_ids)).items():
            result = engine.generate(prompt, **options, **each)
            held = counts.setdefault(name, [0, 0, 0, 0])
            equal = result.token_ids == plain.token_ids
            for place, value in enumerate((len(result.token_ids), result.stats.num_passes, equal, 1)):
                held[place] += value
    print("| method | tokens per pass | equal |\n|---|--:|---|")
    for name, (tokens, passes, equal, total) in counts.items():
        print(f"| {name} | {tokens / passes:.2f} | {equal} of {total} |")
    if given.json is not None:
        write_json(given.json, {"machine": machine(), "counts": counts})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
