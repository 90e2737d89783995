"""The two varieties of English spelling: neither is a mistake of the other."""

from __future__ import annotations

import re

_PAIRS = dict(
    pair.split("/")
    for pair in """
    acknowledgement/acknowledgment ageing/aging aluminium/aluminum artefact/artifact cosy/cozy disc/disk draught/draft
    enquiry/inquiry grey/gray jewellery/jewelry judgement/judgment kerb/curb manoeuvre/maneuver maths/math mould/mold
    moustache/mustache orientated/oriented plough/plow programme/program pyjamas/pajamas sceptic/skeptic
    sceptical/skeptical storey/story tyre/tire fulfil/fulfill enrol/enroll instalment/installment skilful/skillful
    wilful/willful learnt/learned dreamt/dreamed burnt/burned spelt/spelled spoilt/spoiled leapt/leaped leant/leaned
    smelt/smelled gotten/got whilst/while amongst/among afterwards/afterward backwards/backward forwards/forward
    upwards/upward downwards/downward catalyse/catalyze paralyse/paralyze analyse/analyze cheque/check
    """.split()  # noqa: SIM905
)
_RULES = tuple(
    (re.compile(pattern), to)
    for pattern, to in (
        (r"(?<=\w{3})our(?=\w*\Z)", "or"),  # colour, but not four
        (r"(?<=\w{3})is(?=(?:e[sdr]?|ers|ing|ations?|able)\Z)", "iz"),  # organise
        (r"(?<=\w{2}y)s(?=(?:e[sdr]?|ers|ing)\Z)", "z"),  # analyse
        (r"(?<=[aeiou][bt])re(?=[sd]?\Z)|(?<=ib)re(?=[sd]?\Z)|(?<=nt)re(?=[sd]?\Z)", "er"),  # metre, fibre, centre
        (r"(?<=defen|offen|licen|reten)c(?=e)|(?<=practi)c(?=e)", "s"),
        (r"(?<=\w[aeiou][^aeiou][aeou])([lpst])\1(?=(?:ed|es|ing|ers?|ors?|ous|ist)\Z)", r"\1"),  # travelled, focusses
        (r"(?<=\w{2}og)ue(?=s?\Z)", ""),  # catalogue
        (r"(?<=\w)ae(?=\w{3})|\Aae(?=\w{4})|\b[fo]e(?=st|tus)", "e"),  # anaemia
    )
)


def are_varieties(word: str, other: str) -> bool:
    """Whether two different words are the British and the American spelling of one."""
    a, b = word.casefold(), other.casefold()
    return a != b and _plain(a) == _plain(b)


def _plain(word: str) -> str:
    word = _PAIRS.get(word, word)
    for pattern, to in _RULES:
        word = pattern.sub(to, word)
    return word
