"""Splits an output into thought, answer and tool calls, whole or as a stream."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from copyspec.text.replies.calls import (
    InvalidCall,
    JsonCalls,
    PythonCalls,
    ToolCall,
    bare_calls,
    could_be_bare,
)
from copyspec.text.replies.learning import ReplyFormat
from copyspec.text.replies.marks import BEFORE, MarkedDetokenizer, mark_all, marked, shown, unmarked
from copyspec.text.replies.tools import Tool, tool_names
from copyspec.text.replies.values import CallError, arguments_of, json_value
from copyspec.text.stops import held_back

Kind = Literal["reasoning", "content"]


class ReplyPiece(NamedTuple):
    """A piece of an output."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """How one output is to be read: its format, whether the prompt has begun a thought, and the tools of the call."""

    format: ReplyFormat
    is_thinking: bool = False
    may_think: bool = True
    """Whether the answer may begin with a thought of its own; False: the prompt holds one that is over."""
    tools: Sequence[Tool] = ()
    beginning: str = ""
    """Marked text at the end of the prompt that belongs to the output: of a call that it has to be."""

    def reader(self) -> ReplyReader:
        """A reader for one output."""
        if self.format.is_harmony:
            return HarmonyReader(self)
        return TaggedReader(self)

    def count_reasoning(self, tokens: Sequence[int], detokenizer: MarkedDetokenizer) -> int:
        """How many of an output's tokens belong to its thought."""
        reader, count = self.reader(), 0
        for token in tokens:
            was_thinking = reader.is_thinking
            for _ in reader.push(detokenizer.push([token])):
                pass
            count += was_thinking or reader.is_thinking
        return count

    def read(self, text: str) -> Parts:
        """The parts of a whole output, given as marked text."""
        reader = self.reader()
        pieces = [*reader.push(text), *reader.finish()]
        reasoning, content = ("".join(piece.text for piece in pieces if piece.kind == kind) for kind in KINDS)
        return Parts(reasoning, content, tuple(reader.calls), tuple(reader.invalid))


