"""Converts text to token ids and back. Control tokens come only from the tokenizer and the chat template, never from
text."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from copyspec.common.checks import brief, is_panic
from copyspec.common.forks import fork_safe
from copyspec.common.lockless import cached_property
from copyspec.text.blocks import break_tokens
from copyspec.text.chat import (
    ChatError,
    Message,
    check_variables,
    continues,
    map_contents,
    map_texts,
    own_chat,
    render,
    unused_mark,
)
from copyspec.text.control_tokens import ControlTokens, cut, kept_apart
from copyspec.text.replies.formats import ReplyFormats
from copyspec.text.replies.marks import MarkedDetokenizer
from copyspec.text.replies.reader import Reply
from copyspec.text.stops import INCOMPLETE, Detokenizer, StopStrings, text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHOWN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]

# Byte-level vocabularies write the bytes that are no visible characters of Latin-1 as characters from U+0100 on; those
# of single bytes (ByT5) write each byte as its own character.
_BYTES = {chr(byte): byte for byte in range(256)} | {chr(0x100 + number): byte for number, byte in enumerate(_HIDDEN)}


def piece_bytes(piece: object) -> bytes | None:
    """The bytes of a token by its name: "<0xC3>", a name in a byte-level vocabulary, or bytes themselves; None if it is
    none of these."""
    if isinstance(piece, bytes):
        return piece
    if not isinstance(piece, str):
        return None
    if match := re.fullmatch("<0x([0-9A-Fa-f]{2})>", piece):
        return bytes.fromhex(match[1])
    return bytes(_BYTES[sign] for sign in piece) if all(sign in _BYTES for sign in piece) else None


# SentencePiece's visible space: a token that begins with it stands for a word after a space.
SENTENCEPIECE_SPACE = "▁"

LONG = 100_000
"""Characters from which a text is long: a tokenizer takes a second for some million."""

PROBED = 64  # tokens that are decoded in pairs: of those of CTRL, half are continued by the next one

MOST_CONTEXT = 64  # tokens of a prompt that end in white space or parts of characters only

PROBE = "The"  # a word that tokenizers of languages with Latin letters know


Lead = Literal["", "\n", " "]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a text, with their positions in it."""

    ids: list[int]
    offsets: Callable[[], Sequence[tuple[int, int]]] | None = None
    """Returns the [start, end) characters of each token, [len(ids)]; None if unknown (token ids, chats, slow
    tokenizers). A function, because most encodings never need it."""
    leaves_space: bool = False
    """Whether the prompt ends right before the answer's first word, so that the answer's leading space belongs to the
    template."""
    reply: Reply | None = None
    """How the answer to a chat is split into thought, answer and calls; None: it is its text."""


