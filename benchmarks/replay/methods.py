"""Makes the chain drafters of published rules from a row of the replay."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.budget import Budget
from copyspec.drafters.prompt_lookup import LOOKUP_NGRAM, LOOKUP_TOKENS, LookupDrafter
from copyspec.literature.copies import LlmaDrafter, SadDrafter, SuffixDrafter, chain
from copyspec.tree import DraftTree

NO_LIMIT = 1 << 62  # tokens; longer than any recorded output


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


class LongestSuffix(SuffixDrafter):
    """Copies 24 tokens from the most recent of the longest suffix matches in references, prompt and output."""

    def __init__(self, prompt: Sequence[int], references: Sequence[Sequence[int]], eos: int) -> None:
        super().__init__(prompt, references)


class Llma(LlmaDrafter):
    """LLMA, of the row's references."""

    def __init__(self, prompt: Sequence[int], references: Sequence[Sequence[int]], eos: int) -> None:
        super().__init__(references)


class ShallowAggressive(SadDrafter):
    """SAD, of the row's first reference."""

    def __init__(self, prompt: Sequence[int], references: Sequence[Sequence[int]], eos: int) -> None:
        super().__init__(references[0] if references else [])
