"""`copyspec chat`: the history is kept, files are read and copied from, and Ctrl-C ends only the current answer."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from copyspec import Engine
from copyspec.cli import main
from copyspec.cli.chat import Conversation
from copyspec.engine.results import Chunk
from tests.helpers.texts import byte_level
from tests.helpers.texts import engine as text_engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    return text_engine()


def talk(engine: Engine, **options: object) -> Conversation:
    return Conversation(engine, {"max_new_tokens": 8, **options}, None)


@pytest.mark.usefixtures("named_model")
def test_lines_are_messages_and_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("the cat sat on the mat")
    notes, none = tmp_path / "notes.txt", tmp_path / "none"
    lines = f"/add {notes}\nthe cat\n\n/spans\nagain\n/add {none}\n/bogus\n/new\n{'cat ' * 300}\n/quit\nx\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["chat", "--max-new-tokens", "6", "--stats", "--spans"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") >= 2
    assert err.count("per pass of the model") == 2
    assert "no such file" in err and "shorten it" in err and "Ctrl-C stops an answer" in err
    assert "no command '/bogus'" in err and "'/help'" not in err
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n"))
    assert main(["chat", "--max-new-tokens", "2", "--add", str(tmp_path / "none")]) == 2


def test_the_model_reads_history_and_files(engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the cat sat on the mat\n")
    seen: list[object] = []
    stream = engine.stream

    def watched(prompt: object, references: object, **options: object) -> Iterator[Chunk]:
        seen.append((prompt, references))
        return stream(prompt, references, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "stream", watched)
    conversation = talk(engine)
    conversation.add(tmp_path / "notes.txt")
    for text in ("who sat?", "where?"):
        conversation.answer(text)
    first = {"role": "user", "content": "notes.txt:\nthe cat sat on the mat\n\nwho sat?"}
    answered = {"role": "assistant", "content": conversation.messages[1]["content"]}
    notes = [{"text": "the cat sat on the mat\n", "name": "notes.txt"}]
    assert seen == [([first], notes), ([first, answered, {"role": "user", "content": "where?"}], notes)]
    conversation.forget()
    assert conversation.messages == [] and conversation.files == {}


def test_ctrl_c_keeps_what_was_written(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def stream(prompt: object, references: object, **options: object) -> Iterator[Chunk]:
        try:
            yield Chunk(" the", (1,))
            yield Chunk(" cat", (2,))
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    monkeypatch.setattr(engine, "stream", stream)
    conversation = talk(engine)
    conversation.answer("who?")
    assert conversation.messages[-1] == {"role": "assistant", "content": "the cat"} and closed == [True]


def test_ctrl_c_before_the_first_token_keeps_the_conversation(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(*_: object, **__: object) -> Iterator[Chunk]:
        raise KeyboardInterrupt

    conversation = talk(engine)
    conversation.answer("the cat")
    before = list(conversation.messages)
    monkeypatch.setattr(engine, "stream", stream)
    conversation.answer("again")
    asked = {"role": "user", "content": "again"}
    assert conversation.messages == [*before, asked, {"role": "assistant", "content": ""}]
    monkeypatch.undo()
    conversation.answer("and again")
    assert len(conversation.messages) == 6


@pytest.mark.usefixtures("named_model")
def test_paths_that_no_file_can_have_end_no_conversation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("/add ~nosuchuser/notes.txt\n/add a\0b\n/bogus\n"))
    assert main(["chat"]) == 0
    err = capsys.readouterr().err
    assert "/add ~nosuchuser/notes.txt: no such file" in err and "embedded null" in err and "'/bogus'" in err


@pytest.mark.usefixtures("named_model")
@pytest.mark.parametrize("is_terminal", [True, False])
def test_ctrl_c_at_the_prompt_of_a_terminal_keeps_the_conversation(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter([KeyboardInterrupt(), None])

    def read_line() -> None:
        if (line := next(lines)) is not None:
            raise line

    monkeypatch.setattr(sys.modules["copyspec.cli.chat"], "read_line", read_line)
    stdin = type("Stdin", (io.StringIO,), {"isatty": lambda self: is_terminal})
    monkeypatch.setattr("sys.stdin", stdin())
    assert main(["chat"]) == (0 if is_terminal else 130)
    assert ("/quit or Ctrl-D ends the conversation" in capsys.readouterr().err) is is_terminal


@pytest.mark.usefixtures("named_model")
def test_a_file_that_is_too_long_for_every_message_can_be_dropped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "long.txt").write_text("cat " * 300)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"/add {tmp_path / 'long.txt'}\nthe cat\n/new\nthe cat\n"))
    assert main(["chat", "--max-new-tokens", "4"]) == 0
    out, err = capsys.readouterr()
    assert err.count("shorten it") == 1 and "/new drops them" in err and out.strip()


@pytest.mark.usefixtures("named_model")
def test_what_no_line_could_be_answered_with_is_told_at_once(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n"))
    assert main(["chat", "--temperature", "-1"]) == 2
    assert "copyspec: --temperature must be a number" in capsys.readouterr().err
    bare = Engine(engine.model, byte_level(template=None), name="bare")
    monkeypatch.setattr("copyspec.load", lambda *_, **__: bare)
    assert main(["chat"]) == 2
    assert "'bare' has no chat template: --model names another model" in capsys.readouterr().err


def test_the_oldest_messages_leave_a_full_context(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = talk(engine)
    for number in range(4):
        conversation.answer(f"{number} " + "the cat " * 25)
    assert "the oldest messages are left out" in capsys.readouterr().err
    assert not any(message["content"].startswith("0") for message in conversation.messages)
    before = list(conversation.messages)
    conversation.waiting = ["notes.txt:\nthe cat"]
    with pytest.raises(ValueError, match="shorten it"):
        conversation.answer("the cat " * 200)
    assert conversation.messages == before and conversation.waiting == ["notes.txt:\nthe cat"]


def test_files_of_one_name_do_not_replace_each_other(engine: Engine, tmp_path: Path) -> None:
    conversation = talk(engine)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").write_text(folder)
        conversation.add(tmp_path / folder / "notes.txt")
    (tmp_path / "a" / "notes.txt").write_text("new")
    conversation.add(tmp_path / "a" / "notes.txt")
    other = str(tmp_path / "b" / "notes.txt")
    assert conversation.files == {"notes.txt": "new", other: "b"}
    assert conversation.waiting == ["notes.txt:\na", f"{other}:\nb", "notes.txt:\nnew"]
