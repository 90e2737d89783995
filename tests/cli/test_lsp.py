"""The language server, tested through pygls's client over stdin and stdout, as an editor uses it."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

lsp = pytest.importorskip("lsprotocol.types")
pytest.importorskip("pygls")

from copyspec import Result, Stats  # noqa: E402
from copyspec.cli import main  # noqa: E402
from copyspec.cli.config import defaults  # noqa: E402
from copyspec.cli.language_server import (  # noqa: E402
    Checker,
    OpenTexts,
    OutcomeCache,
    PositionConverter,
    serve,
)
from copyspec.pipelines import (  # noqa: E402
    Edit,
    FileOptions,
    FormatOptions,
    FunctionCorrector,
    GuardOptions,
    Outcome,
    Runner,
    RunOptions,
    apply,
    correct_files,
)

TEXT = "# A note 😀\n\nIt is late. 😀 The childrens came to see the boat.\n\n```\nThe childrens\n```\n"
RIGHT = TEXT.replace("The childrens came", "The children came")


def test_an_editor_gets_corrections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in a thread of this process, which has imported everything; a connection is its stdin and
    stdout."""
    codes: list[int] = []

    def command(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("r") as stdin, connection.makefile("w") as stdout:
            monkeypatch.setattr("sys.stdin", stdin)
            monkeypatch.setattr("sys.stdout", stdout)
            codes.append(main(["lsp", "--model", "default", "--delay", "0.01"]))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=command, args=[listening])
        server.start()
        asyncio.run(asyncio.wait_for(editor((tmp_path / "a.md").as_uri(), listening.getsockname()[1]), 100))
        server.join(60)
    assert codes == [0]


async def editor(uri: str, port: int) -> None:
    from pygls.lsp.client import LanguageClient

    client = LanguageClient("editor", "1")
    notifications: asyncio.Queue[Any] = asyncio.Queue()

    @client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def published_one(params: Any) -> None:
        notifications.put_nowait(params)

    await client.start_tcp("127.0.0.1", port)
    initialized = await client.initialize_async(lsp.InitializeParams(capabilities=lsp.ClientCapabilities()))
    assert list(initialized.capabilities.code_action_provider.code_action_kinds) == ["quickfix", "source.fixAll"]
    client.initialized(lsp.InitializedParams())
    document = lsp.TextDocumentItem(uri, "markdown", 1, TEXT)
    client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))
    published = await notifications.get()
    (diagnostic,) = published.diagnostics
    assert (published.uri, published.version) == (uri, 1)
    assert re.fullmatch(r"'childrens' -> 'children' \(replace, margin \d\.\d\)", diagnostic.message)
    # Columns are counted in UTF-16: the emoji before takes two units.
    assert diagnostic.range == lsp.Range(lsp.Position(2, 19), lsp.Position(2, 28))

    async def actions(place: Any, *only: str) -> Any:
        context = lsp.CodeActionContext(diagnostics=[], only=list(only) or None)
        named = lsp.TextDocumentIdentifier(uri)
        return list(await client.text_document_code_action_async(lsp.CodeActionParams(named, place, context)) or ())

    one, everything = await actions(diagnostic.range)
    assert one.title == "Change 'childrens' -> 'children'" and one.kind == lsp.CodeActionKind.QuickFix
    (edit,) = one.edit.changes[uri]
    assert (edit.range, edit.new_text) == (diagnostic.range, "children")
    start = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))
    assert await actions(start) == await actions(diagnostic.range, "source") == [everything]

    change = lsp.TextDocumentContentChangePartial(range=edit.range, text=edit.new_text)
    versioned = lsp.VersionedTextDocumentIdentifier(2, uri)
    client.text_document_did_change(lsp.DidChangeTextDocumentParams(versioned, [change]))
    assert await actions(start) == []  # the findings belong to the previous version
    published = await notifications.get()
    assert published.version == 2 and not published.diagnostics
    client.text_document_did_close(lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(uri)))
    assert not (await notifications.get()).diagnostics
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


