"""Converted models are made again when their source's content changes, whatever its path, size and time say."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from copyspec.models import digests, gguf
from copyspec.models.digests import content_digest
from copyspec.models.model_cache import cache_folder
from copyspec.models.resolve import resolve
from retrievers.passages import stamp_of

SIZE = 3 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + random.Random(0).randbytes(SIZE))
    return path


def in_place(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def one_byte(file: Path, content: bytes) -> None:
    with file.open("r+b") as opened:
        place = next(i for i, (old, new) in enumerate(zip(file.read_bytes(), content, strict=True)) if old != new)
        opened.seek(place)
        opened.write(content[place : place + 1])


def exchanged(file: Path, content: bytes) -> None:
    other = file.with_name("other")
    other.write_bytes(content)
    times = file.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(other, file)


def linked(file: Path, content: bytes) -> None:
    target = file.with_name("target")
    target.write_bytes(content)
    file.unlink()
    file.symlink_to(target)


def copied_over(file: Path, content: bytes) -> None:
    other = file.with_name("other")
    other.write_bytes(content)
    shutil.copy2(other, file)


@pytest.mark.parametrize("change", [in_place, one_byte, exchanged, linked, copied_over])
@pytest.mark.parametrize("place", [4, SIZE // 2, 1 << 20, SIZE - (1 << 20) - 1, SIZE])
@pytest.mark.parametrize("noted", [False, True])
def test_another_content_has_another_digest(
    change: Callable[[Path, bytes], None], place: int, noted: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if noted:
        monkeypatch.setattr(digests, "_SETTLED", -1)
    before, times, content = content_digest(file), file.stat(), bytearray(file.read_bytes())
    assert content_digest(file) == before
    content[place] ^= 1
    time.sleep(0.02)
    change(file, bytes(content))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_size == times.st_size and file.stat().st_mtime_ns == times.st_mtime_ns
    assert content_digest(file) != before and gguf._fingerprint(file) == content_digest(file)
    content[place] ^= 1
    change(file, bytes(content))
    assert content_digest(file) == before


def test_an_unchanged_file_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = content_digest(file)
    assert not list((cache_folder() / "digests").glob("*"))  # changed a moment ago: the next change may have its time
    monkeypatch.setattr(digests, "_SETTLED", -1)
    assert content_digest(file) == first
    (note,) = (cache_folder() / "digests").iterdir()
    monkeypatch.setattr(digests, "hash_into", lambda *_: pytest.fail("the file is read again"))
    assert content_digest(file) == first
    note.unlink()
    with pytest.raises(pytest.fail.Exception):
        content_digest(file)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b"[1, 2, 3, 4, 5, 6, 7]", b"\xff", b"[" * 3000, b"null"])
def test_damaged_notes_are_written_again(damage: bytes, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_SETTLED", -1)
    first = content_digest(file)
    (note,) = (cache_folder() / "digests").iterdir()
    good = note.read_bytes()
    note.write_bytes(damage)
    assert content_digest(file) == first and note.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_no_error(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_SETTLED", -1)
    cache.write_bytes(b"no folder")
    assert content_digest(file) == content_digest(file)


def test_a_file_that_changes_while_it_is_read_is_not_noted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_SETTLED", -1)
    monkeypatch.setattr(digests, "hash_into", lambda *_: os.utime(file, ns=(1, 1)))
    content_digest(file)
    assert not (cache_folder() / "digests").exists()


def test_an_adapter_is_merged_again_into_another_base(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    from copyspec.models.loading import BUNDLED

    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(BUNDLED, base, ignore=shutil.ignore_patterns("__pycache__"))
    weights = load_file(base / "model.safetensors")
    name, other = (next(key for key in weights if part in key) for part in ("q_proj", "down_proj"))
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(base)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    rows, columns = weights[name].shape
    prefix = f"base_model.model.{name.removesuffix('.weight')}"
    factors = {f"{prefix}.lora_A.weight": torch.ones(2, columns), f"{prefix}.lora_B.weight": torch.ones(rows, 2)}
    save_file(factors, adapter / "adapter_model.safetensors")
    first, times = resolve(str(adapter)), (base / "model.safetensors").stat()
    assert resolve(str(adapter)) == first
    save_file({**weights, other: weights[other] * 3}, base / "model.safetensors", metadata={"format": "pt"})
    os.utime(base / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    second = resolve(str(adapter))
    assert second != first
    assert torch.equal(load_file(Path(second) / "model.safetensors")[other], (weights[other] * 3).float())


def test_a_document_with_an_old_time_has_another_stamp(tmp_path: Path) -> None:
    document = tmp_path / "a.txt"
    document.write_text("one")
    before, times = stamp_of(document), document.stat()
    time.sleep(0.02)
    document.write_text("two")
    os.utime(document, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert stamp_of(document) != before
