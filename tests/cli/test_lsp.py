"""The language server, tested through pygls's client over stdin and stdout, as an editor uses it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

lsp = pytest.importorskip("lsprotocol.types")
pytest.importorskip("pygls")

from copyspec.cli.language_server import Checker, PositionConverter  # noqa: E402
from copyspec.pipelines import Edit, FunctionCorrector, GuardOptions, Runner, RunOptions  # noqa: E402

TEXT = "# A note 😀\n\nIt is late. 😀 The childrens came to see the boat.\n\n```\nThe childrens\n```\n"
RIGHT = TEXT.replace("The childrens came", "The children came")


def test_an_editor_gets_corrections(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(editor((tmp_path / "a.md").as_uri()), 300))


async def editor(uri: str) -> None:
    from pygls.lsp.client import LanguageClient

    client = LanguageClient("editor", "1")
    told: asyncio.Queue[Any] = asyncio.Queue()

    @client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def published_one(params: Any) -> None:
        told.put_nowait(params)

    await client.start_io(sys.executable, "-m", "copyspec", "lsp", "--model", "default", "--delay", "0.01")
    found = await client.initialize_async(lsp.InitializeParams(capabilities=lsp.ClientCapabilities()))
    assert list(found.capabilities.code_action_provider.code_action_kinds) == ["quickfix", "source.fixAll"]
    client.initialized(lsp.InitializedParams())
    document = lsp.TextDocumentItem(uri, "markdown", 1, TEXT)
    client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))
    published = await told.get()
    (diagnostic,) = published.diagnostics
    assert (published.uri, published.version, diagnostic.message) == (uri, 1, "'childrens' -> 'children'")
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
    published = await told.get()
    assert published.version == 2 and not published.diagnostics
    client.text_document_did_close(lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(uri)))
    assert not (await told.get()).diagnostics
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


def test_places_in_three_encodings() -> None:
    text = "a😀b\r\né\rx\ny"
    for encoding, wanted in (("utf-8", 5), ("utf-16", 3), ("utf-32", 2)):
        places = PositionConverter(text, encoding)
        assert places.position(2) == lsp.Position(0, wanted)
        assert [places.position(at).line for at in (0, 5, 7, 9, 10)] == [0, 1, 2, 3, 3]
