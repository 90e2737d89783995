"""Untrusted indexes: no file outside the folder is touched, and everything wrong raises IndexFileError."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np
import pytest

from copyspec.retrievers import (
    BM25Retriever,
    Corpora,
    Datastore,
    DenseRetriever,
    Document,
    FaissOptions,
    FaissRetriever,
    IndexFileError,
    SpeculativeRetriever,
    load_retriever,
    read_documents,
    split_passages,
)
from tests.fuzz.bases import KINDS, NAME, Tokenizer, documents, encode, make, passages, uses
from tests.fuzz.forging_manifests import replaced, sealed
from tests.fuzz.indexes import FAILURES, run

posix = pytest.mark.skipif(os.name == "nt", reason="needs links, pipes and signals")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)


@posix
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # of a fork, from 3.12 on
@pytest.mark.parametrize("flipped", [False, True], ids=["forged", "flipped"])
def test_a_sample_of_forged_and_damaged_indexes(flipped: bool) -> None:
    pytest.importorskip("faiss")
    figures = run(9 if flipped else 27, flipped, 3)
    assert {name: figures[name] for name in FAILURES} == dict.fromkeys(FAILURES, 0), figures["failures"]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    make("bm25", tmp_path)
    return tmp_path / NAME


def said(index: Path) -> dict:  # type: ignore[type-arg]
    manifest = json.loads((index / "manifest.json").read_text())
    assert isinstance(manifest, dict)
    return manifest


@pytest.mark.parametrize("how", ["absolute", "above", "below", "manifest", "other"])
def test_a_name_that_leads_elsewhere_deletes_nothing(index: Path, how: str) -> None:
    victim = index.parent.parent / f"{index.parent.name}-victim.txt"
    victim.write_text("kept")
    names = {
        "absolute": str(victim),
        "above": f"../../{victim.name}",
        "below": "sub/texts.json",
        "manifest": "manifest.json",
        "other": "notes.txt",
    }
    (index / "notes.txt").write_text("kept")
    manifest = said(index)
    manifest["files"]["texts"] = [names[how], 4, hashlib.sha256(b"kept").hexdigest()]
    sealed(index, manifest)
    for use in uses("bm25", index.parent)[:-2]:  # all uses except rewriting and removing it
        with pytest.raises(IndexFileError, match="is not what copyspec writes: the file 'texts'"):
            use()
    BM25Retriever(["one word"]).save(index)
    assert victim.read_text() == (index / "notes.txt").read_text() == "kept" and len(load_retriever(index)) == 1


@posix
@pytest.mark.parametrize("name", ["manifest.json", "texts"])
@pytest.mark.parametrize("how", ["link", "pipe", "device", "folder"])
def test_only_regular_files_are_opened(index: Path, name: str, how: str) -> None:
    path = next(index.glob(f"{name}*"))
    content = path.read_bytes()
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        (index.parent / "same").write_bytes(content)
        path.symlink_to("/dev/zero" if how == "device" else index.parent / "same")
    with pytest.raises(IndexFileError, match="symbolic link" if how in ("link", "device") else "not a regular file"):
        BM25Retriever.load(index)


@pytest.mark.parametrize(
    "wrong", ["[" * 100_000, '{"format": NaN}', '{"a": 1, "a": 1}', '{"a": ' + "9" * 5000 + "}", "x" * (1 << 23)]
)
def test_manifests_are_bounded(index: Path, wrong: str) -> None:
    (index / "manifest.json").write_text(wrong)
    with pytest.raises(IndexFileError, match=r"manifest\.json"):
        load_retriever(index)


def test_numbers_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    cases: list[tuple[str, str, str, int, str]] = [
        ("bm25", "word_numbers", "u4", 2**32 - 1, "words"),
        ("bm25", "held", "u4", 2**32 - 1, "held"),
        ("bm25", "counts", "u4", 0, "counts"),
        ("bm25", "passages.starts", "u8", 2**63, "documents"),
        ("hnsw", "links", "i4", 2**30, "links"),
        ("hnsw", "links", "i4", -2, "links"),
        ("hnsw", "levels", "u1", 200, "levels"),
        ("ivf", "lists", "u4", 2**31, "lists"),
        ("tokens", "0.documents", "u4", 2**31, "documents"),
    ]
    for number, (kind, key, dtype, value, named) in enumerate(cases):
        folder = tmp_path / str(number)
        make(kind, folder)
        manifest = said(folder / NAME)
        array = np.fromfile(folder / NAME / manifest["files"][key][0], dtype)
        array[len(array) // 2] = value
        replaced(folder / NAME, manifest, key, array.tobytes())
        sealed(folder / NAME, manifest)
        with pytest.raises(IndexFileError, match=f"{named}-.*is not what copyspec writes"):
            uses(kind, folder)[0]()
            Corpora(folder).all()


def test_facts_that_are_left_out_or_too_large_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    make("hnsw", tmp_path / "hnsw")
    manifest = said(tmp_path / "hnsw" / NAME)
    del manifest["facts"]["options"]["neighbours"]  # the links are those of another number
    sealed(tmp_path / "hnsw" / NAME, manifest)
    with pytest.raises(IndexFileError, match=r"(links|levels)-.*is not what copyspec writes"):
        uses("hnsw", tmp_path / "hnsw")[0]()
    make("bm25", tmp_path / "bm25")
    manifest = said(tmp_path / "bm25" / NAME)
    manifest["facts"]["split"] = "klingon"
    del manifest["files"]["words"]
    sealed(tmp_path / "bm25" / NAME, manifest)
    with pytest.raises(IndexFileError, match="it names no file of 'words'"):
        load_retriever(tmp_path / "bm25" / NAME)
    Corpora(tmp_path / "hybrid").add_hybrid(NAME, passages(9), encode)
    manifest = said(tmp_path / "hybrid" / NAME)
    manifest["facts"] |= {"depth": 9, "weights": [10**400, 1]}
    sealed(tmp_path / "hybrid" / NAME, manifest)
    with pytest.raises(IndexFileError, match=r"fused with weights\[0\] must be a finite number"):
        load_retriever(tmp_path / "hybrid" / NAME, encode=encode)


def test_places_beyond_the_text_end_a_search_with_an_error(tmp_path: Path) -> None:
    make("tokens", tmp_path)
    manifest = said(tmp_path / NAME)
    for value in (0, 2**32 - 1):
        places = np.fromfile(tmp_path / NAME / manifest["files"]["0.places"][0], np.uint32)
        replaced(tmp_path / NAME, manifest, "0.places", np.full_like(places, value).tobytes())
        sealed(tmp_path / NAME, manifest)
        for verify in (True, False):
            with pytest.raises(IndexFileError, match=r"the datastore in .* is not what copyspec writes"):
                Datastore(tmp_path / NAME, verify=verify).find([1, 2, 3])


def test_an_archive_of_the_first_format_is_named_and_a_datastore_of_it_read(tmp_path: Path) -> None:
    for kind in ("bm25", "tokens"):
        make(kind, tmp_path / kind)
        manifest = {**said(tmp_path / kind / NAME), "version": 1}
        manifest["files"] = {key: entry for key, entry in manifest["files"].items() if not key.startswith("passages.")}
        sealed(tmp_path / kind / NAME, manifest)
    with pytest.raises(IndexFileError, match="format version 1, this copyspec reads 2 of 'bm25': build it again"):
        load_retriever(tmp_path / "bm25" / NAME)
    store = Datastore(tmp_path / "tokens" / NAME)
    assert store.append([[1, 2]])[0] == store.num_documents - 1 and said(tmp_path / "tokens" / NAME)["version"] == 2
    with pytest.raises(IndexFileError, match="does not say where its passages stand: build it"):
        Corpora(tmp_path / "tokens").add_tokens(NAME, documents(1), Tokenizer())


@pytest.mark.parametrize("kind", KINDS)
def test_what_copyspec_writes_is_used_without_an_error(tmp_path: Path, kind: str) -> None:
    if kind in ("flat", "hnsw", "ivf"):
        pytest.importorskip("faiss")
    make(kind, tmp_path)
    for use in uses(kind, tmp_path):
        if kind == "journal" and use is uses(kind, tmp_path)[0]:
            continue
        try:
            use()
        except IndexFileError as error:  # the last index does not belong to the documents
            assert "kind 'dense'" in str(error)
        except ValueError as error:
            assert kind == "journal" and "resume=True continues it" in str(error)


def retrievers() -> list[object]:
    texts = [passage.text for passage in passages(3)]
    return [BM25Retriever(texts), DenseRetriever(texts, encode), SpeculativeRetriever(BM25Retriever(texts))]


CALLS: list[tuple[Callable[..., object], str]] = [
    (lambda retriever: retriever.search(None), "query must be a str, got NoneType None"),
    (lambda retriever: retriever.search(b"a"), "query must be a str, got bytes b'a'"),
    (lambda retriever: retriever.search(["a"]), r"query must be a str, got list \['a'\]: search_batch takes several"),
    (lambda retriever: retriever.search_batch(None), "queries must be a list of strings, got NoneType None"),
    (lambda retriever: retriever.search_batch("a"), r"queries must be a list of strings, got one string: write \['a'"),
    (lambda retriever: retriever.search_batch(["a", None]), r"queries\[1\] must be a string, got NoneType"),
    (lambda retriever: retriever.add(3), "texts must be a list of strings, got int 3"),
    (lambda retriever: retriever.score(None, [0]), "query must be a str, got NoneType None"),
    (lambda retriever: retriever.score("a", ["x"]), "ids must be integers"),
    *[
        (lambda retriever, k=k: retriever.search("a", k), f"k must be an integer, at least 1, got {name} ")
        for k, name in ((None, "NoneType"), ("2", "str"), (2.0, "float"), (True, "bool"))
    ],
    (lambda retriever: retriever.search_batch(["a"], None), "k must be an integer"),
]


def test_what_is_no_query_is_named() -> None:
    for retriever in retrievers():
        for call, message in CALLS:
            with pytest.raises(TypeError, match=message):
                call(retriever)
        with pytest.raises(ValueError, match="k must be at least 1, got 0"):
            retriever.search("a", 0)  # type: ignore[attr-defined]
        assert len(retriever.search("kettle", np.int64(2))) == 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="query must be a str, got NoneType"):
        SpeculativeRetriever(retrievers()[0]).guess(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="prefetch must be an integer"):
        SpeculativeRetriever(retrievers()[0], prefetch="2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"base must be a retriever, .*; got int: 3"):
        SpeculativeRetriever(3)  # type: ignore[arg-type]
    for folder in (3, None):
        with pytest.raises(TypeError, match="folder must be a str or a path; got"):
            Datastore(folder)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="texts must be a list of strings, got NoneType None"):
        BM25Retriever(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "# a" + " " * 100_000 + "b",
        "# " + "[" * 100_000,
        "# " + "`a " * 50_000,
        "# a" + "_" * 100_000 + "a",
        "# a\n\nb c\n\n" * 10_000,
    ],
)
def test_headings_take_linear_time(text: str) -> None:
    """2,000 spaces in a heading took 20 seconds, 4,000 headings took five."""
    started = process_time()
    assert split_passages(Document("name", text))[0].start == 0
    assert process_time() - started < 5


def test_a_line_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="line 1: not JSON"):
        list(read_documents([tmp_path]))


def test_graphs_and_lists_come_back_as_they_were(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    vectors = {f"t{number}": vector for number, vector in enumerate(rng.normal(size=(400, 8)).astype(np.float32))}

    def look_up(texts: list[str]) -> object:
        return np.stack([vectors.get(text, np.ones(8, np.float32)) for text in texts])

    for kind, metric in (("flat", "ip"), ("hnsw", "l2"), ("hnsw", "ip"), ("ivf", "l2")):
        options = FaissOptions(kind=kind, neighbours=3, lists=5, probes=2)  # type: ignore[arg-type]
        made = FaissRetriever(list(vectors)[:300], look_up, metric=metric, options=options)  # type: ignore[arg-type]
        made.add(list(vectors)[300:])
        made.save(tmp_path / kind)
        loaded = DenseRetriever.load(tmp_path / kind, look_up)  # type: ignore[arg-type]
        queries = list(vectors)[::20]
        assert loaded.search_batch(queries, 7) == made.search_batch(queries, 7)
        loaded.add(["one more"])
        assert len(loaded.search("t3", 401)) > 100