KINDS: tuple[Kind, Kind] = ("reasoning", "content")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an output."""

    reasoning: str = ""
    """The thought, without its tags and the white space around it."""
    content: str = ""
    """The answer."""
    calls: tuple[ToolCall, ...] = ()
    invalid: tuple[InvalidCall, ...] = ()
    num_reasoning_tokens: int = 0


class ReplyReader(ABC):
    """Reads one output in pieces. Text that may turn out to be a tag, or a call, is held back; calls come with the
    end."""

    def __init__(self, reply: Reply) -> None:
        self.calls: list[ToolCall] = []
        self.invalid: list[InvalidCall] = []
        self._reply = reply
        self._held = reply.beginning

    @property
    @abstractmethod
    def is_thinking(self) -> bool:
        """Whether the text read so far ends inside a thought."""

    def push(self, text: str) -> Iterator[ReplyPiece]:
        """The pieces that `text`, the next of the marked text, completes."""
        self._held += text
        yield from _plain(self._pieces())

    def finish(self) -> Iterator[ReplyPiece]:
        """What was held back, at the end of the output."""
        yield from _plain(self._last())

    @abstractmethod
    def _pieces(self) -> Iterator[ReplyPiece]:
        """The pieces of what is held that are complete."""

    @abstractmethod
    def _last(self) -> Iterator[ReplyPiece]:
        """All that is held."""


class TaggedReader(ReplyReader):
    """Reads outputs with thoughts between tags and calls."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        syntax = reply.format.calls
        self._thoughts = reply.format.thoughts
        self._calls = syntax if reply.tools else None
        begins_by_name = not isinstance(syntax, JsonCalls) and not (syntax and syntax.frame.opening)
        self._names = tool_names(reply.tools) if begins_by_name or isinstance(syntax, PythonCalls) else []
        self._starts = self._calls.frame.starts if self._calls is not None else ()
        self._is_thinking = reply.is_thinking
        self._has_reasoned = self._has_content = self._follows_thought = False
        self._is_calling = False
        self._space = ""  # before the first call
        self._is_bare = bool(reply.tools)
        """Whether the answer may still turn out to be a call without tags."""

    @property
    def is_thinking(self) -> bool:
        return self._is_thinking

    def _pieces(self) -> Iterator[ReplyPiece]:
        while self._held and not self._is_calling:
            piece = self._thought() if self._is_thinking else self._answer()
            if piece is None:
                return
            yield piece

    def _thought(self) -> ReplyPiece | None:
        """The next piece of the thought, or its end; None if more text is needed."""
        assert self._thoughts is not None
        closing = self._thoughts.closing
        at = self._held.find(closing)
        if at >= 0:
            text, self._held = self._held[:at].rstrip(), self._held[at + len(closing) :]
            self._is_thinking, self._follows_thought = False, True
            return ReplyPiece("reasoning", text if self._has_reasoned else text.lstrip())
        return self._cut("reasoning", (closing,), strips=True)

    def _answer(self) -> ReplyPiece | None:
        """The next piece of the answer, or the beginning of a thought or call; None if more text is needed."""
        if self._follows_thought and not self._has_content:
            self._held = self._held.lstrip()
            if not self._held:
                return None
        thought = self._opens_thought()
        if thought is not None:
            return thought if thought else None
        if self._is_bare and not self._has_content and could_be_bare(self._held, self._names):
            return None
        self._is_bare = False
        start = min((at for tag in self._starts if (at := self._held.find(tag)) >= 0), default=-1)
        if start >= 0:
            return self._calling(start)
        piece = self._cut("content", self._starts, strips=bool(self._reply.tools))
        self._has_content = self._has_content or (piece is not None and bool(piece.text.strip()))
        return piece

    def _first_start(self) -> int:
        """Where the first call may begin; beyond the text if nowhere."""
        return min((at for tag in self._starts if (at := self._held.find(tag)) >= 0), default=len(self._held))

    def _calling(self, start: int) -> ReplyPiece:
        """The end of the text before the first call, which begins at `start`."""
        text, self._held = self._held[:start], self._held[start:]
        self._is_calling = True
        shown = text.rstrip()
        self._space = text[len(shown) :] if shown or self._has_content else ""
        return ReplyPiece("content", shown)

    def _opens_thought(self) -> ReplyPiece | Literal[False] | None:
        """An empty piece if a thought begins here, False if that is not known yet, None if none does. Text between the
        tags of a thought is one only at the beginning: an answer may be about them."""
        if self._thoughts is None:
            return None
        opening = self._thoughts.opening
        if opening.startswith(BEFORE) and 0 <= (at := self._held.find(opening)) < self._first_start():
            text, self._held = self._held[:at].rstrip(), self._held[at + len(opening) :].lstrip()
            self._is_thinking = True
            return ReplyPiece("content", text)
        begun = self._held.lstrip()
        if self._has_content or not (begun.startswith(opening) or opening.startswith(begun)):
            return None
        if len(begun) < len(opening):
            return False
        self._held, self._is_thinking = begun[len(opening) :].lstrip(), True
        return ReplyPiece("reasoning", "")

    def _cut(self, kind: Kind, tags: Sequence[str], *, strips: bool) -> ReplyPiece | None:
        """All but what may begin a tag, and with `strips` but the white space before it."""
        if kind == "reasoning":
            self._held = self._held if self._has_reasoned else self._held.lstrip()
        keep = held_back(self._held, tags)
        text = self._held[: len(self._held) - keep]
        text = text.rstrip() if strips else text
        self._held = self._held[len(text) :]
        if kind == "reasoning":
            self._has_reasoned = self._has_reasoned or bool(text)
        return ReplyPiece(kind, text) if text else None

    def _last(self) -> Iterator[ReplyPiece]:
        yield from self._pieces()
        text, self._held = self._held, ""
        if self._is_thinking:
            yield ReplyPiece("reasoning", text.rstrip())
        elif self._is_calling and self._calls is not None:
            between, calls, invalid = self._calls.read_all(text, self._reply.tools)
            self.calls += calls
            self.invalid += invalid
            if between := between.rstrip():  # white space between the texts belongs to them
                yield ReplyPiece("content", (self._space or " " * self._has_content) + between)
        elif self._is_bare and (calls := bare_calls(self._unclosed(text), self._reply.tools)):
            self.calls += calls
        else:
            start = min((at for tag in self._starts if (at := text.find(tag)) >= 0), default=-1)
            if start < 0:
                yield ReplyPiece("content", text)
            else:
                self._held = text
                yield self._calling(start)
                yield from self._last()

    def _unclosed(self, text: str) -> str:
        """A text without the tag that closes a call, which some models write without the one that opens it."""
        closing = self._calls.frame.closing if self._calls is not None else ""
        return unmarked(text.rstrip().removesuffix(closing))


