"""The language server: checks open texts in the background and offers corrections as code actions."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import logging
import re
import sys
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

import copyspec
from copyspec.cli.lint_reports import message
from copyspec.pipelines import (
    KINDS,
    Edit,
    Format,
    FormatError,
    FormatOptions,
    Kinds,
    Marks,
    Outcome,
    Runner,
    Work,
    format_of,
    is_excluded,
    kind_of,
    shift,
)

logger = logging.getLogger(__name__)

FORMATS = {"plaintext": "txt", "markdown": "md", "restructuredtext": "rst", "asciidoc": "adoc", "html": "html"}
FORMATS |= {"latex": "latex", "tex": "latex", "git-commit": "txt", "mail": "txt", "text": "txt"}
"""The format for an editor's language id, for files whose name does not tell it."""

MEMORY = 1 << 14
"""Number of paragraphs remembered, so that unchanged ones are not given to the model again. Enough for a book."""

MAX_MESSAGE = 1 << 28
"""Bytes of a message; no editor opens a text that large."""

_LINE_END = re.compile(r"\r\n?|\n")


class Checker:
    """Finds corrections in whole texts, one text at a time."""

    def __init__(
        self,
        runner: Runner,
        *,
        kinds: Collection[str] = KINDS,
        exclude: Sequence[str] = (),
        format: str | None = None,
        options: FormatOptions | None = None,
    ) -> None:
        """`kinds`, `exclude`, `format` and the options of formats: as for `copyspec gec`."""
        self._runner, self._kinds, self._exclude = runner, Kinds(kinds), exclude
        self._format, self._options = format, options or FormatOptions()
        self._memory = OutcomeCache(MEMORY)

    def check(self, path: str, language: str, text: str, is_wanted: Callable[[], bool]) -> list[Edit] | None:
        """The edits, in characters of `text`, ascending; None if `is_wanted` becomes false meanwhile; empty for unknown
        or packed formats, and for paths that are left out."""
        if not is_wanted():
            return None
        if is_excluded(path, self._exclude):
            return []
        try:
            form = _format(path, language, self._format, self._options)
        except FormatError as error:
            logger.info("%s", error)
            return []
        marks, edits, offset = Marks(), list[Edit](), 0
        memory = _Interrupted(self._memory, is_wanted)

        def works() -> Iterator[Work[str]]:
            parts = list(form.read(io.BytesIO(text.encode("utf-8", "replace"))))
            for part in parts:
                yield Work(path, marks.part(path, part), memory, parts)

        try:
            for done in self._runner.run(works()):
                if not is_wanted():
                    raise _NotWantedError
                assert done.part is not None
                if not done.part.is_verbatim:
                    return []
                of_part = self._kinds.edits(path, done.part, done.edits)
                edits += shift(of_part, offset)
                offset += len(done.part.text)
        except _NotWantedError:
            return None
        except FormatError as error:  # for example half-written JSON
            logger.info("%s: %s", path, error)
            return []
        return edits if offset == len(text) else []


