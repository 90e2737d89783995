"""Dense retrieval: exact search against sorting, FAISS against NumPy, encoders, files."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from copyspec.common.extras import install
from copyspec.retrievers import (
    DenseRetriever,
    ExactIndex,
    FaissIndex,
    FaissOptions,
    FaissRetriever,
    Hit,
    HuggingFaceEmbedder,
    IndexFileError,
    Retriever,
)
from copyspec.retrievers import vectors as module
from tests.helpers.texts import CORPUS, byte_level, llama

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="FAISS is not installed")
METRICS = ["ip", "l2"]
TEXTS = ["a kettle on a stove", "a heron in the water", "water boils in a kettle", "the sea is water"]


def encode(texts: list[str]) -> NDArray[np.float32]:
    """Encode texts as normalised counts of hashed words, plus noise by batch size, like an encoder's rounding."""
    vectors = np.zeros((len(texts), 16))
    for row, text in zip(vectors, texts, strict=True):
        for word in text.split():
            row[zlib.crc32(word.encode()) % 16] += 1
    vectors += 1e-6 * len(texts)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def reference(matrix: NDArray[np.float32], query: NDArray[np.float32], k: int, metric: str) -> list[tuple[int, float]]:
    wide, point = matrix.astype(np.float64), query.astype(np.float64)
    scores = [float((row * point).sum()) if metric == "ip" else -float(((row - point) ** 2).sum()) for row in wide]
    order = sorted(range(len(matrix)), key=lambda i: (-scores[i], i))[:k]
    return [(i, scores[i]) for i in order]


def pairs(results: module.Found) -> list[tuple[int, float]]:
    return list(zip(results[0].tolist(), results[1].tolist(), strict=True))


@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 5), st.integers(1, 12), st.sampled_from(METRICS))
def test_exact_search_against_sorting(seed: int, count: int, queries: int, k: int, metric: module.Metric) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-2, 3, (count, 3)).astype(np.float32) / 3  # few different values give many ties
    index = ExactIndex(3, metric=metric)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 7)
        for start in range(0, count, 11):
            index.add(matrix[start : start + 11])
        points = rng.integers(-2, 3, (queries, 3)).astype(np.float32) / 3
        for point, nearest in zip(points, index.search(points, k), strict=True):
            assert pairs(nearest) == reference(matrix, point, k, metric)
            assert pairs(nearest) == pairs(index.search(point[None], k)[0]), "no matter which batch"


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
@needs_faiss
def test_faiss_against_exact_search(kind: str, metric: module.Metric) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(900, 24)).astype(np.float32)
    matrix[100:110] = matrix[0]  # ties
    exact = ExactIndex(24, metric=metric)
    options = FaissOptions(kind=kind, lists=8, probes=8, ef_search=900)  # type: ignore[arg-type]
    index = FaissIndex(24, metric=metric, options=options)
    for part in (matrix[:800], matrix[800:]):
        exact.add(part)
        index.add(part)
    points = np.concatenate([matrix[:40], rng.normal(size=(30, 24)).astype(np.float32)])
    results = index.search(points, 12)
    same = [
        len(set(one[0].tolist()) & set(other[0].tolist()))
        for one, other in zip(results, exact.search(points, 12), strict=True)
    ]
    assert sum(same) >= 0.97 * 12 * len(points)
    if kind != "hnsw":
        assert [pairs(one) for one in results] == [pairs(one) for one in exact.search(points, 12)]
    for point, one in zip(points, results, strict=True):
        assert pairs(one) == pairs(index.search(point[None], 12)[0]), "no matter which batch"
    assert index.vectors([5, 3, 850]).tolist() == matrix[[5, 3, 850]].tolist()


class Slow(ExactIndex):
    """An index that calls `after` when it has got vectors, before `add` returns."""

    after: Callable[[], object] = staticmethod(lambda: None)

    def add(self, vectors: ArrayLike) -> None:
        super().add(vectors)
        self.after()


def test_a_search_beside_an_addition_finds_texts_for_all_vectors() -> None:
    retriever = DenseRetriever(TEXTS, encode, index=Slow)
    hits: list[Hit] = []
    assert isinstance(retriever.index, Slow)
    retriever.index.after = lambda: hits.extend(retriever.search("an otter", 1))
    retriever.add(["an otter"])
    assert [hit.text for hit in hits] == ["an otter"]


class Early(ExactIndex):
    """An index that calls `before` when it is about to add vectors."""

    before: Callable[[], object] = staticmethod(lambda: None)

    def add(self, vectors: ArrayLike) -> None:
        self.before()
        super().add(vectors)


