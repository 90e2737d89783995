"""Reads a server's answers, and finds by text what it does not say: margins of changes, and where text came from."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Any

from copyspec.client.sending import AgainError
from copyspec.common.sequences import common_prefix
from copyspec.engine.results import Change
from copyspec.engine.results.logprobs import TokenLogprob
from copyspec.text.replies.reader import Parts
from copyspec.views.provenance import Place, SourceText, Span

STOPPED = frozenset(("stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed"))
CUT = frozenset(("length", "max_tokens", "max_output_tokens", "model_length"))
FILTERED = frozenset(("content_filter", "safety", "recitation", "blocklist", "prohibited_content"))
"""Finish reasons of different servers, in lower case."""

SEED = 8
"""Characters that a copy has at least; a shorter text must be copied whole."""
MAX_PLACES = 32  # places that begin alike of which the longest copy is taken
MAX_TIES = 8  # other places listed with a span
MAX_CELLS = 1_000_000  # pairs of words above which margins are not computed

_KINDS = ("thinking", "text")  # of parts of a content
_THOUGHT = re.compile(r"\A\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)
_WORD = re.compile(r"\s*\S+|\s+\Z")


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """One answer of a server."""

    parts: Parts
    finish: str  # "stop", "length", "filtered", or a reason that is none of these
    usage: Mapping[str, int]
    logprobs: object = None  # as they came: see `logprobs_of`
    changes: tuple[Change, ...] | None = None
    id: str = ""


def read(headers: Mapping[str, str], data: bytes, names: Sequence[str], model: str) -> ReadAnswer:
    """Read the answer to a chat. `names`: of the models that may have written it. Raises AgainError for what is none,
    or belongs to another request."""
    if "html" in headers.get("content-type", "") or data.lstrip()[:1] == b"<":
        raise AgainError("it sent an HTML page instead of JSON")
    try:
        body = json.loads(data)
        choice = body["choices"][0]
        message = choice["message"]
        finish, content = choice.get("finish_reason"), message.get("content")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise AgainError("its answer is not the JSON of a chat completion") from None
    if not isinstance(content, (str, list, type(None))) or (content and not _is_known(content)):
        raise AgainError("its answer has no text")
    check_model(body.get("model"), names, model)
    if not isinstance(finish, str):
        raise AgainError("its answer has no finish reason: it may be half of one")
    reason, content = (CharacterJoiner().push(text, is_last=True) for text in texts_of(message))
    parts = parts_of(content, reason)
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        parts, finish = Parts(content=refusal), "content_filter"
    id_ = body.get("id")
    return ReadAnswer(
        parts,
        finish_of(finish),
        usage_of(body.get("usage")),
        choice.get("logprobs"),
        _changes(choice.get("changes")),
        id_ if isinstance(id_, str) else "",
    )


def texts_of(message: Mapping[str, Any]) -> tuple[str, str]:
    """The thought and the text of a message, or of a piece of one. Mistral's API sends both as parts of the content."""
    content, thought = message.get("content"), message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(content, list):
        return _text_in(thought), _text_in(content)
    parts = [part for part in content if isinstance(part, Mapping)]
    thought, text = ("".join(_text_in(part.get(kind)) for part in parts if part.get("type") == kind) for kind in _KINDS)
    return thought, text


def _is_known(content: str | list[Any]) -> bool:
    """Whether a content is a text, or has a part that is read."""
    kinds = [part.get("type") for part in content if isinstance(part, Mapping)]
    return isinstance(content, str) or any(kind in _KINDS for kind in kinds)


