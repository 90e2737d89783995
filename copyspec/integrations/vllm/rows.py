"""State of the requests that vLLM is decoding, each with its drafter."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from copyspec import drafters
from copyspec.drafters.base import Drafter
from copyspec.integrations.vllm.parameters import Text, read_texts
from copyspec.sources import Source, SourceKind
from copyspec.text.prompt_blocks import prompt_blocks

if TYPE_CHECKING:
    from copyspec.drafters.predictors.ngrams import NGrams
    from copyspec.text.codec import Codec

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RequestRow:
    """One request with its drafter."""

    request: object  # vLLM's request object, or a substitute key if that is unknown
    drafter: Drafter
    prompt_length: int
    max_tokens: int | None = None
    min_tokens: int = 0
    repeats: bool = False
    """Whether the request is sampled with a seed: vLLM's random stream depends on the drafts, so these must not depend
    on measured costs."""
    seen: int = 0  # output tokens that the drafter has seen
    last: int = -1  # the last of them
    drafted: Sequence[float] = ()  # probabilities of the draft tokens being verified

    def follow(self, tokens: Sequence[int]) -> None:
        """Add new output tokens."""
        if tokens:
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


class RequestRows:
    """Creates rows for one model with its tokenizer, end-of-sequence tokens and n-grams."""

    def __init__(self, codec: Codec, vocab_size: int, eos: Collection[int], ngrams: NGrams | None) -> None:
        self._codec, self._vocab_size, self._ngrams = codec, vocab_size, ngrams
        self._eos = [token for token in eos if 0 <= token < vocab_size]
        self._told = False

    def make(self, request: object, prompt: Sequence[int], parameters: object = None) -> RequestRow:
        """Create a row without output; `parameters`: vLLM's SamplingParams, if any. It never raises for a request's
        contents, since that would end the engine."""
        sources = self._sources(prompt, getattr(parameters, "extra_args", None))
        drafter = drafters.create(sources, self._eos, ngrams=self._ngrams)
        max_tokens, min_tokens = getattr(parameters, "max_tokens", None), getattr(parameters, "min_tokens", 0)
        repeats = bool(getattr(parameters, "temperature", 0)) and getattr(parameters, "seed", None) is not None
        return RequestRow(request, drafter, len(prompt), max_tokens, min_tokens or 0, repeats)

    def _sources(self, prompt: Sequence[int], extra_args: Mapping[str, Any] | None) -> list[Source]:
        edit: Text | None = None
        references: list[Text] = []
        try:
            edit, references = read_texts(extra_args)
        except TypeError as error:
            if not self._told:
                self._told = True
                logger.warning("a request's texts to copy from are ignored, as will be others like it: %s", error)
        lead = self._codec.lead(prompt, starts_text=False)
        given: list[tuple[Text, SourceKind]] = [(edit, "edit")] if edit is not None else []
        given += [(each, "reference") for each in references]
        sources = []
        for text, kind in given:
            ids = self._codec.encode_copy(text, lead).ids if isinstance(text, str) else text
            if ids:
                sources.append(Source(self._known(ids), kind))
        sources.append(Source(self._known(prompt), "prompt"))
        if len(sources) == 1:
            sources += [block.source for block in prompt_blocks(self._codec, prompt)]
        return sources

    def _known(self, ids: Sequence[int]) -> list[int]:
        """`ids` with -1, which no copy crosses, in place of tokens that the model does not have."""
        size = self._vocab_size
        if ids and min(ids) >= 0 and max(ids) < size:
            return list(ids)
        return [token if 0 <= token < size else -1 for token in ids]
