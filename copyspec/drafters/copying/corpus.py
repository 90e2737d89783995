"""The corpus of a row: its sources and its growing output as one token sequence, with an index by token.

A source may hold forks: positions at which the output may either continue with the source or end there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from operator import attrgetter
from types import NoneType

import numpy as np
from numpy.typing import NDArray

from copyspec.drafters.copying.native_module import COMPILED
from copyspec.drafters.copying.substitutes import Substitutes
from copyspec.drafters.copying.versions import Version, VersionComparisons, find_versions
from copyspec.sources import EVEN_ODDS, FORK, OUTPUT, Source
from copyspec.tree import DraftTree, Origin, chain_first_order

SEPARATOR = -1
"""Separator between sources: it equals no token, so no match or copy crosses it. Other negative entries are forks: FORK
itself until its target is known, then -p (below FORK): the text continues after the fork or at position p."""

EDIT, REFERENCE, PROMPT, WRITTEN = range(4)
"""Kinds of position, in order of trust; WRITTEN is the row's own output."""

LIKELY = EVEN_ODDS - 3
"""Starts in an odds bucket from here on are likely enough that a match there has situations of its own."""

QUESTION_ODDS, STATEMENT_ODDS, QUESTION_TOKENS = EVEN_ODDS, EVEN_ODDS - 2, 256
"""Blocks with at most these odds of an edited text (the first where a block ends with a question mark, the second where
not) and fewer tokens than this in all are likely a question: answers take words from it, but seldom copy it."""

LONGEST = 16
"""Matches are measured up to this length, in tokens."""

FEW = 24  # up to this many occurrences, a loop is cheaper than array operations
RECENT = 32  # latest occurrences kept of each match length
MANY = 4096  # latest occurrences searched, which bounds the time if one token fills the text

COMMON_TOKENS = 16
OWN_COUNT = 3  # an output token counts as many source tokens in the token frequencies
_KINDS = {"edit": EDIT, "reference": REFERENCE, "prompt": PROMPT, "block": REFERENCE}
_DUPLICATE_TOKENS = 8  # a shorter reference may occur in a prompt by chance

_make_origin = partial(tuple.__new__, Origin)  # called for every node, and twice as fast as calling the class


