"""Grows the draft tree, best first, cuts chains from it and learns from it: the reference for the C code in native/.

A cursor is a position in the corpus (`corpus.CopyCorpus`: all sources and the output in one list) whose token may come
next, with its situation: how it was found and how many tokens match, as one number that indexes its weight
(`situations`). A fork is an entry of the corpus after which a source goes on either there or at another position. The
tree may also be grown with predictors, such as a draft model or a datastore. A miss is the event that no copied token
is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from copyspec.budget import Budget
from copyspec.drafters.copying.corpus import WRITTEN, CopyCorpus
from copyspec.drafters.copying.estimates import Estimates, record_number
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
from copyspec.drafters.copying.substitutes import COLUMNS, SUBSTITUTE_RATIOS
from copyspec.drafters.predictors.base import Path, TokenProbs
from copyspec.drafters.predictors.ngrams import KEY_BITS, KEY_MASK, KEY_TOKENS, ORDERS, NGrams, context
from copyspec.sources import FORK
from copyspec.tree import ROOT, path_to

Cursor = tuple[int, int]
"""(position in the corpus, situation): a hypothesis that the token at the position comes next."""

NOWHERE = -1  # position of a token that was not copied
MIN_SCORE = 0.001  # nodes with a lower score are not worth their cost on any device
SURE_WEIGHT = 6.0  # from this total weight of a node's cursors, no further cursors join it
MAX_JOINING = 4  # at most this many cursors join a node, from the sources and from the output each
MAX_CURSORS = 24  # cursors kept per node, which bounds the time in repetitive text
CHILD_PRIORITY = 0.25  # a node is expanded when the best entry of the heap is below its score times this
COPY_PRIORITY = 0.35  # as CHILD_PRIORITY, after a single cursor, whose expansion takes one node instead of several
COPY_PRIORITY_SHORT = CHILD_PRIORITY  # as COPY_PRIORITY, where copies end early: one is then as unsure as several
PREDICTED_PRIORITY = 0.5  # as CHILD_PRIORITY, after a token without a copy: a table is often as sure of the next one
NGRAM_MIN_MISS_PROB_ROOT = 0.15  # n-grams are looked up from this probability of a miss at the root
NGRAM_MIN_MISS_PROB = 0.02  # the same below the root, times the node's score: look-ups cost more there than they bring
TABLE_MIN_MISS_PROB = 0.04  # at a lower probability of a miss, none of a table's tokens could be more probable
MISS_PROB_FLOOR = 1e-6  # lowest probability of a miss that predictors receive
MIN_NGRAM_SCORE = 0.003  # n-gram and common tokens of a lower score hardly ever find a place in a tree
CHILDREN, COPY = -2, -3  # heap entries without a token: a node to expand, or one to continue with its single sure copy

JOINED = [FAR_BY_KIND[kind] * STRIDE + 1 for kind in range(len(FAR_BY_KIND))]
"""The situation of a cursor that joins a node, by kind of its position."""


class PredictorCalls(NamedTuple):
    """The methods of a predictor that growing a tree calls, see `predictors.base.Predictor`."""

    predict: Callable[[Path], TokenProbs | None]
    weight: Callable[[float], float]
    is_model: bool
    """`Predictor.is_model`: it is a model, asked after every node, and nodes are expanded as soon as they are there:
    a model may give a child its parent's probability, and next to its forward pass expanding all nodes costs little.
    The others are tables, asked where copies leave enough to other tokens."""


Mix = tuple[int, float, dict[int, float], list[int]]
"""The mixture after one node: (node, weight of a miss, the weights of its copied tokens, the indices of the predictors
that predicted something)."""


@dataclass(slots=True)
class Grown:
    """A grown tree, its lists indexed by node. Nodes are in order of falling score, apart from small steps."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)  # corpus position of the node's heaviest cursor, or NOWHERE
    cursors: list[list[Cursor]] = field(default_factory=list)  # the node's cursors, moved past its token
    offered: set[int] = field(default_factory=set)  # tokens of the root's cursors, and `CopyCorpus.common`
    hit_prob: float = 0.0  # total probability of the offered tokens
    context: int = 0  # key of the n-gram context at the root
    ngram_probs: TokenProbs = ()  # n-gram predictions at the root, given that no offered token is right
    least: float = 0.0  # a further node pays only with a score above this
    predictor_of: list[int] = field(default_factory=list)
    """Index of the predictor of a node that is no copy, or -1; [] without predictors."""
    mixes: list[Mix] = field(default_factory=list)  # of nodes after which a predictor predicted something


