"""Set phrases: those of Latin, French and Italian, whose words are no misspellings of English ones, and prepositions of
several words, which models know too well."""

from __future__ import annotations

import re

_PHRASES = (
    "a fortiori, a posteriori, a priori, ab initio, ab ovo, ad absurdum, ad hoc, ad hominem, ad infinitum, ad "
    "libitum, ad nauseam, ad valorem, al dente, al fresco, alma mater, alter ego, anno domini, ante bellum, ante "
    "meridiem, au contraire, au courant, au fait, au gratin, au naturel, au pair, aurora borealis, belles lettres, "
    "bête noire, bona fide, bona fides, bon mot, bon vivant, bon voyage, bric a brac, camera obscura, carpe diem, "
    "carte blanche, casus belli, cause célèbre, caveat emptor, ceteris paribus, cogito ergo sum, comme il faut, "
    "compos mentis, cordon bleu, corpus delicti, coup de grâce, coup de théâtre, coup d'état, crème brûlée, crème "
    "de la crème, cri de coeur, cui bono, cul de sac, cum laude, curriculum vitae, de facto, de gustibus, de iure, "
    "de jure, de novo, de profundis, de rigueur, déjà vu, deus ex machina, dolce far niente, dolce vita, double "
    "entendre, dramatis personae, en bloc, en famille, en masse, en passant, en plein air, en route, enfant "
    "terrible, ergo propter hoc, esprit de corps, et alia, et alii, et cetera, et seq, et tu, ex ante, ex cathedra, "
    "ex gratia, ex libris, ex machina, ex nihilo, ex officio, ex parte, ex post, ex situ, ex tempore, ex vivo, "
    "exempli gratia, fait accompli, faux pas, femme fatale, film noir, fin de siècle, fleur de lis, folie à deux, "
    "grand mal, grosso modo, habeas corpus, haute couture, haute cuisine, honoris causa, hors de combat, hors "
    "d'oeuvre, idée fixe, id est, in absentia, in camera, in extenso, in extremis, in flagrante delicto, in loco "
    "parentis, in medias res, in memoriam, in silico, in situ, in statu nascendi, in toto, in utero, in vacuo, in "
    "vino veritas, in vitro, in vivo, infra dig, inter alia, ipso facto, je ne sais quoi, joie de vivre, laissez "
    "faire, lapsus linguae, lèse majesté, lingua franca, locum tenens, locus classicus, magna cum laude, magnum "
    "opus, mano a mano, mea culpa, memento mori, ménage à trois, mirabile dictu, modus operandi, modus vivendi, "
    "multum in parvo, mutatis mutandis, ne plus ultra, nihil obstat, noblesse oblige, nolens volens, nolle "
    "prosequi, nom de guerre, nom de plume, non compos mentis, non grata, non obstante, non sequitur, nota bene, "
    "nouveau riche, nouvelle cuisine, obiter dictum, objet d'art, omnia vincit amor, par avion, par excellence, "
    "pari passu, pax americana, pax britannica, pax romana, per annum, per capita, per centum, per contra, per "
    "diem, per se, persona grata, persona non grata, petit mal, pièce de résistance, pied à terre, plus ultra, post "
    "bellum, post hoc, post meridiem, post mortem, prima facie, prima donna, primus inter pares, pro bono, pro "
    "forma, pro rata, pro tempore, quid pro quo, quod erat demonstrandum, quo vadis, raison d'être, rara avis, "
    "reductio ad absurdum, res gestae, res ipsa loquitur, res judicata, res publica, rigor mortis, roman à clef, "
    "salle à manger, sang froid, savoir faire, savoir vivre, semper fidelis, semper fi, sine anno, sine die, sine "
    "loco, sine qua non, soi disant, sotto voce, stare decisis, status quo, sub judice, sub rosa, sub specie, sub "
    "voce, sui generis, sui juris, sursum corda, tabula rasa, tempus fugit, terra firma, terra incognita, terra "
    "nova, tête à tête, tour de force, trompe l'oeil, ultra vires, vade mecum, vae victis, veni vidi vici, verbum "
    "sapienti, vice versa, vis à vis, vis inertiae, viva voce, volte face, vox populi"
)
_BARE = str.maketrans("àâäçéèêëîïôöùûü", "aaaceeeeiioouuu")  # many write the French ones without accents


def _alternatives() -> str:
    names = _PHRASES.split(", ")
    written = sorted({form for name in names for form in (name, name.translate(_BARE))}, key=len, reverse=True)
    return "|".join(re.escape(name).replace(r"\ ", r"[\s-]+").replace("'", "['’]") for name in written)


_SET = re.compile(rf"(?<!\w)(?:{_alternatives()})(?!\w)", re.IGNORECASE)
_NOUN = re.compile(
    r"(?<![\w'’-])(at|by|for|in|on|with) (?:cases?|costs?|directions?|fields?|forms?|groups?|light|lines?|means|names?|"
    r"parts?|places?|positions?|processes|ranges?|sorts|spaces?|states?|terms|top|types|values|views?)\s+\Z",
    re.IGNORECASE,
)
_LONGEST = 40  # characters of a phrase, with a line's end and its indentation


def lost_phrase(text: str, start: int, end: int, becomes: str) -> str | None:
    """Return the set phrase of another language that a text loses if a span of it becomes another one, else None."""
    first, last = max(0, start - _LONGEST), min(len(text), end + _LONGEST)
    after = {*map(_plain, _SET.findall(f"{text[first:start]}{becomes}{text[end:last]}"))}
    return next((phrase for phrase in _SET.findall(text, first, last) if _plain(phrase) not in after), None)


def made_preposition(text: str, start: int, becomes: str) -> str | None:
    """Return the preposition of several words that a text gets ("in terms of") if a preposition which stands twice
    becomes "of" behind a noun that may stand for itself: "in terms in notations"."""
    before = _NOUN.search(text, max(0, start - _LONGEST), start)
    twice = before and re.match(rf"{before[1]}(?!\w)", text[start:], re.IGNORECASE)
    return f"{before[0].strip()} of" if before and twice and becomes == "of" else None


def _plain(phrase: str) -> str:
    return " ".join(re.split(r"[\s-]+", phrase.casefold()))
