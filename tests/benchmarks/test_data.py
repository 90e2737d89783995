"""`python -m benchmarks.data`: files of repositories at fixed commits become the measured rows, or nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.data import __main__ as command
from benchmarks.data import making, origins, readers, sets, tokenizers
from benchmarks.data.making import Measured, digest
from benchmarks.data.origins import Checkouts, Origin, Unreachable
from kit import places

FILE = "data/answers.json"


def git(folder: Path, *words: str) -> str:
    arguments = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of repositories with one, `a/b`, of three answers in its first commit and of others in its second."""
    folder = tmp_path / "host" / "a" / "b"
    (folder / "data").mkdir(parents=True)
    git(folder, "init", "--quiet")
    git(folder, "config", "uploadpack.allowFilter", "true")
    for texts in (["one", "two", "three"], ["other"]):
        (folder / FILE).write_text(json.dumps(texts))
        (folder / "large.bin").write_text("not wanted")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", "answers")
    return tmp_path / "host"


def read(folder: Path) -> list[readers.Row]:
    texts = json.loads((folder / FILE).read_text())
    return [{"prompt": f"Say {text}.", "references": [], "output": f" {text}\n", "group": text} for text in texts]


@pytest.fixture
def one(host: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Measured]:
    """One set, of the first and third answer of the first commit."""
    commit = git(host / "a" / "b", "rev-parse", "HEAD~1")
    monkeypatch.setattr(origins, "ORIGINS", {"a/b": Origin("a/b", commit, "MIT")})
    recorded = sets.RecordedSet("mine", "A Model", "chat", (("a/b", (FILE,)),), read)
    for module in (making, command):
        monkeypatch.setattr(module, "SETS", (recorded,))
    monkeypatch.setattr(command, "PRODUCTS", ())
    rows = [
        {"id": f"mine-a-model-0000{n}", "task": "chat", "prompt": f"Say {text}.", "references": [], "output": text}
        | {"group": name}
        for n, text, name in ((1, "one", "aa"), (2, "three", "bb"))
    ]
    measured = {recorded.key: Measured("0:1+1 2:2+1", "aa bb", digest(rows))}
    monkeypatch.setattr(Measured, "read", lambda: measured)
    return measured


def rows_of(folder: Path) -> list[readers.Row]:
    return readers.json_lines(folder / "transcripts" / "chat.jsonl.gz")


def test_the_measured_rows_of_the_fixed_commit_are_made(host: Path, one: dict[str, Measured], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert command.main([str(folder), "--host", f"file://{host}"]) == 0
    assert [(row["id"], row["output"], row["group"]) for row in rows_of(folder)] == [
        ("mine-a-model-00001", "one", "aa"), ("mine-a-model-00002", "three", "bb"),
    ]  # fmt: skip
    assert not (folder / "origins" / "a+b" / "large.bin").exists()


def test_what_is_there_is_not_fetched_again(host: Path, one: dict[str, Measured], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert command.main([str(folder), "--host", f"file://{host}"]) == 0
    assert command.main([str(folder), "--host", "file:///nowhere"]) == 0
    (folder / "transcripts" / "chat.jsonl.gz").unlink()  # the checkout is still there
    assert command.main([str(folder), "--host", "file:///nowhere"]) == 0 and len(rows_of(folder)) == 2


@pytest.mark.parametrize("changed", ["sha256", "runs", "host"])
def test_other_rows_are_not_written_and_the_figures_are_named(
    host: Path, one: dict[str, Measured], tmp_path: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ((key, measured),) = one.items()
    if changed == "sha256":
        one[key] = Measured(measured.runs, measured.groups, "0" * 64)
    elif changed == "runs":
        one[key] = Measured("0:1+1 9:2+1", measured.groups, measured.sha256)
    at = "file:///nowhere" if changed == "host" else f"file://{host}"
    assert command.main([str(tmp_path / "data"), "--host", at]) == 1
    shown = capsys.readouterr().out
    assert key in shown and "docs/replay.md" in shown and not (tmp_path / "data" / "transcripts").exists()


def test_a_file_that_the_commit_lacks_is_named(host: Path, one: dict[str, Measured], tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"a/b has no none\.json at"):
        Checkouts(tmp_path / "made", f"file://{host}").files("a/b", ["none.json"])


def test_runs_of_rows_are_unfolded() -> None:
    assert Measured("0:1+2 5:9+1", "", "").numbers() == {0: 1, 1: 2, 5: 9}


def test_every_set_has_its_measured_rows() -> None:
    measured = Measured.read()
    assert measured.keys() == {recorded.key for recorded in sets.SETS} and len(measured) == len(sets.SETS)
    assert {origin for recorded in sets.SETS for origin, _ in recorded.needs} <= origins.ORIGINS.keys()
    assert all(len(rows.sha256) == 64 and rows.numbers() for rows in measured.values())


@pytest.mark.parametrize(
    ("turn", "prompt"),
    [(1, "User:\nA\n\nAssistant:\n"), (2, "User:\nA\n\nAssistant:\nX\n\nUser:\nB\n\nAssistant:\n")],
)
def test_turns_of_a_chat_stand_in_the_prompt(turn: int, prompt: str) -> None:
    row = list(readers.chat_rows(["A", "B"], [" X\n", "Y"], "writing"))[turn - 1]
    assert row["prompt"] == prompt and row["turn"] == turn


def test_a_vocabulary_of_ranks_becomes_a_tokenizer(tmp_path: Path) -> None:
    import base64

    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", "ü".encode()]
    lines = (f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens))
    (tmp_path / "ranks").write_text("\n".join(lines))
    made: Callable[[Path], tokenizers.Tokenizer]
    for made in (tokenizers.gpt2, tokenizers.llama3, tokenizers.qwen):
        tokenizer = made(tmp_path / "ranks")
        ids = tokenizer.encode("the the über", add_special_tokens=False).ids
        assert ids[:2] == [257, 258] and 259 in ids and tokenizer.decode(ids) == "the the über"


def test_one_place_says_where_the_data_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setattr(places, "BUILT", tmp_path / "build")
    assert places.data() == places.SAMPLE and places.tokenizer() == places.SAMPLE_TOKENIZER
    (tmp_path / "build").mkdir()
    assert places.data() == tmp_path / "build"
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "mine"))
    assert places.tokenizer("qwen") == tmp_path / "mine" / "tokenizers" / "qwen.tokenizer.json.gz"


def test_the_sample_is_small_and_says_its_licences() -> None:
    said = (places.SAMPLE / "README.md").read_text("utf-8")
    files = [path for path in places.SAMPLE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 500_000
    for path in (places.SAMPLE / "transcripts").glob("*.gz"):
        rows = readers.json_lines(path)
        assert 10 <= len(rows) <= 30
        for row in rows:
            name = row["id"].split("-")[0]
            assert name in said or f"{name.split('_')[0]}_*" in said
