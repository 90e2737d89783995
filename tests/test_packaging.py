"""The wheel contains what it should, pins fit the requirements, and no platform installs another platform's
packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = {"copyspec": "copyspec", "copyspec.retrievers": "retrievers", "copyspec.pipelines": "pipelines"}

NATIVE = [module["name"].replace(".", "/") for module in PROJECT["tool"]["setuptools"]["ext-modules"]]
COMPILED = [path for name in NATIVE if (path := ROOT / f"{name}{EXTENSION_SUFFIXES[0]}").exists()]
"""The compiled modules that this checkout has for this Python."""

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "linux x86-64": ("linux", "Linux", "x86_64"),
    "linux aarch64": ("linux", "Linux", "aarch64"),
    "macos arm64": ("darwin", "Darwin", "arm64"),
    "windows": ("win32", "Windows", "AMD64"),
}

NOT_FOR_DEVELOPMENT = {
    *("docx", "haystack", "llama_index", "matplotlib", "mistral_common", "peft", "pyarrow", "sentence_transformers"),
    "triton",
}
"""Modules of other frameworks, of charts and of GPUs, without which a few tests are skipped."""


def _requirements(extra: str | None = None, python: str = PYTHONS[-1]) -> list[Requirement]:
    """Return what is required under Python `python`, on any platform."""
    project = PROJECT["project"]
    lines = [
        Requirement(line) for line in (project["optional-dependencies"][extra] if extra else project["dependencies"])
    ]
    return [
        line
        for line in lines
        if line.marker is None
        or "python_version" not in str(line.marker)
        or line.marker.evaluate({"python_version": python})
    ]


def _applies(requirement: Requirement, platform: str) -> bool:
    system, name, machine = PLATFORMS[platform]
    environment = {"sys_platform": system, "platform_system": name, "platform_machine": machine, "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays clean."""
    scratch = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", "training"
    )
    shutil.copytree(ROOT, scratch / "tree", ignore=ignored)
    folder = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for module in COMPILED:  # not compiled again, if it is newer than its sources
        built = scratch / "tree" / "build" / folder / module.relative_to(ROOT)
        built.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(module, built)
    build = "import sys, setuptools.build_meta as b; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(scratch)], cwd=scratch / "tree", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return scratch / done.stdout.split()[-1]


def test_the_list_of_packages_is_complete() -> None:
    packages = set()
    for package, folder in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            packages.add(".".join([package, *init.parent.relative_to(ROOT / folder).parts]))
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages


def test_the_wheel_holds_all_packages_and_the_default_model(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package, folder in FOLDERS.items():
        for source in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.txt")]:
            assert f"{package.replace('.', '/')}/{source.relative_to(ROOT / folder).as_posix()}" in names
    if COMPILED:
        assert {name for name in names if name.endswith(".so")} == {f"{name}{EXTENSION_SUFFIXES[0]}" for name in NATIVE}
    model = ROOT / "copyspec" / "default_model"
    for file in [*model.glob("*.json"), *model.glob("*.safetensors"), *model.glob("*.jinja")]:
        assert f"copyspec/default_model/{file.name}" in names
    assert {"copyspec/py.typed", "copyspec/engine/asking/elsewhere.txt"} <= names
    assert "copyspec/drafters/predictors/english.npz" in names
    lists = {f"copyspec/pipelines/guards/english_{kind}.txt.gz" for kind in ("words", "rare")}
    assert lists | {"copyspec/pipelines/guards/english_words.LICENSE"} <= names
    assert not [name for name in names if name.endswith((".pyi", ".c", ".h"))]
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == {"copyspec"}, "generic top-level names would collide with users' own"
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_the_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import copyspec, copyspec.retrievers as r, copyspec.pipelines as p\n"
        "print(copyspec.__file__, r.__file__, p.__file__, sep='\\n')\n"
        "print(r.BM25Retriever(['a b', 'c d', 'e f']).search('c')[0].id, callable(p.answer))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    *files, last = done.stdout.splitlines()
    assert all(Path(file).is_relative_to(tmp_path / "site" / "copyspec") for file in files)
    assert last == "1 True"


def test_the_version_is_written_once_and_again() -> None:
    import copyspec

    assert "version" not in PROJECT["project"]  # setuptools reads that of the package
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "copyspec.__version__"}
    assert f"## {copyspec.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"version: {copyspec.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_python_has_wheels_and_is_named() -> None:
    """Those of `requires-python` on: in the metadata, in what cibuildwheel builds, in the public CI."""
    named = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if " 3." in line]
    built = PROJECT["tool"]["cibuildwheel"]["build"].split()
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert tuple(named) == PYTHONS and PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert built == [f"cp{python.replace('.', '')}-*" for python in PYTHONS]
    assert f'"{PYTHONS[0]}"' in workflow and f'"{PYTHONS[-2]}"' in workflow


