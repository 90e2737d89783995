"""Applies an edit to a text: exactly where the edit says where it belongs, else by a model, whose output is checked."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

from copyspec.client.asking import Asking
from copyspec.common.checks import check_type
from copyspec.common.lockless import cached_property
from copyspec.engine.asking.inputs import Input
from copyspec.engine.results import Chunk, NoAnswer, Result

from ..documents import Refusal
from ..editing.instructed import FOLLOWS, Edited
from ..editing.model_corrector import check_system, cut, output_limit
from ..edits.lines import LINE_END, aligned, with_line_ends
from ..guards.answers import unfenced, version
from ..guards.judging import BUNDLED
from ..guards.omissions import is_omission, mark_of
from ..guards.syntax import broken
from ..guards.wrappers import FENCE
from ..models import model_of
from ..options import ApplyOptions
from .matching import Lines, applied, splice, spliced
from .presets import FOLLOW, MERGE, PRESETS
from .reading import EditError, FileEdit, read_edits
from .trust import placeholder, repetition, why_not

if TYPE_CHECKING:
    from ..language_model import LanguageModel
    from ..models import ModelLike

_MARK = "\ufeff"  # a byte order mark
MAX_CHARS = 1 << 24
"""Characters of the largest file. An edit of a larger one is a mistake: a log, a dump, a lock file."""
_COVERED = 0.5
"""Share of the file's lines that a snippet without marks must have to be taken for the whole new file."""
_LOST = 5  # most lines in a row that it may have less


@dataclass(frozen=True, slots=True)
class Applied(Edited):
    """A text and its new version."""

    path: str | None = None  # as the edit names the file
    form: str = "lazy"  # of the edit (`reading.FORMS`), or "instruction"
    is_exact: bool = False  # no model was asked
    creates: bool = False
    deletes: bool = False

    @property
    def how(self) -> str:
        """What happened, for people."""
        if self.refusal is not None:
            return "refused"
        if not self.changed and not self.creates and not self.deletes:
            return "unchanged"
        return "applied without a model" if self.is_exact else "merged by the model"

    def diff(self, path: str = "text") -> Iterator[str]:
        """Yield the lines of a unified diff, with line ends: of /dev/null and a file that is made or deleted."""
        lines = super(Applied, self).diff(path)
        for line, is_missing, sign in zip(islice(lines, 2), (self.creates, self.deletes), ("---", "+++"), strict=False):
            yield f"{sign} /dev/null\n" if is_missing else line
        yield from lines


