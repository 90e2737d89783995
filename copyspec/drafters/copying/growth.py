"""Growing one tree from many cursors, best first."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf
from typing import Any

from copyspec.budget import Budget
from copyspec.drafters.copying.context import WRITTEN, CopyContext
from copyspec.drafters.copying.estimates import Estimates
from copyspec.drafters.copying.situations import (
    AFTER_SUBSTITUTE,
    COUNT,
    CROWD_ROW,
    FAR_BY_KIND,
    LENGTH,
    NEXT_SITUATION,
    STRIDE,
    crowd_columns,
)
from copyspec.drafters.copying.substitutes import COLUMNS
from copyspec.drafters.predictors.base import Words
from copyspec.drafters.predictors.ngrams import KEY_BITS, KEY_MASK, KEY_TOKENS, ORDERS, NGrams, context
from copyspec.sources import FORK
from copyspec.tree import ROOT

Cursor = tuple[int, int]
"""(position in the corpus, situation): a hypothesis that the token at the position comes next."""

NOWHERE = -1  # position of a token that no cursor stands at: a common one
LEAST_SCORE = 0.001  # of a node: below, nothing is worth its cost on any device
SURE = 6.0  # weight of the cursors at a node above which no others join them
JOIN = 4  # cursors that join a node, of the sources and of the output
KEEP = 24  # cursors that move on together: bounds the time in text that repeats itself
LATER = 0.25  # a node's own score times this is the rank at which its children are looked for
LATER_COPY = 0.35  # the same after a single cursor: it takes one node, not several
LATER_BREAKING = 0.24  # the same where copies break off soon: what else could come is worth more than their length
OPEN = 0.15  # probability that no cursor at the root is right, from which words of the language are looked for
STILL_OPEN = 0.02  # the same of a node deeper, times its score: there words are as rare as they are dear to look for
FEWEST = 0.003  # score of such a word, or of a common token: below, it hardly ever finds a place in a tree
CHILDREN, COPY = -2, -3  # in place of a token in a heap: the children of a node, or a sure copy's, not looked for yet

JOINED = [FAR_BY_KIND[kind] * STRIDE + 1 for kind in range(len(FAR_BY_KIND))]
"""The situation of a cursor that joins a node, by kind of its position."""


@dataclass(slots=True)
class Grown:
    """A tree as it grew: scores fall, but for small steps. The lists are by node."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)  # of the token, where the heaviest cursor stood, or NOWHERE
    cursors: list[list[Cursor]] = field(default_factory=list)  # those that were right, moved on
    offered: set[int] = field(default_factory=set)  # tokens that something at the root says come next
    covered: float = 0.0  # their probability
    context: int = 0  # the key of the n-grams' context at the root
    words: Words = ()  # of the language, that may come first: with their shares where nothing offered is right


_Entry = tuple[float, int, int, int, int, list[Cursor]]
"""(-score, order, token, parent, position, cursors that were right and have moved on)."""

_Vote = list[Any]
"""What is known of one next token: weight, position of the heaviest cursor at it, its cursors moved on, weight of the
heaviest. A list, for weights are added in place."""


def grow(
    corpus: CopyContext, cursors: list[Cursor], estimates: Estimates, budget: Budget, ngrams: NGrams | None = None
) -> Grown:
    """The most likely nodes, best first, until the budget is full or no further node can pay for its cost.

    Cursors at equal tokens share a node and add their weights: P(token) = weight of its cursors /
    (weight of all cursors + weight of none being right). `ngrams` share out the latter, as far as they know what
    comes next. A node's score is the product along its path.

    What comes after a node waits until nothing is left that is likelier than LATER times the node: a call that ends
    where a copy would have gone on loses little, for the next one goes on there. Less still where copies break off
    soon anyway (`Estimates.copies_break`).

    Raises ValueError for weights, costs, cursors and common tokens that are none.
    """
    _check(corpus, cursors, estimates, budget)
    grown, text, weights = Grown(), corpus.tokens, estimates.deeper
    add_token, add_parent, add_score = grown.tokens.append, grown.parents.append, grown.scores.append
    add_position, add_cursors = grown.positions.append, grown.cursors.append
    heap, _ = roots(corpus, cursors, estimates, grown, ngrams)
    later_copy = LATER_BREAKING if estimates.copies_break else LATER_COPY
    end, none, order, count, replaced = len(text), estimates.none_deeper, 1, 0, corpus.substitutes.places
    max_nodes, costs = budget.max_nodes, budget.costs
    cheapest = min([after - before for before, after in pairwise(costs)]) if len(costs) > 1 else 0.0
    expected, least = 1.0, max(LEAST_SCORE, cheapest)  # the latter of a node that may raise the tokens per time
    while heap and -heap[0][0] > LATER * least:
        negative, _, token, parent, position, group = heappop(heap)
        if token == CHILDREN:
            if grown.scores[parent] > least:
                for child in children(corpus, group, estimates, grown, parent, ngrams, order)[0]:
                    if -child[0] > least:
                        heappush(heap, child)
                order += 1
            continue
        if token == COPY:
            negative = -grown.scores[parent]
        while True:  # along a copy, until something else comes first
            if token == COPY:
                position, state = group[0]
                token, weight = text[position], weights[state]
                negative *= weight / (weight + none)
                group = [(position + 1, NEXT_SITUATION[state])]
            if not -negative > least:
                break
            if costs:
                expected -= negative
                least = max(least, cheapest * expected / costs[count + 1])
            add_token(token)
            add_parent(parent)
            add_score(-negative)
            add_position(position)
            add_cursors(group)
            parent, count, order = count, count + 1, order + 1
            if count == max_nodes:
                return grown
            token, rank = CHILDREN, negative * LATER
            if len(group) == 1:
                rank = negative * later_copy
                position, state = group[0]
                is_open = position < corpus.output_start and text[position] in replaced
                if position < end and weights[state] >= SURE and text[position] >= 0 and not is_open:
                    token = COPY
                    if not heap or rank < heap[0][0]:
                        continue
            heappush(heap, (rank, order, token, parent, NOWHERE, group))
            break
    return grown


