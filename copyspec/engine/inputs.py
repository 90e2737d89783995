"""Inputs of a call: prompts and the texts to copy from, encoded as token ids of one model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from copyspec.checks import brief
from copyspec.engine.spans import NamedSource
from copyspec.text.chat import ChatError, Message, with_system
from copyspec.text.codec import Codec, Encoded, Lead
from copyspec.text.copies import CopyEncodings
from copyspec.text.prompts import Prompt, parse_prompts
from copyspec.text.references import (
    Reference,
    ambient_references,
    parse_earlier,
    parse_edits,
    parse_prediction,
    parse_references,
)

if TYPE_CHECKING:
    from copyspec.engine.call_options import CallOptions
    from copyspec.targets.base import Target

logger = logging.getLogger(__name__)

UNKNOWN = -1
"""Replaces tokens in a source that the model does not have. No match or copy crosses it (`CopyContext`)."""


class PromptTooLongError(ValueError):
    """Raised if the prompt does not fit into the model's context."""


def gather(
    prompt: object, references: object, options: CallOptions, earlier: Sequence[Sequence[int]] = ()
) -> tuple[list[Prompt], bool]:
    """The prompts of a call, each with its texts to copy from; the bool says whether a single prompt was given."""
    prompts, single = parse_prompts(prompt)
    count = len(prompts)
    own = parse_references(references, count) if references is not None else [[]] * count
    edits = parse_edits(options.edit_source, count) if options.edit_source is not None else [None] * count
    shared = list(ambient_references())
    if options.prediction is not None:
        shared = [*parse_prediction(options.prediction), *shared]
    if len(earlier):
        shared += parse_earlier(earlier)
    each = zip(prompts, edits, own, strict=True)
    return [replace(prompt, edit=edit, references=[*shared, *mine]) for prompt, edit, mine in each], single


class InputEncoder:
    """Encodes the inputs of one call for one model. A text shared by several prompts is encoded once."""

    def __init__(self, target: Target, codec: Codec, copies: CopyEncodings, encoder_limit: int | None) -> None:
        """`copies`: cache of encodings for the same codec, shared between calls."""
        self._target = target
        self._codec = codec
        self._encodings = copies
        self._encoder_limit = encoder_limit
        self._copies: dict[tuple[str, Lead], Encoded] = {}

    def prompt(self, index: int, prompt: Prompt, options: CallOptions) -> Encoded:
        """Encode the prompt with number `index`. Raises ValueError if it does not fit the model."""
        encoded = self._encode(index, prompt, options)
        self.check_tokens(f"prompt {index}", encoded.ids, "was the model" if prompt.ids is None else "were the ids")
        self._check_length(index, encoded.ids, self._target.start(encoded.ids))
        return encoded

    def sources(
        self, prompt: Prompt, ids: Sequence[int], earlier: Sequence[Reference], *, with_references: bool
    ) -> list[NamedSource]:
        """The edit source and the references as sources, without empty ones; `earlier` outputs come last."""
        given = [(prompt.edit, "edit")] if prompt.edit is not None else []
        if with_references:
            given += [(reference, reference.kind) for reference in prompt.references]
            given += [(reference, "reference") for reference in earlier]
        if not given:
            return []
        lead = self._codec.lead(ids, starts_text=self._target.is_encoder_decoder)
        sources: list[NamedSource] = []
        size = self._target.vocab_size
        for reference, kind in given:
            if reference.text is None:
                encoded = Encoded(list(reference.ids or ()))
            else:
                key = (reference.text, lead)
                encoded = self._copies[key] = self._copies.get(key) or self._encodings.encode(*key)
            if encoded.ids:
                known = encoded.ids
                if max(known) >= size:  # replaced one by one, so that character offsets stay aligned
                    known = [token if token < size else UNKNOWN for token in known]
                sources.append(
                    NamedSource(reference.name, kind, reference.index, known, encoded.offsets, reference.text)
                )
        return sources

    def check_tokens(self, where: str, ids: Iterable[int], what: str = "were the ids") -> None:
        """Raise ValueError for ids outside the model's vocabulary; `what` starts the question about the likely
        cause."""
        worst = max(ids, default=0)
        if worst >= self._target.vocab_size:
            raise ValueError(
                f"{where} holds token id {worst}, but the model's vocabulary ends at "
                f"{self._target.vocab_size - 1}; {what} made for another tokenizer?"
            )

    def _check_length(self, index: int, prompt: Sequence[int], start: Sequence[int]) -> None:
        limits = [(len(prompt), self._encoder_limit), (len(start), self._target.max_length)]
        for length, limit in limits:
            if limit is not None and length > limit:
                raise PromptTooLongError(
                    f"prompt {index} has {length} tokens, but the model's context is {limit}; shorten it, or give "
                    "long texts to copy from as references, which the model does not read"
                )

    def _encode(self, index: int, prompt: Prompt, options: CallOptions) -> Encoded:
        if prompt.ids is not None:
            if options.system is not None:
                raise ChatError(f"system={brief(options.system)} needs a str or a chat; prompt {index} is token ids")
            return Encoded(prompt.ids, leaves_space=prompt.leaves_space)
        if prompt.chat is not None and options.rendered:
            raise ChatError(f"prompt {index} is a chat, but rendered=True is for a str that a chat template made")
        if prompt.chat is None and options.system is None and options.chat is not True:
            assert prompt.text is not None
            if options.rendered:
                encoded = self._codec.encode_rendered(prompt.text)
            else:
                self._warn_control(index, prompt.text)
                encoded = self._codec.encode(prompt.text, wrap=True)
            if not encoded.ids:
                raise ValueError(f"prompt {index} has no tokens: {brief(prompt.text)}; the model needs at least one")
            return encoded
        if prompt.chat is not None and options.chat is False:
            raise ChatError(f"prompt {index} is a chat, but chat=False is given; leave it out, or give a str")
        messages: list[Message] = prompt.chat or [{"role": "user", "content": prompt.text}]
        return self._codec.encode_chat(with_system(messages, options.system))

    def _warn_control(self, index: int, text: str) -> None:
        control = self._codec.control_token(text)
        if control is not None and self._codec.first_time(control):
            logger.warning(
                "prompt %d holds %r, a control token of the tokenizer, and is read as plain text: rendered=True takes "
                "what a chat template made as it is; a chat ([{'role': 'user', 'content': ...}]) needs no rendering",
                index,
                control,
            )
