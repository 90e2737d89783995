"""Inputs of a call: prompts (text, chats, token ids, lists of those) and the texts to copy from, parsed from what the
caller gave, and encoded as token ids of one model."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from copyspec.common.checks import brief, check_ids, is_ids, plain_value, shown
from copyspec.common.forks import fork_safe
from copyspec.engine.results.spans import NamedSource, Reference
from copyspec.text.chat import ChatError, Message, check_chat, map_texts, with_system
from copyspec.text.codec import Codec, Encoded, Lead, encodable
from copyspec.text.replies.reader import Reply

if TYPE_CHECKING:
    from copyspec.engine.asking.call_options import CallOptions
    from copyspec.targets.base import Target

logger = logging.getLogger(__name__)

OnePrompt: TypeAlias = "str | Sequence[int] | Sequence[Message] | Mapping[str, object]"
"""Text, token ids, a chat, or a tokenizer's output for one text."""
ManyPrompts: TypeAlias = "list[str] | tuple[str, ...] | Sequence[Sequence[int]] | Sequence[Sequence[Message]]"

ACCEPTED = "a str, a chat ([{'role': 'user', 'content': ...}]), a list of token ids, or a list of those"
ACCEPTED_REFERENCES = (
    "a str, an object with .page_content, {'text': ...}, a LlamaIndex or Haystack document, a list of token ids, "
    "a list of those, or one such list per prompt"
)

_NAMES = ("source", "file_path", "file_name")  # metadata keys that may hold a document's name

UNKNOWN = -1
"""Replaces tokens in a source that the model does not have. No match or copy crosses it (`CopyCorpus`)."""

MIN_CHARACTERS = 200
"""Shorter texts are encoded within a tenth of a millisecond, and are not cached."""

MAX_CHARACTERS = 2_000_000
"""Total of all cached texts: some 400,000 tokens, whose encodings take about 100 MB."""

MAX_PATH = 4096  # characters; longer texts are no paths


class PromptTooLongError(ValueError):
    """Raised if the prompt does not fit into the model's context."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: exactly one of `text`, `messages` and `ids` is set. Also holds its edit source and references."""

    text: str | None = None
    messages: list[Message] | None = None  # of a chat
    ids: list[int] | None = None
    leaves_space: bool = False  # for ids: see `Encoded`
    may_pad: bool = False  # for ids: they came as an array or an encoding, without an attention_mask
    reply: Reply | None = None  # for ids: see `Encoded`
    has_types: bool = False  # for ids: they came in an encoding with token_type_ids, all of them 0
    edit: Reference | None = None
    references: Sequence[Reference] = ()


@dataclass(frozen=True, slots=True)
class Input:
    """One prompt of a stream of inputs, with its own options."""

    prompt: OnePrompt
    references: object = None
    """As in `generate`, for this prompt."""
    edit_source: str | None = None
    max_new_tokens: int | None = None
    """Overrides the limit given for all inputs."""
    earlier: Sequence[Sequence[int]] = ()
    """Token ids of passages from other outputs that may appear in this one. They are copied from like references, but
    with lower priority, since nobody says that they belong to this prompt."""


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
    triples = zip(prompts, edits, own, strict=True)
    return [replace(prompt, edit=edit, references=[*shared, *mine]) for prompt, edit, mine in triples], single


def parse_prompts(prompt: object) -> tuple[list[Prompt], bool]:
    """Parse prompts; the bool says whether a single one was given (which gets one result instead of a list).

    Raises TypeError or ValueError that names the value and the accepted forms.
    """
    if isinstance(prompt, str):
        return [_parse_one(prompt, "prompt")], True
    form = Prompt(may_pad=_may_pad(prompt), has_types=_has_types(prompt))
    prompt = unpadded(prompt, "prompt") if _is_encoding(prompt) else plain_value(prompt)
    if not isinstance(prompt, (list, tuple)):
        return [_parse_one(prompt, "prompt")], True
    if not prompt:
        raise ValueError(f"prompt is an empty list; give {ACCEPTED}")
    if is_ids(prompt) or any(isinstance(item, Mapping) and not _is_encoding(item) for item in prompt):
        return [_parse_one(prompt, "prompt", form)], True
    return [_parse_one(item, f"prompt[{i}]", form) for i, item in enumerate(prompt)], False