_Entry = tuple[float, int, int, int, int, list[Cursor], int]
"""(-score, order, token, parent, position, the token's cursors, moved past it, the index of its predictor or -1)."""

_Vote = list[Any]
"""Of one next token: total weight, position of the heaviest cursor, the cursors moved past it, the heaviest weight,
the index of its predictor or -1. A list, because weights are added in place."""


def grow(
    corpus: CopyCorpus,
    cursors: list[Cursor],
    estimates: Estimates,
    budget: Budget,
    ngrams: NGrams | None = None,
    predictors: Sequence[PredictorCalls] = (),
) -> Grown:
    """Grow a tree of the most likely nodes, best first, until the budget is full or no further node is worth its cost.

    Cursors at equal tokens share a node and add their weights: P(token) = weight of its cursors /
    (weight of all cursors + weight of a miss). `ngrams` distribute the latter weight over the tokens that they predict.
    A node's score is the product of these probabilities along its path. `predictors` are mixed in (`_mix`).

    Without models among them, a node is expanded only when no entry is left with a score above CHILD_PRIORITY times the
    node's own. A draft that ends inside a copy loses little, because the next draft continues it; even less if copies
    end after a few tokens anyway (`Estimates.copies_break`).

    Raises ValueError for invalid weights, costs, cursors, common tokens and predictions.
    """
    _check(corpus, cursors, estimates, budget)
    grown, text, weights = Grown(), corpus.tokens, estimates.deeper
    predictor_of = grown.predictor_of if predictors else None
    add_token, add_parent, add_score = grown.tokens.append, grown.parents.append, grown.scores.append
    add_position, add_cursors = grown.positions.append, grown.cursors.append
    heap = roots(corpus, cursors, estimates, grown, ngrams, predictors)
    has_model = any([predictor.is_model for predictor in predictors])
    child_priority = 1.0 if has_model else CHILD_PRIORITY
    copy_priority = COPY_PRIORITY_SHORT if estimates.copies_break else COPY_PRIORITY
    end, miss_weight, order, count, replaced = len(text), estimates.miss_deeper, 1, 0, corpus.substitutes.packed
    max_nodes, costs = budget.max_nodes, budget.costs
    cheapest = min([after - before for before, after in pairwise(costs)]) if len(costs) > 1 else 0.0
    expected, least = 1.0, max(MIN_SCORE, cheapest)  # `least`: a lower score cannot raise the tokens per time
    while heap and -heap[0][0] > child_priority * least:
        negative, _, token, parent, position, group, index = heappop(heap)
        if token == CHILDREN:
            if grown.scores[parent] > least:
                for child in children(corpus, group, estimates, grown, parent, ngrams, order, predictors):
                    if -child[0] > least:
                        heappush(heap, child)
                order += 1
            continue
        if token == COPY:
            negative = -grown.scores[parent]
        while True:  # along a single copy, as long as its next token is the best entry
            if token == COPY:
                position, situation = group[0]
                token, weight = text[position], weights[situation]
                negative *= weight / (weight + miss_weight)
                group = [(position + 1, NEXT_SITUATION[situation])]
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
            if predictor_of is not None:
                predictor_of.append(index)
            parent, count, order = count, count + 1, order + 1
            if count == max_nodes:
                grown.least = -negative
                return grown
            token, rank = CHILDREN, negative * (child_priority if has_model or index < 0 else PREDICTED_PRIORITY)
            index = -1
            if len(group) == 1 and not has_model:
                rank = negative * copy_priority
                position, situation = group[0]
                # A token with a substitute is no sure copy: both are drafted.
                is_open = position < corpus.output_start and text[position] in replaced
                if position < end and weights[situation] >= SURE_WEIGHT and text[position] >= 0 and not is_open:
                    token = COPY
                    if not heap or rank < heap[0][0]:
                        continue
            heappush(heap, (rank, order, token, parent, NOWHERE, group, index))
            break
    grown.least = least
    return grown


