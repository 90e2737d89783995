"""Tells a tokenizer's control tokens from text that looks like them, before and after the tokenizer has changed it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_CONTROL = 256  # characters of a control token; the longest known ones have about 40

_IN_ROLES = " _.-"  # may stand between the words of a role, although control tokens hold them, too


class ControlTokens:
    """The control tokens of a tokenizer: the special ones, and added ones that no user means as words."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        added = tokenizer.added_tokens_decoder
        self.are_read = isinstance(added, Mapping)
        """Whether the tokenizer reads control tokens in texts. That of mistral-common never does, and lists none."""
        added = added if isinstance(added, Mapping) else {}
        special = {str(token) for token in tokenizer.all_special_tokens}
        special |= {token.content for token in added.values() if token.special}
        # One-character tokens cannot be split.
        self.special = _any_of(text for text in special if len(text) > 1)
        templates = tokenizer.chat_template
        # A tokenizer may have several templates, by name.
        template = "\n".join(templates.values()) if isinstance(templates, Mapping) else templates or ""
        tags = {text for token in added.values() if _is_control(text := token.content, template)}
        control = {text for text in special | tags if len(text) > 1}
        self._signs = {sign for text in control for sign in text if not sign.isalnum() and sign not in _IN_ROLES}
        self.pattern = _any_of(control)
        """Matches the strings of control tokens; None if there are none."""
        strips = {token.content for token in added.values() if token.lstrip or token.rstrip or token.single_word}
        self.separators = sorted((special | tags) - strips, key=lambda text: (text in special, len(text)), reverse=True)
        self.special_ids = frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
        """Ids of special tokens and of the unknown token."""
        self.ids = self.special_ids | {i for i, token in added.items() if token.content in tags}
        texts = dict(zip(tokenizer.all_special_ids, map(str, tokenizer.all_special_tokens), strict=True))
        self.texts = texts | {i: token.content for i, token in added.items() if i in self.special_ids}
        """The strings of the special tokens, which texts of outputs leave out, by id."""
        self.strings = {string: i for i, string in self.texts.items()}
        texts |= {i: token.content for i, token in added.items() if i in self.ids}
        unknown = tokenizer.unk_token_id if _writes_unknown(tokenizer) else None
        texts = {i: text for i, text in texts.items() if len(text) > 1 and i != unknown}
        self._literal = _any_of(texts.values())
        self.forbidden = frozenset(texts)
        """The ids that no text may become: neither the unknown token, nor those of one character, which are ordinary
        vocabulary in some tokenizers."""

    def hold(self, ids: Sequence[int], pieces: Sequence[str]) -> bool:
        """Whether `ids`, encoded from `pieces`, hold no more control tokens than are written out in the pieces."""
        if self.forbidden.isdisjoint(ids):
            return True
        return number_of(ids, self.forbidden) <= sum(len(self._literals(piece)) for piece in pieces)

    def cuts(self, text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> list[int]:
        """Where to cut `text`, encoded as `ids`, so that only the control tokens written out in it remain: after the
        first character of each other one, or in the middle if `offsets`, [len(ids)] or empty, do not tell. Empty if it
        cannot be cut."""
        places: set[int] = set()
        for token, (start, end) in zip(ids, offsets, strict=False):
            surface = text[start:end]
            if token in self.forbidden and not (self._literal and self._literal.fullmatch(surface.strip())):
                places.add(start + len(surface) - len(surface.lstrip()) + 1)
        places.discard(len(text))
        if places or len(text) < 2:
            return sorted(places)
        middle = len(text) // 2
        start, end = next((span for span in self._literals(text) if span[0] < middle < span[1]), (middle, middle))
        return [place for place in (start, end) if 0 < place < len(text)][:1]

    def in_role(self, role: str) -> str | None:
        """What in a message's role is a control token, or may complete one where a template writes "<|" + role + "|>";
        None if nothing is."""
        if self.pattern is None:
            return None
        if control := self.pattern.search(role):
            return f"{control[0]!r}, a control token"
        sign = next((sign for sign in role + unicodedata.normalize("NFKC", role) if sign in self._signs), None)
        return sign and f"{sign!r}, part of a control token"

    def _literals(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in self._literal.finditer(text)] if self._literal else []


def number_of(ids: Sequence[int], counted: Set[int]) -> int:
    """How many of `ids` are in `counted`."""
    return sum(token in counted for token in ids)


def cut(text: str, special: re.Pattern[str] | None) -> list[str]:
    """Split `text` after the first character of every special token's string, so that no piece contains one."""
    pieces: list[str] = []
    at = 0
    while special is not None and (match := special.search(text, at)):
        pieces.append(text[at : match.start() + 1])
        at = match.start() + 1
    return [*pieces, text[at:]]


def kept_apart(control: re.Pattern[str], mark: str, texts: Sequence[str]) -> list[str]:
    """The texts, with `mark` before each that completes a control token begun in those before it: a template may write
    them one after another, as they are or stripped."""
    ends = _token_ends(control, texts) | _token_ends(control, [text.strip() for text in texts])
    return [mark + text if number in ends else text for number, text in enumerate(texts)]


def _token_ends(control: re.Pattern[str], texts: Sequence[str]) -> set[int]:
    """The numbers of the texts in which a control token ends that begins in those before."""
    ends: set[int] = set()
    before = ""
    for number, text in enumerate(texts):
        if any(match.start() < len(before) < match.end() for match in control.finditer(before + text)):
            ends.add(number)
        before = (before + text)[-MAX_CONTROL:]
    return ends


def _any_of(strings: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted(strings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _is_control(text: str, template: str) -> bool:
    """Whether an added token looks like "<think>" or "[INST]" and is no word: the template uses it, or it is written
    as "<|file_sep|>", "<fim_prefix>" or "[INST]". Vocabularies also hold "<table>", and templates ordinary words."""
    is_tag = re.fullmatch(r"[<\[{|].*\w.*[>\]}|]", text) is not None
    return is_tag and (text in template or re.search(r"[_|｜▁]|^[A-Z]+$", text[1:-1]) is not None)


def _writes_unknown(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether unknown characters become the unknown token. In byte-level vocabularies nothing is unknown, and it is
    another name of the end token."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    return getattr(model, "unk_token", "") is not None