def _check(corpus: CopyContext, cursors: list[Cursor], estimates: Estimates, budget: Budget) -> None:
    """Raises ValueError for arguments that no tree can grow from, as the compiled module does."""
    for none in (estimates.none_at_root, estimates.none_deeper):
        if not 0.0 < none < inf:
            raise ValueError(f"the weight of none being right is {none!r}; it is a number above 0")
    if not 0.0 <= estimates.language < inf:
        raise ValueError(f"the factor of the language is {estimates.language!r}; it is a number from 0")
    if budget.max_nodes < 1:
        raise ValueError(f"max_nodes is {budget.max_nodes!r}; a tree has at least 1")
    for cost in budget.costs:
        if not 0.0 < cost < inf:
            raise ValueError(f"costs are numbers above 0, got {cost!r}")
    positions = len(corpus.tokens)
    for place in corpus.substitutes.places.values():
        if not 0 < place // COLUMNS < positions:
            raise ValueError(f"no place of a substitute: {place!r}; there are {positions} positions")
    for at, state in cursors:
        if not (0 <= at < positions and 0 <= state < COUNT):
            raise ValueError(f"no cursor: {(at, state)!r}; there are {positions} positions and {COUNT} situations")
    if min(corpus.common, default=0) < 0 or len(set(corpus.common)) < len(corpus.common):
        raise ValueError(f"common tokens are different ids from 0, got {corpus.common!r}")


def checked_total(total: float) -> float:
    """`total`, if it is one that weights can be divided by."""
    if not 0.0 < total < inf:
        raise ValueError(
            f"weights add up to {total!r}; they are numbers from 0, and that of none being right is above it"
        )
    return total


def later(group: list[Cursor]) -> float:
    """A node's score times this is the rank at which what comes after it, where `group` stands, is looked for."""
    return LATER_COPY if len(group) == 1 else LATER


def forked(text: list[int], cursors: list[Cursor]) -> list[Cursor]:
    """The cursors, those at a fork on both of its ways."""
    end = len(text)
    if not any([at < end and text[at] < FORK for at, _ in cursors]):
        return cursors
    found = []
    for at, state in cursors:
        if at < end and text[at] < FORK:
            if -text[at] >= end or at + 1 >= end:
                raise ValueError(f"the fork at {at} leads to {text[at]}; the text has {end} positions")
            found += [(at + 1, state), (-text[at], state)]
        else:
            found.append((at, state))
    return found


def join(corpus: CopyContext, token: int, group: list[Cursor]) -> None:
    """Adds to a node's cursors the places that agree with the drafted path by its last token only."""
    seen = {position for position, _ in group}
    seen.add(len(corpus.tokens))
    kinds = corpus.kinds
    for position in corpus.places.get(token, ())[-JOIN:]:
        if position not in seen:
            group.append((position, JOINED[kinds[position]]))
    for position in corpus.written.get(token, ())[-JOIN:]:
        if position not in seen:
            group.append((position, JOINED[WRITTEN]))


def roots(
    corpus: CopyContext, cursors: list[Cursor], estimates: Estimates, grown: Grown, ngrams: NGrams | None
) -> tuple[list[_Entry], float]:
    """The heap to grow from: what the cursors say comes next, the tokens that come often, and the language's. And the
    weight of all of it, with that of none being right."""
    votes = _vote(corpus, cursors, estimates, grown, ROOT)
    common = [entry for entry in zip(estimates.common, corpus.common, strict=False) if entry[1] not in votes]
    if ngrams is not None:
        grown.context = context(corpus.tokens)
    none = estimates.none_at_root
    total = checked_total(none + sum([vote[0] for vote in votes.values()]) + sum([entry[0] for entry in common]))
    grown.covered = 1.0 - none / total
    grown.offered = {*votes, *corpus.common}
    least = FEWEST * total
    for weight, token in common:
        if weight < least:  # beside a sure copy all are
            break
        votes[token] = [weight, NOWHERE, []]
    if ngrams is not None and none >= OPEN * total:
        grown.words = ngrams.after(grown.context)
        weight = none * estimates.language
        _add_words(votes, [(token, weight * share) for token, share in grown.words if weight * share >= least])
    heap = [(-vote[0] / total, 0, token, ROOT, vote[1], vote[2]) for token, vote in votes.items()]
    heapify(heap)
    return heap, total


