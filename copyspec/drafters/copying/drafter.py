"""The copy drafter: drafts one tree from all sources of a row, and learns from what is accepted."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from functools import cache

from copyspec.budget import Budget
from copyspec.drafters.copying.alignment import align
from copyspec.drafters.copying.chains import Chain
from copyspec.drafters.copying.compiled import best_chain, grow, walk
from copyspec.drafters.copying.context import CopyContext
from copyspec.drafters.copying.cursors import Tracker
from copyspec.drafters.copying.estimates import NGRAM_PRECISION, Estimates
from copyspec.drafters.copying.followed import Copied, EditedText, EncoderInput, Followed, FoundText
from copyspec.drafters.copying.growth import Cursor, Grown
from copyspec.drafters.copying.situations import FOLLOWED_RESUMED, STRIDE
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.sources import Source
from copyspec.tree import EMPTY, ROOT, DraftTree

CHAIN_SEARCH = 2
"""To find the best chain of n tokens, a tree of this many times n nodes is grown: 3 and 5 find no better ones."""

NOTHING = Grown()  # the empty tree; never changed


@cache
def _wide(max_nodes: int) -> Budget:
    """The budget of the tree that a chain of `max_nodes` tokens is cut from."""
    return Budget(CHAIN_SEARCH * max_nodes)


class CopyDrafter:
    """Drafts by copying from a row's sources, its prompt and its own output.

    `eos`: drafted where the edited text or a reference ends; of several tokens the one that the prompt used last (chat
    templates end every turn with it); None: no end is drafted. `continues_prompt`: the last source of kind `prompt`
    stands directly before the output, as for decoder-only models. If it does not and there is no edit source, that
    prompt is followed as a text that the output may edit. `ngrams`: in the target's tokens, for where there is nothing
    to copy. `breaks`: tokens that may end an introduction before the edited text. `at_once`: False leaves the index of
    the sources to `prepare`.
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
    ) -> None:
        self._ngrams = ngrams
        self._corpus = corpus = CopyContext(sources, eos, continues_prompt, at_once=at_once)
        followed: Followed = FoundText(corpus)
        if corpus.followed[0]:
            (start, stop), kind = corpus.followed, EncoderInput if corpus.follows_input else EditedText
            followed = kind(corpus, start, stop, align(corpus.tokens[start:stop], kind.free))
        self._tracker = Tracker(corpus, followed, Copied(anchor=followed.start), breaks, ngrams)
        self._estimates = Estimates(found=bool(corpus.text_starts), is_question=corpus.is_question)
        self._cursors: list[Cursor] = []
        self._grown = NOTHING

    def prepare(self, most: int) -> bool:
        """Index the next `most` tokens of the sources; whether all are, which is needed before any other call."""
        return self._corpus.prepare(most)

    def free(self, most: int) -> bool:
        """Free the index of about `most` tokens, when the drafter is done; whether nothing is left. A long index takes
        milliseconds to free at once."""
        return self._corpus.free(most)

    def propose(self, budget: Budget) -> DraftTree:
        """Return a tree of likely continuations. The time grows with the number of nodes, hardly with the context."""
        self._cursors, self._grown = [], NOTHING
        if budget.max_nodes <= 0:
            return EMPTY
        if budget.chain:
            tokens, scores, positions = self._chain(budget.max_nodes)
            count, parents = budget.cut(scores), list(range(ROOT, len(tokens) - 1))
            return DraftTree(*self._corpus.arranged(tokens, parents, scores, positions, count)) if count else EMPTY
        self._cursors = self._tracker.cursors()
        self._grown = grown = grow(self._corpus, self._cursors, self._estimates, budget, self._ngrams)
        count = budget.cut(grown.scores)
        if not count:
            return EMPTY
        return DraftTree(*self._corpus.arranged(grown.tokens, grown.parents, grown.scores, grown.positions, count))

    def chain(self, length: int) -> tuple[list[int], list[float]]:
        """The tokens and scores of `propose(Budget(length, chain=True))`, for engines that need no more."""
        if length <= 0:
            self._cursors, self._grown = [], NOTHING
            return [], []
        tokens, scores, _ = self._chain(length)
        return tokens, scores

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output, and learn from what was accepted of the last tree."""
        grown, estimates = self._grown, self._estimates
        node, taken = walk(grown, tokens, self._corpus, estimates)
        if grown.offered:  # learn from the token that the output took at the root
            offered = tokens[0] in grown.offered
            resumed = [cursor for cursor in self._cursors if cursor[1] // STRIDE == FOLLOWED_RESUMED]
            if resumed:
                weight = sum([estimates.at_root[state] for _, state in resumed])
                is_right = tokens[0] in [self._corpus.tokens[at] for at, _ in resumed]
                estimates.record_resumed(weight, grown.covered, is_right)
            estimates.record_any(grown.covered, offered)
            if grown.words and not offered:
                predicted = [(each, share) for each, share in grown.words if each not in grown.offered]
                expected = NGRAM_PRECISION * sum([share for _, share in predicted])
                estimates.record_words(expected, any([each == tokens[0] for each, _ in predicted]))
        if not self._corpus.followed[0]:  # copies of an edit source are expected to continue
            estimates.record_pass(len(tokens))
        cursors = self._cursors if node == ROOT else grown.cursors[node]  # at the last accepted node
        self._tracker.follow(tokens, taken, cursors, estimates.deeper)
        self._corpus.extend(tokens)
        self._cursors, self._grown = [], NOTHING

    def _chain(self, length: int) -> Chain:
        """The chain of most expected accepted tokens, cut from a larger tree; all of that tree is learned from."""
        self._cursors = self._tracker.cursors()
        self._grown = grow(self._corpus, self._cursors, self._estimates, _wide(length), self._ngrams)
        return best_chain(self._grown, self._corpus, self._estimates, length)
