"""Compares random calls of models that keep states with plain decoding and with transformers' `generate`.

    python -m tests.fuzz.hybrids --calls 500                    # all families; takes minutes
    python -m tests.fuzz.hybrids --only qwen3_next --calls 500

Each family is a tiny model with random weights. A call has 1, 3 or 8 prompts of different lengths, each with two
references that are right, wrong or sometimes right, so that drafts branch; rows leave a batch at different times, and
join it. Calls are greedy, sampled at a seed, or penalised; some end at a stop string, are streamed, or use the prefix
cache. Greedy outputs must be those of `generate`, and all must be those without drafts. A greedy token counts as a tie
if its score is within 1e-5 standard deviations of that of `generate`'s.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.utils import logging

import copyspec
from kit.architectures import TIE, tiny
from tests.helpers.both_ways import tokenizer
from tests.helpers.models import VOCAB_SIZE

FAMILIES = (
    "qwen3_next", "qwen3_5_text", "olmo_hybrid",  # gated delta rule
    "kimi_linear",  # the same with a decay by channel
    "nemotron_h", "granitemoehybrid", "bamba", "falcon_h1",  # Mamba 2
    "jamba", "falcon_mamba",  # Mamba 1
    "lfm2", "lfm3",  # short convolution
    "minimax", "deepseek_v32", "glm_moe_dsa",  # lightning attention, indexers
)  # fmt: skip

PROMPTS, OUTPUT = 10, 12
PENALTIES = (1.0, 1.3)


@dataclass(frozen=True, slots=True)
class Truth:
    """What `generate` writes after a prompt, and its scores, [OUTPUT, V]."""

    prompt: list[int]
    output: list[int]
    scores: torch.Tensor


@dataclass(slots=True)
class Call:
    """One call: its rows, and the options of `Engine.generate`."""

    rows: list[Truth]
    references: list[list[list[int]]]
    limits: list[int]
    options: dict[str, Any]
    streams: bool
    is_greedy: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_greedy = "temperature" not in self.options

    def run(self, engine: copyspec.Engine, **more: Any) -> tuple[list[list[int]], int]:
        """The output of each row, and the number of draft tokens that were accepted."""
        options = {"max_new_tokens": self.limits, "ignore_eos": True, "threads": 1, **self.options, **more}
        prompts = [row.prompt for row in self.rows]
        if not self.streams:
            found = engine.generate(prompts, self.references, **options)
            return [[*each.token_ids] for each in found], sum(each.stats.num_accepted_tokens for each in found)
        outputs = list[list[int]]([] for _ in prompts)
        for chunk in engine.stream(prompts, self.references, **options):
            outputs[chunk.index] += chunk.token_ids
        return outputs, 0


def truths(model: Any, penalty: float) -> list[Truth]:
    """Prompts of 1 to 40 tokens, with their greedy outputs."""
    drawn, found = random.Random(0), list[Truth]()
    for number in range(PROMPTS):
        phrase = [drawn.randrange(5, VOCAB_SIZE) for _ in range(1 + number)]
        prompt = (phrase * 4)[: drawn.randint(1, 4 * len(phrase))]
        ids = torch.tensor([prompt])
        written = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, repetition_penalty=penalty, eos_token_id=None,
            max_new_tokens=OUTPUT, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        found.append(Truth(prompt, written.sequences[0, len(prompt) :].tolist(), torch.cat(written.scores)))
    return found


def calls(known: dict[float, list[Truth]], seed: int) -> Iterator[Call]:
    """Random calls, without end."""
    drawn = random.Random(seed)
    while True:
        penalty = drawn.choice(PENALTIES)
        rows = [drawn.choice(known[penalty]) for _ in range(drawn.choice([1, 3, 8]))]
        references = [_references(row.output, drawn.choice([0.0, 0.2, 1.0]), drawn) for row in rows]
        options: dict[str, Any] = {"repetition_penalty": penalty, "batch_size": drawn.choice([1, 3, 8])}
        if drawn.random() < 0.4:
            options |= {"temperature": drawn.choice([0.3, 1.0]), "seed": drawn.randrange(100), "top_p": 0.9}
        if drawn.random() < 0.3:
            options["stop"] = [str(drawn.choice(drawn.choice(rows).output))]
        if drawn.random() < 0.3:
            options["prefix_cache"] = True
        yield Call(rows, references, [drawn.randint(2, OUTPUT) for _ in rows], options, drawn.random() < 0.3)


def _references(tokens: Sequence[int], noise: float, drawn: random.Random) -> list[list[int]]:
    """Two copies in which so many tokens are replaced."""
    return [[drawn.randrange(5, VOCAB_SIZE) if drawn.random() < noise else each for each in tokens] for _ in range(2)]


def outcomes(engine: copyspec.Engine, call: Call) -> Iterator[str]:
    """Of each row "equal", "tie" or "differs"; and "accepted" for each draft token that was."""
    found, accepted = call.run(engine)
    yield from ["accepted"] * accepted
    plain = found if call.is_greedy and "stop" not in call.options else call.run(engine, drafter="none")[0]
    for row, limit, output, expected in zip(call.rows, call.limits, found, plain, strict=True):
        whole = row.output[: len(output) if "stop" in call.options else limit]
        if output != expected and not call.is_greedy:
            yield "differs"
        elif call.is_greedy and output != whole:
            yield "tie" if _is_tie(row, output) else "differs"
        else:
            yield "equal" if output == expected else "differs"


def _is_tie(row: Truth, output: Sequence[int]) -> bool:
    """Whether the first token that differs has nearly the score of `generate`'s."""
    for token, own, scores in zip(output, row.output, row.scores, strict=False):
        if token != own:
            return float((scores[own] - scores[token]).abs() / scores[scores.isfinite()].std()) <= TIE
    return False


def examine(family: str, count: int, seed: int) -> Counter[str]:
    """Count the outcomes of so many calls of a family."""
    model = tiny(family, 8)
    model.generation_config.pad_token_id = 0
    engine = copyspec.Engine(model, tokenizer(), name=family)
    drawn, counts = calls({penalty: truths(model, penalty) for penalty in PENALTIES}, seed), Counter[str]()
    for number in range(count):
        call = next(drawn)
        found = Counter(outcomes(engine, call))
        counts += found
        if found["differs"]:
            print(f"{family}: call {number} differs: {call.options}, limits {call.limits}", flush=True)
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.hybrids", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="FAMILY", default=FAMILIES)
    parser.add_argument("--calls", type=int, default=40, help="per family (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    differ = 0
    for family in options.only:
        counts = examine(family, options.calls, options.seed)
        differ += counts["differs"]
        print(
            f"{family}: {options.calls} calls, {counts['equal']:,} outputs equal, {counts['tie']} at a tie, "
            f"{counts['differs']} differ; {counts['accepted']:,} draft tokens accepted",
            flush=True,
        )
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
