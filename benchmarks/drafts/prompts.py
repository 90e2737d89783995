"""Reads prompts for `benchmarks.drafts.models`, and selects those that the target's output repeats least."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.options import SamplingOptions
from copyspec.sources import Source
from kit.reporting import ratio, read_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from copyspec.targets.base import Target

CORRECT = "Correct the grammar: "  # the instruction of the bundled model


@dataclass(frozen=True, slots=True)
class Prompt:
    """The target's input, and the text that it is asked to correct, if any."""

    tokens: list[int]
    source: list[int] | None = None

    @property
    def sources(self) -> list[Source]:
        edited = [] if self.source is None else [Source(self.source, "edit")]
        return [*edited, Source(self.tokens, "prompt")]


def least_overlap(
    target: Target, prompts: Sequence[Prompt], eos: frozenset[int], options: argparse.Namespace
) -> list[Prompt]:
    """Return the prompts whose source is repeated least by the target's plain output, in their original order."""
    shares = []
    for prompt in prompts:
        request = Request(prompt.tokens, options.tokens, SamplingOptions(), eos, prompt.sources)
        outputs = decode(target, [request], DecodeSettings())
        shares.append(
            repeated(
                [token for results in outputs for output in results for token in output.tokens], prompt.source or []
            )
        )
    chosen = sorted(range(len(prompts)), key=shares.__getitem__)[: options.least_overlap]
    return [prompts[index] for index in sorted(chosen)]


def repeated(output: Sequence[int], source: Sequence[int], run: int = 4) -> float:
    """Fraction of the tokens of `output` in runs of `run` or more tokens that also occur in `source`."""
    known = {tuple(source[start : start + run]) for start in range(len(source) - run + 1)}
    covered: set[int] = set()
    for start in range(len(output) - run + 1):
        if tuple(output[start : start + run]) in known:
            covered.update(range(start, start + run))
    return ratio(len(covered), len(output))


def read_prompts(tokenizer: PreTrainedTokenizerBase, options: argparse.Namespace) -> list[Prompt]:
    """Read the lines of --prompts, or the sources of --sources with the bundled model's instruction."""
    if options.prompts:
        lines = Path(options.prompts).read_text(encoding="utf-8").splitlines()
        return [Prompt(tokenizer(line)["input_ids"]) for line in lines if line.strip()]
    rows = [row for file in options.sources for row in read_rows(file)]
    encode = tokenizer.backend_tokenizer.encode
    return [
        Prompt(
            tokenizer(CORRECT + row["source"])["input_ids"], encode(" " + row["source"], add_special_tokens=False).ids
        )
        for row in rows
    ]