_TAGS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
_TAG = re.compile("|".join(map(re.escape, _TAGS)))
_START, _MESSAGE = marked("<|start|>"), marked("<|message|>")
_ENDS = tuple(map(marked, ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")))
_FUNCTIONS = "functions."


class HarmonyReader(ReplyReader):
    """Reads outputs in OpenAI's harmony format: messages, each with a channel, and with a recipient if it is a call.
    The channel `analysis` holds thoughts, `commentary` calls and remarks, `final` the answer."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._kind: Kind | None = None  # of the message; None: in its header, or in a call
        self._tool: str | None = None  # of the call whose arguments are read
        self._unmarked = ""  # text that may end in the beginning of a tag

    def push(self, text: str) -> Iterator[ReplyPiece]:
        if self._reply.format.tags_are_text:
            text = self._unmarked + text
            keep = held_back(text, _TAGS)
            text, self._unmarked = text[: len(text) - keep], text[len(text) - keep :]
            text = mark_all(text, _TAG)
        return super().push(text)

    def finish(self) -> Iterator[ReplyPiece]:
        self._held += mark_all(self._unmarked, _TAG)
        return super().finish()

    @property
    def is_thinking(self) -> bool:
        return self._kind == "reasoning"

    def _pieces(self) -> Iterator[ReplyPiece]:
        while self._held:
            if self._kind is None and self._tool is None:
                if not self._header():
                    return
                continue
            at = min((place for end in _ENDS if (place := self._held.find(end)) >= 0), default=-1)
            if at < 0:
                if self._kind is not None:
                    text, self._held = self._held, ""
                    yield ReplyPiece(self._kind, text)
                return
            yield from self._message(self._held[:at])
            self._held = self._held[at:]

    def _header(self) -> bool:
        """Read the header of a message; whether it is complete."""
        at = self._held.find(_MESSAGE)
        if at < 0:
            if self._held.startswith((BEFORE, " to=")) or " to=".startswith(self._held):
                return False
            self._kind = "content"  # not in this format
            return True
        header, self._held = self._held[:at], self._held[at + len(_MESSAGE) :]
        header = shown(header.rpartition(_START)[2] if _START in header else header)
        to = re.search(r"to=([\w.\-]+)", header)
        if to is not None:
            self._tool = to[1].removeprefix(_FUNCTIONS)
        else:
            self._kind = "reasoning" if "analysis" in header else "content"
        return True

    def _message(self, body: str) -> Iterator[ReplyPiece]:
        """The end of a message."""
        if self._kind is not None:
            yield ReplyPiece(self._kind, body)
        elif self._tool is not None:
            try:
                value, end = json_value(body, 0) if body.strip() else ({}, len(body))
                if body[end:].strip():
                    raise CallError("text after the arguments")
                self.calls.append(ToolCall(self._tool, arguments_of(value)))
            except CallError as error:
                self.invalid.append(InvalidCall(shown(body).strip(), str(error)))
        self._kind = self._tool = None

    def _last(self) -> Iterator[ReplyPiece]:
        yield from self._pieces()
        if self._kind is not None or self._tool is not None:
            yield from self._message(self._held)
        self._held = ""


def _plain(pieces: Iterator[ReplyPiece]) -> Iterator[ReplyPiece]:
    """The pieces that have text, without control tokens."""
    for piece in pieces:
        if text := unmarked(piece.text):
            yield piece._replace(text=text)