class ApplyPipeline:
    """Applies edits to texts: blocks, patches, diffs, snippets with marks, whole files and instructions.

    Blocks and diffs whose lines stand in the file once, whole files, and snippets that can mean only one thing are
    applied without a model, so that nothing else changes. For the others `model` writes the new file, copying from the
    old one and from the edit. Its output is used if it ends, has all lines of the file that the edit does not remove
    and all of the edit's, none twice, no other ones and no marks, and can be parsed if the file could.
    """

    def __init__(
        self,
        model: ModelLike | LanguageModel | Callable[[], ModelLike | LanguageModel] = None,
        options: ApplyOptions | None = None,
    ) -> None:
        """`model`: as for other pipelines, or a function that loads it, called when it is needed first; None: no model,
        so that only exact edits are applied."""
        check_type(options is None or isinstance(options, ApplyOptions), "options", options, "an ApplyOptions")
        self._source = model
        self.options = options or ApplyOptions()

    @cached_property
    def model(self) -> LanguageModel | None:
        """The model, loaded now; None if none was given."""
        source = self._source
        if source is None:
            return None
        made = model_of(source() if inspect.isroutine(source) else source)  # type: ignore[arg-type]
        if made.own == BUNDLED:
            raise ValueError(
                f"the bundled model cannot merge edits: name a model that follows instructions, for example {FOLLOWS!r}"
            )
        check_system(self.options.system, made)
        return made

    def __call__(
        self, text: str, edit: str | FileEdit, instruction: str = "", *, path: str | None = None, exact: bool = True
    ) -> Applied:
        """Apply an edit to a text. `instruction`: what the edit does, or, with an empty edit, what to do; `path`: the
        file's name, by which an edit for another file is refused and the language is known; `exact=False`: the model
        merges even what could be applied without it.

        Raises EditError for an edit that cannot be read or is for several files; TypeError for anything but strings.
        """
        steps = self._steps(text, edit, instruction, path, (exact, False))
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    def stream(
        self, text: str, edit: str | FileEdit, instruction: str = "", *, path: str | None = None
    ) -> Generator[Chunk, None, Applied]:
        """The same; yields the pieces in which a model writes the file, which is checked at the end only, and returns
        the outcome."""
        return self._steps(text, edit, instruction, path, (True, True))

    def _steps(
        self, text: str, edit: str | FileEdit, instruction: str, path: str | None, ways: tuple[bool, bool]
    ) -> Generator[Chunk, None, Applied]:
        """`ways`: whether the edit may be applied exactly, and whether the model's answer is streamed."""
        exact, streams = ways
        check_type(isinstance(text, str), "text", text, "a str")
        check_type(isinstance(edit, (str, FileEdit)), "edit", edit, "a str")
        check_type(isinstance(instruction, str), "instruction", instruction, "a str")
        if isinstance(edit, str):
            edit = self._read(edit, instruction)
        blank = Applied(text, text, path=edit.path, form=edit.form, creates=edit.creates, deletes=edit.deletes)
        if refusal := _unfit(text, edit, path):
            return replace(blank, refusal=refusal)
        exactly: str | Refusal = Refusal("model", "the edit is an instruction")
        if exact and edit.form != "instruction":
            body = text.removeprefix(_MARK)
            exactly = self._exact(body, edit)
            exactly = text[: len(text) - len(body)] + exactly if isinstance(exactly, str) else exactly
        made = replace(blank, is_exact=True)
        if isinstance(exactly, str):
            made = replace(made, text=exactly)
        elif exactly.reason in ("absent", "model") and self.model is not None:
            made = yield from self._merged(blank, edit, instruction, streams)
        else:
            quote = " show the lines as they stand there, or" if exactly.reason == "absent" else ""
            need = f":{quote} give a model that can merge it" if exactly.reason in ("absent", "model") else ""
            made = replace(made, refusal=replace(exactly, detail=exactly.detail + need))
        if made.refusal is None and self.options.syntax and (refusal := broken(text, made.text, path or edit.path)):
            made = replace(made, text=text, refusal=refusal)
        return made

    def _read(self, edit: str, instruction: str) -> FileEdit:
        if instruction.strip() and not edit.strip():
            return FileEdit(None, "instruction")
        edits = read_edits(edit, self.options.form)
        if len(edits) != 1:
            named = ", ".join(repr(edit.path) for edit in edits)
            raise EditError(f"the edit is for {len(edits)} files ({named}), and this is one text")
        return edits[0]

    def _exact(self, text: str, edit: FileEdit) -> str | Refusal:
        """The new version without a model; a refusal "model" or "absent" if only a model could make it."""
        if edit.hunks or edit.deletes:
            made = applied(edit.hunks, text) if edit.hunks else ""
            if edit.deletes and not isinstance(made, Refusal) and made.strip():
                return Refusal("rest", "the edit deletes the file, and does not show all of its lines")
            return made
        lines = Lines.of(text)
        snippet = _snippet(edit, lines.texts)
        if edit.form != "whole" and is_lazy(snippet, lines.texts):
            whole = merged(snippet, lines)
            if whole is None:
                return Refusal("model", "the snippet leaves open where its lines belong")
            return whole.joined("\n", not lines.ends or bool(lines.ends[-1]))
        if edit.form != "whole" and (why := _is_part(snippet, lines.texts)):
            return Refusal("model", why)
        if refusal := placeholder(snippet, lines.texts):
            return refusal
        return _in_place(text, "\n".join(snippet), "\r\n")

    def _merged(
        self, blank: Applied, edit: FileEdit, instruction: str, streams: bool
    ) -> Generator[Chunk, None, Applied]:
        """The outcome of the model's merge."""
        text = blank.source
        shown = LINE_END.sub("\n", text.removeprefix(_MARK).strip())
        result = yield from self._asked(shown, edit, instruction, streams)
        if isinstance(result, NoAnswer):
            return replace(blank, refusal=Refusal(result.reason, result.detail))
        blank = replace(blank, result=result)
        if result.finish_reason != "stop":
            return replace(blank, refusal=cut(result))
        output, before = LINE_END.sub("\n", result.content), shown.split("\n")
        told, why = instruction, None
        if edit.form != "instruction":
            output, told = PRESETS.get(self.options.preset or "", MERGE).answered(output), ""
            why = _untrusted(output.strip().split("\n"), before, edit)
            if why is None and output.strip():  # nothing stands around the file
                return replace(blank, text=_in_place(text, output))
        read = version(output, shown, told, may_shrink=edit.form != "instruction")
        if not read:
            read = Refusal("empty", "the model wrote nothing")
        if isinstance(read, Refusal):
            return replace(blank, refusal=why if why is not None and why.reason == read.reason else read)
        refusal = _untrusted(read.split("\n"), before, edit, told)
        return replace(blank, refusal=refusal) if refusal else replace(blank, text=_in_place(text, read))

    def _asked(
        self, shown: str, edit: FileEdit, instruction: str, streams: bool
    ) -> Generator[Chunk, None, Result | NoAnswer]:
        model, options = self.model, self.options
        assert model is not None
        preset = FOLLOW if edit.form == "instruction" else PRESETS.get(options.preset or "", MERGE)
        system = options.system or (preset.system if model.has_template else None)
        prompt = preset.filled(shown, edit.text, instruction.strip())
        references = [edit.text] if edit.text else []
        limit = options.max_new_tokens or output_limit(model.tokens(shown) + model.tokens(edit.text), model.is_chat)
        if not streams:
            asked = Input(prompt, references, edit_source=shown, max_new_tokens=limit)
            how = Asking(system=system, drafts=options.drafts, draft_models=options.draft_models)
            ((_, answer),) = model.answers([asked], how)
            return answer
        result: Result | None = None
        for chunk in model.stream(prompt, references, limit, edit_source=shown, system=system):
            result = chunk.result or result
            yield chunk
        return result or NoAnswer("unfinished", "the answer ended early")


