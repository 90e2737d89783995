"""Forging: changes to an index on disk, most with the right checksums, as somebody would make them on purpose."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from copyspec.fingerprints import fingerprint

Manifest = dict[str, object]

NUMBERS: list[object] = [0, 1, 2, -1, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**64, -(2**63), 10**300]
VALUES: list[object] = [
    *NUMBERS,
    True,
    None,
    1.5,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../x",
    "é\0",
    [],
    [[]],
    {},
]
VALUES += [["a", 1], {"a": {"b": []}}, [0] * 1000, "x" * 10_000, {"name": 3, "prefix": []}]
FLOATS = [0.0, 1.0, -1.0, 1e14, 3e38, -3e38, 1e-45, float("nan"), float("inf"), -float("inf")]
DTYPES = {"vectors": "f4", "probe": "f4", "centres": "f4", "levels": "u1", "shared": "u1", "keys": "u8", "tops": "u8"}
DTYPES |= {"starts": "u4", "passages.starts": "u8", "links": "i4"}


def names(outside: Path) -> list[object]:
    """What an entry may be called to reach another file."""
    victim = outside / "victim.txt"
    found: list[object] = [str(victim), f"../../{outside.name}/victim.txt", "../victim.txt", "notes.txt", "sub/a.bin"]
    found += [
        "manifest.json",
        ".",
        "..",
        "",
        "a\0b",
        "CON",
        "nul.txt",
        "C:\\x",
        "\\\\host\\x",
        "x" * 5000,
        "-",
        "é.bin",
    ]
    return [*found, "texts-000000000000.json", "/dev/zero", "/dev/stdin", 3, None, ["a"], "lock", ".lock"]


def sealed(folder: Path, manifest: Manifest) -> None:
    """Writes a manifest with its right checksum."""
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    (folder / "manifest.json").write_text(json.dumps({**body, "sha256": fingerprint(body)}))


def replaced(folder: Path, manifest: Manifest, key: str, content: bytes) -> None:
    """Another content of a file, under its right name with its right checksum."""
    entries = manifest["files"]
    assert isinstance(entries, dict)
    old = str(entries[key][0])
    digest = hashlib.sha256(content).hexdigest()
    stem, suffix = old.rpartition("-")[0], Path(old).suffix
    name = f"{stem}-{digest[:12]}{suffix}"
    (folder / name).write_bytes(content)
    entries[key] = [name, len(content), digest]


def forge(folder: Path, outside: Path, rng: random.Random) -> str:
    """Changes the index in `folder`; says how."""
    path = folder / "manifest.json"
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 22:  # by an earlier change
        return "twice"
    try:
        manifest = json.loads(path.read_text())
    except (ValueError, RecursionError):
        return "twice"
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict) or not manifest["files"]:
        return "twice"
    change = rng.choices(CHANGES, weights=[weight for _, weight in WEIGHTED])[0]
    try:
        said = change(folder, outside, manifest, rng)
    except (AssertionError, LookupError, OSError, TypeError, ValueError):  # by an earlier change
        said = "twice"
    return f"{change.__name__.lstrip('_')}: {said}"


def _entry_name(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    entries = manifest["files"]
    assert isinstance(entries, dict)
    key, name = rng.choice(list(entries)), rng.choice(names(outside))
    victim = (outside / "victim.txt").read_bytes()
    digest = hashlib.sha256(victim).hexdigest()
    entries[key] = [name, len(victim), digest] if rng.random() < 0.5 else [name, *entries[key][1:]]
    if rng.random() < 0.2:
        entries[f"extra{rng.randrange(9)}"] = entries[key]
    sealed(folder, manifest)
    return repr(name)[:40]


def _entry_field(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    entries = manifest["files"]
    assert isinstance(entries, dict)
    key, value = rng.choice(list(entries)), rng.choice(VALUES)
    field = rng.randrange(4)
    if field == 3:
        entries[key] = value
    else:
        entries[key][field] = value
    sealed(folder, manifest)
    return f"{key}[{field}]"


def _entries(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    entries = manifest["files"]
    assert isinstance(entries, dict)
    keys, how = list(entries), rng.choice(["drop", "swap", "rename", "add", "none", "many"])
    key = rng.choice(keys)
    if how == "drop":
        del entries[key]
    elif how == "swap":
        other = rng.choice(keys)
        entries[key], entries[other] = entries[other], entries[key]
    elif how == "rename":
        entries[rng.choice(["x", "0.x", "99999.tokens", "-1.tokens", "passages.names", "", "é", "a.b.c"])] = (
            entries.pop(key)
        )
    elif how == "add":
        entries[rng.choice(["7.tokens", "documents", "passages.starts", "lists", "x"])] = entries[key]
    elif how == "none":
        manifest["files"] = rng.choice([{}, [], None, {"a": []}])
    else:
        entries.update({f"{number}.tokens": entries[key] for number in range(3000)})
    sealed(folder, manifest)
    return f"{how} {key}"


def _fact(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    facts = manifest["facts"]
    assert isinstance(facts, dict)
    said = [*facts, "new"]
    key = rng.choice(said)
    if isinstance(facts.get(key), dict) and rng.random() < 0.8:
        inner = rng.choice(list(facts[key]))
        facts[key][inner] = rng.choice(VALUES)
        key = f"{key}.{inner}"
    elif key in facts and rng.random() < 0.1:
        del facts[key]
    else:
        facts[key] = rng.choice(VALUES)
    sealed(folder, manifest)
    return str(key)


def _field(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    key = rng.choice([*manifest, "new"])
    kinds: list[object] = ["bm25", "dense", "tokens", "passages", "documents", "x", 1, 2, 3]
    manifest[str(key)] = rng.choice(kinds if rng.random() < 0.5 else VALUES)
    if key == "sha256" or rng.random() < 0.1:
        (folder / "manifest.json").write_text(json.dumps(manifest))
    else:
        sealed(folder, manifest)
    return str(key)


def _whole_manifest(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    path = folder / "manifest.json"
    text = path.read_text()
    how = rng.choice(
        ["deep", "deep facts", "twice", "digits", "large", "zeros", "link", "pipe", "folder", "empty", "bytes"]
    )
    if how == "deep":
        path.write_text("[" * 100_000)
    elif how == "deep facts":
        path.write_text(text.replace('"facts": {', '"facts": {"x": ' + "[" * 100_000 + "]" * 100_000 + ", ", 1))
    elif how == "twice":
        path.write_text(text.replace('"kind"', '"kind": "bm25", "kind"', 1))
    elif how == "digits":
        path.write_text(text.replace('"facts": {', '"facts": {"x": ' + "9" * 100_000 + ", ", 1))
    elif how == "large":
        path.write_text("[" + "[]," * 3_000_000 + "[]]")
    elif how == "zeros":
        os.truncate(path, 1 << 36)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "bytes":
        path.write_bytes(rng.randbytes(500))
    else:
        _put(path, rng.choice([outside / "victim.txt", Path("/dev/zero")]), how)
    return how


def _put(path: Path, target: Path, how: str) -> None:
    """What is no regular file, in the place of one."""
    path.unlink()
    if how == "link":
        path.symlink_to(target)
    elif how == "hard":
        os.link(target, path)
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()


def _no_file(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
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
        if how == "link" and rng.random() < 0.5:  # of the right content
            (outside / path.name).write_bytes(path.read_bytes())
            victim = outside / path.name
        _put(path, victim if rng.random() < 0.7 else Path("/dev/zero"), how)
    return how


def _array(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
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


def _strings(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
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
    """Unpickled, it changes a file."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.truncate, (str(self.victim), 0)


