"""Answers questions from documents: word statistics find the sentence, a model may write the answer with citations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from copyspec.common.checks import check_retriever, check_type, check_whole
from copyspec.engine.asking.inputs import PromptTooLongError
from copyspec.retrievers import BM25Retriever, Hit, Retriever, Stems

from ..instructions import check_template, fill
from ..models import model_of
from .citing import Citation, CitationStream, citations
from .finding import ScoredUnit, find, rarity_in, stems_of, widened
from .quoting import INSTRUCTION, near_ones

if TYPE_CHECKING:
    from copyspec.engine.results import Result

    from ..language_model import LanguageModel
    from ..models import ModelLike

DEFAULT_PASSAGES = 8
"""Default number of passages to search for the answer: of 45 questions about manuals, 42 are answered in the first
eight."""

NOTHING = "no answer"

ANSWER_INSTRUCTION = (
    "Answer the question with the sentence of the passages that answers it, word for word. "
    f"If none does, write: {NOTHING}\n\n{{passage}}\n\nQuestion: {{question}}"
)
"""For models that follow instructions; models trained to quote get `quoting.INSTRUCTION`."""

MIN_COVERAGE = 0.34  # least share of the question's words, by weight, in or near a sentence that answers it
SURE_SCORE, SURE_MARGIN = 0.8, 0.1  # least score of a sure sentence, and least lead over the next one
CERTAIN_SCORE, CERTAIN_MARGIN = 1.05, 0.02  # the same for sentences with all words and bonuses, which need less lead
AGREE_MARGIN = 0.25  # a model's quote is sure if its score is at most this much below the best sentence's
DOUBTED_CHARS = 550  # `extent` to quote, with neighbouring sentences, if the best one is not sure
_CANDIDATES = 5


@dataclass(frozen=True, slots=True)
class DocumentAnswer:
    """An answer with its citations."""

    text: str
    is_found: bool  # False: `text` is empty
    is_sure: bool  # False: another sentence fits nearly as well, or no part of the text is found in the passages
    citations: tuple[Citation, ...]  # `document` is the id of a passage
    passages: tuple[Hit, ...]  # passages that were searched, best first
    result: Result | None = None  # of the model, if one was called


@dataclass(frozen=True, slots=True)
class AnswerChunk:
    """A piece of a streamed answer; the last one has no text and the whole answer."""

    text: str
    citations: tuple[Citation, ...] = ()  # citations that end in this piece
    answer: DocumentAnswer | None = None


class DocumentAnswers:
    """Answers questions from a retriever's passages.

    Without `model`, the answer is the sentence, list item or table row that matches the question's words best, weighted
    by rarity, and including headings and neighbouring sentences (`finding`). With a model, it writes the answer from
    the `k` best passages. The answer is sure if it quotes a sentence that also ranks high by words. Small models that
    were trained to quote (copyspec's own) only see the text around the best sentence, which is sure if they quote it.

    `contexts`: a text for each passage that is searched with it, such as `Passage.context`. Raises ValueError for
    another number of them and for k < 1, TypeError for arguments of another type.
    """

    def __init__(
        self,
        retriever: Retriever | Sequence[str],
        *,
        model: ModelLike = None,
        contexts: Sequence[str] | None = None,
        k: int = DEFAULT_PASSAGES,
        instruction: str | None = None,
        max_new_tokens: int | None = None,
    ) -> None:
        check_whole("k", k, low=1)
        texts = isinstance(contexts, (list, tuple)) and all(isinstance(context, str) for context in contexts)
        check_type(contexts is None or texts, "contexts", contexts, "a list of str")
        if max_new_tokens is not None:
            check_whole("max_new_tokens", max_new_tokens, low=1)
        if not isinstance(retriever, Sequence):
            check_retriever("retriever", retriever)
        else:
            retriever = BM25Retriever(retriever, split=Stems(), idf="lucene", contexts=contexts)
        if instruction is not None:
            check_template(instruction, "question", "passage")
        self._retriever, self._contexts, self._k = retriever, contexts, k
        self._check_contexts()
        self._model: LanguageModel | None = model_of(model, corrects=True) if model is not None else None
        self._instruction, self._max_new_tokens = instruction, max_new_tokens
        self._stems = stems_of(retriever)

    def _check_contexts(self) -> None:
        if self._contexts is not None and len(self._contexts) != len(self._retriever):
            raise ValueError(f"contexts holds {len(self._contexts)} entries for {len(self._retriever)} passages")

    def __call__(self, question: str) -> DocumentAnswer:
        """Answer a question. Raises ValueError for an empty one, TypeError for anything but a str."""
        answer = None
        for chunk in self.stream(question):
            answer = chunk.answer
        assert answer is not None  # the last chunk has it
        return answer

    def stream(self, question: str) -> Iterator[AnswerChunk]:
        """Yield the answer in pieces, each with the citations that end in it; the last piece has the whole answer."""
        check_type(isinstance(question, str), "question", question, "a str")
        if not question.strip():
            raise ValueError(f"the question {question!r} is empty; write a question")
        self._check_contexts()  # texts may have been added
        hits = [hit for hit in self._retriever.search(question, self._k) if hit.score > 0 or not self._by_words()]
        units = self._find(question, hits)
        if not units or units[0].coverage < MIN_COVERAGE:
            yield AnswerChunk("", (), DocumentAnswer("", False, False, (), tuple(hits)))
        elif self._model is None:
            yield from _whole(_by_words(hits, units))
        elif self._instruction is None and self._model.corrects:
            yield from _whole(self._quoted(self._model, question, hits, units))
        else:
            yield from self._written(self._model, question, hits, units)

    def _by_words(self) -> bool:
        return isinstance(self._retriever, BM25Retriever)

    def _find(self, question: str, hits: Sequence[Hit]) -> list[ScoredUnit]:
        contexts = self._contexts
        passages = [(contexts[hit.id] if contexts is not None else "", hit.text) for hit in hits]
        rarity = rarity_in(self._retriever, hits, self._stems)
        return find(question, passages, rarity, self._stems, most=_CANDIDATES)

    def _quoted(self, model: LanguageModel, question: str, hits: list[Hit], units: list[ScoredUnit]) -> DocumentAnswer:
        """The best sentence by words, which is sure only if the model quotes it, too."""
        best = units[0]
        hit = hits[best.passage]
        around = _around(hit.text, best)
        prompt = fill(INSTRUCTION, question=question, passage=around)
        result = model.answer(prompt, [around], self._max_new_tokens)
        answer = _by_words(hits, units)
        cited = citations(result.content.strip(), {hit.id: hit.text})
        agrees = any(citation.document_start < best.end and citation.document_end > best.start for citation in cited)
        return DocumentAnswer(answer.text, True, answer.is_sure and agrees, answer.citations, tuple(hits), result)

    def _written(
        self, model: LanguageModel, question: str, hits: list[Hit], units: list[ScoredUnit]
    ) -> Iterator[AnswerChunk]:
        """The answer that the model writes from the passages."""
        template = self._instruction or ANSWER_INSTRUCTION
        passages = self._fitting(model, template, question, hits)
        while True:
            prompt = self._prompt(template, question, passages)
            try:
                chunks = model.stream(prompt, [hit.text for hit in passages], self._max_new_tokens)
                first = next(chunks)
                break
            except PromptTooLongError:  # a server knows better than an estimate
                if len(passages) == 1:
                    raise
                passages = passages[:-1]
        written, yielded_chars, yielded_citations, result = "", 0, 0, None
        texts = {hit.id: hit.text for hit in passages}
        stream = CitationStream(texts)
        with closing(chunks):
            for chunk in chain([first], chunks):
                written += chunk.content
                result = chunk.result or result
                if NOTHING.startswith(_plain(written)):
                    continue  # may become a refusal, which is no answer
                border = stream.settle(written)
                if border > yielded_chars:
                    yield AnswerChunk(written[yielded_chars:border], tuple(stream.citations[yielded_citations:]))
                    yielded_chars, yielded_citations = border, len(stream.citations)
        cited = citations(written, texts)
        near = near_ones(question, cited, texts)
        has_answer = _plain(written) not in ("", NOTHING)
        good = [unit for unit in units if unit.score >= units[0].score - AGREE_MARGIN]
        spans = [(hits[unit.passage].id, unit.start, unit.end) for unit in good]
        agrees = any(
            citation.document == id and citation.document_start < end and citation.document_end > start
            for citation in near
            for id, start, end in spans
        )
        text = written if has_answer else ""
        answer = DocumentAnswer(
            text, has_answer, has_answer and agrees, cited if has_answer else (), tuple(hits), result
        )
        if has_answer:
            yield AnswerChunk(written[yielded_chars:], tuple(cited[yielded_citations:]))
        yield AnswerChunk("", (), answer)

    def _fitting(self, model: LanguageModel, template: str, question: str, hits: list[Hit]) -> list[Hit]:
        """The best passages, as many as fit into the model's context, but at least one."""

        def exceeds(count: int) -> bool:
            return not model.fits(self._prompt(template, question, hits[:count]))

        return hits[: 1 + bisect_right(range(2, len(hits) + 1), False, key=exceeds)]

    def _prompt(self, template: str, question: str, passages: Sequence[Hit]) -> str:
        contexts = self._contexts
        blocks = [f"{contexts[hit.id]}\n{hit.text}" if contexts is not None else hit.text for hit in passages]
        return fill(template, question=question, passage="\n\n".join(blocks))


def _plain(written: str) -> str:
    """What a model wrote, in the form that is compared with `NOTHING`."""
    return written.strip().lower().strip(".")


def is_sure(units: Sequence[ScoredUnit]) -> bool:
    """Whether the best of the found units is probably the answer."""
    best, margin = units[0], units[0].score - (units[1].score if len(units) > 1 else 0.0)
    is_certain = best.score >= CERTAIN_SCORE and margin >= CERTAIN_MARGIN
    return best.holds_value and (is_certain or (best.score >= SURE_SCORE and margin >= SURE_MARGIN))


def _by_words(hits: Sequence[Hit], units: Sequence[ScoredUnit]) -> DocumentAnswer:
    best, sure = units[0], is_sure(units)
    hit = hits[best.passage]
    start, end = (best.start, best.end) if sure else widened(hit.text, best.start, best.end, DOUBTED_CHARS)
    text = hit.text[start:end]
    cited = Citation(0, len(text), hit.id, start, end)
    return DocumentAnswer(text, True, sure, (cited,), tuple(hits))


def _whole(answer: DocumentAnswer) -> Iterator[AnswerChunk]:
    yield AnswerChunk(answer.text, answer.citations)
    yield AnswerChunk("", (), answer)


def _around(text: str, unit: ScoredUnit) -> str:
    """The paragraphs around a sentence, a few hundred characters."""
    start = text.rfind("\n\n", 0, max(0, unit.start - 150)) + 1
    end = text.find("\n\n", unit.end + 150)
    return text[start : end if end >= 0 else len(text)].strip()
