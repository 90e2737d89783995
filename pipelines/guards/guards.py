"""Checks a correction model's output for a segment: which of its edits are made, and why the others are refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import attrgetter

from copyspec.engine.results import Change

from ..documents import Edit, Part, Refusal, Segment, edited, model_text, replacing
from ..edits.diff import apply, segment_edits
from ..edits.words import Tolerance, words
from ..options import GuardOptions
from .bounded import BoundedPattern, Searchable
from .characters import characters, named, strange
from .document_words import DocumentWords
from .judging import BUNDLED, CALIBRATED, LOST_WORD, USUAL_PRECISION, Judge, measured
from .languages import ANY, is_in
from .openings import Openings
from .sentencehood import END, FRAGMENT_WORDS
from .stretches import PATTERNS, Stretches
from .together import groups, mistakes
from .varieties import restyled
from .vocabulary import SPELT, spelt
from .wording import Kind, is_negation
from .wrappers import declines, unwrapped

_APART = re.compile(r"(?<=\w) (n['’]t|['’](?:s|re|ve|ll|d|m))\b")
_EXACT = Tolerance(forms=False, quotes=False)
_FREE_WORDS = 3
"""Up to this many changed words the ratios do not apply: in a heading of two words, one is half of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why one change was made or refused."""

    edit: Edit
    refusal: Refusal | None
    account: Callable[[], str]  # for people


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a segment."""

    edits: Sequence[Edit]  # offsets in the part's text, ascending
    refusal: Refusal | None = None  # why the segment stays as it was, though the model changed it
    dropped: Sequence[Refusal] = ()  # one for each edit that was left out
    verdicts: Sequence[Verdict] = ()  # one for each change; none if a refusal of the whole segment came first


@dataclass(frozen=True, slots=True)
class Context:
    """What is known in addition to a segment and its output."""

    facts: DocumentWords
    changes: Sequence[Change] | None = None  # with margins; offsets in the segment as it was shown; None: unknown
    fluency: Callable[[tuple[str, ...]], Sequence[float]] | None = None  # log-probabilities of texts in its place


def check(
    text: str,
    segment: Segment,
    output: str,
    *,
    options: GuardOptions | None = None,
    tolerance: Tolerance | None = None,
    context: Context | None = None,
) -> Checked:
    """Return the edits of a model's `output` for a segment of `text` that the guards allow.

    Without `context`, `text` is taken as the whole document.
    """
    options = options or GuardOptions()
    source = model_text(text, segment)
    if options.strip_wrappers:
        output = unwrapped(output, source)
    if not _APART.search(source):  # models trained on tokenised corpora write "do n't"
        output = _APART.sub(r"\1", output)
    if not output.strip():
        return Checked((), Refusal("empty", "the model wrote nothing"))
    if options.strip_wrappers and declines(output, source):
        return Checked((), Refusal("chat", f"the model answered instead of correcting: {output.strip()[:80]!r}"))
    edits = segment_edits(text, segment, output, tolerance=tolerance)
    if not edits:
        return Checked(())
    if context is None:
        context = Context(DocumentWords([Part(text, (segment,))], options.words, options.language))
    if refusal := in_other_language(source, options, context.facts):
        return Checked((), refusal)
    language = ANY if options.any_language else options.language
    is_english = language == "en" or _is_in(source, "en", context.facts)
    if not is_english:  # the English word lists do not apply
        options = replace(options, allow_new_words=True, allow_swaps=True)
    refusal = (
        _strange_characters(text, source, edits)
        or _too_many(text, segment, edits, options)
        or _sentence_of_fragment(text, segment, edits)
    )
    if refusal:
        return Checked((), refusal)
    checked = _judged(text, segment, edits, options, context)
    return replace(checked, edits=measured(text, segment, checked.edits, context.changes))


def styled(text: str, segment: Segment, checked: Checked, options: GuardOptions, facts: DocumentWords) -> Checked:
    """Add the edits that give words the spelling of a style, and lists the document's habit with a last comma. Names,
    code, words of the project and those that stand in code or markup stay."""
    if options.style is None or options.any_language:
        return checked
    openings, made = Openings(text, segment), list(checked.edits)
    stretches = Stretches(text, segment, _patterns(options), with_names=False)
    for match in SPELT.finditer(text, segment.start, segment.end):
        word, (start, end) = match[0], match.span()
        edit = Edit(start, end, restyled(word, options.style))
        stays = edit.replacement == word or facts.is_own(word) or facts.is_marked(word)
        stays = stays or (word[0].isupper() and (facts.is_name(word) or not openings.has(start)))
        stays = stays or any(other.start <= end and start <= other.end for other in checked.edits)
        if not stays and stretches.refusal(edit) is None:
            made.append(edit)
    for edit in facts.serial_commas.others(text, segment):
        if stretches.refusal(edit) is None and not any(
            other.start <= edit.end and edit.start <= other.end for other in made
        ):
            made.append(edit)
    verdicts = [Verdict(edit, None, lambda: f"style: {options.style}") for edit in made[len(checked.edits) :]]
    made.sort(key=attrgetter("start"))
    return replace(checked, edits=made, verdicts=[*checked.verdicts, *verdicts])


