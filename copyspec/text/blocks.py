"""Finds blocks of a prompt: texts in it that the output may edit or repeat, recognised by how they are delimited.

Each block has odds against the hypothesis that no text is edited, quantised into buckets.
"""

from __future__ import annotations

import math
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from copyspec.common.sequences import common_prefix
from copyspec.sources import EVEN_ODDS, FORK

BUCKETS = 19
"""Number of buckets; the odds double from one to the next."""

MAX_ODDS = 2.0 ** (BUCKETS - 1 - EVEN_ODDS)

MAX_BLOCKS = 8
MAX_STARTS = 48
LOOKED_AT = 20_000  # last characters of a prompt that are searched: the edited text stands near its end
MAX_CHARACTERS = 40_000  # total of all blocks, which may overlap
MIN_SHARE = 0.1
MIN_SIZE = 2  # minimum characters of a block
WRAPPING = 40  # maximum characters of an opening or closing mark
_HEADER = r"[^\w\n]{0,4}\w[\w -]{0,40}[*_\"]*:[*_\"]*"
_MARKUP = r"<\|[^|<>\n]{1,40}\|>|</?(?:start|end)_of_turn>|\[/?INST\]|</?s>"
_SPEAKER = r"^[*# ]{0,4}(?:System|User|Human|Assistant|AI|Bot|Model)[*]*:[*]*\s*"
_TURN = rf"(?:(?:{_MARKUP})(?:\s*[a-z]+(?=\n|<\|))?\s*)+|{_SPEAKER}"
"""Separates two turns: template markup with the role named in it, or a speaker's name at the start of a line."""

_MARKS = re.compile(
    rf"(?P<turn>{_TURN})"
    r"|<(?P<tag>[A-Za-z][\w:-]*)>\s*"
    r"|^[ \t]*(?P<fence>(?:```+|~~~+)(?=[\w+-]*[ \t]*\n)|\"\"\"|''')(?:(?<=[`~])[\w+-]*)?[ \t]*\n?"
    r"|^(?P<rule>(?P<dash>[-=*_])(?P=dash){2,})[ \t]*\n"
    rf"|(?P<header>^{_HEADER}[ \t]*\n+)"
    r"|(?P<title>^[#*]*[ \t]*[A-Z]\w*(?: \w+){0,3}[ \t]*\n)"
    r"|(?P<labelled>(?<=[^\W_])[*_\"]*:[*_\"]*[ \t]*\n+)"
    r"|(?P<label>(?<=[^\W_])[*_\"]*:[*_]*[ \t]+)"
    r"|(?<![^\s(:=\[{,>])(?P<quote>[\"'“«„‘`「])(?=\S)"
    r"|(?P<json>^\s{0,200}[{\[](?=\s*[\"{\[]))"
    r"|(?P<paragraph>\n[ \t]*\n\s*)"
    r"|(?P<line>\n[ \t]*)",
    re.MULTILINE,
)
_CLOSING = {'"': '"', "'": "'", "“": "”", "«": "»", "„": "“", "‘": "’", "`": "`", "「": "」"}
_CLOSED = {opening: re.compile(rf"{re.escape(closing)}(?!\w)") for opening, closing in _CLOSING.items()}
_ROLE = r"[*#]{0,3}[ \t]*[A-Z][A-Za-z]*(?: [A-Za-z]+)?[*]*:[*]*"
_END_OF_TURN = re.compile(rf"{_TURN}|\n[ \t]*\n{_ROLE}[ \t]*(?:\n|\Z)", re.MULTILINE)

# Log-odds against no text being edited, fitted by `benchmarks.replay.fit_blocks`. Each mark has one weight for the text
# up to its own end, and one for the wider reading (with its marks, or to the end of the paragraph or turn); each
# feature has one weight.
_OF_MARKS = {
    "turn": (0.22, -1.82),
    "tag": (1.16, 0.67),
    "fence": (1.74, 0.59),
    "rule": (0.49, -0.2),
    "header": (-0.42, -0.83),
    "title": (0.62, -0.52),
    "labelled": (-0.97, -1.38),
    "label": (-0.34, -1.45),
    "quote": (-0.25, -1.0),
    "json": (0.65, 0.66),
    "paragraph": (-0.89, -1.14),
    "line": (-1.03, -1.93),
}
_OF_FEATURES = {
    "size": 0.02,
    "short": -3.04,
    "turns behind": -1.82,
    "starts the turn": -1.17,
    "ends the turn": -0.91,
    "share of the turn": 4.49,
    "first turn": -0.01,
    "holds a text": -0.28,
    "asks first": -1.08,
    "is asked for": -0.14,
    "system turn": -0.37,
    "reply": 0.84,
    "starts a reply": 1.4,
    "starts the last reply": 1.23,
    "within a fence": -1.02,
    "within other marks": 0.0,
    "starts with a mark": -1.17,
    "ends as a question": -0.84,
}
KINDS = tuple(_OF_MARKS)
FEATURES = tuple(_OF_FEATURES)
WEIGHTS = [weight for pair in _OF_MARKS.values() for weight in pair] + list(_OF_FEATURES.values())


