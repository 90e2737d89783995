"""The datastore against brute force: longest matches, counts, continuations, document borders, damage."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from copyspec.retrievers import Datastore, IndexFileError
from copyspec.retrievers.tokens import continuations, sampled_keys, segment, suffix_array

TOKENS = st.one_of(st.integers(0, 2), st.sampled_from([7, 300, 70_000, 1 << 24, (1 << 32) - 2]))
DOCUMENTS = st.lists(st.lists(TOKENS, max_size=12), max_size=8)


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield


@pytest.fixture(params=["pydivsufsort", "numpy"])
def sorting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pydivsufsort":
        pytest.importorskip("pydivsufsort")
    else:
        monkeypatch.setattr(suffix_array, "find_spec", lambda name: None)


def made(patch: pytest.MonkeyPatch, keys: str) -> None:
    """Vary how indexes are made: as usual; with so many keys that few tokens have several blocks of them; without keys,
    as an earlier version made them; or read as on a system without positioned reads."""
    if keys == "many":
        for name, value in {"STRIDE": 2, "BLOCK": 2, "_AT_ONCE": 4}.items():
            patch.setattr(sampled_keys, name, value)
    if keys == "none":
        patch.setattr(segment, "sampled_keys", lambda *text: {})
    if keys == "mapped":
        patch.delattr("os.pread", raising=False)


KEYS = ("few", "many", "none", "mapped")


def occurrences(documents: Sequence[Sequence[int]], end: Sequence[int]) -> list[tuple[int, int]]:
    """Find where `end` ends in the documents: (document, offset of the next token)."""
    size, last = len(end), end[-1]
    return [
        (number, start + size)
        for number, document in enumerate(documents)
        for start in range(len(document) - size + 1)
        if document[start + size - 1] == last and list(document[start : start + size]) == list(end)
    ]


def longest(documents: Sequence[Sequence[int]], context: Sequence[int]) -> tuple[int, int]:
    for size in range(min(len(context), continuations.MAX_MATCH), 0, -1):
        places = occurrences(documents, context[-size:])
        if places:
            return size, len(places)
    return 0, 0


def check(store: Datastore, documents: Sequence[Sequence[int]], context: Sequence[int]) -> None:
    assert store.search(context) == longest(documents, context)
    length, _ = longest(documents, context)
    everything = store.continuations(context, 4, 10_000)
    expected = occurrences(documents, context[-1:]) if length else []
    followed = {place for place in expected if place[1] < len(documents[place[0]])}
    assert {(one.document, one.offset) for one in everything} == followed
    assert len(everything) == len(followed)
    assert sum(one.weight for one in everything) <= 1 + 1e-9
    matched = []
    for number, offset, tokens, weight in everything:
        assert weight > 0
        assert tokens == list(documents[number][offset : offset + 4])
        before = list(documents[number][:offset])
        matched.append(next(n for n in range(len(context), 0, -1) if before[-n:] == list(context[-n:])))
    assert matched == sorted(matched, reverse=True), "longer matches come first"
    few = store.continuations(context, 4, 2)
    assert len(few) <= 2 and {one[:2] for one in few} <= followed


@given(st.lists(TOKENS, max_size=40))
def test_both_sorts_against_python(tokens: list[int]) -> None:
    text = np.array(tokens, np.uint32)
    expected = sorted(range(1, len(tokens) + 1), key=lambda place: tokens[:place][::-1])
    assert suffix_array._sort_by_doubling(text).tolist() == expected
    pytest.importorskip("pydivsufsort")
    assert suffix_array._sort_bytes(text).tolist() == expected


@given(
    DOCUMENTS,
    st.lists(DOCUMENTS, max_size=3),
    st.lists(st.lists(TOKENS, min_size=1, max_size=8), max_size=4),
    st.sampled_from(KEYS),
)
def test_searches_against_brute_force(
    documents: list[list[int]], more: list[list[list[int]]], contexts: list[list[int]], keys: str
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        made(patch, keys)
        store = Datastore.create(folder, documents)
        everything = list(documents)
        for part in more:
            numbers = store.append(part)
            assert numbers == range(len(everything), len(everything) + len(part))
            everything += part
        for opened in (store, Datastore(folder)):
            assert opened.num_documents == len(everything)
            assert opened.num_tokens == sum(map(len, everything))
            for number, document in enumerate(everything):
                assert opened.document(number) == document
            for context in [*contexts, *everything]:
                check(opened, everything, context)


@pytest.mark.usefixtures("sorting")
@pytest.mark.parametrize("keys", KEYS)
def test_long_texts_against_brute_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str) -> None:
    made(monkeypatch, keys)
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 4, size).tolist() for size in (300, 1, 200)]
    documents.append(documents[0][100:250] * 2)
    documents.append([3] * 100)
    store = Datastore.create(tmp_path, documents)
    for _ in range(60):
        context = rng.integers(0, 4, 20).tolist()
        check(store, documents, context)
    copied = documents[0][120:200]
    assert store.search(copied) == (
        continuations.MAX_MATCH,
        len(occurrences(documents, copied[-continuations.MAX_MATCH :])),
    )
    assert store.search([3] * 50) == (32, 69)


def test_matches_and_continuations_stay_in_their_document(tmp_path: Path) -> None:
    store = Datastore.create(tmp_path, [[1, 2], [3, 4]])
    assert store.search([2, 3]) == (1, 1)
    assert store.continuations([1, 2]) == []
    assert [one[:3] for one in store.continuations([1])] == [(0, 1, [2])]
    assert store.search([]) == store.search([9]) == store.search([0xFFFFFFFF]) == store.search([2, -1]) == (0, 0)
    assert store.search([-1, 2]) == (1, 1)


def test_hits_are_spread_and_weighted(tmp_path: Path) -> None:
    documents = [[5, 1, 10 + n // 50] for n in range(100)] + [[1, 99]] * 100
    store = Datastore.create(tmp_path, documents)
    hits = store.continuations([5, 1], 1, 4)
    share = 100 / (100 + continuations.ESCAPE)
    assert [one.tokens for one in hits] == [[10], [10], [11], [11]]
    assert sum(one.weight for one in hits) == pytest.approx(share)
    both = store.continuations([5, 1], 1, 200)
    assert [one.tokens for one in both[100:]] == [[99]] * 100
    assert sum(one.weight for one in both[100:]) == pytest.approx((1 - share) * share)


def test_contexts_and_numbers_may_be_those_of_numpy_and_torch(tmp_path: Path) -> None:
    """Their integers would overflow where four tokens are packed into 64 bits."""
    documents = [[50_000 + number % 7, 60_000, number, 40_000, 65_000] for number in range(50)]
    store = Datastore.create(tmp_path, map(torch.tensor, documents))
    for context in documents:
        expected = store.find(context[:4], 4, 5)
        assert expected[0] == (4, 1)
        for kind in (np.array, torch.tensor, tuple):
            assert store.find(kind(context[:4]), np.int64(4), np.int32(5)) == expected
    assert store.document(np.int64(3)) == documents[3]
    assert [one.tokens for one in store.continuations([3], 1 << 60)] == [[40_000, 65_000]]


def test_segments_merge_as_they_grow_and_are_split_at_the_limit(tmp_path: Path) -> None:
    documents = [[n % 7, n % 5, n % 3] for n in range(64)]
    store = Datastore.create(tmp_path / "a")
    for document in documents:
        store.append([document])
    assert len(store._segments) <= 7
    check(store, documents, [1, 2, 0])
    assert len(list((tmp_path / "a").iterdir())) == 1 + 8 * len(store._segments), "merged segments leave no files"
    split = Datastore.create(tmp_path / "b")
    split.append(iter(documents), segment_tokens=40)
    assert len(split._segments) > 5
    check(split, documents, [1, 2, 0])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    Datastore.create(tmp_path, [[1, 2, 3], [2, 3, 4]], fingerprint="a")
    yield tmp_path


def test_damage_is_refused_and_named(folder: Path) -> None:
    for path in sorted(folder.glob("*.bin")):
        content = path.read_bytes()
        path.write_bytes(content[:-4])
        for verify in (True, False):
            with pytest.raises(IndexFileError, match=f"{path.name}' has {len(content) - 4} bytes"):
                Datastore(folder, verify=verify)
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(IndexFileError, match=f"{path.name}' is damaged"):
            Datastore(folder)
        path.write_bytes(content)
    assert Datastore(folder).num_tokens == 6


def test_another_tokenizer_is_refused(folder: Path) -> None:
    assert Datastore(folder, fingerprint="a").fingerprint == "a"
    with pytest.raises(IndexFileError, match=r"another tokenizer \(fingerprint 'a', this one is 'b'\)"):
        Datastore(folder, fingerprint="b")


def test_what_is_no_document_is_refused_and_changes_nothing(folder: Path) -> None:
    store = Datastore(folder)
    for wrong, error, said in (
        ([[1], [2, -1]], ValueError, r"documents\[1\] holds -1"),
        ([[0xFFFFFFFF]], ValueError, "token ids are 0 to 4294967294"),
        (["text"], TypeError, r"documents\[0\] must be a sequence of token ids, got 'text'"),
        ([[1.5]], TypeError, "must be a sequence of token ids"),
        ("text", TypeError, "got a string: 'text'"),
    ):
        with pytest.raises(error, match=said):
            store.append(wrong)  # type: ignore[arg-type]
    assert store.num_documents == Datastore(folder).num_documents == 2
    with pytest.raises(FileExistsError, match="holds an index already"):
        Datastore.create(folder)
    with pytest.raises(IndexError, match="document 2 is not in this datastore: it holds 2"):
        store.document(2)
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        store.continuations([1], 0, 3)
    for options, said in (
        ({"length": 4.0}, "length must be an integer, at least 1, got float 4.0"),
        ({"count": True}, "count must be an integer, at least 1, got bool True"),
    ):
        with pytest.raises(TypeError, match=said):
            store.find([1], **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        store.document(1.0)  # type: ignore[arg-type]
    for number in (0, -1, 1 << 29):
        with pytest.raises(ValueError, match=f"segment_tokens must be an integer from 1 to 268435456, got {number}"):
            store.append([[1]], segment_tokens=number)


def test_an_append_that_fails_leaves_the_store(folder: Path) -> None:
    def documents() -> Iterator[list[int]]:
        yield [1, 2]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        Datastore(folder).append(documents(), segment_tokens=2)
    assert Datastore(folder).num_documents == 2


def test_threads_search_while_one_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch, "many")
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 4, 40).tolist() for _ in range(20)]
    store = Datastore.create(tmp_path, documents)
    contexts = [rng.integers(0, 4, 12).tolist() for _ in range(40)]
    expected = [store.find(context, 4, 5) for context in contexts]
    extra = [[9, 9, number + 10] for number in range(30)]  # of other tokens, so that no match of the contexts changes

    def search(_: int) -> list[object]:
        return [store.find(context, 4, 5) for context in contexts]

    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(search, number) for number in range(8)]
        for document in extra:
            store.append([document])
        assert all(future.result() == expected for future in futures)
    check(store, [*documents, *extra], [9, 9])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_searches_the_same_files(tmp_path: Path) -> None:
    documents = [[number % 7, number % 5, number % 3] * 4 for number in range(50)]
    store = Datastore.create(tmp_path, documents)
    expected = [store.find(document[:7], 4, 5) for document in documents]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking while threads run: the child starts none
        child = os.fork()
    if not child:
        os._exit(0 if [store.find(document[:7], 4, 5) for document in documents] == expected else 1)
    assert [store.find(document[:7], 4, 5) for document in documents] == expected
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_closed_datastore_says_so(tmp_path: Path) -> None:
    with Datastore.create(tmp_path, [[1, 2, 3]]) as store:
        assert store.search([1]) == (1, 1)
    for use in (lambda: store.search([1]), lambda: store.num_tokens, lambda: store.append([[4]])):
        with pytest.raises(ValueError, match=r"is closed; open it again: Datastore\("):
            use()
    assert Datastore(tmp_path).num_tokens == 3


def test_keys_at_other_distances_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_keys, "STRIDE", 2)
    with pytest.raises(IndexFileError, match=r"of another version .*: build it again"):
        Datastore(folder)


def test_a_datastore_opens_while_another_process_appends(tmp_path: Path) -> None:
    store = Datastore.create(tmp_path, [[1, 2, 3]])
    with ThreadPoolExecutor(1) as other:
        done = other.submit(lambda: [store.append([[5, number]]) for number in range(60)])
        opened = []
        while not done.done():
            opened.append(Datastore(tmp_path).num_documents)
    assert opened == sorted(opened) and Datastore(tmp_path).num_documents == 61
