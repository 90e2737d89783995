"""Inputs of a call: prompts and the texts to copy from, encoded as token ids of one model."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from copyspec.checks import brief
from copyspec.engine.spans import NamedSource
from copyspec.forks import at_rest
from copyspec.text.chat import ChatError, Message, with_system
from copyspec.text.codec import Codec, Encoded, Lead
from copyspec.text.prompts import (
    AMBIENT,
    Prompt,
    Reference,
    parse_earlier,
    parse_edits,
    parse_prediction,
    parse_prompts,
    parse_references,
)

if TYPE_CHECKING:
    from copyspec.engine.call_options import CallOptions
    from copyspec.targets.base import Target

logger = logging.getLogger(__name__)

UNKNOWN = -1
"""Replaces tokens in a source that the model does not have. No match or copy crosses it (`CopyContext`)."""

MIN_CHARACTERS = 200
"""Shorter texts are encoded within a tenth of a millisecond, and are not cached."""

MAX_CHARACTERS = 2_000_000
"""Total of all cached texts: some 400,000 tokens, whose encodings take about 100 MB."""


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
    shared = list(AMBIENT.get())
    if options.prediction is not None:
        shared = [*parse_prediction(options.prediction), *shared]
    if len(earlier):
        shared += parse_earlier(earlier)
    each = zip(prompts, edits, own, strict=True)
    return [replace(prompt, edit=edit, references=[*shared, *mine]) for prompt, edit, mine in each], single


class CopyEncodings:
    """The most recently used encodings of one codec, since texts come again: for several prompts, in every turn of a
    chat. Encoding 100,000 words takes most of a second. Thread-safe."""

    def __init__(self, codec: Codec, max_characters: int = MAX_CHARACTERS) -> None:
        self._codec = codec
        self._max = max_characters
        self._held: OrderedDict[tuple[str, Lead], Encoded] = OrderedDict()
        self._characters = 0
        self._lock = at_rest(threading.Lock())

    def encode(self, text: str, lead: Lead) -> Encoded:
        """`Codec.encode_copy`, cached unless the text is longer than all that is kept. The ids are shared between calls
        and must not be modified."""
        if len(text) > self._max:
            return self._codec.encode_copy(text, lead)
        key = (text, lead)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found
        found = self._codec.encode_copy(text, lead)
        with self._lock:
            if key not in self._held:
                self._held[key] = found
                self._characters += len(text)
            while self._characters > self._max:
                (old, _), _ = self._held.popitem(last=False)
                self._characters -= len(old)
        return found


class InputEncoder:
    """Encodes the inputs of calls for one model."""

    def __init__(self, target: Target, codec: Codec, encoder_limit: int | None) -> None:
        """`encoder_limit`: most tokens that the encoder reads; None if there is no encoder or no limit."""
        self._target = target
        self._codec = codec
        self._copies = CopyEncodings(codec)
        self._warned_about: set[str] = set()  # control tokens
        self._encoder_limit = encoder_limit

    def prompt(self, index: int, prompt: Prompt, options: CallOptions) -> Encoded:
        """Encode the prompt with number `index`. Raises ValueError if it does not fit the model."""
        if prompt.ids is not None:
            if options.system is not None:
                raise ChatError(f"system={brief(options.system)} needs a str or a chat; prompt {index} is token ids")
            encoded = Encoded(prompt.ids, leaves_space=prompt.leaves_space)
        elif prompt.text is not None and options.system is None and options.chat is not True:
            if options.rendered:
                encoded = self._codec.encode_rendered(prompt.text)
            else:
                if self._codec.control is not None and (found := self._codec.control.search(prompt.text)) is not None:
                    self._warn_control(index, found[0])
                raw = options.chat is False
                encoded = self._codec.encode_raw(prompt.text) if raw else self._codec.encode(prompt.text, wrap=True)
            if not encoded.ids:
                raise ValueError(f"prompt {index} has no tokens: {brief(prompt.text)}; the model needs at least one")
        else:
            encoded = self._codec.encode_chat(self._messages(index, prompt, options))
        self.check_tokens(f"prompt {index}", encoded.ids, "was the model" if prompt.ids is None else "were the ids")
        start = self._target.start(encoded.ids)
        for length, limit in ((len(encoded.ids), self._encoder_limit), (len(start), self._target.max_length)):
            if limit is not None and length > limit:
                raise PromptTooLongError(
                    f"prompt {index} has {length} tokens, but the model's context is {limit}; shorten it, or give "
                    "long texts to copy from as references, which the model does not read"
                )
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
                encode = self._copies.encode if len(reference.text) >= MIN_CHARACTERS else self._codec.encode_copy
                encoded = encode(reference.text, lead)
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

    def _messages(self, index: int, prompt: Prompt, options: CallOptions) -> list[Message]:
        if prompt.chat is not None and options.rendered:
            raise ChatError(f"prompt {index} is a chat, but rendered=True is for a str that a chat template made")
        if prompt.chat is not None and options.chat is False:
            raise ChatError(f"prompt {index} is a chat, but chat=False is given; leave it out, or give a str")
        messages: list[Message] = prompt.chat or [{"role": "user", "content": prompt.text}]
        return with_system(messages, options.system)

    def _warn_control(self, index: int, control: str) -> None:
        if control not in self._warned_about:
            self._warned_about.add(control)
            logger.warning(
                "prompt %d holds %r, a control token of the tokenizer, and is read as plain text: rendered=True takes "
                "what a chat template made as it is; a chat ([{'role': 'user', 'content': ...}]) needs no rendering",
                index,
                control,
            )
