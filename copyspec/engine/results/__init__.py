"""What a call returns: text, token ids, counters, provenance of copied text, and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from copyspec.decoding.requests import FinishReason
from copyspec.decoding.stats import Stats as Stats
from copyspec.engine.results.logprobs import TokenLogprob
from copyspec.text.replies.calls import ToolCall
from copyspec.text.replies.reader import Parts
from copyspec.verification.margins import Margin
from copyspec.views.page import framed
from copyspec.views.pass_trace import Trace
from copyspec.views.provenance import Place as Place
from copyspec.views.provenance import Provenance, SourceName, SourceText, provenance_of
from copyspec.views.provenance import Span as Span
from copyspec.views.provenance_page import provenance_page
from copyspec.views.race import Landing, Race, RaceLane, race_page

NEAR_TIE = 1e-5
"""Relative difference of a score between float32 forward passes of different shape: ten times the largest measured."""

REPR_CHARACTERS = 200
"""Most characters of its text that a result shows in its repr."""

NOTEBOOK_CHARACTERS = 500_000
"""Most characters of source texts that a notebook stores with a displayed result."""


@dataclass(frozen=True, slots=True)
class Change:
    """A range of `edit_source` that the output does not follow."""

    start: int  # characters of `edit_source`, at token boundaries
    end: int
    margin: float
    """How much the model preferred the first differing token to the source's own: difference of log-probabilities, in
    nats."""


@dataclass(slots=True, repr=False)
class Result:
    """The output of one prompt. `str(result)` is its text."""

    text: str
    """The text without special tokens, cut before the stop string or stop token unless `include_stop` was given."""
    token_ids: tuple[int, ...]
    """All generated tokens, including the one that ended the output."""
    finish_reason: FinishReason
    """Why it ended: "length" if a limit of tokens or of time cut the output, else "stop"."""
    stop_reason: int | str | None
    """The stop string, the id out of `stop_token_ids`, or the stopping criterion's class name ("MaxTimeCriteria" for
    `max_time`); None for the model's own end-of-sequence token and for `max_new_tokens`."""
    prompt_tokens: int
    stats: Stats
    seed: int = 0
    rule: str | None = None
    """Name of the call's rule."""
    samples: tuple[Result, ...] = ()
    """With `n` above 1: all samples in order; this result is the first of them."""
    margins: tuple[Margin, ...] = ()
    """The two best scores at each position up to the first difference, if `compare` found one."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One entry per token of `token_ids`, if `logprobs=` was given."""
    changes: tuple[Change, ...] = ()
    """Differences from `edit_source` in a greedy output, if the tokenizer reports character offsets."""
    _spans: tuple[Span, ...] | Callable[[], tuple[Span, ...]] = field(default=(), repr=False)
    _sources: Callable[[], tuple[SourceText, ...]] = field(default=tuple, repr=False, compare=False)
    _trace: Trace | Callable[[], Trace] | None = field(default=None, repr=False, compare=False)
    _parts: Parts | Callable[[], Parts] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """A summary in one line; `to_dict` has the fields."""
        text = self.text if len(self.text) <= REPR_CHARACTERS else self.text[:REPR_CHARACTERS] + "..."
        samples = f", {len(self.samples)} samples" if self.samples else ""
        return (
            f"Result({text!r}, {len(self.token_ids)} tokens in {self.stats.num_passes} passes, "
            f"finish_reason={self.finish_reason!r}{samples})"
        )

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where the output was copied from, in output order. Computed on first access."""
        if callable(self._spans):
            self._spans = self._spans()
        return self._spans

    @property
    def parts(self) -> Parts:
        """The thought, the answer and the tool calls of the output of a chat: `reasoning`, `content`, `calls` and those
        that cannot be read, `invalid`. Any other output is all `content`. Computed on first access."""
        if callable(self._parts):
            self._parts = self._parts()
        return Parts(content=self.text) if self._parts is None else self._parts

    @property
    def reasoning(self) -> str:
        """What the model thought before it answered a chat, without the tags around it."""
        return self.parts.reasoning

    @property
    def content(self) -> str:
        """The answer: the text without thoughts and tool calls."""
        return self.parts.content

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of `tools` that the model has written."""
        return self.parts.calls

    @property
    def trace(self) -> Trace | None:
        """A record of each forward pass, if `trace=True` was given."""
        if callable(self._trace):
            self._trace = self._trace()
        return self._trace

    def provenance(self) -> Provenance:
        """The spans in characters with the texts of their sources, which a pickled result no longer has."""
        return provenance_of(self.text, self.spans, self._sources())

    def to_html(self, *, title: str = "Where this text came from") -> str:
        """An HTML page showing which text was copied from where: one file that needs no network."""
        return "".join(provenance_page(self.provenance(), title=title, facts=self._facts()))

    def _repr_html_(self) -> str:
        provenance = self.provenance().kept_below(NOTEBOOK_CHARACTERS)
        title = "Where this text came from"
        return framed("".join(provenance_page(provenance, title=title, facts=self._facts())), title=title)

    def _facts(self) -> list[str]:
        tokens, passes = self.stats.num_output_tokens, self.stats.num_passes
        return [f"{tokens:,} tokens in {passes:,} passes of the model"] if passes else []

    def to_dict(self) -> dict[str, object]:
        """All fields but `margins` and `trace` as JSON-compatible values, including the samples. `Trace.save` writes a
        trace."""
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "content": self.content,
            "tool_calls": [asdict(call) for call in self.tool_calls],
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "prompt_tokens": self.prompt_tokens,
            "seed": self.seed,
            "rule": self.rule,
            "stats": self.stats.to_dict(),
            "changes": [asdict(change) for change in self.changes],
            "logprobs": [asdict(logprob) for logprob in self.logprobs],
            "samples": [{**sample.to_dict(), "samples": []} for sample in self.samples],
            "spans": [asdict(span) for span in self.spans],
        }

    def __getstate__(self) -> tuple[object, ...]:
        self.spans, self.trace, self.parts  # noqa: B018  pickle spans, not the encodings and sources they come from
        return tuple(tuple if name == "_sources" else getattr(self, name) for name in Result.__slots__)

    def __setstate__(self, state: Sequence[object]) -> None:
        for name, value in zip(Result.__slots__, state, strict=True):
            setattr(self, name, value)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a prompt has no result that can be used."""

    reason: str  # a key for counting: "length", "filtered", "server" (it failed: another try may help)
    detail: str  # for people


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed output: complete characters only, and never part of a stop string."""

    text: str
    token_ids: tuple[int, ...]
    """The tokens of the step. Their text may come later: it is held back until characters and stop strings are
    complete."""
    sources: tuple[SourceName | None, ...] = field(default=(), kw_only=True)
    """Where each token was copied from; None: generated by the model."""
    skipped: int = field(default=0, kw_only=True)
    """Characters of the output's tokens that its text leaves out at the beginning: a space that belongs to the chat
    template. Known from the first text on, and the same in all later chunks."""
    source: SourceName | None = None  # source of the first copied token
    index: int = 0  # of the prompt
    result: Result | None = None  # with the last chunk of a prompt, or of each of its samples
    logprobs: tuple[TokenLogprob, ...] = ()
    """One entry per token of `token_ids`, if `logprobs=` was given."""
    reasoning: str = field(default="", kw_only=True)
    """The piece of a thought that this step completes; see `Result.parts`."""
    content: str = field(default="", kw_only=True)
    """The piece of the answer. Tool calls come with the result."""
    sample: int = field(default=0, kw_only=True)
    """With `n` above 1: the number of the sample."""
    _spans: Callable[[], tuple[Span, ...]] = field(default=tuple, repr=False, compare=False)
    _before: tuple[int, ...] = field(default=(), repr=False, compare=False)
    """The end of the prompt, with which the tokens are decoded."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans so far that no later token can change; with the last chunk, those of the result.

        Computed on each access, in time that grows with the output and the references.
        """
        return self._spans() if self.result is None else self.result.spans

    def __reduce__(self) -> tuple[object, ...]:
        spans = self.spans  # the data they are computed from is not pickled
        return _unpickled, ({**{name: getattr(self, name) for name in Chunk.__slots__}, "_spans": spans},)