def test_two_additions_at_once_do_not_mix_up_their_texts() -> None:
    retriever = DenseRetriever(TEXTS, encode, index=Early)
    other = threading.Thread(target=retriever.add, args=(["an otter"],))

    def start() -> None:
        if other.ident is None:
            other.start()
            other.join(0.2)

    assert isinstance(retriever.index, Early)
    retriever.index.before = start
    retriever.add(["the sea"])
    other.join()
    assert [retriever.search(text, 1)[0].text for text in ("an otter", "the sea")] == ["an otter", "the sea"]


@needs_faiss
def test_an_addition_to_faiss_waits_until_no_search_reads_the_vectors() -> None:
    index = FaissIndex(2)
    index.add(np.eye(2))
    begun, go_on, searcher = threading.Event(), threading.Event(), index._searcher
    assert searcher is not None

    class Waiting:
        def search(self, *args: Any) -> object:
            begun.set()
            go_on.wait(10)
            return searcher.search(*args)

    index._searcher = Waiting()  # type: ignore[assignment]
    searching = threading.Thread(target=index.search, args=(np.eye(2), 1))
    adding = threading.Thread(target=index.add, args=(np.eye(2),))
    searching.start()
    assert begun.wait(10)
    adding.start()
    adding.join(0.2)
    assert adding.is_alive() and len(index) == 2
    go_on.set()
    for thread in (searching, adding):
        thread.join(10)
    assert len(index) == 4


def test_an_index_that_refuses_vectors_leaves_the_texts_as_they_were() -> None:
    retriever = DenseRetriever(TEXTS, encode, index=Slow)
    assert isinstance(retriever.index, Slow)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(ExactIndex, "add", lambda *_: throw(MemoryError()))
        retriever.add(["an otter"])
    assert list(retriever.texts) == TEXTS


def throw(error: BaseException) -> None:
    raise error


@needs_faiss
def test_flat_faiss_finds_all_ties() -> None:
    index = FaissIndex(4)
    index.add(np.ones((60, 4)))
    assert [i for i, _ in pairs(index.search(np.ones((1, 4)), 5)[0])] == [0, 1, 2, 3, 4]
    assert len(index.search(np.ones((1, 4)), 100)[0][0]) == 60


@pytest.mark.parametrize(
    "kind", ["exact", pytest.param("flat", marks=needs_faiss), pytest.param("hnsw", marks=needs_faiss)]
)
def test_an_index_on_disk_is_the_same_index(kind: str, tmp_path: Path) -> None:
    options = None if kind == "exact" else FaissOptions(kind=kind)  # type: ignore[arg-type]
    made: DenseRetriever = (
        DenseRetriever(TEXTS, encode) if options is None else FaissRetriever(TEXTS, encode, options=options)
    )
    made.add(["a heron boils a kettle"])
    made.save(tmp_path / "a")
    loaded = DenseRetriever.load(tmp_path / "a", encode)
    assert list(loaded.texts) == list(made.texts) and type(loaded.index) is type(made.index)
    for query in ["kettle", "water in the sea"]:
        assert loaded.search(query, 3) == made.search(query, 3)
    loaded.add(["the sea"])
    assert loaded.search("the sea", 1)[0].id == 5


def test_search_and_score_agree_whatever_the_batch() -> None:
    retriever: Retriever = DenseRetriever(TEXTS, encode)
    queries = ["kettle water", "heron", "kettle water", "sea"]
    batch = retriever.search_batch(queries, 4)
    for query, hits in zip(queries, batch, strict=True):
        assert hits == DenseRetriever(TEXTS, encode).search(query, 4)
        assert [hit.score for hit in hits] == retriever.score(query, [hit.id for hit in hits]).tolist()
        assert [hit.text for hit in hits] == [TEXTS[hit.id] for hit in hits]
    assert retriever.search_batch([]) == [] and retriever.score("a", []).tolist() == []


def test_a_query_is_encoded_once_and_by_itself() -> None:
    asked: list[list[str]] = []

    def encode_query(texts: list[str]) -> NDArray[np.float32]:
        asked.append(texts)
        return encode(texts)

    retriever = DenseRetriever(TEXTS, encode, encode_query=encode_query)
    retriever.search_batch(["a", "b", "a"])
    retriever.score("b", [0])
    assert asked == [["a"], ["b"]]