def _parse_one(prompt: object, where: str, form: Prompt | None = None) -> Prompt:
    """`form`: how the call gave its ids."""
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError(f"{where} is an empty string; the model needs at least one token to continue from")
        if (os.sep in prompt or prompt.endswith(".gguf")) and _is_model(prompt):
            logger.warning("%s %r is taken as the text, but a model has this path: give it as model=", where, prompt)
        return Prompt(text=encodable(prompt, where))
    if isinstance(prompt, Encoded):
        return Prompt(ids=prompt.ids, leaves_space=prompt.leaves_space, reply=prompt.reply)
    form = form or Prompt()
    may_pad, has_types = form.may_pad or _may_pad(prompt), form.has_types or _has_types(prompt)
    if _is_encoding(prompt):
        rows = unpadded(prompt, where)
        prompt = rows[0] if isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0], (list, tuple)) else rows
    prompt = plain_value(prompt)
    if isinstance(prompt, Mapping):
        raise TypeError(f"{where} is a single chat message; a chat is a list of messages: [{brief(dict(prompt))}]")
    if isinstance(prompt, (list, tuple)):
        if not prompt:
            raise ValueError(f"{where} is an empty list; the model needs at least one token to continue from")
        if is_ids(prompt):
            return Prompt(ids=check_ids(prompt, where), may_pad=may_pad, has_types=has_types)
        if any(isinstance(item, Mapping) for item in prompt):
            chat = check_chat(prompt, where)
            map_texts(chat, lambda text, role: encodable(text, f"{where}, a message of {role!r},"))
            return Prompt(messages=chat)
    hint = "; a model's folder is given as model=" if isinstance(prompt, os.PathLike) else ""
    raise TypeError(f"{where} must be {ACCEPTED}; got {shown(prompt)}{hint}")


def _is_model(text: str) -> bool:
    """Whether a text is the path of a model: of its folder or its GGUF file."""
    if len(text) > MAX_PATH or "\n" in text:
        return False
    is_file = text.lower().endswith(".gguf") and os.path.isfile(text)
    return is_file or (os.sep in text and os.path.isfile(os.path.join(text, "config.json")))


