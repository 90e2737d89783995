"""`copyspec rag`: answers questions from an index, with sources."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import copyspec
from copyspec.cli.common import STDIN, UsageError, as_json, check_outputs, panel, quiet_libraries, read_line, with_flags
from copyspec.cli.index import DEFAULT_FOLDER, FOLDER_VARIABLE, corpus_folder
from copyspec.cli.model_options import NamedModel
from copyspec.cli.printing import echo
from copyspec.cli.remote_options import EMBEDDER_HELP, ServerOptions, embedder_of, usage_report
from copyspec.cli.showing import write_page
from copyspec.common.checks import option

if TYPE_CHECKING:
    from copyspec import Engine, Remote, Result
    from copyspec.pipelines import Citation, DocumentAnswer
    from copyspec.retrievers import Passage, Retriever
    from copyspec.views.provenance import Provenance

_search = panel("Search")
_PASSAGES = 8
_RERANKED = 20  # passages that --reranker orders, or as many as --passages asks for


@dataclass(frozen=True, slots=True)
class AnsweringModel(NamedModel):
    """The model that writes the answer."""

    model: str | None = option(
        None, "Model that writes the answer. Default: none; the best sentence is quoted.", "--model", "-m"
    )


_SEARCH, _MODEL, _OUTPUT = ({"rich_help_panel": title} for title in ("Search", "Model", "Output"))


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How questions are answered, and what is shown. Raises UsageError for invalid options, alone or combined."""

    encoder: str | None = option(
        None, "Hub id or folder of the encoder that a dense or hybrid corpus was made with.", **_SEARCH
    )
    embedder_server: str | None = option(None, EMBEDDER_HELP, rich_help_panel="Server")
    passages: int | None = option(
        None, "Number of passages to search for the answer. Default: 8.", "--passages", "-k", **_SEARCH
    )
    reranker: str | None = option(None, "A cross-encoder that reranks the passages.", **_SEARCH)
    stride: int = option(0, "With a model: retrieve again every this many tokens; 0: once.", **_SEARCH)
    instruction: str | None = option(None, "The prompt, with {question} and {passage}.", **_MODEL)
    max_new_tokens: int | None = option(None, "Default: 512.", **_MODEL)
    json_output: bool = option(False, "Print answer and sources as JSON.", "--json", **_OUTPUT)
    stream: bool = option(False, "Show the answer as it is written, with a number after each quoted part.", **_OUTPUT)
    html: Path | None = option(None, "Write an HTML page that shows where each quoted part comes from.", **_OUTPUT)

    def __post_init__(self) -> None:
        check_outputs({"--html": self.html}, ())
        if str(self.html) == STDIN and (self.json_output or self.stream):
            other = "json" if self.json_output else "stream"
            raise UsageError(f"--html - and --{other} both write to stdout; give one a file")
        if self.stream and self.json_output:
            raise UsageError("--stream and --json both write to stdout; leave one out")
        if self.stride < 0:
            raise UsageError(f"--stride must be at least 0, got {self.stride}")
        if self.passages is not None and self.passages < 1:
            raise UsageError(f"--passages must be at least 1, got {self.passages}")
        if self.stride and self.passages is not None:
            raise UsageError(
                f"--stride {self.stride} takes one passage at a time: leave out --passages {self.passages}"
            )
        if self.stride and self.stream:
            raise UsageError(f"--stride {self.stride} shows the answer when it is whole: leave out --stream")


