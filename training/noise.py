"""Inserts mistakes into correct text, each of a kind that can be undone from the wrong text alone.

A :class:`Noise` proposes edits of a word list (:mod:`training.edits`) and has a rule that undoes its kind of mistake
without seeing the original (:mod:`training.rules`). An edit is used only if the rule restores the original, so that the
model never has to guess: what it cannot know (a deleted adverb, a changed tense) never becomes a target. Kinds without
such a rule (:data:`OPEN_NOISES`) are for models that already know English and can infer the right word from the
rest of the sentence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from training import edits, open_edits, rules, verb_edits
from training.edits import Put
from training.lexicon import Lexicon
from training.rules import Rule, Words
from training.tables import MISSPELLINGS, WRONG_FORMS


@dataclass(frozen=True)
class Noise:
    """One kind of mistake: how to insert it at a position, and the rule that undoes it."""

    name: str
    weight: float  # how often it is tried, relative to the others
    put: Put
    undo: Rule | None  # None: only a model that knows the language can tell, from the sentence
    width: int = 1  # words replaced

    def apply(self, words: Words, lexicon: Lexicon, rng: random.Random) -> Words | None:
        """Insert one more such mistake that :attr:`undo` repairs exactly; None if there is no place for it."""
        target = self.undo(words, lexicon) if self.undo is not None else None
        positions = list(range(len(words)))
        rng.shuffle(positions)
        tries = 0
        for i in positions:
            new = self.put(words, i, lexicon, rng)
            if new is None or new == words[i : i + self.width]:
                continue
            wrong = [*words[:i], *new, *words[i + self.width :]]
            tries += 1
            if wrong and wrong != words and (self.undo is None or self.undo(wrong, lexicon) == target):
                return wrong
            if tries == 6:
                break
        return None


NOISES: tuple[Noise, ...] = (
    Noise("spelling_common", 3.0, edits.put_table(MISSPELLINGS), rules.each_word(rules.fix_table(rules.MISSPELLED_TO))),
    Noise("spelling_typo", 3.5, edits.put_typo, rules.each_word(rules.fix_typo)),
    Noise("wrong_form", 1.0, edits.put_table(WRONG_FORMS), rules.each_word(rules.fix_table(rules.WRONG_TO))),
    Noise("agreement", 2.0, edits.put_agreement, rules.each_word(rules.fix_agreement)),
    Noise("number", 1.5, edits.put_number, rules.each_word(rules.fix_number)),
    Noise("verb_form", 1.5, edits.put_form, rules.each_word(rules.fix_base)),
    Noise("participle", 0.7, edits.put_base, rules.each_word(rules.fix_participle)),
    Noise("a_an", 0.8, edits.put_article_sound, rules.each_word(rules.fix_article_sound)),
    Noise("word_choice", 3.5, edits.put_slot, rules.undo_slots),
    Noise("word_extra", 1.2, edits.put_extra, rules.undo_slots),
    Noise("doubled", 1.0, edits.put_double, rules.undo_doubled),
    Noise("capital", 1.5, edits.put_case, rules.undo_capitals),
    Noise("full_stop", 1.2, edits.put_no_stop, rules.undo_full_stop),
    Noise("comma", 1.2, edits.put_no_comma, rules.undo_comma),
    Noise("comma_space", 0.3, edits.put_no_space, rules.undo_comma),
    Noise("joined", 0.6, edits.put_join, rules.undo_join, width=2),
)
OPEN_NOISES: tuple[Noise, ...] = (
    Noise("article_missing", 5.0, open_edits.drop_article, None),
    Noise("article_extra", 2.5, open_edits.add_article, None),
    Noise("preposition", 4.0, open_edits.swap_preposition, None),
    Noise("preposition_missing", 4.0, open_edits.drop_preposition, None),
    Noise("preposition_extra", 2.5, open_edits.add_preposition, None),
    Noise("to_extra", 0.7, verb_edits.add_to, None),
    Noise("small_missing", 3.5, verb_edits.drop_small, None),
    Noise("agreement_far", 4.0, verb_edits.swap_number_of_verb, None),
    Noise("there_is", 0.7, verb_edits.put_number_there, None),
    Noise("form", 4.0, verb_edits.change_form, None),
    Noise("infinitive", 1.5, verb_edits.change_infinitive, None, width=2),
    Noise("regularized", 0.8, verb_edits.regularize, None),
    Noise("tense", 3.0, verb_edits.change_tense, None),
    Noise("noun_number", 3.5, open_edits.swap_number_of_noun, None),
    Noise("plural_of_mass", 0.8, open_edits.put_plural, None),
    Noise("misspelling", 7.0, open_edits.put_misspelling, None),
    Noise("cut", 0.5, open_edits.put_cut, None),
    Noise("swap", 1.5, open_edits.put_swap, None),
    Noise("quantity", 1.5, open_edits.put_quantity, None),
    Noise("pronoun", 1.5, open_edits.put_pronoun, None),
    Noise("homophone", 1.5, open_edits.put_homophone, None),
    Noise("ending", 1.5, open_edits.change_ending, None),
    Noise("adverb", 1.5, open_edits.change_adverb, None),
    Noise("apostrophe", 1.0, open_edits.drop_apostrophe, None),
    Noise("doesnt", 0.7, open_edits.APOSTROPHE_TABLE, None),
    Noise("comma_missing", 1.5, open_edits.drop_comma, None),
    Noise("comma_extra", 0.6, open_edits.add_comma, None),
    Noise("question", 0.3, open_edits.lose_question, None),
    Noise("comparison", 1.0, open_edits.repeat_comparison, None),
    Noise("adverb_place", 0.6, open_edits.move_adverb, None, width=2),
    Noise("subject_twice", 0.5, open_edits.repeat_subject, None),
    Noise("connector", 0.5, open_edits.put_connector, None),
    Noise("article_bare", 2.0, open_edits.add_bare_article, None),
    Noise("article_sound", 1.5, open_edits.swap_article_sound, None),
    Noise("progressive", 1.0, verb_edits.lose_progressive, None),
    Noise("stative", 0.5, verb_edits.put_progressive, None),
    Noise("be_missing", 2.0, verb_edits.drop_be, None),
    Noise("demonstrative", 1.0, open_edits.swap_demonstrative, None),
    Noise("amount", 1.0, open_edits.put_amount, None),
    Noise("good", 0.5, open_edits.swap_good, None),
    Noise("pair", 0.5, open_edits.swap_case_of_pair, None),
    Noise("me_first", 0.5, open_edits.put_me_first, None, width=4),
)
ALL_NOISES = NOISES + OPEN_NOISES
AIMED = {
    "article_bare": 6, "article_extra": 5, "article_missing": 3, "article_sound": 5, "preposition": 12,
    "preposition_missing": 8, "preposition_extra": 6, "there_is": 5, "progressive": 6, "stative": 4, "be_missing": 6,
    "demonstrative": 5, "amount": 8, "comparison": 5, "adverb": 8, "good": 4, "homophone": 12, "pronoun": 4, "pair": 2,
    "me_first": 1, "apostrophe": 4, "doesnt": 2, "question": 3, "comma_missing": 4, "comma": 2, "tense": 5,
    "infinitive": 4, "regularized": 2, "plural_of_mass": 3, "noun_number": 4, "connector": 1, "adverb_place": 2,
    "subject_twice": 1, "to_extra": 2, "form": 3, "agreement_far": 4, "misspelling": 6, "capital": 3,
}  # fmt: skip
"""Kinds for which a sentence is searched, with weights; by chance, most fit into one sentence of a thousand."""
BY_NAME: dict[str, Noise] = {noise.name: noise for noise in ALL_NOISES}


def corrupt(
    words: Words, lexicon: Lexicon, rng: random.Random, count: int, noises: Sequence[Noise] = NOISES
) -> tuple[Words, list[str]]:
    """Insert at most ``count`` mistakes of kinds drawn by weight; return the wrong words and the kinds used."""
    kinds: list[str] = []
    clean = words
    for noise in rng.choices(noises, [noise.weight for noise in noises], k=3 * count):
        if len(kinds) == count:
            break
        if noise.undo is not None and noise.undo(clean, lexicon) != clean:
            continue  # an exception to the rule: "that that", "if he were"
        wrong = noise.apply(words, lexicon, rng)
        if wrong is not None:
            words, kinds = wrong, [*kinds, noise.name]
    return words, kinds