def test_the_workflow_runs_what_ci_runs() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    for step in (".ci/releases oldest", ".ci/releases newest", "make lint types", "make test", "make figures"):
        assert step in workflow, step
    assert "contents: read" in workflow and "secrets." not in workflow


def test_the_source_archive_is_complete(tmp_path: Path) -> None:
    """What is in the repository is in it, but for what only the repository needs: tests run from an unpacked one."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no clone")
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    for name in names:  # a copy, so that the checkout stays clean
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(ROOT / name, tmp_path / "tree" / name)
    build = "import sys, setuptools.build_meta as b; print(b.build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=tmp_path / "tree", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        names_held = {name.partition("/")[2] for name in archive.getnames()}
    assert set(names) - names_held == {".gitignore"}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_core_requirements_apply_everywhere(platform: str) -> None:
    names = {requirement.name for requirement in _requirements() if _applies(requirement, platform)}
    assert names == {requirement.name for requirement in _requirements()}
    assert not {name for name in names if name.startswith(("faiss", "nvidia", "triton"))}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_gpu_libraries_stay_where_they_exist(platform: str) -> None:
    gpu = [requirement for requirement in _requirements("gpu") if _applies(requirement, platform)]
    assert [requirement.name for requirement in gpu] == (["faiss-gpu"] if platform == "linux x86-64" else [])
    assert all(_applies(requirement, platform) for requirement in _requirements("cpu"))


def test_torch_is_not_pinned_by_the_package() -> None:
    for requirement in _requirements():
        assert not requirement.url
        assert "==" not in str(requirement.specifier), f"{requirement} would fight with other packages' pins"


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_pinned_once_and_within_its_range(python: str) -> None:
    pins: dict[str, Version] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate({"python_version": python}):
                assert canonicalize_name(pin.name) not in pins, f"{pin.name} is pinned twice for Python {python}"
                pins[canonicalize_name(pin.name)] = Version(str(pin.specifier).removeprefix("=="))
    for requirement in [*_requirements(python=python), *_requirements("dev", python)]:
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert str(pins["torch"]) == "2.13.0"


def test_development_has_what_tests_skip_without() -> None:
    """Else they would be skipped everywhere."""
    for requirement in _requirements("dev"):
        try:
            version(requirement.name)
        except PackageNotFoundError:
            pytest.skip(f"the extra copyspec[dev] is not installed: {requirement.name} is missing")
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    calls = re.compile(r'(?:importorskip|find_spec)\("(\w+)')
    modules = {name for text in texts for name in calls.findall(text)} - set(sys.stdlib_module_names)
    assert "pypdf" in modules
    assert {name for name in modules if find_spec(name) is None} <= NOT_FOR_DEVELOPMENT


def test_set_up_takes_the_pins_in_the_same_command() -> None:
    commands = [line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if " install " in line]
    assert "-c constraints.txt -e '.[dev]'" in commands[0]
    assert all(
        "--no-deps" in command or "-c constraints.txt" in command for command in commands[1:]
    )  # so that no other versions are installed


def test_ci_runs_the_command_of_the_readme() -> None:
    ci = ROOT / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    text = ci.read_text(encoding="utf-8")
    assert "lint types" in text and 'make VENV="$scratch/venv" test' in text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme and "make test" in readme
