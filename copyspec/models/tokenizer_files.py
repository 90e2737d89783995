"""Checks a tokenizer's file before it is loaded, so that tokenizing any text takes bounded time and memory.

Its regular expressions and normalisers run in the tokenizers library (Rust) and cannot be interrupted: catastrophic
backtracking ends in a panic after millions of steps, and a normaliser that writes a page per character exhausts the
memory.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from copyspec.common.checks import is_panic
from copyspec.models.errors import FileError
from copyspec.models.files import MAX_PIECE, TEKKEN, TOKENIZER

MAX_GROWTH = 1_000
"""Output characters per input character that normalisers may produce. Those on the hub give one or two; Unicode normal
forms up to 18."""
MAX_STEPS = 1_000  # of a normalizer and the like: the check of growth compares them pairwise
MAX_PADDING = 1 << 20  # tokens
MAX_PATTERN = 20_000  # characters of a regular expression; those on the hub have a few hundred

PROBE_SECONDS, PROBE_LENGTH = 1.0, 40
MAX_SECONDS = 20.0  # of the probes of all expressions of a file
_PROBED = "aA1 \n!'.é字\u0301"
_CLASS = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]")
_REPEATED = re.compile(r"\*|\+|\{\d+,\}|\{\d+,\d{2,}\}|\{\d{2,}\}")


def check_pipeline(data: Mapping[str, object]) -> None:
    """Raise FileError for anything a tokenizer.json may not do to a text."""
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocabulary, (Mapping, list)):
        _check_lengths((entry[0] if isinstance(entry, list) and entry else entry for entry in vocabulary), TOKENIZER)
    _check_padding(data.get("padding"))
    growth = _growth(_steps(data, "normalizer"))
    if growth > MAX_GROWTH:
        raise FileError(f"the normalizer of {TOKENIZER} may make {growth:,.0f} characters of one")
    until = time.monotonic() + MAX_SECONDS
    for key in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        for part in _steps(data, key):
            pattern = part.get("pattern")
            if isinstance(pattern, Mapping) and isinstance(pattern.get("Regex"), str):
                _check_expression(str(pattern["Regex"]), f"{key} of {TOKENIZER}")
            if time.monotonic() > until:
                raise FileError(f"{TOKENIZER} has too many expressions to check")


def check_tekken(data: Mapping[str, object]) -> None:
    """`check_pipeline` for the format of Mistral's tokenizers."""
    config, vocabulary = data.get("config"), data.get("vocab")
    if isinstance(config, Mapping) and isinstance(config.get("pattern"), str):
        _check_expression(str(config["pattern"]), f"config of {TEKKEN}")
    if isinstance(vocabulary, list):
        _check_lengths((entry.get("token_bytes") for entry in vocabulary if isinstance(entry, Mapping)), TEKKEN)


def _check_lengths(tokens: Iterable[object], file: str) -> None:
    """Raise FileError if a token is longer than MAX_PIECE."""
    longest = max((len(token) for token in tokens if isinstance(token, str)), default=0)
    if longest > MAX_PIECE:
        raise FileError(f"{file} has a token of {longest:,} characters, more than {MAX_PIECE:,}")


def _steps(data: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    steps = list(islice(_parts(data.get(key)), MAX_STEPS + 1))
    if len(steps) > MAX_STEPS:
        raise FileError(f"the {key} of {TOKENIZER} has more than {MAX_STEPS:,} steps")
    return steps


def _parts(value: object) -> Iterator[Mapping[str, object]]:
    """Yield the steps of a pipeline in order, flattening nested sequences."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += reversed(part)
        elif isinstance(part, Mapping):
            yield part
            waiting += [child for child in part.values() if isinstance(child, list)]


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
    before: list[tuple[frozenset[str], float]] = [(frozenset(), 1.0)]  # characters that a step writes, and its growth
    for step in steps:
        if step.get("type") == "Precompiled":
            written = _replacements(step.get("precompiled_charsmap"))
            longest = max(map(len, re.findall(r"[^\0]+", written)), default=1)
            before.append((frozenset(written), longest * max(grown for _, grown in before)))
        elif step.get("type") == "Prepend":
            written = str(step.get("prepend"))
            before.append((frozenset(written), 1.0 + len(written)))
        elif step.get("type") == "Replace":
            pattern, written = step.get("pattern"), str(step.get("content"))
            literal = str(pattern.get("String") or "") if isinstance(pattern, Mapping) else ""
            factor = max(1.0, len(written) / max(1, len(literal)))
            if not literal and written and _may_be_empty(pattern):
                factor += 1.0
            replaced = frozenset(literal)
            feeds = (grown for wrote, grown in before if not literal or not wrote.isdisjoint(replaced))
            before.append((frozenset(written), factor * max(feeds, default=1.0)))
    return max(grown for _, grown in before)


def _replacements(charsmap: object) -> str:
    """The texts that SentencePiece's normaliser writes, each ended by a zero byte. They follow a trie and its size."""
    content = base64.b64decode(charsmap) if isinstance(charsmap, str) else b""
    return content[4 + int.from_bytes(content[:4], "little") :].decode(errors="replace")


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
        raise FileError(f"the {where} has an expression of {len(pattern):,} characters")
    if _is_nested(pattern) and _runs_away(pattern):
        raise FileError(f"the {where} has an expression that takes too long on some texts: {excerpt!r}")


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