def _unpickled(values: Mapping[str, Any]) -> Chunk:
    spans = values["_spans"]
    return Chunk(**{**values, "_spans": lambda: spans})


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position at which two outputs differ."""

    position: int  # counted in output tokens
    plain_token: int | None  # None: the output had ended
    copied_token: int | None
    plain_text: str
    copied_text: str
    plain_margin: Margin | None  # the two best scores there, in each run
    copied_margin: Margin | None

    @property
    def near_tie(self) -> float | None:
        """Relative difference between the scores of the two tokens, if small enough to be float32 rounding: forward
        passes of different shape may then pick either. None if the difference is larger or unknown."""
        margins = (self.plain_margin, self.copied_margin)
        gaps = [_gap(margin, {self.plain_token, self.copied_token}) for margin in margins]
        known = [gap for gap in gaps if gap is not None]
        return max(known) if len(known) == 2 and max(known) <= NEAR_TIE else None


@dataclass(frozen=True, slots=True)
class TimedRun:
    """The result and the timing of one way to decode a prompt."""

    name: str  # plain, prompt lookup or copied
    result: Result
    seconds: float
    cpu_seconds: float  # processor time of this process, which other programs do not lengthen
    landings: tuple[Landing, ...]  # one per forward pass

    def lane(self, plain: Result) -> RaceLane:
        """The run as the views show it beside others."""
        equal = self.result.token_ids == plain.token_ids
        return RaceLane(self.name, self.seconds, self.result.stats.num_passes, self.landings, equal)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt decoded plainly and with copying by the same loop. A notebook shows the runs side by side."""

    plain: Result
    copied: Result
    plain_seconds: float
    copied_seconds: float
    difference: Difference | None
    runs: tuple[TimedRun, ...] = ()
    """All runs in order: plain, prompt lookup if `prompt_lookup=True` was given, copied."""

    @property
    def equal(self) -> bool:
        """Whether the copied output equals the plain one, token for token."""
        return self.difference is None

    @property
    def speedup(self) -> float:
        """Plain time divided by copied time."""
        return self.plain_seconds / self.copied_seconds if self.copied_seconds else 0.0

    def race(self) -> Race:
        """The runs side by side, for the views."""
        note = "" if self.difference is None else describe(self.difference)
        return Race([run.lane(self.plain) for run in self.runs], self.copied.provenance(), note)

    def to_html(self, *, title: str = "Side by side") -> str:
        """An HTML page that replays the runs side by side: one file that needs no network."""
        return "".join(race_page(self.race(), title=title))

    def _repr_html_(self) -> str:
        return framed(self.to_html(), title="Side by side")

    def __str__(self) -> str:
        head = f"plain {self.plain_seconds:.3f} s, copied {self.copied_seconds:.3f} s: {self.speedup:.2f}x"
        if self.difference is None:
            return f"{head}, outputs equal ({len(self.plain.token_ids)} tokens)"
        return f"{head}, outputs differ at token {self.difference.position}: {describe(self.difference)}"


def _gap(margin: Margin | None, tokens: set[int | None]) -> float | None:
    """Relative difference between the two best scores; None if they do not belong to `tokens`."""
    if margin is None or {margin.token, margin.runner_up} != tokens:
        return None
    return abs(margin.score - margin.runner_up_score) / max(1.0, abs(margin.score), abs(margin.runner_up_score))


def describe(difference: Difference) -> str:
    """Both tokens with the scores that decided between them."""

    def side(name: str, token: int | None, text: str, margin: Margin | None) -> str:
        if token is None:
            return f"{name} had ended"
        scores = ""
        if margin is not None:
            scores = f" (score {margin.score:.6g}; runner-up {margin.runner_up} at {margin.runner_up_score:.6g})"
        return f"{name} {token} {text!r}{scores}"

    plain = side("plain", difference.plain_token, difference.plain_text, difference.plain_margin)
    copied = side("copied", difference.copied_token, difference.copied_text, difference.copied_margin)
    gap = difference.near_tie
    tie = "" if gap is None else f"; a near-tie: {gap:.1g} of the scores apart, within the rounding of float32"
    return f"{plain}, {copied}{tie}"