def _check(corpus: CopyCorpus, cursors: list[Cursor], estimates: Estimates, budget: Budget) -> None:
    """Raise ValueError for invalid arguments, as the compiled module does."""
    for miss_weight in (estimates.miss_at_root, estimates.miss_deeper):
        if not 0.0 < miss_weight < inf:
            raise ValueError(f"miss weight must be > 0, got {miss_weight!r}")
    if not 0.0 <= estimates.ngram_scale < inf:
        raise ValueError(f"ngram_scale must be >= 0, got {estimates.ngram_scale!r}")
    if budget.max_nodes < 1:
        raise ValueError(f"max_nodes is {budget.max_nodes!r}; a tree has at least 1")
    for cost in budget.costs:
        if not 0.0 < cost < inf:
            raise ValueError(f"costs are numbers above 0, got {cost!r}")
    positions = len(corpus.tokens)
    for packed in corpus.substitutes.packed.values():
        if not 0 < packed // COLUMNS < positions:
            raise ValueError(f"invalid substitute position {packed!r}; there are {positions} positions")
    for at, situation in cursors:
        if not (0 <= at < positions and 0 <= situation < COUNT):
            raise ValueError(
                f"invalid cursor {(at, situation)!r}; there are {positions} positions and {COUNT} situations"
            )
    if min(corpus.common, default=0) < 0 or len(set(corpus.common)) < len(corpus.common):
        raise ValueError(f"common tokens are different ids from 0, got {corpus.common!r}")


def checked_total(total: float) -> float:
    """Return `total` if weights can be divided by it, else raise ValueError."""
    if not 0.0 < total < inf:
        raise ValueError(f"weights add up to {total!r}; they must be >= 0, and the miss weight > 0")
    return total


def forked(text: list[int], cursors: list[Cursor]) -> list[Cursor]:
    """Return the cursors; each one at a fork is replaced by two, at its continuation and at its alternative."""
    end = len(text)
    if not any([at < end and text[at] < FORK for at, _ in cursors]):
        return cursors
    forks = []
    for at, situation in cursors:
        if at < end and text[at] < FORK:  # negative: a fork, see `corpus.SEPARATOR`
            if -text[at] >= end or at + 1 >= end:
                raise ValueError(f"the fork at {at} leads to {text[at]}; the text has {end} positions")
            forks += [(at + 1, situation), (-text[at], situation)]
        else:
            forks.append((at, situation))
    return forks


def join(corpus: CopyCorpus, token: int, group: list[Cursor]) -> None:
    """Add to a node's cursors the latest positions that match the drafted path in its last token only, in the sources
    (`corpus.places`) and in the output (`corpus.written`)."""
    seen = {position for position, _ in group}
    seen.add(len(corpus.tokens))
    kinds = corpus.kinds
    for position in corpus.places.get(token, ())[-MAX_JOINING:]:
        if position not in seen:
            group.append((position, JOINED[kinds[position]]))
    for position in corpus.written.get(token, ())[-MAX_JOINING:]:
        if position not in seen:
            group.append((position, JOINED[WRITTEN]))