def _judged(text: str, segment: Segment, edits: Sequence[Edit], options: GuardOptions, context: Context) -> Checked:
    stretches = Stretches(text, segment, _patterns(options), with_names=not options.allow_names)
    judge = _judge(text, segment, options, context)
    changes = list(_changes(text, edits))
    refusals = [stretches.refusal(change) or judge.refusal(change) for change in changes]
    together = groups(text, changes)
    sure = [group for group in together if not any(refusals[place] for place in group)]
    made = [[changes[place] for place in group] for group in sure]
    gain_of: dict[int, float | None] = {}
    for places, edited_together, gain in zip(sure, made, _gains(text, segment, made, options, context), strict=True):
        # each mistake has to be likelier by itself: two in one place are rarer than one
        share = gain / mistakes(text, edited_together) if gain is not None and gain > 0 else gain
        gain_of |= dict.fromkeys(places, share)
    for place, gain in gain_of.items():
        change = changes[place]
        refusals[place] = judge.doubtful(change, gain) or _rival(text, segment, change, judge, options, context)
    for group in together:
        if first := next((fault for place in group if (fault := refusals[place])), None):
            for place in group:
                refusals[place] = refusals[place] or _belonging(text, changes[place], first)
    verdicts = [
        Verdict(change, refusals[place], partial(judge.account, change, gain_of.get(place)))
        for place, change in enumerate(changes)
    ]
    accepted = [change for change, refusal in zip(changes, refusals, strict=True) if refusal is None]
    dropped = [refusal for refusal in refusals if refusal is not None]
    if accepted and (refusal := stretches.refusal_of_all(accepted)):
        return Checked((), refusal, [*dropped, refusal], verdicts)
    if dropped and (options.all_or_nothing or not accepted):
        return Checked((), dropped[0], dropped, verdicts)
    return Checked(accepted, None, dropped, verdicts)


def _gains(
    text: str, segment: Segment, groups: Sequence[Sequence[Edit]], options: GuardOptions, context: Context
) -> Sequence[float | None]:
    """By how much each group of changes makes a segment more likely, in nats; None if that is unknown."""
    if not groups or context.fluency is None or not options.precision:
        return [None] * len(groups)
    made = [model_text(apply(text, changes), edited(segment, changes)) for changes in groups]
    source, *others = context.fluency((model_text(text, segment), *made))
    return [other - source for other in others]


def _rival(
    text: str, segment: Segment, change: Edit, judge: Judge, options: GuardOptions, context: Context
) -> Refusal | None:
    """The refusal of another word if one that differs from the source's by a letter makes the segment more likely."""
    rivals = judge.rivals(change) if context.fluency is not None and options.precision else ()
    if not rivals:
        return None
    made = [[change], *([edit] for _, edit in rivals)]
    own, *gains = (gain or 0.0 for gain in _gains(text, segment, made, options, context))
    gain, word = max(zip(gains, (word for word, _ in rivals), strict=True))
    was = text[change.start : change.end]
    if gain <= own - LOST_WORD * max(0, len(spelt(was)) - len(spelt(change.replacement))):
        return None
    return Refusal("evidence", f"{replacing(was, change.replacement)}, but {word!r} is near to it and likelier here")


def _belonging(text: str, change: Edit, other: Refusal) -> Refusal:
    """The refusal of a change that would be wrong without another one."""
    would = replacing(text[change.start : change.end], change.replacement)
    return Refusal(other.reason, f"{would}, but that belongs to another change: {other.detail}")


def _judge(text: str, segment: Segment, options: GuardOptions, context: Context) -> Judge:
    return Judge(
        text,
        segment,
        facts=context.facts,
        allow_new_words=options.allow_new_words,
        allow_swaps=options.allow_swaps,
        changes=context.changes,
        precision=options.precision,
        min_confidence=options.min_confidence,
        margins=CALIBRATED[options.calibration or BUNDLED],
    )


def measured_changes(
    text: str, output: str, changes: Sequence[Change] | None, options: GuardOptions
) -> Iterator[tuple[Edit, Kind, float, str]]:
    """Yield, for each change of an output for a text of one segment: its edit, its kind, its margin (infinite if
    unknown), and the reason why these options refuse it ("" if they do not). Margins are calibrated with this."""
    segment = Segment(0, len(text))
    context = Context(DocumentWords([Part(text, (segment,))], options.words, options.language), changes)
    judge = _judge(text, segment, replace(options, precision=USUAL_PRECISION), context)
    edits = segment_edits(text, segment, output)
    for change in _changes(text, edits) if edits else ():
        kind, margin = judge.measured(change)
        refusals = check(text, segment, apply(text, [change]), options=options, context=context).dropped
        reason = next((refusal.reason for refusal in refusals), "")
        yield change, kind, math.inf if margin is None else margin, reason