def _unfit(text: str, edit: FileEdit, path: str | None) -> Refusal | None:
    """Why a text cannot be edited at all."""
    if len(text) > MAX_CHARS:
        return Refusal("size", f"it has {len(text):,} characters, more than {MAX_CHARS:,}: edit it by other means")
    if re.search("[\ud800-\udfff]", text):
        return Refusal("encoding", "it holds bytes that are not text: convert it to UTF-8")
    if path is not None and edit.path is not None and not names_file(edit.path, path):
        return Refusal("path", f"the edit is for {edit.path!r}")
    return None


def names_file(name: str, path: str) -> bool:
    """Whether a name in an edit may mean a file: all its folders are the last ones of the path, or the other way
    round."""
    pairs = zip(reversed(PurePath(name).parts), reversed(PurePath(path).parts), strict=False)
    return all(a == b for a, b in pairs if a != "..")


def _snippet(edit: FileEdit, before: Sequence[str]) -> Sequence[str]:
    """The lines of a snippet, without a fence and talk around them. Fences that may be the file's own stay."""
    lines = LINE_END.split(edit.text)
    inner = lines if edit.form == "whole" else unfenced(lines, before)
    return lines if isinstance(inner, Refusal) else inner


def _is_part(snippet: Sequence[str], before: Sequence[str]) -> str | None:
    """Why a snippet without marks may be a part of the file: it has few of its lines, or ends before the file does, or
    has blocks of code that are not the file's."""
    mine, written = ([line.strip() for line in side if line.strip()] for side in (snippet, before))
    if any(FENCE.fullmatch(line) and line not in written for line in mine):
        return "the edit has blocks of code, and no mark for the other lines"
    known = len(written) - (Counter(written) - Counter(mine)).total()
    losses = [end - start - last + first for _, start, end, first, last in aligned(written, mine)]  # 0 if equal
    is_whole = max(losses, default=0) <= _LOST and max([*losses[:1], *losses[-1:]], default=0) <= 0
    if is_whole and known >= _COVERED * len(written):
        return None
    if not known:
        return f"the edit has none of the file's {len(written)} lines and no mark for them: is it for another file?"
    return (
        f"the edit has {known} of the file's {len(written)} lines and no mark for the others; it is the whole new file "
        "with form='whole'"
    )


def _untrusted(lines: Sequence[str], before: Sequence[str], edit: FileEdit, told: str = "") -> Refusal | None:
    """Why a model's version of a file is not used."""
    if edit.form == "instruction":
        is_asked = any(word in told.casefold() for word in ("duplicat", "repeat", "twice", "copy", "copies"))
        return placeholder(lines, before) or (None if is_asked else repetition(lines, [before], least=3))
    if edit.hunks:
        shown: list[Sequence[str]] = [[], *(hunk.new for hunk in edit.hunks), []]
        return why_not(lines, before, shown, [line for hunk in edit.hunks for line in hunk.old])
    return why_not(lines, before, chunks(_snippet(edit, before), before))


