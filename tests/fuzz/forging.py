"""Forges indexes on disk with changes that an attacker would make, mostly with correct checksums."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.forging_files import forge_array, forge_no_file, forge_other_format, forge_strings
from tests.fuzz.forging_manifests import (
    VALUES,
    Manifest,
    forge_entries,
    forge_entry_field,
    forge_entry_name,
    forge_fact,
    forge_field,
    forge_whole_manifest,
    put,
)

WEIGHTED: list[tuple[Callable[[Path, Path, Manifest, random.Random], str], float]] = [
    (forge_entry_name, 3),
    (forge_entry_field, 2),
    (forge_entries, 2),
    (forge_fact, 3),
    (forge_field, 1),
    (forge_whole_manifest, 1),
    (forge_no_file, 2),
    (forge_array, 8),
    (forge_strings, 2),
    (forge_other_format, 0.7),
]
CHANGES = [change for change, _ in WEIGHTED]


def forge(folder: Path, outside: Path, rng: random.Random) -> str:
    """Change the index in `folder`; return a description of the change."""
    path = folder / "manifest.json"
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 22:  # left by an earlier change
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
    except (AssertionError, LookupError, OSError, TypeError, ValueError):  # caused by an earlier change
        said = "twice"
    return f"{change.__name__.removeprefix('forge_')}: {said}"


def forge_json(path: Path, outside: Path, rng: random.Random) -> str:
    """Change a JSON or JSON lines file; return a description of the change."""
    how = rng.choice(["value", "value", "value", "lines", "deep", "large", "link", "pipe", "folder", "hard", "zeros"])
    if how in ("link", "pipe", "folder", "hard"):
        put(
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
    """Damage a file as a disk or a transfer would: changed bytes, a missing end, or a range of zeros."""
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
