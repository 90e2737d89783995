"""Edits whole texts and programs by an instruction, copying from the old version."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from copyspec.client.asking import Asking
from copyspec.common.checks import check_type
from copyspec.engine.asking.inputs import Input
from copyspec.engine.results import NoAnswer, Result

from ..documents import FormatError, Refusal
from ..edits.lines import LINE_END, aligned, with_line_ends
from ..edits.render import unified_diff
from ..guards.answers import version
from ..guards.judging import BUNDLED
from ..guards.syntax import broken
from ..instructions import INSTRUCTION, fill
from ..models import model_of
from ..options import EditOptions
from .model_corrector import check_system, cut, output_limit

if TYPE_CHECKING:
    from ..models import ModelLike

_MARK = "\ufeff"
_KNOWN = [part.strip().casefold() for part in INSTRUCTION.split("{text}")]

FOLLOWS = "Qwen/Qwen2.5-1.5B-Instruct"
"""A small hub model that follows instructions; error messages name it as an example."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A text and its new version."""

    source: str
    text: str  # the source if the edit was refused
    refusal: Refusal | None = None
    result: Result | None = None  # of the model; None if the text did not fit or was empty

    @property
    def changed(self) -> bool:
        return self.text != self.source

    def diff(self, path: str = "text") -> Iterator[str]:
        """Yield the lines of a unified diff, with line ends."""
        return unified_diff([(self.source, self.text)], path)


class EditPipeline:
    """Rewrites whole texts and programs by an instruction.

    The output is expected to follow the text. It is used unchanged except for three things: what chat models put around
    a text is removed, lines keep their ends, and the text the white space around it. An output that was cut, that has
    left parts out, that is no version of the text (a patch, a question), or that can no longer be parsed is never used.
    """

    def __init__(self, model: ModelLike = None, options: EditOptions | None = None) -> None:
        check_type(options is None or isinstance(options, EditOptions), "options", options, "an EditOptions")
        self.model = model_of(model)
        self.options = options = options or EditOptions()
        check_system(options.system, self.model)

    def __call__(self, text: str, instruction: str, *, path: str | None = None) -> Edited:
        """Edit a text. `instruction` says what to do; the text follows it, or stands where it has `{text}`. `path`: the
        file's name; by its suffix the new version is parsed.

        Raises ValueError for an empty instruction, and for one that the bundled model was not trained on; TypeError for
        anything but strings.
        """
        check_type(isinstance(text, str), "text", text, "a str")
        self.check(instruction)
        body = text.removeprefix(_MARK).strip()
        if not body:
            return Edited(text, text)
        if re.search("[\ud800-\udfff]", body):
            return Edited(text, text, Refusal("encoding", "it holds bytes that are not text: convert it to UTF-8"))
        source = LINE_END.sub("\n", body)
        result = self._ask(prompt_of(instruction, source), source)
        if isinstance(result, NoAnswer):
            more = ": edit it in parts" if result.reason == "length" else ""
            return Edited(text, text, Refusal(result.reason, f"{result.detail}{more}"))
        edited = self._edited(text, body, instruction, result)
        if self.options.syntax and edited.changed and (refusal := broken(text, edited.text, path)):
            return Edited(text, text, refusal, result)
        return edited

    def check(self, instruction: str) -> None:
        """Raise TypeError for an instruction that is no str, ValueError for one that the model cannot follow."""
        check_type(isinstance(instruction, str), "instruction", instruction, "a str")
        if not instruction.strip():
            raise ValueError("the instruction is empty: say what to change")
        parts = prompt_of(instruction, "{text}").split("{text}")
        if self.model.own == BUNDLED and [" ".join(part.split()).casefold() for part in parts] != _KNOWN:
            raise ValueError(
                f"the bundled model does not know the instruction {instruction!r}: it knows only {INSTRUCTION!r}. "
                f"Name a model that takes instructions, for example model={FOLLOWS!r}"
            )

    def _ask(self, prompt: str, source: str) -> Result | NoAnswer:
        limit = self.options.max_new_tokens
        if limit is None:
            limit = output_limit(self.model.tokens(source), self.model.is_chat)
        options = self.options
        how = Asking(system=options.system, drafts=options.drafts, draft_models=options.draft_models)
        request = Input(prompt, edit_source=source, max_new_tokens=limit)
        ((_, result),) = self.model.answers([request], how)
        return result

    def _edited(self, text: str, body: str, instruction: str, result: Result) -> Edited:
        if result.finish_reason != "stop":
            return Edited(text, text, cut(result), result)
        source, output = LINE_END.sub("\n", body), LINE_END.sub("\n", result.content)
        read: str | Refusal = output.strip()
        if self.options.strip_wrappers:
            read = version(output, source, instruction, may_shrink=self.options.max_edit_ratio is not None)
        if isinstance(read, Refusal):
            return Edited(text, text, read, result)
        if not read:
            return Edited(text, text, Refusal("empty", "the model wrote nothing"), result)
        if refusal := self._too_much(source, read):
            return Edited(text, text, refusal, result)
        start = text.index(body)
        end = start + len(body)
        return Edited(text, text[:start] + with_line_ends(read, body, text[end:]) + text[end:], result=result)

    def _too_much(self, source: str, output: str) -> Refusal | None:
        if self.options.max_edit_ratio is None:
            return None
        before, after = source.split("\n"), output.split("\n")
        same = sum(end - start for tag, start, end, _, _ in aligned(before, after) if tag == "equal")
        changed = max(len(before), len(after)) - same
        if changed <= self.options.max_edit_ratio * len(before):
            return None
        limit = f"the limit of {100 * self.options.max_edit_ratio:g} % (max_edit_ratio)"
        return Refusal("ratio", f"{changed} of {len(before)} lines would change, above {limit}")


def prompt_of(instruction: str, text: str) -> str:
    """The prompt for an instruction and a text."""
    return fill(instruction, text=text) if "{text}" in instruction else f"{instruction}\n\n{text}"


def decoded_text(data: bytes) -> str:
    """Decode a file's bytes; line ends and a byte order mark are kept. Raises FormatError if they are not UTF-8."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise FormatError("the file is UTF-16: convert it to UTF-8")
    if data.startswith((b"PK\x03\x04", b"%PDF", b"\xd0\xcf\x11\xe0")):
        raise FormatError("a Word file, a PDF or an archive, and not text: `gec` corrects .docx and .odt files")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 (byte {error.start}): convert it first (iconv -f CP1252 -t UTF-8)") from error
    if "\0" in text:
        raise FormatError("holds NUL characters, so it is not text")
    return text
