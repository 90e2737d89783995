"""Prompt lookup decoding as in transformers (Saxena 2023), as a drafter; `compare` uses it as a baseline."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from copyspec.budget import Budget
from copyspec.drafters.custom import DraftContext
from copyspec.tree import EMPTY, DraftTree

LOOKUP_NGRAM, LOOKUP_TOKENS = 2, 10  # max_matching_ngram_size; prompt_lookup_num_tokens as its documentation uses it


class LookupDrafter:
    """Drafts what followed the leftmost match of the last `largest` tokens, or of fewer, in prompt and output."""

    def __init__(
        self, prompt: Sequence[int], ends: Collection[int], largest: int = LOOKUP_NGRAM, length: int = LOOKUP_TOKENS
    ) -> None:
        """`ends`: token ids before which a draft stops; `length`: maximum number of tokens of a draft."""
        self._ends, self._largest, self._length = frozenset(ends), largest, length
        self.tokens: list[int] = []
        self.first: dict[tuple[int, ...], int] = {}  # n-gram -> where its leftmost occurrence ends
        self.accept(prompt)

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the text and index its new n-grams."""
        for token in tokens:
            self.tokens.append(token)
            for n in range(1, self._largest + 1):
                if len(self.tokens) >= n:
                    self.first.setdefault(tuple(self.tokens[-n:]), len(self.tokens))

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain. The method has no estimates of acceptance, so every score is 1."""
        for n in range(self._largest, 0, -1):
            start = self.first.get(tuple(self.tokens[-n:]), len(self.tokens))
            if start < len(self.tokens):
                draft = self.tokens[start : start + self._length]
                end = next((at for at, token in enumerate(draft) if token in self._ends), len(draft))
                return DraftTree.of_chain(draft[: budget.cut([1.0] * end)], 1.0)
        return EMPTY


def prompt_lookup(context: DraftContext) -> LookupDrafter:
    """Make the drafter of one row, for `drafter=`."""
    return LookupDrafter(context.prompt, context.eos_token_ids)
