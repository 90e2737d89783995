"""Copying rules of other papers as drafters: outputs equal plain decoding, and each drafts from its own texts."""

from __future__ import annotations

import pytest

from copyspec import Engine
from copyspec.drafters.custom import DraftContext, DrafterFactory
from copyspec.literature import LLMA, SAD, LongestSuffix, PromptLookup
from copyspec.literature.copies import LlmaDrafter, SadDrafter, SuffixDrafter
from copyspec.sources import Source

RULES = [PromptLookup(), PromptLookup(largest=4, length=3), LongestSuffix(), LLMA(), SAD()]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", RULES, ids=str)
def test_output_equals_plain_decoding(engine: Engine, drafter: DrafterFactory, temperature: float) -> None:
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 2}
    plain = engine.generate("a b c a b c a", drafter="none", **options)
    for references in ([plain.text], [], ["x", plain.text[5:]]):
        drafted = engine.generate("a b c a b c a", references, drafter=drafter, **options)
        assert drafted.token_ids == plain.token_ids


def test_the_edited_text_then_references_then_the_prompt_is_copied() -> None:
    prompt, edited, reference = [1, 2, 3], [7, 8, 9], [4, 5, 6]
    for texts, first in (([edited, reference], edited), ([reference], reference), ([], prompt)):
        sources = [Source(text, "edit" if text is edited else "reference") for text in texts]
        sources.append(Source(prompt, "prompt"))
        context = DraftContext(prompt, sources, frozenset(), 10, lambda text: [], lambda tokens: "")
        sad, llma = SAD()(context), LLMA()(context)
        assert isinstance(sad, SadDrafter) and sad.source == first
        assert isinstance(llma, LlmaDrafter) and list(llma.references) == (texts or [prompt])
        suffix = LongestSuffix()(context)
        assert isinstance(suffix, SuffixDrafter) and suffix.tokens[-3:] == prompt


@pytest.mark.parametrize(("largest", "length"), [(0, 1), (1, 0), (65, 1), (1.5, 2)])
def test_sizes_out_of_range_are_refused(largest: int, length: int) -> None:
    with pytest.raises((ValueError, TypeError), match=r"largest|length"):
        PromptLookup(largest, length)
