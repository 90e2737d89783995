"""Calls every function, command and class that loads a model, for a case of `tests.fuzz.models`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Entrance = Callable[["Place"], object]


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of a case."""

    folder: Path  # the hostile model
    good: Path  # an honest model
    hub: str  # hub id of the hostile model, in the local hub cache
    scratch: Path


def _generate(place: Place, **options: object) -> object:
    import copyspec

    options = {"model": str(place.folder), "max_new_tokens": 4, **options}
    return copyspec.generate("He go home.", **options)  # type: ignore[call-overload]


def _load(place: Place) -> object:
    import copyspec

    return copyspec.load(str(place.folder), on_unsupported="plain")


def _encoder(place: Place) -> object:
    from copyspec.retrievers import HuggingFaceEmbedder

    return HuggingFaceEmbedder(str(place.folder))(["He go home."])


def _langchain(place: Place) -> object:
    from copyspec.pipelines.langchain import ChatCopySpec

    return ChatCopySpec(model=str(place.folder), max_tokens=4).invoke("He go home.")


def _command(*arguments: str) -> Entrance:
    """Make an entrance from a command line, in which FOLDER, SCRATCH and TEXT stand for the case's paths."""

    def run(place: Place) -> object:
        from copyspec.cli import main

        text = place.scratch / "text.txt"
        text.write_text("The kettle boils.\n\nHe goes home at seven.\n")
        own = {"FOLDER": str(place.folder), "SCRATCH": str(place.scratch), "TEXT": str(text)}
        if "--index" in arguments:
            _index(place, text)
        words = [own.get(argument, argument) for argument in arguments]
        code = main(words)
        if code == 2 or (code == 1 and "rag" in words):
            raise Refused
        if code not in (0, 1):
            raise RuntimeError(f"exit status {code}")
        return code

    return run


class Refused(Exception):
    """A command ended with a usage error."""


def _index(place: Place, text: Path) -> None:
    """Index a corpus with BM25, and one with vectors, whose index names the hostile folder as its encoder."""
    from copyspec.retrievers import Corpora, Document, split_passages

    class Encoder:
        name, prefix = str(place.folder), ""

        def __call__(self, texts: list[str]) -> list[list[float]]:
            return [[float(len(text)), 1.0] for text in texts]

    passages = split_passages(Document("text", text.read_text()), max_chars=30)
    Corpora(place.scratch).add_bm25("words", passages)
    Corpora(place.scratch).add_dense("vectors", passages, Encoder())


ENTRANCES: dict[str, Entrance] = {
    "generate": _generate,
    "chat": lambda place: _generate(place, chat=True),
    "load": _load,
    "hub": lambda place: _generate(place, model=place.hub),
    "draft_model": lambda place: _generate(place, model=str(place.good), draft_model=str(place.folder)),
    "tokenizer": lambda place: _generate(place, model=str(place.good), tokenizer=str(place.folder)),
    "encoder": _encoder,
    "langchain": _langchain,
    "gec": _command("gec", "-", "--model", "FOLDER", "-q"),
    "rag": _command("rag", "When does he go home?", "--index", "words", "--dir", "SCRATCH", "--model", "FOLDER"),
    "rag dense": _command("rag", "When does he go home?", "--index", "vectors", "--dir", "SCRATCH"),
    "index tokens": _command("index", "add", "t", "TEXT", "--kind", "tokens", "--model", "FOLDER", "--dir", "SCRATCH"),
    "index dense": _command("index", "add", "d", "TEXT", "--kind", "dense", "--encoder", "FOLDER", "--dir", "SCRATCH"),
}
READS_STDIN = ("gec",)