def roots(
    corpus: CopyCorpus,
    cursors: list[Cursor],
    estimates: Estimates,
    grown: Grown,
    ngrams: NGrams | None,
    predictors: Sequence[PredictorCalls],
) -> list[_Entry]:
    """Return the initial heap: tokens of the cursors, common tokens, those of the n-grams and the predictors."""
    votes = _vote(corpus, cursors, estimates, grown, ROOT)
    common = [entry for entry in zip(estimates.common, corpus.common, strict=False) if entry[1] not in votes]
    if ngrams is not None:
        grown.context = context(corpus.tokens)
    miss_weight = estimates.miss_at_root
    total = checked_total(miss_weight + sum([vote[0] for vote in votes.values()]) + sum([entry[0] for entry in common]))
    grown.hit_prob = 1.0 - miss_weight / total
    grown.offered = {*votes, *corpus.common}
    least = MIN_NGRAM_SCORE * total
    for weight, token in common:
        if weight < least:  # true of all if a cursor is sure
            break
        votes[token] = [weight, NOWHERE, [], weight, -1]
    if ngrams is not None and miss_weight >= NGRAM_MIN_MISS_PROB_ROOT * total:
        grown.ngram_probs = ngrams.after(grown.context)
        weight = miss_weight * estimates.ngram_scale
        _add_ngrams(votes, [(token, weight * share) for token, share in grown.ngram_probs if weight * share >= least])
    total = _mix(votes, total, grown, ROOT, predictors)
    heap = [(-vote[0] / total, 0, token, ROOT, vote[1], vote[2], vote[4]) for token, vote in votes.items()]
    heapify(heap)
    return heap


def children(
    corpus: CopyCorpus,
    cursors: list[Cursor],
    estimates: Estimates,
    grown: Grown,
    node: int,
    ngrams: NGrams | None,
    order: int,
    predictors: Sequence[PredictorCalls],
) -> list[_Entry]:
    """Return a heap entry for each token that may follow `node`: those of its cursors, the n-grams and the predictors.

    `cursors`: the list of `node` itself. It is expanded in place by both ways of forks and by cursors that `join`.
    `order`: of the entries, which decides among equal scores."""
    # The list of a node without a copied token stays empty: cursors that join it count for its children only.
    cursors = cursors or []
    cursors[:] = forked(corpus.tokens, cursors)
    sure = sum([estimates.deeper[situation] for _, situation in cursors]) >= SURE_WEIGHT
    if not sure:
        join(corpus, grown.tokens[node], cursors)
    votes = _vote(corpus, cursors, estimates, grown, node)
    miss_weight, score = estimates.miss_deeper, grown.scores[node]
    total = checked_total(miss_weight + sum([vote[0] for vote in votes.values()]))
    # Most nodes are followed by a single sure copy: n-gram look-ups there would take longer than they save.
    if ngrams is not None and miss_weight * score >= NGRAM_MIN_MISS_PROB * total and not (sure and len(cursors) == 1):
        _add_ngrams(
            votes,
            ngrams.share_out(
                miss_weight * estimates.ngram_scale, _context(grown, node), MIN_NGRAM_SCORE / score * total
            ),
        )
    total = _mix(votes, total, grown, node, predictors)
    share = -score / total
    return [(vote[0] * share, order, token, node, vote[1], vote[2], vote[4]) for token, vote in votes.items()]


def _mix(votes: dict[int, _Vote], total: float, grown: Grown, node: int, predictors: Sequence[PredictorCalls]) -> float:
    """Add what `predictors` predict after `node` to the votes, whose weight with that of a miss is `total`; return the
    new total.

    The mixture: P(token) = (weight of its copies + sum of weight * P_predictor(token)) / (sum of all weights). The
    weight of a miss is shared among the predictors, so that without copies their probabilities stay as they are.
    """
    if not predictors:
        return total
    miss_prob = max(1.0 - sum([vote[0] for vote in votes.values()]) / total, MISS_PROB_FLOOR)
    path = tuple([grown.tokens[ancestor] for ancestor in path_to(grown.parents, node)])
    answers = []
    for index, predictor in enumerate(predictors):
        if (predictor.is_model or miss_prob >= TABLE_MIN_MISS_PROB) and (probs := predictor.predict(path)):
            answers.append((index, probs, _checked_weight(predictor.weight(miss_prob))))
    if not answers:
        return total
    miss_weight = miss_prob * total
    grown.mixes.append(
        (node, miss_weight, {token: vote[0] for token, vote in votes.items()}, [answer[0] for answer in answers])
    )
    weights = sum([weight for _, _, weight in answers])
    for index, probs, weight in answers:
        factor = weight * (1.0 + miss_weight / weights)
        for token, probability in probs:
            _check_prediction(token, probability)
            vote = votes.get(token)
            if vote is None:
                votes[token] = [factor * probability, NOWHERE, [], factor * probability, index]
            else:
                vote[0] += factor * probability
                if vote[1] == NOWHERE and vote[4] < 0:
                    vote[4] = index
    return checked_total(total + weights)


