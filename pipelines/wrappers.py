"""What chat models put around the text they were asked for: greetings, labels, quotes, fences, thoughts, notes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .words import Tolerance, align, words

_THOUGHTS = re.compile(
    r"\A\s*<(think|thinking|thought|reasoning|analysis)>.*?(?:</\1>|\Z)\s*", re.DOTALL | re.IGNORECASE
)
_FENCE = re.compile(r"(?:\A|\n)[ \t]*(```+|~~~+)[^\n`]*\n(.*?)(?:\n[ \t]*\1[ \t]*(?=\n|\Z)|\Z)", re.DOTALL)
_TAGS = re.compile(r"<(\w[\w-]*)>(.*?)</\1>", re.DOTALL)
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
_CLOSING = re.compile(
    r"\n\W{0,200}(?:notes?|explanations?|changes?|corrections?|edits?|what (?:i )?changed|"
    r"i (?:have |'ve )?\w+ed|i hope|let me know|please|feel free|if you|would you|is there|original|"
    r"the (?:changes|corrections|main|original|errors?|sentence|text)|summary|reason|end of|---|key )[^\n]*(?:\n.*)?\Z",
    re.IGNORECASE | re.DOTALL,
)
_ECHO = re.compile(
    rf"\n\W{{0,200}}(?:{_WHAT}[^\n:]{{0,40}}|output|answer|result|after)\W{{0,3}}:\W{{0,200}}?(?=[\w\"'“(])",
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
    distance = _distance(source, text)
    for _ in range(_ROUNDS):
        better = [(_distance(source, candidate), candidate) for candidate in _candidates(text)]
        nearest = min(better, default=(distance, text), key=lambda pair: pair[0])
        if nearest[0] >= distance:
            break
        distance, text = nearest
    if _NOTHING.match(text) and distance > _distance(source, ""):
        return source
    return text


def _without_thoughts(output: str, source: str) -> str:
    if found := _THOUGHTS.match(output):
        return output if source.lstrip().startswith(f"<{found[1]}>") else output[found.end() :]
    _, closed, rest = output.partition("</think>")  # the template had opened it
    return rest if closed and "</think>" not in source else output


def _distance(source: str, text: str) -> int:
    """Words and marks that one of them has and the other has not."""
    left, right = words(source, _EXACT), words(text, _EXACT)
    return len(left) + len(right) - 2 * len(align(left, right))


def _candidates(text: str) -> Iterator[str]:
    """What may remain of `text` when one wrapper is taken off."""
    for found in _FENCE.finditer(text):
        yield found[2].strip()
    for found in _TAGS.finditer(text):
        yield found[2].strip()
    if _OPENING.match(text):
        if line := _LINE.match(text):
            yield text[line.end() :].strip()
        for found in re.finditer(r"[:：.!][ \t*_]*\s", text[:300]):
            yield text[found.end() :].strip()
        if label := _LABEL.match(text):
            yield text[label.end() :].strip()
    if closing := _CLOSING.search(text):
        yield text[: closing.start()].strip()
    if echoes := list(_ECHO.finditer(text)):
        yield text[echoes[-1].end() :].strip()
    for pair in _PAIRS:
        if len(text) > 2 and text[0] == pair[0] and text[-1] == pair[1]:
            yield text[1:-1].strip()
    if text.startswith(("> ", "- ", "* ", "# ")):
        yield "\n".join(line[2:] if line[:2] == text[:2] else line for line in text.split("\n"))
