"""Writers of indexes: one at a time, killed at any moment, beside readers, and what they leave."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from copyspec.common.filesystem import locked
from copyspec.retrievers import BM25Retriever, Corpora, Datastore, IndexFileError, load_passages, load_retriever
from copyspec.retrievers.saving import LOCK, saving
from tests.fuzz.bases import NAME, Tokenizer, documents, passages
from tests.fuzz.writers import at_once, kills
from tests.helpers.commands import run

# From Python 3.12 on. The children start no threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copyspec.retrievers.saving.LOCK_SECONDS", 0.1)


@posix
def test_writers_that_are_killed_leave_the_old_or_the_new() -> None:
    figures = kills(12, 5, ("bm25", "exact", "tokens", "journal", "cache", "file"))
    assert figures["broken"] == 0 and figures["killed"] == 12, figures["what"]


def test_a_writer_that_raises_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.writers.killed", lambda *args: ("failed", 0.0))
    figures = kills(2, 5, ("bm25",))
    assert figures["broken"] == 2 and "the writer raised" in str(figures["what"])


@posix
@pytest.mark.parametrize("removing", [False, True])
def test_writers_and_readers_at_once(removing: bool) -> None:
    figures = at_once(1.0, "bm25", removing=removing)
    assert (figures["lost"], figures["failed"]) == (0, 0) and figures["reads"] and figures["added"]


def test_a_second_writer_is_held_back_and_told_by_whom(tmp_path: Path) -> None:
    corpora = Corpora(tmp_path)
    corpora.add_bm25(NAME, passages(2))
    reader = load_retriever(tmp_path / NAME)
    with saving(tmp_path / NAME):
        for write in (
            lambda: corpora.add_bm25(NAME, passages(3)),
            lambda: BM25Retriever(["a word"]).save(tmp_path / NAME),
            lambda: corpora.remove(NAME),
        ):
            with pytest.raises(BlockingIOError, match=r"the index in '.*index' is being written by another thread"):
                write()
        assert len(load_retriever(tmp_path / NAME)) == len(reader), "readers need no lock"
    assert not (tmp_path / NAME / LOCK).exists()
    corpora.remove(NAME)
    assert list(tmp_path.iterdir()) == [] and reader.search("kettle")


@posix
def test_the_lock_of_a_process_that_was_killed_holds_nobody_back(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with locked(tmp_path / LOCK, "it"):
            os.write(writing, b".")
            time.sleep(300)
            os._exit(0)
    os.read(reading, 1)
    with pytest.raises(BlockingIOError, match=f"it is being written by process {child}: wait until that has ended"):
        locked(tmp_path / LOCK, "it").__enter__()
    os.kill(child, 9)
    os.waitpid(child, 0)
    with locked(tmp_path / LOCK, "it"):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    os.close(reading)
    os.close(writing)


@posix
def test_the_lock_of_another_writer_stays(tmp_path: Path) -> None:
    with locked(tmp_path / LOCK, "it"):
        (tmp_path / LOCK).unlink()  # as removing the folder does
        (tmp_path / LOCK).write_text("another's")
    assert (tmp_path / LOCK).read_text() == "another's"


@posix
def test_a_lock_that_is_another_file_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    for make in (os.symlink, os.link):
        make(tmp_path / "victim", tmp_path / LOCK)
        with pytest.raises(IndexFileError, match="cannot be locked: "):
            BM25Retriever(["a word"]).save(tmp_path)
        assert (tmp_path / "victim").read_text() == "kept"
        (tmp_path / LOCK).unlink()


def test_what_a_killed_writer_left_goes_and_other_files_stay(tmp_path: Path) -> None:
    BM25Retriever(["one word"]).save(tmp_path)
    texts = next(tmp_path.glob("texts-*"))
    with saving(tmp_path) as index:
        index.strings("texts", ["left"])
        left = tmp_path / index.files["texts"].name
        content = left.read_bytes()
    assert not left.exists(), "a save that was given up takes its files with it"
    left.write_bytes(content)
    (tmp_path / f".{left.name}.part").write_bytes(b"ha")
    others = [tmp_path / "notes.txt", tmp_path / "texts-0123456789ab.json", tmp_path / ".notes.part"]
    for other in others:
        other.write_text("the user's")
    BM25Retriever(["another word"]).save(tmp_path)
    assert not left.exists() and not (tmp_path / f".{left.name}.part").exists() and not texts.exists()
    assert all(other.read_text() == "the user's" for other in others)


def test_a_save_that_is_interrupted_after_its_manifest_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BM25Retriever(["one word"]).save(tmp_path)
    manifest = (tmp_path / "manifest.json").read_bytes()

    def interrupted(folder: Path) -> None:
        if (folder / "manifest.json").read_bytes() != manifest:
            raise KeyboardInterrupt

    monkeypatch.setattr("copyspec.common.filesystem.flush_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        BM25Retriever(["another word"]).save(tmp_path)
    assert list(BM25Retriever.load(tmp_path).texts) == ["another word"]


def test_two_objects_append_to_one_datastore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copyspec.retrievers.saving.LOCK_SECONDS", 60)
    one = Datastore.create(tmp_path, [[1, 2, 3]])
    other = Datastore(tmp_path)
    assert one.append([[4, 5]]) == range(1, 2) and other.append([[6]]) == range(2, 3)
    assert other.document(1) == [4, 5] and one.num_documents == 2
    threads = [threading.Thread(target=store.append, args=([[7]],)) for store in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Datastore(tmp_path).num_documents == 5


def test_documents_without_a_name_keep_their_place(tmp_path: Path) -> None:
    corpora = Corpora(tmp_path)
    corpora.add_tokens(NAME, documents(2), Tokenizer())  # type: ignore[arg-type]
    Datastore(tmp_path / NAME).append([[1, 2, 3]])
    assert corpora.add_tokens(NAME, documents(3), Tokenizer()).documents == 6  # type: ignore[arg-type]


def test_passages_of_texts_that_were_read_before_more_came(tmp_path: Path) -> None:
    corpora = Corpora(tmp_path)
    corpora.add_bm25(NAME, passages(2))
    retriever = load_retriever(tmp_path / NAME)
    corpora.add_bm25(NAME, passages(9))
    assert load_passages(tmp_path / NAME, retriever.texts) == passages(2)


@posix
def test_a_link_to_a_corpus_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    Corpora(tmp_path / "a").add_bm25(NAME, passages(2))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "linked").symlink_to(tmp_path / "a" / NAME)
    corpora = Corpora(tmp_path / "b")
    assert len(corpora.open("linked")[1]) == len(passages(2))
    corpora.remove("linked")
    assert corpora.names() == [] and Corpora(tmp_path / "a").names() == [NAME]


def test_removing_an_index_leaves_the_users_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)
    folder = tmp_path / NAME
    (folder / "sub").mkdir(parents=True)
    others = [folder / "notes.txt", folder / "sub" / "thesis.txt", folder / "texts-0123456789ab.json"]
    for other in others:
        other.write_text("precious")
    Corpora(tmp_path).add_bm25(NAME, passages(2))
    (folder / ".manifest.json.part").write_bytes(b"ha")
    code, out, err = run(capsys, "index", "remove", NAME, "--dir", str(tmp_path))
    assert (code, out) == (0, f"removed {NAME}\n")
    assert (
        err == f"left 'notes.txt', 'sub', 'texts-0123456789ab.json' in {str(folder)!r}, which the index did not write\n"
    )
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(others)
    assert all(other.read_text() == "precious" for other in others)


def test_the_manifest_of_another_program_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    manifest = tmp_path / NAME / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text('{"name": "an extension"}')
    for write in (lambda: BM25Retriever(["a word"]).save(manifest.parent), lambda: Corpora(tmp_path).remove(NAME)):
        with pytest.raises(IndexFileError, match=r"manifest\.json' is not the manifest of a copyspec index: move it"):
            write()
    assert [path.read_text() for path in manifest.parent.iterdir()] == ['{"name": "an extension"}']


@posix
def test_a_folder_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("nowhere")
    for name, said in (("file", "'file' is not a folder"), ("link", "is a symbolic link that leads to no folder")):
        with pytest.raises(IndexFileError, match=f"{said}: an index needs a folder of its own"):
            BM25Retriever(["a word"]).save(name)
    with pytest.raises(ValueError, match="the folder of an index is '': name one"):
        BM25Retriever(["a word"]).save("")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
