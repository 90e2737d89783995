"""British and American spellings of English words, so that a query in one finds texts in the other."""

from __future__ import annotations

import re
from functools import cache

# What is spelt in two ways inside words: a pattern for what stands before it, the two spellings, and what follows.
_RULES = (
    (r"[a-z]*[aeiou][a-z]*", "our", "or", "[a-z]*"),  # colour, not "hour"
    (r"[a-z]{3,}", "is", "iz", r"(?:e|e[dsr]|ers|ing|ation|ations|able|ational)"),
    (r"[a-z]+l", "ys", "yz", r"(?:e|e[dsr]|ers|ing|able)"),
    (r"[a-z]+[bt]", "re", "er", r"(?:s|d)?"),
    (r"[a-z]+en", "c", "s", r"(?:e|e[dse]|ees|ing|eless)"),
    (r"[a-z]*[aeiou][a-z]*[aeiou]", "ll", "l", r"(?:ed|ing|ings|ers?|ors?|ation|ations|able|ful|ments?|ous|en)"),
    (r"[a-z]{2,}[ao]l?o?g", "ue", "", r"s?"),
    (r"[a-z]+dg", "e", "", r"ments?(?:al)?"),
)
_PAIRS = """
grey gray|greys grays|tyre tire|tyres tires|programme program|programmes programs|cheque check|cheques checks
|plough plow|ploughs plows|ploughed plowed|ploughing plowing|mould mold|moulds molds|moulded molded|mouldy moldy
|moustache mustache|moustaches mustaches|kerb curb|kerbs curbs|aluminium aluminum|sulphur sulfur|sulphate sulfate
|jewellery jewelry|jeweller jeweler|pyjamas pajamas|sceptic skeptic|sceptics skeptics|sceptical skeptical
|draught draft|draughts drafts|ageing aging|whisky whiskey|cosy cozy|axe ax|doughnut donut|doughnuts donuts
|maths math|artefact artifact|artefacts artifacts|disc disk|discs disks|enquiry inquiry|enquiries inquiries
|enquire inquire|speciality specialty|specialities specialties|smoulder smolder|storey story|storeys stories
|manoeuvre maneuver|manoeuvres maneuvers|paediatric pediatric|paediatrician pediatrician|foetus fetus|foetal fetal
|encyclopaedia encyclopedia|anaesthetic anesthetic|anaesthesia anesthesia|anaemia anemia|diarrhoea diarrhea
|haemoglobin hemoglobin|haemorrhage hemorrhage|leukaemia leukemia|oestrogen estrogen|oesophagus esophagus
|archaeology archeology|archaeological archeological|mediaeval medieval|orthopaedic orthopedic|gynaecology gynecology
|practice practise|practices practises|fulfil fulfill|fulfils fulfills|enrol enroll|enrols enrolls|distil distill
|instil instill|burnt burned|learnt learned|spelt spelled|dreamt dreamed|leapt leaped|spoilt spoiled|spilt spilled
|skilful skillful|wilful willful
|tonne ton|tonnes tons|furore furor|vice vise|yoghurt yogurt|omelette omelet|chilli chili|carat karat
"""


@cache
def _pairs() -> dict[str, str]:
    pairs = [pair.split() for pair in _PAIRS.replace("\n", " ").split("|")]
    return {word: other for pair in pairs for word, other in (pair, pair[::-1])}


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    both = [(rule, *ways) for rule in _RULES for ways in ((rule[1], rule[2]), (rule[2], rule[1]))]
    return [(re.compile(f"({before}){old}({after})"), rf"\g<1>{new}\g<2>") for (before, _, _, after), old, new in both]


def spellings(word: str) -> list[str]:
    """Return how else a lower-case word may be spelt: "colour" for "color". A rule may return what is no word, which
    no text holds."""
    if not word.isascii() or not word.isalpha() or len(word) > 30:
        return []
    others = [other for other in (_pairs().get(word),) if other]
    for pattern, other in _patterns():
        if pattern.fullmatch(word):
            others.append(pattern.sub(other, word))
    return list(dict.fromkeys(others))
