"""Identifies the language of a text by its script and words, so that a model only corrects its own."""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import cache

from .vocabulary import is_english, spelt

ANY = "any"
MIN_FUNCTION_WORDS = 2
"""Least number of function words to identify a language, and least lead over the next one; with twice as many words, a
lead of one less is enough."""

MIN_WORDS = 2
"""From this many non-English words on, a text may be in another language; from as many known ones, English."""

_WORDS = {
    "en": "the and of to is was are were with that this for have has not you he she they we it be been which would my",
    "de": "der die das und ist nicht ein eine einen ich wir sie mit auf für von zu den dem auch sich werden wird es",
    "fr": "le la les et est une des pas que qui dans pour avec sur nous vous je il elle ce cette sont du au être",
    "es": "el la los las y es una que de en por con para no se del al como más pero su sus está muy lo",
    "it": "il lo la gli le e è una che di in per con non si del della sono come più anche ma questo nella ho",
    "pt": "o os as e é uma que de em por com para não se do da dos das como mais mas ao foi está muito",
    "nl": "de het een en is niet van ik je wij zij met op voor dat die zijn aan ook naar maar was bij er heeft",
    "sv": "och är att det en ett som på inte jag vi med för av den till har om men var från kan ska mycket",
    "da": "og er at det en et som på ikke jeg vi med for af den til har om men var fra kan skal meget",
    "no": "og er å det en et som på ikke jeg vi med for av den til har om men var fra kan skal mye",
    "fi": "ja on ei se että hän minä oli mutta ovat kun niin tai myös joka mitä tämä ole sen olen kuin vain",
    "pl": "i jest nie się na w z do że to jak ale co po tak od przez już jestem są ma tym ten",
    "cs": "a je se na v že to jsem s do by ale jako tak pro po si jsou z když není byl ten také",
    "hu": "a az és nem hogy egy van is meg de volt ez már csak mint ha el még kell vagy mert lesz nagyon",
    "ro": "și este nu o un în la cu pe că de sunt din mai pentru care ce dar a au fost sau foarte lui",
    "tr": "ve bir bu da de için ile çok ne değil var mi gibi daha ben sen o ama olarak kadar sonra her en",
    "id": "dan yang di ini itu tidak dengan untuk dari saya kami ada akan pada juga ke adalah bisa sudah mereka",
    "ru": "и в не на что он она я с это как но по из у за то мы вы они был была все так",
    "uk": "і в не на що він вона я з це як але по із у за то ми ви вони був була та є",
    "bg": "и в не на че той тя аз с това как но по от за се ще сме са беше да е",
    "el": "και το η ο να του της τα είναι με για δεν που από στο στην μια ένα θα τον την οι",
    "vi": "và là của có không được cho một những các người trong này với đã để khi tôi anh như",
}
_LETTERS = {
    "de": "äöüß", "fr": "èêœ", "es": "ñ¿¡", "pt": "ãõ", "sv": "åä", "da": "æø", "no": "æø", "fi": "äö", "pl": "ąęłśżźć",
    "cs": "ěřůčž", "hu": "őű", "ro": "țșă", "tr": "ğışç", "vi": "ạảấầẩậắặẻẽếềểệịọốồổộớờởợụủứừửựỳỵỷđơư", "ru": "ыэё",
    "uk": "іїєґ", "bg": "ъщ", "fa": "پچژگ", "ar": "ةىإأ",
}  # fmt: skip
"""Letters that few other languages have; a word with one counts as a function word."""
_LISTS = {name: frozenset(words.split()) for name, words in _WORDS.items()}
_BY_SCRIPT = {
    "ARABIC": ("ar", "fa"),
    "HEBREW": ("he",),
    "DEVANAGARI": ("hi",),
    "BENGALI": ("bn",),
    "TAMIL": ("ta",),
    "THAI": ("th",),
    "HANGUL": ("ko",),
    "HIRAGANA": ("ja",),
    "KATAKANA": ("ja",),
    "CJK": ("zh", "ja"),
    "GEORGIAN": ("ka",),
    "ARMENIAN": ("hy",),
    "GREEK": ("el",),
    "CYRILLIC": ("ru", "uk", "bg"),
}
# English words that are also common in other languages, and so are no evidence.
_SHARED = frozenset(
    """
    a al alle also am an angst as at auf avec bad bald be bei ben best bin bis but con da dan dans dare das day de del
    dem den der des dice die do donde du e eine el elle elles en er es est et far fast for four gas gift gut hat haben
    have he her hier hoy i in information international is it la las le les liver lo los man mais mal mar mare me met
    mi min mind mis mit more muss my nah name national no non not nun o of on one or pain pan pane par pas per plus
    pour pro qui rat red rot sa sale si sin so solo son sous sur tag tags tot tu ton un una und uno van vice via war
    was we weg week welt wen wert wie wild will wo ya zoo zu
    """.split()  # noqa: SIM905
) - frozenset("and four have he her my of the was we with".split())  # noqa: SIM905

