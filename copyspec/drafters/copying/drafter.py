"""The copy drafter: drafts one tree from all sources of a row, and learns from what is accepted.

A tree grows from cursors: the positions of the row's corpus that the next token may be copied from. Each has a
situation (`situations`): how it was found, and the length of its match. The steps that take most of the time are
compiled when the package is installed; each is made in C, or else by its reference in Python.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from copyspec.budget import Budget
from copyspec.drafters.copying import growth, resumptions, situations
from copyspec.drafters.copying.alignment import make_alignment
from copyspec.drafters.copying.corpus import EDIT, LONGEST, PROMPT, REFERENCE, WRITTEN, CopyCorpus, matches
from copyspec.drafters.copying.estimates import DECAY as RECORD_DECAY
from copyspec.drafters.copying.estimates import (
    MAX_FACTOR,
    NGRAM_PRECISION,
    PRIOR_COUNT,
    PRIOR_COUNT_WRONG,
    SHORT,
    Estimates,
)
from copyspec.drafters.copying.followed import (
    INSTRUCTION,
    MAX_GAP,
    Copied,
    EditedText,
    EncoderInput,
    Followed,
    FoundText,
)
from copyspec.drafters.copying.growth import Chain, Cursor, Grown, PredictorCalls, forked
from copyspec.drafters.copying.native_module import COMPILED
from copyspec.drafters.copying.situations import (
    ALIGNED,
    ALIGNED_1,
    ALIGNED_3,
    EDIT_LABEL,
    EDIT_LATER,
    EDIT_LATER_DIFFERS,
    EDIT_START,
    FAR_BY_KIND,
    FOLLOWED_RESUMED,
    INPUT_LATER,
    INPUT_START,
    LENGTH,
    LONG_RUNS,
    NEAR_BY_KIND,
    PROMPT_START,
    REFERENCE_START,
    RESUMED_BY_KIND,
    START,
    STRIDE,
    UNMATCHED,
    VERSION,
    VERSIONS,
    later_start,
    resumed,
)
from copyspec.drafters.copying.substitutes import COLUMNS, MAX_KEPT, MAX_REPLACED, SUBSTITUTE_RATIOS
from copyspec.drafters.copying.versions import VersionComparisons, version_of
from copyspec.drafters.predictors.ngrams import KEY_BITS, MAX_CONTINUATIONS, MIN_SHARE, ORDERS, NGrams
from copyspec.sources import EVEN_ODDS, Source
from copyspec.tree import EMPTY, ROOT, DraftTree, path_to


def _constants(copy_priority: float) -> tuple[Any, ...]:
    """In the order that the C module expects."""
    return (
        situations.NEXT_SITUATION,
        situations.LENGTH,
        situations.CROWD_ROW,
        situations.COMPANY,
        situations.AFTER_SUBSTITUTE,
        growth.JOINED,
        situations.GAPS,
        WRITTEN,
        growth.MAX_JOINING,
        growth.MAX_CURSORS,
        KEY_BITS,
        ORDERS,
        MAX_CONTINUATIONS,
        growth.MIN_SCORE,
        growth.SURE_WEIGHT,
        growth.CHILD_PRIORITY,
        copy_priority,
        growth.NGRAM_MIN_MISS_PROB_ROOT,
        growth.NGRAM_MIN_MISS_PROB,
        growth.MIN_NGRAM_SCORE,
        MIN_SHARE,
        COLUMNS,
        growth.PREDICTED_PRIORITY,
        growth.TABLE_MIN_MISS_PROB,
        growth.MISS_PROB_FLOOR,
    )


CONSTANTS = _constants(growth.COPY_PRIORITY)
BREAKING_CONSTANTS = _constants(growth.COPY_PRIORITY_SHORT)
"""Constants for rows whose copies end after a few tokens."""

TABLES: object = COMPILED and COMPILED.make_tables(*CONSTANTS)
BREAKING_TABLES: object = COMPILED and COMPILED.make_tables(*BREAKING_CONSTANTS)

RATES: object = COMPILED and COMPILED.make_rates(
    RECORD_DECAY, PRIOR_COUNT, PRIOR_COUNT_WRONG, MAX_FACTOR, situations.STRIDE, SHORT, MAX_REPLACED, MAX_KEPT
)

ODDS: object = COMPILED and COMPILED.make_odds(
    resumptions.WEIGHTS, resumptions.EXPECTED, resumptions.SHIFTS, situations.RESUMED_ONE, situations.STRIDE
)


CHAIN_SEARCH = 2
"""To find the best chain of n tokens, a tree of this many times n nodes is grown: 3 and 5 find no better ones."""

NO_TREE = Grown()  # the empty tree; never changed

NEAR_COPY = 32  # positions after the end of the last copy that count as near it
MIN_RUN_TO_RESUME = 4  # copied tokens in a row, outside followed text, from which on a broken-off copy may resume
MIN_COPIED_TO_BEGIN = 2  # tokens accepted at once from the followed text, from which on the output has begun it
FIRST_DIFFER = 2  # first output tokens that may replace those at the start of the edited text
MIN_LABEL = 2  # leading output tokens, none copied, from which they count as an introduction ("Corrected:")
REPEATED_INSTRUCTION = EVEN_ODDS + 2
"""Odds bucket for an output that begins like its prompt although a text is edited."""
RESUME_WITHIN = 6  # output tokens after a copy broke off within which it may resume
RESUME_FOLLOWED_WITHIN = 48  # the same in followed text, which the output follows to the end
FAMILIES_WITH_VERSIONS = frozenset({ALIGNED, ALIGNED_1, ALIGNED_3, EDIT_START, RESUMED_BY_KIND[EDIT]})
"""Families of cursors in the edited text that get cursors in its other versions beside them."""


class CopyDrafter:
    """Drafts by copying from a row's sources, its prompt and its own output.

    `eos`: drafted where the edited text or a reference ends; of several tokens the one that the prompt used last (chat
    templates end every turn with it); None: no end is drafted. `continues_prompt`: the last source of kind `prompt`
    stands directly before the output, as for decoder-only models. If it does not and there is no edit source, that
    prompt is followed as a text that the output may edit. `ngrams`: in the target's tokens, for where there is nothing
    to copy. `breaks`: tokens that may end an introduction before the edited text. `at_once`: False leaves the index of
    the sources to `prepare`. `comparisons`: those of all rows of the call (`CopyCorpus`).
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        eos: Collection[int] | int | None,
        continues_prompt: bool = True,
        ngrams: NGrams | None = None,
        breaks: Set[int] = frozenset(),
        at_once: bool = True,
        comparisons: VersionComparisons | None = None,
    ) -> None:
        self._ngrams = ngrams
        self._corpus = corpus = CopyCorpus(sources, eos, continues_prompt, at_once=at_once, comparisons=comparisons)
        followed: Followed = FoundText(corpus)
        if corpus.followed[0]:
            (start, stop), kind = corpus.followed, EncoderInput if corpus.follows_input else EditedText
            followed = kind(corpus, start, stop, make_alignment(corpus.tokens[start:stop], kind.free_prefix))
        self._tracker = Tracker(corpus, followed, Copied(anchor=followed.start), breaks, ngrams)
        self._estimates = Estimates(found=bool(corpus.text_starts), is_question=corpus.is_question)
        self._cursors: list[Cursor] = []
        self._grown = NO_TREE

    def prepare(self, max_tokens: int) -> bool:
        """Index the next `max_tokens` of the sources; whether all are, which is needed before any other call."""
        return self._corpus.prepare(max_tokens)

    def release(self, max_tokens: int) -> bool:
        """Release the index of about `max_tokens`, when the drafter is done; whether nothing is left. A long index
        takes milliseconds to release at once."""
        return self._corpus.release(max_tokens)

    def propose(self, budget: Budget) -> DraftTree:
        """Return a tree of likely continuations. The time grows with the number of nodes, hardly with the context."""
        self._cursors, self._grown = [], NO_TREE
        if budget.max_nodes <= 0:
            return EMPTY
        if budget.chain:
            tokens, scores, positions = self._chain(budget.max_nodes, ends=bool(budget.costs))
            count, parents = budget.cut(scores), list(range(ROOT, len(tokens) - 1))
            return self._corpus.arranged(tokens, parents, scores, positions, count) if count else EMPTY
        self._cursors = self._tracker.cursors()
        self._grown = grown = grow(self._corpus, self._cursors, self._estimates, budget, self._ngrams)
        count = budget.cut(grown.scores)
        if not count:
            return EMPTY
        return self._corpus.arranged(grown.tokens, grown.parents, grown.scores, grown.positions, count)

    def chain(self, length: int) -> tuple[list[int], list[float]]:
        """The tokens and scores of a chain, for engines that need no more and where a drafted token costs time."""
        if length <= 0:
            self._cursors, self._grown = [], NO_TREE
            return [], []
        tokens, scores, _ = self._chain(length, ends=True)
        return tokens, scores

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output, and learn from what was accepted of the last tree."""
        grown, estimates = self._grown, self._estimates
        node, taken = learn(grown, tokens, self._corpus, estimates)
        if grown.offered:  # learn from the token that the output took at the root
            offered = tokens[0] in grown.offered
            resumed = [cursor for cursor in self._cursors if cursor[1] // STRIDE == FOLLOWED_RESUMED]
            if resumed:
                weight = sum([estimates.at_root[situation] for _, situation in resumed])
                is_right = tokens[0] in [self._corpus.tokens[at] for at, _ in resumed]
                estimates.record_resumed(weight, grown.hit_prob, is_right)
            estimates.record_any(grown.hit_prob, offered)
            if grown.ngram_probs and not offered:
                predicted = [(token, share) for token, share in grown.ngram_probs if token not in grown.offered]
                expected = NGRAM_PRECISION * sum([share for _, share in predicted])
                estimates.record_ngrams(expected, any([token == tokens[0] for token, _ in predicted]))
        if not self._corpus.followed[0]:  # copies of an edit source are expected to continue
            estimates.record_pass(len(tokens))
        cursors = self._cursors if node == ROOT else grown.cursors[node]  # at the last accepted node
        self._tracker.follow(tokens, taken, cursors, estimates.deeper)
        self._corpus.extend(tokens)
        self._cursors, self._grown = [], NO_TREE

    def _chain(self, length: int, *, ends: bool) -> Chain:
        """The chain of most expected accepted tokens, cut from a larger tree; all of that tree is learned from.

        Where tokens are not free it `ends` where the output more likely does than goes on. The end itself needs no
        draft: a pass brings the token after its accepted ones. What may follow is unlikely, but long, as the prompt's
        own copy of an edited text is.
        """
        self._cursors = self._tracker.cursors()
        self._grown = grow(self._corpus, self._cursors, self._estimates, Budget(CHAIN_SEARCH * length), self._ngrams)
        tokens, scores, positions = best_chain(self._grown, self._corpus, self._estimates, length)
        grown, eos, stop = self._grown, self._corpus.eos, len(tokens)
        if not ends or eos not in grown.tokens:
            return tokens, scores, positions
        for end in [node for node, token in enumerate(grown.tokens) if token == eos]:
            before = [grown.tokens[node] for node in path_to(grown.parents, grown.parents[end])]
            at = len(before)
            if at < stop and grown.scores[end] >= scores[at] and before == tokens[:at]:
                stop = at
        return tokens[:stop], scores[:stop], positions[:stop]


@dataclass(eq=False, slots=True)
class Tracker:
    """Tracks the output's position in the row's sources by suffix matches, edit alignment and interrupted copies."""

    _corpus: CopyCorpus
    _followed: Followed
    _copied: Copied  # the last copy; at first at the start of the followed text
    _breaks: Set[int] = frozenset()
    _ngrams: NGrams | None = None
    _edit_begun: bool = False  # whether the output has begun to copy the followed text

    def cursors(self) -> list[Cursor]:
        """Return all positions that the next token may be copied from, each once, with its situation."""
        corpus, followed, copied = self._corpus, self._followed, self._copied
        anchor, output_start, kinds = copied.anchor, corpus.output_start, corpus.kinds
        alignment, by_excess = followed.alignment, followed.by_excess
        # Positions that the output may have reached, with their edit cost above the minimum.
        near = alignment.near(followed.start) if alignment is not None and followed.is_active else {}
        starts = corpus.likely_starts if alignment is None else ()
        duplicates = followed.duplicate_spans if copied.since <= MAX_GAP and anchor < followed.stop else ()
        cursors: list[Cursor] = []
        for position, length in matches(corpus):
            if duplicates and any(start < position <= stop for start, stop in duplicates):
                continue
            kind = kinds[position] if position < output_start else WRITTEN
            excess = near.get(position)
            if excess is not None:
                family = by_excess[excess]
            elif starts and any(position - back in starts for back in range(1, length + 1)):
                family = START
            elif anchor > 0 and 0 <= position - anchor <= NEAR_COPY:
                family = NEAR_BY_KIND[kind]
            else:
                family = FAR_BY_KIND[kind]
            if length == LONGEST:
                length += _beyond(corpus.tokens, position)
            cursors.append((position, family * STRIDE + length))
        if len(corpus.tokens) == output_start:
            self._add_starts(cursors)
        else:
            if isinstance(followed, FoundText) or not self._edit_begun:
                self._add_later_starts(cursors)
            if copied.since and anchor > 0:
                self._add_resumed(cursors)
        if corpus.versions:
            self._add_versions(cursors)
        return forked(corpus.tokens, cursors) if corpus.forks else cursors

    def follow(self, tokens: Sequence[int], taken: int, cursors: Sequence[Cursor], weights: Sequence[float]) -> None:
        """Append `tokens` to the output, of which the last tree held the first `taken`.

        `cursors`: those at the last accepted node. `weights`: by situation.
        """
        text, copied = self._corpus.tokens, self._copied
        best = max(cursors, key=lambda cursor: weights[cursor[1]], default=None)
        rest = len(tokens) - taken
        # The cursor follows a copy if it had a match, or if the accepted tokens began one.
        if best is not None and best[1] < UNMATCHED and (taken or LENGTH[best[1]]):
            position, copied.run, copied.since = best[0], LENGTH[best[1]], 0
            if self._corpus.versions and (version := version_of(self._corpus.versions, position)) is not None:
                position = version.source_place(position)
            self._edit_begun |= taken >= MIN_COPIED_TO_BEGIN and self._followed.start < position <= self._followed.stop
            ways = [way for way, _ in forked(text, [(position, 0)])] if self._corpus.forks else (position,)
            copied.anchor = ways[0]
            for way in ways if rest else ():
                if way < len(text) and text[way] == tokens[taken]:
                    copied.anchor = way + 1
                    rest -= 1
                    break
            if self._corpus.forks:
                copied.anchor = self._corpus.after_fork(copied.anchor)
        copied.since += rest
        copied.cursor = best
        self._followed.follow(tokens, copied)

    def _add_versions(self, cursors: list[Cursor]) -> None:
        """Add, for each cursor in the edited text, the corresponding positions of its other versions."""
        starts = (EDIT_START * STRIDE, EDIT_LATER)
        for number, version in enumerate(self._corpus.versions):
            family, seen = VERSION + min(number, VERSIONS - 1), set()
            for position, situation in cursors[:]:
                if position not in version.source or situation // STRIDE not in FAMILIES_WITH_VERSIONS:
                    continue
                place, length = version.beside(position)
                if place in version.version and place not in seen:
                    seen.add(place)
                    cursors.append((place, family * STRIDE + (LONGEST if situation in starts else length)))

    def _add_starts(self, cursors: list[Cursor]) -> None:
        """Add the cursors for the first output token, which need no match."""
        corpus, followed = self._corpus, self._followed
        if isinstance(followed, FoundText):  # a block's odds tell more than a match of the prompt's end does
            ends = {stop for _, stop in map(corpus.around, corpus.text_starts)}  # the prompt's end may match there
            cursors[:] = [cursor for cursor in cursors if cursor[0] not in corpus.text_starts and cursor[0] not in ends]
            cursors += [(start, PROMPT_START * STRIDE + bucket) for start, bucket in corpus.text_starts.items()]
            if corpus.text_starts:
                return
        seen = {position for position, _ in cursors}
        if isinstance(followed, EncoderInput):
            later = range(followed.start + 1, min(followed.start + INSTRUCTION + 1, followed.stop))
            starts = [(followed.start, INPUT_START), *((position, INPUT_LATER) for position in later)]
            cursors += [start for start in starts if start[0] not in seen]
        elif followed.start > 0:
            # Matches by chance: a prompt that ends with the edited text matches that text's end.
            cursors[:] = [cursor for cursor in cursors if cursor[0] not in (followed.start, followed.stop - 1)]
            cursors.append((followed.start, EDIT_START * STRIDE))
            # An output that does not begin with the edited text may repeat the instruction, or words of it.
            repeated = PROMPT_START * STRIDE + REPEATED_INSTRUCTION
            cursors += [(start, repeated) for start in corpus.starts(PROMPT)[-1:] if start not in seen]
        cursors += [(start, REFERENCE_START * STRIDE) for start in corpus.starts(REFERENCE) if start not in seen]

    def _add_later_starts(self, cursors: list[Cursor]) -> None:
        """Add the starts of the edited text after an introduction: a label, a sentence or other words of the model."""
        corpus, followed = self._corpus, self._followed
        tokens, written = corpus.tokens, len(corpus.tokens) - corpus.output_start
        is_break, was_break = tokens[-1] in self._breaks, written > 1 and tokens[-2] in self._breaks
        starts: list[Cursor] = []
        if isinstance(followed, FoundText):
            likely = [] if followed.is_active else corpus.likely_starts
            if is_break:
                starts = [(start, later_start(corpus.text_starts[start])) for start in likely]
            elif was_break or (written <= FIRST_DIFFER and not self._copied.anchor):
                past = 1 if was_break else written
                starts = [(start + past, later_start(corpus.text_starts[start], differs=True)) for start in likely]
        elif followed.start > 0:
            starts = self._after_label(is_break, was_break)
        if not starts:
            return
        seen = {position for position, _ in cursors}
        cursors += [start for start in starts if start[0] not in seen]

    def _after_label(self, is_break: bool, was_break: bool) -> list[Cursor]:
        """Positions at which copying the edit source may start after an introduction in the output."""
        tokens, start = self._corpus.tokens, self._followed.start
        # Texts that begin with another word are more frequent than labels of one token.
        is_label = len(tokens) - self._corpus.output_start >= MIN_LABEL and self._copied.anchor == start
        quotations = self._corpus.quotations[-1:] if is_label else ()
        if is_break or any(tokens[place - 1] == tokens[-1] for place in quotations):
            # In the prompt its first token may differ, because a space precedes it.
            other = [(place, EDIT_LATER) for place in quotations if tokens[place] != tokens[start]]
            return [(start, EDIT_LATER), *other]
        before = [(place - 1, EDIT_LABEL) for place in quotations]
        return [*before, (start + 1, EDIT_LATER_DIFFERS)] if was_break else before

    def _add_resumed(self, cursors: list[Cursor]) -> None:
        """Add positions at which an interrupted copy may resume after a substitution, insertion or deletion."""
        corpus, followed, copied = self._corpus, self._followed, self._copied
        anchor, since = copied.anchor, copied.since
        kind = corpus.kinds[anchor] if anchor < corpus.output_start else WRITTEN
        is_followed = followed.is_active and followed.start <= anchor <= followed.stop
        if is_followed or kind == EDIT:
            if since > RESUME_FOLLOWED_WITHIN:
                return
        elif since > RESUME_WITHIN or copied.run < MIN_RUN_TO_RESUME:
            return
        seen = {position for position, _ in cursors}
        family = (followed.resumed if is_followed else RESUMED_BY_KIND[kind]) * STRIDE
        end = len(corpus.tokens) if kind == WRITTEN else corpus.output_start
        # After an insertion, a substitution, a deletion; of one to three tokens, several of each.
        tried = (0, 1, 2, 3) if since < 4 else (0, since, since - 1)
        shifts = [
            shift
            for shift in tried
            if anchor + shift < end and (kind == WRITTEN or corpus.kinds[anchor + shift] == kind)
        ]
        if is_followed or kind == EDIT:
            shift_columns = columns(corpus.tokens, anchor, since, shifts, self._ngrams)
        else:
            shift_columns = [resumed(since, shift) for shift in shifts]
        cursors += [
            (anchor + shift, family + column)
            for shift, column in zip(shifts, shift_columns, strict=True)
            if anchor + shift not in seen
        ]


def _beyond(tokens: list[int], position: int) -> int:
    """Count the lengths in LONG_RUNS that the match before `position` reaches; it is known to reach LONGEST."""
    known, end = LONGEST, len(tokens)
    for reached, length in enumerate(LONG_RUNS):
        if position < length or tokens[position - length : position - known] != tokens[end - length : end - known]:
            return reached
        known = length
    return len(LONG_RUNS)


def grow(
    corpus: CopyCorpus,
    cursors: list[Cursor],
    estimates: Estimates,
    budget: Budget,
    ngrams: NGrams | None = None,
    predictors: Sequence[PredictorCalls] = (),
) -> Grown:
    """Grow the tree of `growth.grow` with bit-identical scores; the compiled module takes a tenth of the time."""
    if COMPILED is None or (ngrams is not None and ngrams.arrays is None):
        return growth.grow(corpus, cursors, estimates, budget, ngrams, predictors)
    grown = COMPILED.grow(
        BREAKING_TABLES if estimates.copies_break else TABLES,
        corpus.tokens,
        corpus.kinds,
        corpus.places,
        corpus.written,
        cursors,
        estimates.at_root,
        estimates.deeper,
        estimates.crowds,
        corpus.substitutes.packed,
        SUBSTITUTE_RATIOS,
        estimates.miss_at_root,
        estimates.miss_deeper,
        estimates.ngram_scale,
        estimates.common,
        corpus.common,
        budget.max_nodes,
        budget.costs,
        None if ngrams is None else ngrams.arrays,
        tuple(predictors),
    )
    return Grown(*grown)


def best_chain(grown: Grown, corpus: CopyCorpus, estimates: Estimates, length: int) -> Chain:
    """Return the first `length` tokens of the chain of most expected accepted tokens, with scores and positions. A
    shorter chain is lengthened by nodes appended to `grown`. In C if compiled, else `growth.best_chain`."""
    if COMPILED is None:
        return growth.best_chain(grown, corpus, estimates, length)
    chain: Chain = COMPILED.best_chain(
        TABLES,
        corpus.tokens,
        estimates.deeper,
        estimates.miss_deeper,
        grown.tokens,
        grown.parents,
        grown.scores,
        grown.positions,
        grown.cursors,
        length,
    )
    return chain


def learn(grown: Grown, tokens: Sequence[int], corpus: CopyCorpus, estimates: Estimates) -> tuple[int, int]:
    """Follow the output's next `tokens` through the tree, and update the records of `estimates` and the substitutes of
    `corpus`. Returns the last accepted node and the number accepted. In C if compiled, else `growth.learn`."""
    if COMPILED is None:
        return growth.learn(grown, tokens, corpus, estimates)
    accepted: tuple[int, int] = COMPILED.walk(
        RATES,
        tokens,
        grown.tokens,
        grown.parents,
        grown.scores,
        grown.positions,
        grown.cursors,
        corpus.tokens,
        corpus.output_start,
        corpus.substitutes.packed,
        estimates.records,
        estimates.priors,
        estimates.at_root,
        estimates.deeper,
    )
    return accepted


def columns(tokens: list[int], anchor: int, since: int, shifts: list[int], ngrams: NGrams | None) -> Iterable[int]:
    """Return, for each shift, the column of a copy that resumes at `anchor` + shift, by its odds; `anchor`: where it
    broke off, `since` tokens ago. In C if compiled and `ngrams` are known, else `resumptions.columns`."""
    if COMPILED is None or ngrams is None or ngrams.arrays is None:
        return resumptions.columns(tokens, anchor, since, shifts, ngrams)
    shift_columns: list[int] = COMPILED.columns(
        TABLES, ODDS, tokens, anchor, since, shifts, ngrams.small_words, ngrams.word_pieces, ngrams.arrays
    )
    return shift_columns
