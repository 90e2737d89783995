"""Cuts a chain from a grown tree: the reference for the compiled `best_chain` in native/."""

from __future__ import annotations

from copyspec.drafters.copying.corpus import CopyCorpus
from copyspec.drafters.copying.estimates import Estimates
from copyspec.drafters.copying.growth import Grown, forked
from copyspec.drafters.copying.situations import NEXT_SITUATION
from copyspec.tree import ROOT, path_to

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
    cursors = [each for each in forked(text, grown.cursors[node]) if each[0] < len(text) and text[each[0]] >= 0]
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
