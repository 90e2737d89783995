"""Forges files of an index: changed contents, or something else in place of a file."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.fuzz.forging_manifests import VALUES, Manifest, put, replaced, sealed

FLOATS = [0.0, 1.0, -1.0, 1e14, 3e38, -3e38, 1e-45, float("nan"), float("inf"), -float("inf")]
DTYPES = {"vectors": "f4", "probe": "f4", "centres": "f4", "levels": "u1", "shared": "u1", "keys": "u8", "tops": "u8"}
DTYPES |= {"starts": "u4", "passages.starts": "u8", "links": "i4"}


def forge_no_file(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    entries = manifest["files"]
    assert isinstance(entries, dict)
    key, how = rng.choice(list(entries)), rng.choice(["link", "pipe", "folder", "lock", "hard lock", "part"])
    path = folder / str(entries[key][0])
    victim = outside / "victim.txt"
    if how == "lock":
        (folder / ".lock").symlink_to(victim)
    elif how == "hard lock":
        os.link(victim, folder / ".lock")
    elif how == "part":
        (folder / ".manifest.json.part").symlink_to(victim)
    else:
        if how == "link" and rng.random() < 0.5:  # a link to the right content
            (outside / path.name).write_bytes(path.read_bytes())
            victim = outside / path.name
        put(path, victim if rng.random() < 0.7 else Path("/dev/zero"), how)
    return how


def forge_array(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    entries = manifest["files"]
    assert isinstance(entries, dict)
    key = rng.choice([key for key in entries if str(entries[key][0]).endswith(".bin")])
    dtype = np.dtype(DTYPES.get(key, DTYPES.get(key.rpartition(".")[2], "u4")))
    content = (folder / str(entries[key][0])).read_bytes()
    array = np.frombuffer(content[: len(content) // dtype.itemsize * dtype.itemsize], dtype).copy()
    how = rng.choice(
        ["one", "one", "one", "last", "first", "some", "all", "shuffle", "reverse", "sort", "cut", "more", "odd"]
    )
    size = len(array)
    at = {"first": 0, "last": size - 1}.get(how, rng.randrange(max(size, 1)))
    if dtype.kind == "f":
        value: object = rng.choice(FLOATS)
    else:
        bounds = np.iinfo(dtype)
        nearby = int(array[at]) + rng.choice([-1, 1, 2, 100]) if size else 0
        value = rng.choice([0, 1, 2, bounds.max, bounds.max - 1, bounds.max // 2, size, size - 1, nearby, nearby])
        value = min(max(int(value), bounds.min), bounds.max)
    if how in ("one", "first", "last"):
        array[at : at + 1] = value
    elif how == "some":
        array[rng.randrange(max(size, 1)) :] = value
    elif how == "all":
        array[:] = value
    elif how == "shuffle":
        np.random.default_rng(rng.randrange(1 << 30)).shuffle(array)
    elif how == "reverse":
        array = array[::-1]
    elif how == "sort":
        array = np.sort(array)
    elif how == "cut":
        array = array[: rng.randrange(max(size, 1))]
    elif how == "more":
        array = np.concatenate([array, array[: rng.randrange(max(size, 1)) + 1]])
    content = array.tobytes() + (b"\1" * rng.randrange(1, 8) if how == "odd" else b"")
    replaced(folder, manifest, key, content)
    sealed(folder, manifest)
    return f"{key} {how} {value!r}"


def forge_strings(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    entries = manifest["files"]
    assert isinstance(entries, dict)
    key = rng.choice([key for key in entries if str(entries[key][0]).endswith(".json")])
    values = json.loads((folder / str(entries[key][0])).read_bytes())
    whole: list[bytes] = [
        b"",
        b"[",
        b"null",
        b"{}",
        b"[1]",
        b'["a",]',
        b"\xff\xfe",
        b"[" * 100_000,
        b"[" + b"[]," * 2_000_000,
    ]
    whole += [b'["' + b"\\ud800" * 9 + b'"]', b"[]", b'["a"', b'["a"] ', b"[NaN]", b'["' + b"x" * (1 << 22) + b'"]']
    how = rng.choice(["whole", "drop", "more", "twice", "value", "row"])
    at = rng.randrange(len(values))
    if how == "whole":
        replaced(folder, manifest, key, rng.choice(whole))
    else:
        if how == "drop":
            del values[at]
        elif how == "more":
            values += ["more"] * rng.choice([1, 1000])
        elif how == "twice":
            values[at] = values[0]
        elif how == "value":
            values[at] = rng.choice(VALUES)
        else:
            values[at] = rng.choice(
                ["[]", "[1, 2]", "[" * 100_000, '[null, {"a": NaN}]', '["a", []]', "{}", "[[], {}]"]
            )
        replaced(folder, manifest, key, json.dumps(values).encode())
    sealed(folder, manifest)
    return f"{key} {how}"


class _Trap:
    """An object that changes a file when it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.truncate, (str(self.victim), 0)


def forge_other_format(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    entries = manifest["files"]
    assert isinstance(entries, dict)
    key, how = rng.choice(list(entries)), rng.choice(["pickle", "npy", "npz", "bomb", "faiss", "sparse"])
    made = io.BytesIO()
    if how == "pickle":
        made.write(pickle.dumps(_Trap(outside / "victim.txt")))
    elif how == "npy":
        np.save(made, np.array([_Trap(outside / "victim.txt")], object), allow_pickle=True)
    elif how == "faiss":
        made.write(rng.choice([b"IxFI", b"IHNf", b"IwFl", b"IxMp"]) + b"\xff" * 200)
    elif how == "sparse":
        made.write(bytes(50_000_000))
    else:
        named = {key.rpartition(".")[2]: np.zeros(40_000_000 if how == "bomb" else 4)}
        np.savez_compressed(made, **named)  # type: ignore[arg-type]
    replaced(folder, manifest, key, made.getvalue())
    sealed(folder, manifest)
    return f"{key} {how}"
