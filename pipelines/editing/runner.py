"""Runs the segments of parts through a corrector, as many at once as it takes, in order and in bounded memory.

A `Work` holds a part, which waits in a `_Slot`. Its segments, split to what the corrector takes, become `_Task`s. The
`Outcome` for the text of a task comes from the corrector or is known already; its checked edits are a `Piece` of the
slot. The first slot is yielded as `Done` when none of its tasks is waiting any more.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

from copyspec.common.checks import check_type, check_whole
from copyspec.engine.results import Result

from ..documents import Edit, Part, Refusal, Segment, model_text
from ..edits.diff import merge
from ..edits.words import Tolerance
from ..guards.document_words import DocumentWords
from ..guards.guards import Checked, Context, check, in_other_language, styled
from ..guards.languages import ANY, is_in, language_of
from ..guards.sentencehood import END
from ..options import GuardOptions
from ..sentences import sentences
from .correctors import Corrector, Outcome, calibration_of, fluency_of, languages_of
from .segmentation import Splitter, fit
from .writable import writable

logger = logging.getLogger(__name__)

LOOKAHEAD_PARTS = 4096
LOOKAHEAD_CHARS = 4 << 20
"""Limits on what is read ahead of the first unfinished part, large enough that one slow text does not idle a batch."""

MARKER_CHARS = LOOKAHEAD_CHARS // 64
"""What a marker counts in LOOKAHEAD_CHARS: it ends a file, whose journal stays open until the marker is yielded."""

MEMO_TEXTS = 1024
MEMO_CHARS = 1000
"""Repeated texts (headings, cells, lines of a log) are corrected once: limits on the texts remembered."""

CONTEXT_CHARS = 400  # of the preceding text, which the fluency model reads as context

MAX_GROWTH, MAX_ROOM = 4, 8000
"""Maximum characters of an output: per character of the text, plus a constant for what chat models add around it. No
correction grows that much, and aligning a longer one would take too long."""

FAILED = "server"
"""The reason of refusals for which a server is to blame, not the text or the answer."""

Owner = TypeVar("Owner")


class Outcomes(Protocol):
    """Known outcomes by text: a journal, or the memory of the language server."""

    def get(self, text: str) -> Outcome | None: ...
    def add(self, text: str, outcome: Outcome) -> None: ...


@dataclass(frozen=True, slots=True)
class Work(Generic[Owner]):
    """A part to correct, or a marker (None) that is passed through in order."""

    owner: Owner  # returned with the part
    part: Part | None = None
    journal: Outcomes | None = None
    document: Sequence[Part] | None = None
    """Parts from which the document's words are taken, the same object with each of its parts. None: only this part."""
    whole: Part | None = None
    """The part with all its segments: those that are not selected are context for the later ones."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The outcome of one segment."""

    segment: Segment
    checked: Checked
    result: Result | None = None  # None if the model was not asked
    was_known: bool = False  # from a journal, or from an earlier equal text


@dataclass(frozen=True, slots=True)
class Done(Generic[Owner]):
    """A finished part."""

    owner: Owner
    part: Part | None
    pieces: Sequence[Piece] = ()
    refused: Sequence[Refusal] = ()  # by the format, or because a text could not be split
    edits: Sequence[Edit] = ()  # of the part's text, ascending

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Why stretches of the part stayed as they were."""
        return (*self.refused, *(piece.checked.refusal for piece in self.pieces if piece.checked.refusal is not None))

    @property
    def segment_refusals(self) -> tuple[Refusal, ...]:
        """As `refusals`, without segments whose edits were left out one by one, for which see `Checked.dropped`."""
        left_out = (piece.checked.refusal for piece in self.pieces if not piece.checked.dropped)
        return (*self.refused, *(refusal for refusal in left_out if refusal is not None))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How texts go through a corrector."""

    guards: GuardOptions = field(default_factory=GuardOptions)
    split: Splitter = sentences
    pack: int = 32
    """Number of texts that are sorted by length before decoding, so that texts of a batch have similar lengths. 0: keep
    their order."""

    def __post_init__(self) -> None:
        check_type(isinstance(self.guards, GuardOptions), "guards", self.guards, "a GuardOptions")
        check_type(callable(self.split), "split", self.split, "a function from a text to spans")
        check_whole("pack", self.pack, low=0)


