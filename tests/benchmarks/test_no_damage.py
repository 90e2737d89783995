"""The benchmark of correct sentences: what a vandal changes, and what the guards let pass."""

from __future__ import annotations

import random

import pytest

from benchmarks.quality.no_damage import SENTENCES, measure, segments, vandalised
from copyspec.engine.results import Change
from copyspec.pipelines import FunctionCorrector, GECPipeline, Part
from copyspec.pipelines.documents import Segment
from copyspec.pipelines.guards.document_words import DocumentWords
from copyspec.pipelines.guards.guards import Checked, Context, GuardOptions, check
from copyspec.pipelines.guards.languages import is_in, language_of


def whole(text: str) -> Part:
    return Part(text, (Segment(0, len(text)),))


def checked(source: str, output: str, changes: list[Change] | None = None, **options: object) -> Checked:
    given_options = GuardOptions(**options)  # type: ignore[arg-type]
    context = Context(DocumentWords([whole(source)], given_options.words), changes)
    return check(source, Segment(0, len(source)), output, options=given_options, context=context)


@pytest.mark.parametrize("language", sorted(SENTENCES))
def test_languages_are_told_apart(language: str) -> None:
    texts = [text.replace("{n}", "7") for text in SENTENCES[language]]
    assert language_of(" ".join(texts)) == (None if language == "da" else language)  # it may be taken for Norwegian
    assert not any(is_in(text, "en") for text in texts)
    assert checked(texts[0], texts[0] + " x").refusal.reason == "language"  # type: ignore[union-attr]


def test_a_vandal_damages_nothing() -> None:
    rng = random.Random(0)
    vandal = FunctionCorrector(lambda text: vandalised(text, rng), name="vandal")
    report = measure(GECPipeline(vandal), segments(300))
    assert report["damaged"] == {} and report["changed, other languages"] == 0
    assert report["changed"], "a vandal that writes nothing tests nothing"
