"""LangChain's retrievers around those of the package: standard test suites, scores, ids, files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("langchain_tests")

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError
from rank_bm25 import BM25Okapi

from copyspec.retrievers import BM25Retriever as BM25Search
from copyspec.retrievers import (
    Corpora,
    DenseRetriever,
    HybridRetriever,
    Passage,
    RerankingRetriever,
    Retriever,
    SpeculativeRetriever,
    load_retriever,
    words,
)
from copyspec.retrievers.langchain import BM25Retriever, DocumentRetriever, EncoderEmbeddings, FAISSRetriever, Filter

TEXTS = [
    "The library is open from nine to six.",
    "Swans nest in the reeds behind the mill.",
    "The town repairs the bridge every spring.",
    "On Sundays the library is closed.",
    "The mill was built beside the bridge.",
]
DOCUMENTS = [Document(text, id=f"d{index}", metadata={"source": f"{index}.md"}) for index, text in enumerate(TEXTS)]


def embed(texts: list[str]) -> np.ndarray:
    return np.array([[len(text), text.count("e"), text.count("i"), 1.0] for text in texts], dtype=np.float32)


class TestBM25(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return BM25Retriever

    @property
    def retriever_constructor_params(self) -> dict[str, object]:
        return {"documents": DOCUMENTS}

    @property
    def retriever_query_example(self) -> str:
        return "When is the library open?"


class TestFAISS(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def faiss(self) -> None:
        pytest.importorskip("faiss")

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return FAISSRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, object]:
        return {"documents": DOCUMENTS, "encode": embed}

    @property
    def retriever_query_example(self) -> str:
        return "When is the library open?"


def test_documents_come_with_ids_metadata_and_rank_bm25s_scores() -> None:
    query = "When is the library open?"
    documents = BM25Retriever(DOCUMENTS, k=2).invoke(query)
    scores = BM25Okapi([words(text) for text in TEXTS]).get_scores(words(query))
    assert [(document.id, document.metadata["source"]) for document in documents] == [("d0", "0.md"), ("d3", "3.md")]
    assert [document.metadata["score"] for document in documents] == pytest.approx([scores[0], scores[3]], abs=1e-9)
    assert "score" not in DOCUMENTS[0].metadata, "the caller's documents stay as they are"


def test_texts_and_documents_make_the_same_retriever() -> None:
    metadatas = [document.metadata for document in DOCUMENTS]
    made = BM25Retriever.from_texts(TEXTS, metadatas, ids=[f"d{index}" for index in range(5)], k=2)
    assert made.invoke("bridge") == BM25Retriever.from_documents(DOCUMENTS, k=2).invoke("bridge")
    assert [document.id for document in BM25Retriever.from_texts(TEXTS).invoke("swans", k=1)] == ["1"]


def test_the_right_one_of_two_documents_is_found() -> None:
    ids = [BM25Retriever(DOCUMENTS[:2], k=1, idf="lucene").invoke(query)[0].id for query in ("library?", "swans?")]
    assert ids == ["d0", "d1"]


def test_calls_of_asyncio_and_wrong_numbers() -> None:
    retriever = BM25Retriever(DOCUMENTS)
    assert asyncio.run(retriever.ainvoke("bridge", k=1)) == retriever.invoke("bridge", k=1)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        retriever.invoke("bridge", k=0)
    with pytest.raises(ValidationError, match="k"):
        BM25Retriever(DOCUMENTS, k=0)
    with pytest.raises(TypeError, match=r"query must be a str, got dict: .* take it out of a dict first"):
        retriever.invoke({"question": "bridge"})  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=r"for strings write BM25Retriever\.from_texts"):
        BM25Retriever(TEXTS)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="number"):
        BM25Retriever(DOCUMENTS, number=3)
    with pytest.raises(TypeError, match="texts must be a list of strings, got one string"):
        BM25Retriever.from_texts("one")
    with pytest.raises(ValueError, match="ids holds 1 entries for 5 texts"):
        BM25Retriever.from_texts(TEXTS, ids=["a"])
    with pytest.raises(ValueError, match="DocumentRetriever has nothing to search: make it with over"):
        DocumentRetriever().invoke("x")


@pytest.mark.parametrize("kind", ["bm25", "faiss", "embeddings"])
def test_a_saved_retriever_finds_the_same(tmp_path: Path, kind: str) -> None:
    if kind == "bm25":
        retriever, encode = BM25Retriever(DOCUMENTS, k=3), None
    else:
        pytest.importorskip("faiss")
        encode = embed if kind == "faiss" else DeterministicFakeEmbedding(size=8)
        retriever = FAISSRetriever(DOCUMENTS, encode, k=3)
    retriever.save(tmp_path)
    assert not [file for file in tmp_path.rglob("*") if file.suffix in (".pkl", ".pickle")]
    loaded = type(retriever).load(tmp_path, k=3, encode=encode)
    assert loaded.invoke("the library") == retriever.invoke("the library")


def test_what_a_filter_leaves_out_stays_out_when_saved(tmp_path: Path) -> None:
    for number, passes in enumerate(({"source": "1.md"}, {"source": {"1.md", "2.md"}}, {"source": []})):
        folder = tmp_path / str(number)
        retriever = BM25Retriever(DOCUMENTS, k=2, idf="lucene", filter=passes)
        retriever.save(folder)
        base = load_retriever(folder)  # saved again without LangChain
        base.add(["A kettle boils."])
        base.save(folder)
        loaded = BM25Retriever.load(folder)
        query = "the swans library bridge"
        ids = [[document.id for document in one.invoke(query, k=9)] for one in (loaded, retriever)]
        assert loaded.k == 2 and ids[0] == ids[1]
    BM25Retriever(DOCUMENTS, filter=lambda document: document.id == "d1").save(tmp_path / "function")
    with pytest.raises(ValueError, match="filters by a function, which cannot be saved: give it as filter="):
        BM25Retriever.load(tmp_path / "function")
    assert BM25Retriever.load(tmp_path / "function", filter={"source": "1.md"}).filter == {"source": "1.md"}
    with pytest.raises(TypeError, match="to be saved"):
        BM25Retriever(DOCUMENTS, filter={"source": object()}).save(tmp_path / "odd")


class QueryEmbedding(DeterministicFakeEmbedding):
    """Embeddings that encode queries otherwise than documents, as E5 and BGE do."""

    def embed_query(self, text: str) -> list[float]:
        return super().embed_query(f"query: {text}")


def test_queries_may_be_encoded_otherwise(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    encode = QueryEmbedding(size=8)
    retriever = FAISSRetriever(DOCUMENTS, encode, k=3)
    retriever.save(tmp_path)
    assert FAISSRetriever.load(tmp_path, k=3, encode=encode).invoke("the library") == retriever.invoke("the library")


def test_files_of_other_indices(tmp_path: Path) -> None:
    BM25Search(TEXTS).save(tmp_path / "plain")
    assert BM25Retriever.load(tmp_path / "plain", k=1).invoke("swans")[0].page_content == TEXTS[1]
    BM25Retriever(DOCUMENTS).save(tmp_path / "full")
    BM25Search(TEXTS[::-1]).save(tmp_path / "full")
    assert [document.id for document in BM25Retriever.load(tmp_path / "full", k=1).invoke("swans")] == ["3"], (
        "replaced whole"
    )
    with pytest.raises(TypeError, match="metadata must be strings, numbers, lists and dicts to be saved"):
        BM25Retriever([Document("a word", metadata={"x": object()})]).save(tmp_path / "odd")
    circle: dict[str, object] = {}
    circle["x"] = circle
    with pytest.raises(TypeError, match="to be saved: Circular reference"):
        BM25Retriever([Document("a word", metadata=circle)]).save(tmp_path / "odd")
    assert BM25Retriever([{"page_content": "a word"}]).invoke("word")  # type: ignore[list-item]


def test_a_corpus_that_was_loaded_and_saved_here_is_one_still(tmp_path: Path) -> None:
    corpora, passages = Corpora(tmp_path), [Passage("town.md", 10 * index, text) for index, text in enumerate(TEXTS)]
    corpora.add_bm25("town", passages)
    BM25Retriever.load(tmp_path / "town").save(tmp_path / "town")
    assert corpora.open("town")[1] == passages and [corpus.size for corpus in corpora.all()] == [len(TEXTS)]
    assert BM25Retriever.load(tmp_path / "town").invoke("swans", k=1)[0].metadata["start"] == 10


def test_ids_and_metadata_stay_if_texts_are_added_without_langchain(tmp_path: Path) -> None:
    BM25Retriever(DOCUMENTS).save(tmp_path)
    base = load_retriever(tmp_path)
    base.add(["A kettle boils."])
    base.save(tmp_path)
    documents = [BM25Retriever.load(tmp_path).invoke(query, k=1)[0] for query in ("swans", "kettle")]
    assert [(document.id, document.metadata.get("source")) for document in documents] == [("d1", "1.md"), ("5", None)]


def test_vectors_may_be_tensors_that_need_gradients() -> None:
    torch = pytest.importorskip("torch")
    vectors = torch.eye(2, dtype=torch.bfloat16).requires_grad_()
    assert len(DenseRetriever(["a", "b"], lambda texts: vectors[: len(texts)]).search("a")) == 2


def test_fields_may_be_configured_and_the_index_stays() -> None:
    few = DOCUMENTS[:2]
    fused = HybridRetriever([BM25Search(TEXTS), DenseRetriever(TEXTS, embed)])
    retrievers: list[DocumentRetriever] = [
        BM25Retriever(few, idf="lucene", language="english"),
        DocumentRetriever.over(fused, DOCUMENTS),
    ]
    if find_spec("faiss") is not None:
        retrievers.append(FAISSRetriever(DOCUMENTS, embed))
    for retriever in retrievers:
        chosen = retriever.configurable_fields(k=ConfigurableField(id="k"))
        documents = chosen.invoke("the libraries", {"configurable": {"k": 1}})
        assert documents == retriever.invoke("the libraries", k=1) and len(documents) == 1
        assert len(chosen.invoke("the libraries")) == len(retriever.invoke("the libraries"))


def test_texts_that_were_added_without_documents_are_named(tmp_path: Path) -> None:
    retriever = BM25Retriever(DOCUMENTS)
    retriever.save(tmp_path)
    retriever.base.add(["A kettle boils."])
    for use in (lambda: retriever.invoke("kettle"), lambda: retriever.save(tmp_path)):
        with pytest.raises(ValueError, match=r"holds 6 texts, and there are 5 documents: .* over\(base, documents\)"):
            use()
    assert len(BM25Retriever.load(tmp_path).documents) == 5, "the saved index is as it was"
    more = (document for document in [*DOCUMENTS, Document("A kettle boils.", id="new")])
    again = DocumentRetriever.over(retriever.base, more)  # type: ignore[arg-type]
    assert [document.id for document in again.invoke("kettle", k=1)] == ["new"]


def test_encoders_as_embeddings() -> None:
    torch = pytest.importorskip("torch")
    vectors = torch.eye(2, dtype=torch.bfloat16).requires_grad_()
    embeddings = EncoderEmbeddings(lambda texts: vectors[: len(texts)])
    assert embeddings.embed_documents(["a", "b"]) == [[1.0, 0.0], [0.0, 1.0]] and embeddings.embed_documents([]) == []
    assert embeddings.embed_query("a") == [1.0, 0.0]
    with pytest.raises(OSError, match="encoder 'nowhere/at/all' cannot be loaded"):
        EncoderEmbeddings(Path("nowhere/at/all"))


def test_any_retriever_of_the_package_will_do() -> None:
    base = BM25Search(TEXTS)
    with SpeculativeRetriever(base) as speculative:
        assert DocumentRetriever.over(speculative, DOCUMENTS).invoke("bridge") == BM25Retriever(DOCUMENTS).invoke(
            "bridge"
        )
    dense = DocumentRetriever.over(DenseRetriever(TEXTS, embed), k=2)
    assert [document.id for document in dense.invoke(TEXTS[2])] == [
        str(hit.id) for hit in dense.base.search(TEXTS[2], 2)
    ]
    with pytest.raises(ValueError, match="documents are not those of the index: 1 for its 5 texts"):
        DocumentRetriever.over(base, DOCUMENTS[:1])


def passing(wanted: Filter) -> list[int]:
    names = [int(document.metadata["source"][0]) for document in DOCUMENTS]
    if callable(wanted):
        return [index for index in names if wanted(DOCUMENTS[index])]
    value = wanted["source"]
    return [index for index in names if f"{index}.md" in (value if isinstance(value, list) else [value])]


BASES: dict[str, Callable[[], Retriever]] = {
    "bm25": lambda: BM25Search(TEXTS, idf="lucene"),
    "dense": lambda: DenseRetriever(TEXTS, embed),
    "hybrid": lambda: HybridRetriever([BM25Search(TEXTS), DenseRetriever(TEXTS, embed)], depth=2),
    "speculative": lambda: SpeculativeRetriever(BM25Search(TEXTS, idf="lucene")),
    "reranked": lambda: RerankingRetriever(BM25Search(TEXTS), lambda pairs: [len(pairs[0][1])], depth=3),
}
FILTERS: list[Filter] = [
    {"source": "3.md"},
    {"source": ["0.md", "2.md", "4.md"]},
    {"source": []},
    lambda document: "mill" in document.page_content,
    lambda document: document.metadata["source"] > "1",
    lambda document: True,
]


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_filters_apply_before_the_best_are_taken(name: str, k: int) -> None:
    base = BASES[name]()
    try:
        for wanted in FILTERS:
            retriever = DocumentRetriever.over(base, DOCUMENTS, k=k, filter=wanted)
            documents = retriever.invoke("the library at the mill")
            ids = [int(str(document.id)[1:]) for document in documents]
            limit = 3 if name == "reranked" else k
            assert len(ids) == min(k, limit, len(passing(wanted))) and set(ids) <= set(passing(wanted))
            assert documents == asyncio.run(retriever.ainvoke("the library at the mill"))
            assert documents == DocumentRetriever.over(base, DOCUMENTS).invoke(
                "the library at the mill", k=k, filter=wanted
            )
            if name in ("bm25", "dense"):
                scores = base.score("the library at the mill", passing(wanted))
                assert [document.metadata["score"] for document in documents] == sorted(scores, reverse=True)[:k]
    finally:
        getattr(base, "close", bool)()


def test_filters_of_thousands_of_texts_and_all_makers(tmp_path: Path) -> None:
    texts = [f"the mill number {index}" for index in range(3000)]
    many = BM25Retriever.from_texts(texts, [{"n": index} for index in range(3000)], filter={"n": [5, 2999]}, k=3)
    assert {document.metadata["n"] for document in many.invoke("the mill number 7")} == {5, 2999}
    many.save(tmp_path)
    loaded = BM25Retriever.load(tmp_path, filter=lambda document: document.metadata["n"] == 7)
    assert [document.metadata["n"] for document in loaded.invoke("the mill number 9")] == [7]
    assert [document.metadata["n"] for document in loaded.invoke("mill", filter={"n": 8})] == [8]
    assert len(BM25Retriever(DOCUMENTS, filter={"source": "1.md"}).batch(["mill", "bridge"])[1]) == 1


def test_wrong_filters_and_a_missing_encoder_are_named() -> None:
    retriever = BM25Retriever(DOCUMENTS)
    for wanted, message in (
        (lambda metadata: metadata["source"], "document.metadata"),
        (lambda metadata: metadata.get("source"), "document.metadata"),
        ("0.md", "a dict of metadata or a function"),
    ):
        with pytest.raises(TypeError, match=message):
            retriever.invoke("mill", filter=wanted)
    for operators in ({"source": {"$eq": "0.md"}}, {"$and": []}):
        with pytest.raises(ValueError, match="no operators"):
            retriever.invoke("mill", filter=operators)
    for made in (lambda: FAISSRetriever(DOCUMENTS), lambda: FAISSRetriever.from_texts(TEXTS)):
        with pytest.raises(TypeError, match="EncoderEmbeddings"):
            made()
