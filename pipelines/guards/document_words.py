"""What a document and its project tell of their words: terms, names, symbols, habits, and the language."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from copyspec.common.lists import Lists
from copyspec.common.lockless import cached_property

from ..documents import Part
from .articles import article_of
from .function_words import FUNCTION_WORDS
from .languages import ANY, is_in
from .misspellings import is_near_word
from .sentencehood import END, lacks_end
from .serial_commas import SerialCommas
from .vocabulary import ENDING, is_english, is_rare, spelt

_LISTS = Lists(__file__)

DOCUMENT_CHARS = 1 << 20
"""Characters of a document that are read for this, before its first sentence is judged. Later ones do not count, so
that a file gets the same corrections however far it is read ahead."""

OFTEN = 3
"""A word with this many occurrences in a document is not a slip."""

REPEATED = 2
"""An unknown word with this many occurrences is a term, and a capital with as many inside sentences that of a name."""

MOST_CARE = 2.4  # nats: mistakes are an eleventh of what they are in sentences that somebody wants corrected

FEW_SENTENCES = 2  # so many, or so few texts, tell nothing about a writer's care
SENTENCE_WORDS = 60  # a list has as many words for each full stop that it lacks
EDITED = 0.85  # nats: documents are mostly texts that were read again
FLAWLESS = 1.15  # nats, in addition: so are nearly all that seem to have no slip
MOST_SLIPS = 300  # unknown words that are looked at, a tenth of a millisecond each

ENDING_CHARS = 400  # of a text that are looked at to tell whether it lacks its end

LANGUAGE_PARTS = 100  # parts from which the document's language is determined
LANGUAGE_CHARS = 500  # first characters of each

_INSIDE = re.compile(r"(?<=[a-z,;] )[A-Z][\w'’]+")  # a capital that no sentence begins with
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_TAG = re.compile(r"<[^<>]*>")
_SYMBOL = re.compile(r"(?:^|(?<=[\s`$(\[{,=+*/<>-]))[A-Za-z](?=[\s`$)\]},;:=+*/<>^_-]|$)")
_SYMBOL_IN_PROSE = re.compile(
    r"(?<![\w'’.-])[A-Za-z](?=\s*[=<>≤≥∈^]|, [b-hj-z]\b| and [b-hj-z]\b| is the\b|-?th\b)|(?<=\b[b-hj-z] and )i\b"
)
_FORMS = ("", "s", "es", "d", "ed", "ing", "er", "ers")
_BEFORE_KNOWN = _LISTS.pattern("before_known", 0)
_PLAIN_SLIP = _LISTS.pattern("plain_slip")
_ARTICLE = re.compile(r"(?<![\w'’.-])([Aa]n?) ([a-z]+)(?![\w'’.-])")
_SLIP_LETTERS = range(5, 25)  # shorter words are often abbreviations, longer ones data
_SENTENCE = re.compile(r"[.!?](?=\s|\Z)")
_LONGEST = 40  # letters of a word; longer ones are data
_SHORTEST = 3  # letters of each half of a compound


class DocumentWords:
    """The words and the language of one document, with the words of its project."""

    def __init__(self, parts: Iterable[Part] = (), own: Sequence[str] = (), language: str = "en") -> None:
        """`own`: words of the project; `language`: of the model."""
        self._own = _entries(tuple(own))
        self._prose = Counter[str]()  # words of the prose as written
        self._inside = Counter[str]()  # of these, words with a capital inside a sentence
        self._marked = set[str]()  # words and names outside of the prose: code, links, attributes, tags
        self._symbols = set[str]()  # single letters there, and in "i = 1"
        self.serial_commas = SerialCommas()
        self._votes: dict[str, list[bool]] = {name: [] for name in {"en", language} - {ANY}}
        self._openings = Counter[bool]()  # segments that begin in lower case, and others
        self._texts = self._sentences = self._plain_slips = self._open = self._ended = 0
        self._is_inside = False  # text of a file that is more than text
        left = DOCUMENT_CHARS
        for part in parts:
            self._read(part, left)
            left -= len(part.text)
            if left <= 0:
                break

    def _read(self, part: Part, most: int) -> None:
        prose, rest = (" ".join(pieces)[:most] for pieces in _divided(part))
        self._prose.update(spelt(prose))
        self._inside.update(_INSIDE.findall(prose))
        self._marked.update(_IDENTIFIER.findall(rest))
        self._symbols.update(_SYMBOL.findall(_TAG.sub(" ", rest)), _SYMBOL_IN_PROSE.findall(prose))
        self.serial_commas.read(prose)
        first = (
            next(filter(str.isalpha, part.text[segment.start : segment.end]), "")
            for segment in part.segments
            if segment.begins or segment.ends
        )
        self._openings.update(letter.islower() for letter in first if letter)
        self._texts += len(part.segments) + len(_tracked(part))
        self._is_inside |= not part.is_verbatim
        ends = (
            part.text[max(segment.start, segment.end - ENDING_CHARS) : segment.end]
            for segment in part.segments
            if segment.ends
        )
        for text in ends:
            self._open += lacks_end(text)
            self._ended += bool(END.search(text))
        self._plain_slips += plain_slips(prose)
        self._plain_slips += sum(
            article_of(word, self.is_word) not in (None, article.lower())
            for article, word in _ARTICLE.findall(prose)
            if word not in FUNCTION_WORDS
        )
        self._sentences += len(_SENTENCE.findall(prose))
        for language, votes in self._votes.items():
            if len(votes) < LANGUAGE_PARTS and (verdict := is_in(part.text[:LANGUAGE_CHARS], language)) is not None:
                votes.append(verdict)

    def is_own(self, word: str) -> bool:
        """Whether the project lists a word, or one that it is a form of. Entries with capitals that are English words
        without them ("Go") count as written only."""
        stem = ENDING.sub("", word)
        return any(base in self._own or base.casefold() in self._own for base in {word, *_bases(stem)})

    def knows(self, word: str) -> bool:
        """Whether `word` is in the word list, of the project, or in the document."""
        stem = ENDING.sub("", word)
        return is_english(word) or any(self._has(form) or form.casefold() in self._own for form in (word, stem))

    def is_word(self, word: str) -> bool:
        """Whether `word` is in a word list or of the project. Words of the document may be misspelt."""
        return is_english(word) or self.is_own(word) or is_rare(word)

    def count(self, word: str) -> int:
        """Occurrences of a word in the prose, in any case."""
        return sum(self._prose[case] for case in _cases(word))

    def is_often(self, word: str) -> bool:
        """Whether the prose has a word OFTEN, so that it is intended."""
        return self.count(word) >= OFTEN

    def is_symbol(self, letter: str) -> bool:
        """Whether code or formulas have this letter, or the prose uses it as they do."""
        return letter in self._symbols

    def is_marked(self, word: str) -> bool:
        """Whether code, a link, an attribute or a tag has this word."""
        return word in self._marked

    def is_name(self, word: str) -> bool:
        """Whether a word has its capital inside sentences, too."""
        stem = ENDING.sub("", word)
        times = self._inside[stem] + (self._inside[word] if word != stem else 0)
        least = REPEATED if is_english(stem.lower()) else 1
        return times >= least and times > self._prose[stem.lower()]

    def term(self, word: str) -> str | None:
        """Why a word that is in no word list is no misspelling; None if nothing says so. Wrong forms of known words
        ("goed") may be repeated, too."""
        stem = ENDING.sub("", word)
        if any(map(is_english, _bases(stem.casefold()))):
            return None
        bases = {stem, *(stem.removesuffix(ending) for ending in ("s", "es") if len(stem) > 4)}
        times = sum(self.count(base + ending) for base in bases for ending in ("", "'s", "’s"))
        times += self.count(f"{stem}s")
        if times >= REPEATED:
            return f"the document has it {times} times"
        if any(case in self._marked for base in bases for case in _cases(base)):
            return "the document has it in code or markup"
        return None

    @property
    def begins_small(self) -> bool:
        """Whether the document has a habit of beginning paragraphs, items or comments in lower case."""
        small = self._openings[True]
        return small > REPEATED and 2 * small >= self._openings.total()

    @property
    def leaves_open(self) -> bool:
        """Whether sentences at the end of a text go without their mark: more than one, or one where hardly any other
        text ends with one."""
        return self._open > 1 or (self._amount > FEW_SENTENCES and self._ended < REPEATED)

    @property
    def is_document(self) -> bool:
        """Whether this is more than a few plain sentences: code, markup and files of word processors are written with
        care, however little prose is in them, and so are long lists."""
        return self._amount > FEW_SENTENCES or bool(self._marked) or self._is_inside

    @property
    def _amount(self) -> int:
        """Its sentences, its texts, or as many sentences as its words would make."""
        return max(self._sentences, self._texts, self._prose.total() // SENTENCE_WORDS)

    @cached_property
    def care(self) -> float:
        """How much rarer than in a single sentence mistakes are to be expected, as a logarithm: a document with many
        sentences and few slips is that of a careful writer."""
        once = [word for word, times in self._prose.items() if times == 1 and _may_be_slip(word)]
        looked_at = once[:MOST_SLIPS]
        share = sum(is_near_word(word) and not self.term(word) for word in looked_at) / max(1, len(looked_at))
        slips = share * len(once) + 6 * self._plain_slips  # which no technical term looks like
        known = slips / 2 + 1
        care = math.log(max(1.0, self._sentences / FEW_SENTENCES / known))
        return min(MOST_CARE, care + (EDITED + FLAWLESS / known) * self.is_document)

    def is_in(self, language: str) -> bool:
        """Whether most of the document is in a language; True if undecided."""
        votes = self._votes.get(language, ())
        return 2 * sum(votes) >= len(votes)

    def about(self, word: str) -> str:
        """What is known of a word, for people."""
        known = "of the project" if self.is_own(word) else "in a word list" if self.is_word(word) else "in no word list"
        marked = ", in code or markup" * self.is_marked(word)
        name = ", a name" * self.is_name(word)
        return f"{word!r}: {known}, {self.count(word)} times in the document{marked}{name}"

    def _has(self, word: str) -> bool:
        return any(case in self._prose or case in self._marked for case in _cases(word))


def beginning(parts: Iterator[Part]) -> list[Part]:
    """Take the parts from an iterator that tell of a document."""
    taken, size = list[Part](), 0
    for part in parts:
        taken.append(part)
        size += len(part.text)
        if size >= DOCUMENT_CHARS:
            break
    return taken


def _may_be_slip(word: str) -> bool:
    is_usual = len(word) in _SLIP_LETTERS and word.islower() and word.isascii()
    return is_usual and not (is_english(word) or is_rare(word))


def plain_slips(text: str) -> int:
    """Count the pairs of words that are wrong in any text."""
    return len(_PLAIN_SLIP.findall(text))


@lru_cache(maxsize=1024)
def is_compound(word: str) -> bool:
    """Whether a word is made of known ones: "failover", "subpages"."""
    small = word.casefold()
    if len(small) > _LONGEST:
        return False
    if (prefix := _BEFORE_KNOWN.match(small)) and is_english(small[prefix.end() :]):
        return True
    cuts = range(_SHORTEST, len(small) - _SHORTEST + 1)
    return any(is_english(small[:cut]) and is_english(small[cut:]) for cut in cuts)


@lru_cache(maxsize=8)
def _entries(own: tuple[str, ...]) -> frozenset[str]:
    small = (word for word in own if word.islower() or not is_english(word.lower()))
    return frozenset(own) | {word.casefold() for word in small}


def _cases(word: str) -> set[str]:
    return {word, word.casefold(), word.capitalize(), word.upper()}


def _bases(word: str) -> Iterator[str]:
    """A word, and what it may be a regular form of."""
    for ending in _FORMS:
        if word.endswith(ending) and len(word) > len(ending) + 1:
            base = word.removesuffix(ending)
            yield base
            if ending in ("ed", "ing", "er", "ers"):
                yield f"{base}e"
    if word.endswith("ies"):
        yield f"{word[:-3]}y"


def _tracked(part: Part) -> list[tuple[int, int]]:
    """Paragraphs with tracked changes: nobody may correct them now, but they are of the document as before."""
    return [refusal.span for refusal in part.refused if refusal.reason == "tracked" and refusal.span is not None]


def _divided(part: Part) -> tuple[list[str], list[str]]:
    """The prose of a part, and the rest of it: code, markup."""
    prose, rest, at = list[str](), list[str](), 0
    spans = [(segment.start, segment.end, segment.protected) for segment in part.segments]
    for first, last, protected in sorted([*spans, *((*span, ()) for span in _tracked(part))]):
        rest.append(part.text[at:first])
        at = first
        for start, end in protected:
            prose.append(part.text[at : max(at, start)])
            rest.append(part.text[max(at, start) : end])
            at = max(at, end)
        prose.append(part.text[at:last])
        at = last
    rest.append(part.text[at:])
    return prose, rest
