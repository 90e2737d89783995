"""The benchmark of terms: what a vandal changes, and what the guards let pass."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from benchmarks.quality.terms import changed, documents, invented, vandal
from copyspec.pipelines import FunctionCorrector, GECPipeline, GuardOptions


def corrected(text: str, changes: dict[str, str], words: Sequence[str] = ()) -> str:
    """The text after a corrector that makes replacements in it."""

    def correct(sentence: str) -> str:
        for was, becomes in changes.items():
            sentence = sentence.replace(was, becomes)
        return sentence

    return GECPipeline(FunctionCorrector(correct), guards=GuardOptions(words=tuple(words)))(text).text


@pytest.mark.parametrize("with_list", [False, True])
def test_terms_stay_in_sentences_that_are_corrected(with_list: bool) -> None:
    for pairs, terms in documents(40, seed=1):
        guards = GuardOptions(words=tuple(terms) if with_list else ())
        lost, repaired, total = changed(FunctionCorrector(vandal(pairs)), pairs, guards)
        assert lost == 0 and repaired == len(pairs) and total == 200


@pytest.mark.parametrize("seed", range(10))
def test_words_of_the_project_never_change(seed: int) -> None:
    rng = random.Random(seed)
    word = invented(rng)
    form = word + rng.choice(["", "s", "'s", "ed"])
    for sentence in (
        f"{form} shows that they was home.",
        f"They was in {form} today.",
        f"They was (new) {form}-based tools.",
    ):
        for becomes in ("that", word[:-1], form.swapcase(), ""):
            made = corrected(sentence, {form: becomes, "was": "were"}, [word])
            assert form in made and made != sentence, (form, becomes)
    assert (
        corrected("We runs scikit-learn.", {"runs": "run", "scikit": "Scikit"}, ["scikit-learn"])
        == "We run scikit-learn."
    )
    assert corrected("They goes to Go.", {"goes": "go"}, ["Go"]) == "They go to Go."
