"""Parts in, corrected parts out: segments through a corrector, as many at once as it takes, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from copyspec import Result

from ..documents import Edit, Part, Refusal, Segment, shown
from ..edits.diff import merge
from ..edits.words import Tolerance
from ..guards.facts import Facts
from ..guards.guards import Checked, Context, GuardOptions, check, in_other_language
from .correctors import Corrector, Outcome, calibration_of
from .segmentation import Splitter, fit
from .sentences import sentences
from .writable import writable

LOOKAHEAD_PARTS = 4096
LOOKAHEAD_CHARS = 4 << 20
"""What is read ahead of the first part that is not finished yet: enough that one slow text holds up no batch."""

MARKER_CHARS = LOOKAHEAD_CHARS // 64
"""What a work without a part counts for: it stands for the end of a file, whose journal is open until then."""

MEMO_TEXTS = 1024
MEMO_CHARS = 1000
"""Texts that come again (headings, cells, lines of a log) are corrected once, as far back as this reaches."""

MOST_GROWTH, MOST_ROOM = 4, 8000
"""Characters of an output for each of the text, and so many more for what chat models say and think around it. No
correction grows as much, and aligning it would take its time."""

Owner = TypeVar("Owner")


class Outcomes(Protocol):
    """Outcomes that are known, by text: a journal, or a memory."""

    def __len__(self) -> int: ...
    def get(self, text: str) -> Outcome | None: ...
    def add(self, text: str, outcome: Outcome) -> None: ...


@dataclass(frozen=True, slots=True)
class Work(Generic[Owner]):
    """A part to correct, or None: something that passes in its place, in order."""

    owner: Owner  # given back with the part
    part: Part | None = None
    journal: Outcomes | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What became of one segment."""

    segment: Segment
    checked: Checked
    result: Result | None = None  # None where the model was not asked
    was_known: bool = False  # from a journal, or from an equal text before


@dataclass(frozen=True, slots=True)
class Done(Generic[Owner]):
    """A part, finished."""

    owner: Owner
    part: Part | None
    pieces: Sequence[Piece] = ()
    refused: Sequence[Refusal] = ()  # what the format left out, and what had no place to be split
    edits: Sequence[Edit] = ()  # of the part's text, ascending

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Why stretches of the part stayed as they were."""
        return (*self.refused, *(piece.checked.refusal for piece in self.pieces if piece.checked.refusal is not None))

    @property
    def segment_refusals(self) -> tuple[Refusal, ...]:
        """The same, but for segments whose edits were left out one by one: `Checked.dropped` says why."""
        left_out = (piece.checked.refusal for piece in self.pieces if not piece.checked.dropped)
        return (*self.refused, *(refusal for refusal in left_out if refusal is not None))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How texts go through a corrector."""

    guards: GuardOptions = field(default_factory=GuardOptions)
    split: Splitter = sentences
    tolerance: Tolerance = field(default_factory=Tolerance)
    pack: int = 32
    """Texts that are sorted by length before they go to the model, so that those that start together are alike. 0:
    as they come."""


class Runner:
    """Corrects parts with one corrector."""

    def __init__(self, corrector: Corrector, options: RunOptions | None = None) -> None:
        self.corrector = corrector
        self.options = options or RunOptions()

    def run(self, works: Iterable[Work[Owner]]) -> Iterator[Done[Owner]]:
        """Every work, in order. It reads ahead of what it gives back, `LOOKAHEAD_PARTS` at most."""
        return _Run(self.corrector, self.options, works).run()


@dataclass(slots=True, eq=False)
class _Slot(Generic[Owner]):
    """A part that waits for its segments."""

    work: Work[Owner]
    facts: Facts  # of the document, which the part is number `part` of
    part: int = 0
    waiting: int = 0  # segments that are not finished
    pieces: list[Piece] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    def done(self) -> Done[Owner]:
        self.pieces.sort(key=lambda piece: piece.segment.start)
        edits = merge(_joined(edit for piece in self.pieces for edit in piece.checked.edits))
        return Done(self.work.owner, self.work.part, self.pieces, self.refused, edits)