class OutcomeCache:
    """An LRU cache of outcomes by text, with the interface of a run's journal."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[str, Outcome] = OrderedDict()

    def get(self, text: str) -> Outcome | None:
        outcome = self._held.get(text)
        if outcome is not None:
            self._held.move_to_end(text)
        return outcome

    def add(self, text: str, outcome: Outcome) -> None:
        self._held[text] = replace(outcome, result=None)  # which may be large, and is not asked for again
        if len(self._held) > self._most:
            self._held.popitem(last=False)


class _NotWantedError(Exception):
    pass


class _Interrupted:
    """A cache whose `add` ends the check once its text is outdated. It is called for each paragraph, while the runner
    yields parts only in groups."""

    def __init__(self, cache: OutcomeCache, is_wanted: Callable[[], bool]) -> None:
        self._held, self._is_wanted = cache, is_wanted

    def get(self, text: str) -> Outcome | None:
        return self._held.get(text)

    def add(self, text: str, outcome: Outcome) -> None:
        self._held.add(text, outcome)
        if not self._is_wanted():
            raise _NotWantedError


@dataclass(frozen=True, slots=True)
class DiagnosedText:
    """The diagnostics for one version of a text."""

    version: int | None
    diagnostics: list[lsp.Diagnostic]
    replacements: list[str]


class OpenTexts:
    """Checks texts in a worker thread, the most recently opened or changed one first."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._pool = ThreadPoolExecutor(1, "copyspec lsp")
        self._latest: dict[str, int] = {}
        self._numbers = itertools.count()  # of all texts, so that one opened again does not continue an earlier check
        self._turns = itertools.count()
        self._waiting: list[int] = []  # turns of the texts being checked, ascending
        self._is_stopped = False

    def changed(self, uri: str) -> int:
        """The number of this version of a text; earlier ones are not checked any longer."""
        number = self._latest[uri] = next(self._numbers)
        return number

    def closed(self, uri: str) -> None:
        self._latest.pop(uri, None)

    def is_latest(self, uri: str, number: int) -> bool:
        return not self._is_stopped and self._latest.get(uri) == number

    async def check(self, uri: str, number: int, language: str, text: str) -> list[Edit] | None:
        """The edits of a text; None if it was changed or closed meanwhile, or the server stops. For a newer text the
        check is interrupted, and begins again later; paragraphs already checked are remembered."""
        turn, edits, path = next(self._turns), None, to_fs_path(uri) or uri
        loop = asyncio.get_running_loop()

        def is_wanted() -> bool:
            return self.is_latest(uri, number) and self._waiting[-1:] == [turn]

        self._waiting.append(turn)
        try:
            while edits is None and self.is_latest(uri, number):
                edits = await loop.run_in_executor(self._pool, self._checker.check, path, language, text, is_wanted)
        finally:
            self._waiting.remove(turn)
        return edits if self.is_latest(uri, number) else None

    def stop(self) -> None:
        """End all checks after the current paragraph."""
        self._is_stopped = True
        self._pool.shutdown(wait=False)