class Runner:
    """Corrects parts with one corrector."""

    def __init__(self, corrector: Corrector, options: RunOptions | None = None) -> None:
        self.corrector = corrector
        self.options = options or RunOptions()

    @property
    def identity(self) -> Mapping[str, object]:
        """Everything the edits depend on, besides the parts."""
        split = self.options.split
        return {
            **self.corrector.identity,
            **{f"guards.{name}": value for name, value in asdict(self.options.guards).items()},
            "segmenter": getattr(split, "__qualname__", repr(split)),
        }

    def run(self, works: Iterable[Work[Owner]]) -> Iterator[Done[Owner]]:
        """Yield the result of every work, in order. Reads ahead by at most LOOKAHEAD_PARTS."""
        return _Run(self.corrector, self.options, works).run()

    def foreign_language(self, done: Done[Owner]) -> str | None:
        """The language of a text that the corrector was given though it was made for others; None if there is none."""
        refusals = ((piece.segment, piece.checked.refusal) for piece in done.pieces)
        sent = [segment for segment, refusal in refusals if refusal is None or refusal.reason != "language"]
        if done.part is None or not sent or not (known := languages_of(self.corrector)):
            return None
        guards = self.options.guards
        if not guards.any_language and guards.language != ANY:
            return None if guards.language in known else guards.language
        for segment in sent:
            text = model_text(done.part.text, segment)
            language = language_of(text) if END.search(text) else None  # names in a cell or heading say little
            if language is not None and not any(is_in(text, other) for other in known):
                return language
        return None


@dataclass(slots=True, eq=False)
class _Slot(Generic[Owner]):
    """A part whose segments are not all finished."""

    work: Work[Owner]
    document_words: DocumentWords  # of the document
    waiting: int = 0  # unfinished segments
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
    text: str  # as shown to the model
    before: str  # the end of the document's texts before it