_APART = frozenset({"tag", "fence", "rule", "quote", "json"})
_FENCES = frozenset({"fence", "rule"})
_NEAREST = 4  # how many of the nearest ones are checked
_ASKED = re.compile(r"[:?][*_]*[ \t]*\n\s*\Z")
_SYSTEM = re.compile(r"\bsystem\b|<<SYS>>", re.IGNORECASE)
_REPLY = re.compile(r"\b(?:assistant|model|bot|ai)\b|\[/INST\]", re.IGNORECASE)


@dataclass(slots=True)
class Block:
    """A character range of a text, with the positions in it where an edited text may start: (character, bucket)."""

    start: int
    stop: int
    starts: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Candidate:
    start: int
    stop: int
    features: tuple[float, ...]  # 2 * number of the mark + reading, then the feature values
    weight: float


def find_blocks(text: str) -> list[Block]:
    """The most probable blocks, best first. Blocks may overlap, since one text may have several possible ends."""
    ranked = sorted(candidates(text), key=lambda c: (-c.weight, c.start, -c.stop))[:MAX_STARTS]
    # Scale all odds together if the largest exceeds MAX_ODDS, so that two near-certain starts keep their ratio.
    scale = min(1.0, MAX_ODDS / max((candidate.weight for candidate in ranked), default=1.0))
    least = MIN_SHARE * (1.0 + sum(candidate.weight for candidate in ranked))
    blocks: dict[tuple[int, int], Block] = {}  # by stop position: one block may have several starts
    inner: list[Candidate] = []
    characters = 0
    for candidate in ranked:
        # After a space the first token differs from that at the start of an output, so such a text gets a block of its
        # own.
        apart = candidate.start if text[candidate.start - 1 : candidate.start] == " " else -1
        block = blocks.get((candidate.stop, apart))
        new = candidate.stop - candidate.start - (block.stop - block.start if block is not None else 0)
        is_likely = candidate.weight >= (least if _is_held(candidate, blocks.values()) else least / 2)
        is_likely = is_likely or _goes_with(candidate, blocks.values())
        is_full = block is None and (len(blocks) == MAX_BLOCKS or not is_likely)
        if is_full or characters + max(0, new) > MAX_CHARACTERS:
            inner.append(candidate)
            continue
        characters += max(0, new)
        if block is None:
            block = blocks[candidate.stop, apart] = Block(candidate.start, candidate.stop)
        block.start = min(block.start, candidate.start)
        block.starts.append((candidate.start, _bucket(scale * candidate.weight)))
    for candidate in inner:
        around = [block for block in blocks.values() if block.start <= candidate.start < block.stop]
        if around:
            smallest = min(around, key=lambda block: block.stop - block.start)
            smallest.starts.append((candidate.start, _bucket(scale * candidate.weight)))
    for block in blocks.values():
        block.starts.sort()
    return list(blocks.values())


def _is_held(candidate: Candidate, blocks: Iterable[Block]) -> bool:
    return any(block.start <= candidate.start < block.stop for block in blocks)


def _goes_with(candidate: Candidate, blocks: Iterable[Block]) -> bool:
    """Whether it is an existing block with, or without, its delimiting marks: an output that begins with the mark also
    ends with it."""
    kind, reading = divmod(int(candidate.features[0]), 2)
    if KINDS[kind] not in _APART:
        return False
    for block in blocks:
        opening, closing = block.start - candidate.start, candidate.stop - block.stop
        if reading == 0:
            opening, closing = -opening, -closing
        if 0 < opening <= WRAPPING and 0 < closing <= WRAPPING:
            return True
    return False