def _text_in(content: object) -> str:
    if isinstance(content, list):
        return "".join(_text_in(part.get("text")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def check_model(answered: object, names: Sequence[str], model: str) -> None:
    """Raise AgainError if another model has answered. Dated versions of a name are the same model."""
    if isinstance(answered, str) and answered and not any(_is_same(answered, name) for name in (model, *names)):
        raise AgainError(f"another model has answered: {answered[:80]!r} instead of {model!r}")


def _is_same(answered: str, name: str) -> bool:
    names = (re.split(r"[/\\]", full.lower())[-1] for full in (answered, name))
    one, other = (last.removesuffix(".gguf").removesuffix(":latest") for last in names)
    return one == other or re.fullmatch(re.escape(other) + r"[-@:].*\d.*", one) is not None


def finish_of(reason: str) -> str:
    """The finish reason in copyspec's words; others stay as they are."""
    plain = reason.lower()
    known = (("stop", STOPPED), ("length", CUT), ("filtered", FILTERED))
    return next((name for name, reasons in known if plain in reasons), plain)


def parts_of(text: str, reasoning: str = "") -> Parts:
    """An answer and the thought before it, which some servers leave in the text."""
    match = _THOUGHT.match(text)
    if match is None or reasoning:
        return Parts(reasoning, text)
    return Parts(match[1].strip(), text[match.end() :])


def usage_of(value: object) -> dict[str, int]:
    """Token counts; those that a server does not give are missing."""
    usage = value if isinstance(value, Mapping) else {}
    details = usage.get("completion_tokens_details")
    inner = usage.get("prompt_tokens_details")
    flat = dict(usage)
    for counts in (details, inner):
        flat |= counts if isinstance(counts, Mapping) else {}
    return {name: count for name, count in flat.items() if type(count) is int and count >= 0}


def logprobs_of(value: object) -> tuple[TokenLogprob, ...]:
    """OpenAI's log-probabilities; none if they are missing or invalid. Ids of tokens are unknown: -1."""
    listed = value.get("content") if isinstance(value, Mapping) else None
    try:
        return tuple(_logprob(entry, entry.get("top_logprobs") or ()) for entry in listed or ())
    except (TypeError, ValueError, KeyError, AttributeError):
        return ()


def _logprob(entry: Mapping[str, Any], top: Sequence[Mapping[str, Any]]) -> TokenLogprob:
    token, logprob = entry["token"], float(entry["logprob"])
    if not isinstance(token, str) or math.isnan(logprob):
        raise ValueError("no token")
    return TokenLogprob(-1, token, logprob, tuple(_logprob(other, ()) for other in top))


def _changes(value: object) -> tuple[Change, ...] | None:
    """The changes of `copyspec serve`."""
    if not isinstance(value, list):
        return None
    try:
        changes = [Change(int(change["start"]), int(change["end"]), _number(change["margin"])) for change in value]
    except (TypeError, ValueError, KeyError):
        return None
    return tuple(change for change in changes if 0 <= change.start <= change.end and not math.isnan(change.margin))


def _number(value: object) -> float:
    """A margin, which is null if it is infinite."""
    return math.inf if value is None else float(value)  # type: ignore[arg-type]


def changes_by_text(source: str, output: str, logprobs: Sequence[TokenLogprob]) -> tuple[Change, ...]:
    """The changes of an output with their margins: how much likelier its first other token was than the source's own.
    If that is not among the most likely ones, the margin is the least that it can be."""
    starts = [0, *accumulate(len(logprob.token) for logprob in logprobs)]
    written = "".join(logprob.token for logprob in logprobs)
    shift = written.find(output)  # tokens may begin with a space that the answer leaves out
    was, now = _WORD.findall(source), _WORD.findall(output)
    if shift < 0 or not output or len(was) * len(now) > MAX_CELLS:
        return ()
    ends = [0, *accumulate(map(len, was))], [0, *accumulate(map(len, now))]
    changes, at = [], 0
    for kind, first, last, begin, end in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        start, stop, place, until = ends[0][first], ends[0][last], ends[1][begin], ends[1][end]
        same = common_prefix(source[start:stop], output[place:until])
        place += same + shift
        while at + 1 < len(logprobs) and starts[at + 1] <= place:
            at += 1
        own = max(0, start + same - (place - starts[at]))  # where the source goes on in place of this token
        changes.append(Change(own, max(stop, own), _margin(logprobs[at], source[own:])))
    return tuple(changes)


def _margin(token: TokenLogprob, own: str) -> float:
    others = [other for other in token.top if other.token != token.token and other.token]
    if alike := [
        other.logprob for other in others if own and (own.startswith(other.token) or other.token.startswith(own))
    ]:
        return token.logprob - max(alike)
    left = 1.0 - math.exp(token.logprob) - sum(math.exp(other.logprob) for other in others)
    bounds = [math.log(max(left, 1e-9)), *(other.logprob for other in others)]
    return token.logprob - min(bounds)


def spans_by_text(text: str, sources: Sequence[SourceText]) -> tuple[Span, ...]:
    """Where the characters of a text stand in other texts, in text order: the longest copies, of those the first
    source's. All positions are characters, also those that are tokens in spans of an engine."""
    places = _places(text, sources)
    spans, at, end, goes_on = [], 0, 0, (-1, 0)
    seed = min(SEED, len(text))
    while seed and at + seed <= len(text):
        near = places[text[at : at + seed]]
        matches = [(_reach(text, at, sources[number].text or "", place), number, place) for number, place in near]
        if not matches:
            at += 1
            continue
        length = max(match[0] for match in matches)
        longest = [match[1:] for match in matches if match[0] == length]
        number, place = next((origin for origin in longest if (origin[0], origin[1] - at) == goes_on), longest[0])
        source = sources[number].text or ""
        back = 0
        while at - back > end and place - back > 0 and text[at - back - 1] == source[place - back - 1]:
            back += 1
        others = [origin for origin in longest if origin != (number, place) and not back][:MAX_TIES]
        ties = tuple(_place(sources[other], where, where + length) for other, where in others)
        here = _place(sources[number], place - back, place + length)
        spans.append(Span(here, at - back, at + length, at - back, at + length, ties))
        goes_on = number, place - at
        at = end = at + length
    return tuple(spans)


def _place(source: SourceText, start: int, end: int) -> Place:
    return Place(source.name, source.kind, source.index, start, end, start, end)


def _places(text: str, sources: Sequence[SourceText]) -> dict[str, list[tuple[int, int]]]:
    """The places of each piece of a text in the sources, by the piece."""
    seed = min(SEED, len(text))
    places: dict[str, list[tuple[int, int]]] = {text[at : at + seed]: [] for at in range(len(text) - seed + 1)}
    for number, source in enumerate(sources):
        own = source.text or ""
        for at in range(len(own) - seed + 1):
            listed = places.get(own[at : at + seed])
            if listed is not None and len(listed) < MAX_PLACES:
                listed.append((number, at))
    return places


def _reach(text: str, at: int, source: str, place: int) -> int:
    """How many characters from there on are equal."""
    length, step = 0, 64
    while step:
        here, there = text[at + length : at + length + step], source[place + length : place + length + step]
        if here == there and len(here) == step:
            length, step = length + step, step * 2
        elif step == 1 or here[:1] != there[:1]:
            return length
        else:
            step //= 2
    return length


class CharacterJoiner:
    """Joins characters beyond U+FFFF that a server has cut into the halves that JSON writes them in. A half whose other
    one is missing becomes U+FFFD: no file can hold it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")("replace")

    def push(self, text: str, *, is_last: bool = False) -> str:
        """The characters that a piece of a text completes."""
        return self._decoder.decode(text.encode("utf-16-le", "surrogatepass"), is_last)


class ThoughtSplitter:
    """Tells a thought in front of a streamed answer apart from it."""

    def __init__(self) -> None:
        self._characters = CharacterJoiner()
        self._held = ""
        self._is_thinking: bool | None = None  # None: not known yet

    def push(self, text: str) -> tuple[str, str]:
        """The new pieces of the thought and of the answer."""
        self._held += self._characters.push(text)
        begun = self._held.lstrip()
        if self._is_thinking is None and begun.startswith(_OPEN):
            self._is_thinking, self._held = True, begun.removeprefix(_OPEN)
        if self._is_thinking is None and not _OPEN.startswith(begun):
            self._is_thinking = False
        if not self._is_thinking:
            return ("", "") if self._is_thinking is None else ("", self._taken())
        thought, closed, answer = self._held.partition(_CLOSE)
        if closed:
            self._is_thinking, self._held = False, ""
            return thought, answer.lstrip()
        return "", ""

    def finish(self) -> tuple[str, str]:
        """What is left at the end."""
        rest = self._taken() + self._characters.push("", is_last=True)
        return (rest, "") if self._is_thinking else ("", rest)

    def _taken(self) -> str:
        text, self._held = self._held, ""
        return text


_OPEN, _CLOSE = "<think>", "</think>"
