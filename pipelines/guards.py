"""Guards: which of a model's changes are let through, and why the others are not."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from .documents import Edit, Refusal, Segment, shown
from .edits import apply, segment_edits
from .words import Tolerance, words
from .wrappers import unwrapped

_EXACT = Tolerance(forms=False, quotes=False)
_FREE_WORDS = 3
"""So many changed words are never too many: in a heading of two words, one is half of it."""
_FRAGMENT_WORDS = _FREE_WORDS
"""So few words without an end are no sentence but a heading, a cell, a name: nothing tells what it lacks, and models
that want to see a sentence write one ("Task" comes back as "Task. Task.")."""
_END = re.compile(r"[.!?…。！？][\"'”’»)\]]*\Z")

# What may stand inside a match does not stand before one: from every letter of a long word on, a search for the `@` or
# the bracket behind it would take the square of its length.
_LINKS = (
    r"(?:(?:https?|ftp|file)://|www\.|mailto:)[^\s<>\"]*[^\s<>\".,;:!?)'\]]"
    r"|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
)
_FILES = (
    r"py|js|ts|json|ya?ml|toml|md|txt|csv|html?|css|sh|cpp|java|rs|exe|zip|pdf|docx?|xlsx?|png|jpe?g|com|org|net|io"
)
_GUARDED = {
    "links": re.compile(_LINKS, re.IGNORECASE),
    "numbers": re.compile(r"\d+(?:[.,:/]\d+)*%?"),
    "code": re.compile(
        r"`[^`\n]+`"
        r"|\$?\{\{?[\w.]+\}?\}|%\(?\w*\)?[sdif]\b|</?\w[^<>\n]*>"  # placeholders, tags
        r"|\b\w+_\w+\b|\b[a-z]{2,}[A-Z]\w*|(?<![\w.])[\w.]+\(\)|\b\w+::\w+"  # names in programs
        rf"|(?<!\w)--[a-z][\w-]+|(?<!\S)-[A-Za-z](?=\s|\Z)|[@#]\w+|(?<![\w-])[\w-]+\.(?:{_FILES})\b"
        r"|(?<!\w)~?/[\w./-]+|\b[A-Za-z]:\\\S+|\\[a-z]+\b"  # paths, TeX
        r"|\b\w{40,}"  # keys and other data: no word is as long
    ),
}
_CAPITALS = re.compile(r"\b[A-Z]{2}[A-Z0-9]*s?\b")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z]\w+")
_CAPITALISED = re.compile(r"\b[A-Z]\w+")


# The two ratios were chosen on one half of the human corrections of JFLEG dev (3,016) and GMEG wiki dev (3,968), and
# looked at on the other half: there 1.8 % of the human corrections are refused (7.3 % by a single limit of 0.4 changed
# words), 99.7 % of the corrections of another sentence, and of corrections without their last third of words 54 %
# (JFLEG) and 76 % (GMEG; with the single limit 49 % and 15 %). No output of the bundled model is refused.
@dataclass(frozen=True, slots=True)
class GuardOptions:
    """What a correction may not touch. An edit that does is left out, and the others of its segment are made."""

    allow_numbers: bool = False
    allow_links: bool = False  # URLs, e-mail addresses
    allow_code: bool = False  # `code`, snake_case, camelCase, call(), --options, paths, {placeholders}, <tags>
    allow_names: bool = False  # capitals inside a sentence, ALLCAPS; their case may change anyway
    max_edit_ratio: float = 0.7  # changed words per word of the segment; above, the whole segment stays
    max_lost_ratio: float = 0.25  # words that the segment would have fewer, per word; above, it stays
    protect: tuple[str, ...] = ()  # regular expressions of more that must stay
    strip_wrappers: bool = True  # chat models put talk, labels, quotes and fences around a text
    all_or_nothing: bool = False  # one edit that is left out leaves out all of its segment

    def __post_init__(self) -> None:
        for name in ("max_edit_ratio", "max_lost_ratio"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be a share of the words, at least 0")
        if isinstance(self.protect, str):
            raise TypeError(f"protect={self.protect!r} must be a sequence of regular expressions: put it into a tuple")
        for pattern in self.protect:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"protect: {pattern!r} is no regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class Checked:
    """What becomes of a segment."""

    edits: Sequence[Edit]  # offsets in the part's text, ascending
    refusal: Refusal | None = None  # why the segment stays as it was, though the model changed it
    dropped: Sequence[Refusal] = ()  # one for each edit that was left out


def check(
    text: str,
    segment: Segment,
    output: str,
    *,
    options: GuardOptions | None = None,
    tolerance: Tolerance | None = None,
) -> Checked:
    """The edits that a model's `output` for a segment of `text` makes and that the guards let through."""
    options = options or GuardOptions()
    if options.strip_wrappers:
        output = unwrapped(output, shown(text, segment))
    if not output.strip():
        return Checked((), Refusal("empty", "the model wrote nothing"))
    edits = segment_edits(text, segment, output, tolerance=tolerance)
    if refusal := _too_many(text, segment, edits, options) or _sentence_of_fragment(text, segment, edits):
        return Checked((), refusal)
    guards = _Guards(text, segment, options)
    kept, dropped = [], []
    for edit in edits:
        if refusal := guards.refusal(edit):
            dropped.append(refusal)
        else:
            kept.append(edit)
    if dropped and (options.all_or_nothing or not kept):
        return Checked((), dropped[0], dropped)
    return Checked(kept, None, dropped)