def _is_encoding(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether `value` is a tokenizer's output: a BatchEncoding, or a dict of its tensors."""
    return isinstance(value, Mapping) and "input_ids" in value


def _may_pad(value: object) -> bool:
    """Whether these ids came as `generate` takes them, an array or an encoding, without the mask that shows padding."""
    if _is_encoding(value):
        return value.get("attention_mask") is None
    return hasattr(value, "tolist")


def _has_types(value: object) -> bool:
    return _is_encoding(value) and value.get("token_type_ids") is not None


# References of the `with copyspec.references(...)` blocks around the call, outermost first.
AMBIENT: ContextVar[tuple[Reference, ...]] = ContextVar("copyspec_references", default=())


@contextmanager
def references(*texts: object) -> Iterator[None]:
    """Add references to every call inside the block, in this thread or asyncio task.

    `texts` are references as `generate` takes them for one prompt: strings, documents, or lists of those.
    """
    parsed: list[Reference] = []
    for text in texts:
        parsed.extend(_parse_references(text, "references"))
    token = AMBIENT.set(AMBIENT.get() + tuple(replace(reference, index=None) for reference in parsed))
    try:
        yield
    finally:
        AMBIENT.reset(token)


def parse_references(value: object, prompts: int) -> list[list[Reference]]:
    """References per prompt; a flat list is shared by all. Raises TypeError or ValueError with the remedy."""
    value = plain_value(value)
    if not _is_per_prompt(value):
        return [_parse_references(value, "references")] * prompts
    assert isinstance(value, (list, tuple))
    if len(value) != prompts:
        raise ValueError(
            f"references holds {len(value)} lists for {prompts} prompt{'s' if prompts != 1 else ''}; "
            "give one list per prompt, or one flat list for all of them"
        )
    for i, item in enumerate(value):
        if item is not None and not isinstance(plain_value(item), (list, tuple)):
            raise TypeError(
                f"references mixes lists with single references: references[{i}] is {shown(item)}; "
                "give one list per prompt, or one flat list for all of them"
            )
    return [_parse_references(item, f"references[{i}]") for i, item in enumerate(value)]


def parse_prediction(value: object) -> list[Reference]:
    """Parse OpenAI's `prediction` into one reference."""
    if value is None:
        return []
    if isinstance(value, str):
        return [Reference("prediction", None, encodable(value, "prediction"))]
    content = value.get("content") if isinstance(value, Mapping) and value.get("type") == "content" else None
    if isinstance(content, str):
        return [Reference("prediction", None, encodable(content, "prediction"))]
    if isinstance(content, (list, tuple)):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if parts and all(isinstance(part, str) for part in parts):
            return [Reference("prediction", None, encodable("".join(map(str, parts)), "prediction"))]
    raise TypeError(f"prediction must be {{'type': 'content', 'content': 'the expected text'}}; got {shown(value)}")


def parse_earlier(value: object) -> list[Reference]:
    """Parse `Input.earlier`: lists of token ids."""
    value = plain_value(value)
    for i, item in enumerate(value if isinstance(value, (list, tuple)) else [value]):
        # Every input may bring many short lists, so they are checked in one pass; `check_ids` is used only for its
        # message.
        if not isinstance(item, (list, tuple)) or not all(isinstance(token, int) for token in item):
            raise TypeError(f"earlier must hold lists of token ids; got {shown(item)}")
        if min(item, default=0) < 0:
            check_ids(item, f"earlier[{i}]")
    assert isinstance(value, (list, tuple))
    return [Reference("earlier", None, ids=item, kind="earlier") for item in value]


def parse_edits(value: object, prompts: int) -> list[Reference | None]:
    """The edited text of each prompt, from a str for one prompt or a list with one str (or None) per prompt."""
    value = value if isinstance(value, str) else plain_value(value)
    if value is None:
        return [None] * prompts
    if isinstance(value, str) or (isinstance(value, (list, tuple)) and is_ids(value)):
        if prompts != 1:
            raise TypeError(f"edit_source is one text for {prompts} prompts; give a list with one text per prompt")
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"edit_source must be a str, or a list with one per prompt; got {shown(value)}")
    if len(value) != prompts:
        raise ValueError(
            f"edit_source holds {len(value)} text{'s' if len(value) != 1 else ''} for {prompts} "
            f"prompt{'s' if prompts != 1 else ''}; give one per prompt (None where nothing is edited)"
        )
    edits: list[Reference | None] = []
    for i, edit in enumerate(value):
        if isinstance(edit, str):
            edits.append(Reference("edit_source", None, encodable(edit, f"edit_source[{i}]")))
            continue
        item = plain_value(edit)
        if item is None:
            edits.append(None)
        elif isinstance(item, (list, tuple)) and is_ids(item):
            edits.append(Reference("edit_source", None, ids=check_ids(item, f"edit_source[{i}]")))
        else:
            raise TypeError(f"edit_source[{i}] must be a str; got {shown(item)}")
    return edits


def _is_per_prompt(value: object) -> bool:
    """Whether `value` is a list with one entry per prompt: lists that are not token ids, or None."""
    if not isinstance(value, (list, tuple)) or not value or is_ids(value):
        return False
    inner = [plain_value(item) for item in value]
    holds_lists = any(isinstance(item, (list, tuple)) and not is_ids(item) for item in inner)
    return holds_lists or all(item is None for item in inner)


def _parse_references(value: object, where: str) -> list[Reference]:
    """Parse the references of one prompt, numbered in the caller's order."""
    value = plain_value(value)
    if value is None:
        return []
    if not isinstance(value, (list, tuple)) or is_ids(value):
        return [_parse_reference(value, where, 0)]
    return [_parse_reference(item, f"{where}[{i}]", i) for i, item in enumerate(value)]