def rag(
    *,
    index: Annotated[str, typer.Option("--index", "-i", help="A corpus made by copyspec index: name or folder.")],
    question: Annotated[
        str | None, typer.Argument(help="The question. Default: every line of stdin, shown with its answer.")
    ] = None,
    folder: Annotated[
        Path, _search("Folder that holds the corpora.", "--dir", "-d", envvar=FOLDER_VARIABLE)
    ] = DEFAULT_FOLDER,
    how: AnswerOptions,
    model: Annotated[AnsweringModel, "Model"],
    server: Annotated[ServerOptions, "Server"],
) -> None:
    """Answer a question from an index, and show which document and characters each quoted part stands in.

    Without --model the answer is the sentence that best matches the words of the question; with it, a
    model writes the answer from the passages found. Quotes are looked up in the documents: they are verbatim. "Perhaps"
    marks an answer that another sentence matches nearly as well, or that quotes nothing. Where no sentence matches
    enough of the question there is no answer: exit code 1, also where that is so for one of several questions, and an
    empty text with --json, which gives a line for each of several questions.
    """
    if how.html is not None and question is None:
        raise UsageError("--html shows one answer: give the question")
    if question is not None and not question.strip():
        raise UsageError(f"the question {question!r} is empty; write a question")
    is_named = model.model is not None or model.adapter is not None or bool(how.stride)
    if how.instruction is not None and not is_named and server.server is None:
        raise UsageError("--instruction is the prompt of a model: give --model, or leave it out")
    from copyspec.retrievers import CrossEncoderScorer, IndexFileError, RerankingRetriever, load_corpus

    # A reranker has a device, too.
    remote = server.remote(replace(model, device=None), {"--stride": how.stride or None})
    calls_model = remote is None and is_named
    if calls_model or (how.encoder is not None and how.embedder_server is None) or how.reranker is not None:
        quiet_libraries()  # imports transformers, which takes longer than a search by words
    path = corpus_folder("--index", index, folder)
    try:
        embedder = None
        if how.embedder_server is not None:
            embedder = embedder_of(how.embedder_server, how.encoder, server.api_key_file)
        retriever, corpus = load_corpus(path, encode=embedder or how.encoder)
    except (ValueError, IndexFileError) as error:
        raise UsageError(with_flags(str(error), {"encode": "--encoder"})) from error
    engine: Engine | Remote | None = remote
    if calls_model:
        engine = model.load(corrects=True)
    if how.reranker is not None:
        score = CrossEncoderScorer(how.reranker, device=model.device)
        retriever = RerankingRetriever(retriever, score, depth=max(_RERANKED, how.passages or 0))
    is_list = question is None and not sys.stdin.isatty()  # on a terminal questions stand above their answers already
    answerer = _Answerer(retriever, corpus, engine, how, is_list)
    with usage_report(remote), closing(embedder) if embedder is not None else nullcontext():
        if question is not None:
            raise typer.Exit(answerer.ask(question))
        status = 0
        while (line := read_line()) is not None:
            if line.strip():
                status = max(status, answerer.ask(line.strip()))
        raise typer.Exit(status if is_list else 0)


@dataclass(frozen=True, slots=True)
class _Answerer:
    """Answers questions from one corpus and prints the answers."""

    retriever: Retriever
    passages: Sequence[Passage]
    engine: Engine | Remote | None
    how: AnswerOptions
    is_list: bool  # several questions: print each with its answer

    def ask(self, question: str) -> int:
        """Print the answer and return the exit status."""
        if self.is_list and not self.how.json_output:
            echo(question)
        try:
            status = self._ask(question)
        except copyspec.PromptTooLongError as error:  # the next question may fit
            status = self._nothing(question, str(error))
        if self.is_list and not self.how.json_output:
            echo()
        return status

    def _ask(self, question: str) -> int:
        from copyspec.pipelines import best_passage, content_words

        holds = best_passage(question, self.retriever)[1]
        named = ", ".join(map(repr, content_words(question))) or repr(question)
        missing = f"none of the {len(self.retriever)} passages holds {named}"
        if self.how.stride and not holds:
            return self._nothing(question, missing)
        # The answerer also counts titles and headings, which are no part of a passage's text.
        answer = self._strided(question) if self.how.stride else self._answered(question)
        if not answer.is_found:
            if answer.result is not None:
                return self._nothing(question, "the model finds none in the passages")
            too_far = "too little of the question stands in or near any sentence"
            return self._nothing(question, too_far if holds else missing)
        sources = [_Source.of(citation, answer.text, self.passages[citation.document]) for citation in answer.citations]
        text = answer.text if sources else answer.text.strip()
        view = _AnswerView(question, text, answer.is_sure, answer.result, sources)
        if self.how.html is not None:
            from copyspec.views.provenance_page import provenance_page

            page = provenance_page(
                _provenance(answer.text, answer.citations, self.passages), facts=[f"question: {question}"]
            )
            write_page(self.how.html, page)
        if str(self.how.html) != STDIN:
            echo(self._json(view) if self.how.json_output else view.lines(self.how.stream))
        if not sources and not self.how.json_output:
            echo("nothing in this answer is quoted verbatim from the passages", err=True)
        return 0

    def _answered(self, question: str) -> DocumentAnswer:
        from copyspec.pipelines import DocumentAnswers

        answers = DocumentAnswers(
            self.retriever,
            model=self.engine,
            contexts=[passage.context for passage in self.passages],
            k=self.how.passages or _PASSAGES,
            instruction=self.how.instruction,
            max_new_tokens=self.how.max_new_tokens,
        )
        if not self.how.stream:
            return answers(question)
        answer, begins, num_cited = None, 0, 0
        for chunk in answers.stream(question):
            at = 0
            for number, cited in enumerate(chunk.citations, num_cited + 1):
                echo(f"{chunk.text[at : cited.end - begins]} [{number}]", end="")
                at = cited.end - begins
            echo(chunk.text[at:], end="", flush=True)
            begins, num_cited = begins + len(chunk.text), num_cited + len(chunk.citations)
            answer = chunk.answer
        assert answer is not None
        if answer.text:
            echo(flush=True)
        return answer

    def _strided(self, question: str) -> DocumentAnswer:
        """The answer of a model that gets new documents while it writes."""
        from copyspec.pipelines import DocumentAnswer, answer

        options = {"instruction": self.how.instruction} if self.how.instruction is not None else {}
        quote = answer(
            question,
            self.retriever,
            model=self.engine,
            max_new_tokens=self.how.max_new_tokens,
            stride=self.how.stride,
            **options,
        )
        return DocumentAnswer(quote.text, quote.is_found, bool(quote.citations), quote.citations, (), quote.result)

    def _nothing(self, question: str, why: str) -> int:
        if self.how.json_output:
            echo(self._json(_AnswerView(question, "", False, None, [])))
        echo(f"no answer found: {why}", err=self.how.json_output or not self.is_list)
        return 1

    def _json(self, view: _AnswerView) -> str:
        """The answer as JSON; on one line if there are several questions."""
        return as_json(view.to_dict(), indent=None if self.is_list else 2)