def _changes(text: str, edits: Sequence[Edit]) -> Iterator[Edit]:
    """Join edits that touch inside a word, such as those of "cannto" ("can", "n't"), or of "dont" that becomes "do
    not": one without the other may mean the opposite, so whoever chooses among edits gets them as one."""
    change, *others = edits
    for edit in others:
        between = text[change.end : edit.start]
        if _touch(change, edit) or _is_written_out(text, change, edit) or _is_comparison(text, change, edit):
            change = Edit(change.start, edit.end, change.replacement + between + edit.replacement)
        else:
            yield change
            change = edit
    yield change


def _touch(before: Edit, after: Edit) -> bool:
    return before.end == after.start and not before.replacement[-1:].isspace() and not after.replacement[:1].isspace()


def _is_written_out(text: str, before: Edit, after: Edit) -> bool:
    was, is_not = text[before.start : before.end], after.replacement.strip().casefold() in ("not", "n't", "n’t")
    return before.end == after.start == after.end and is_not and is_negation(was)


def _is_comparison(text: str, before: Edit, after: Edit) -> bool:
    """Whether "more new" becomes "newer"."""
    goes = text[before.start : before.end].strip().casefold() in ("more", "most") and not before.replacement.strip()
    return goes and len(text[before.end : after.start].split()) < 2 and after.replacement.endswith(("er", "est"))


def _strange_characters(text: str, source: str, edits: Sequence[Edit]) -> Refusal | None:
    """The refusal of an output that contains a character which no correction would add."""
    known = characters(text) | characters(source) | {"\n"}
    for edit in edits:
        if char := strange(edit.replacement, known):
            return Refusal("characters", f"the model wrote {named(char)}, which the text does not have")
    return None


def in_other_language(source: str, options: GuardOptions, facts: DocumentWords) -> Refusal | None:
    """Return the refusal for a text that is not in the model's language, or None."""
    language = ANY if options.any_language else options.language
    if language == ANY or _is_in(source, language, facts):
        return None
    return Refusal("language", f"this passage does not seem to be in the language {language!r}")


def _is_in(source: str, language: str, facts: DocumentWords) -> bool:
    verdict = is_in(source, language)
    return facts.is_in(language) if verdict is None else verdict


def _too_many(text: str, segment: Segment, edits: Sequence[Edit], options: GuardOptions) -> Refusal | None:
    size = _count(text[segment.start : segment.end])
    counts = [(_count(text[edit.start : edit.end]), _count(edit.replacement)) for edit in edits]
    changed, lost = sum(max(had, has) for had, has in counts), sum(had - has for had, has in counts)
    if changed > max(_FREE_WORDS, options.max_edit_ratio * size):
        limit = f"the limit of {100 * options.max_edit_ratio:g} % (max_edit_ratio)"
        return Refusal("ratio", f"{changed} words would change in a passage of {size}, above {limit}")
    if lost > max(_FREE_WORDS, options.max_lost_ratio * size):
        limit = f"the limit of {100 * options.max_lost_ratio:g} % (max_lost_ratio)"
        return Refusal("lost", f"{lost} of {size} words would be lost, above {limit}")
    return None


def _sentence_of_fragment(text: str, segment: Segment, edits: Sequence[Edit]) -> Refusal | None:
    """The refusal of edits that add or remove words or marks in a fragment, which the model did not understand. For
    fragments of two words or more, a mark at the end is left to `Judge`, as models add it out of habit."""
    piece = text[segment.start : segment.end]
    count = 0 if END.search(piece) else _count(piece)
    for edit in edits if 0 < count <= FRAGMENT_WORDS else ():
        if not _is_word_for_word(text, segment, edit) and (count == 1 or not _ends(segment, edit)):
            would = replacing(text[edit.start : edit.end], edit.replacement)
            return Refusal("fragment", f"{would}, but {piece!r} is too short to tell whether that is right")
    return None


def _is_word_for_word(text: str, segment: Segment, edit: Edit) -> bool:
    """Whether the number of words and marks or the letters ("alot") stay the same, or one of two equal words goes."""
    was = text[edit.start : edit.end]
    had, has = (words(piece, _EXACT) for piece in (was, edit.replacement))
    if len(had) == len(has) or (had and _letters(was) == _letters(edit.replacement)):
        return True
    rest = text[segment.start : edit.start] + text[edit.end : segment.end]
    return not has and {word.key for word in had} <= {word.key for word in words(rest, _EXACT)}


def _ends(segment: Segment, edit: Edit) -> bool:
    """Whether the edit only adds a mark at the segment's end."""
    return edit.start == edit.end == segment.end and not _letters(edit.replacement)


@lru_cache(maxsize=256)
def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


@lru_cache(maxsize=256)  # each segment, edit and replacement is counted more than once
def _count(text: str) -> int:
    return sum(word.key[0].isalnum() for word in words(text, _EXACT))


def _patterns(options: GuardOptions) -> dict[str, Searchable]:
    """The patterns of text that must stay, by reason of refusal."""
    patterns: dict[str, Searchable] = {
        reason: pattern for reason, pattern in PATTERNS.items() if not getattr(options, f"allow_{reason}")
    }
    return patterns | {f"protect[{number}]": BoundedPattern(pattern) for number, pattern in enumerate(options.protect)}