def text_and_metadata(value: object) -> tuple[str, Mapping[str, object]] | None:
    """Text and metadata of a LangChain document (`page_content`, `metadata`), LlamaIndex node (`get_content()`,
    `metadata`) or Haystack document (`content`, `meta`); None for anything else."""
    content = getattr(value, "page_content", None)
    metadata = getattr(value, "metadata", None)
    if content is None and callable(get := getattr(value, "get_content", None)) and isinstance(metadata, Mapping):
        content = get()
    elif content is None and isinstance(meta := getattr(value, "meta", None), Mapping):
        content, metadata = getattr(value, "content", None), meta
    if not isinstance(content, str):
        return None
    return content, metadata if isinstance(metadata, Mapping) else {}


def _parse_reference(value: object, where: str, index: int) -> Reference:
    value = plain_value(value)
    name = f"references[{index}]"
    if isinstance(value, str):
        return Reference(name, index, encodable(value, where))
    if isinstance(value, (list, tuple)) and is_ids(value):
        return Reference(name, index, ids=check_ids(value, where))
    if isinstance(value, Mapping):
        if isinstance(value.get("text"), str):
            label = next((value[key] for key in ("name", "source", "id") if isinstance(value.get(key), str)), name)
            return Reference(str(label), index, encodable(value["text"], where))
        raise TypeError(f"{where} is a dict without a text; write {{'text': 'the text'}}, got {shown(dict(value))}")
    document = text_and_metadata(value)
    if document is not None:
        content, metadata = document
        source = next((metadata[key] for key in _NAMES if isinstance(metadata.get(key), str)), name)
        return Reference(str(source), index, encodable(content, where))
    hint = "; read the file first, no path is opened here" if hasattr(value, "__fspath__") else ""
    raise TypeError(f"{where} must be {ACCEPTED_REFERENCES}; got {shown(value)}{hint}")


class CopyEncodings:
    """The most recently used encodings of one codec, since texts come again: for several prompts, in every turn of a
    chat. Encoding 100,000 words takes most of a second. Thread-safe."""

    def __init__(self, codec: Codec, max_characters: int = MAX_CHARACTERS) -> None:
        self._codec = codec
        self._max = max_characters
        self._held: OrderedDict[tuple[str, Lead], Encoded] = OrderedDict()
        self._characters = 0
        self._lock = fork_safe(threading.Lock())

    def encode(self, text: str, lead: Lead) -> Encoded:
        """`Codec.encode_copy`, cached unless the text is longer than all that is kept. The ids are shared between calls
        and must not be modified."""
        if len(text) > self._max:
            return self._codec.encode_copy(text, lead)
        key = (text, lead)
        with self._lock:
            encoded = self._held.get(key)
            if encoded is not None:
                self._held.move_to_end(key)
                return encoded
        encoded = self._codec.encode_copy(text, lead)
        with self._lock:
            if key not in self._held:
                self._held[key] = encoded
                self._characters += len(text)
            while self._characters > self._max:
                (old, _), _ = self._held.popitem(last=False)
                self._characters -= len(old)
        return encoded


