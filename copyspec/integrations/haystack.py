"""Haystack components: a generator that copies from a pipeline's documents, and a retriever over an index.

pipeline.add_component("retriever", CorpusRetriever(*load_corpus(folder)))
pipeline.add_component("generator", CopySpecGenerator(model="smollm2"))
pipeline.connect("retriever.documents", "generator.documents")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from haystack import Document, component
except ImportError as error:
    raise ImportError("copyspec.integrations.haystack needs haystack-ai: pip install haystack-ai") from error

from copyspec.pipelines.models import chat_option, engine_of
from copyspec.retrievers import Passage, Retriever


@component
class CopySpecGenerator:
    """Component for a local model: takes `prompt`, returns `replies` with the engine's counters and spans in `meta`.

    `model` and `options` are those of `copyspec.generate`. Connected `documents` are copied from; the model itself sees
    only the prompt.
    """

    def __init__(self, model: Any = None, **options: Any) -> None:
        self._engine = engine_of(model)
        self._options = options

    @component.output_types(replies=list[str], meta=list[dict[str, Any]])  # type: ignore[untyped-decorator]
    def run(
        self, prompt: str, documents: list[Document] | None = None, generation_kwargs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Generate the answer to a prompt."""
        given = {"chat": chat_option(self._engine), **self._options, **(generation_kwargs or {})}
        held = [document for document in documents or () if document.content]
        result = self._engine.generate(prompt, references=held or None, **given)
        meta = {"finish_reason": result.finish_reason, "stats": result.stats.to_dict(), "spans": list(result.spans)}
        return {"replies": [result.text], "meta": [meta]}


@component
class CorpusRetriever:
    """Component for any retriever of `copyspec.retrievers`: takes `query`, returns `documents`.

    `passages`, returned by `load_corpus` together with the retriever, fill the documents' meta: source, heading, page,
    and start and end in characters.
    """

    def __init__(self, retriever: Retriever, passages: Sequence[Passage] | None = None, *, top_k: int = 4) -> None:
        if passages is not None and len(passages) != len(retriever):
            raise ValueError(f"passages holds {len(passages)} for the {len(retriever)} texts of the retriever")
        self._retriever, self._passages, self._top_k = retriever, passages, top_k

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
