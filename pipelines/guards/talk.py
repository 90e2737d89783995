"""Recognises what a chat model says around a file, or instead of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from difflib import SequenceMatcher

from copyspec.common.lists import Lists

from ..documents import Refusal
from ..edits.lines import parts
from .languages import is_other, language_of, looks_english, script
from .vocabulary import is_english, spelt

_LISTS = Lists(__file__)

_PREFACE = _LISTS.pattern("preface")
"""How a line before the file may begin, or its last sentence."""
_LABEL = _LISTS.pattern("label")
_TAG = re.compile(
    r"<(answer|output|result|response|file|text|code|document|edited|corrected|updated|new|content|version)"
    r"(?: \w+=[^<>]*)?>"
)
_FILE_NAME = re.compile(
    r"(?:#{2,} *)?[*_` ]*(?:(?:updated |new )?file:? *)?`?[\w./\\-]*\w\.\w{1,8}`?[*_` ]*[:：]?[*_ ]*", re.IGNORECASE
)
_QUOTES = ('""', "''", "“”", "‘’", "«»", "„“", "``")
_MARKS = tuple({pair[0] for pair in _QUOTES})
_QUOTING = re.compile(r"quot|backtick|zitat|anführung|guillemet|comillas", re.IGNORECASE)
_REFUSES = _LISTS.pattern("refuses")
"""How an answer begins that is no file."""
_WORD = re.compile(r"\W*(?:ok(?:ay)?|none|null|n/?a|done|lgtm|yes|no)\W*", re.IGNORECASE)
_NOTES = _LISTS.pattern("notes")
"""How a paragraph after the file may begin."""
_CODE = re.compile(r"^\s|[=(){}\[\];<>]|:$|^[\w-]+: ")
_SENTENCE = re.compile(
    r"(?!#\s|--\s)[(*_#-]* ?(?:[¿¡]?[^\W\d_a-z][^=;{}\[\]<>]* |(?=[^\x00-\u2e7f]))[^=;{}\[\]<>]*[.!?:。！？：][)*_]*\s*"
)
"""A sentence of any script, and no comment: a capital and words, or letters of a script that has neither."""
_PROSE = re.compile(r"[A-Z].*\w[.!?]")
_SAME, _EDITED = 0.6, 0.8  # likeness of a line that may be, and one that can only be, the new version of another
_LONGEST = 300
"""Characters at either end of a line that are looked at for talk: some patterns take quadratic time."""
_OTHER_LANGUAGE = _LISTS.pattern("other_language")
"""An instruction that may ask for another language than the file's."""
_ADDS = _LISTS.pattern("adds")
"""An instruction that may ask for a line above the file's first one."""
_SIGNS = re.compile(r"[=;{}\[\]<>`|\\/_]")
_COMMENTS = ("#", "//", "--", ";", "%", "/*", "<!--", "'", '"')
_ENDED = re.compile(r"[.:!?…]\W*\Z")
_EAST = frozenset({"CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH"})
"""Scripts that one text mixes."""
_ITEM = re.compile(r"\s*(?:[-*+•]|\d+[.)])\s")


def after_preface(lines: Sequence[str], before: Sequence[str], instruction: str) -> Sequence[str]:
    """Lines without a first one that announces the file."""
    first = lines[0].strip().strip("*_# ")
    if is_told(first, instruction):
        return lines
    if lines[0] not in before and _is_file_name(lines[0]) and not _is_file_name(before[0]):
        return _following(lines) if _likeness(_following(lines)[0], before[0]) > _SAME else lines
    is_bare = (
        not lines[0].lstrip().startswith(_COMMENTS) and " " in first and is_code(before) and not _CODE.search(first)
    )
    is_end = first.endswith((":", "：")) or is_bare
    rest = _following(lines)
    is_foreign = not _ADDS.search(instruction) and _is_foreign(lines[0], before, instruction)
    if is_foreign and _likeness(rest[0], before[0]) > _SAME:
        return rest
    if not is_end or not _says(_PREFACE, first) or _says(_PREFACE, before[0]) or lines[0] in before:
        return lines
    following = next((line for line in before[1:] if line.strip()), "")
    # Where the rest goes on after the file's first line, this line has taken that one's place.
    is_replaced = not rest[0] or _likeness(rest[0], following) > _likeness(rest[0], before[0])
    return lines if is_replaced else rest


