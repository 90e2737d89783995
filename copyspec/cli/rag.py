"""`copyspec rag`: a question, the passages of an index, an answer with its sources."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from copyspec.cli.common import STDIN, UsageError, as_json, in_options, quiet_libraries
from copyspec.cli.index import DEFAULT_FOLDER, FOLDER_VARIABLE, corpus_folder
from copyspec.cli.showing import check_page, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from copyspec import Result
    from copyspec.pipelines import Citation
    from copyspec.retrievers import Passage
    from copyspec.views.provenance import Provenance

_MODEL, _SEARCH, _OUTPUT = "Model", "Search", "Output"


def rag(
    question: Annotated[str, typer.Argument(help="What is asked.")],
    index: Annotated[str, typer.Option("--index", "-i", help="A corpus of copyspec index, by name or as a folder.")],
    folder: Annotated[
        Path,
        typer.Option(
            "--dir", "-d", envvar=FOLDER_VARIABLE, help="The folder that holds the corpora.", rich_help_panel=_SEARCH
        ),
    ] = DEFAULT_FOLDER,
    encoder: Annotated[
        str | None,
        typer.Option(help="Of a dense corpus: the hub id or folder that it was made with.", rich_help_panel=_SEARCH),
    ] = None,
    stride: Annotated[
        int, typer.Option(help="Search again after so many tokens; 0 searches once.", rich_help_panel=_SEARCH)
    ] = 0,
    instruction: Annotated[
        str | None, typer.Option(help="With {question} and {passage}.", rich_help_panel=_MODEL)
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Default as in generate.", rich_help_panel=_MODEL)
    ] = None,
    device: Annotated[str | None, typer.Option(help="As in generate.", rich_help_panel=_MODEL)] = None,
    dtype: Annotated[str, typer.Option(help="As in generate.", rich_help_panel=_MODEL)] = "auto",
    threads: Annotated[int | None, typer.Option(help="As in generate.", rich_help_panel=_MODEL)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Default 512.", rich_help_panel=_MODEL)] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Answer and sources as JSON.", rich_help_panel=_OUTPUT)
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="A page that shows where each quoted part stands.", rich_help_panel=_OUTPUT),
    ] = None,
) -> None:
    """Answer a question from an index, and show which document and characters each quoted part stands in.

    What is shown as quoted stands there word for word: it is looked up in the documents. Where no passage holds a
    word of the question, or none stands in or beside the sentences that were quoted, there is no answer: the exit
    status is 1, and with --json the text is empty.
    """
    check_page(html)
    if str(html) == STDIN and json_output:
        raise UsageError("--html - and --json both write to stdout; give one of them a file")
    if stride < 0:
        raise UsageError(f"--stride must be at least 0, got {stride}")
    if not question.strip():
        raise UsageError(f"the question {question!r} is empty; write what is asked")
    from copyspec.api import load_corrector
    from copyspec.pipelines import answer, best_passage, content_words
    from copyspec.retrievers import load_corpus

    quiet_libraries()
    path = corpus_folder("--index", index, folder)
    try:
        retriever, passages = load_corpus(path, encode=encoder)
    except ValueError as error:
        raise UsageError(in_options(str(error), {"encode": "--encoder"})) from error
    if not best_passage(question, retriever)[1]:
        named = ", ".join(map(repr, content_words(question))) or repr(question)
        if json_output:
            typer.echo(as_json({"text": "", "finish_reason": None, "sources": [], "stats": None}))
        print(f"no answer found: none of the {len(retriever)} passages holds {named}", file=sys.stderr)
        raise typer.Exit(1)
    engine = load_corrector(model, device=device, dtype=dtype)
    engine.threads = threads
    options = {"instruction": instruction} if instruction is not None else {}
    quote = answer(question, retriever, model=engine, max_new_tokens=max_new_tokens, stride=stride or None, **options)
    if not quote.is_found:
        if json_output:
            typer.echo(as_json(_Shown("", quote.result, []).to_dict()))
        print("no answer found: no word of the question stands near what was quoted", file=sys.stderr)
        raise typer.Exit(1)
    sources = [_Source.of(each, quote.text, passages[each.document]) for each in quote.citations]
    shown = _Shown(quote.text, quote.result, sources)
    if html is not None:
        from copyspec.views.provenance_page import provenance_page

        facts = [f"question: {question}"]
        write_page(html, provenance_page(_provenance(quote.text, quote.citations, passages), facts=facts))
    if str(html) != STDIN:
        typer.echo(as_json(shown.to_dict()) if json_output else shown.text())
    if not sources and not json_output:
        print("nothing of this stands word for word in the passages", file=sys.stderr)


def _provenance(answer: str, citations: Sequence[Citation], passages: Sequence[Passage]) -> Provenance:
    """The answer's quoted parts in the passages that they stand in."""
    from copyspec.views.provenance import CopiedPiece, Provenance, SourceText, TextPlace

    numbers = {document: number for number, document in enumerate(dict.fromkeys(each.document for each in citations))}
    sources = []
    for index in numbers:
        passage = passages[index]
        name = f"{passage.document}, from character {passage.start}" if passage.start else passage.document
        sources.append(SourceText(name, "passage", None, passage.text))
    pieces = []
    for each in citations:
        place = TextPlace(numbers[each.document], each.document_start, each.document_end)
        pieces.append(CopiedPiece(each.start, each.end, place))
    return Provenance(answer, tuple(sources), tuple(pieces))


@dataclass(frozen=True, slots=True)
class _Source:
    """A quoted part and where it stands."""

    quote: str
    start: int  # characters of the answer
    end: int
    document: str
    document_start: int
    document_end: int

    @classmethod
    def of(cls, citation: Citation, answer: str, passage: Passage) -> _Source:
        return cls(
            answer[citation.start : citation.end],
            citation.start,
            citation.end,
            passage.document,
            passage.start + citation.document_start,
            passage.start + citation.document_end,
        )


@dataclass(frozen=True, slots=True)
class _Shown:
    """An answer with its sources."""

    answer: str
    result: Result
    sources: list[_Source]

    def text(self) -> str:
        """The answer and a line for each quoted part."""
        lines = [self.answer]
        for each in self.sources:
            place = f"{each.document}, characters {each.document_start} to {each.document_end}"
            lines.append(f"{place}: {' '.join(each.quote.split())}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        from dataclasses import asdict

        return {
            "text": self.answer,
            "finish_reason": self.result.finish_reason,
            "sources": [asdict(each) for each in self.sources],
            "stats": self.result.stats.to_dict(),
        }
