"""Compares random calls of models that keep states with plain decoding and with transformers' `generate`.

    python -m tests.fuzz.hybrids --calls 500                    # all families; takes minutes
    python -m tests.fuzz.hybrids --only qwen3_next --calls 500
    python -m tests.fuzz.hybrids --static                       # passes of static shapes, recorded and replayed
    python -m tests.fuzz.hybrids --exact                        # exact mode

Each family is a tiny model with random weights. A call has 1, 3 or 8 prompts of different lengths, each with two
references that are right, wrong or sometimes right, so that drafts branch; rows leave a batch at different times, and
join it. Calls are greedy or sampled at a seed, with a penalty or without; some end at a stop string, are streamed, or
use the prefix cache. Greedy outputs must be those of `generate`, sampled ones those without drafts. A greedy token
counts as a tie if its score is within 1e-5 standard deviations of that of `generate`'s.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from itertools import islice
from typing import Any, cast

import torch
from transformers.utils import logging

import copyspec
from copyspec.budget import CostModel
from kit.architectures import TIE, tiny
from tests.helpers.both_ways import tokenizer
from tests.helpers.cpu_graph import CpuGraph
from tests.helpers.models import VOCAB_SIZE

FAMILIES = (
    "qwen3_next", "qwen3_5_text", "olmo_hybrid",  # gated delta rule
    "kimi_linear",  # the same with a decay by channel
    "nemotron_h", "granitemoehybrid", "bamba", "falcon_h1",  # Mamba 2
    "jamba", "falcon_mamba",  # Mamba 1
    "lfm2", "lfm3",  # short convolution
    "minimax", "deepseek_v32", "glm_moe_dsa",  # lightning attention, indexers
)  # fmt: skip

PROMPTS, OUTPUT = 10, 10
WAYS: Sequence[dict[str, Any]] = [
    {"repetition_penalty": penalty, **sampling}
    for penalty in (1.0, 1.3)
    for sampling in (
        {},
        {},
        {"temperature": 1.0, "seed": 1},
        {"temperature": 0.5, "seed": 2, "top_p": 0.9},
        {"temperature": 1.0, "seed": 3, "top_k": 20},
    )
]
"""How tokens are chosen; as often greedily as not."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What is written after a prompt in plain decoding, and if that was `generate`, its scores, [OUTPUT, V]."""

    prompt: list[int]
    output: list[int]
    scores: torch.Tensor | None


@dataclass(slots=True)
class Call:
    """One call: its rows, and the options of `Engine.generate`."""

    rows: list[Truth]
    references: list[list[list[int]]]
    options: dict[str, Any]
    streams: bool

    def run(self, engine: copyspec.Engine, **more: Any) -> tuple[list[list[int]], int]:
        """The output of each row, and the number of draft tokens that were accepted."""
        options = {"ignore_eos": True, "threads": 1, **self.options, **more}
        prompts = [row.prompt for row in self.rows]
        if not self.streams:
            results = engine.generate(prompts, self.references, **options)
            return [[*result.token_ids] for result in results], sum(
                result.stats.num_accepted_tokens for result in results
            )
        outputs = list[list[int]]([] for _ in prompts)
        for chunk in engine.stream(prompts, self.references, **options):
            outputs[chunk.index] += chunk.token_ids
        return outputs, 0


class Truths:
    """Prompts of 1 to 83 tokens, with the outputs of `generate`, or sampled ones without drafts, computed where a call
    needs them. The last prompts begin alike, with more than the prefix cache stores states for."""

    def __init__(self, engine: copyspec.Engine) -> None:
        drawn, self._engine = random.Random(0), engine
        self._prompts, self._known = list[list[int]](), dict[tuple[str, int], Truth]()
        common = [drawn.randrange(5, VOCAB_SIZE) for _ in range(68)]
        for number in range(PROMPTS):
            phrase = [drawn.randrange(5, VOCAB_SIZE) for _ in range(1 + number)]
            self._prompts.append((phrase * 4)[: drawn.randint(1, 4 * len(phrase))])
            if number >= PROMPTS - 3:
                self._prompts[-1] = [*common, *self._prompts[-1][:15]]

    def of(self, way: dict[str, Any], number: int) -> Truth:
        """What follows the prompt of this number."""
        if (str(way), number) not in self._known:
            made = self._sampled(way) if "temperature" in way else {number: self._greedy(way, self._prompts[number])}
            self._known |= {(str(way), other): truth for other, truth in made.items()}
        return self._known[str(way), number]

    def _sampled(self, way: dict[str, Any]) -> dict[int, Truth]:
        call = Call([Truth(prompt, [], None) for prompt in self._prompts], [[] for _ in self._prompts], way, False)
        outputs, _ = call.run(self._engine, drafter="none", max_new_tokens=OUTPUT)
        rows = zip(self._prompts, outputs, strict=True)
        return {number: Truth(prompt, output, None) for number, (prompt, output) in enumerate(rows)}

    def _greedy(self, way: dict[str, Any], prompt: list[int]) -> Truth:
        ids, model = torch.tensor([prompt]), cast(Any, self._engine.model)
        written = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None, max_new_tokens=OUTPUT,
            return_dict_in_generate=True, output_scores=True, **way,
        )  # fmt: skip
        return Truth(prompt, written.sequences[0, len(prompt) :].tolist(), torch.cat(written.scores))