def _too_many(text: str, segment: Segment, edits: Sequence[Edit], options: GuardOptions) -> Refusal | None:
    size = _count(text[segment.start : segment.end])
    counts = [(_count(text[edit.start : edit.end]), _count(edit.replacement)) for edit in edits]
    changed, lost = sum(max(had, has) for had, has in counts), sum(had - has for had, has in counts)
    if changed > max(_FREE_WORDS, options.max_edit_ratio * size):
        return Refusal("ratio", f"{changed} of {size} words changed; max_edit_ratio is {options.max_edit_ratio}")
    if lost > max(_FREE_WORDS, options.max_lost_ratio * size):
        return Refusal("lost", f"{lost} of {size} words are gone; max_lost_ratio is {options.max_lost_ratio}")
    return None


def _fragment_words(piece: str) -> int:
    """Words of a text that is no sentence; 0 for others."""
    count = 0 if _END.search(piece) else _count(piece)
    return count if count <= _FRAGMENT_WORDS else 0


def _sentence_of_fragment(text: str, segment: Segment, edits: Sequence[Edit]) -> Refusal | None:
    """A fragment that would get more words or fewer, or a mark: a model that writes these understood nothing. Of two
    words and more, only the mark at the end is left out (`_Guards`): models add it out of habit."""
    piece = text[segment.start : segment.end]
    count = _fragment_words(piece)
    for edit in edits if count else ():
        if not _is_word_for_word(text, segment, edit) and (count == 1 or not _ends(text, segment, edit)):
            was = text[edit.start : edit.end]
            return Refusal("fragment", f"{piece!r} is no sentence, and {was!r} would become {edit.replacement!r}")
    return None


def _is_word_for_word(text: str, segment: Segment, edit: Edit) -> bool:
    """Whether there are as many words and marks as before, the same letters ("alot"), or one word less of two equal
    ones."""
    was = text[edit.start : edit.end]
    had, has = (words(piece, _EXACT) for piece in (was, edit.replacement))
    if len(had) == len(has) or (had and _letters(was) == _letters(edit.replacement)):
        return True
    rest = text[segment.start : edit.start] + text[edit.end : segment.end]
    return not has and {word.key for word in had} <= {word.key for word in words(rest, _EXACT)}


def _ends(text: str, segment: Segment, edit: Edit) -> bool:
    """Whether it does no more than to put a mark behind the segment."""
    return edit.start == edit.end == segment.end and not _letters(edit.replacement)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


def _count(text: str) -> int:
    return sum(word.key[0].isalnum() for word in words(text, _EXACT))


