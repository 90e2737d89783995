"""Function words and irregular word forms of English: which words a correction may exchange for each other."""

from __future__ import annotations

from collections.abc import Sequence

FUNCTION_WORDS = frozenset(
    """
    a about above across after against all along also although am among an and another any anybody anyone anything are
    around as at away back be because been before behind being below beside besides between beyond both but by can
    cannot could despite did do does doing done down due during each either else enough even ever every everybody
    everyone everything few for from had has have having he her here hers herself him himself his how however i if in
    inside instead into is it its itself just less lest like little many may me might mine more most much must my myself
    near neither nobody none nor now of off on once one ones only onto or other others ought our ours ourselves out
    outside over own per quite rather same shall she should since so some somebody someone something still such than
    that the their theirs them themselves then there therefore these they this those though through throughout thus till
    to too toward towards under unless until up upon us very via was we well were what whatever when whenever where
    whereas wherever whether which while whilst who whoever whom whose why will with within without would yet you your
    yours yourself yourselves
    """.split()  # noqa: SIM905
)
"""Articles, pronouns, prepositions, auxiliaries and so on, which a correction may add, drop and exchange. Numbers and
negations are not among them, because they change the meaning."""

NEGATIONS = frozenset(
    "no not n't cannot never nothing nowhere neither nobody noone none nor without hardly".split()  # noqa: SIM905
)

_KINDS = """
a an the this that these those his her its their some any each every all both another other such one|my the|your the
|our the
|about above across after against along among around as at away before behind below beside between beyond by
despite down
during for from in inside into near of off on onto out outside over since than through throughout to toward towards
under
until up upon via with within without
|i me mine myself my|you your yours yourself|we us our ours ourselves|he him his himself she her hers herself it its
itself they them their theirs themselves there who whom whose which that
|be am is are was were been being have has had having do does did done doing
|can could may might must shall should will would
|although and because but how however if or so than that then though thus what when where whereas whether which
while who
why yet
|few little less many more most much several
|anybody anyone anything everybody everyone everything somebody someone something
"""
"""Classes of function words; a word may be exchanged for another one of its class."""


_GROUPS = """
be am is are was were been being 's 're 'm|have has had having 've 'd|do does did done doing|go goes went gone going
|see sees saw seen|say says said tell tells told speak speaks spoke spoken talk talks talked
|buy buys bought|bring brings brought|think thinks thought|teach teaches taught learn learns learned learnt
|catch catches caught|seek sought|fight fought|can could|will would 'll 'd|may might|shall should
|make makes made making do does did done doing|take takes took taken taking|give gives gave given giving
|eat eats ate eaten|fly flies flew flown|draw drew drawn|sell sold|tell told|hold held|stand stood|understand
understood
|find found|leave left|lose lost|lend lent borrow|feel felt|keep kept|sleep slept|mean meant|meet met|lead
led|light lit
|get gets got gotten getting|sit sat|rise rose risen raise raises raised|lie lay lain laid|strike struck|stick stuck
|shine shone|tear tore torn|wear wore worn|swear swore|win won|write wrote written|wake woke woken|freeze froze frozen
|good better best well|bad worse worst badly|far further farther furthest|little less least few fewer|many more
most much
|lot lots|man men|woman women|child children|person people|foot feet|tooth teeth|mouse mice|goose geese|ox oxen
|life live lives alive|die dead died dies death|half halves|wife wives|this these|that those|a an one|i me my mine
|he him his|she her hers|we us our ours|they them their theirs there|its it's|whose who's|you your you're|than then
|analysis analyses|criterion criteria|phenomenon phenomena|hypothesis hypotheses|datum data|medium media
|affect effect|accept except|advice advise|choose choice chose chosen|lose loose|principal principle|quite quiet
|weather whether|passed past|brake break|piece peace|whole hole|right write|here hear|know now|knew new|threw through
|wait weight|weak week|buy by bye|son sun|sea see|hour our|one won|two too to|four for|no know|where were wear we're
|high height|wide width|long length|strong strength|deep depth|true truth|proud pride|hot heat|old elder older eldest
|fast fastly quick quickly|of have|their there they're|a alot|besides beside|lay laid|lot alot|everyday day
|fall falls fell fallen|break breaks broke broken|begin begins began begun|become becomes became|come comes came
|grow grows grew grown|know knows knew known|run runs ran|sing sings sang sung|swim swims swam swum|drink drank drunk
|speak spoke spoken|steal stole stolen|choose chose chosen|drive drove driven|ride rode ridden|forget forgot forgotten
|spend spent|send sent|build built|pay paid|show shown|throw threw thrown|blow blew blown|ring rang rung
|sink sank sunk|bite bit bitten|shake shook shaken|forgive forgave forgiven|sit sat|hear heard|hide hid hidden
"""


_SYNONYMS = [
    frozenset(group.split())
    for group in (
        "anybody anyone", "everybody everyone", "nobody no-one", "somebody someone", "toward towards", "till until",
        "although though", "among amongst", "while whilst", "on upon",
    )
]  # fmt: skip
"""Function words that a writer may choose between: exchanging them corrects nothing."""


def _groups(text: str) -> dict[str, frozenset[int]]:
    table: dict[str, set[int]] = {}
    for number, group in enumerate(text.replace("\n", " ").split("|")):
        for word in group.split():
            table.setdefault(word, set()).add(number)
    return {word: frozenset(numbers) for word, numbers in table.items()}


_FORMS = _groups(_GROUPS)
_MEMBERS = [group.split() for group in _GROUPS.replace("\n", " ").split("|")]
_KIND = _groups(_KINDS)


def are_forms(word: str, other: str) -> bool:
    """Whether two lower-case words are irregular forms of one word, or often confused with each other."""
    return not _FORMS.get(word, frozenset()).isdisjoint(_FORMS.get(other, frozenset()))


def forms_of(word: str) -> frozenset[str]:
    """Return the other irregular forms of a lower-case word ("keep": "kept"), without function words."""
    numbers = frozenset() if word in FUNCTION_WORDS else _FORMS.get(word, frozenset())
    return frozenset(form for number in numbers for form in _MEMBERS[number] if form not in FUNCTION_WORDS) - {word}


def are_of_a_kind(word: str, other: str) -> bool:
    """Whether two lower-case function words are of the same class."""
    return not _KIND.get(word, frozenset()).isdisjoint(_KIND.get(other, frozenset()))


def are_synonyms(gone: Sequence[str], new: Sequence[str]) -> bool:
    """Whether a change only replaces a function word by another one that means the same."""
    return len(gone) == len(new) == 1 and {gone[0].casefold(), new[0].casefold()} in _SYNONYMS
