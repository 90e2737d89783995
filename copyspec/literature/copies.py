"""Copying rules of other papers, for `drafter=`: each drafts one chain, from the texts of one row.

    copyspec.generate(prompt, references=texts, drafter=LLMA())

None of them estimates how likely its tokens are, so that every score is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from copyspec.budget import Budget
from copyspec.common.checks import check_whole
from copyspec.drafters.base import Drafter
from copyspec.drafters.custom import DraftContext
from copyspec.drafters.prompt_lookup import LOOKUP_NGRAM, LOOKUP_TOKENS, LookupDrafter
from copyspec.tree import EMPTY, DraftTree

SUFFIX_TOKENS = 24
LLMA_NGRAM, LLMA_TOKENS = 5, 19  # microsoft/LMOps, llma: max_n=5 and --n 1; --k 20 includes the token before the copy
SAD_NGRAM = 3  # as in the authors' code: n-grams of 1, then 2, then 3 tokens
MOST = 1 << 20  # tokens of a draft, as the budget ends it before


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Prompt lookup (Saxena 2023) as transformers has it: the `length` tokens after the leftmost match of the last
    `largest` tokens, or of fewer, in prompt and output."""

    largest: int = LOOKUP_NGRAM
    length: int = LOOKUP_TOKENS

    def __post_init__(self) -> None:
        check_whole("largest", self.largest, low=1, high=64)
        check_whole("length", self.length, low=1, high=MOST)

    def __call__(self, context: DraftContext) -> Drafter:
        """Make the drafter of one row."""
        return LookupDrafter(context.prompt, context.eos_token_ids, self.largest, self.length)


@dataclass(frozen=True, slots=True)
class LongestSuffix:
    """The longest match of the text's end in references, prompt and output (SAM decoding, arXiv 2411.10666, without its
    automaton)."""

    def __call__(self, context: DraftContext) -> Drafter:
        """Make the drafter of one row."""
        return SuffixDrafter(context.prompt, texts_of(context))


@dataclass(frozen=True, slots=True)
class LLMA:
    """The references, from where the end of the output first occurs in them (Yang et al. 2023, arXiv 2304.04487)."""

    def __call__(self, context: DraftContext) -> Drafter:
        """Make the drafter of one row."""
        return LlmaDrafter(texts_of(context) or [context.prompt])


@dataclass(frozen=True, slots=True)
class SAD:
    """The rest of the text being edited, or of the first reference (shallow aggressive decoding, Sun et al. 2021,
    arXiv 2106.04970)."""

    def __call__(self, context: DraftContext) -> Drafter:
        """Make the drafter of one row."""
        return SadDrafter((texts_of(context) or [context.prompt])[0])


def texts_of(context: DraftContext) -> list[Sequence[int]]:
    """The texts that are edited or referred to, without the prompt. LLMA's documents and SAD's text also stand in the
    prompt, which takes their place where the caller names none."""
    return [source.tokens for source in context.sources if source.kind != "prompt"]


def chain(tokens: Sequence[int], budget: Budget) -> DraftTree:
    """A tree of one branch, as long as the budget allows."""
    return DraftTree.of_chain(tokens[: budget.cut([1.0] * len(tokens))], 1.0) if tokens else EMPTY


class SuffixDrafter:
    """Copies 24 tokens from the most recent of the longest suffix matches in references, prompt and output."""

    def __init__(self, prompt: Sequence[int], references: Sequence[Sequence[int]]) -> None:
        self.tokens = [
            token for reference in references for token in [*reference, -1]
        ]  # -1 matches no token: it separates texts
        self.ends: dict[int, list[int]] = {}
        self.accept(self.tokens[:], known=True)
        self.accept(prompt)

    def accept(self, tokens: Sequence[int], known: bool = False) -> None:
        start = 0 if known else len(self.tokens)
        if not known:
            self.tokens.extend(tokens)
        for index in range(start, len(self.tokens)):
            self.ends.setdefault(self.tokens[index], []).append(index)

    def propose(self, budget: Budget) -> DraftTree:
        tokens, last = self.tokens, len(self.tokens) - 1
        if last < 0:
            return EMPTY
        best, best_end = 0, -1
        for end in reversed(self.ends[tokens[last]][:-1]):
            length = 1
            while length <= end and tokens[end - length] == tokens[last - length] != -1:
                length += 1
            if length > best:
                best, best_end = length, end
        draft = tokens[best_end + 1 : best_end + 1 + SUFFIX_TOKENS] if best else []
        return chain(draft[: draft.index(-1)] if -1 in draft else draft, budget)


class LlmaDrafter:
    """LLMA: copies 19 tokens from the first occurrence in the references of the longest n-gram of generated tokens."""

    def __init__(self, references: Sequence[Sequence[int]]) -> None:
        self.output: list[int] = []
        self.references = references
        self.first: dict[tuple[int, ...], tuple[int, int]] = {}  # n-gram -> (reference, end)
        for which, reference in enumerate(references):
            for end in range(1, len(reference) + 1):
                for n in range(1, min(LLMA_NGRAM, end) + 1):
                    self.first.setdefault(tuple(reference[end - n : end]), (which, end))

    def accept(self, tokens: Sequence[int]) -> None:
        self.output.extend(tokens)

    def propose(self, budget: Budget) -> DraftTree:
        for n in range(min(LLMA_NGRAM, len(self.output)), 0, -1):
            place = self.first.get(tuple(self.output[-n:]))
            if place is not None:
                which, end = place
                return chain(self.references[which][end : end + LLMA_TOKENS], budget)
        return EMPTY


class SadDrafter:
    """SAD (arXiv 2106.04970): drafts the whole rest of the source.

    After a difference, copying resumes where the last token of the output occurs exactly once in the source, else
    the last two, else the last three. If none does, a plain step follows. This is `paper_aggressive_generate` of the
    authors' code (microsoft/unilm, decoding/IAD); their other function takes a plain step after every difference
    before it looks for a match. A draft that the budget cut short is continued in the next step.
    """

    def __init__(self, source: Sequence[int]) -> None:
        self.source = list(source)
        self.output: list[int] = []
        self.cursor: int | None = 0  # next position in the source; None: unknown
        self.ends: dict[tuple[int, ...], list[int]] = {}  # n-gram -> positions in the source at which it ends
        for end in range(1, len(self.source) + 1):
            for n in range(1, min(SAD_NGRAM, end) + 1):
                self.ends.setdefault(tuple(self.source[end - n : end]), []).append(end)

    def accept(self, tokens: Sequence[int]) -> None:
        self.output.extend(tokens)
        for token in tokens:
            at = self.cursor
            self.cursor = at + 1 if at is not None and self.source[at : at + 1] == [token] else None
        if self.cursor is None:
            self.cursor = self._resume()

    def propose(self, budget: Budget) -> DraftTree:
        return EMPTY if self.cursor is None else chain(self.source[self.cursor :], budget)

    def _resume(self) -> int | None:
        for n in range(1, min(SAD_NGRAM, len(self.output)) + 1):
            ends = self.ends.get(tuple(self.output[-n:]), [])
            if len(ends) == 1:
                return ends[0]
        return None
