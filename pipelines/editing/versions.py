"""Versions of a small corrector's output: its correction and what else it might have written, for drafts to copy from.

The corrector's first choices hold a quarter of the edits that a large model makes, and with second choices half of
them. Its probabilities are about calibrated: of edits with a probability of .1 to .3, one in five is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Protocol

from copyspec.engine.asking.inputs import Input

from ..sentences import sentences
from .correctors import Outcome

LEVELS = (0.1, 0.03, 0.02)
"""Minimum probabilities of second choices in the second, third and fourth text; the fourth also takes those whose place
was taken by a likelier one. Less likely ones find no room in trees of 32 nodes."""
TOP = 5  # most likely tokens considered at each position
CONTINUED = 6  # tokens written after a second choice, to find which words of the correction it replaces
MOST = 14  # maximum number of second choices per sentence

Choice = tuple[float, str]
"""A second choice: its probability, and the sentence up to and including it."""
Swap = tuple[float, int, int, str]
"""(probability, start and end in characters of the correction, replacement)."""

_WORD = re.compile(r"\s*\w+|\s*[^\w\s]|\s+$")


class Corrects(Protocol):
    """The part of a correcting model that is used here."""

    is_encoder_decoder: bool

    def scored(self, texts: Iterable[str | None], logprobs: int | None) -> Iterator[tuple[int, Outcome]]: ...
    def prefilled_prompt(self, text: str, output: str) -> str | list[dict[str, str]]: ...
    def continuations(self, inputs: Iterable[Input]) -> Iterator[tuple[int, str]]: ...


def written_versions(corrector: Corrects, texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Return for each text its correction, and versions of it with second choices, the more likely ones first."""
    listed = list(texts)
    places = [sentences(text) or [(0, len(text))] for text in listed]
    unique = list(
        dict.fromkeys(
            text[a:b].strip() for text, row in zip(listed, places, strict=True) for a, b in row if text[a:b].strip()
        )
    )
    known = dict(zip(unique, _versions(corrector, unique), strict=True))
    versions = []
    for text, row in zip(listed, places, strict=True):
        written = []
        for level in range(len(LEVELS) + 1):
            parts, done = [], 0
            for a, b in row:
                piece = text[a:b].strip()
                start = a + text[a:b].index(piece)
                parts += [text[done:start], known[piece][level] if piece else ""]
                done = start + len(piece)
            written.append("".join([*parts, text[done:]]))
        versions.append(tuple(written))
    return versions


def _versions(corrector: Corrects, unique: Sequence[str]) -> Iterator[list[str]]:
    outcomes = dict(corrector.scored(unique, TOP))
    corrections = [(outcomes[index].text or text).strip() for index, text in enumerate(unique)]
    choices = [(index, choice) for index in range(len(unique)) for choice in _choices(corrector, outcomes[index])]
    inputs = [
        Input(
            corrector.prefilled_prompt(unique[index], partial),
            references=[corrections[index]],
            max_new_tokens=CONTINUED,
        )
        for index, (_, partial) in choices
    ]
    swaps: list[list[Swap]] = [[] for _ in unique]
    for number, result in corrector.continuations(inputs):
        index, (probability, partial) = choices[number]
        swap = _swap(corrections[index], (partial + result).lstrip())
        if swap is not None:
            swaps[index].append((probability, *swap))
    for correction, own_swaps in zip(corrections, swaps, strict=True):
        yield _with_swaps(correction, own_swaps)


def _choices(corrector: Corrects, outcome: Outcome) -> list[Choice]:
    """The most likely alternatives to the tokens of the output."""
    if outcome.result is None or outcome.text is None or corrector.is_encoder_decoder:
        return []  # an encoder-decoder's output cannot be continued here
    choices: list[Choice] = []
    before = ""
    for token in outcome.result.logprobs:
        for other in token.top:
            probability = math.exp(other.logprob)
            if other.token_id != token.token_id and other.token and probability >= LEVELS[-1]:
                choices.append((probability, before + other.token))
        before += token.token
    return sorted(choices, reverse=True)[:MOST]


def _swap(correction: str, text: str) -> tuple[int, int, str] | None:
    """The first words in which `text`, which breaks off, differs from the correction."""
    was, now = _WORD.findall(correction), _WORD.findall(text)
    starts = [0, *accumulate(map(len, was))]
    steps = SequenceMatcher(None, was, now, autojunk=False).get_opcodes()
    for kind, first, last, begin, end in steps[:-1]:  # at the last step `text` breaks off
        if kind != "equal":
            return starts[first], starts[last], "".join(now[begin:end])
    return None


def _with_swaps(correction: str, swaps: Iterable[Swap]) -> list[str]:
    """The correction, then versions with second choices by falling probability; one choice per place."""
    texts, left = [correction], sorted(set(swaps), reverse=True)
    for least in LEVELS:
        used: list[Swap] = []
        rest: list[Swap] = []
        for swap in left:
            is_free = all(swap[2] < other[1] or other[2] < swap[1] for other in used)
            (used if swap[0] >= least and is_free else rest).append(swap)
        text = correction
        for _, start, end, words in sorted(used, key=lambda swap: -swap[1]):
            text = text[:start] + words + text[end:]
        texts.append(text)
        left = rest
    return texts