def calls(engine: copyspec.Engine, seed: int) -> Iterator[Call]:
    """Random calls, without end."""
    drawn, truths = random.Random(seed), Truths(engine)
    while True:
        number = drawn.randrange(len(WAYS))
        rows = [truths.of(WAYS[number], drawn.randrange(PROMPTS)) for _ in range(drawn.choice([1, 3, 8]))]
        references = [_references(row.output, drawn.choice([0.0, 0.2, 1.0]), drawn) for row in rows]
        limits = [drawn.randint(2, OUTPUT) for _ in rows]
        options = {**WAYS[number], "batch_size": drawn.choice([1, 3, 8]), "max_new_tokens": limits}
        if drawn.random() < 0.2:
            options["stop"] = [str(drawn.choice(drawn.choice(rows).output))]
        if drawn.random() < 0.3:
            options["prefix_cache"] = True
        yield Call(rows, references, options, drawn.random() < 0.3)


def _references(tokens: Sequence[int], noise: float, drawn: random.Random) -> list[list[int]]:
    """Two copies in which so many tokens are replaced."""
    return [[drawn.randrange(5, VOCAB_SIZE) if drawn.random() < noise else token for token in tokens] for _ in range(2)]


def outcomes(engine: copyspec.Engine, call: Call) -> Iterator[str]:
    """Of each row "equal", "tie" or "differs"; and "accepted" for each draft token that was."""
    outputs, accepted = call.run(engine)
    yield from ["accepted"] * accepted
    if "stop" in call.options:
        ends = [len(output) for output in call.run(engine, drafter="none")[0]]
    else:
        ends = call.options["max_new_tokens"]
    for row, end, output in zip(call.rows, ends, outputs, strict=True):
        yield "equal" if output == row.output[:end] else "tie" if _is_tie(row, output) else "differs"


def _is_tie(row: Truth, output: Sequence[int]) -> bool:
    """Whether the first token that differs has nearly the score of `generate`'s."""
    if row.scores is not None:
        for token, own, scores in zip(output, row.output, row.scores, strict=False):
            if token != own:
                return float((scores[own] - scores[token]).abs() / scores[scores.isfinite()].std()) <= TIE
    return False


def examine(family: str, count: int, seed: int, static: copyspec.StaticOptions | None = None) -> Counter[str]:
    """Count the outcomes of so many calls of a family."""
    model = tiny(family, 8)
    model.generation_config.pad_token_id = 0
    counts, ticks = Counter[str](), count_from()
    engine = copyspec.Engine(model, tokenizer(), name=family, static=static)
    engine._costs = CostModel(lambda: 1e-3 * next(ticks), slope=0.0)  # drafts pay however busy the machine is
    for number, call in enumerate(islice(calls(engine, seed), count)):
        by_outcome = Counter(outcomes(engine, call))
        counts += by_outcome
        if by_outcome["differs"]:
            print(f"{family}: call {number} differs: {call.options}", flush=True)
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.hybrids", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="FAMILY", default=FAMILIES)
    parser.add_argument("--calls", type=int, default=40, help="per family (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--static", action="store_true", help="passes of static shapes, as on a GPU")
    parser.add_argument("--exact", action="store_true", help="exact mode, in which a token has the bits it has alone")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    static = copyspec.StaticOptions(use="always", new_graph=CpuGraph) if options.static else None
    static = copyspec.StaticOptions(exact=True) if options.exact else static
    differ = 0
    for family in options.only:
        counts = examine(family, options.calls, options.seed, static)
        differ += counts["differs"]
        print(
            f"{family}: {options.calls} calls, {counts['equal']:,} outputs equal, {counts['tie']} at a tie, "
            f"{counts['differs']} differ; {counts['accepted']:,} draft tokens accepted",
            flush=True,
        )
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
