"""Learns from what the output took of a tree: the reference for the compiled `walk` in native/."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.drafters.copying.corpus import CopyCorpus
from copyspec.drafters.copying.estimates import Estimates, record_number
from copyspec.drafters.copying.growth import Grown
from copyspec.drafters.copying.substitutes import COLUMNS
from copyspec.tree import ROOT


def learn(grown: Grown, tokens: Sequence[int], corpus: CopyCorpus, estimates: Estimates) -> tuple[int, int]:
    """Walk a tree along the output's next `tokens`, and update the records and substitutes.

    Returns the last accepted node and the number of accepted nodes."""
    scores, replaced = grown.scores, corpus.substitutes.places
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
    place = substitutes.places.get(token, -1)
    if token == tokens[taken]:
        if place >= 0:
            substitutes.kept(token)
        return
    if place >= 0:
        position = place // COLUMNS - len(text)
        if (text[position] if position < 0 else tokens[position]) == tokens[taken]:
            substitutes.repeated(token)
            return
    if is_likely and 0 <= grown.positions[child] < corpus.output_start:
        substitutes.replaced(token, len(text) + taken)