def _provenance(answer: str, citations: Sequence[Citation], passages: Sequence[Passage]) -> Provenance:
    """The quoted parts of an answer with the passages they were found in."""
    from copyspec.views.provenance import CopiedPiece, Provenance, SourceText, TextPlace

    numbers = {
        document: number for number, document in enumerate(dict.fromkeys(citation.document for citation in citations))
    }
    sources = []
    for index in numbers:
        passage = passages[index]
        name = _shown(passage.document) + (f", page {passage.page}" if passage.page else "")
        name = f"{name}, from character {passage.start}" if passage.start else name
        sources.append(SourceText(name, "passage", None, passage.text))
    pieces = []
    for citation in citations:
        place = TextPlace(numbers[citation.document], citation.document_start, citation.document_end)
        pieces.append(CopiedPiece(citation.start, citation.end, place))
    return Provenance(answer, tuple(sources), tuple(pieces))


def _shown(document: str) -> str:
    """The name of a document, relative to the working directory if it is in there."""
    here = os.path.join(os.getcwd(), "")
    return document.removeprefix(here) or "(no document)"


@dataclass(frozen=True, slots=True)
class _Source:
    """A quoted part and its place in a document."""

    quote: str
    start: int  # in characters of the answer
    end: int
    document: str
    document_start: int
    document_end: int
    heading: str
    page: int | None

    @classmethod
    def of(cls, citation: Citation, answer: str, passage: Passage) -> _Source:
        return cls(
            answer[citation.start : citation.end],
            citation.start,
            citation.end,
            passage.document,
            passage.start + citation.document_start,
            passage.start + citation.document_end,
            passage.heading,
            passage.page,
        )


@dataclass(frozen=True, slots=True)
class _AnswerView:
    """An answer with its sources."""

    question: str
    answer: str
    is_sure: bool
    result: Result | None
    sources: list[_Source]

    def lines(self, is_shown: bool) -> str:
        """The answer, unless already printed, and a line for each quoted part; of one that is all of it the place."""
        doubt = [] if self.is_sure else ["(perhaps: this is not sure)"]
        lines = doubt if is_shown else ["".join(("" if self.is_sure else "Perhaps: ", self.answer))]
        for number, source in enumerate(self.sources, 1):
            mark = f"[{number}] " if is_shown else ""
            page = f", page {source.page}" if source.page else ""
            place = f"{_shown(source.document)}{page}, characters {source.document_start} to {source.document_end}"
            is_whole = source.quote.strip() == self.answer.strip()
            lines.append(f"{mark}{place}" if is_whole else f"{mark}{place}: {' '.join(source.quote.split())}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """The answer for JSON."""
        from dataclasses import asdict

        return {
            "question": self.question,
            "text": self.answer,
            "is_sure": self.is_sure,
            "finish_reason": self.result.finish_reason if self.result is not None else None,
            "sources": [asdict(source) for source in self.sources],
            "stats": self.result.stats.to_dict() if self.result is not None else None,
        }
