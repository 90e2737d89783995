"""Traces: what each forward pass of a run did (draft tree, accepted path, times), as objects and as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from copyspec.common.checks import brief
from copyspec.common.filesystem import open_input
from copyspec.tree import ROOT

FORMAT, VERSION = "copyspec-trace", 2

MAX_FILE_BYTES = 256 << 20
"""Maximum size of a trace file: a trace with MAX_NODES nodes takes a tenth of it."""


class TraceError(ValueError):
    """The file or data is not a valid trace."""


@dataclass(frozen=True, slots=True)
class TraceTimes:
    """Seconds of one forward pass, measured for all rows of the batch together."""

    start: float  # since the row's first pass began
    draft: float = 0.0  # drafting
    model: float = 0.0  # in the model's forward pass
    verify: float = 0.0
    other: float = 0.0  # committing accepted tokens, and counters

    @property
    def outside(self) -> float:
        """Seconds outside the model."""
        return self.draft + self.verify + self.other

    @property
    def total(self) -> float:
        return self.model + self.outside


@dataclass(frozen=True, slots=True)
class TraceNodes:
    """The draft tree of one pass; parents come before their children. Each field has one entry per node. [m]"""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()  # index of a node; -1: the root, the last token before the pass
    scores: tuple[float, ...] = ()  # estimated probability that the whole path to the node is accepted
    drafters: tuple[str, ...] = ()  # who drafted it: a kind of source, or a predictor

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self) -> dict[int, list[int]]:
        """Children by parent, in stored order."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(node)
        return children

    def probability(self, node: int) -> float:
        """Estimated probability that a node is accepted, given that its parent is."""
        parent = self.parents[node]
        above = 1.0 if parent == ROOT else self.scores[parent]
        return min(1.0, self.scores[node] / above) if above > 0 else 0.0


@dataclass(frozen=True, slots=True)
class TracePass:
    """One forward pass from the viewpoint of one row."""

    times: TraceTimes
    tokens: tuple[int, ...]  # tokens added to the output: the accepted ones, then the model's own
    nodes: TraceNodes
    path: tuple[int, ...]  # indices of the accepted nodes
    rows: int = 1  # rows in the batch
    is_first: bool = False  # whether it read the prompt
    decision: str = ""  # as in `Stats.decisions`


@dataclass(slots=True)
class TraceTotals:
    """Sums over passes, with the field names of `Stats`."""

    num_passes: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_output_tokens: int = 0
    num_draft_tokens_per_source: dict[str, int] = field(default_factory=dict)
    num_accepted_tokens_per_source: dict[str, int] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0

    def add(self, pass_: TracePass) -> None:
        self.num_passes += 1
        self.num_drafts += len(pass_.nodes) > 0
        self.num_draft_tokens += len(pass_.nodes)
        self.num_accepted_tokens += len(pass_.path)
        self.num_output_tokens += len(pass_.tokens)
        for drafter in pass_.nodes.drafters:
            self.num_draft_tokens_per_source[drafter] = self.num_draft_tokens_per_source.get(drafter, 0) + 1
        for node in pass_.path:
            drafter = pass_.nodes.drafters[node]
            self.num_accepted_tokens_per_source[drafter] = self.num_accepted_tokens_per_source.get(drafter, 0) + 1
        self.draft_seconds += pass_.times.draft
        if pass_.is_first:
            self.prefill_seconds += pass_.times.model
        else:
            self.target_seconds += pass_.times.model
        self.verify_seconds += pass_.times.verify
        self.other_seconds += pass_.times.other


