"""The same corrections and answers through `copyspec serve` as in process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import copyspec
from copyspec.models.loading import BUNDLED
from copyspec.pipelines import DocumentAnswers, EditPipeline, GECPipeline
from tests.helpers.commands import run
from tests.helpers.served import KEY, serving

pytestmark = pytest.mark.skipif(not (BUNDLED / "config.json").exists(), reason="no bundled model in this checkout")

ROOT = Path(__file__).parent.parent.parent

SENTENCES = [
    "He go to the school yesterday, and the childrens was happy.",
    "She don't like it, but the weather were nice.",
    "The report, that was written in 2019, is wrong.",
    "I has a apple and two orange.",
    "Their are many reason for this.",
    "We was in London last week, and it rain all the day.",
    "This sentence is correct.",
    "The informations on page 12 is not right.",
]

PAGES = {
    "lines.txt": "\n\n".join(f"{sentence} {sentence.lower().capitalize()}" for sentence in SENTENCES),
    "page.md": "# A title\n\n" + "\n".join(f"- {sentence}" for sentence in SENTENCES) + "\n\n```sh\nrm it don't\n```\n",
    # Sentences of more bytes than a text may have tokens, and of fewer tokens.
    "long.txt": "\n\n".join(
        f"They was here with {', '.join(sentence.rstrip('.') for sentence in SENTENCES * 3)}." for _ in "ab"
    ),
    "table.csv": "id,text\n" + "".join(f'{at},"{sentence}"\n' for at, sentence in enumerate(SENTENCES)),
}


@pytest.fixture(scope="module")
def bundled() -> copyspec.Engine:
    return copyspec.load("default", dtype="float32")


@pytest.fixture(scope="module")
def remote(bundled: copyspec.Engine) -> Iterator[copyspec.Remote]:
    with serving(bundled, names=("default",)) as address, copyspec.remote(address, api_key=KEY) as remote_engine:
        yield remote_engine


def test_texts_have_the_same_edits_for_the_same_reasons(bundled: copyspec.Engine, remote: copyspec.Remote) -> None:
    here, there = GECPipeline(bundled)(SENTENCES), GECPipeline(remote)(SENTENCES)
    assert any(correction.changed for correction in here)
    for one, other in zip(here, there, strict=True):
        assert (one.text, one.edits, one.refused) == (other.text, other.edits, other.refused)
        assert one.dropped == other.dropped
        for mine, theirs in zip(one.results, other.results, strict=True):
            assert (mine.text, mine.finish_reason) == (theirs.text, theirs.finish_reason)
            for change, same in zip(mine.changes, theirs.changes, strict=True):
                assert (change.start, change.end) == (same.start, same.end)
                assert change.margin == pytest.approx(same.margin, abs=1e-3)  # other rows in the batch: other rounding
    assert remote.usage.accepted_prediction_tokens > 0


@pytest.mark.parametrize("name", PAGES)
def test_files_are_byte_identical(
    name: str,
    remote: copyspec.Remote,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COPYSPEC_API_KEY", KEY)
    path, one, other = (tmp_path / f"{prefix}{name}" for prefix in ("", "here-", "there-"))
    path.write_text(PAGES[name])
    form = ["--column", "text"] if name.endswith("csv") else []
    code, _, here = run(capsys, "gec", str(path), "-o", str(one), "-m", "default", "--dtype", "float32", *form)
    assert code == 0
    code, _, there = run(capsys, "gec", str(path), "-o", str(other), "--server", remote.url, *form)
    assert code == 0
    assert one.read_bytes() == other.read_bytes() != path.read_bytes()
    summary, usage = there.strip().splitlines()
    assert summary == here.strip().splitlines()[-1]
    assert re.search(r"/v1: \d+ answers?; \d+ tokens in.*, \d+ out; \d+ predicted tokens accepted", usage)


def test_questions_have_the_same_answers_and_places(bundled: copyspec.Engine, remote: copyspec.Remote) -> None:
    texts = ["The kettle boils at noon. It is red.", "The lighthouse was built in 1871 by two brothers.", "Cats sleep."]
    for question in ("When was the lighthouse built?", "When does the kettle boil?", "Who built the lighthouse?"):
        here, there = (DocumentAnswers(texts, model=model)(question) for model in (bundled, remote))
        assert (here.text, here.is_sure, here.citations) == (there.text, there.is_sure, there.citations)


def test_an_edit_is_the_same(bundled: copyspec.Engine, remote: copyspec.Remote) -> None:
    text = "\n".join(SENTENCES[:3]) + "\n"
    here, there = (EditPipeline(model)(text, "Correct the grammar: {text}") for model in (bundled, remote))
    assert (here.text, here.refusal) == (there.text, there.refusal)
    with pytest.raises(ValueError, match="does not know the instruction"):
        EditPipeline(remote)(text, "Translate it")


def test_a_run_with_a_server_imports_no_torch(remote: copyspec.Remote, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(f"{SENTENCES[0]}\n")
    code = (
        "import sys, time\nfrom copyspec.cli import main\n"
        f"code = main(['gec', {str(path)!r}, '--server', {remote.url!r}])\n"
        "seconds = time.process_time()\n"
        "count = 0\nfor number in range(2 * 10**6):\n    count += number\n"  # 0.15 s where the limit is a second
        "slower = max(1.0, (time.process_time() - seconds) / 0.15)\n"
        "print(code, seconds / slower, [each for each in ('torch', 'transformers') if each in sys.modules])"
    )
    environment = {"COPYSPEC_API_KEY": KEY, "PATH": "", "PYTHONPATH": str(ROOT)}
    for _ in range(12):  # another process may share this core, which makes each instruction take longer
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
        )
        status, seconds, modules = done.stdout.splitlines()[-1].split(" ", 2)
        assert (status, modules) == ("0", "[]"), done.stderr
        if float(seconds) < 1.0:
            return
    pytest.fail(f"it takes {seconds} s of processor time")