def children(
    corpus: CopyContext,
    cursors: list[Cursor],
    estimates: Estimates,
    grown: Grown,
    node: int,
    ngrams: NGrams | None,
    order: int = 0,
) -> tuple[list[_Entry], float]:
    """The entries of the children of `node`, after which `cursors` stand, each with the number `order`; and the weight
    of all that was said there, with that of none being right."""
    cursors = cursors or []  # a node after which none stands keeps none
    cursors[:] = forked(corpus.tokens, cursors)
    sure = sum([estimates.deeper[state] for _, state in cursors]) >= SURE
    if not sure:
        join(corpus, grown.tokens[node], cursors)
    votes = _vote(corpus, cursors, estimates, grown, node)
    none, score = estimates.none_deeper, grown.scores[node]
    total = checked_total(none + sum([vote[0] for vote in votes.values()]))
    # Beside one sure copy no words are looked for, which follow most nodes: they would take longer than they save.
    if ngrams is not None and none * score >= STILL_OPEN * total and not (sure and len(cursors) == 1):
        _add_words(votes, ngrams.share_out(none * estimates.language, _context(grown, node), FEWEST / score * total))
    share = -score / total
    entries = [(vote[0] * share, order, token, node, vote[1], vote[2]) for token, vote in votes.items()]
    return entries, total


def _add_words(votes: dict[int, _Vote], words: Words) -> None:
    """Adds `words`, given with their weights."""
    for token, weight in words:
        vote = votes.get(token)
        if vote is None:
            votes[token] = [weight, NOWHERE, []]
        else:
            vote[0] += weight


def _context(grown: Grown, node: int) -> int:
    """The key of the n-grams' context that ends with `node`."""
    key, shift = 0, 0
    while node != ROOT:
        token = grown.tokens[node]
        if token >= KEY_TOKENS:
            return key
        key |= token + 1 << shift
        shift += KEY_BITS
        if shift == KEY_BITS * ORDERS:
            return key
        node = grown.parents[node]
    return (grown.context << shift | key) & KEY_MASK


def _vote(
    corpus: CopyContext, cursors: list[Cursor], estimates: Estimates, grown: Grown, node: int
) -> dict[int, _Vote]:
    """What the cursors after `node` say comes next, by token. Cursors at a border say nothing."""
    if not cursors:
        return {}
    weights, crowds, text = estimates.at_root if node == ROOT else estimates.deeper, estimates.crowds, corpus.tokens
    end, replaced = len(text), corpus.substitutes.places
    if len(cursors) == 1:
        ((at, state),) = cursors
        if at < end and not (at < corpus.output_start and text[at] in replaced):
            return {text[at]: [weights[state], at, [(at + 1, NEXT_SITUATION[state])]]} if text[at] >= 0 else {}
    columns = crowd_columns(cursors)
    votes: dict[int, _Vote] = {}
    for at, state in cursors:
        if at < end:
            token, position = text[at], at
        else:
            drafted = _ancestor(grown, node, at - end)
            token, position = grown.tokens[drafted], grown.positions[drafted]
        if token < 0:
            continue
        weight = weights[state] * crowds[CROWD_ROW[state] + columns[LENGTH[state]]]
        _cast(votes, token, weight, position, (at + 1, NEXT_SITUATION[state]))
        if at < corpus.output_start and token in replaced and AFTER_SUBSTITUTE[state]:
            position, column = divmod(replaced[token], COLUMNS)
            substitute, before = text[position], text[-1] if node == ROOT else grown.tokens[node]
            weight *= estimates.repeated[column + (text[position - 1] == before)]
            if substitute >= 0:
                # Beside a better reason for the same token, where the replaced one stood says nothing.
                is_best = substitute not in votes or weight > votes[substitute][3]
                _cast(votes, substitute, weight, position, (at + 1, AFTER_SUBSTITUTE[state]) if is_best else None)
    return votes


def _cast(votes: dict[int, _Vote], token: int, weight: float, position: int, moved: Cursor | None) -> None:
    vote = votes.get(token)
    if vote is None:
        votes[token] = [weight, position, [moved], weight]
        return
    vote[0] += weight
    if moved is not None and len(vote[2]) < KEEP:
        vote[2].append(moved)
    if weight > vote[3]:
        vote[3], vote[1] = weight, position


def _ancestor(grown: Grown, node: int, index: int) -> int:
    """The node at `index` on the path to `node`: a cursor past the text's end goes on with what has been drafted."""
    path = []
    while node != ROOT:
        path.append(node)
        node = grown.parents[node]
    return path[-1 - index]