def test_whole_texts_are_checked_and_remembered() -> None:
    asked: list[str] = []

    def correct(text: str) -> str:
        asked.append(text)
        return text.replace("teh", "the")

    options = RunOptions(GuardOptions(allow_new_words=True, allow_swaps=True, any_language=True))
    checker = Checker(Runner(FunctionCorrector(correct), options))
    line = "We came to teh house in the evening."
    text = f"{line}\r\n\r\n{line} Twice.\r\n\r\ncopyspec: off\r\n\r\n{line} Thrice.\r\n"
    wanted = [Edit(at, at + 3, "the") for at in (11, 51)]
    assert checker.check("a.txt", "", text, lambda: True) == wanted
    assert checker.check("untitled:1", "plaintext", text, lambda: True) == wanted
    assert len(asked) == 2 and "Thrice" not in str(asked)
    assert checker.check("a.txt", "", text, lambda: False) is None
    assert checker.check("a.docx", "", text, lambda: True) == checker.check("a.csv", "", text, lambda: True) == []
    assert checker.check("a.bin", "what", text, lambda: True) == []
    assert checker.check("a.txt", "", "\ud800 teh\n", lambda: True) in ([], [Edit(2, 5, "the")])


def test_settings_of_the_project_decide_as_for_gec(tmp_path: Path) -> None:
    options = RunOptions(GuardOptions(allow_new_words=True, allow_swaps=True, any_language=True))
    corrector = FunctionCorrector(lambda text: text.replace("teh", "the").replace("monday", "Monday"))
    text = "On monday we came to teh house.\nWe came to teh house on monday.\n"
    checker = Checker(Runner(corrector, options), kinds={"case"}, exclude=["CHANGELOG.md", "build/*"])
    assert checker.check("a.txt", "", text, lambda: True) == [Edit(3, 9, "Monday"), Edit(56, 62, "Monday")]
    assert checker.check("/x/CHANGELOG.md", "", text, lambda: True) == []
    assert checker.check("/x/build/a.txt", "", text, lambda: True) == []
    app = tmp_path / "vendor" / "app"
    app.mkdir(parents=True)
    (app / ".copyspec.toml").write_text('exclude = ["vendor"]')
    below = Checker(Runner(corrector, options), exclude=defaults(app)["exclude"])
    assert below.check(str(app / "a.txt"), "", text, lambda: True)
    assert below.check(str(app / "vendor" / "a.txt"), "", text, lambda: True) == []
    asked: list[str] = []
    lines = FunctionCorrector(lambda text: asked.append(text) or text)  # type: ignore[func-returns-value]
    checker = Checker(Runner(lines, options), format="txt", options=FormatOptions(by_line=True))
    assert checker.check("a.unknown", "", text, lambda: True) == []
    assert sorted(asked) == sorted(text.splitlines())


def test_an_editor_underlines_what_gec_changes(tmp_path: Path) -> None:
    """The paragraphs of a text are one document, in which a word that stood before is known."""
    made_up = "We measured the zorblax in the garden and wrote it down."
    text = f"{made_up}\n\nThe zorblaks was found in the house again.\n"
    corrector = FunctionCorrector(lambda text: text.replace("zorblaks", "zorblax").replace("garden", "gardex"))
    file = tmp_path / "a.txt"
    file.write_text(text)
    (report,) = correct_files(Runner(corrector), [file], FileOptions(in_place=True))
    assert report.error is None
    edits = Checker(Runner(corrector)).check("a.txt", "", text, lambda: True)
    assert edits is not None and file.read_text() == apply(text, edits)
    assert [edit.replacement for edit in edits] == ["zorblax"]


def test_outcomes_are_remembered_without_their_results() -> None:
    cache = OutcomeCache(2)
    result = Result("It goes.", (1, 2), "stop", None, prompt_tokens=3, stats=Stats())
    for text in "abc":
        cache.add(text, Outcome("It goes.", result=result))
    assert cache.get("a") is None and cache.get("b") == cache.get("c") == Outcome("It goes.")