class InputEncoder:
    """Encodes the inputs of calls for one model."""

    def __init__(self, target: Target, codec: Codec) -> None:
        self._target = target
        self._codec = codec
        self._copies = CopyEncodings(codec)
        self._warned_about: set[str] = set()  # control tokens

    def prompt(self, index: int, prompt: Prompt, options: CallOptions, pad: int | None) -> Encoded:
        """Encode the prompt with number `index`, without `pad` around ids that may be padded. Raises ValueError if it
        does not fit the model."""
        is_chat = prompt.messages is not None or options.system is not None or options.chat is True
        if prompt.ids is not None:
            if options.system is not None:
                raise ChatError(f"system={brief(options.system)} needs a str or a chat; prompt {index} is token ids")
            if options.chat is True or options.rendered is True:
                option = "chat=True" if options.chat is True else "rendered=True"
                raise ChatError(f"{option} needs a str; prompt {index} is token ids, which are taken as they are")
            ids = prompt.ids
            if prompt.may_pad and pad is not None:
                ids = without_padding(ids, pad, f"prompt {index}")
            encoded = Encoded(ids, leaves_space=prompt.leaves_space, reply=prompt.reply)
        elif prompt.text is not None and options.system is None and options.chat is not True:
            parsed = self._codec.encode_parsed(prompt.text) if options.rendered == "auto" else None
            if options.rendered is True:
                encoded = self._codec.encode_rendered(prompt.text)
            elif parsed is not None:
                encoded = parsed
            else:
                if self._codec.control is not None and (controls := self._codec.control.findall(prompt.text)):
                    edited = prompt.edit.text if prompt.edit is not None else None
                    self._warn_control(index, controls, edited or "")
                raw = options.chat is False
                encoded = self._codec.encode_raw(prompt.text) if raw else self._codec.encode(prompt.text, wrap=True)
                encoded = replace(encoded, leaves_space=not raw and self._codec.leaves_space)
            if not encoded.ids:
                raise ValueError(f"prompt {index} has no tokens: {brief(prompt.text)}; the model needs at least one")
        else:
            messages, variables = self._messages(index, prompt, options), options.chat_template_kwargs
            tools = () if options.tool_choice == "none" else options.tools
            encoded = self._codec.encode_chat(messages, tools, variables)
        if (options.tools or options.chat_template_kwargs) and not is_chat:
            name = "tools" if options.tools else "chat_template_kwargs"
            raise ChatError(
                f"{name}= is read by chat templates, and prompt {index} is no chat: give messages, or chat=True"
            )
        self.check_tokens(f"prompt {index}", encoded.ids, "was the model" if prompt.ids is None else "were the ids")
        start = self._target.start(encoded.ids)
        for length, limit in ((len(encoded.ids), self._target.encoder_length), (len(start), self._target.max_length)):
            if limit is not None and length > limit:
                raise PromptTooLongError(
                    f"prompt {index} has {length} tokens, but the model's context is {limit}; shorten it, or give "
                    "long texts to copy from as references, which the model does not read"
                )
        return encoded

    def sources(
        self,
        prompt: Prompt,
        ids: Sequence[int],
        earlier: Sequence[Reference],
        shared: dict[tuple[str, Lead], Encoded],
        *,
        with_references: bool,
    ) -> list[NamedSource]:
        """The edit source and the references as sources, without empty ones; `earlier` outputs come last.

        `shared`: the texts that the call has encoded so far, to which these are added. References that all its prompts
        share may be more than is kept between calls.
        """
        texts = [(prompt.edit, "edit")] if prompt.edit is not None else []
        if with_references:
            texts += [(reference, reference.kind) for reference in prompt.references]
            texts += [(reference, "reference") for reference in earlier]
        if not texts:
            return []
        lead = self._codec.lead(ids, starts_text=self._target.is_encoder_decoder)
        sources: list[NamedSource] = []
        size = self._target.vocab_size
        for reference, kind in texts:
            if reference.text is None:
                encoded = Encoded(list(reference.ids or ()))
            elif (key := (reference.text, lead)) in shared:
                encoded = shared[key]
            else:
                encode = self._copies.encode if len(reference.text) >= MIN_CHARACTERS else self._codec.encode_copy
                encoded = shared[key] = encode(reference.text, lead)
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
        if prompt.messages is not None and options.rendered is True:
            raise ChatError(f"prompt {index} is a chat, but rendered=True is for a str that a chat template made")
        if prompt.messages is not None and options.chat is False:
            raise ChatError(f"prompt {index} is a chat, but chat=False is given; leave it out, or give a str")
        messages: list[Message] = prompt.messages or [{"role": "user", "content": prompt.text}]
        return with_system(messages, options.system)

    def _warn_control(self, index: int, controls: Sequence[str], edited: str) -> None:
        """Warn of the `controls` in a prompt: a chat template may have put them there. Those of the text to
        be edited are the writer's own. Only the first is named, and never again."""
        control = next((control for control in controls if control not in edited), None)
        if control is not None and control not in self._warned_about:
            self._warned_about.add(control)
            logger.warning(
                "prompt %d holds %r, a control token of the tokenizer, and is read as plain text: rendered=True takes "
                "what a chat template made as it is; a chat ([{'role': 'user', 'content': ...}]) needs no rendering",
                index,
                control,
            )


