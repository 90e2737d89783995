"""Checks a tokenizer.json before it is loaded, so that tokenizing any text takes bounded time and memory.

Its regular expressions and normalisers run in the tokenizers library (Rust) and cannot be interrupted: catastrophic
backtracking ends in a panic after millions of steps, and a normaliser that writes a page per character exhausts the
memory.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence

from copyspec.checks import is_panic
from copyspec.models.errors import FileError
from copyspec.models.files import TOKENIZER

MAX_GROWTH = 100
"""Output characters per input character that normalisers may produce. Those on the hub give one or two; Unicode normal
forms up to 18."""
MAX_PADDING = 1 << 20  # tokens
MAX_PATTERN = 20_000  # characters of a regular expression; those on the hub have a few hundred

PROBE_SECONDS, PROBE_LENGTH = 1.0, 40
_PROBED = "aA1 \n!'.é字\u0301"
_CLASS = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]")
_REPEATED = re.compile(r"\*|\+|\{\d+,\}|\{\d+,\d{2,}\}|\{\d{2,}\}")


def check_pipeline(found: Mapping[str, object]) -> None:
    """Raise FileError for anything a tokenizer.json may not do to a text."""
    _check_padding(found.get("padding"))
    growth = _growth(list(_parts(found.get("normalizer"))))
    if growth > MAX_GROWTH:
        raise FileError(f"the normalizer of {TOKENIZER} may make {growth:,.0f} characters of one")
    for key in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        for part in _parts(found.get(key)):
            pattern = part.get("pattern")
            if isinstance(pattern, Mapping) and isinstance(pattern.get("Regex"), str):
                _check_expression(str(pattern["Regex"]), key)


def _parts(value: object) -> Iterator[Mapping[str, object]]:
    """Yield the steps of a pipeline in order, flattening nested sequences."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += reversed(part)
        elif isinstance(part, Mapping):
            yield part
            waiting += [each for each in part.values() if isinstance(each, list)]


def _check_padding(padding: object) -> None:
    if not isinstance(padding, Mapping):
        return
    strategy = padding.get("strategy")
    for number in (strategy.get("Fixed") if isinstance(strategy, Mapping) else None, padding.get("pad_to_multiple_of")):
        if isinstance(number, (int, float)) and number > MAX_PADDING:
            raise FileError(f"{TOKENIZER} pads every text to {number:,} tokens")


def _growth(steps: Sequence[Mapping[str, object]]) -> float:
    """Upper bound on the characters produced from one. A step multiplies the output of an earlier one only if that
    output may contain a character that the step replaces."""
    before: list[tuple[str, float]] = [("", 1.0)]
    for step in steps:
        if step.get("type") == "Prepend":
            before.append((str(step.get("prepend")), 1.0 + len(str(step.get("prepend")))))
        elif step.get("type") == "Replace":
            pattern, written = step.get("pattern"), str(step.get("content"))
            literal = str(pattern.get("String") or "") if isinstance(pattern, Mapping) else ""
            factor = max(1.0, len(written) / max(1, len(literal)))
            if not literal and written and _may_be_empty(pattern):
                factor += 1.0
            feeds = (grown for wrote, grown in before if not literal or not set(wrote).isdisjoint(literal))
            before.append((written, factor * max(feeds, default=1.0)))
    return max(grown for _, grown in before)


def _may_be_empty(pattern: object) -> bool:
    """Whether a pattern matches the empty string between characters. The library tries it, because it counts its steps:
    Python's regular expressions never end for (((a?){1000}){1000}){1000}."""
    from tokenizers import Regex, normalizers

    regex = pattern.get("Regex") if isinstance(pattern, Mapping) else None
    if not isinstance(regex, str):
        return True
    try:
        return len(normalizers.Replace(Regex(regex), "x").normalize_str("\x01")) > 1
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        return True


def _check_expression(pattern: str, where: str) -> None:
    excerpt = pattern if len(pattern) <= 100 else f"{pattern[:97]}..."
    if len(pattern) > MAX_PATTERN:
        raise FileError(f"the {where} of {TOKENIZER} has an expression of {len(pattern):,} characters")
    if _is_nested(pattern) and _runs_away(pattern):
        raise FileError(f"the {where} of {TOKENIZER} has an expression that takes too long on some texts: {excerpt!r}")


def _is_nested(pattern: str) -> bool:
    """Whether a repetition contains another variable part: only such patterns can take exponential time."""
    shape = _CLASS.sub("a", re.sub(r"\\(?:[pPxukg]\{[^}]*\}|.)", "a", pattern, flags=re.DOTALL))
    opened: list[int] = []
    for place, char in enumerate(shape):
        if char == "(":
            opened.append(place)
        elif char == ")" and opened:
            inside = shape[opened.pop() + 1 : place]
            if _REPEATED.match(shape, place + 1) and re.search(r"[*+{|]|(?<!\()\?", inside):
                return True
    return False


def _runs_away(pattern: str) -> bool:
    """Whether a pattern takes too many steps on a short text. Each probe is a unit repeated, followed by something that
    does not match. The library counts steps and panics at ten million."""
    from tokenizers import Regex, pre_tokenizers

    try:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception:  # an invalid pattern is reported by the library when it reads the file
        return False
    chars = list(dict.fromkeys(_PROBED + "".join(filter(str.isprintable, pattern))[:60]))
    units = [*chars, *(first + second for first in chars for second in chars if first != second)]
    ends = "\x01", f"\x01\n\x01{''.join(chars)}\x01"  # a match is not attempted at all if a letter it needs is missing
    until = time.monotonic() + PROBE_SECONDS
    try:
        for unit in units:
            for end in ends:
                split.pre_tokenize_str(unit * (PROBE_LENGTH // len(unit)) + end)
            if time.monotonic() > until:
                return True
    except BaseException as error:
        if not is_panic(error):
            raise
        return True
    return False
