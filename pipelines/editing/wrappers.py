"""What chat models put around the text they were asked for: greetings, labels, quotes, fences, thoughts, notes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from ..edits.words import Tolerance, Word, align, words

_THOUGHTS = re.compile(
    r"\A\s*<(think|thinking|thought|reasoning|analysis)>.*?(?:</\1>|\Z)\s*", re.DOTALL | re.IGNORECASE
)
_FENCE = re.compile(r"(?:\A|\n)[ \t]*(```+|~~~+)[^\n`]*\n(.*?)(?:\n[ \t]*\1[ \t]*(?=\n|\Z)|\Z)", re.DOTALL)
_TAG = re.compile(r"<(/?)(\w[\w-]*)>")
_WHAT = (
    r"(?:the |your |my |a |an )?(?:fully |slightly |grammatically |lightly )?"
    r"(?:corrected|correct|revised|edited|improved|proofread|polished|rewritten|updated|fixed|final)"
)
_OPENING = re.compile(
    r"\W*(?:(?:sure|certainly|of course|absolutely|okay|ok|yes|alright|great|happy to help|no problem|"
    r"i(?:'ve| have|'d)?\b|here(?:'s| is| are| you go)|below|the (?:following|text|sentence)|this is|assistant|"
    rf"{_WHAT}|corrections?|output|answer|result|response|text|sentence|version|rewrite|after)\b)",
    re.IGNORECASE,
)
"""How a line of talk begins; whether it is one, the source decides."""
_LABEL = re.compile(r"[^\n]{0,200}?(?:[:：]|\*\*)[ \t*_]*(?=\S|\n)")
_LINE = re.compile(r"[^\n]{1,300}\n\s*")
# `(?=(x))\1` takes the longest x and tries no shorter one: else every line of a list is tried 200 times.
_CLOSING = re.compile(
    r"\n(?:\W{0,200}?---|(?=(\W{0,200}))\1(?:notes?|explanations?|changes?|corrections?|edits?|what (?:i )?changed|"
    r"i (?:have |'ve )?\w+ed|i hope|let me know|please|feel free|if you|would you|is there|original|"
    r"the (?:changes|corrections|main|original|errors?|sentence|text)|summary|reason|end of|key ))[^\n]*(?:\n.*)?\Z",
    re.IGNORECASE | re.DOTALL,
)
_ECHO = re.compile(
    rf"\n(?=(\W{{0,200}}))\1(?:{_WHAT}[^\n:]{{0,40}}|output|answer|result|after)\W{{0,3}}:\W{{0,200}}?(?=[\w\"'“(])",
    re.IGNORECASE,
)
_PAIRS = ('""', "''", "“”", "‘’", "«»", "„“", "``", "[]", "()", "**", "__")
_NOTHING = re.compile(
    r"\W*(?:no (?:corrections?|changes?|errors?|edits?|mistakes?)|(?:the|your|this) (?:\w+ )?(?:text|sentence|"
    r"paragraph|passage) (?:is|looks|appears|seems|does(?:n't| not))|(?:it|this|everything) (?:is|looks) "
    r"(?:already |all )?(?:correct|good|fine)|already correct|there are no|looks good|n/?a\b|none\b|"
    r"correct\W*\Z|unchanged)",
    re.IGNORECASE,
)
_ROUNDS = 6  # wrappers in wrappers: talk, fence, label, quotes, a note behind
_EXACT = Tolerance(quotes=False)


def unwrapped(output: str, source: str) -> str:
    """The text in a chat model's `output`, given the `source` that it was asked to correct.

    Something is taken off only where it looks like a wrapper and what remains is nearer to the source: words and
    marks of the source are never lost. An answer that says that nothing is wrong is the source.
    """
    text = _without_thoughts(output, source).strip()
    if not text or text == source.strip():
        return text
    wanted = words(source, _EXACT)
    has = words(text, _EXACT)
    distance = _distance(wanted, has)
    for _ in range(_ROUNDS):
        nearest = _nearest(wanted, text, has, distance)
        if nearest is None:
            break
        distance, text = nearest
        has = words(text, _EXACT)
    if _NOTHING.match(text) and distance > len(wanted):
        return source
    return text


def _without_thoughts(output: str, source: str) -> str:
    if found := _THOUGHTS.match(output):
        return output if source.lstrip().startswith(f"<{found[1]}>") else output[found.end() :]
    _, closed, rest = output.partition("</think>")  # the template had opened it
    return rest if closed and "</think>" not in source else output


def _distance(left: Sequence[Word], right: Sequence[Word]) -> int:
    """Words and marks that one of them has and the other has not."""
    return len(left) + len(right) - 2 * len(align(left, right))


def _nearest(wanted: Sequence[Word], text: str, has: Sequence[Word], distance: int) -> tuple[int, str] | None:
    """What remains of `text` without one wrapper, where that is nearer to the source than `distance`: the nearest, and
    of several the first. `has` are the words of `text`."""
    starts = [word.start for word in has]
    spans = [_stripped(text, start, end) for start, end in _candidates(text)]
    bounds = [(bisect_left(starts, start), bisect_left(starts, end)) for start, end in spans]
    # A text is no nearer than the difference of the numbers of words: most of many candidates need no alignment.
    least = [abs(len(wanted) - (last - first)) for first, last in bounds]
    best, found = distance, None
    for index in sorted(range(len(spans)), key=least.__getitem__):
        if least[index] > best or (least[index] == best and found is None):
            break
        first, last = bounds[index]
        got = _distance(wanted, has[first:last])
        if got < best or (got == best and found is not None and index < found):
            best, found = got, index
    if text.startswith(("> ", "- ", "* ", "# ")):
        lines = "\n".join(line[2:] if line[:2] == text[:2] else line for line in text.split("\n"))
        if (got := _distance(wanted, words(lines, _EXACT))) < best:
            return got, lines
    if found is None:
        return None
    start, end = spans[found]
    return best, text[start:end]


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The stretch without white space around it."""
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    return start, start + len(piece.strip())


def _candidates(text: str) -> Iterator[tuple[int, int]]:
    """Where what may remain of `text` stands in it when one wrapper is taken off."""
    for found in _FENCE.finditer(text):
        yield found.span(2)
    yield from _inside_tags(text)
    end = len(text)
    if _OPENING.match(text):
        if line := _LINE.match(text):
            yield line.end(), end
        for found in re.finditer(r"[:：.!][ \t*_]*\s", text[:300]):
            yield found.end(), end
        if label := _LABEL.match(text):
            yield label.end(), end
    if closing := _CLOSING.search(text):
        yield 0, closing.start()
    if echoes := list(_ECHO.finditer(text)):
        yield echoes[-1].end(), end
    for pair in _PAIRS:
        if len(text) > 2 and text[0] == pair[0] and text[-1] == pair[1]:
            yield 1, end - 1


def _inside_tags(text: str) -> Iterator[tuple[int, int]]:
    """What stands between a tag and the first one that closes it; tags inside such a pair are passed over."""
    tags = list(_TAG.finditer(text))
    closing: dict[str, list[int]] = {}
    for tag in tags:
        if tag[1]:
            closing.setdefault(tag[2], []).append(tag.start())
    at = 0
    for tag in tags:
        ends = closing.get(tag[2], [])
        place = bisect_left(ends, tag.end())
        if not tag[1] and tag.start() >= at and place < len(ends):
            yield tag.end(), ends[place]
            at = ends[place] + len(tag[0]) + 1