@dataclass(frozen=True, slots=True)
class Trace:
    """The forward passes of one output, in order."""

    passes: tuple[TracePass, ...]
    texts: Mapping[int, str] = field(default_factory=dict)  # text of each token id that occurs
    omitted: TraceTotals = field(default_factory=TraceTotals)
    """Totals of later passes, which were too many to keep."""
    prompt_tokens: int = 0

    def totals(self) -> TraceTotals:
        """Totals of all passes, including omitted ones: equal to the result's `Stats`."""
        totals = TraceTotals(**asdict(self.omitted))
        for pass_ in self.passes:
            totals.add(pass_)
        return totals

    def text(self, tokens: Sequence[int]) -> str:
        """The concatenated text of single tokens; a character split over several tokens shows as U+FFFD."""
        return "".join(self.texts.get(token, f"<{token}>") for token in tokens)

    def to_dict(self) -> dict[str, object]:
        """The trace as JSON-compatible data, described in docs/trace.md."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "prompt_tokens": self.prompt_tokens,
            "texts": {str(token): text for token, text in self.texts.items()},
            "passes": [_rounded(asdict(pass_)) for pass_ in self.passes],
            "omitted": asdict(self.omitted),
            "totals": asdict(self.totals()),
        }

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), separators=(",", ":")), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace file. Raises TraceError if it is invalid, naming the fault."""
        with open_input(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise TraceError(f"{path} has more than {MAX_FILE_BYTES:,} bytes, which no trace has")
        try:
            return cls.from_dict(json.loads(data.decode()))
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path} is not JSON: {error}") from error

    @classmethod
    def from_dict(cls, given: object) -> Trace:
        """The inverse of `to_dict`. Raises TraceError for invalid data."""
        top = _mapping(given, "the file")
        if top.get("format") != FORMAT or top.get("version") != VERSION:
            header = f"format {brief(top.get('format'))}, version {brief(top.get('version'))}"
            raise TraceError(f"{header}; not {FORMAT!r}, {VERSION}")
        texts = _mapping(top.get("texts"), "texts")
        if not all(token.isdecimal() and isinstance(text, str) for token, text in texts.items()):
            raise TraceError("texts must map token ids to strings")
        omitted = _mapping(top.get("omitted", {}), "omitted")
        trace = cls(
            tuple(_pass(item, f"passes[{index}]") for index, item in enumerate(_list(top.get("passes"), "passes"))),
            {int(token): str(text) for token, text in texts.items()},
            _totals(omitted),
            _whole(top.get("prompt_tokens", 0), "prompt_tokens"),
        )
        used = (token for pass_ in trace.passes for token in (*pass_.tokens, *pass_.nodes.tokens))
        if sum(len(trace.texts.get(token, "")) for token in used) > MAX_FILE_BYTES:  # one long text, many times
            raise TraceError(f"the texts of all tokens have more than {MAX_FILE_BYTES:,} characters; no trace has")
        return trace


def _rounded(value: Any) -> Any:
    """Round to seven decimal places (a tenth of a microsecond), which is below the noise."""
    if isinstance(value, float):
        return round(value, 7)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _pass(value: object, where: str) -> TracePass:
    fields = _mapping(value, where)
    times = _mapping(fields.get("times"), f"{where}.times")
    nodes = _mapping(fields.get("nodes"), f"{where}.nodes")
    parents = _wholes(nodes.get("parents"), f"{where}.nodes.parents", ROOT)
    tree = TraceNodes(
        _wholes(nodes.get("tokens"), f"{where}.nodes.tokens"),
        parents,
        tuple(_number(score, f"{where}.nodes.scores") for score in _list(nodes.get("scores"), f"{where}.nodes.scores")),
        tuple(
            _string(drafter, f"{where}.nodes.drafters")
            for drafter in _list(nodes.get("drafters"), f"{where}.nodes.drafters")
        ),
    )
    if len({len(tree.tokens), len(tree.parents), len(tree.scores), len(tree.drafters)}) != 1:
        raise TraceError(f"{where}.nodes: tokens, parents, scores and drafters differ in length")
    if any(parent >= node for node, parent in enumerate(parents)):
        raise TraceError(f"{where}.nodes.parents: a parent must come before its child")
    path = _wholes(fields.get("path"), f"{where}.path")
    above = [ROOT, *path[:-1]]
    if any(node >= len(tree) or parents[node] != parent for node, parent in zip(path, above, strict=False)):
        raise TraceError(f"{where}.path is not a path from the root of the tree")
    names = ("start", "draft", "model", "verify", "other")
    return TracePass(
        TraceTimes(*(_number(times.get(name, 0.0), f"{where}.times.{name}") for name in names)),
        _wholes(fields.get("tokens"), f"{where}.tokens"),
        tree,
        path,
        _whole(fields.get("rows", 1), f"{where}.rows", 1),
        bool(fields.get("is_first", False)),
        _string(fields.get("decision", ""), f"{where}.decision"),
    )


def _totals(fields: Mapping[str, object]) -> TraceTotals:
    totals = TraceTotals()
    for name, default in asdict(totals).items():
        value = fields.get(name, default)
        where = f"omitted.{name}"
        if isinstance(default, dict):
            parsed: object = {
                _string(key, where): _whole(count, where) for key, count in _mapping(value, where).items()
            }
        else:
            parsed = _whole(value, where) if isinstance(default, int) else _number(value, where)
        setattr(totals, name, parsed)
    return totals


def _mapping(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TraceError(f"{where} must be an object, got {brief(value)}")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise TraceError(f"{where} must be a list, got {brief(value)}")
    return value


def _string(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.isprintable():  # control characters would reach the terminal
        raise TraceError(f"{where} must be a string of printable characters, got {brief(value)}")
    return value


def _whole(value: object, where: str, low: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 1 << 53:
        raise TraceError(f"{where} must be an integer >= {low}, got {brief(value)}")
    return value


def _wholes(value: object, where: str, low: int = 0) -> tuple[int, ...]:
    return tuple(_whole(item, where, low) for item in _list(value, where))


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise TraceError(f"{where} must be a number >= 0, got {brief(value)}")
    return float(value)
