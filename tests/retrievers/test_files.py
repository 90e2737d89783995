"""Index files: damaged ones are refused and named, and a failed save leaves the old index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from copyspec.common.filesystem import replacing
from copyspec.retrievers import BM25Retriever, IndexFileError, files
from copyspec.retrievers.saving import Saving

TEXTS = ["a kettle", "a heron"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    BM25Retriever(TEXTS).save(tmp_path)
    return tmp_path


def data_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != files.MANIFEST)


@pytest.mark.parametrize("which", range(6))
def test_damage_is_refused_and_named(folder: Path, which: int) -> None:
    path = data_files(folder)[which]
    content = bytearray(path.read_bytes())
    for index in (0, len(content) // 2, len(content) - 1):
        damaged = content.copy()
        damaged[index] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(IndexFileError, match=f"{path.name}' is damaged"):
            BM25Retriever.load(folder)
    path.write_bytes(content[:-1])
    with pytest.raises(IndexFileError, match=f"{path.name}' has {len(content) - 1} bytes, {len(content)} were written"):
        BM25Retriever.load(folder)
    path.unlink()
    with pytest.raises(IndexFileError, match=f"{path.name}' is missing"):
        BM25Retriever.load(folder)


def test_a_wrong_manifest_is_refused(folder: Path) -> None:
    path = folder / files.MANIFEST
    good = json.loads(path.read_text())
    for change, said in (
        ({"format": "other"}, "not the manifest of a copyspec index"),
        ({"version": 99}, "format version 99, this copyspec reads 2"),
        ({"fingerprint": "0"}, "is damaged"),
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(IndexFileError, match=said):
            BM25Retriever.load(folder)
    for text in ("[]", "{", "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(IndexFileError, match=r"manifest\.json"):
            BM25Retriever.load(folder)
    with pytest.raises(IndexFileError, match=r"it holds no manifest\.json"):
        BM25Retriever.load(folder / "nowhere")


def test_another_kind_is_refused(folder: Path) -> None:
    with pytest.raises(IndexFileError, match="holds an index of kind 'bm25', not 'dense'"):
        files.opened(folder, "dense")


def test_a_save_that_fails_leaves_the_old_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Saving, key: str, values: Sequence[str]) -> None:
        if key == "words":
            raise OSError("no space left on device")
        strings(self, key, values)

    before, strings = sorted(folder.iterdir()), Saving.strings
    monkeypatch.setattr(Saving, "strings", full)
    with pytest.raises(OSError, match="no space"):
        BM25Retriever([*TEXTS, "a stove"]).save(folder)
    assert list(BM25Retriever.load(folder).texts) == TEXTS and sorted(folder.iterdir()) == before


def test_a_file_that_is_not_finished_does_not_appear(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_fingerprints_are_stable() -> None:
    assert files.fingerprint("a", 1, {"b": 2, "a": 1}) == files.fingerprint("a", 1, {"a": 1, "b": 2})
    assert files.fingerprint("a") != files.fingerprint("b")
