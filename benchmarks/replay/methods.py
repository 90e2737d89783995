"""Implements published drafting rules of other projects as chain drafters, for comparison in the replay."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.budget import Budget
from copyspec.drafters.prompt_lookup import LOOKUP_NGRAM, LOOKUP_TOKENS, LookupDrafter
from copyspec.tree import EMPTY, DraftTree

SUFFIX_TOKENS = 24
LLMA_NGRAM, LLMA_TOKENS = 5, 19  # microsoft/LMOps, llma: max_n=5 and --n 1; --k 20 includes the token before the copy
SAD_NGRAM = 3  # as in the authors' code: n-grams of 1, then 2, then 3 tokens
NO_LIMIT = 1 << 62  # tokens; longer than any recorded output


def chain(tokens: Sequence[int], budget: Budget) -> DraftTree:
    """Make a tree of one branch. These rules give no probabilities, so that every score is 1."""
    m = budget.cut([1.0] * len(tokens))
    tokens = tokens[:m]
    return DraftTree(tokens, range(-1, m - 1), [1.0] * m, [None] * m) if m else EMPTY


class HfPromptLookup:
    """Hugging Face's own class for prompt lookup, as `model.generate(prompt_lookup_num_tokens=10)` creates it.

    It searches the prompt and the output, and drops its draft at an end of sequence.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        references: Sequence[Sequence[int]],
        eos: int,
        largest: int = LOOKUP_NGRAM,
        length: int = LOOKUP_TOKENS,
    ) -> None:
        import torch  # imported here, since the other methods need neither and they take seconds to load
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        self.torch = torch
        self.generator = PromptLookupCandidateGenerator(
            eos_token_id=torch.tensor([eos]),
            num_output_tokens=length,
            max_matching_ngram_size=largest,
            max_length=NO_LIMIT,
        )
        self.ids = torch.empty(1, 2 * len(prompt) + 64, dtype=torch.long)
        self.length = 0
        self.accept(prompt)

    def accept(self, tokens: Sequence[int]) -> None:
        end = self.length + len(tokens)
        if end > self.ids.shape[1]:  # capacity doubles, so that copying costs linear time in total
            self.ids = self.torch.cat([self.ids, self.torch.empty(1, end, dtype=self.torch.long)], dim=1)
        self.ids[0, self.length : end] = self.torch.tensor(tokens, dtype=self.torch.long)
        self.length = end

    def propose(self, budget: Budget) -> DraftTree:
        candidates, _ = self.generator.get_candidates(self.ids[:, : self.length])  # type: ignore[arg-type]
        return chain(candidates[0, self.length :].tolist(), budget)


class PromptLookup(LookupDrafter):
    """The same rule, implemented with a dictionary."""

    def __init__(
        self,
        prompt: Sequence[int],
        references: Sequence[Sequence[int]],
        eos: int,
        largest: int = LOOKUP_NGRAM,
        length: int = LOOKUP_TOKENS,
    ) -> None:
        super().__init__(prompt, [eos], largest, length)


class LongestSuffix:
    """Copies 24 tokens from the most recent of the longest suffix matches in references, prompt and output."""

    def __init__(self, prompt: Sequence[int], references: Sequence[Sequence[int]], eos: int) -> None:
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


class Llma:
    """LLMA: copies 19 tokens from the first occurrence in the references of the longest n-gram of generated tokens."""

    def __init__(self, prompt: Sequence[int], references: Sequence[Sequence[int]], eos: int) -> None:
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
            found = self.first.get(tuple(self.output[-n:]))
            if found is not None:
                which, end = found
                return chain(self.references[which][end : end + LLMA_TOKENS], budget)
        return EMPTY


class ShallowAggressive:
    """SAD (arXiv 2106.04970): drafts the whole rest of the source.

    After a difference, copying resumes where the last token of the output occurs exactly once in the source, else
    the last two, else the last three. If none does, a plain step follows. This is `paper_aggressive_generate` of the
    authors' code (microsoft/unilm, decoding/IAD); their other function takes a plain step after every difference
    before it looks for a match. A draft that the budget cut short is continued in the next step.
    """

    def __init__(self, prompt: Sequence[int], references: Sequence[Sequence[int]], eos: int) -> None:
        self.source = list(references[0]) if references else []
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
