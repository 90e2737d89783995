"""State of the requests that vLLM is decoding, each with its drafter."""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from copyspec import drafters
from copyspec.drafters import CopyDrafter
from copyspec.integrations.vllm.parameters import DRAFTS, EDIT_SOURCE, REFERENCES, Text, check_ids, read_texts
from copyspec.sources import Source, SourceKind
from copyspec.text.prompt_blocks import prompt_blocks

if TYPE_CHECKING:
    from copyspec.drafters.predictors.ngrams import NGrams
    from copyspec.text.codec import Codec

logger = logging.getLogger(__name__)


SHORT = 5_000
"""Tokens given with a request up to which they are prepared in its first step: they take half a millisecond."""

SLICE = 4_000
"""Tokens of longer ones that are checked, indexed or freed at a time, in less than half a millisecond."""


@dataclass(slots=True)
class RequestRow:
    """One request with its drafter."""

    request: object  # vLLM's request object, or a substitute key if that is unknown
    preparing: Iterator[CopyDrafter | None]
    """Gives the drafter, not indexed yet, after a None for each part of the work that stands alone."""
    prompt_length: int
    max_tokens: int | None = None
    min_tokens: int = 0
    drafts: bool = True
    repeats: bool = False
    """Whether the request is sampled with a seed: vLLM's random stream depends on the drafts, so these must not depend
    on measured costs."""
    seen: int = 0  # output tokens that the drafter has seen
    last: int = -1  # the last of them
    drafted: int = 0  # draft tokens being verified
    expected: float = 0.0  # sum of their probabilities
    drafter: CopyDrafter | None = None  # None until it is prepared
    _unprepared: CopyDrafter | None = None
    _pending: list[int] = field(default_factory=list)  # output tokens that it has not seen for this reason

    def prepare(self) -> bool:
        """Do a part of the work that the drafter still needs, if any. Returns whether it is ready."""
        if not self.drafts:
            return False
        if self.drafter is None and self._unprepared is None:
            self._unprepared = next(self.preparing)
        elif self.drafter is None and self._unprepared is not None and self._unprepared.prepare(SLICE):
            self.drafter, self._unprepared = self._unprepared, None
            if self._pending:
                self.drafter.accept(self._pending)
                self._pending = []
        return self.drafter is not None

    def release(self) -> bool:
        """Release a part of what an ended request held. Returns whether nothing is left."""
        drafter = self.drafter or self._unprepared
        return drafter is None or drafter.release(SLICE)

    def follow(self, tokens: Sequence[int]) -> None:
        """Add new output tokens."""
        if tokens:
            if not self.drafts:
                pass
            elif self.drafter is None:
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
            size += len(value)
            if size <= SHORT and not isinstance(value, str):
                size += sum([len(item) for item in value if isinstance(item, (str, list, tuple))])
    return size


class RequestRows:
    """Creates rows for one model with its tokenizer, end-of-sequence tokens and n-grams. Without a codec, texts are
    ignored, and copies come from token ids."""

    def __init__(self, codec: Codec | None, vocab_size: int, eos: Collection[int], ngrams: NGrams | None) -> None:
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
        drafts = (extra_args or {}).get(DRAFTS) != 0
        row = RequestRow(request, preparing, len(prompt), max_tokens, min_tokens or 0, drafts, repeats)
        if not drafts:
            return row
        if repeats or len(prompt) + size_of(extra_args) <= SHORT:
            while not row.prepare():
                pass
        return row

    def _prepared(self, prompt: Sequence[int], extra_args: Mapping[str, Any] | None) -> Iterator[CopyDrafter | None]:
        sources: list[Source] = []
        try:
            edit, references = read_texts(extra_args)
            pairs: list[tuple[Text | None, SourceKind]] = [(edit, "edit")]
            pairs += [(reference, "reference") for reference in references]
            for text, kind in pairs:
                ids = self._encoded(text, prompt) if isinstance(text, str) else text
                yield None
                if ids:
                    sources.append(Source((yield from self._known(ids, is_given=True)), kind))
        except (TypeError, ValueError) as error:
            sources.clear()
            if not self._warned:
                self._warned = True
                logger.warning("invalid texts to copy from are ignored, here and in later requests: %s", error)
        sources.append(Source((yield from self._known(prompt)), "prompt"))
        yield None
        if len(sources) == 1 and self._codec is not None:
            sources += [block.source for block in prompt_blocks(self._codec, prompt)]
        drafter = drafters.create(sources, self._eos, ngrams=self._ngrams, at_once=False)
        assert isinstance(drafter, CopyDrafter)
        yield drafter

    def _encoded(self, text: str, prompt: Sequence[int]) -> Sequence[int]:
        """The ids of a text as it would be copied after `prompt`."""
        if self._codec is None:
            raise ValueError("the engine has no tokenizer for texts; give token ids")
        return self._codec.encode_copy(text, self._codec.lead(prompt, starts_text=False)).ids

    def _known(self, ids: Sequence[int], *, is_given: bool = False) -> Generator[None, None, Sequence[int]]:
        """`ids` with -1, which no copy crosses, in place of tokens that the model does not have. It pauses after each
        part of the work. `is_given`: they came with a request and may be anything, for which it raises TypeError."""
        size, parts, same = self._vocab_size, [], True
        for start in range(0, len(ids), SLICE):
            part = ids[start : start + SLICE]
            if is_given:
                check_ids(part)
            if min(part) < 0 or max(part) >= size:
                part, same = [token if 0 <= token < size else -1 for token in part], False
            parts.append(part)
            if len(ids) > SLICE:
                yield None
        return ids if same else list(chain.from_iterable(parts))