_TOKEN_TYPES = frozenset(("token_type_ids", "mm_token_type_ids"))  # 0 for a single text; see `Prompt.has_types`
_BOOKKEEPING = frozenset(
    {"special_tokens_mask", "offset_mapping", "length", "assistant_masks"}
    | {"overflow_to_sample_mapping", "overflowing_tokens", "num_truncated_tokens"}
)
"""What tokenizers say about an encoding, none of which a model reads."""


def unpadded(encoding: Mapping[str, object], where: str) -> object:
    """The token ids of an encoding (one list, or one per row) without padding on either side."""
    _check_text(encoding, where)
    ids, mask = plain_value(encoding["input_ids"]), plain_value(encoding.get("attention_mask"))
    if not isinstance(ids, (list, tuple)):
        raise TypeError(f"{where}: input_ids must be token ids; got {shown(ids)}")
    if mask is None:
        return ids
    if is_ids(ids):
        return _seen(ids, mask, where)
    if not isinstance(mask, (list, tuple)) or len(mask) != len(ids):
        raise ValueError(f"{where}: input_ids has {len(ids)} rows, and attention_mask has another number of them")
    return [_seen(plain_value(row), plain_value(seen), where) for row, seen in zip(ids, mask, strict=True)]


def without_padding(ids: list[int], pad: int, where: str) -> list[int]:
    """Token ids without the padding token `pad` on either side: `generate` hides it where there is no
    attention_mask."""
    indices = [i for i, token in enumerate(ids) if token != pad]
    if len(indices) == len(ids):
        return ids
    if not indices or indices[-1] + 1 - indices[0] != len(indices):
        place = "between others" if indices else "alone"
        raise ValueError(
            f"{where} holds the padding token {pad} {place}, and generate would hide it: give an attention_mask beside "
            "input_ids, or a list of the ids that the model shall read"
        )
    return ids[indices[0] : indices[-1] + 1]


def _check_text(encoding: Mapping[str, object], where: str) -> None:
    """Raise TypeError for an encoding with more than text for the model to read, such as an image."""
    for name, value in encoding.items():
        if name in ("input_ids", "attention_mask") or name in _BOOKKEEPING or value is None:
            continue
        if name in _TOKEN_TYPES and _is_zero(value):
            continue
        raise TypeError(
            f"{where} is an encoding with {name} ({shown(value)}), and copyspec gives a model text only: leave it out, "
            "and any image or audio that it came from"
        )


def _is_zero(value: object) -> bool:
    """Whether a list of numbers, or of such lists, holds nothing but 0."""
    plain = plain_value(value)
    rows = plain if isinstance(plain, (list, tuple)) and not is_ids(plain) else [plain]
    return all(isinstance(row := plain_value(item), (list, tuple)) and not any(row) for item in rows)


def _seen(ids: object, mask: object, where: str) -> list[object]:
    if not isinstance(ids, (list, tuple)) or not isinstance(mask, (list, tuple)) or len(ids) != len(mask):
        raise ValueError(f"{where}: input_ids and attention_mask differ in shape")
    for flag in mask:
        if flag not in (0, 1):
            raise ValueError(f"{where}: attention_mask holds 0 and 1; got {brief(flag)}")
    seen = [i for i, flag in enumerate(mask) if flag]
    if seen and seen[-1] - seen[0] + 1 != len(seen):
        raise ValueError(f"{where}: attention_mask masks tokens between others; it may mask padding on either side")
    return [ids[i] for i in seen]
