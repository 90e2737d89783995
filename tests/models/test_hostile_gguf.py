"""GGUF files that are damaged or forged: an error at once, and nothing in the cache."""

from __future__ import annotations

import copy
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pytest

from copyspec.models import gguf_header
from copyspec.models.errors import FileError
from copyspec.models.gguf import converted
from kit.gguf_files import write_llama
from tests.helpers.texts import byte_level, llama

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

LAST = b"\x0d\0\0\0\0\0\0\0output.weight"  # with its length, since other names end like this


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_llama(path, llama(len(byte_level())), byte_level())
    return path.read_bytes()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def setting(content: bytes, key: bytes, number: int, *, at: int = 4, size: int = 4) -> bytes:
    """The file with another number, `at` bytes behind a key or a tensor's name."""
    place = content.index(key) + len(key) + at
    return content[:place] + number.to_bytes(size, "little") + content[place + size :]


def offset(content: bytes, tensor: bytes, change: int) -> bytes:
    """The file with the offset of a tensor changed: behind its number of dimensions, their sizes and its type."""
    place = content.index(tensor) + len(tensor)
    at = 4 + 8 * content[place] + 4
    before = int.from_bytes(content[place + at : place + at + 8], "little")
    return setting(content, tensor, (before + change) % 2**64, at=at, size=8)


def kind(content: bytes, tensor: bytes, number: int) -> bytes:
    return setting(content, tensor, number, at=4 + 8 * content[content.index(tensor) + len(tensor)])