def test_another_encoder_or_damage_is_refused(tmp_path: Path) -> None:
    DenseRetriever(TEXTS, encode).save(tmp_path)
    with pytest.raises(IndexFileError, match=r"another encoder \(16 dimensions, this one makes 8\)"):
        DenseRetriever.load(tmp_path, lambda texts: encode(texts)[:, :8])
    with pytest.raises(IndexFileError, match="another encoder"):
        DenseRetriever.load(tmp_path, lambda texts: encode(texts)[:, ::-1])
    path = next(tmp_path.glob("vectors-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(IndexFileError, match=f"{path.name}' is damaged"):
        DenseRetriever.load(tmp_path, encode)


def test_what_is_no_vector_is_refused() -> None:
    index = ExactIndex(2)
    for wrong, said in (
        ([1.0, 2.0], r"shape \[n, dimension\], got \[2\]"),
        ([[1.0, 2.0, 3.0]], "vectors have 3 dimensions, the index has 2"),
        ([[1.0, 2.0], [float("nan"), 0.0]], "vector 1 holds NaN"),
    ):
        with pytest.raises(ValueError, match=said):
            index.add(wrong)
    assert len(index) == 0 and pairs(index.search([[1.0, 2.0]], 3)[0]) == []
    with pytest.raises(ValueError, match="metric must be 'ip' or 'l2', got 'cosine'"):
        ExactIndex(2, metric="cosine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="encode made 1 vectors of 4 texts"):
        DenseRetriever(TEXTS, lambda texts: [[1.0]])
    with pytest.raises(ValueError, match="texts is empty"):
        DenseRetriever([], encode)
    with pytest.raises(ValueError, match="kind must be 'flat', 'hnsw' or 'ivf', got 'pq'"):
        FaissOptions(kind="pq")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="probes must be at least 1, got 0"):
        FaissOptions(probes=0)
    with pytest.raises(IndexError, match="id 9 is not"):
        DenseRetriever(TEXTS, encode).score("a", [9])


@pytest.mark.parametrize("given", ["a model", Path("a model"), None])
def test_an_encoder_that_is_not_a_function_is_named(given: object, tmp_path: Path) -> None:
    hint = "" if given is None else r", such as HuggingFaceEmbedder\(.*a model.*\)"
    message = f"encode must be a function from a list of texts to vectors{hint}; got "
    DenseRetriever(TEXTS, encode).save(tmp_path)
    for use in (lambda: DenseRetriever(TEXTS, given), lambda: DenseRetriever.load(tmp_path, given)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=message):
            use()


def test_without_faiss_the_error_names_the_extras() -> None:
    code = (
        "import sys; sys.modules['faiss'] = None\n"
        "from copyspec.retrievers import DenseRetriever, FaissRetriever\n"
        "one = lambda texts: [[1.0]] * len(texts)\n"
        "assert len(DenseRetriever(['a'], one).search('b')) == 1\n"
        "FaissRetriever(['a'], one)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert install("cpu", "gpu") in done.stderr.splitlines()[-1]


def test_importing_the_retrievers_loads_neither_torch_nor_faiss() -> None:
    code = "import sys, copyspec.retrievers; print([m for m in ('torch', 'transformers', 'faiss') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    llama(len(byte_level())).save_pretrained(folder)
    byte_level().save_pretrained(folder)
    return folder


def test_embeddings_are_means_of_the_last_states(encoder: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    texts = [CORPUS[0], "a", *CORPUS[1:], ""]
    embed = HuggingFaceEmbedder(encoder, device="cpu", batch_size=2, prefix="query: ")
    vectors = embed(texts)
    assert vectors.shape == (5, embed.dimension) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    model, tokenizer = AutoModel.from_pretrained(encoder), AutoTokenizer.from_pretrained(encoder)
    for text, vector in zip(texts, vectors, strict=True):
        with torch.inference_mode():
            states = model(**tokenizer("query: " + text, return_tensors="pt")).last_hidden_state[0]
        mean = states.mean(dim=0).numpy()
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-4)
    plain = HuggingFaceEmbedder(encoder, device="cpu", normalize=False)(["a"])
    assert abs(np.linalg.norm(plain) - 1) > 1e-3
    assert embed(["word " * 5000]).shape == (1, embed.dimension), "cut at the limit"


def test_texts_without_tokens_and_with_lone_surrogates_are_encoded(encoder: Path) -> None:
    embed = HuggingFaceEmbedder(encoder, device="cpu")
    assert not embed([""]).any() and embed([""]).shape == (1, embed.dimension)
    np.testing.assert_array_equal(embed.encode_query(["a \ud800"]), embed.encode_query(["a \ufffd"]))


def test_an_encoder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"encoder '.*nowhere' cannot be loaded, give a folder or a hub id"):
        HuggingFaceEmbedder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        HuggingFaceEmbedder(tmp_path, batch_size=0)