LANGUAGES = tuple(sorted({*_LISTS, *(name for names in _BY_SCRIPT.values() for name in names)}))
"""Codes of the languages that can be identified (ISO 639-1)."""


def looks_english(text: str) -> bool | None:
    """Whether a text is English; None if its words do not tell."""
    latin = other = 0
    for char, times in Counter(text).items():
        if char.isalpha():
            if script(char) == "LATIN":
                latin += times
            else:
                other += times
    if other > latin:
        return False
    known = strange = names = 0
    for piece, times in Counter(text.split()).items():
        word, *more = spelt(piece) or [""]
        if more or not word[:1].isalpha() or (small := word.lower()) in _SHARED:
            continue  # addresses, numbers, code, and words that several languages share
        if len(small) == 1:
            continue
        if is_english(word):
            known += times
        elif word[0].isupper():
            names += times
        else:
            strange += times
    if strange >= MIN_WORDS and strange > known:
        return False
    if not known and strange + names >= MIN_WORDS:
        return False
    return True if known >= MIN_WORDS and known > strange else None


def language_of(text: str) -> str | None:
    """Return the code of the language of a text; None if undecided."""
    scripts = Counter(script(char) for char in text if char.isalpha())
    if not scripts:
        return None
    (most, count), *_ = scripts.most_common(1)
    if scripts["HIRAGANA"] + scripts["KATAKANA"] > count // 4:
        return "ja"
    if most == "CJK":
        return "zh"
    written = _BY_SCRIPT.get(most)
    if most != "LATIN" and len(written or ()) == 1:
        return (written or ("",))[0]
    among = written or _LISTS
    words = {word.casefold() for word in spelt(text)}  # repetitions are no further evidence
    counts = Counter({name: sum(_is_evidence(name, word) for word in words) for name in among})
    (best, hits), *others = counts.most_common(2)
    ahead = hits - (others[0][1] if others else 0)
    is_clear = ahead >= MIN_FUNCTION_WORDS - (hits >= 2 * MIN_FUNCTION_WORDS)
    return best if hits >= MIN_FUNCTION_WORDS and is_clear else None


def _is_evidence(language: str, word: str) -> bool:
    return word in _LISTS.get(language, ()) or not set(_LETTERS.get(language, "")).isdisjoint(word)


def is_other(text: str, language: str) -> bool:
    """Whether a short text is in another language, whichever that is: it has common words of one, more than of its own,
    of which each is one that several share."""
    words = {word.casefold() for word in spelt(text) if len(word) > 1}
    own = [word for word in words if _is_evidence(language, word)]
    if not _SHARED.issuperset(own):
        return False
    most = max(sum(_is_evidence(name, word) for word in words) for name in _LISTS)
    return most >= MIN_FUNCTION_WORDS and most > len(own)


def is_in(text: str, language: str) -> bool | None:
    """Whether a text is in a language; None if undecided."""
    if language == "en":
        verdict = looks_english(text)
        if verdict is not None:
            return verdict
    other = language_of(text)
    if other is not None:
        return other == language
    letters = Counter(script(char) for char in text if char.isalpha())
    if not letters:
        return None
    ours = {name for name, codes in _BY_SCRIPT.items() if language in codes} or {"LATIN"}
    return None if sum(letters[name] for name in ours) * 2 >= letters.total() else False


def check_language(language: str) -> str:
    """Return `language`. Raises ValueError for an unknown code."""
    if language != ANY and language not in LANGUAGES:
        raise ValueError(f"language={language!r} is not known: one of {', '.join(LANGUAGES)}, or {ANY!r} for no check")
    return language


@cache
def script(char: str) -> str:
    """Return the script of a letter, from its Unicode name."""
    name = unicodedata.name(char, "").partition(" ")[0]
    return "LATIN" if name in ("FULLWIDTH", "MODIFIER", "FEMININE", "MASCULINE", "MICRO") else name