def _checked_weight(weight: float) -> float:
    if not 0.0 < weight < inf:
        raise ValueError(f"predictor weight must be > 0, got {weight!r}")
    return weight


def _check_prediction(token: int, probability: float) -> None:
    if token < 0 or not 0.0 <= probability < inf:
        raise ValueError(f"a prediction is a token from 0 and its probability, got {(token, probability)!r}")


def _add_ngrams(votes: dict[int, _Vote], weighted: TokenProbs) -> None:
    """Add the tokens that n-grams predict, with their weights, to `votes`."""
    for token, weight in weighted:
        vote = votes.get(token)
        if vote is None:
            votes[token] = [weight, NOWHERE, [], weight, -1]
        else:
            vote[0] += weight


def _context(grown: Grown, node: int) -> int:
    """The key of the n-gram context that ends with `node`."""
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


def _vote(corpus: CopyCorpus, cursors: list[Cursor], estimates: Estimates, grown: Grown, node: int) -> dict[int, _Vote]:
    """Sum up the weights of the cursors after `node` by their next token. Cursors at a separator or the end have none.
    Where there are several, each weighs less the more of them have its match length (the crowd table, `situations`)."""
    if not cursors:
        return {}
    weights, crowds, text = estimates.at_root if node == ROOT else estimates.deeper, estimates.crowds, corpus.tokens
    end, replaced = len(text), corpus.substitutes.packed
    if len(cursors) == 1:
        ((at, situation),) = cursors
        if at < end and not (at < corpus.output_start and text[at] in replaced):
            vote = [weights[situation], at, [(at + 1, NEXT_SITUATION[situation])], weights[situation], -1]
            return {text[at]: vote} if text[at] >= 0 else {}
    columns = crowd_columns(cursors)
    votes: dict[int, _Vote] = {}
    for at, situation in cursors:
        if at < end:
            token, position = text[at], at
        else:
            drafted = path_to(grown.parents, node)[at - end]  # the cursor has passed the text's end into the draft
            token, position = grown.tokens[drafted], grown.positions[drafted]
        if token < 0:  # negative: a separator or a fork, see `corpus.SEPARATOR`
            continue
        weight = weights[situation] * crowds[CROWD_ROW[situation] + columns[LENGTH[situation]]]
        _cast(votes, token, weight, position, (at + 1, NEXT_SITUATION[situation]))
        if at < corpus.output_start and token in replaced and AFTER_SUBSTITUTE[situation]:
            position, column = divmod(replaced[token], COLUMNS)
            substitute, before = text[position], text[-1] if node == ROOT else grown.tokens[node]
            weight *= SUBSTITUTE_RATIOS[column + (text[position - 1] == before)]
            if substitute >= 0:
                # If another cursor proposes the same token with more weight, this one need not move on.
                is_best = substitute not in votes or weight > votes[substitute][3]
                _cast(votes, substitute, weight, position, (at + 1, AFTER_SUBSTITUTE[situation]) if is_best else None)
    return votes


def _cast(votes: dict[int, _Vote], token: int, weight: float, position: int, moved: Cursor | None) -> None:
    vote = votes.get(token)
    if vote is None:
        votes[token] = [weight, position, [moved], weight, -1]
        return
    vote[0] += weight
    if moved is not None and len(vote[2]) < MAX_CURSORS:
        vote[2].append(moved)
    if weight > vote[3]:
        vote[3], vote[1] = weight, position