class CopyCorpus:
    """All tokens that a row may copy from, addressed by position in one list.

    Sources that the output may copy to their end are followed by an end-of-sequence token. The last prompt comes last
    and the output directly after it, so that matches can span both. Where a prompt quotes another source of the row,
    only the source is indexed, because the same text is no additional evidence.

    `at_once`: False leaves the index to `prepare`, for callers that cannot wait until long texts are indexed.
    `comparisons`: those of all rows of the call; None: this corpus makes its own.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        eos: Collection[int] | int | None,
        continues_prompt: bool = True,
        *,
        at_once: bool = True,
        comparisons: VersionComparisons | None = None,
    ) -> None:
        if not isinstance(eos, (int, NoneType)):
            eos = _last_used(sources, eos) if len(eos) > 1 else min(eos, default=None)
        self.eos = eos
        """The token that is drafted where the output may end; None: none."""
        self.tokens: list[int] = [SEPARATOR]
        self.kinds: list[int] = [PROMPT]  # by position, up to the first one of the output
        self._starts: list[int] = []  # first position of each source, ascending
        self._sources: list[int] = []  # the index of each in `sources`
        self._lengths: list[int] = []
        prompts = [index for index, source in enumerate(sources) if source.kind == "prompt"]
        self._prompts = frozenset(prompts)
        last = prompts[-1] if prompts and continues_prompt else None
        edits = [index for index, source in enumerate(sources) if source.kind == "edit"]
        self.follows_input = not continues_prompt and not edits and bool(prompts)
        """Whether the followed text is an encoder's input, which the output may edit or not."""
        followed = prompts[-1] if self.follows_input else edits[0] if edits else None
        blocks = [source for source in sources if source.kind == "block"]
        self.is_question = bool(blocks) and _looks_like_question(blocks)
        """Whether the blocks are likely a question, see `QUESTION_ODDS`."""
        self.forks: dict[int, int] = {}
        """Position of each fork, by the position at which its alternative starts. `tokens` holds the reverse."""
        self._ends = range(0)
        self.followed = (0, 0)
        """Start and end position (at its SEPARATOR) of the text that the output may follow in order; (0, 0): none."""
        self.text_starts: dict[int, int] = {}
        """Positions in blocks at which the edited text may start, each with the bucket of its odds."""
        self._block_spans: dict[int, tuple[int, int]] = {}  # start of a block -> its span in the prompt
        self._lay_out(sources, eos, last, followed)
        self.output_start = len(self.tokens)
        self.likely_starts = {start for start, bucket in self.text_starts.items() if bucket >= LIKELY}
        self.kinds.append(WRITTEN)  # of the first position of the output
        self._array: NDArray[np.int64] | None = None
        self.places: dict[int, list[int]] = {}  # token -> the positions after it, before the output
        self.written: dict[int, list[int]] = {}  # token -> the positions after it, in the output
        self.substitutes = Substitutes()
        self._arrays: dict[int, NDArray[np.int64]] = {}
        may_have_versions = edits and len(sources) > len(edits) + len(prompts)
        self.versions = self._find_versions(comparisons) if may_have_versions else []
        """References that are other versions of the edited text. They are followed beside it, and not indexed."""
        # `quotations`: where prompts quote the followed text, as positions of its first token there.
        quoted, self.quotations = self._find_quotations()
        left_out = [*quoted, *(version.version for version in self.versions), self._ends]
        self._left_out = sorted(left_out, key=attrgetter("start", "stop"))  # spans that are not indexed
        self._indexed = 0
        self._counts: dict[int, int] = {}
        self.common: list[int] = []
        """The most frequent tokens of the text so far, most frequent first."""
        if at_once:
            self.prepare(len(self.tokens))

    def after_fork(self, position: int) -> int:
        """Map a position in a fork's alternative back to the source: to where the text continues after the fork.

        Other positions are returned as they are."""
        if position not in self._ends:
            return position
        start = position
        while start not in self.forks:
            start -= 1
        return self.forks[start] + (2 if position > start else 1)

    def prepare(self, max_tokens: int) -> bool:
        """Index the next `max_tokens`. Returns whether all are: before that, nothing may be drafted or appended."""
        text, places, at = self.tokens, self.places, self._indexed
        stop = min(at + max_tokens, len(text))
        if stop - at < len(text):  # `array` would take milliseconds at once
            if self._array is None:
                self._array = np.empty(self.output_start, dtype=np.int64)
            self._array[at:stop] = text[at:stop]
        for span in [*self._left_out, range(stop, stop)]:
            end = min(span.start, stop)
            if COMPILED is not None:
                COMPILED.index(text, places, at, end)
            else:
                for position in range(at, end):
                    if text[position] >= 0:
                        places.setdefault(text[position], []).append(position + 1)
            at = min(max(at, span.stop), stop)
        self._indexed = stop
        if stop < len(text):
            return False
        self._counts = {token: len(places) for token, places in places.items()}
        self.common = sorted(self._counts, key=self._counts.__getitem__, reverse=True)[:COMMON_TOKENS]
        return True

    def release(self, max_tokens: int) -> bool:
        """Release the index of about `max_tokens`, which is of no use afterwards. Returns whether nothing is left."""
        while self.places and max_tokens > 0:
            max_tokens -= len(self.places.popitem()[1])
        return not self.places

    def extend(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output."""
        text, written, counts, common = self.tokens, self.written, self._counts, self.common
        if COMPILED is not None:
            COMPILED.extend(text, written, counts, common, tokens, OWN_COUNT, COMMON_TOKENS)
            return
        for token in tokens:
            text.append(token)
            if token in written:
                written[token].append(len(text))
            else:
                written[token] = [len(text)]
            count = counts[token] = counts.get(token, 0) + OWN_COUNT
            if len(common) < COMMON_TOKENS or count >= counts[common[-1]]:
                self._rank(token, count)

    def _rank(self, token: int, count: int) -> None:
        """Update the rank of a token, now of frequency `count`, among the common ones."""
        counts, common = self._counts, self.common
        if token in common:
            rank = common.index(token)
        elif len(common) < COMMON_TOKENS:
            rank = len(common)
            common.append(token)
        elif count > counts[common[-1]]:
            rank = len(common) - 1
            common[-1] = token
        else:
            return
        while rank > 0 and counts[common[rank - 1]] < count:
            common[rank], common[rank - 1] = common[rank - 1], token
            rank -= 1

    @property
    def array(self) -> NDArray[np.int64]:
        """`tokens` before the output."""
        if self._array is None:
            self._array = np.array(self.tokens[: self.output_start], dtype=np.int64)
        return self._array

    def place_array(self, token: int) -> NDArray[np.int64]:
        """Return the last MANY of `places[token]` as a cached array, for tokens with many occurrences."""
        array = self._arrays.get(token)
        if array is None:
            array = self._arrays[token] = np.array(self.places[token][-MANY:], dtype=np.int64)
        return array

    def origins(self, positions: Sequence[int]) -> list[Origin | None]:
        """Return the source and offset of the token at each position; None for positions below 0, and for the added
        end-of-sequence tokens, which belong to no source."""
        origins: list[Origin | None] = []
        start = stop = source = -1  # source of the previous position, which is mostly the same
        for position in positions:
            if not start <= position < stop:
                if position < 0:
                    origins.append(None)
                    continue
                if position >= self.output_start:
                    source, start, stop = OUTPUT, self.output_start, len(self.tokens)
                else:
                    which = bisect_right(self._starts, position) - 1
                    source, start = self._sources[which], self._starts[which]
                    stop = start + self._lengths[which]
            origins.append(_make_origin((source, position - start)) if position < stop else None)
        return origins

    def arranged(
        self, tokens: list[int], parents: list[int], scores: list[float], positions: list[int], count: int
    ) -> DraftTree:
        """Return the first `count` nodes of a grown tree, the most likely chain first (`chain_first_order`)."""
        if COMPILED is not None:
            starts, sources, lengths = self._starts, self._sources, self._lengths
            begin, end = self.output_start, len(self.tokens)
            return DraftTree(
                *COMPILED.arrange(
                    tokens, parents, scores, positions, count, starts, sources, lengths, begin, end, Origin
                )
            )
        tree = DraftTree(tokens, parents, scores, self.origins(positions[:count]))
        return tree.in_order(chain_first_order(parents, count))

    def starts(self, kind: int) -> list[int]:
        """Return the first positions of the sources of `kind`."""
        return [start for start in self._starts if start < self.output_start and self.kinds[start] == kind]

    def around(self, position: int) -> tuple[int, int]:
        """Return start and end (exclusive) of the source that holds `position` or ends there."""
        which = bisect_right(self._starts, position) - 1
        return self._starts[which], self._starts[which] + self._lengths[which]

    def duplicate_spans(self, start: int) -> list[tuple[int, int]]:
        """Return the spans of the other blocks that overlap, in the prompt, with the block that starts at `start`."""
        here = self._block_spans.get(start)
        if here is None:
            return []
        return [
            self.around(other)
            for other, place in self._block_spans.items()
            if other != start and place[0] < here[1] and here[0] < place[1]
        ]

    def _lay_out(self, sources: Sequence[Source], eos: int | None, last: int | None, followed: int | None) -> None:
        """Append all sources, and note where the followed text, the possible starts and the blocks stand.

        `last`: index of the prompt directly before the output. `followed`: that of the followed text."""
        has_forks = any([source.ends for source in sources])
        order = [index for index in range(len(sources)) if index != last]
        for index in order if last is None else [*order, last]:
            if index == last and has_forks:
                self._add_ends(sources, eos)
            start = len(self.tokens)
            self._add(index, sources[index], eos, ends=sources[index].kind != "prompt" or index == followed)
            if index == followed:
                self.followed = (start, len(self.tokens) - 1)
        if last is not None:
            del self.tokens[-1], self.kinds[-1]
        elif has_forks:
            self._add_ends(sources, eos)
        for index, start in zip(self._sources, self._starts, strict=True):
            source = sources[index]
            for token, bucket in source.starts:
                self.text_starts[start + token] = bucket
            if source.place is not None:
                self._block_spans[start] = source.place

    def _add(self, index: int, source: Source, eos: int | None, *, ends: bool) -> None:
        """Append a source. `ends`: the output may end where it ends, so `eos` is added unless a prompt has it."""
        kind = PROMPT if self.is_question and source.kind == "block" else _KINDS[source.kind]
        self._starts.append(len(self.tokens))
        self._sources.append(index)
        self._lengths.append(len(source.tokens))
        self.tokens.extend(source.tokens)
        if ends and eos is not None and not (kind == PROMPT and self.tokens[-1] == eos):
            self.tokens.append(eos)
        self.tokens.append(SEPARATOR)
        self.kinds.extend([kind] * (len(self.tokens) - len(self.kinds)))

    def _add_ends(self, sources: Sequence[Source], eos: int | None) -> None:
        """Append the alternatives of all forks (closing tokens and `eos`), after and outside all sources so far."""
        ends_start = len(self.tokens)
        for index, start, length in list(zip(self._sources, self._starts, self._lengths, strict=True)):
            ends = iter(sources[index].ends)
            for position in range(start, start + length) if sources[index].ends else ():
                if self.tokens[position] != FORK:
                    continue
                self.forks[len(self.tokens)] = position
                self.tokens[position] = -len(self.tokens)
                end = next(ends, ())
                self.tokens += [*end, SEPARATOR if eos is None else eos, SEPARATOR]
                self.kinds += [self.kinds[position]] * (len(end) + 2)
        self._ends = range(ends_start, len(self.tokens))

    def _find_versions(self, comparisons: VersionComparisons | None) -> list[Version]:
        start, stop = self.followed
        if not start or self.kinds[start] != EDIT:
            return []
        references = [range(begin, self.around(begin)[1] + 1) for begin in self.starts(REFERENCE)]
        return find_versions(self.tokens, range(start, stop), references, comparisons)

    def _find_quotations(self) -> tuple[list[range], list[int]]:
        """Where prompts quote the other sources, without the first token and the last one; and the positions of the
        first token where they quote the followed text."""
        quoted: list[range] = []
        of_followed: list[int] = []
        places = list(zip(self._sources, self._starts, self._lengths, strict=True))
        if not self._prompts or len(places) == len(self._prompts):
            return quoted, of_followed
        characters: dict[int, str] = {}  # one for each token: strings are searched in linear time
        prompts: list[tuple[int, str]] = []
        for index, start, length in places:
            if index in self._prompts:
                tokens = self.tokens[start : start + length]
                prompts.append(
                    (start, "".join([characters.setdefault(token, chr(len(characters))) for token in tokens]))
                )
        for index, start, length in places:
            # In the prompt, the first and last token may have merged with the text around the quotation.
            if index in self._prompts:
                continue
            spans = self._unforked(start, start + length) if self.forks else [(start, start + length)]
            for begin, stop in spans:
                inside = "".join([characters.get(token, "") for token in self.tokens[begin + 1 : stop - 1]])
                if len(inside) < max(_DUPLICATE_TOKENS, stop - begin) - 2:  # short, or with tokens of no prompt
                    continue
                for first, text in prompts:
                    at = text.find(inside)
                    while at >= 0:
                        if begin == self.followed[0]:
                            of_followed.append(first + at - 1)
                        quoted.append(range(first + at, first + at + len(inside) - 1))
                        at = text.find(inside, at + len(inside))
        return quoted, of_followed

    def _unforked(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The spans of a source between its forks."""
        for position in sorted(fork for fork in self.forks.values() if start <= fork < stop):
            yield start, position
            start = position + 1
        yield start, stop


def matches(corpus: CopyCorpus) -> list[tuple[int, int]]:
    """Return (position, length) of the earlier occurrences of the text's last token; of very many, the longest and
    latest.

    The `length` tokens before `position` (at most LONGEST) equal the text's end, so the token there may come next.
    """
    tokens = corpus.tokens
    end, last = len(tokens), tokens[-1]
    measured: list[tuple[int, int]] = []
    groups: list[tuple[list[int], int]] = []  # occurrences, and how many tokens before each are known to match
    places = corpus.places.get(last)
    if places is not None:
        groups.append((places, 1) if len(places) <= FEW else _narrowed(corpus, last, measured))
    written = corpus.written.get(last)
    if written is not None:
        if len(written) > RECENT + 1:  # the last one is the text's end itself
            before = tokens[end - 2]
            older = [place for place in written[-MANY : -RECENT - 1] if tokens[place - 2] == before]
            groups.append((older[-RECENT:], 1))
        groups.append((written[-RECENT - 1 :], 1))
    for occurrences, known in groups:
        before = tokens[end - 1 - known]
        for place in occurrences:
            if place >= end:  # the text's end itself
                continue
            length = known
            if before >= 0 and length < LONGEST and tokens[place - 1 - length] == before:
                length += 1
                while length < LONGEST and tokens[place - 1 - length] == tokens[end - 1 - length] >= 0:
                    length += 1
            measured.append((place, length))
    return measured


def _narrowed(corpus: CopyCorpus, last: int, measured: list[tuple[int, int]]) -> tuple[list[int], int]:
    """Measure many matches of the text's end, whose token is `last`, at once, one token at a time, until FEW are left.

    Returns those and their length so far; appends the shorter ones, with their lengths, to `measured`."""
    tokens, array = corpus.tokens, corpus.array
    end = len(tokens)
    places = corpus.place_array(last)
    if places[-1] >= end:
        places = places[:-1]
    length = 1
    while len(places) > FEW and length < LONGEST and tokens[end - 1 - length] >= 0:
        longer = array[places - 1 - length] == tokens[end - 1 - length]
        shorter = places[~longer][-RECENT:]
        measured.extend((place, length) for place in shorter.tolist())
        places = places[longer]
        length += 1
    return places[-RECENT:].tolist(), length


def _looks_like_question(blocks: Sequence[Source]) -> bool:
    """Whether the blocks are short in all, and no start in them is likely to be that of an edited text: likelier than
    even, or than 1 to 4 in a block that does not end with a question mark."""
    likely = any(
        bucket > (QUESTION_ODDS if block.asks else STATEMENT_ODDS) for block in blocks for _, bucket in block.starts
    )
    return not likely and sum(len(block.tokens) for block in blocks) < QUESTION_TOKENS


def _last_used(sources: Sequence[Source], eos: Collection[int]) -> int:
    """The token of `eos` that ends the last turn of the prompt, if any does."""
    for source in reversed(sources):
        if source.kind == "prompt":
            for token in reversed(source.tokens):
                if token in eos:
                    return token
    return min(eos)