BIG = "\n\n".join(f"We came to teh house number {number} in the evening." for number in range(300))


class Slow:
    """A checker of texts that takes a millisecond for each paragraph."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun = threading.Event()
        options = RunOptions(GuardOptions(allow_new_words=True, allow_swaps=True, any_language=True))
        self.checker = Checker(Runner(FunctionCorrector(self.correct), options))

    def correct(self, text: str) -> str:
        self.asked.append(text)
        self.begun.set()
        time.sleep(0.001)
        return text.replace("teh", "the")


def test_a_newer_text_goes_first_and_a_stop_ends_all() -> None:
    slow = Slow()
    texts = OpenTexts(slow.checker)

    async def edit() -> None:
        large = asyncio.create_task(texts.check("file:///a.txt", texts.changed("file:///a.txt"), "", BIG))
        await asyncio.to_thread(slow.begun.wait, 10)
        small = await texts.check("file:///b.txt", texts.changed("file:///b.txt"), "", "Here is teh boat.")
        assert small == [Edit(8, 11, "the")] and not large.done()
        texts.stop()
        assert await large is None and len(slow.asked) < 200
        assert await texts.check("file:///b.txt", texts.changed("file:///b.txt"), "", "teh") is None

    asyncio.run(asyncio.wait_for(edit(), 30))


def test_a_text_that_is_opened_again_ends_its_earlier_check() -> None:
    slow = Slow()
    texts, uri = OpenTexts(slow.checker), "file:///a.txt"

    async def edit() -> None:
        old = asyncio.create_task(texts.check(uri, texts.changed(uri), "", BIG))
        await asyncio.to_thread(slow.begun.wait, 10)
        texts.closed(uri)
        assert await texts.check(uri, texts.changed(uri), "", "Here is teh boat.") == [Edit(8, 11, "the")]
        assert await old is None
        texts.stop()

    asyncio.run(asyncio.wait_for(edit(), 30))


def message(name: str, number: int | None = None, **params: object) -> bytes:
    body = {"jsonrpc": "2.0", "method": name, "params": params} | ({} if number is None else {"id": number})
    content = json.dumps(body).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(content), content)


OPENED = {"uri": "file:///a.txt", "languageId": "plaintext", "version": 1, "text": BIG}
STARTED = message("initialize", 1, capabilities={}) + message("textDocument/didOpen", textDocument=OPENED)


def served(messages: bytes, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Slow]:
    """Serve `messages`; return what was written."""
    slow = Slow()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(messages)))
    with path.open("w") as output, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", output)
        serve(slow.checker, 0.0)
        output.flush()  # it was not closed
    return path.read_text(), slow


@pytest.mark.parametrize("ended", [message("shutdown", 2) + message("exit"), b""], ids=["exit", "closed"])
def test_a_server_ends_while_a_text_is_checked(
    ended: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written, slow = served(STARTED + ended, tmp_path / "out", monkeypatch)
    assert '"id": 1' in written and ('"id": 2' in written) == bool(ended)
    assert len(slow.asked) < 200 and not caplog.records


def test_a_message_that_cannot_be_meant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="a message of 99999999999999999999999 bytes was announced; at most"):
        served(b"Content-Length: 99999999999999999999999\r\n\r\n", tmp_path / "out", monkeypatch)


@pytest.mark.parametrize("delay", ["-1", "nan"])
def test_a_delay_that_is_no_time_is_refused(delay: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lsp", "--delay", delay]) == 2
    assert f"--delay {float(delay)!r} must be at least 0" in capsys.readouterr().err


def test_places_in_three_encodings() -> None:
    text = "a😀b\r\né\rx\ny"
    for encoding, wanted in (("utf-8", 5), ("utf-16", 3), ("utf-32", 2)):
        places = PositionConverter(text, encoding)
        assert places.position(2) == lsp.Position(0, wanted)
        assert [places.position(at).line for at in (0, 5, 7, 9, 10)] == [0, 1, 2, 3, 3]