class _Run(Generic[Owner]):
    def __init__(self, corrector: Corrector, options: RunOptions, works: Iterable[Work[Owner]]) -> None:
        self._corrector = corrector
        self._options = options
        self._works = iter(works)
        self._is_empty = False
        self._slots: deque[_Slot[Owner]] = deque()  # parts read but not yet returned, in order
        self._held = 0  # characters in these parts
        self._queue: list[_Task[Owner]] = []  # in reverse order
        self._running: dict[int, _Task[Owner]] = {}
        self._same: dict[str, list[_Task[Owner]]] = {}  # tasks waiting for a running one with the same text
        self._document: Sequence[Part] | None = None  # that is being read
        self._document_words = self._words_of(())
        self._before = ""
        self._warned = set[str]()
        # Each outcome, with the journal it was last written to.
        self._memo: OrderedDict[str, tuple[Outcome, Outcomes | None]] = OrderedDict()

    def run(self) -> Iterator[Done[Owner]]:
        # The corrector ends its output when only parts without text were left, and is started again for later texts.
        while not (self._is_empty and not self._slots):
            for index, outcome in self._corrector.correct(self._texts()):
                if (task := self._running.pop(index, None)) is None:
                    raise ValueError(
                        f"the corrector gave an outcome for text {index}, which it was not given, or a second one"
                    )
                self._write(task, outcome)
                self._settle(task, outcome, was_known=False)
                for same in self._same.pop(task.text):
                    self._write(same, outcome)
                    self._settle(same, outcome, was_known=True)
                yield from self._ready()
            if self._running:
                left = next(iter(self._running.values()))
                raise ValueError(f"the corrector ended without an outcome for {left.text[:40]!r}")
            yield from self._ready()

    def _ready(self) -> Iterator[Done[Owner]]:
        while self._slots and not self._slots[0].waiting:
            slot = self._slots.popleft()
            self._held -= _weight(slot.work.part)
            yield slot.done()

    def _texts(self) -> Iterator[str | None]:
        """Yield texts for the corrector. Ends if there are no more, or if only finished parts are held, which must be
        returned first."""
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
            elif self._running and not self._is_empty:
                yield None
            else:
                return

    def _fill(self) -> None:
        """Read until there are enough texts to sort, or until a limit is reached."""
        wanted = max(1, self._options.pack)
        tasks: list[_Task[Owner]] = []
        while len(tasks) < wanted and len(self._slots) < LOOKAHEAD_PARTS and self._held < LOOKAHEAD_CHARS:
            work = next(self._works, None)
            if work is None:
                self._is_empty = True
                break
            tasks += self._tasks(work)
        if self._options.pack:
            tasks.sort(key=lambda task: len(task.text))
        else:
            tasks.reverse()
        self._queue = tasks

    def _tasks(self, work: Work[Owner]) -> list[_Task[Owner]]:
        if work.part is not None and (work.document is None or work.document is not self._document):
            self._document, self._before = work.document, ""
            self._document_words = self._words_of(work.document or (work.part,))
        slot = _Slot(work, self._document_words)
        self._slots.append(slot)
        self._held += _weight(work.part)
        if (part := work.part) is None:
            return []
        slot.refused += part.refused
        tasks = []
        chosen = {segment.start for segment in part.segments}
        for segment in (work.whole or part).segments:
            if segment.start not in chosen:
                self._before = f"{self._before}{model_text(part.text, segment)} "[-CONTEXT_CHARS:]
            for piece in self._fitted(slot, part, segment) if segment.start in chosen else ():
                text, before = model_text(part.text, piece), self._before
                self._before = f"{before}{text} "[-CONTEXT_CHARS:]
                if refusal := in_other_language(text, self._options.guards, slot.document_words):
                    slot.pieces.append(Piece(piece, Checked((), refusal)))
                else:
                    tasks.append(_Task(slot, piece, text, before))
            self._before = self._before.rstrip() + "\n\n"
        slot.waiting = len(tasks)
        return tasks

    def _words_of(self, parts: Iterable[Part]) -> DocumentWords:
        return DocumentWords(parts, self._options.guards.words, self._options.guards.language)

    def _fitted(self, slot: _Slot[Owner], part: Part, segment: Segment) -> Sequence[Segment]:
        corrector = self._corrector
        # A line of a parallel corpus is one sentence, whatever full stops it contains.
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
        """Whether a journal or an equal text gives the outcome."""
        if (same := self._same.get(task.text)) is not None:
            same.append(task)
            return True
        journal = task.slot.work.journal
        outcome, _ = self._memo.get(task.text, (None, None))
        if outcome is not None:
            self._write(task, outcome)
        elif journal is not None:
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
        elif outcome.text.strip() == task.text.strip():  # usual: nothing to align or guard
            checked = Checked(())
        elif len(outcome.text) > MAX_GROWTH * len(task.text) + MAX_ROOM:
            detail = f"the model wrote {len(outcome.text)} characters for a passage of {len(task.text)}"
            checked = Checked((), Refusal("ratio", detail))
        else:
            guards = self._options.guards
            if outcome.changes is None and guards.min_confidence:
                self._warn("min_confidence has no effect: the model gives no probabilities for its changes")
            elif outcome.changes is None and guards.precision and hasattr(self._corrector, "model"):
                self._warn("precision has no effect: the model gives no probabilities for its changes")
            part, tolerance = slot.work.part, Tolerance(lost=outcome.lost)
            fluency = fluency_of(self._corrector)
            context = Context(slot.document_words, outcome.changes, fluency and partial(fluency, task.before))
            checked = check(
                part.text, task.segment, outcome.text, options=self._guards(), tolerance=tolerance, context=context
            )
        if outcome.text is not None:
            checked = styled(slot.work.part.text, task.segment, checked, self._options.guards, slot.document_words)
            checked = writable(slot.work.part, task.segment, checked)
        slot.pieces.append(Piece(task.segment, checked, None if was_known else outcome.result, was_known))
        slot.waiting -= 1

    def _warn(self, line: str) -> None:
        """Log a line once."""
        if line not in self._warned:
            self._warned.add(line)
            logger.warning("%s", line)

    def _guards(self) -> GuardOptions:
        """The guard options with the corrector's margins, which are known after its first answer."""
        guards = self._options.guards
        if guards.calibration is None and (calibration := calibration_of(self._corrector)) is not None:
            guards = replace(guards, calibration=calibration)
            self._options = replace(self._options, guards=guards)
        return guards

    def _write(self, task: _Task[Owner], outcome: Outcome) -> None:
        """Write the outcome to the journal of the task's file, if it is not there yet, and to this run's memory."""
        if outcome.refusal is not None and outcome.refusal.reason == FAILED:
            return  # another try may succeed
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


def _joined(edits: Iterable[Edit]) -> list[Edit]:
    """Join insertions at the same place: one after a segment and one before the next."""
    joined: list[Edit] = []
    for edit in edits:
        if joined and joined[-1].start == joined[-1].end == edit.start == edit.end:
            joined[-1] = Edit(edit.start, edit.end, joined[-1].replacement + edit.replacement)
        else:
            joined.append(edit)
    return joined
