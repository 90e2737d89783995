"""Haystack components: a generator that copies from a pipeline's documents, and a retriever over an index.

pipeline.add_component("retriever", CorpusRetriever(folder))
pipeline.add_component("generator", CopySpecGenerator(model="smollm2"))
pipeline.connect("retriever.documents", "generator.documents")
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ImportError as error:
    raise ImportError("copyspec.integrations.haystack needs haystack-ai: pip install haystack-ai") from error

from copyspec.common.checks import brief
from copyspec.pipelines.models import chat_option, engine_and_options
from copyspec.retrievers import Passage, Retriever, load_corpus


@component
class CopySpecGenerator:
    """Component for a local model: takes `prompt`, returns `replies` with the engine's counters and spans in `meta`.

    `model` and `options`, also those that say how it is loaded, are those of `copyspec.generate`. Connected `documents`
    are copied from; the model itself sees only the prompt.
    """

    def __init__(self, model: Any = None, **options: Any) -> None:
        self._engine, self._options = engine_and_options(model, options)
        self._made_of = {"model": model, **options}

    def to_dict(self) -> dict[str, Any]:
        """The component for `Pipeline.dumps`. Raises ValueError for a model that is given as an object."""
        model = self._made_of["model"]
        if model is not None and not isinstance(model, (str, os.PathLike)):
            raise ValueError(
                f"model={brief(model)} is an object, which cannot be saved: give the model's name or folder, with "
                "options such as dtype= beside it"
            )
        saved = {**self._made_of, "model": None if model is None else os.fspath(model)}
        return default_to_dict(self, **saved)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CopySpecGenerator:
        """The component that `to_dict` has saved."""
        return default_from_dict(cls, data)  # type: ignore[no-any-return]

    @component.output_types(replies=list[str], meta=list[dict[str, Any]])  # type: ignore[untyped-decorator]
    def run(
        self, prompt: str, documents: list[Document] | None = None, generation_kwargs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Generate the answer to a prompt, or several with `n`."""
        options = {"chat": chat_option(self._engine), **self._options, **(generation_kwargs or {})}
        references = [document for document in documents or () if document.content]
        result = self._engine.generate(prompt, references=references or None, **options)
        samples = result.samples or (result,)
        meta = [
            {"finish_reason": sample.finish_reason, "stats": sample.stats.to_dict(), "spans": list(sample.spans)}
            for sample in samples
        ]
        return {"replies": [sample.text for sample in samples], "meta": meta}


@component
class CorpusRetriever:
    """Component for a corpus, or for any retriever of `copyspec.retrievers`: takes `query`, returns `documents`.

    `retriever`: the folder that `copyspec index` built, or a retriever. `passages`, returned by `load_corpus` together
    with a retriever, fill the documents' meta: source, heading, page, and start and end in characters.
    """

    def __init__(
        self,
        retriever: Retriever | str | os.PathLike[str],
        passages: Sequence[Passage] | None = None,
        *,
        top_k: int = 4,
    ) -> None:
        self._folder: str | None = None
        if isinstance(retriever, (str, os.PathLike)):
            if passages is not None:
                raise ValueError(f"passages come with the corpus in {os.fspath(retriever)!r}: leave them out")
            self._folder = os.fspath(retriever)
            retriever, passages = load_corpus(self._folder)
        if passages is not None and len(passages) != len(retriever):
            raise ValueError(f"passages holds {len(passages)} for the {len(retriever)} texts of the retriever")
        self._retriever, self._passages, self._top_k = retriever, passages, top_k

    def to_dict(self) -> dict[str, Any]:
        """The component for `Pipeline.dumps`. Raises ValueError for a retriever that is given as an object."""
        if self._folder is None:
            raise ValueError(
                f"retriever={brief(self._retriever)} is an object, which cannot be saved: give the folder of its corpus"
            )
        return default_to_dict(self, retriever=self._folder, top_k=self._top_k)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CorpusRetriever:
        """The component that `to_dict` has saved, with its corpus loaded."""
        return default_from_dict(cls, data)  # type: ignore[no-any-return]

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, query: str, top_k: int | None = None) -> dict[str, Any]:
        """Return the best documents."""
        hits = self._retriever.search(query, self._top_k if top_k is None else top_k)
        # Without an id, Haystack makes one of the content, so that documents of several corpora can be joined.
        return {"documents": [Document(content=hit.text, score=hit.score, meta=self._meta(hit.id)) for hit in hits]}

    def _meta(self, number: int) -> dict[str, Any]:
        if self._passages is None:
            return {}
        passage = self._passages[number]
        place = {"source": passage.document, "heading": passage.heading, "page": passage.page}
        end = passage.start + len(passage.text)
        return {**{key: value for key, value in place.items() if value}, "start": passage.start, "end": end}
