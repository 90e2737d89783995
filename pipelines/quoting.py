"""Answers quoted from passages: BM25 chooses the passage, the model quotes from it, the quote is located."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from copyspec import Result
from copyspec.retrievers import BM25Retriever, words

from .models import check_template, engine_of, fill, wants_chat

if TYPE_CHECKING:
    from .models import ModelLike

logger = logging.getLogger(__name__)

INSTRUCTION = "Quote the sentence that answers: {question}\n{passage}"
"""What the bundled model was trained on."""


def quote_prompt(question: str, passage: str, instruction: str = INSTRUCTION) -> str:
    """The prompt that asks for a quote. Raises ValueError where the instruction lacks one of the two fields."""
    return fill(check_template(instruction, "question", "passage"), question=question, passage=passage)


@dataclass(frozen=True, slots=True)
class Quote:
    """An answer, and where it stands."""

    text: str
    passage: int  # index among the passages given: the one that the model was shown
    start: int | None  # characters of that passage; None where the answer is no verbatim quote
    end: int | None
    result: Result
    is_found: bool = True
    """False: the question shares no word with any passage, and the first was taken."""

    @property
    def is_verbatim(self) -> bool:
        return self.start is not None


def answer(
    question: str,
    passages: Sequence[str],
    *,
    model: ModelLike = None,
    instruction: str = INSTRUCTION,
    max_new_tokens: int | None = None,
) -> Quote:
    """Quotes the answer to `question` from the passage that shares most words with it.

    The quote is looked up in the passage: `start` and `end` are a fact about the text, not the model's claim.
    Raises TypeError for one string in place of passages, ValueError where none of them holds a word.
    """
    hits = BM25Retriever(passages).search(question, k=max(1, len(passages)))
    asked = set(words(question))
    # Scores alone do not tell: those of words that most passages hold may be below zero.
    best = next((hit for hit in hits if not asked.isdisjoint(words(hit.text))), None)
    is_found = best is not None
    if best is None:
        best = hits[0]
        logger.warning("no passage shares a word with the question %r: the first is taken", question)
    engine = engine_of(model)
    result = engine.generate(
        quote_prompt(question, best.text, instruction),
        references=[best.text],
        chat=wants_chat(engine),
        max_new_tokens=max_new_tokens,
    )
    text = result.text.strip()
    start = best.text.find(text) if text else -1
    return Quote(
        text=text,
        passage=best.id,
        start=start if start >= 0 else None,
        end=start + len(text) if start >= 0 else None,
        result=result,
        is_found=is_found,
    )