Chain = tuple[list[int], list[float], list[int]]
"""Tokens, scores and corpus positions of a chain."""


def best_chain(grown: Grown, corpus: CopyCorpus, estimates: Estimates, length: int) -> Chain:
    """Return the first `length` tokens of the chain of most expected accepted tokens. A shorter chain is continued with
    its heaviest cursor, by nodes that are appended to the tree."""
    expected: list[float] = []
    for parent, score in zip(grown.parents, grown.scores, strict=True):
        expected.append(score + (expected[parent] if parent != ROOT else 0.0))
    path = path_to(grown.parents, expected.index(max(expected)) if expected else ROOT)
    while path and len(path) < length and _lengthen(grown, path[-1], corpus, estimates):
        path.append(len(grown.tokens) - 1)
    path = path[:length]
    tokens, scores = [grown.tokens[node] for node in path], [grown.scores[node] for node in path]
    return tokens, scores, [grown.positions[node] for node in path]


def _lengthen(grown: Grown, node: int, corpus: CopyCorpus, estimates: Estimates) -> bool:
    """Append the token of the heaviest cursor after `node`, although a tree would have no place for it."""
    text, weights = corpus.tokens, estimates.deeper
    cursors = [cursor for cursor in forked(text, grown.cursors[node]) if cursor[0] < len(text) and text[cursor[0]] >= 0]
    if not cursors:
        return False
    position, situation = max(cursors, key=lambda cursor: weights[cursor[1]])
    share = weights[situation] / (weights[situation] + estimates.miss_deeper)
    grown.tokens.append(text[position])
    grown.parents.append(node)
    grown.scores.append(grown.scores[node] * share)
    grown.positions.append(position)
    grown.cursors.append([(position + 1, NEXT_SITUATION[situation])])
    return True


def learn(grown: Grown, tokens: Sequence[int], corpus: CopyCorpus, estimates: Estimates) -> tuple[int, int]:
    """Walk a tree along the output's next `tokens`, and update the records and substitutes.

    Returns the last accepted node and the number of accepted nodes."""
    scores, replaced = grown.scores, corpus.substitutes.packed
    node, taken, is_likely = ROOT, 0, True  # `is_likely`: the next child of `node` is the first, its most likely one
    touched = set()
    for child, parent in enumerate(grown.parents):  # children come after their parents: one pass walks the path
        if parent != node:
            continue
        right = grown.tokens[child] == tokens[taken]
        if grown.tokens[child] in replaced or (is_likely and not right):
            _learn_substitute(grown, child, is_likely, tokens, taken, corpus)
        if is_likely and grown.cursors[child]:
            number = record_number(grown.cursors[child][0][1], is_root=node == ROOT)
            estimates.record(number, scores[child] / (scores[node] if node != ROOT else 1.0), right)
            touched.add(number)
        is_likely = right
        if right:
            node, taken = child, taken + 1
            if taken == len(tokens):
                break
    for number in touched:
        estimates.refresh(number)
    return node, taken


def _learn_substitute(
    grown: Grown, child: int, is_likely: bool, tokens: Sequence[int], taken: int, corpus: CopyCorpus
) -> None:
    """Update the substitutes of a child's token, where the output has tokens[taken]."""
    text, substitutes, token = corpus.tokens, corpus.substitutes, grown.tokens[child]
    packed = substitutes.packed.get(token, -1)
    if token == tokens[taken]:
        if packed >= 0:
            substitutes.kept(token)
        return
    if packed >= 0:
        position = packed // COLUMNS - len(text)
        if (text[position] if position < 0 else tokens[position]) == tokens[taken]:
            substitutes.repeated(token)
            return
    if is_likely and 0 <= grown.positions[child] < corpus.output_start:
        substitutes.replaced(token, len(text) + taken)
