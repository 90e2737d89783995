"""Named corpora: documents are read, split into passages with their positions, added, listed, removed; the command."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from copyspec import Engine
from copyspec.pipelines import DocumentAnswers
from copyspec.retrievers import (
    UNSTAMPED,
    BM25Retriever,
    Corpora,
    Datastore,
    DenseRetriever,
    Document,
    FaissOptions,
    HuggingFaceEmbedder,
    IndexFileError,
    Passage,
    is_gone,
    load_corpus,
    load_passages,
    load_retriever,
    read_documents,
    split_passages,
    tokenizer_fingerprint,
)
from copyspec.text.sentence_marks import SENTENCE_ENDS
from tests.helpers.commands import run
from tests.helpers.texts import byte_level, llama

TEXT = "A kettle boils.\n\nA heron waits. It eats fish.\n\n\nThe sea is near, and the sky is wide."


def encode(texts: list[str]) -> NDArray[np.float32]:
    return np.array([[len(text), 1.0] for text in texts], np.float32)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "one.md").write_text(TEXT, encoding="utf-8")
    (folder / "a.jsonl").write_text('{"text": "two kettles", "x": "y"}\n\n{"text": "three", "x": "z"}\n')
    (folder / "left.out").write_bytes(b"\xff")
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text('ab .\n!"。」', max_size=80), st.integers(1, 30))
def test_passages_are_pieces_of_the_text_and_lose_nothing_but_space(text: str, limit: int) -> None:
    passages = split_passages(Document("d", text), max_chars=limit)
    end = 0
    for passage in passages:
        assert 0 < len(passage.text) <= limit and passage.text == passage.text.strip()
        assert text[passage.start : passage.start + len(passage.text)] == passage.text
        assert passage.start >= end and not text[end : passage.start].strip()
        end = passage.start + len(passage.text)
    assert not text[end:].strip()


def test_passages_end_at_the_coarsest_border_that_fits() -> None:
    def cut(limit: int) -> list[str]:
        return [passage.text for passage in split_passages(Document("d", TEXT), max_chars=limit)]

    assert cut(1000) == [TEXT]
    assert cut(50) == [TEXT[:45], TEXT[48:]]
    assert cut(30) == ["A kettle boils.", "A heron waits. It eats fish.", "The sea is near, and the sky", "is wide."]
    assert cut(15) == [
        "A kettle boils.",
        "A heron waits.",
        "It eats fish.",
        "The sea is",
        "near, and the",
        "sky is wide.",
    ]
    assert cut(4)[:4] == ["A", "kett", "le", "boil"]
    with pytest.raises(ValueError, match="max_chars must be at least 1, got 0"):
        cut(0)


def test_sentences_without_spaces_between_them_are_not_cut() -> None:
    pieces = ["灯塔很高。", "它建于一八七一年！", "她说：“好。”", "他走了。"]
    assert [passage.text for passage in split_passages(Document("d", "".join(pieces)), max_chars=9)] == pieces


@pytest.mark.parametrize("mark", SENTENCE_ENDS)
def test_passages_end_at_the_sentence_ends_of_any_script(mark: str) -> None:
    pieces = [f"aa bb{mark}", f"cc dd ee{mark}"]
    assert [passage.text for passage in split_passages(Document("d", " ".join(pieces)), max_chars=9)] == pieces


def test_one_path_is_not_a_list_of_paths(corpus: Path) -> None:
    for given_path in (corpus, str(corpus)):
        with pytest.raises(TypeError, match=r"paths must be a list of paths, got one: write \["):
            list(read_documents(given_path))  # type: ignore[arg-type]


def test_documents_come_from_files_and_folders(corpus: Path) -> None:
    documents = list(read_documents([corpus, corpus / "b" / "one.md"]))
    names = [f"{corpus / 'a.jsonl'}:1", f"{corpus / 'a.jsonl'}:3", *[str(corpus / "b" / "one.md")] * 2]
    assert [document.name for document in documents] == names
    assert [document.text for document in documents] == ["two kettles", "three", TEXT, TEXT]
    assert [document.text for document in read_documents([corpus / "a.jsonl"], field="x")] == ["y", "z"]


def test_what_cannot_be_read_is_named(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    (tmp_path / "worse.jsonl").write_text("[\n")
    (tmp_path / "half.jsonl").write_text('{"text": "a"}\n{"text": "b \\ud83d"}\n')
    (tmp_path / "empty").mkdir()
    for path, error, said in (
        (corpus / "left.out", ValueError, r"left.out' is not UTF-8 \(byte 0\)"),
        (tmp_path / "bad.jsonl", ValueError, "bad.jsonl', line 2: no text under 'text'; it has 'text'"),
        (tmp_path / "half.jsonl", ValueError, r"half.jsonl', line 2 holds a lone surrogate at character 2: '\\ud83d'"),
        (tmp_path / "worse.jsonl", ValueError, "worse.jsonl', line 1: not JSON"),
        (tmp_path / "empty", ValueError, "holds no file with one of the endings .txt, .md, .jsonl"),
        (tmp_path / "nowhere", FileNotFoundError, "there is no file or folder '.*nowhere'"),
    ):
        with pytest.raises(error, match=said):
            list(read_documents([path]))
    with pytest.raises(TypeError, match="must be a list of paths, got one: write"):
        list(read_documents("path"))


def test_one_line_is_left_out_and_hidden_files_are(tmp_path: Path) -> None:
    rows = ['{"text": "a"}', "[", '{"text": 3}', "", '{"text": "b"}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    for hidden in (".secret/note.md", "docs/.venv/lib/LICENSE.txt", ".x.md"):
        (tmp_path / hidden).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / hidden).write_text("hidden")
    (tmp_path / "a.tex").write_text("x")
    left, others = list[str](), list[Path]()
    documents = list(
        read_documents([tmp_path], on_error=lambda _, error: left.append(str(error)), on_other=others.append)
    )
    assert [(document.name[-1], document.text) for document in documents] == [("1", "a"), ("5", "b")] and others == [
        tmp_path / "a.tex"
    ]
    assert len(left) == 1 and "line 2" in left[0] and "(2 such lines)" in left[0]
    stamps: dict[str, str] = {}
    (tmp_path / "wrong.jsonl").write_text("[\n")
    list(read_documents([tmp_path], on_error=lambda _, error: left.append(str(error)), on_read=stamps.__setitem__))
    assert stamps == {str(tmp_path / "rows.jsonl"): UNSTAMPED}, "one is read again, and the other was not read"
    assert [document.text for document in read_documents([tmp_path / ".x.md"])] == ["hidden"], "asked for by name"


def test_a_file_that_cannot_be_reached_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(f"Text of {name}")
    stat, left = Path.stat, list[str]()

    def denied(self: Path, **options: bool) -> os.stat_result:
        if self.name == "a.md":
            raise PermissionError(13, "Permission denied", str(self))
        return stat(self, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", denied)
        documents = list(read_documents([tmp_path], on_error=lambda file, error: left.append(f"{file.name}: {error}")))
    assert [document.text for document in documents] == ["Text of b.md"]
    assert len(left) == 1 and left[0].startswith("a.md: ") and "Permission denied" in left[0]


def test_a_corpus_that_is_removed_or_made_again_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora, existing, failures = Corpora(tmp_path), Corpora._existing, ["gone for a moment"]
    for name in ("a", "b"):
        corpora.add_bm25(name, split_passages(Document("d", TEXT)))

    def missing(self: Corpora, name: str) -> Path:
        if name == "a" and failures:
            failures.pop()
            raise self._missing(name)
        return existing(self, name)

    monkeypatch.setattr(Corpora, "_existing", missing)
    assert [corpus.name for corpus in corpora.all()] == ["a", "b"] and not failures
    failures.extend(["once", "twice"])
    with pytest.raises(ValueError, match="there is no corpus 'a'"):
        corpora.all()

    def removed(self: Corpora, name: str) -> Path:
        corpora.path("a").joinpath("manifest.json").unlink(missing_ok=True)
        return existing(self, name)

    monkeypatch.setattr(Corpora, "_existing", removed)
    assert [corpus.name for corpus in corpora.all()] == ["b"]


def test_corpora_are_added_to_listed_opened_and_removed(tmp_path: Path) -> None:
    corpora = Corpora(tmp_path / "corpora")
    assert corpora.all() == []
    first = split_passages(Document("d", TEXT), max_chars=30)
    second = split_passages(Document("e", "kettles and herons"))
    for name, kind in (("words", "bm25"), ("vectors", "dense")):
        for part in (first, second):
            made = corpora.add_bm25(name, part) if kind == "bm25" else corpora.add_dense(name, part, encode)
        assert (made.name, made.kind, made.documents, made.size) == (name, kind, 2, 5)
        retriever, passages = corpora.open(name, encode=encode)
        assert passages == [*first, *second]
        assert list(retriever.texts) == [passage.text for passage in passages]
    assert [corpus.name for corpus in corpora.all()] == ["vectors", "words"]
    assert isinstance(load_retriever(tmp_path / "corpora" / "words"), BM25Retriever)
    with pytest.raises(ValueError, match="names no encoder: give encode="):
        corpora.open("vectors")
    with pytest.raises(IndexFileError, match="of kind 'bm25', not 'dense'"):
        corpora.add_dense("words", first, encode)
    with pytest.raises(IndexFileError, match="holds 5 passages, and these 1 texts are not the first of them"):
        load_passages(tmp_path / "corpora" / "words", ["a"])
    corpora.remove("vectors")
    assert corpora.names() == ["words"]
    with pytest.raises(ValueError, match=r"there is no corpus 'vectors' in '.*'; it holds 'words'"):
        corpora.remove("vectors")
    for name in ("", "..", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="cannot name a corpus"):
            corpora.remove(name)


@pytest.mark.parametrize("kind", ["bm25", "dense", "hybrid"])
def test_a_corpus_that_was_loaded_added_to_and_saved_is_one_still(kind: str, tmp_path: Path) -> None:
    corpora = Corpora(tmp_path)

    def add(document: Document) -> list[Passage]:
        more, stamps = split_passages(document, max_chars=30), {document.name: "1:1"}
        if kind == "bm25":
            corpora.add_bm25("c", more, stamps=stamps)
        elif kind == "dense":
            corpora.add_dense("c", more, encode, stamps=stamps)
        else:
            corpora.add_hybrid("c", more, encode, stamps=stamps)
        return more

    first = add(Document("d", TEXT))
    retriever, _ = corpora.open("c", encode=encode)
    retriever.add(["An otter sleeps."])
    retriever.save(tmp_path / "c")
    loaded, places = load_corpus(tmp_path / "c", encode=encode)
    assert places == [*first, Passage("", 0, "An otter sleeps.")] and len(loaded) == len(places)
    assert [corpus.size for corpus in corpora.all()] == [len(places)] and corpora.stamps("c") == {"d": "1:1"}
    second = add(Document("e", "kettles and herons"))
    assert corpora.open("c", encode=encode)[1] == [*places, *second]
    BM25Retriever(["Another text."]).save(tmp_path / "c")
    with pytest.raises(IndexFileError, match="does not say where its passages stand"):
        load_corpus(tmp_path / "c")


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_a_corpus_keeps_its_language_and_its_search(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    corpora, more = Corpora(tmp_path), [Passage("d", 0, "a heron")]
    add = corpora.add_dense if kind == "dense" else corpora.add_hybrid
    add("exact", more, encode)
    add("flat", more, encode, options=FaissOptions(kind="flat"))
    add("flat", [Passage("e", 0, "a swan")], encode)
    add("exact", more, encode, options="exact")
    for name, other in (("exact", FaissOptions()), ("flat", FaissOptions(kind="hnsw")), ("flat", "exact")):
        with pytest.raises(ValueError, match=f"'{name}' has the search '{name}', got '(flat|hnsw|exact)'"):
            add(name, [Passage("f", 0, "an otter")], encode, options=other)
    if kind == "hybrid":
        with pytest.raises(ValueError, match="'flat' has the language 'english', got 'german'"):
            corpora.add_hybrid("flat", more, encode, language="german")
    assert [corpus.size for corpus in corpora.all()] == [1, 2]


def test_passages_may_come_one_after_the_other(tmp_path: Path) -> None:
    for duplicates, count in ((False, 2), (True, 4)):
        made = Corpora(tmp_path).add_bm25(
            "birds",
            (Passage("d", start, text) for start, text in ((0, "a heron"), (9, "a swan"))),
            duplicates=duplicates,
        )
        assert (made.size, made.skipped) == (count, 0)


def test_an_index_whose_folder_cannot_name_a_corpus_is_not_listed(tmp_path: Path) -> None:
    BM25Retriever(["a heron"]).save(tmp_path / "my notes")
    corpora = Corpora(tmp_path)
    corpora.add_bm25("birds", [Passage("d", 0, "a heron")])
    assert corpora.names() == [corpus.name for corpus in corpora.all()] == ["birds"]


def test_what_is_there_already_is_skipped(tmp_path: Path) -> None:
    corpora = Corpora(tmp_path)
    passages = split_passages(Document("d", TEXT), max_chars=30)
    assert corpora.add_bm25("c", passages).skipped == 0
    manifest = (tmp_path / "c" / "manifest.json").read_text()
    copy = Document("copy", TEXT + "\n\nNew.")
    made = corpora.add_bm25("c", passages)
    assert (made.skipped, made.size) == (4, 4) and (tmp_path / "c" / "manifest.json").read_text() == manifest
    made = corpora.add_bm25("c", split_passages(copy, max_chars=30))
    assert made.size == 4 + len(split_passages(copy, max_chars=30)) - made.skipped and made.skipped == 3
    assert corpora.add_bm25("c", passages, duplicates=True).size == made.size + 4
    twice = [Document("t", "one"), Document("u", "two")]
    assert corpora.add_tokens("t", twice, byte_level()).documents == 2
    made = corpora.add_tokens("t", [*twice, Document("t", "another")], byte_level())
    assert (made.skipped, made.documents) == (2, 3)
    assert corpora.add_tokens("t", twice, byte_level(), duplicates=True).documents == 5


def test_token_corpora_know_their_documents_and_their_tokenizer(tmp_path: Path) -> None:
    corpora, tokenizer = Corpora(tmp_path), byte_level()
    corpora.add_tokens("t", [Document("a", "one two"), Document("b", "")], tokenizer)
    made = corpora.add_tokens("t", [Document("c", "one three")], tokenizer)
    tokens = tokenizer("one three", add_special_tokens=False)["input_ids"]
    assert (made.kind, made.documents) == ("tokens", 3)
    store = Datastore(tmp_path / "t", fingerprint=tokenizer_fingerprint(tokenizer))
    assert store.document(2) == tokens and made.size == store.num_tokens
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["<new>"])
    with pytest.raises(IndexFileError, match="another tokenizer"):
        corpora.add_tokens("t", [Document("d", "x")], other)
    with pytest.raises(IndexFileError, match="which has no passages; open it as Datastore"):
        corpora.open("t")


def test_a_datastore_that_could_not_be_filled_is_not_left(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Corpora(tmp_path).add_tokens("t", read_documents([tmp_path / "nowhere"]), byte_level())
    assert Corpora(tmp_path).names() == []


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPYSPEC_CORPORA", str(tmp_path / "default"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    llama(len(byte_level())).save_pretrained(folder)
    byte_level().save_pretrained(folder)
    return folder


OTHERS = "skipped: 1 file of another kind ('.out')\n"


def test_the_command_builds_lists_and_removes(
    corpus: Path, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--dir", str(tmp_path / "corpora")]
    for options in ([], ["--kind", "dense", "--encoder", str(model)], ["--kind", "tokens", "--model", str(model)]):
        kind = options[1] if options else "bm25"
        code, out, err = run(capsys, "index", "add", f"my-{kind}", str(corpus), *options, *where)
        assert (code, err) == (0, OTHERS) and f"my-{kind}" in out and "3 documents" in out
    again = ["add", "my-bm25", str(corpus), "--max-chars", "20", *where, "--json"]
    code, out, err = run(capsys, "index", *again)
    assert code == 0 and (json.loads(out)["size"], json.loads(out)["replaced"]) == (7, 1), "cut in another way"
    assert err == f"{OTHERS}passages of changed or deleted files that are gone: 1\n"
    code, out, err = run(capsys, "index", *again)
    assert (code, err) == (0, f"{OTHERS}2 files have not changed since the last time\n")
    code, out, err = run(capsys, "index", *again, "--duplicates")
    assert (code, err) == (0, OTHERS) and json.loads(out)["size"] == 14
    _change_one_file(corpus, tmp_path / "corpora", model, capsys)
    code, out, err = run(
        capsys, "index", "add", "my-tokens", str(corpus), "--kind", "tokens", "--model", str(model), *where
    )
    assert code == 0 and "3 documents" in out and "skipped 3 documents" in err
    code, out, err = run(capsys, "index", "list", *where, "--json")
    assert (code, err) == (0, "") and [one["name"] for one in json.loads(out)] == ["my-bm25", "my-dense", "my-tokens"]
    with pytest.raises(ValueError, match=r"made with the encoder '.+', which is loaded only when you name it"):
        Corpora(tmp_path / "corpora").open("my-dense")
    retriever, passages = Corpora(tmp_path / "corpora").open("my-dense", encode=model)
    assert isinstance(retriever, DenseRetriever) and passages[retriever.search(TEXT, 1)[0].id].text == TEXT
    assert run(capsys, "index", "remove", "my-dense", *where) == (0, "removed my-dense\n", "")
    code, out, err = run(capsys, "index", "list", *where)
    assert (code, err) == (0, "") and [line.split()[0] for line in out.splitlines()] == ["my-bm25", "my-tokens"]


def test_a_passage_of_two_files_stays_while_one_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where, folder = ["--dir", str(tmp_path / "corpora")], tmp_path / "texts"
    folder.mkdir()
    header = "Storks nest on chimneys."
    for name in ("a", "b", "c"):
        (folder / f"{name}.md").write_text(f"{header}\n\n# {name}\n\nText of {name}.")
    add = ["index", "add", "c", str(folder), *where]

    def found() -> dict[str, str]:
        passages = Corpora(tmp_path / "corpora").open("c")[1]
        return {passage.text: Path(passage.document).name for passage in passages}

    assert run(capsys, *add)[0] == 0 and found()[header] == "a.md"
    assert "3 files have not changed since the last time" in run(capsys, *add)[2]
    (folder / "a.md").write_text("# a\n\nAnother text of a.")
    code, _, err = run(capsys, *add)
    assert code == 0 and found()[header] == "b.md" and len(found()) == 4
    assert "passages of changed or deleted files that are gone: 2\n" in err
    (folder / "b.md").write_text("# b\n\nAnother text of b.")
    assert run(capsys, *add)[0] == 0 and found()[header] == "c.md"
    (folder / "c.md").write_text("# c\n\nAnother text of c.")
    assert run(capsys, *add)[0] == 0 and header not in found() and len(found()) == 3


def test_a_passage_of_two_files_comes_back_if_only_the_first_was_added_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, folder, header = ["--dir", str(tmp_path / "corpora")], tmp_path / "texts", "Storks nest on chimneys."
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.md").write_text(f"{header}\n\n# {name}\n\nText of {name}.")
    assert run(capsys, "index", "add", "c", str(folder), *where)[0] == 0
    (folder / "a.md").write_text("# a\n\nAnother text of a.")
    assert run(capsys, "index", "add", "c", str(folder / "a.md"), *where)[0] == 0
    assert run(capsys, "index", "add", "c", str(folder), *where)[0] == 0
    documents = {passage.text: Path(passage.document).name for passage in Corpora(tmp_path / "corpora").open("c")[1]}
    assert documents[header] == "b.md" and len(documents) == 3


@pytest.mark.parametrize(("first", "last"), [([], []), (["--duplicates"], []), (["--duplicates"], ["--duplicates"])])
def test_a_deleted_file_is_missed_whatever_its_stamp(
    first: list[str], last: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, folder = ["--dir", str(tmp_path / "corpora")], tmp_path / "texts"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.md").write_text(f"Storks nest on chimneys.\n\n# {name}\n\nText of {name}.")
    assert run(capsys, "index", "add", "c", str(folder), *first, *where)[0] == 0
    (folder / "a.md").write_text("# a\n\nAnother text of a.")
    assert run(capsys, "index", "add", "c", str(folder / "a.md"), *where)[0] == 0
    (folder / "b.md").unlink()
    assert run(capsys, "index", "add", "c", str(folder), *last, *where)[0] == 0
    passages = Corpora(tmp_path / "corpora").open("c")[1]
    assert {Path(passage.document).name for passage in passages} == {"a.md"}


def test_passages_that_were_added_twice_stay_while_their_files_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("Storks nest on chimneys.")
    add = ["index", "add", "c", str(tmp_path / "a.md"), "--dir", str(tmp_path / "corpora")]
    for options, size in (([], 1), (["--duplicates"], 2), ([], 2)):
        assert run(capsys, *add, *options)[0] == 0
        assert len(Corpora(tmp_path / "corpora").open("c")[1]) == size


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_file_whose_name_is_not_utf_8_is_added_and_asked(
    tmp_path: Path, model: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / os.fsdecode(b"caf\xe9.md")).write_text("A heron waits.")
    (folder / "good.md").write_text("A kettle boils.")
    options = ["--kind", "dense", "--encoder", str(model), "--dir", str(tmp_path / "corpora")]
    code, _, err = run(capsys, "index", "add", "c", str(folder), *options)
    assert (code, err) == (0, "")
    retriever, passages = Corpora(tmp_path / "corpora").open("c", encode=model)
    contexts = [passage.context for passage in passages]
    assert contexts == ["caf\ufffd", "good"]
    answers = DocumentAnswers(
        retriever, model=engine, contexts=contexts, instruction="{question} {passage}", max_new_tokens=2
    )
    assert answers("Where does a heron wait?").result is not None


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_passages_of_renamed_and_deleted_files_go(
    kind: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, header = tmp_path / "texts", "Storks nest on chimneys."
    (folder / "sub").mkdir(parents=True)
    other = tmp_path / "texts-of-others.md"
    other.write_text("Otters sleep.")
    (folder / "sub" / "a.md").write_text(header)
    (folder / "b.md").write_text(f"{header}\n\n# b\n\nHerons wait.")
    (folder / "c.jsonl").write_text('{"text": "Bees hum."}\n{"text": "Swifts fly."}\n')
    options = ["--kind", "dense", "--encoder", str(model)] if kind == "dense" else []
    add = ["index", "add", "c", str(folder), *options, "--dir", str(tmp_path / "corpora"), "--json"]

    def added(*more: Path) -> tuple[int, dict[str, str]]:
        code, out, _ = run(capsys, *add, *map(str, more))
        assert code == 0
        passages = Corpora(tmp_path / "corpora").open("c", encode=model)[1]
        return json.loads(out)["replaced"], {passage.text: Path(passage.document).name for passage in passages}

    assert added(other)[1]["Bees hum."] == "c.jsonl:1"
    other.unlink()
    (folder / "c.jsonl").rename(folder / "sub" / "d.jsonl")
    replaced, documents = added()
    assert (replaced, documents["Bees hum."], documents["Swifts fly."]) == (2, "d.jsonl:1", "d.jsonl:2")
    assert documents["Otters sleep."] == other.name, "it is in no given folder"
    first = documents[header]
    (folder / "sub" / "a.md" if first == "a.md" else folder / "b.md").unlink()
    replaced, documents = added()
    assert replaced and documents[header] == ({"a.md", "b.md"} - {first}).pop(), "its other file has it still"
    assert added() == (0, documents)
    assert sorted(map(str, Corpora(tmp_path / "corpora").stamps("c"))) == sorted(
        map(str, [other, folder / "sub" / "d.jsonl", *folder.rglob("*.md")])
    )


def test_passages_of_files_that_cannot_be_reached_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.md").write_text(f"Text of {name}.")
    add = ["index", "add", "c", *(str(tmp_path / name) for name in "ab"), "--dir", str(tmp_path / "corpora"), "--json"]
    assert run(capsys, *add)[0] == 0
    lstat, hidden = os.lstat, tmp_path / "b" / "b.md"
    hidden.rename(tmp_path / "b.md")

    def denied(path: str) -> os.stat_result:
        if str(path) == str(hidden):
            raise PermissionError(13, "Permission denied", path)
        return lstat(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", denied)
        code, out, _ = run(capsys, *add)
    assert (code, json.loads(out)["replaced"]) == (0, 0)
    code, out, _ = run(capsys, *add)
    assert (code, json.loads(out)["replaced"]) == (0, 1), "a folder may have become empty"


def test_a_name_that_no_file_can_have_is_gone(tmp_path: Path) -> None:
    assert is_gone("a\0b") and is_gone(str(tmp_path / "none")) and not is_gone(str(tmp_path))


def test_files_of_the_same_relative_name_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(f"Text of {name}.")
        monkeypatch.chdir(tmp_path / name)
        assert run(capsys, "index", "add", "c", "README.md", "--dir", str(tmp_path / "corpora"))[0] == 0
    passages = Corpora(tmp_path / "corpora").open("c")[1]
    assert [passage.document for passage in passages] == [str(tmp_path / name / "README.md") for name in ("a", "b")]


def test_files_that_hold_nothing_any_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where, folder = ["--dir", str(tmp_path / "corpora")], tmp_path / "texts"
    folder.mkdir()
    (folder / "A.JSONL").write_text('{"text": "Storks nest."}\n{"text": "Otters sleep."}\n')
    (folder / "b.txt").write_text("The cat sat.")
    add = ["index", "add", "c", str(folder), *where]
    assert run(capsys, *add)[0] == 0
    passages = Corpora(tmp_path / "corpora").open("c")[1]
    assert sorted(passage.text for passage in passages) == ["Otters sleep.", "Storks nest.", "The cat sat."]
    (folder / "A.JSONL").write_text("")
    code, _, err = run(capsys, *add)
    assert code == 0 and "that are gone: 2" in err
    (folder / "b.txt").write_text("  \n")
    code, out, err = run(capsys, *add)
    assert (code, out) == (2, "") and "nothing is left to search for in 'c'" in err and "index remove" in err
    assert [passage.text for passage in Corpora(tmp_path / "corpora").open("c")[1]] == ["The cat sat."]


def _change_one_file(corpus: Path, corpora: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a dense corpus, only passages of the changed file are embedded again, and its old passages are gone."""
    changed = corpus / "b" / "one.md"
    before = changed.read_text(encoding="utf-8")
    changed.write_text("Otters sleep on their backs.", encoding="utf-8")
    embedded: list[str] = []
    embed = HuggingFaceEmbedder.__call__

    def counted(self: HuggingFaceEmbedder, texts: list[str]) -> NDArray[np.float32]:
        embedded.extend(texts)
        return embed(self, texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HuggingFaceEmbedder, "__call__", counted)
        add = ["add", "my-dense", str(corpus), "--kind", "dense", "--encoder", str(model), "--dir", str(corpora)]
        code, _, err = run(capsys, "index", *add)
    assert code == 0 and "not changed since the last time" in err and "gone" in err
    assert [text for text in embedded if "Otters" in text] == embedded != []
    passages = Corpora(corpora).open("my-dense", encode=model)[1]
    texts = [passage.text for passage in passages]
    assert "Otters sleep on their backs." in texts and TEXT not in texts
    changed.write_text(before, encoding="utf-8")
    assert run(capsys, "index", *add)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "Missing command. See copyspec index --help"),
        (["add", "a"], 2, "Missing argument"),
        (["add", "a", "b", "--kind", "faiss"], 2, "--kind must be one of bm25, dense, hybrid, tokens, got 'faiss'"),
        (["add", "a", "b", "--search", "x"], 2, "--search must be one of exact, flat, hnsw, ivf, got 'x'"),
        (["add", "a", "b", "--kind", "dense"], 2, "--kind dense needs --encoder"),
        (["add", "/a", "b"], 2, "'/a' cannot name a corpus"),
        (["add", "a", "/no/such"], 2, "there is no file or folder '/no/such'"),
        (["add", "a", "/no/such", "--kind", "tokens", "--model", "/no"], 2, "no tokenizer for --model '/no'"),
        (["remove", "a", "--dir", "/no/such"], 2, "there is no corpus 'a' in '/no/such'; it holds none"),
    ],
)
def test_errors_are_one_line(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "index", *arguments)
    assert (status, out) == (code, "")
    assert said in err and err.startswith("copyspec: ") and err.count("\n") == 1


def test_line_ends_of_windows_and_byte_order_marks_hide_no_structure(tmp_path: Path) -> None:
    text = "\ufeff# Boats\n\nHerons wait.\n\nRivers\n======\n\n" + "The ferry leaves at noon. " * 30 + "\n\nIt sinks.\n"
    read = []
    for ends in ("\n", "\r\n"):
        file = tmp_path / "a.md"
        file.write_bytes(text.replace("\n", ends).encode())
        (document,) = read_documents([file])
        passages = split_passages(document, max_chars=400)
        read.append([(" ".join(passage.text.split()), passage.heading) for passage in passages])
    assert read[0] == read[1] and read[0][0] == ("# Boats Herons wait.", "Boats")