def candidates(text: str) -> list[Candidate]:
    """All delimited texts, each in its possible readings."""
    first, end = max(0, len(text) - LOOKED_AT), len(text.rstrip())
    fenced, others, marked = _set_apart(text, first)
    by_span: dict[tuple[int, int], Candidate] = {}
    turns = [match.span() for match in _END_OF_TURN.finditer(text, first)]
    at = len(turns)
    replies = _replies(text, turns, end)
    marks: list[tuple[int, str, re.Match[str] | None]] = [(first, "paragraph", None)]
    marks += [(match.end(), str(match.lastgroup), match) for match in _MARKS.finditer(text, first)]
    apart: list[tuple[int, int]] = []  # texts in quotes, fences and tags after the mark, nearest last
    for start, kind, match in reversed(marks):
        while at and turns[at - 1][0] >= start:
            at -= 1
        mark_start, turn_start = turns[at - 1] if at else (first, first)
        turn_stop = min(end, turns[at][0]) if at < len(turns) else end
        is_system = _SYSTEM.search(text, mark_start, turn_start) is not None
        is_reply = at - 1 in replies
        inner = None
        for reading, (begins, stops) in enumerate(_readings(text, kind, match, start, turn_stop)):
            stop = begins + len(text[begins:stops].rstrip())
            size = stop - begins
            if size < MIN_SIZE:
                continue
            of_turn = max(1, len(text[turn_start:turn_stop].strip()))
            is_first = not text[turn_start:begins].strip()
            features = (
                math.log2(size) / 10,
                float(size < 20),
                float(min(3, len(turns) - at)),
                float(is_first),
                float(not text[stop:turn_stop].strip()),
                min(1.0, size / of_turn),
                float(at == 0 and bool(turns)),
                float(any(end <= stop and 3 * (end - begin) > size for begin, end in apart[-_NEAREST:])),
                float(_asks(text, begins, stop)),
                float(_ASKED.search(text, max(first, begins - 8), begins) is not None),
                float(is_system),
                float(is_reply),
                float(is_reply and is_first),
                float(is_reply and is_first and at - 1 == replies[-1]),
                float(fenced.hold(begins, stop)),
                float(others.hold(begins, stop)),
                float(kind not in _APART and begins in marked),
                float(text.startswith("?", stop - 1)),
            )
            mark = 2 * KINDS.index(kind) + reading
            score = WEIGHTS[mark] + sum(map(operator.mul, WEIGHTS[2 * len(KINDS) :], features))
            known = by_span.get((begins, stop))
            if known is None or known.weight < math.exp(score):
                by_span[begins, stop] = Candidate(begins, stop, (mark, *features), math.exp(score))
            if not reading and kind in _APART:
                inner = (begins, stop)
        if inner is not None:
            apart.append(inner)
    return list(by_span.values())


