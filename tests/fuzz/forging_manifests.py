"""Forges manifests of an index, with a correct checksum."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

from copyspec.common.fingerprints import fingerprint

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


def names(outside: Path) -> list[object]:
    """Return names with which an entry might reach another file."""
    victim = outside / "victim.txt"
    paths: list[object] = [str(victim), f"../../{outside.name}/victim.txt", "../victim.txt", "notes.txt", "sub/a.bin"]
    paths += [
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
    return [*paths, "texts-000000000000.json", "/dev/zero", "/dev/stdin", 3, None, ["a"], "lock", ".lock"]


def sealed(folder: Path, manifest: Manifest) -> None:
    """Write a manifest with a correct checksum."""
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    (folder / "manifest.json").write_text(json.dumps({**body, "sha256": fingerprint(body)}))


def replaced(folder: Path, manifest: Manifest, key: str, content: bytes) -> None:
    """Replace the content of a file, keeping its name and making its checksum correct."""
    entries = manifest["files"]
    assert isinstance(entries, dict)
    old = str(entries[key][0])
    digest = hashlib.sha256(content).hexdigest()
    stem, suffix = old.rpartition("-")[0], Path(old).suffix
    name = f"{stem}-{digest[:12]}{suffix}"
    (folder / name).write_bytes(content)
    entries[key] = [name, len(content), digest]


def put(path: Path, target: Path, how: str) -> None:
    """Replace a regular file by something else."""
    path.unlink()
    if how == "link":
        path.symlink_to(target)
    elif how == "hard":
        os.link(target, path)
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()


def forge_entry_name(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
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


def forge_entry_field(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
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


def forge_entries(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
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


def forge_fact(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
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


def forge_field(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
    key = rng.choice([*manifest, "new"])
    kinds: list[object] = ["bm25", "dense", "tokens", "passages", "documents", "x", 1, 2, 3]
    manifest[str(key)] = rng.choice(kinds if rng.random() < 0.5 else VALUES)
    if key == "sha256" or rng.random() < 0.1:
        (folder / "manifest.json").write_text(json.dumps(manifest))
    else:
        sealed(folder, manifest)
    return str(key)


def forge_whole_manifest(folder: Path, outside: Path, manifest: Manifest, rng: random.Random) -> str:
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
        put(path, rng.choice([outside / "victim.txt", Path("/dev/zero")]), how)
    return how