class BoundedInput:
    """The editor's messages, of limited size: memory is allocated by the length that a message announces."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        return self._stream.readline()

    def read(self, size: int) -> bytes:
        """Raises OSError for a message of more than MAX_MESSAGE bytes."""
        if size > MAX_MESSAGE:
            raise OSError(f"a message of {size} bytes was announced; at most {MAX_MESSAGE} are taken")
        return self._stream.read(size)


def serve(checker: Checker, delay: float) -> None:
    """Serve an editor over stdin and stdout until it says `exit` or closes stdin."""
    texts = OpenTexts(checker)
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:  # the server closes it, and stdout must stay open
        try:
            make_server(texts, delay).start_io(cast("BinaryIO", BoundedInput(sys.stdin.buffer)), output)
        finally:
            texts.stop()


def make_server(texts: OpenTexts, delay: float) -> LanguageServer:
    """Create the server. `delay`: seconds without a change before a text is checked again."""
    server = LanguageServer("copyspec", copyspec.__version__)
    by_uri: dict[str, DiagnosedText] = {}

    async def look(uri: str, seconds: float) -> None:
        """Check a text after `seconds`, unless it changes first."""
        number = texts.changed(uri)
        await asyncio.sleep(seconds)
        if not texts.is_latest(uri, number):
            return
        document = server.workspace.get_text_document(uri)
        text, version = document.source, document.version
        try:
            edits = await texts.check(uri, number, document.language_id or "", text)
        except Exception as error:  # for example the model cannot be loaded: report it and keep the editor running
            logger.exception("checking %s", uri)
            why = f"copyspec: {' '.join(str(error).split()) or type(error).__name__}"
            server.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Error, why))
            return
        if edits is None:
            return
        converter = PositionConverter(text, server.workspace.position_encoding)
        by_uri[uri] = DiagnosedText(
            version, [diagnostic(text, edit, converter) for edit in edits], [e.replacement for e in edits]
        )
        server.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri, by_uri[uri].diagnostics, version=version)
        )

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    async def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the server ends, and would log it as an error
            await look(params.text_document.uri, 0.0)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await look(params.text_document.uri, delay)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        texts.closed(uri)
        by_uri.pop(uri, None)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    @server.feature(lsp.SHUTDOWN)
    def stopped(_: None) -> None:
        texts.stop()

    kinds = [lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.SourceFixAll]

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=kinds))
    def actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri = params.text_document.uri
        diagnosed = by_uri.get(uri)
        if diagnosed is None or diagnosed.version != server.workspace.get_text_document(uri).version:
            return []
        return actions_of(uri, diagnosed, params)

    return server


def actions_of(uri: str, diagnosed: DiagnosedText, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    """A code action for each correction in the requested range, and one for all corrections of the text."""
    pairs = list(zip(diagnosed.diagnostics, diagnosed.replacements, strict=True))
    made = [
        lsp.CodeAction(
            title=_title(finding.message, replacement),
            kind=lsp.CodeActionKind.QuickFix,
            diagnostics=[finding],
            is_preferred=True,
            edit=lsp.WorkspaceEdit(changes={uri: [lsp.TextEdit(finding.range, replacement)]}),
        )
        for finding, replacement in pairs
        if _overlap(finding.range, params.range)
    ]
    if pairs:
        edits = [lsp.TextEdit(finding.range, replacement) for finding, replacement in pairs]
        title = f"Make all {len(pairs)} corrections of copyspec"
        everything = lsp.WorkspaceEdit(changes={uri: edits})
        made.append(lsp.CodeAction(title=title, kind=lsp.CodeActionKind.SourceFixAll, edit=everything))
    wanted = [_value(kind) for kind in params.context.only or ()]
    return [
        action
        for action in made
        if not wanted or any(f"{_value(action.kind)}.".startswith(f"{kind}.") for kind in wanted)
    ]


def diagnostic(text: str, edit: Edit, converter: PositionConverter) -> lsp.Diagnostic:
    """An edit as a diagnostic."""
    was = text[edit.start : edit.end]
    span = lsp.Range(converter.position(edit.start), converter.position(edit.end))
    return lsp.Diagnostic(
        range=span,
        message=message(was, edit),
        severity=lsp.DiagnosticSeverity.Information,
        code=kind_of(was, edit.replacement),
        source="copyspec",
    )


def _title(message: str, replacement: str) -> str:
    """The title of a code action: the message of its diagnostic without the kind and the margin."""
    return f"Change {message.rpartition(' (')[0]}" if replacement else f"Delete {message.split(' -> ')[0]}"


class PositionConverter:
    """Converts character offsets to lines and columns in the client's position encoding."""

    def __init__(self, text: str, encoding: lsp.PositionEncodingKind | str | None) -> None:
        self._text = text
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
        self._encoding = _value(encoding or lsp.PositionEncodingKind.Utf16)

    def position(self, offset: int) -> lsp.Position:
        line = bisect_right(self._starts, offset) - 1
        before = self._text[self._starts[line] : offset]
        if self._encoding == lsp.PositionEncodingKind.Utf8.value:
            return lsp.Position(line, len(before.encode("utf-8", "surrogatepass")))
        if self._encoding == lsp.PositionEncodingKind.Utf32.value:
            return lsp.Position(line, len(before))
        return lsp.Position(line, len(before.encode("utf-16-le", "surrogatepass")) // 2)


def _format(path: str, language: str, format: str | None, options: FormatOptions) -> Format:
    if format is not None:
        return format_of(path, format, options=options)
    try:
        return format_of(path if Path(path).suffix else f"{path}.unnamed", options=options)
    except FormatError:
        if language not in FORMATS:
            raise
        return format_of("-", FORMATS[language], options=options)


def _overlap(one: lsp.Range, other: lsp.Range) -> bool:
    return _key(one.start) <= _key(other.end) and _key(other.start) <= _key(one.end)


def _key(position: lsp.Position) -> tuple[int, int]:
    return position.line, position.character


def _value(kind: object) -> str:
    return str(getattr(kind, "value", kind))