def _other_format(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
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


WEIGHTED: list[tuple[Callable[[Path, Path, Manifest, random.Random], str], float]] = [
    (_entry_name, 3),
    (_entry_field, 2),
    (_entries, 2),
    (_fact, 3),
    (_field, 1),
    (_whole_manifest, 1),
    (_no_file, 2),
    (_array, 8),
    (_strings, 2),
    (_other_format, 0.7),
]
CHANGES = [change for change, _ in WEIGHTED]


def forge_json(path: Path, outside: Path, rng: random.Random) -> str:
    """Changes a file of JSON, or of a line of JSON each."""
    how = rng.choice(["value", "value", "value", "lines", "deep", "large", "link", "pipe", "folder", "hard", "zeros"])
    if how in ("link", "pipe", "folder", "hard"):
        _put(
            path,
            rng.choice([outside / "victim.txt", outside / "empty.txt", Path("/dev/zero")][: 2 + (how == "link")]),
            how,
        )
        return how
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    if how == "value":
        row = json.loads(lines[at])
        where, key = row, rng.choice(list(row))
        while isinstance(where[key], (list, dict)) and where[key] and rng.random() < 0.8:
            where = where[key]
            key = rng.choice(list(where) if isinstance(where, dict) else range(len(where)))
        where[key] = rng.choice(VALUES)
        lines[at] = json.dumps(row)
    elif how == "lines":
        lines[at] = rng.choice(
            ["", "[]", "{}", "null", "3", '"x"', lines[0], '{"key": 3}', '{"key": "zz"}', '{"key": ""}']
        )
    elif how == "deep":
        lines[at] = "[" * 100_000
    elif how == "large":
        lines[at] = "[" + "[[]]," * 3_000_000
    path.write_text("\n".join(lines) + "\n")
    if how == "zeros":
        os.truncate(path, 1 << 36)
    return how


def flip(folder: Path, rng: random.Random) -> str:
    """Damages a file as a disk or a transfer would: bytes, its end, a stretch of zeros."""
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "notes.txt"))
    content, how = bytearray(path.read_bytes()), rng.choice(["byte", "byte", "bytes", "cut", "more", "zeros"])
    at = rng.randrange(max(1, len(content)))
    if how == "byte":
        content[at : at + 1] = bytes([content[at] ^ (1 << rng.randrange(8))]) if content else b""
    elif how == "bytes":
        for _ in range(10):
            content[rng.randrange(len(content))] = rng.randrange(256)
    elif how == "cut":
        del content[at:]
    elif how == "more":
        content += rng.randbytes(rng.randrange(1, 40))
    else:
        content[at : at + 40] = bytes(len(content[at : at + 40]))
    path.write_bytes(content)
    return f"{how} {path.name.partition('-')[0]}"
