"""`copyspec rag` answers from an index, and gives document and character range of each quoted part."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from copyspec.cli import main
from copyspec.models.loading import BUNDLED
from copyspec.pipelines import answer
from copyspec.retrievers import Corpora, DenseRetriever, Document, Passage
from tests.helpers.texts import byte_level
from tests.helpers.tiny import tiny_engine
from tests.pipelines.test_answering import Writing

needs_default_model = pytest.mark.skipif(
    not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout"
)

HARBOUR = """The harbour office opens at seven every morning. On Mondays it stays closed.

The lighthouse on the pier was built in 1871 from grey granite. Its lamp can be seen from far away.
"""
MEADOW = "Bees visit the meadow in June. The grass is cut in July, when the seeds have fallen.\n"
QUESTION = "When was the lighthouse on the pier built?"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    (folder / "harbour.md").write_text(HARBOUR, encoding="utf-8")
    (folder / "meadow.md").write_text(MEADOW, encoding="utf-8")
    paths = [str(folder / "harbour.md"), str(folder / "meadow.md")]
    assert main(["index", "add", "town", *paths, "--max-chars", "120", "--dir", str(folder)]) == 0
    return folder


@needs_default_model
@pytest.mark.parametrize("stride", ["0", "4"])
def test_quoted_parts_stand_where_it_says(corpora: Path, stride: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    command = ["rag", QUESTION, "--index", "town", "--dir", str(corpora), "--stride", stride, "--max-new-tokens", "40"]
    assert main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["sources"]
    for source in shown["sources"]:
        document = Path(source["document"]).read_text(encoding="utf-8")
        quote = document[source["document_start"] : source["document_end"]]
        assert quote == source["quote"] == shown["text"][source["start"] : source["end"]]
    assert shown["sources"][0]["document"].endswith("harbour.md")
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].removeprefix("Perhaps: ") == shown["text"]
    assert f"harbour.md, characters {shown['sources'][0]['document_start']} to" in lines[1]


@needs_default_model
def test_quoted_parts_are_shown_on_a_page(corpora: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = corpora / "page.html"
    command = ["rag", QUESTION, "--index", str(corpora / "town"), "--max-new-tokens", "40"]
    assert main([*command, "--html", str(page)]) == 0
    answer = capsys.readouterr().out.splitlines()[0]
    text = page.read_text(encoding="utf-8")
    assert answer in text and "harbour.md" in text and "<mark" in text
    assert main([*command, "--html", "-", "--json"]) == 2
    assert "both write to stdout" in capsys.readouterr().err


@needs_default_model
def test_an_index_is_named_by_its_folder_too(
    corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rag", QUESTION, "--index", str(corpora / "town"), "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out.strip()
    (tmp_path / "town").mkdir()  # of the texts, for example
    monkeypatch.chdir(tmp_path)
    assert main(["rag", QUESTION, "--index", "town", "--dir", str(corpora), "--max-new-tokens", "5"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--index", "nowhere"], "neither a folder nor a corpus in .* holds 'town'"),
        (["--index", "town", "--stride", "-1"], "--stride must be at least 0, got -1"),
        (["--index", "town", "-k", "0"], "--passages must be at least 1, got 0"),
        (["--index", "town", "--stream", "--json"], "--stream and --json both write to stdout"),
        (
            ["--index", "town", "--stride", "4", "-k", "8"],
            "--stride 4 takes one passage at a time: leave out",
        ),
        (["--index", "town", "--stride", "4", "--stream"], "--stride 4 shows the answer when it is whole"),
        (["--index", "town", "--instruction", "{question}"], "--instruction is the prompt of a model: give --model"),
        ([], "--index"),
    ],
)
def test_wrong_usage_is_one_line(
    corpora: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    capsys.readouterr()
    assert main(["rag", QUESTION, *options, "--dir", str(corpora)]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["--encoder", "x"], "--encoder"),
        (["--prefix", "query: "], "--prefix"),
        (["--search", "flat"], "--search"),
        (["--search", "exact"], "--search"),
        (["--model", "x"], "--model"),
        (["--kind", "tokens", "--encoder", "x"], "--encoder"),
        (["--kind", "tokens", "--language", "english"], "--language"),
        (["--kind", "dense", "--encoder", "x", "--model", "x"], "--model"),
    ],
)
def test_options_of_another_kind_of_corpus_are_refused(
    options: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "add", "c", str(tmp_path), *options, "--dir", str(tmp_path)]) == 2
    assert f"{option} has no effect with --kind" in capsys.readouterr().err


def test_an_index_without_passages_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Corpora(tmp_path).add_tokens("tokens", [Document("harbour.md", HARBOUR)], byte_level())
    assert main(["rag", QUESTION, "--index", "tokens", "--dir", str(tmp_path)]) == 2
    assert "of kind 'tokens', which has no passages" in capsys.readouterr().err


def test_a_damaged_corpus_is_named_and_the_others_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        Corpora(tmp_path).add_bm25(name, [Passage("d", 0, "a heron")])
    (tmp_path / "b" / "manifest.json").write_text("{")
    for options in ([], ["--json"]):
        assert main(["index", "list", "--dir", str(tmp_path), *options]) == 3
        out, err = capsys.readouterr()
        listed = [corpus["name"] for corpus in json.loads(out)] if options else [line[0] for line in out.splitlines()]
        assert listed == ["a", "c"] and err.startswith("left out 'b': ") and len(err.splitlines()) == 1


def test_a_corpus_of_another_language_is_not_added_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "haus.txt").write_text("Das alte Haus steht am Hafen.")
    add = ["index", "add", "de", str(tmp_path / "haus.txt"), "--dir", str(tmp_path / "corpora")]
    assert main([*add, "--language", "german"]) == 0
    capsys.readouterr()
    assert main([*add, "--language", "french"]) == 2
    assert "'de' has the language 'german', got 'french'" in capsys.readouterr().err
    assert main(add) == main([*add, "--language", "german"]) == 0


def test_an_empty_question_is_refused(corpora: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["rag", " ", "--index", "town", "--dir", str(corpora)]) == 2
    assert "the question ' ' is empty; write a question" in capsys.readouterr().err


@needs_default_model
def test_of_two_files_the_one_that_answers_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text(MEADOW, encoding="utf-8")
    (tmp_path / "b.txt").write_text("The lighthouse on the pier was built in 1871 from grey granite.", encoding="utf-8")
    paths = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    assert main(["index", "add", "two", *paths, "--dir", str(tmp_path)]) == 0
    for question, file in ((QUESTION, "b.txt"), ("When do bees visit the meadow?", "a.txt")):
        capsys.readouterr()
        command = ["rag", question, "--index", "two", "--dir", str(tmp_path), "--max-new-tokens", "40", "--json"]
        assert main(command) == 0
        assert {source["document"] for source in json.loads(capsys.readouterr().out)["sources"]} == {
            str(tmp_path / file)
        }


def test_words_above_a_passage_and_of_its_language_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lighthouse.txt").write_text("Built in 1871 from grey granite.")
    (tmp_path / "haus.txt").write_text("Das alte Haus steht am Hafen.")
    where = ["--dir", str(tmp_path / "corpora")]
    assert main(["index", "add", "en", str(tmp_path / "lighthouse.txt"), *where]) == 0
    assert main(["index", "add", "de", str(tmp_path / "haus.txt"), "--language", "german", *where]) == 0
    for question, index, sentence in (
        ("Which lighthouse?", "en", "Built in 1871 from grey granite."),
        ("Häuser?", "de", "Das alte Haus steht am Hafen."),
    ):
        capsys.readouterr()
        assert main(["rag", question, "--index", index, *where]) == 0
        assert sentence in capsys.readouterr().out


def test_documents_are_named_as_seen_from_here(
    corpora: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(corpora)
    capsys.readouterr()
    assert main(["rag", QUESTION, "--index", "town", "--dir", str(corpora)]) == 0
    assert "\nharbour.md, characters" in capsys.readouterr().out


def test_a_question_that_nothing_speaks_for_has_no_answer(corpora: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    command = ["rag", "What is the zebra's name?", "--index", "town", "--dir", str(corpora)]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out == "" and err == "no answer found: none of the 3 passages holds 'zebra', 's', 'name'\n"
    assert main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["text"] == ""


@needs_default_model
def test_answers_come_from_any_retriever(caplog: pytest.LogCaptureFixture) -> None:
    texts = [MEADOW.strip(), "The lighthouse on the pier was built in 1871 from grey granite."]
    retriever = DenseRetriever(texts, lambda batch: [[text.count("light"), text.count("grass")] for text in batch])
    with caplog.at_level(logging.WARNING):
        quote = answer(QUESTION, retriever, max_new_tokens=40)
    assert quote.passage == 1 and quote.is_found and "no passage shares" not in caplog.text
    for citation in quote.citations:
        assert (
            quote.text[citation.start : citation.end]
            == texts[citation.document][citation.document_start : citation.document_end]
        )


def test_every_line_is_a_question_where_none_is_given(
    corpora: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "\n".join(["When does the office open?", "", "What is the zebra's name?", "Which month do bees visit?"])
    monkeypatch.setattr("sys.stdin", io.StringIO(asked))
    capsys.readouterr()
    assert main(["rag", "--index", "town", "--dir", str(corpora)]) == 1  # one question has no answer
    out, err = capsys.readouterr()
    shown = [block.splitlines() for block in out.rstrip().split("\n\n")]
    assert [lines[0] for lines in shown] == asked.replace("\n\n", "\n").split("\n") and err == ""
    assert shown[0][1] == "The harbour office opens at seven every morning."
    assert shown[1][1].startswith("no answer found: ") and "Bees visit the meadow in June." in shown[2][1]
    monkeypatch.setattr("sys.stdin", io.StringIO(asked))
    assert main(["rag", "--index", "town", "--dir", str(corpora), "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["question"], row["text"]) for row in rows] == [
        (lines[0], lines[1].removeprefix("Perhaps: ") if number != 1 else "") for number, lines in enumerate(shown)
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("When does the office open?"))
    assert main(["rag", "--index", "town", "--dir", str(corpora)]) == 0
    assert main(["rag", "--index", "town", "--dir", str(corpora), "--html", str(corpora / "x.html")]) == 2


def test_a_question_that_is_too_long_for_the_model_leaves_the_others(
    corpora: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "When does the harbour office open" + " or the harbour office" * 60 + "?"
    short = "When does the office open?"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{long}\n{short}\n"))
    monkeypatch.setattr("copyspec.api.load_corrector", lambda *_, **__: tiny_engine())
    capsys.readouterr()
    command = ["rag", "--index", "town", "--dir", str(corpora), "-m", "any", "--max-new-tokens", "4", "--json"]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert [json.loads(line)["question"] for line in out.splitlines()] == [long, short]
    assert "no answer found: prompt 0 has" in err and "context is 1024; shorten it" in err


def test_a_streamed_answer_is_followed_by_its_places(corpora: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["rag", QUESTION, "--index", "town", "--dir", str(corpora), "--stream"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "The lighthouse on the pier was built in 1871 from grey granite. [1]"
    assert rest[-1].startswith("[1] ") and "harbour.md, characters" in rest[-1]


def test_quoted_parts_are_numbered_while_a_model_writes(
    corpora: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "It says that the lighthouse on the pier was built in 1871 and Its lamp can be seen from far away."
    monkeypatch.setattr("copyspec.api.load_corrector", lambda *_, **__: Writing(said))
    capsys.readouterr()
    assert main(["rag", QUESTION, "--index", "town", "--dir", str(corpora), "--stream", "-m", "any"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == said.replace("1871", "1871 [1]").replace("away.", "away. [2]") + " "
    assert [line[:4] for line in rest] == ["[1] ", "[2] "] and "from far away." in rest[1]