class Codec:
    """The engine's interface to a tokenizer. Thread-safe, which fast tokenizers are not."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: Mapping[str, object] | None = None
    ) -> None:
        """`chat_template_kwargs`: variables of the chat template for all chats."""
        self.tokenizer = tokenizer
        self.chat_template_kwargs = check_variables("chat_template_kwargs", chat_template_kwargs or {})
        self._lock = fork_safe(threading.Lock())
        self._for_long: PreTrainedTokenizerBase | None = None
        """A copy for long texts, with a lock of its own, so that other callers do not wait for them."""
        self._long_lock = fork_safe(threading.Lock())
        self._tokens = tokens = ControlTokens(tokenizer)
        self.control = tokens.pattern
        """Matches the strings of control tokens; None if there are none."""
        self.special_ids = tokens.special_ids
        """Ids of control tokens and of the unknown token."""
        self._replies = ReplyFormats(tokenizer, tokens)
        self.is_fast: bool = getattr(tokenizer, "is_fast", False)
        self.takes_back = not self.is_fast and self._takes_back()
        """Whether a further token may change the text of those before it, as after the "@@" of CTRL's tokenizer."""

    def encode(self, text: str, *, wrap: bool = False, is_prompt: bool = False) -> Encoded:
        """Encode `text` as ordinary text; `wrap` adds the special tokens around a prompt (`add_special_tokens`).

        If `text` contains no special token's string, the ids equal those of calling the tokenizer. In prompts
        (`is_prompt`, or with `wrap`) tokens that the chat template uses, such as "<think>", are text as well; in texts
        to copy from they remain tokens, as they are in outputs.
        """
        is_prompt = is_prompt or wrap
        tokens = self._tokens
        control, ids = (tokens.pattern, tokens.ids) if is_prompt else (tokens.special, tokens.special_ids)
        is_written = control is not None and control.search(text) is not None
        counted = ids if is_written else ids & tokens.forbidden
        # Prefer the tokenizer's own `split_special_tokens` where a control token is written out, or made by its
        # normalizer, unless it still emits one found in the vocabulary.
        for split in [True] if is_written else [False, True]:
            encoded = self._tokenized(text, wrap, split_special_tokens=split)
            if counted.isdisjoint(encoded.ids):
                return encoded
            written, framing = (
                sum(token in counted for token in ids) for ids in (encoded.ids, self._tokenized("", wrap).ids)
            )
            if written == framing:
                return encoded
        return self._encode_pieces(cut(text, control), wrap=wrap)

    def encode_raw(self, text: str) -> Encoded:
        """Encode `text` as a prompt outside a chat, with the tokenizer's own special tokens around it; a tokenizer that
        writes the chat template around every text adds nothing."""
        return self.encode(text, wrap=not self.frames, is_prompt=True)

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of many short texts without special tokens. Fast tokenizers only."""
        tokenizer = self.tokenizer
        with self._lock:
            try:
                tokenizer("", add_special_tokens=False, verbose=False)  # resets the padding of an earlier call
                encodings = tokenizer.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            except BaseException as error:  # a panic is no Exception
                if is_panic(error):
                    raise self._failed(error) from error
                raise
        return [encoding.ids for encoding in encodings]

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]] = (),
        variables: Mapping[str, object] = MappingProxyType({}),
    ) -> Encoded:
        """Apply the chat template and encode the result, up to where the assistant's answer begins or continues.

        `tools`: JSON schemas of callable tools; `variables`: of the template, besides those of `chat_template_kwargs`.
        Raises ChatError if there is no template or it rejects the messages.
        """
        variables = {**self.chat_template_kwargs, **variables}
        if not self._tokens.are_read:
            ids = own_chat(self.tokenizer, messages, tools, variables)
            spaced = not continues(messages) and self.lead(ids, starts_text=False) == " "
            return Encoded(ids, leaves_space=spaced)
        for message in messages:  # a template writes the role between control tokens, and templates compare it
            if control := self._tokens.in_role(str(message["role"])):
                raise ChatError(f"role {brief(message['role'])} holds {control} of the tokenizer")
        others: Message = {"role": "", "tools": list(tools), "variables": variables}
        mark = unused_mark([*messages, others])

        def guard(text: str, role: str) -> str:
            # Templates strip markers like "</think>" from assistant turns only, so these must stay intact there.
            return mark.join(cut(text, self._tokens.special if role == "assistant" else self.control))

        guarded = map_texts(messages, guard)
        if self.control is not None:
            guarded = map_contents(guarded, partial(kept_apart, self.control, mark))
        (others,) = map_texts([others], guard)
        text = render(self.tokenizer, guarded, others["tools"], others["variables"])  # type: ignore[arg-type]
        ids = self._encode_pieces(text.split(mark), wrap=False).ids
        return Encoded(
            ids,
            leaves_space=not continues(messages) and self.lead(ids, starts_text=False) == " ",
            reply=self._replies.reply(text, messages, tools, variables),
        )

    def encode_rendered(self, text: str) -> Encoded:
        """Encode rendered text as the tokenizer does, parsing control tokens and adding nothing around it. Raises
        ChatError for control tokens if the tokenizer never reads them."""
        if not self._tokens.are_read and self.control is not None and (match := self.control.search(text)):
            kind = type(self.tokenizer).__name__
            raise ChatError(f"a {kind} reads no control tokens such as {match[0]!r} in texts: give the chat itself")
        return self._tokenized(text, wrap=False)

    def encode_parsed(self, text: str) -> Encoded | None:
        """Encode text with control tokens as the tokenizer does, with its own special tokens around it, but none twice;
        None for a text without them, or in which they are text: a tokenizer that writes the chat template around every
        text reads the control tokens of one that begins with one, and adds nothing."""
        if self.control is None or not self.control.search(text):
            return None
        if self.frames:
            return self.encode_rendered(text) if self.control.match(text) else None
        bare, wrapped = self.encode_rendered(text).ids, self._tokenized(text, wrap=True)
        ids, offsets = wrapped.ids, wrapped.offsets
        added = len(ids) - len(bare)
        before = next((at for at in range(added + 1) if ids[at : at + len(bare)] == bare), 0)
        start = int(before > 0 and ids[before - 1 : before] == bare[:1])
        after = before + len(bare)
        end = len(ids) - int(added > before and ids[after : after + 1] == bare[-1:])
        return Encoded(ids[start:end], offsets and partial(_part, offsets, start, end))

    def lead(self, prompt: Sequence[int], *, starts_text: bool) -> Lead:
        """The context before the output's first token, as far as it affects tokenization: nothing, a newline or a
        space.

        Tokenizers encode a word differently after a space than at the start of a line. The output starts a new text if
        nothing precedes it (`starts_text`: encoder-decoder models), a new line if the prompt ends in white space, as
        chat templates ending in a newline do, and otherwise continues after a space. A wrong guess costs the first word
        of a copy, never the output.
        """
        if starts_text:
            return ""
        if not prompt or prompt[-1] in self.special_ids:
            return " "
        # Eight tokens hold any character that was split into bytes.
        return "\n" if self.decode(prompt[-8:])[-1:].isspace() else " "

    def encode_copy(self, text: str, lead: Lead) -> Encoded:
        """Encode `text` with the tokens it would have in an output after `lead`."""
        if lead == " " and text[:1] == " " and text != " " and self._marks_first_word:
            bare = self.encode(text[1:])
            return Encoded(bare.ids, bare.offsets and partial(_shifted, bare.offsets, 0, 1))
        if lead == "" or not text or text[0].isspace():
            return self.encode(text)
        if lead == "\n":
            return self._after_newline(text)
        if self._marks_first_word:
            return self.encode(text)
        spaced = self.encode(" " + text)
        return Encoded(spaced.ids, spaced.offsets and partial(_shifted, spaced.offsets, 0, -1))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode output tokens without special tokens and without clean-up, so that pieces concatenate to the whole."""
        try:
            text = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        except BaseException as error:  # a panic is no Exception
            if is_panic(error):
                raise self._failed(error) from error
            raise
        assert isinstance(text, str)
        return text

    @cached_property
    def decodes_alone(self) -> bool:
        """Whether whole characters are decoded to the same text after any other ones, as by byte-level decoders."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return type(getattr(backend, "decoder", None)).__name__ == "ByteLevel"

    def context(self, prompt: Sequence[int]) -> Sequence[int]:
        """The end of `prompt` that an output is decoded with (`before`), from a token that shows a character; without
        control tokens if there is none. Decoders strip the first space of what they get, or join pieces of words."""
        length = 1
        while True:
            text = self.decode(tail := prompt[-length:])
            is_shown = not text.startswith(INCOMPLETE) and text.strip() != ""
            if is_shown or length >= len(prompt) or (text and length >= MOST_CONTEXT):
                return tail if text else [token for token in tail if token not in self.special_ids]
            length *= 2

    def bytes_of(self, token: int, text: str) -> bytes | None:
        """The bytes of a token whose text after those before it is `text`. Those of a part of a character are the
        token's own, or None if the tokenizer does not tell them."""
        if token in self.special_ids:
            return b""
        alone, own = self.decode([token]), None
        if not alone or INCOMPLETE in alone:
            own = piece_bytes(self.tokenizer.convert_ids_to_tokens(token))
        if own is None:
            own = text.lstrip(INCOMPLETE).encode()  # at its beginning are bytes of the tokens before
        return own if INCOMPLETE not in alone or own.decode("utf-8", "replace") == alone else None

    def text_of(self, tokens: Sequence[int], before: Sequence[int] = ()) -> str:
        """The text of a whole output after `before`, equal to its streamed text."""
        return text_of(tokens, self.decode, before=before, takes_back=self.takes_back)

    def detokenizer(self, before: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer for one output after `before`."""
        return Detokenizer(self.decode, before=before, takes_back=self.takes_back)

    def marked_detokenizer(self, before: Sequence[int] = ()) -> MarkedDetokenizer:
        """A detokenizer for one output whose control tokens are to be seen."""
        return MarkedDetokenizer(self.detokenizer(before), self._tokens.texts)

    def marked(self, tokens: Sequence[int], before: Sequence[int] = ()) -> str:
        """The text of a whole output with its control tokens, see `replies.marks`."""
        detokenizer = self.marked_detokenizer(before)
        return detokenizer.push(tokens) + detokenizer.finish()

    def _takes_back(self) -> bool:
        """Whether a token that another follows decodes to something else than alone, tried with some of them."""
        ids = range(0, len(self.tokenizer), max(1, len(self.tokenizer) // PROBED))
        pairs = zip(ids, [*ids[1:], *ids[:1]], strict=True)
        return not all(self.decode(pair).startswith(self.decode(pair[:1]).rstrip("\ufffd")) for pair in pairs)

    @cached_property
    def frames(self) -> bool:
        """Whether the tokenizer itself writes the chat template around a text, as those of the models with short names
        do. Tokens on one side only are no chat: many tokenizers begin or end a text with one."""
        if not self.tokenizer.chat_template:
            return False
        try:
            framed, bare = self._tokenized(PROBE, True).ids, self._tokenized(PROBE, False).ids
            if framed[:1] == bare[:1] or framed[-1:] == bare[-1:]:
                return False
            return framed == self.encode_chat([{"role": "user", "content": PROBE}]).ids
        except Exception:  # a template that rejects this chat is not what the tokenizer writes
            return False

    @cached_property
    def leaves_space(self) -> bool:
        """Whether the frame that the tokenizer writes around a text leaves a space to the answer, see `Encoded`."""
        return self.frames and self.encode_chat([{"role": "user", "content": PROBE}]).leaves_space

    @cached_property
    def breaks(self) -> frozenset[int]:
        """Tokens after which an output's introduction may be over and a copy may begin."""

        def encode(text: str) -> Sequence[int]:
            try:
                ids = self.encode(text).ids
            except Exception:  # tokenizers raises plain Exception for a mark it does not know
                return ()
            return () if self.special_ids.intersection(ids) else ids

        return break_tokens(encode)

    def stop_strings(self, strings: Sequence[str], before: Sequence[int]) -> StopStrings:
        """A watcher for strings that end one output, of which some may be special tokens. `before` as for the
        `Detokenizer`."""
        special = {token: text for text in strings if (token := self._tokens.strings.get(text)) is not None}
        return StopStrings(strings, self.decode, before=before, takes_back=self.takes_back, special=special)

    @cached_property
    def strips_space(self) -> bool:
        """Whether a space that a text begins with, in its tokens, is left out when it is decoded."""
        ids = self.encode(" " + PROBE).ids
        return self.text_of(ids, ids) != self.decode(ids)

    @cached_property
    def _marks_first_word(self) -> bool:
        """Whether the first word of a text is encoded as after a space, as SentencePiece does."""
        try:
            first = self.encode(PROBE).ids[:1]
        except Exception:  # tokenizers raises plain Exception for a letter it does not know
            return False
        return bool(first) and str(self.tokenizer.convert_ids_to_tokens(first[0])).startswith(SENTENCEPIECE_SPACE)

    @cached_property
    def _newline(self) -> list[int]:
        return self.encode("\n").ids

    def _after_newline(self, text: str) -> Encoded:
        head = self._newline
        whole = self.encode("\n" + text)
        if whole.ids[: len(head)] != head:
            return self.encode(text)
        offsets = whole.offsets and partial(_shifted, whole.offsets, len(head), -1)
        return Encoded(whole.ids[len(head) :], offsets)

    def _encode_pieces(self, pieces: Sequence[str], *, wrap: bool) -> Encoded:
        """Encode the pieces as one text in which no token crosses from one piece into the next, and control tokens are
        only those written out in the pieces."""
        encoded = self._joined(pieces, wrap=wrap)
        if encoded is None:  # the tokenizer's normalizer or vocabulary makes control tokens of other characters
            pieces = [part for piece in pieces for part in self._apart(piece)]
            encoded = self._joined(pieces, wrap=wrap)
        if encoded is None:
            written = pieces[0][-1:] + pieces[1] if len(pieces) > 1 else pieces[0]
            raise ValueError(f"this tokenizer cannot encode special tokens as text: {brief(written)}")
        return encoded

    def _joined(self, pieces: Sequence[str], *, wrap: bool) -> Encoded | None:
        """The pieces joined by a special token, which no tokenizer merges with its neighbours, and whose id is removed
        again; None if some piece then becomes a control token that is not written in it."""
        if len(pieces) == 1:
            encoded = self._tokenized(pieces[0], False)
            if not self._tokens.hold(encoded.ids, pieces):
                return None
            return self._tokenized(pieces[0], True) if wrap else encoded
        for separator in self._tokens.separators:
            joined = separator.join(pieces)
            encoded = self._tokenized(joined, False)
            ids, offsets = encoded.ids, encoded.offsets
            indices = _without(ids, self.tokenizer.convert_tokens_to_ids(separator), separator, pieces)
            body = [ids[i] for i in indices or ()]
            if indices is None or not self._tokens.hold(body, pieces):
                continue
            if wrap:
                return Encoded(self._wrapped(body, ids, joined))
            if offsets is None:
                return Encoded(body)
            return Encoded(body, partial(_unjoined, offsets, indices, pieces, len(separator)))
        return None

    def _apart(self, piece: str) -> list[str]:
        """Cut `piece` where it becomes control tokens that are not written in it. Raises ValueError for a character
        that always does."""
        parts: list[str] = []
        waiting = [piece]
        while waiting:
            text = waiting.pop()
            encoded = self._tokenized(text, False)
            if self._tokens.hold(encoded.ids, [text]):
                parts.append(text)
                continue
            cuts = self._tokens.cuts(text, encoded.ids, encoded.offsets() if encoded.offsets else ())
            if not cuts:
                raise ValueError(f"this tokenizer makes a control token of {brief(text)}; leave it out of the text")
            waiting += [text[start:end] for start, end in pairwise([0, *cuts, len(text)])][::-1]
        return parts

    def _wrapped(self, body: list[int], inner: list[int], joined: str) -> list[int]:
        outer = self._tokenized(joined, True).ids
        for start in range(len(outer) - len(inner) + 1):
            if outer[start : start + len(inner)] == inner:
                return outer[:start] + body + outer[start + len(inner) :]
        return body

    def _tokenized(self, text: str, wrap: bool, *, split_special_tokens: bool = False) -> Encoded:
        is_long = len(text) > LONG and self.is_fast
        if is_long and self._for_long is None:
            with self._lock, suppress(Exception):  # a tokenizer with parts in Python cannot be copied
                self._for_long = self._for_long or deepcopy(self.tokenizer)
        copied = self._for_long if is_long else None
        with self._lock if copied is None else self._long_lock:
            try:
                batch = (self.tokenizer if copied is None else copied)(
                    encodable(text, "the text"),
                    add_special_tokens=wrap,
                    **({"split_special_tokens": split_special_tokens} if self._tokens.are_read else {}),
                    return_attention_mask=False,
                    verbose=False,  # references may be longer than the model's context
                )
            except BaseException as error:  # a panic is no Exception
                if is_panic(error):
                    raise self._failed(error) from error
                raise
        encodings = batch.encodings
        return Encoded(list(batch["input_ids"]), partial(getattr, encodings[0], "offsets") if encodings else None)

    def _failed(self, error: BaseException) -> ValueError:
        """The error for a text on which a fast tokenizer (Rust) panics."""
        name = self.tokenizer.name_or_path or type(self.tokenizer).__name__
        return ValueError(f"the tokenizer of {name!r} fails on this text: {error}")


def encodable(text: str, where: str) -> str:
    """Return `text`. Raises ValueError if it contains lone surrogates, which tokenizers cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} holds a lone surrogate at character {error.start}: {text[error.start]!r}; no tokenizer reads it "
            "(text.encode('utf-8', 'replace').decode() replaces such characters)"
        ) from None
    return text


def _without(ids: list[int], separator_id: object, separator: str, pieces: Sequence[str]) -> list[int] | None:
    """Indices of `ids` that are not separators between `pieces`; None if the number of separators does not match.

    A chat template writes special tokens of its own, so separators are identified by their order.
    """
    own = [piece.count(separator) for piece in pieces]
    separators = [i for i, token in enumerate(ids) if token == separator_id]
    if len(separators) != sum(own) + len(pieces) - 1:
        return None
    inserted: set[int] = set()
    position = 0
    for count in own[:-1]:
        position += count
        inserted.add(separators[position])
        position += 1
    return [i for i in range(len(ids)) if i not in inserted]


def _unjoined(
    joined: Callable[[], Sequence[tuple[int, int]]], indices: Sequence[int], pieces: Sequence[str], width: int
) -> list[tuple[int, int]]:
    """Convert offsets in the joined text to offsets in the text of the pieces."""
    ends: list[int] = []  # end of each separator in the joined text
    end = 0
    for piece in pieces[:-1]:
        end += len(piece) + width
        ends.append(end)
    offsets = joined()
    result: list[tuple[int, int]] = []
    passed = 0
    for i in indices:
        start, stop = offsets[i]
        while passed < len(ends) and start >= ends[passed]:
            passed += 1
        result.append((start - passed * width, stop - passed * width))
    return result


def _part(offsets: Callable[[], Sequence[tuple[int, int]]], start: int, end: int) -> Sequence[tuple[int, int]]:
    """The characters of the tokens in this range."""
    return offsets()[start:end]


def _shifted(offsets: Callable[[], Sequence[tuple[int, int]]], first: int, by: int) -> Sequence[tuple[int, int]]:
    """The characters of the tokens from `first` on, moved by `by`."""
    return [(max(0, start + by), max(0, end + by)) for start, end in offsets()[first:]]