@dataclass(slots=True, eq=False)
class _Task(Generic[Owner]):
    slot: _Slot[Owner]
    segment: Segment
    text: str  # as the model sees it


class _Run(Generic[Owner]):
    def __init__(self, corrector: Corrector, options: RunOptions, works: Iterable[Work[Owner]]) -> None:
        self._corrector = corrector
        self._options = options
        self._works = iter(works)
        self._is_empty = False
        self._slots: deque[_Slot[Owner]] = deque()  # parts that were read and not given back, in order
        self._held = 0  # characters in them
        self._queue: list[_Task[Owner]] = []  # the next one last
        self._running: dict[int, _Task[Owner]] = {}
        self._same: dict[str, list[_Task[Owner]]] = {}  # tasks that wait for a running one with the same text
        self._facts = Facts(options.guards.words, options.guards.language)
        self._owner: Owner | None = None  # of the document that is being read
        # With each outcome the journal that it was written to last.
        self._memo: OrderedDict[str, tuple[Outcome, Outcomes | None]] = OrderedDict()

    def run(self) -> Iterator[Done[Owner]]:
        # A corrector is started anew where it had nothing to do while parts without text went through.
        while not (self._is_empty and not self._slots):
            for index, outcome in self._corrector.correct(self._texts()):
                task = self._running.pop(index)
                self._write(task, outcome)
                self._settle(task, outcome, was_known=False)
                for same in self._same.pop(task.text):
                    self._write(same, outcome)
                    self._settle(same, outcome, was_known=True)
                yield from self._ready()
            yield from self._ready()

    def _ready(self) -> Iterator[Done[Owner]]:
        while self._slots and not self._slots[0].waiting:
            slot = self._slots.popleft()
            self._held -= _weight(slot.work.part)
            yield slot.done()

    def _texts(self) -> Iterator[str | None]:
        """The texts for the corrector. It ends where only finished parts are held: they must be given back first."""
        index = 0
        while True:
            if not self._queue:
                self._fill()
            if self._queue:
                task = self._queue.pop()
                if self._is_known(task):
                    continue
                self._running[index] = task
                self._same.setdefault(task.text, [])
                index += 1
                yield task.text
            elif self._running:
                yield None
            else:
                return

    def _fill(self) -> None:
        """Reads on until there are enough texts to sort, or as far as it may."""
        wanted = max(1, self._options.pack)
        found: list[_Task[Owner]] = []
        while len(found) < wanted and len(self._slots) < LOOKAHEAD_PARTS and self._held < LOOKAHEAD_CHARS:
            work = next(self._works, None)
            if work is None:
                self._is_empty = True
                break
            found += self._tasks(work)
        if self._options.pack:
            found.sort(key=lambda task: len(task.text))
        else:
            found.reverse()
        self._queue = found

    def _tasks(self, work: Work[Owner]) -> list[_Task[Owner]]:
        if work.owner is None or work.owner is not self._owner:
            self._facts, self._owner = Facts(self._options.guards.words, self._options.guards.language), work.owner
        slot = _Slot(work, self._facts)
        self._slots.append(slot)
        self._held += _weight(work.part)
        if (part := work.part) is None:
            return []
        slot.part = slot.facts.read(part.text, _prose(part))
        slot.refused += part.refused
        tasks = []
        for segment in part.segments:
            for piece in self._fitted(slot, part, segment):
                text = shown(part.text, piece)
                if refusal := in_other_language(text, self._options.guards, slot.facts, slot.part):
                    slot.pieces.append(Piece(piece, Checked((), refusal)))
                else:
                    tasks.append(_Task(slot, piece, text))
        slot.waiting = len(tasks)
        return tasks

    def _fitted(self, slot: _Slot[Owner], part: Part, segment: Segment) -> Sequence[Segment]:
        corrector = self._corrector
        # A line of a parallel corpus is a sentence, whatever its full stops say.
        by_sentence = corrector.by_sentence and not segment.is_tokenized
        if corrector.limit is None and not by_sentence:
            return (segment,)
        limit = corrector.limit or max(1, len(part.text) * 4)
        fitted = fit(
            part.text, segment, length=corrector.length, limit=limit, split=self._options.split, pack=not by_sentence
        )
        slot.refused += fitted.refused
        return fitted.segments

    def _is_known(self, task: _Task[Owner]) -> bool:
        """Whether a journal or an equal text answers for it."""
        if (same := self._same.get(task.text)) is not None:
            same.append(task)
            return True
        journal = task.slot.work.journal
        outcome, _ = self._memo.get(task.text, (None, None))
        if outcome is not None:
            self._write(task, outcome)
        elif journal is not None and len(journal):
            outcome = journal.get(task.text)
        if outcome is None:
            return False
        self._settle(task, outcome, was_known=True)
        return True

    def _settle(self, task: _Task[Owner], outcome: Outcome, *, was_known: bool) -> None:
        slot = task.slot
        assert slot.work.part is not None
        if outcome.text is None:
            checked = Checked((), outcome.refusal)
        elif outcome.text.strip() == task.text.strip():  # most texts of most files: nothing to align or to guard
            checked = Checked(())
        elif len(outcome.text) > MOST_GROWTH * len(task.text) + MOST_ROOM:
            found = f"{len(outcome.text)} characters for a text of {len(task.text)}"
            checked = Checked((), Refusal("ratio", found))
        else:
            tolerance = self._options.tolerance
            if outcome.lost:
                tolerance = replace(tolerance, lost="".join(sorted({*tolerance.lost, *outcome.lost})))
            text = slot.work.part.text
            context = Context(slot.facts, slot.part, outcome.changes)
            checked = check(
                text, task.segment, outcome.text, options=self._guards(), tolerance=tolerance, context=context
            )
            checked = writable(text, task.segment, checked)
        slot.pieces.append(Piece(task.segment, checked, None if was_known else outcome.result, was_known))
        slot.waiting -= 1

    def _guards(self) -> GuardOptions:
        """With the margins of the corrector, which is known once it has answered."""
        guards = self._options.guards
        if guards.calibration is None and (own := calibration_of(self._corrector)) is not None:
            guards = replace(guards, calibration=own)
            self._options = replace(self._options, guards=guards)
        return guards

    def _write(self, task: _Task[Owner], outcome: Outcome) -> None:
        """Into the journal of the task's file, unless it is there, and into the memory of this run."""
        journal = task.slot.work.journal
        _, written = self._memo.get(task.text, (None, None))
        if journal is not None and journal is not written:
            journal.add(task.text, outcome)
        if len(task.text) <= MEMO_CHARS:
            self._memo[task.text] = replace(outcome, result=None), journal
            if len(self._memo) > MEMO_TEXTS:
                self._memo.popitem(last=False)


def _weight(part: Part | None) -> int:
    return MARKER_CHARS if part is None else len(part.text)


def _prose(part: Part) -> str:
    """The text of the part's segments without what formats protect in them."""
    pieces = []
    for segment in part.segments:
        at = segment.start
        for start, end in segment.protected:
            pieces.append(part.text[at : max(at, start)])
            at = max(at, end)
        pieces.append(part.text[at : segment.end])
    return " ".join(pieces)


def _joined(edits: Iterable[Edit]) -> list[Edit]:
    """`edits`, insertions at one place as one: behind a piece of a segment, and before the next one."""
    joined: list[Edit] = []
    for edit in edits:
        if joined and joined[-1].start == joined[-1].end == edit.start == edit.end:
            joined[-1] = Edit(edit.start, edit.end, joined[-1].replacement + edit.replacement)
        else:
            joined.append(edit)
    return joined