def _in_place(text: str, made: str, blanks: str | None = None) -> str:
    """A whole new version with the line ends, the byte order mark and the white space around it of the old one.
    `blanks`: the characters around it that a new version does not show; by default all white space."""
    body, first, last = text.removeprefix(_MARK).strip(blanks), made.lstrip("\r\n"), made.rstrip("\r\n")
    made = made.strip(blanks)
    if not body:
        new = with_line_ends(f"{made}\n", "", text) if made else ""
        return text[: len(text) - len(text.removeprefix(_MARK))] + new
    start = text.index(body)
    end, head, tail = start + len(body), text[:start], text[start + len(body) :]
    old = LINE_END.split(body)
    # Blanks before the first line and behind the last one are these lines'.
    if blanks is None and made.partition("\n")[0] != old[0]:
        head = head.rstrip(" \t") + first[: len(first) - len(first.lstrip())].rpartition("\n")[2]
    if blanks is None and made.rpartition("\n")[2] != old[-1]:
        tail = last[len(last.rstrip()) :] + tail.lstrip(" \t")
    around = f"{text[end:]}{text[:start]}"  # whose ends are the file's own where the body is a line without one
    return head + with_line_ends(made, body, around) + tail


def is_lazy(snippet: Sequence[str], before: Sequence[str]) -> bool:
    """Whether a snippet has a mark that is no line of the file."""
    known = {line.strip() for line in before}
    return any(line.strip() not in known and is_omission(line) for line in snippet)


def chunks(snippet: Sequence[str], before: Sequence[str]) -> list[list[str]]:
    """The stretches of a snippet between its marks; an empty one at an end where a mark stands."""
    known = {line.strip() for line in before}
    made: list[list[str]] = [[]]
    for line in snippet:
        if line.strip() not in known and is_omission(line):
            made.append([])
        else:
            made[-1].append(line)
    return made


def merged(snippet: Sequence[str], lines: Lines) -> Lines | None:
    """The file with a snippet in it, if that can mean only one thing; None if it is a model's.

    A snippet is chunks of lines, with a mark such as `# ... existing code ...` wherever lines of the file are left out.
    It is merged here if every chunk begins and ends with a line that the file has once, and shows between them at least
    as many lines as the file has there. Then each mark can stand only for what is between two such lines, and nothing
    goes that the snippet does not show replaced. Where a chunk begins or ends with a new line, nobody can tell an
    inserted line from a changed one, nor its place; a chunk that is shorter than what it replaces may have left lines
    out without a mark. Those are a model's."""
    if any(
        mark_of(line) in ("sure", "remark") and not is_omission(line) for line in snippet if line not in lines.texts
    ):
        return None
    parts = [_without_blanks(chunk) for chunk in chunks(snippet, lines.texts)]
    if len(parts) == 1:
        return None
    places = [_place(chunk, lines.texts) for chunk in parts if chunk]
    spans = [place for place in places if place is not None]
    written = [at for at, line in enumerate(lines.texts) if line.strip()]
    if len(spans) < len(places) or not spans or any(a[1] > b[0] for a, b in pairwise(spans)):
        return None
    if (parts[0] and spans[0][0] > written[0]) or (parts[-1] and spans[-1][1] <= written[-1]):
        return None  # no mark stands for what is outside
    chunk_of = zip(spans, filter(None, parts), strict=True)
    splices = [splice(lines.texts[start:end], chunk, start, lines) for (start, end), chunk in chunk_of]
    made = spliced(lines, [change for change in splices if change is not None])
    return None if isinstance(made, Refusal) else made


def _place(chunk: Sequence[str], texts: Sequence[str]) -> tuple[int, int] | None:
    """The lines of the file that a chunk takes the place of, from its first to its last; None if that is unclear."""
    start, last = _anchor(chunk[0], texts), _anchor(chunk[-1], texts)
    if start is None or last is None or start > last or _count(texts[start : last + 1]) > _count(chunk):
        return None
    return start, last + 1


def _anchor(line: str, texts: Sequence[str]) -> int | None:
    """Where a line stands in the file, if it holds a word and stands there once. With its neighbours more lines would
    have one place, but those may be new."""
    places = [at for at, text in enumerate(texts) if text.rstrip() == line.rstrip()]
    return places[0] if len(places) == 1 and any(map(str.isalnum, line)) else None


def _count(lines: Sequence[str]) -> int:
    return sum(bool(line.strip()) for line in lines)


def _without_blanks(lines: Sequence[str]) -> list[str]:
    written = [at for at, line in enumerate(lines) if line.strip()]
    return list(lines[written[0] : written[-1] + 1]) if written else []
