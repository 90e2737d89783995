"""What speaks against a change whatever the model says: the project's words, the document's terms, names, symbols and
habits, the variety of English, and the sound that an article goes with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise, product

from copyspec.common.lists import Lists
from copyspec.common.lockless import cached_property

from ..documents import Refusal, Segment
from . import number
from .articles import ARTICLES, article_of
from .document_words import DocumentWords, is_compound
from .gerunds import are_of_verb, is_adjective, is_aside, is_gerund_after_to
from .likeness import are_irregular, distance, plain, sounds_like
from .misspellings import is_near_word
from .openings import Openings
from .quoted_mistakes import is_quoted
from .sentencehood import END, is_terse
from .set_phrases import lost_phrase, made_preposition
from .varieties import are_varieties
from .vocabulary import spelt
from .wording import Wording, is_grammar

_LISTS = Lists(__file__)

_TOKEN = re.compile(r"[^\W_](?:\S*[^\W_])?[+#]*")
_SAYS_OF = (
    r"is|are|was|were|has|can|may|must|should|will|defaults?|specifies|contains|denotes|means|controls|determines"
)
_SUBJECT = re.compile(rf"(?<![\w'’.-])([a-z][\w-]{{1,40}}) (?:{_SAYS_OF})(?![\w'’-])")
_ENTRY = re.compile(r"([a-z][\w-]{1,40})(?: +[-–—]|:)(?=\s|\Z)")  # of a list of names
_SYMBOL_IS = re.compile(r"(?<![\w'’.-])(?:[b-hj-zA-HJ-Z]|i|a) (?:is|are|denotes)(?![\w'’-])")
_GOES_ON = re.compile(r"[\w,] \Z")  # before a piece of a long sentence
_AFTER_SYMBOL = _LISTS.pattern("after_symbol", 0)
_BEFORE_SYMBOL = _LISTS.pattern("before_symbol", 0)
SLIPS = 2  # letters that may differ in a misspelling that happens to be made of words, as "allways"
SHORT = 3  # letters of most abbreviations
LABEL_WORDS = 12  # most words of a label
_NEAR = 24  # characters beside a letter that are looked at
_CLAUSE = re.compile(
    r"\b(?:what|who|where|when|how|that|why|all)\b[^.;:!?]*\b(?:is is|was was|do do|does does|did did|had had)\W*\Z",
    re.IGNORECASE,
)
_LONG = 200  # characters of a sentence that are looked at
_DOUBLED = re.compile(r"(.)\1")
_LAST_COMMA = re.compile(r",(?=\s*(?:and|or)\b)")
_NEXT_WORD = re.compile(r"\s+([\w'’]+)")
_COINED = re.compile(r"(\w{3,}?)(?:ee|less|like|ness|wise)s?\Z")
_DIVIDED = re.compile(r"\w-[ \t]*\n")
_JOINED = re.compile(r"\w[:=|]\w")
_COMPARED_TWICE = re.compile(r"(?<![\w'’])(?:more|most) \w+(?:er|est)(?![\w'’])", re.IGNORECASE)
_POINTS = (frozenset({"this", "these"}), frozenset({"that", "those"}))
_AFTER = re.compile(r"\b(?:about|after|at|before|by|for|from|in|into|like|of|on|than|to|with|without)\s+\Z")
_PLURAL = re.compile(r"\s+(?:\w+ly )?(?:many(?! an?\b)|numerous|several|these|those|various)\b", re.IGNORECASE)
_PARTICIPLE = re.compile(r"\s+\w\w+(?:ed|en|ing)\b", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[:;](?=\s)|\Z")
_AFTER_COLON = re.compile(r":[\"'“‘(*_]*\s+\Z")


class Evidence:
    """What the document says of the changes of one segment."""

    def __init__(self, text: str, segment: Segment, facts: DocumentWords, openings: Openings) -> None:
        self._text, self._segment, self._facts, self._openings = text, segment, facts, openings

    def refusal(self, wording: Wording, start: int, end: int) -> Refusal | None:
        """`start`, `end`: of the words that change."""
        for why in self._objections(wording, start, end):
            return wording.refusal("evidence", f"but {why}")
        return None

    def own(self, wording: Wording) -> Refusal | None:
        """The refusal of a change of a word that the project lists."""
        had, has = (Counter(_tokens(side)) for side in (wording.was, wording.becomes))
        for word in had - has:
            if self._facts.is_own(word):
                return wording.refusal("evidence", f"but {word!r} is in the project's word list")
        return None

    def _objections(self, wording: Wording, start: int, end: int) -> Iterator[str]:
        facts = self._facts
        had, has = (Counter(spelt(side)) for side in (wording.was, wording.becomes))
        is_joined = wording.joins or len(wording.was.split()) != len(wording.becomes.split())
        for word in had - has:
            if len(word) == 1 and word.isalpha() and not is_joined and self._is_symbol(word, start, end):
                yield f"{word!r} is a symbol here"
            opens = word[0].isupper() and self._openings.has(start + wording.was.index(word))
            if opens and facts.is_name(word) and word not in _parts(wording.becomes):
                yield f"{word!r} has its capital inside sentences, too, and is a name"
            has_apostrophe = word[0].isupper() and not {"'", "’"}.isdisjoint(word)
            if has_apostrophe and plain(word) in map(str.lower, has) and not facts.is_word(word):
                yield f"{word!r} is a name with an apostrophe"
            is_small = word.islower() and len(word) > 1 and not is_grammar(word)
            if is_small and word.capitalize() in has - had and facts.is_marked(word):
                yield f"{word!r} is a name in code or markup"
        if phrase := made_preposition(self._text, start, wording.becomes):
            yield f"{phrase!r} is made of a noun that may stand for itself"
        if phrase := lost_phrase(self._text, start, end, wording.becomes):
            yield f"{phrase!r} is a set phrase"
        if is_quoted(self._text, start, end, wording.becomes):
            yield "the text quotes a mistake"
        for word in wording.gone if all(map(str.isascii, wording.new)) else ():
            if not (word.replace("’", "").isascii() or facts.is_word(word)):
                yield f"{word!r} has letters of another language"
        for word in wording.gone if not is_joined else ():
            if not facts.is_word(word) and len(word) > 1 and not any(_is_typo(word, new) for new in wording.new):
                if any(number.is_plural(word.lower(), new.lower()) for new in wording.new):
                    yield f"{word!r} is a regular plural"
                if why := facts.term(word):
                    yield f"{word!r} is no slip: {why}"
                elif facts.is_document and len(word) <= SHORT:
                    yield f"{word!r} may be an abbreviation"
                elif facts.is_document and all(map(partial(_is_other, word), wording.new)):
                    yield f"{word!r} is too far from it for a slip"
                elif all(map(partial(_has_first, word), wording.new)):
                    yield f"{word!r} may be a name: a letter before a word, as in names of programs"
                elif is_compound(word) and all(distance(plain(word), plain(new)) > SLIPS for new in wording.new):
                    yield f"{word!r} is made of known words"
                elif (
                    (coined := _COINED.match(word))
                    and facts.is_word(coined[1])
                    and all(plain(new).startswith(plain(coined[1])) for new in wording.new)
                ):
                    yield f"{word!r} is made from {coined[1]!r}"
                elif all(map(partial(_is_far, word), wording.new)) and is_near_word(word.casefold()):
                    yield f"another word is nearer to {word!r}"
        before = spelt(self._text[max(self._segment.start, start - _LONG) : start])
        for word, new in product(wording.gone, wording.new):
            if is_gerund_after_to(word, before) and not new.endswith("ing"):
                yield f"{word!r} may follow a preposition"
            if not new.endswith("ing") and is_aside(word, before, self._text[end : self._segment.end]):
                yield "the clause has its verb behind a comma"
            is_note = start <= self._openings.first and is_terse(self._text[start : self._segment.end].rstrip(" .!"))
            if is_note and facts.is_word(word) and are_of_verb(word.lower(), new.lower()):
                yield "a note may begin with either form of a verb"
            is_often = facts.is_document and facts.is_often(word) and not is_joined
            if is_often and _is_short_for(word.lower(), new.lower()):
                yield f"{word!r} may be short for it, and the document has it often"
            if word.endswith("ly") and word.startswith(new) and _PARTICIPLE.match(self._text, end, self._segment.end):
                yield "an adverb stands before a participle"
            if are_varieties(word, new) and facts.is_word(word):
                yield f"{word!r} and {new!r} are spellings of one word"
            if facts.is_document and is_adjective(word) and is_adjective(new):
                yield f"the adjectives {word!r} and {new!r} differ in meaning"
        doubled, still = _doubles(wording.was, ()), _doubles(wording.becomes, ())
        if len(wording.new) > len(wording.gone) and _doubles(wording.becomes, wording.beside) > doubled:
            yield "a word would stand twice"
        if still < doubled and _CLAUSE.search(self._text[max(self._segment.start, end - _LONG) : end]):
            yield "a clause may end with the first of the two words"
        around = self._text[max(self._segment.start, start - _NEAR) : start] + wording.becomes
        if _COMPARED_TWICE.search(around, max(0, len(around) - len(wording.becomes) - 5)) and "more" not in wording.new:
            yield "a comparison does not stand after another"
        if _DIVIDED.search(wording.was) and not _DIVIDED.search(wording.becomes):
            yield "a word is divided at the end of a line"
        if _JOINED.search(self._text, max(0, start - 2), end + 2):
            yield "a mark joins two words, as in data"
        if re.search(r"(?<![\w'’])I (?:and|or)\b", wording.becomes + self._text[end : end + 4]) and "I" in wording.new:
            yield "'I' does not come first"
        if {word.casefold() for word in (*wording.gone, *wording.new)} in _POINTS:
            follows = _NEXT_WORD.match(self._text, end, self._segment.end)
            is_alone = not follows or is_grammar(follows[1])
            if is_alone and _AFTER.search(self._text, max(self._segment.start, start - _NEAR), start):
                yield "what it stands for decides its number"
        yield from self._article(wording, end)
        if any(begin < end and start < until for begin, until in self._subjects):
            yield "the subject is a symbol, or the name of a parameter, a command or an entry"
        if wording.new and not wording.gone and {*ARTICLES, "the"}.issuperset(word.lower() for word in wording.new):
            clause = _CLAUSE_END.search(self._text, end, self._segment.end)
            if is_terse(self._text[self._segment.start : clause.start() if clause else self._segment.end]):
                yield "a label or a note goes without articles"
        if facts.is_document:
            bounds = self._segment.start, self._segment.end
            yield from number.objections(self._text, start, end, bounds, wording)
            whole = self._text[slice(*bounds)].rstrip()
            is_label = is_terse(whole) and not whole.endswith(":") and len(spelt(whole)) <= LABEL_WORDS
            words = (*wording.gone, *wording.new)
            if is_label and words and all(map(is_grammar, words)) and not (doubled > still or is_joined):
                yield "a label goes with other function words than a sentence"
        adds = len(wording.new) > len(wording.gone) and not wording.joins
        if adds and end == self._segment.end and not END.search(wording.was):
            yield "the text may go on after this"
        yield from self._habits(wording, start, end)

    def _is_symbol(self, letter: str, start: int, end: int) -> bool:
        if letter not in "aAiI":
            return True
        if letter in "iI" and self._facts.is_symbol(letter):
            return True
        at = re.search(rf"(?<![\w'’]){letter}(?![\w'’])", self._text[start:end])
        if not at:
            return False
        after = self._text[start + at.end() : min(self._segment.end, start + at.end() + _NEAR)]
        before = self._text[max(self._segment.start, start + at.start() - _NEAR) : start + at.start()]
        return bool(_AFTER_SYMBOL.match(after) or (letter in "iI" and _BEFORE_SYMBOL.search(before)))

    def _article(self, wording: Wording, end: int) -> Iterator[str]:
        for match in re.finditer(r"(?<![\w'’])[Aa]n?(?![\w'’.])", wording.becomes):
            new = match[0].lower()
            if new not in {word.lower() for word in wording.new}:
                continue
            following = wording.becomes[match.end() :] + self._text[end : min(self._segment.end, end + _NEAR)]
            right = article_of(following, self._facts.is_word)
            if _PLURAL.match(following) and len(wording.gone) == len(wording.new):
                yield "no article may be right here"
            if right is not None and right != new:
                yield f"{new!r} does not go with the next word"
            if right is None and len(ARTICLES.intersection(word.lower() for word in wording.gone)) == 1:
                yield "either article may be right here"

    @cached_property
    def _subjects(self) -> Sequence[tuple[int, int]]:
        """Spans of lower-case words that begin a sentence as its subject, with the verb: names that are meant as they
        are."""
        start, end = self._segment.start, self._segment.end
        words = (
            match
            for match in _SUBJECT.finditer(self._text, start, end)
            if not is_grammar(match[1])
            and self._openings.has(match.start())
            and not _GOES_ON.search(self._text, max(0, match.start() - 2), match.start())
        )
        entry = _ENTRY.match(self._text, self._openings.first, end)
        return [
            match.span() for match in (*words, *_SYMBOL_IS.finditer(self._text, start, end), *filter(None, [entry]))
        ]

    def _habits(self, wording: Wording, start: int, end: int) -> Iterator[str]:
        if wording.was[:1].islower() and wording.becomes == wording.was[:1].upper() + wording.was[1:]:
            if start == self._segment.start and self._facts.begins_small:
                yield "the document often begins in lower case"
            if start > self._openings.first and self._text[self._openings.first].islower() and self._facts.care:
                yield "the text itself begins in lower case"
        ends = end == self._segment.end and END.search(wording.becomes) and not END.search(wording.was)
        if ends and self._facts.leaves_open:
            yield "the document leaves other texts without a mark at their end"
        after = self._text[end : min(self._segment.end, end + _NEAR)]
        had, has = (len(_LAST_COMMA.findall(side + after)) for side in (wording.was, wording.becomes))
        if wording.was != wording.becomes and not (wording.gone or wording.new):
            is_list = "," in self._text[max(self._segment.start, start - _LONG) : start]
            if had != has and is_list and self._facts.serial_commas.is_usual in (None, has < had):
                yield "a comma before the last item of a list is a matter of style"
            before = self._text[max(self._segment.start, start - _NEAR) : start]
            if _AFTER_COLON.search(before) and wording.was.casefold() == wording.becomes.casefold():
                yield "a capital after a colon is a matter of style"


def _doubles(text: str, beside: Sequence[str]) -> int:
    """How many words follow an equal one, with the words beside the text."""
    words = [word.casefold() for word in spelt(text)]
    ends = [word.casefold() for word in beside]
    inside = sum(one == two for one, two in pairwise(words))
    return inside + sum(word in (words[:1] + words[-1:]) for word in ends)


def _is_typo(word: str, new: str) -> bool:
    """Whether letters only change places or are doubled: no term looks like a word in that way."""
    a, b = plain(word), plain(new)
    is_doubled = _DOUBLED.sub(r"\1", a) == _DOUBLED.sub(r"\1", b)
    is_doubled &= len(a) > SHORT or len(a) < len(b)  # but "iff"
    return len(a) > 2 and (is_doubled or sorted(a) == sorted(b)) and distance(a, b) <= 1


def _is_far(word: str, new: str) -> bool:
    """Whether more than one letter differs, in words that are no irregular forms and do not sound alike."""
    return distance(plain(word), plain(new)) > 1 and not (are_irregular(word, new) or sounds_like(word, new))


def _is_other(word: str, new: str) -> bool:
    """Whether a word loses an end of two letters and more, as "nodesep", or differs by more letters than slips do."""
    a, b = plain(word), plain(new)
    is_cut = len(a) > len(b) + 1 and (a.startswith(b) or a.endswith(b))
    return is_cut or (distance(a, b) > SLIPS and _is_far(word, new))


def _has_first(word: str, new: str) -> bool:
    """Whether a word is another one with a letter before it ("cspell"), which slips of the fingers seldom are. Function
    words make no such names."""
    return len(new) > SHORT and not is_grammar(new) and plain(word)[1:] == plain(new)


def _is_short_for(word: str, new: str) -> bool:
    """Whether a word is the beginning of another, which is no inflected form of it: "environ", "environment"."""
    return new.startswith(word) and len(new) > len(word) + 2 and not new.endswith("ing")


def _tokens(text: str) -> list[str]:
    """Words as a list may have them: "scikit-learn", "C++", and the parts of these."""
    whole = _TOKEN.findall(text)
    return whole + [part for part in spelt(text) if part not in whole]


def _parts(text: str) -> list[str]:
    return [part for word in spelt(text) for part in (word, *re.split("['’]", word))]
