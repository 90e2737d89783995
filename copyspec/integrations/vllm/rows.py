"""State of the requests that vLLM is decoding, each with its drafter."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from copyspec import drafters
from copyspec.drafters import CopyDrafter
from copyspec.drafters.base import Drafter
from copyspec.integrations.vllm.parameters import EDIT_SOURCE, REFERENCES, Text, read_texts
from copyspec.sources import Source, SourceKind
from copyspec.text.prompt_blocks import prompt_blocks

if TYPE_CHECKING:
    from copyspec.drafters.predictors.ngrams import NGrams
    from copyspec.text.codec import Codec

logger = logging.getLogger(__name__)


SHORT = 5_000
"""Tokens given with a request up to which they are prepared in its first step: they take half a millisecond."""

SLICE = 8_000
"""Tokens of longer ones that are indexed, or freed, at a time, in one to two milliseconds."""


@dataclass(slots=True)
class RequestRow:
    """One request with its drafter."""

    request: object  # vLLM's request object, or a substitute key if that is unknown
    preparing: Iterator[Drafter | None]
    """Gives the drafter, after a None for each part of the work that stands alone."""
    prompt_length: int
    max_tokens: int | None = None
    min_tokens: int = 0
    repeats: bool = False
    """Whether the request is sampled with a seed: vLLM's random stream depends on the drafts, so these must not depend
    on measured costs."""
    seen: int = 0  # output tokens that the drafter has seen
    last: int = -1  # the last of them
    drafted: int = 0  # draft tokens being verified
    expected: float = 0.0  # sum of their probabilities
    drafter: Drafter | None = None  # None until it is prepared
    _pending: list[int] = field(default_factory=list)  # output tokens that it has not seen for this reason

    def prepare(self) -> bool:
        """Do a part of the work that the drafter still needs, if any. Returns whether it is ready."""
        if self.drafter is None:
            self.drafter = next(self.preparing)
            if self.drafter is not None and self._pending:
                self.drafter.accept(self._pending)
                self._pending = []
        return self.drafter is not None

    def free(self) -> bool:
        """Free a part of what an ended request held. Returns whether nothing is left."""
        return not isinstance(self.drafter, CopyDrafter) or self.drafter.free(SLICE)

    def follow(self, tokens: Sequence[int]) -> None:
        """Add new output tokens."""
        if tokens:
            if self.drafter is None:
                self._pending += tokens
            else:
                self.drafter.accept(tokens)
            self.seen += len(tokens)
            self.last = tokens[-1]

    @property
    def length(self) -> int:
        """Number of tokens of prompt and output seen so far."""
        return self.prompt_length + self.seen

    def room(self, most: int) -> int:
        """How many tokens may be drafted, at most `most`: no draft is needed for the request's last token.

        It is 0 until `min_tokens` are generated: vLLM suppresses the end-of-sequence token once per step, which drafts
        would bypass.
        """
        if self.seen <= self.min_tokens:
            return 0
        return most if self.max_tokens is None else min(most, self.max_tokens - self.seen - 1)


def size_of(extra_args: object) -> int:
    """About how many tokens or characters came with a request, whatever they are."""
    size = 0
    if not isinstance(extra_args, Mapping):
        return size
    for name in (EDIT_SOURCE, REFERENCES):
        value = extra_args.get(name)
        if isinstance(value, (str, list, tuple)):
            size += len(value) + sum([len(each) for each in value[:SHORT] if isinstance(each, (str, list, tuple))])
    return size


class RequestRows:
    """Creates rows for one model with its tokenizer, end-of-sequence tokens and n-grams."""

    def __init__(self, codec: Codec, vocab_size: int, eos: Collection[int], ngrams: NGrams | None) -> None:
        self._codec, self._vocab_size, self._ngrams = codec, vocab_size, ngrams
        self._eos = [token for token in eos if 0 <= token < vocab_size]
        self._warned = False

    def make(self, request: object, prompt: Sequence[int], parameters: object = None) -> RequestRow:
        """Create a row without output; `parameters`: vLLM's SamplingParams, if any. It never raises for a request's
        contents, since that would end the engine. Long texts are prepared step by step (`RequestRow.prepare`)."""
        extra_args = getattr(parameters, "extra_args", None)
        max_tokens, min_tokens = getattr(parameters, "max_tokens", None), getattr(parameters, "min_tokens", 0)
        repeats = bool(getattr(parameters, "temperature", 0)) and getattr(parameters, "seed", None) is not None
        preparing = self._prepared(prompt, extra_args)
        row = RequestRow(request, preparing, len(prompt), max_tokens, min_tokens or 0, repeats)
        if repeats or len(prompt) + size_of(extra_args) <= SHORT:
            while not row.prepare():
                pass
        return row

    def _prepared(self, prompt: Sequence[int], extra_args: Mapping[str, Any] | None) -> Iterator[Drafter | None]:
        given = self._given(extra_args)
        yield None
        lead = self._codec.lead(prompt, starts_text=False)
        sources = []
        for text, kind in given:
            ids = self._codec.encode_copy(text, lead).ids if isinstance(text, str) else text
            if ids:
                sources.append(Source(self._known(ids), kind))
                yield None
        sources.append(Source(self._known(prompt), "prompt"))
        if len(sources) == 1:
            sources += [block.source for block in prompt_blocks(self._codec, prompt)]
        drafter = drafters.create(sources, self._eos, ngrams=self._ngrams, at_once=False)
        assert isinstance(drafter, CopyDrafter)
        yield None
        while not drafter.prepare(SLICE):
            yield None
        yield drafter

    def _given(self, extra_args: Mapping[str, Any] | None) -> list[tuple[Text, SourceKind]]:
        edit: Text | None = None
        references: list[Text] = []
        try:
            edit, references = read_texts(extra_args)
        except (TypeError, ValueError) as error:
            if not self._warned:
                self._warned = True
                logger.warning("invalid texts to copy from are ignored, here and in later requests: %s", error)
        given: list[tuple[Text, SourceKind]] = [(edit, "edit")] if edit is not None else []
        return [*given, *((each, "reference") for each in references)]

    def _known(self, ids: Sequence[int]) -> list[int]:
        """`ids` with -1, which no copy crosses, in place of tokens that the model does not have."""
        size, different = self._vocab_size, set(ids)
        if different and min(different) >= 0 and max(different) < size:
            return list(ids)
        return [token if 0 <= token < size else -1 for token in ids]
