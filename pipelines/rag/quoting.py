"""Quotes answers from passages: a search selects the passage, the model quotes from it, and the quote is located."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from copyspec.common.checks import check_retriever
from copyspec.retrievers import STOP_WORDS, BM25Retriever, Hit, Retriever, Stems, words

from ..guards.likeness import are_akin
from ..instructions import check_template, fill
from ..models import correction_engine_of, model_of
from ..sentences import sentences
from .citing import Citation, citations
from .finding import stems_of

if TYPE_CHECKING:
    from copyspec.engine.results import Result

    from ..models import ModelLike

logger = logging.getLogger(__name__)

INSTRUCTION = "Quote the sentence that answers: {question}\n{passage}"
"""The instruction that the bundled model was trained on."""

MAX_LOOKED_AT = 50
"""Hits that are searched for a word of the question. With non-negative scores, the first hit has one if any has."""


def quote_prompt(question: str, passage: str, instruction: str = INSTRUCTION) -> str:
    """Return the prompt that asks for a quote. Raises ValueError if the instruction lacks one of the two fields."""
    return fill(check_template(instruction, "question", "passage"), question=question, passage=passage)


@dataclass(frozen=True, slots=True)
class Quote:
    """An answer and its place."""

    text: str
    passage: int  # index of the passage that the model was shown, or shown first
    start: int | None  # characters of that passage; None if the answer is not a verbatim quote
    end: int | None
    result: Result
    is_found: bool = True
    """False: nothing was found, and `text` is empty. Either no passage holds one of the question's `content_words`, or
    none of them is near the model's quote. The model's output is `result.text`."""

    citations: tuple[Citation, ...] = ()
    """Parts of the text that occur word for word in the passages that the model was shown."""

    @property
    def is_verbatim(self) -> bool:
        return self.start is not None


def answer(
    question: str,
    passages: Sequence[str] | Retriever,
    *,
    model: ModelLike = None,
    instruction: str = INSTRUCTION,
    max_new_tokens: int | None = None,
    stride: int | None = None,
) -> Quote:
    """Quote the answer to `question` from the passage that matches it best, or that a retriever finds.

    `start` and `end` of the quote are found by searching the passage, not taken from the model. If no word of the
    question occurs in the quote's sentences or beside them, the quote is rejected and the answer is empty. `stride`:
    search again after this many tokens, for the last tokens written (`IterativeRAG`); None: search once. Raises
    TypeError for a single string in place of passages, ValueError if none of them holds a word.
    """
    check_template(instruction, "question", "passage")
    if isinstance(passages, Sequence):
        passages = _by_words(passages)
    best, is_found = best_passage(question, passages)
    if not is_found:
        logger.warning("no passage shares a word with the question %r: passage %d is taken", question, best.id)
    if stride is None:
        texts, language_model = {best.id: best.text}, model_of(model, corrects=True)

        def ask(passage: str) -> Result:
            return language_model.answer(quote_prompt(question, passage, instruction), [passage], max_new_tokens)

        result = ask(best.text)
        if is_found and _misses_question(question, result, texts):
            result = ask(_narrowed(question, best.text))
    else:
        from .iterative import IterativeRAG  # imports torch

        layout = fill(instruction, question="{prompt}", passage="{document}")
        with IterativeRAG(passages, model=correction_engine_of(model), instruction=layout, stride=stride) as pipeline:
            answered = pipeline(question, max_new_tokens=max_new_tokens, temperature=0.0)
        result, best = answered.result, answered.documents[0].hit
        texts = {document.hit.id: document.hit.text for document in answered.documents}
    if not is_found or _misses_question(question, result, texts):
        logger.warning(
            "no answer: no content word of the question %r occurs in or next to the quoted sentences", question
        )
        return Quote("", best.id, None, None, result, is_found=False)
    text = result.content.strip()
    start = best.text.find(text) if text else -1
    return Quote(
        text=text,
        passage=best.id,
        start=start if start >= 0 else None,
        end=start + len(text) if start >= 0 else None,
        result=result,
        citations=near_ones(question, citations(text, texts), texts),
    )


def _misses_question(question: str, result: Result, texts: Mapping[int, str]) -> bool:
    """Whether no quote of the result is near a word of the question."""
    text = result.content.strip()
    cited = citations(text, texts)
    return bool(cited) and not near_ones(question, cited, texts)


def near_ones(question: str, cited: Sequence[Citation], texts: Mapping[int, str]) -> tuple[Citation, ...]:
    """The citations that are near a word of the question."""
    return tuple(
        citation
        for citation in cited
        if is_near(question, texts[citation.document], citation.document_start, citation.document_end)
    )


def _narrowed(question: str, passage: str) -> str:
    """The sentence with most of the question's words, as small models often miss it in a whole passage."""
    spans = sentences(passage) or [(0, len(passage))]
    question_words = set(content_words(question))
    start, end = max(spans, key=lambda span: len(question_words.intersection(words(passage[span[0] : span[1]]))))
    return passage[start:end]


def is_near(question: str, text: str, start: int, end: int) -> bool:
    """Whether one of the question's `content_words`, in some form, occurs in the sentences of text[start:end] or in a
    neighbouring one."""
    spans = sentences(text)
    inside = [index for index, span in enumerate(spans) if span[0] < end and span[1] > start]
    first, last = (max(0, inside[0] - 1), min(len(spans), inside[-1] + 2)) if inside else (0, len(spans))
    around = set(words(" ".join(text[begin:until] for begin, until in spans[first:last])))
    question_words = [word for word in content_words(question) if len(word) > 1 or not word.isascii()] or content_words(
        question
    )
    return any(word in around or any(are_akin(word, other) for other in around) for word in question_words)


def best_passage(question: str, passages: Sequence[str] | Retriever) -> tuple[Hit, bool]:
    """Return the best passage for the question, and whether it matches.

    With BM25 it matches if it holds one of the question's terms; the first hit of other retrievers always counts as a
    match. Raises ValueError for a retriever without texts.
    """
    if isinstance(passages, Sequence):
        retriever: Retriever = _by_words(passages)
    else:
        check_retriever("passages", passages)
        retriever = passages
    by_words = isinstance(retriever, BM25Retriever)
    hits = retriever.search(question, k=min(MAX_LOOKED_AT, max(1, len(retriever))) if by_words else 1)
    if not hits:
        raise ValueError(f"the retriever found nothing for the question {question!r}: it holds no texts")
    if not by_words:
        return hits[0], True
    stems = stems_of(retriever)
    question_words = set(stems.query(question))
    # Scores are not enough: stop words have positive ones, and in rank-bm25's formula other words may have none.
    best = next((hit for hit in hits if not question_words.isdisjoint(stems(hit.text))), None)
    return best or hits[0], best is not None


def content_words(question: str) -> list[str]:
    """Return the words of a question without repetitions and stop words, unless it has only stop words."""
    question_words = list(dict.fromkeys(words(question)))
    return [word for word in question_words if word not in STOP_WORDS] or question_words


def _by_words(passages: Sequence[str]) -> BM25Retriever:
    # In rank-bm25's formula, the words of only two passages have no positive weight.
    return BM25Retriever(passages, split=Stems(), idf="lucene")