class _Guards:
    """The guarded stretches of one segment."""

    def __init__(self, text: str, segment: Segment, options: GuardOptions) -> None:
        self.text, self.segment = text, segment
        self.patterns = {
            reason: pattern for reason, pattern in _GUARDED.items() if not getattr(options, f"allow_{reason}")
        }
        for number, pattern in enumerate(options.protect):
            self.patterns[f"protect[{number}]"] = re.compile(pattern)
        piece = text[segment.start : segment.end]
        self.places = {
            reason: [(found.start() + segment.start, found.end() + segment.start) for found in pattern.finditer(piece)]
            for reason, pattern in self.patterns.items()
        }
        self.names = [] if options.allow_names else _names(piece, segment.start)
        self.is_fragment = _fragment_words(piece) > 0

    def refusal(self, edit: Edit) -> Refusal | None:
        was = self.text[edit.start : edit.end]
        for start, end in _from(self.segment.protected, edit.start):
            if start > edit.end:
                break
            if (edit.start < end and edit.end > start) or start < edit.start == edit.end < end:
                return Refusal("protected", f"{self.text[start:end]!r} may not change")
        new = next((char for char in edit.replacement if char in self.segment.forbidden and char not in was), None)
        if new:
            return Refusal("markup", f"{edit.replacement!r} brings {new!r}")
        if self.segment.is_label and self._takes_on_capital(edit):
            return Refusal("markup", f"{was!r} begins a heading or a cell, and would become {edit.replacement!r}")
        if self.is_fragment and _ends(self.text, self.segment, edit):
            return Refusal("fragment", f"{edit.replacement!r} would stand behind what is no sentence")
        for reason, pattern in self.patterns.items():
            before, after = self._windows(edit, self.places[reason])
            had, has = ([found[0] for found in pattern.finditer(window)] for window in (before, after))
            if had != has:
                return Refusal(reason.partition("[")[0], f"{was!r} would become {edit.replacement!r}")
        for start, end in self.names:
            name = self.text[start:end]
            if edit.start < end and edit.end > start and name.casefold() not in edit.replacement.casefold():
                return Refusal("names", f"{name!r} would become {edit.replacement!r}")
        return None

    def _takes_on_capital(self, edit: Edit) -> bool:
        """Whether a label would begin with a capital that it did not have, behind markup or with a word before it."""
        first = next((at for at in range(self.segment.start, self.segment.end) if self._is_prose(at)), edit.start)
        letter = next(filter(str.isalpha, edit.replacement), "")
        return edit.start <= first and letter.isupper() and not self.text[first : first + 1].isupper()

    def _is_prose(self, at: int) -> bool:
        spans = self.segment.protected
        number = bisect_right(spans, at, key=itemgetter(0)) - 1
        return self.text[at].isalpha() and not (number >= 0 and at < spans[number][1])

    def _windows(self, edit: Edit, places: Sequence[tuple[int, int]]) -> tuple[str, str]:
        """The words and guarded stretches that an edit touches, before and after it."""
        start, end = edit.start, edit.end
        while start > self.segment.start and not self.text[start - 1].isspace():
            start -= 1
        while end < self.segment.end and not self.text[end].isspace():
            end += 1
        for place_start, place_end in _from(places, start):
            if place_start >= end:
                break
            if place_end > start:
                start, end = min(start, place_start), max(end, place_end)
        before = self.text[start:end]
        return before, apply(before, [Edit(edit.start - start, edit.end - start, edit.replacement)])


def _from(spans: Sequence[tuple[int, int]], at: int) -> Iterator[tuple[int, int]]:
    """Those of ascending `spans` that end behind `at`: looking at all of them for each edit takes their square."""
    return (spans[number] for number in range(bisect_right(spans, at, key=itemgetter(1)), len(spans)))


def _names(piece: str, offset: int) -> list[tuple[int, int]]:
    """Capitals that tell something; in a heading or a shouted text they tell nothing."""
    letters = [word for word in piece.split() if word[:1].isalpha()]
    patterns = []
    if sum(word.isupper() and len(word) > 1 for word in letters) * 2 <= len(letters):
        patterns.append(_CAPITALS)
    if len(_CAPITALISED.findall(piece)) * 2 <= len(letters):
        patterns.append(_NAME)
    return [(found.start() + offset, found.end() + offset) for pattern in patterns for found in pattern.finditer(piece)]
