"""Asks about changes one by one on a terminal, as `git add -p` does.

A part is a piece of a file, and its segments are the stretches that may be corrected (`pipelines.documents`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from copyspec.cli.printing import echo, is_terminal

if TYPE_CHECKING:
    from copyspec.pipelines import Edit, Part

HELP = """y  make this change
n  leave it out
e  write something else in its place
a  make it, and all that follow in this file
d  leave it out, and all that follow in this file
q  leave it out, and everything that follows
?  this list"""

_CONTEXT = 160  # characters shown on each side, within the line
_CLOSING = re.compile(r"[.,;:!?…)\]}]+[\"'”’»]*(?:\s|\Z)")  # punctuation after a word; not the dot of ".gitignore"


def colors(stream: object) -> bool:
    """Whether a stream is a terminal that may be coloured (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class ChangePrompt:
    """A `Selection` that asks about every change on stdout and reads the answers from stdin; end of file means `q`."""

    identity = "asks"

    def __init__(self) -> None:
        self._path = ""
        self._for_file: bool | None = None  # the answer for the rest of the file
        self._has_quit = False

    def part(self, path: str, part: Part) -> Part:
        """The part; without segments if the user has declined all its changes, so that no model looks for any."""
        is_left_out = self._has_quit or (path == self._path and self._for_file is False)
        return replace(part, segments=()) if is_left_out else part

    def edits(self, path: str, part: Part, edits: Sequence[Edit]) -> Sequence[Edit]:
        if path != self._path:
            self._path, self._for_file = path, None
        taken = []
        for edit in edits:
            answer = self._ask(part, edit)
            if answer is not None:
                taken.append(answer)
        return taken

    def _ask(self, part: Part, edit: Edit) -> Edit | None:
        """The edit to make; None for none."""
        if self._has_quit:
            return None
        if self._for_file is not None:
            return edit if self._for_file else None
        from copyspec.pipelines import inline_diff

        text, moved = _surrounded(part.text, edit)
        echo(f"\n{self._path}")
        echo(inline_diff(text, [moved], color=colors(sys.stdout)).rstrip("\n"), is_safe=True)
        while True:
            answer = self._answer("Make this change [y,n,e,a,d,q,?]? ")
            if answer in ("a", "d"):
                self._for_file = answer == "a"
            if answer == "q":
                self._has_quit = True
            if answer in ("y", "a"):
                return edit
            if answer in ("n", "d", "q"):
                return None
            if answer != "e":
                echo(HELP)
            elif (typed := self._typed(part, edit)) is not None:
                return typed
            elif self._has_quit:
                return None

    def _typed(self, part: Part, edit: Edit) -> Edit | None:
        """The edit with what the user writes in its place; None if the file cannot hold that."""
        from copyspec.pipelines import Segment, unwritable

        around = (segment for segment in part.segments if segment.start <= edit.start and edit.end <= segment.end)
        segment = next(around, Segment(edit.start, edit.end))
        written = _spaced(self._answer("Instead: "), part.text[edit.start : edit.end], edit.replacement)
        typed = replace(edit, replacement=written)
        if self._has_quit:
            return None
        if (refusal := unwritable(part, segment, [typed], is_typed=True)) is None:
            return typed
        echo(f"This cannot be written: {refusal.detail}. Write it in another way (e), or leave it out (n).")
        return None

    def _answer(self, question: str) -> str:
        echo(question, end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            echo()
            self._has_quit = True
            return "q"
        return line.rstrip("\r\n")


def _surrounded(text: str, edit: Edit) -> tuple[str, Edit]:
    """The text shown for an edit, its line or, of a long one, the words around it; and the edit with offsets there."""
    begin, end = text.rfind("\n", 0, edit.start) + 1, text.find("\n", edit.end)
    before, after = text[begin : edit.start], text[edit.end : len(text) if end < 0 else end]
    if len(before) > _CONTEXT:
        before = before[-_CONTEXT:]
        before = f"… {before.partition(' ')[2] or before}"
    if len(after) > _CONTEXT:
        after = after[:_CONTEXT]
        after = f"{after.rpartition(' ')[0] or after} …"
    moved = replace(edit, start=len(before), end=len(before) + edit.end - edit.start)
    return before + text[edit.start : edit.end] + after, moved


def _spaced(typed: str, was: str, becomes: str) -> str:
    """What was typed, with the white space of what it replaces where it has none itself: a deleted word goes with the
    space beside it, and an added one comes with it. Closing punctuation gets no space before it."""
    replaced = becomes if becomes.strip() else was
    words = replaced.strip()
    if not (words and typed.strip()):
        return typed
    before, _, after = replaced.partition(words)
    is_attached = typed[0].isspace() or _CLOSING.match(typed)
    return before * (not is_attached) + typed + after * (not typed[-1].isspace())