def refused(content: bytes, says: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "forged.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=rf"forged\.gguf' cannot be read: {says}") as raised:
        converted(tmp_path / "forged.gguf")
    assert "copyspec-gguf-" not in str(raised.value) and list(cache.iterdir()) == []


@pytest.mark.parametrize("cut", [4, 20, 300, 3000])
def test_files_that_were_cut(cut: int, content: bytes, tmp_path: Path, cache: Path) -> None:
    refused(content[:-cut] if cut > 20 else content[:cut], ".+damaged or cut off", tmp_path, cache)


@pytest.mark.parametrize("layers", [0, 1, 10**9, 2**32 - 1])
def test_another_number_of_layers(layers: int, content: bytes, tmp_path: Path, cache: Path) -> None:
    forged = setting(content, b"llama.block_count", layers)
    refused(forged, f"its header says that it has {layers} layers, and it holds 2", tmp_path, cache)
    bare = forged.replace(b"\0blk.", b"\0xlk.")
    if layers:
        refused(bare, f"its header says that it has {layers} layers, and it holds 0", tmp_path, cache)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"blk.1.", b"blk.9.", "it holds layer 9, but not layer 1"),
        (
            b"llama.feed_forward_length",
            b"mistralmistra.block_count",
            r"its header says .+ \(mistralmistra.block_count\)",
        ),
        (b"general.architecture", b"general.architectura", "its header has no general.architecture"),
        (b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight", r"it lacks 1 weights, 'model\.layers\.1\.mlp\.up_proj"),
        (b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz", r"it is damaged, or .+ \(\w+Error: .*'tokens'\)"),
        (b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight", "it holds 'blk.0.ffn_up.weight' twice"),
    ],
)
def test_other_names(old: bytes, new: bytes, says: str, content: bytes, tmp_path: Path, cache: Path) -> None:
    refused(content.replace(old, new), says, tmp_path, cache)


def test_weights_that_are_not_there_take_no_memory(content: bytes, tmp_path: Path, cache: Path) -> None:
    forged = setting(content.replace(b".ffn_", b".xxx_"), b"llama.feed_forward_length", 10**9)
    refused(forged, "its header describes more weights than its .+ bytes can hold", tmp_path, cache)


@pytest.mark.parametrize(
    ("key", "number", "size", "at", "says"),
    [
        (b"tokenizer.ggml.token_type", 2**60, 8, 8, "its header is damaged or cut off"),
        (b"tokenizer.ggml.tokens", 2**60, 8, 8, "its header is damaged or cut off"),
        (b"tokenizer.ggml.tokens", 13, 4, 4, "its header has a list of the unknown type 13"),
        (b"tokenizer.ggml.tokens", 9, 4, 4, "its header (is damaged or cut off|has .+)"),
        (b"llama.block_count", 99, 4, 0, "its header has a value of the unknown type 99"),
        (b"llama.attention.head_count", 0, 4, 4, r"it is damaged, or .+ZeroDivisionError"),
    ],
)
def test_wrong_numbers(
    key: bytes, number: int, size: int, at: int, says: str, content: bytes, tmp_path: Path, cache: Path
) -> None:
    refused(setting(content, key, number, at=at, size=size), says, tmp_path, cache)


@pytest.mark.parametrize("change", [1, 32, -32, 2**64 - 64])
def test_tensors_that_do_not_follow_each_other(change: int, content: bytes, tmp_path: Path, cache: Path) -> None:
    refused(offset(content, b"blk.1.ffn_up.weight", change), "its header places 'blk.1.ffn_up", tmp_path, cache)


def test_types_that_have_another_length(content: bytes, tmp_path: Path, cache: Path) -> None:
    tensors = [b"blk.1.ffn_up.weight", b"blk.1.attn_norm.weight"]
    for tensor in tensors:
        refused(kind(content, tensor, 1), "its header places .+it is damaged", tmp_path, cache)
    refused(
        kind(content, tensors[0], 200), "its tensor 'blk.1.ffn_up.weight' has the unknown type 200", tmp_path, cache
    )
    refused(kind(content, LAST, 1), "its tensors end at .+ bytes: it is damaged", tmp_path, cache)
    refused(content + b"x" * 64, "its tensors end at", tmp_path, cache)


def test_a_chat_template_has_a_largest_size(tmp_path: Path, cache: Path) -> None:
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.chat_template = "x" * (5 << 20)
    write_llama(tmp_path / "long.gguf", llama(len(tokenizer)), tokenizer)
    refused((tmp_path / "long.gguf").read_bytes(), "its tokenizer.chat_template has more than 1 MB", tmp_path, cache)


def headed(path: Path, *, tensors: int = 0, settings: int = 0, then: bytes = b"") -> Path:
    """A file that begins with these counts, and then this."""
    path.write_bytes(gguf_header.MAGIC + struct.pack("<IQQ", 3, tensors, settings) + then)
    return path


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def test_a_header_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros, which take no room on the disk, are tensors without a name."""
    monkeypatch.setattr(gguf_header, "_MAX_BYTES", 1 << 20)
    path = headed(tmp_path / "x.gguf", tensors=1 << 60)
    os.truncate(path, 4 << 20)
    with pytest.raises(FileError, match="its header has more than 1 MB"):
        gguf_header.read_header(path)


def test_tokens_have_a_largest_length(tmp_path: Path) -> None:
    listed = text(b"tokens") + struct.pack("<IIQ", 9, 8, 2)
    path = headed(tmp_path / "x.gguf", settings=1, then=listed + text(b"a") + text(b"a" * 10_001))
    with pytest.raises(FileError, match="its header has a list with a text of 10,001 bytes"):
        gguf_header.read_header(path)


STRINGS, BYTES = struct.pack("<II", 9, 8), struct.pack("<II", 9, 0)  # lists of them
NAMED = text(b"x")
COSTLY: dict[str, Callable[[], tuple[int, bytes]]] = {  # made where they are needed: they take 400 MB
    "empty strings": lambda: (1, NAMED + STRINGS + struct.pack("<Q", 7_000_000) + bytes(56_000_000)),
    "some empty strings": lambda: (1, NAMED + STRINGS + struct.pack("<Q", 30_000) + bytes(240_000)),
    "empty tokens": lambda: (
        1,
        text(b"tokenizer.ggml.tokens") + STRINGS + struct.pack("<Q", 7_000_000) + bytes(56_000_000),
    ),
    "short tokens": lambda: (
        1,
        text(b"tokenizer.ggml.tokens") + STRINGS + struct.pack("<Q", 3_000_000) + 3_000_000 * text(b"a"),
    ),
    "two lists": lambda: (
        2,
        b"".join(
            text(b"tokenizer.ggml." + name) + STRINGS + struct.pack("<Q", length) + bytes(8 * length)
            for name, length in ((b"tokens", 90_000), (b"merges", 1_450_000))
        ),
    ),
    "bytes": lambda: (
        1,
        text(b"tokenizer.ggml.precompiled_charsmap") + BYTES + struct.pack("<Q", 50_000_000) + bytes(50_000_000),
    ),
    "scalars": lambda: (1, NAMED + BYTES + struct.pack("<Q", 25_000) + bytes(25_000)),
    "lists": lambda: (1, NAMED + struct.pack("<IIQ", 9, 9, 4_000_000) + 4_000_000 * struct.pack("<IQ", 0, 0)),
    "lists in a list": lambda: (
        1,
        text(b"tokenizer.x") + struct.pack("<IIQ", 9, 9, 3) + 3 * (struct.pack("<IQ", 0, 600_000) + bytes(600_000)),
    ),
    "a long string": lambda: (1, NAMED + struct.pack("<I", 8) + text(bytes(60_000_000))),
    "a long key": lambda: (1, text(b"a" * 60_000_000) + struct.pack("<IB", 0, 1)),
    "a key above the format's": lambda: (1, text(b"a" * 65_536) + struct.pack("<IB", 0, 1)),
    "settings": lambda: (1_000_000, b"".join(text(b"%07d" % i) + struct.pack("<IB", 0, 1) for i in range(20_000))),
    "strings as settings": lambda: (
        200_000,
        b"".join(text(b"%07d" % i) + struct.pack("<IQ", 8, 0) for i in range(20_000)),
    ),
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_header_that_costs_too_much_is_refused_at_once(name: str, tmp_path: Path) -> None:
    settings, then = COSTLY[name]()
    path = headed(tmp_path / "x.gguf", settings=settings, then=then)
    begin = process_time()
    tracemalloc.start()
    with pytest.raises(FileError, match=r"its header has (a list of|a text of|more than) .+") as caught:
        gguf_header.read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert process_time() - begin < 3 and peak < 20 << 20 and len(str(caught.value)) < 300


@pytest.mark.parametrize("length", [0, 1, 60, 64 << 10, 2 << 20])
def test_tensors_that_cost_too_much_are_refused_at_once(length: int, tmp_path: Path) -> None:
    count = min(200_000, (60 << 20) // (length + 24))
    tensor = text(b"t" * length) + struct.pack("<IIQ", 0, 0, 0)
    path = headed(tmp_path / "x.gguf", tensors=1 << 40, then=count * tensor)
    begin = process_time()
    with pytest.raises(FileError, match=r"its header (has|is)"):
        gguf_header.read_header(path)
    assert process_time() - begin < 3


def test_large_vocabularies_are_read(tmp_path: Path) -> None:
    """As large as those of Gemma: tokens, scores, types and merges."""
    tokens, merges = 262_144, 514_906
    then = text(b"tokenizer.ggml.tokens") + STRINGS + struct.pack("<Q", tokens) + tokens * text(b"token")
    then += text(b"tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, tokens) + bytes(4 * tokens)
    then += text(b"tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, tokens) + bytes(4 * tokens)
    then += text(b"tokenizer.ggml.merges") + STRINGS + struct.pack("<Q", merges) + merges * text(b"to ken")
    path = headed(tmp_path / "x.gguf", settings=4, then=then)
    with pytest.raises(FileError, match=r"no general\.architecture"):
        gguf_header.read_header(path)


def test_parts_of_a_file_say_how_to_join_them(tmp_path: Path) -> None:
    for parts, says in ((3, "it is one of 3 parts; join them with .+ --merge"), (0, "no general.architecture")):
        path = headed(tmp_path / "x.gguf", settings=1, then=text(b"split.count") + struct.pack("<IH", 2, parts))
        with pytest.raises(FileError, match=says):
            gguf_header.read_header(path)