def _is_foreign(line: str, before: Sequence[str], instruction: str) -> bool:
    """Whether a line is in a language that the file is not in, not even in one of its lines, and that was not asked
    for. Comments of a program are no talk. Where letters have cases, lines without a mark at their end may be names,
    titles and addresses."""
    is_comment = line.lstrip().startswith(_COMMENTS) and is_code(before)
    is_ended = line.lower() == line.upper() or _ENDED.search(line[-_LONGEST:])
    own, line = "\n".join(before), line.strip("*_# ")[:_LONGEST]
    if is_comment or not is_ended or _SIGNS.search(line) or _OTHER_LANGUAGE.search(instruction):
        return False
    scripts, known = _scripts(line), _scripts(own)
    if not scripts & known:
        return bool(scripts and known)
    language = "en" if looks_english(own) else language_of(own)
    if language is None or not _differs(line, language):
        return False
    return not any(_differs(other.strip()[:_LONGEST], language) for other in before)


def _scripts(text: str) -> set[str]:
    scripts = {*map(script, filter(str.isalpha, {*text}))}
    return scripts if scripts.isdisjoint(_EAST) else {*(scripts - _EAST), "CJK"}


def _differs(line: str, language: str) -> bool:
    """Whether a line is in another language than this one; its names, which no word list has, do not tell."""
    first, *words = line.split() or [""]
    unnamed = " ".join([first, *(word for word in words if not word[:1].isupper())])
    english, other = looks_english(line), language_of(unnamed)
    # A line of Japanese may do without kana.
    if (language == "en" and english) or (other, language) == ("zh", "ja"):
        return False
    if other not in (None, language) or is_other(unnamed, language):
        return True
    if language != "en" or english is None or not _ENDED.search(line):
        return False
    # One unknown word may be a name, or a word of the trade, as may each in a list.
    strange = ([word for word in spelt(part) if word[0].islower() and not is_english(word)] for part in line.split(","))
    return any(len(words) > 1 for words in strange)


def _following(lines: Sequence[str]) -> Sequence[str]:
    """Lines without the first one, and the blank ones behind it."""
    start = next((at for at in range(1, len(lines)) if lines[at].strip()), len(lines))
    return lines[start:] or [""]


def _likeness(line: str, other: str) -> float:
    """How much two lines have in common, from 0 to 1."""
    return SequenceMatcher(None, line.strip()[:_LONGEST], other.strip()[:_LONGEST], autojunk=False).ratio()


def _says(kind: re.Pattern[str], line: str) -> bool:
    """Whether a line begins as one of this kind, or its last sentence, if the kind allows that."""
    return any(map(kind.match, (line[:_LONGEST], line[-_LONGEST:] if len(line) > _LONGEST else "")))


def _is_file_name(line: str) -> bool:
    return len(line) <= _LONGEST and _FILE_NAME.fullmatch(line.strip()) is not None


def is_told(line: str, instruction: str) -> bool:
    """Whether an instruction holds all words of a line: they are not talk, but what was asked for."""
    words, asked = (" ".join(re.findall(r"\w+", text)) for text in (line, instruction))
    return bool(words) and f" {words} " in f" {asked} "


def unwrapped(lines: Sequence[str], before: Sequence[str], instruction: str) -> Sequence[str]:
    """Lines without a label in front of them, and without the tags or quotes around them."""
    if (label := _LABEL.match(lines[0])) and not _PREFACE.match(before[0]):
        own = lines[0][label.end() :]
        if _likeness(own, before[0]) > _likeness(lines[0], before[0]):  # else it is the file's own, or takes its place
            lines = [own, *lines[1:]]
    tag = _TAG.fullmatch(lines[0].strip())
    is_asked = tag is not None and tag[1].casefold() in instruction.casefold()
    if tag and not is_asked and lines[-1].strip() == f"</{tag[1]}>" and lines[0] not in before:
        return lines[1:-1]
    text = "\n".join(lines)
    pair = text[:1] + text[-1:]
    if len(text) > 2 and pair in _QUOTES and before[0][:1] not in _MARKS and not _QUOTING.search(instruction):
        inner = text[1:-1]
        return lines if pair[0] in inner or pair[1] in inner else inner.split("\n")
    return lines