class _Stretches:
    """Ranges of a text, added in order of their starts; tells whether one of them contains a given range."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []  # maximum end of a range and all earlier ones

    def add(self, start: int, stop: int) -> None:
        self._starts.append(start)
        self._stops.append(max(stop, self._stops[-1]) if self._stops else stop)

    def hold(self, start: int, stop: int) -> bool:
        """Whether a range that starts earlier contains [start, stop)."""
        before = bisect_left(self._starts, start)
        return before > 0 and stop <= self._stops[before - 1]


def _set_apart(text: str, first: int) -> tuple[_Stretches, _Stretches, set[int]]:
    """The texts inside fences and rules, those inside other closed marks, and the start positions of these marks."""
    fenced, others = _Stretches(), _Stretches()
    marked: set[int] = set()
    unclosed: set[str] = set()  # kinds found unclosed once are unclosed from there on
    for match in _MARKS.finditer(text, first):
        kind = str(match.lastgroup)
        if kind in _APART and match[kind] not in unclosed:
            start = match.end()
            stop, closed = _closed(text, kind, match, start, len(text))
            if closed == start:
                unclosed.add(match[kind])
            elif stop > start:
                (fenced if kind in _FENCES else others).add(start, stop)
                marked.add(match.start() + len(match[0]) - len(match[0].lstrip()))
    return fenced, others, marked


def _replies(text: str, turns: Sequence[tuple[int, int]], end: int) -> list[int]:
    """Indices of the turn marks that precede an earlier reply of the model."""
    stops = [start for start, _ in [*turns, (end, end)][1:]]
    return [
        number
        for number, ((start, begins), stop) in enumerate(zip(turns, stops, strict=True))
        if text[begins:stop].strip() and _REPLY.search(text, start, begins) is not None
    ]


def _readings(text: str, kind: str, match: re.Match[str] | None, start: int, turn: int) -> Iterator[tuple[int, int]]:
    """Yield the range of the text after a mark in two readings; an empty range if there is none."""
    nothing = (start, start)
    if match is not None and kind in _APART:
        stop, closed = _closed(text, kind, match, start, turn)
        yield (start, stop) if stop > start else nothing
        yield (match.start() + len(match[0]) - len(match[0].lstrip()), closed) if stop > start else nothing
        return
    line, paragraph = text.find("\n", start), text.find("\n\n", start)
    line, paragraph = min(turn, line if line >= 0 else turn), min(turn, paragraph if paragraph >= 0 else turn)
    if kind in ("line", "label"):
        yield start, line
        yield start, paragraph
    else:
        yield start, paragraph
        yield start, turn


def _asks(text: str, begins: int, stop: int) -> bool:
    """Whether the first line ends with ":" or "?" and another one follows."""
    line = text.find("\n", begins, stop)
    return line >= 0 and text[begins:line].rstrip(" \t").endswith((":", "?"))


def _closed(text: str, kind: str, match: re.Match[str], start: int, turn: int) -> tuple[int, int]:
    """The end of a delimited text without and with its closing mark; `start` twice if it is not closed."""
    if kind == "json":
        close = max(text.rfind("}", start, turn), text.rfind("]", start, turn))
        return (close + 1, close + 1) if close >= 0 else (start, start)
    if kind == "quote":
        closing = _CLOSED[match["quote"]].search(text, start, turn)
        return closing.span() if closing is not None else (start, start)
    mark = f"</{match['tag']}" if kind == "tag" else match[kind]
    close = text.find(mark, start)
    if close < 0:
        return start, start
    return close, close + len(mark) + (kind == "tag")


def _bucket(weight: float) -> int:
    return max(0, min(BUCKETS - 1, EVEN_ODDS + round(math.log2(weight))))


PARAGRAPH = 100
"""Minimum characters of a line that counts as a paragraph if it ends like a sentence; lines of code and verse are
shorter."""

END_TOKENS = 4  # how many last tokens of a paragraph are encoded again at its end

_ENDS = re.compile(r"[.!?][\"')\]”’]*[ \t]*(\n\s*)(?=[\"'“(]?[^\W\d_a-z])")
_BREAKS = (":", ":\n", ":\n\n", "\n", "\n\n", ">", ">\n", "```\n", '"', "“", "'", "‘", "«", "„", "`", "**", "> ", "- ")

Encode = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]
"""Returns the token ids of a text and the character range of each."""


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block as tokens."""

    ids: list[int]  # with FORK before the tokens that follow a paragraph's end
    starts: list[tuple[int, int]]  # (token, bucket) where an edited text may start
    ends: list[list[int]]  # for each FORK, the alternative tokens of an output that ends there
    asks: bool  # whether it ends with a question mark


def encode_block(text: str, block: Block, encode: Encode) -> EncodedBlock:
    """Encode `block` of `text` as it would appear in an output, which may leave the block after any paragraph.

    Many tokenizers merge a paragraph's last punctuation mark with the line breaks after it, so if the output continues
    differently, that token is a different one.
    """
    own = text[block.start : block.stop]
    tokens, places = encode(own)
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    ends: list[list[int]] = []
    done = 0
    for stop in _paragraph_ends(own) if places else ():
        at = bisect_right(places, stop, key=itemgetter(1))  # index of the token that holds the line break
        back = max(done, at - END_TOKENS)
        ending = list(encode(own[places[back][0] : stop])[0]) if back < at < len(tokens) else []
        same = common_prefix(ending, tokens[back:at])
        if back + same < at:
            continue  # the two encodings differ from here on, so the alternative ending is unknown
        ids += [*tokens[done:at], FORK]
        offsets += [*places[done:at], (stop, stop)]
        ends.append(ending[same:])
        done = at
    ids += tokens[done:]
    offsets += places[done:]
    starts = [(start - block.start, bucket) for start, bucket in block.starts]
    return EncodedBlock(ids, token_starts(starts, offsets), ends, own.endswith("?"))


def break_tokens(encode: Callable[[str], Sequence[int]]) -> frozenset[int]:
    """Tokens that end labels, openings and lines: after them an output's introduction may be over and a copy may
    begin."""
    encodings = [encode(before + mark) for mark in _BREAKS for before in ("", "a", "a ")]
    return frozenset(ids[-1] for ids in encodings if ids)


def _paragraph_ends(text: str) -> Iterator[int]:
    for match in _ENDS.finditer(text):
        if match.start(1) - (text.rfind("\n", 0, match.start(1)) + 1) >= PARAGRAPH:
            yield match.start(1)


def token_starts(starts: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Map character positions to the tokens that hold them, each token once with its highest bucket."""
    buckets: dict[int, int] = {}
    at = 0
    for start, bucket in starts:
        while at < len(offsets) and offsets[at][1] <= start:
            at += 1
        if at < len(offsets):
            buckets[at] = max(bucket, buckets.get(at, 0))
    return list(buckets.items())
