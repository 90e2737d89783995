"""Guards on misspelt words: a correction of the spelling changes no negation, number or name; switches."""

from __future__ import annotations

import pytest

from copyspec.pipelines.documents import Segment
from copyspec.pipelines.edits.diff import apply
from copyspec.pipelines.guards.guards import GuardOptions, check


def reason(source: str, output: str, **options: object) -> str:
    """Why the guards refuse the one change of a text, at no margin; "" if they make it."""
    found = check(source, Segment(0, len(source)), output, options=GuardOptions(**options))  # type: ignore[arg-type]
    refusals = [*found.dropped, *([found.refusal] if found.refusal else [])]
    assert bool(refusals) == (apply(source, found.edits) != output)
    return refusals[0].reason if refusals else ""


@pytest.mark.parametrize(
    ("wrong", "right", "flipped"),
    [
        ("werent", "weren't", "were"),
        ("havent", "haven't", "have"),
        ("did'nt", "didn't", "did"),
        ("does'nt", "doesn't", "does"),
        ("could'nt", "couldn't", "could"),
        ("would'nt", "wouldn't", "would"),
        ("should'nt", "shouldn't", "should"),
        ("has'nt", "hasn't", "has"),
        ("ca'nt", "can't", "can"),
        ("havnt", "haven't", "have"),
        ("arnt", "aren't", "are"),
        ("wernt", "weren't", "were"),
        ("hasent", "hasn't", "has"),
        ("dident", "didn't", "did"),
        ("didn", "didn't", "did"),
        ("musnt", "mustn't", "must"),
        ("mustnt", "mustn't", "must"),
        ("neednt", "needn't", "need"),
        ("canot", "cannot", "can"),
        ("withot", "without", "with"),
        ("hardley", "hardly", "hard"),
    ],
)
def test_a_misspelt_negation_stays_one(wrong: str, right: str, flipped: str) -> None:
    source = f"They {wrong} like it there."
    assert reason(source, source.replace(wrong, right)) == ""
    assert reason(source, source.replace(wrong, flipped)) == "swap"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("coud", "could"),
        ("haave", "have"),
        ("wass", "was"),
        ("kno", "know"),
        ("wnat", "want"),
        ("witth", "with"),
        ("ist", "is"),
    ],
)
def test_words_beside_negations_are_corrected(wrong: str, right: str) -> None:
    source = f"They {wrong} like it there."
    assert reason(source, source.replace(wrong, right)) == ""


def test_negations_of_two_words() -> None:
    assert reason("I did'nt know.", "I did not know.") == ""
    assert reason("They told noone of it.", "They told one of it.") == "swap"


@pytest.mark.parametrize(
    ("wrong", "right", "others"),
    [
        ("fourty", "forty", ["four", "fourteen"]),
        ("ninty", "ninety", ["nine", "nineteen"]),
        ("fiveteen", "fifteen", ["five", "fifty"]),
        ("thirteeen", "thirteen", ["thirty", "three"]),
        ("seventeeen", "seventeen", ["seven", "seventy"]),
        ("nineth", "ninth", ["nineteen"]),
        ("twelth", "twelfth", ["twenty"]),
        ("fiveth", "fifth", ["fifty", "fifteen"]),
        ("tousand", "thousand", []),
        ("tausend", "thousand", []),
        ("fourth", "four", ["forty", "fourteen"]),
        ("eighteenth", "eighteen", ["eight", "eighty"]),
        ("sixtieth", "sixty", ["six"]),
        ("hundreds", "hundred", []),
    ],
)
def test_a_number_stays_the_same_number(wrong: str, right: str, others: list[str]) -> None:
    source = f"He told it to the {wrong} people there."
    assert reason(source, source.replace(wrong, right)) == ""
    assert {reason(source, source.replace(wrong, other)) for other in others} <= {"swap"}


@pytest.mark.parametrize(
    ("name", "becomes", "expected"),
    [
        ("Brown", "Browning", "names"),
        ("Brown", "Browns", "names"),
        ("Brown", "Brownie", "names"),
        ("Bill", "Bills", "names"),
        ("IT", "its", "names"),
        ("JavaScript", "JavaScripts", "names"),
        ("Brown", "Brown's", ""),
        ("Brown", "Brown’s", ""),
        ("Brown", "Brown,", ""),
        ("Brown", "brown", ""),
        ("PARIS", "Paris", ""),
    ],
)
def test_a_name_is_kept_as_a_word(name: str, becomes: str, expected: str) -> None:
    assert reason(f"We saw it with {name} and he was glad.", f"We saw it with {becomes} and he was glad.") == expected


@pytest.mark.parametrize(
    ("option", "source", "output", "expected"),
    [
        ("allow_numbers", "We saw 32 cats in it.", "We saw 16 cats in it.", "numbers"),
        ("allow_links", "Write to jon@ex.org about it.", "Write to john@ex.org about it.", "links"),
        ("allow_code", "Call `recieve` for all of it.", "Call `receive` for all of it.", "code"),
        ("allow_code", "Use --recieve for all of it.", "Use --receive for all of it.", "code"),
        ("allow_names", "We saw it with Jon and left.", "We saw it with John and left.", "names"),
        ("allow_new_words", "He see frobnix ones.", "He see frobnixed ones.", "words"),
        ("allow_swaps", "She saw a small cat there.", "She saw a small dog there.", "swap"),
    ],
)
def test_each_guard_can_be_turned_off(option: str, source: str, output: str, expected: str) -> None:
    others = {"allow_numbers", "allow_links", "allow_code", "allow_names", "allow_new_words", "allow_swaps"} - {option}
    assert reason(source, output, **dict.fromkeys(others, True)) == expected, "the others do not refuse it"
    assert reason(source, output, **{option: True}) == ""


def test_headings_get_no_colon() -> None:
    source, output = "Notes about teh garden in spring", "Notes about the garden in spring:"
    for is_label in (True, False):
        found = check(source, Segment(0, len(source), is_label=is_label), output)
        assert apply(source, found.edits) == (output[:-1] if is_label else output)