def chat(lines: Sequence[str], before: Sequence[str], instruction: str) -> Refusal | None:
    """A refusal of an answer that talks about the file, at its beginning or its end."""
    known = {line.strip() for line in before}
    is_program = is_code(before)
    first = next((line for line in lines if line.strip()), "")
    is_named = _is_file_name(first) and any(sign in first for sign in ("`", "*", "##"))
    is_new = first.strip() not in known and not is_told(first, instruction)
    if is_new and (_is_talk(_REFUSES, first, before[0]) or _is_foreign(first, before, instruction)):
        return Refusal("chat", f"the model answered instead of editing: {first.strip()[:80]!r}")
    asks = lines[-1].rstrip().endswith(("?", "？")) and not before[-1].rstrip().endswith(("?", "？"))
    is_word = _WORD.fullmatch(first[:_LONGEST]) is not None and not _WORD.fullmatch(before[0][:_LONGEST])
    if is_new and len(lines) == 1 and (asks or is_word) and not parts(lines) & parts(before):
        return Refusal("chat", f"the model answered instead of editing: {first.strip()[:80]!r}")
    ends = (":", "!", "?", "：", "！", "？", *((".",) if len(lines) == 1 else ()))
    is_sentence = is_program and _SENTENCE.fullmatch(first) is not None
    is_preface = first.rstrip().endswith(ends) and _is_talk(_PREFACE, first, before[0])
    if is_new and (is_sentence or is_preface or is_named or _announces(first, lines, before, instruction)):
        return Refusal("chat", f"the model put a text of its own around the file: {first.strip()[:80]!r}")
    if is_new and (tag := _TAG.fullmatch(first.strip())) and f"</{tag[1]}>" not in "\n".join(lines):
        return Refusal("chat", f"the model put a tag of its own before the file: {first.strip()[:80]!r}")
    for note in _notes(lines, before, known):
        if is_told(note, instruction):
            continue
        is_sentence = is_program and _SENTENCE.fullmatch(note) is not None
        if is_sentence or _is_talk(_NOTES, note, before[-1]) or _is_foreign(note, before, instruction):
            return Refusal("chat", f"the model put a text of its own around the file: {note.strip()[:80]!r}")
    return None


def _announces(first: str, lines: Sequence[str], before: Sequence[str], instruction: str) -> bool:
    """Whether the first line of an answer ends in a colon and the file's own first line follows, no further in than it
    was: a line that announces the file, unless the instruction may have asked for it."""
    if not first.rstrip().rstrip("*_").endswith((":", "：")) or before[0].rstrip().endswith((":", "：")):
        return False
    following = _following(lines)[0]
    is_inside = len(following) - len(following.lstrip()) > len(before[0]) - len(before[0].lstrip())
    return not is_inside and _likeness(following, before[0]) > _SAME and not _ADDS.search(instruction)


def _notes(lines: Sequence[str], before: Sequence[str], known: Set[str]) -> Iterator[str]:
    """The first lines of what may be no part of a file: of the last paragraph, if all of it is new, and of what follows
    the file's last line."""
    last = next((at for at in range(len(lines) - 1, 0, -1) if lines[at].strip() == before[-1].strip()), len(lines))
    written = max((at for at, line in enumerate(lines) if line.strip(" -*_=")), default=0)
    blank = max((at for at in range(written) if not lines[at].strip()), default=len(lines))
    paragraph = [line.strip() for line in lines[blank:]]
    is_new = not any(line in known for line in paragraph if line.strip(" -*_="))
    after = lines[last + 1 :]
    if after and all(map(_ITEM.match, (after[0], before[-1]))):  # the file's list goes on
        after = ()
    for part in (paragraph if is_new else (), after):
        yield from [line for line in part if any(map(str.isalnum, line))][:1]


def is_code(lines: Sequence[str]) -> bool:
    """Whether most lines of a file look like those of a program, and none like a sentence outside of it."""
    written = [line for line in lines if line.strip()]
    code = sum(_CODE.search(line) is not None for line in written)
    return 2 * code >= len(written) and not any(map(_PROSE.fullmatch, written))


def _is_talk(kind: re.Pattern[str], line: str, own: str) -> bool:
    """Whether a line of an answer is no line of the file, whose own line in its place is not alike."""
    return _says(kind, line.strip("*_# ")) and not _says(kind, own) and _likeness(line, own) < _EDITED
