"""Guards on misspelt words: a correction of the spelling changes no negation, number or name; switches."""

from __future__ import annotations

import pytest

from copyspec.pipelines.documents import Segment
from copyspec.pipelines.edits.diff import apply
from copyspec.pipelines.edits.words import Tolerance
from copyspec.pipelines.guards.guards import GuardOptions, check


def reason(source: str, output: str, **options: object) -> str:
    """Why the guards refuse the one change of a text, at no margin; "" if they make it."""
    result = check(source, Segment(0, len(source)), output, options=GuardOptions(**options))  # type: ignore[arg-type]
    refusals = [*result.dropped, *([result.refusal] if result.refusal else [])]
    assert bool(refusals) == (apply(source, result.edits) != output)
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


@pytest.mark.parametrize(
    ("source", "word", "opposite"),
    [
        ("It was a harmful thing to do.", "harmful", "harmless"),
        ("They were careful with it.", "careful", "careless"),
        ("They did it carefully again.", "carefully", "carelessly"),
        ("It belongs to the lessor of it.", "lessor", "lessee"),
        ("It belongs to the employer of it.", "employer", "employee"),
        ("It belongs to the trainees of it.", "trainees", "trainers"),
        ("It belongs to the licensor of it.", "licensor", "licensee"),
        ("We went home before the rain.", "before", "after"),
        ("They turned on the light.", "on", "off"),
        ("He stayed inside the house.", "inside", "outside"),
        ("You must do it again.", "must", "may"),
        ("There were more of them.", "more", "less"),
        ("We came with him and her.", "and", "or"),
        ("We left because it was late.", "because", "although"),
        ("The calls are asynchronous here.", "asynchronous", "synchronous"),
        ("The shape is symmetric here.", "symmetric", "asymmetric"),
        ("The flag was undeprecated here.", "undeprecated", "deprecated"),
        ("The table was denormalised here.", "denormalised", "normalised"),
        ("They misheard the name.", "misheard", "heard"),
    ],
)
def test_a_word_does_not_become_its_opposite(source: str, word: str, opposite: str) -> None:
    changed = source.replace(word, opposite)
    assert reason(source, changed, words=(word, opposite)) == "swap"
    assert reason(changed, source, words=(word, opposite)) == "swap"


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("We met in Monday at the house.", "We met on Monday at the house."),
        ("He is good in music and more.", "He is good at music and more."),
        ("He have less people than them.", "He has fewer people than them."),
        ("You can to do it again.", "You could do it again."),
        ("It was a carelessly mistake of him.", "It was a careless mistake of him."),
        ("The employe of it was there.", "The employee of it was there."),
        ("He was needles to say late.", "He was needless to say late."),
        ("They are freer than we are.", "They are free than we are."),
        ("We went alone the river.", "We went along the river."),
        ("This is a arrival of him.", "This is an arrival of him."),
    ],
)
def test_words_of_one_class_are_corrected(source: str, output: str) -> None:
    assert reason(source, output) == ""


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
    ("quantity", "becomes", "expected"),
    [
        ("5 mg", "5 kg", "numbers"),
        ("5mg", "5kg", "numbers"),
        ("5\u00a0km", "5\u00a0m", "numbers"),
        ("1.5 GB", "1.5 MB", "numbers"),
        ("20 °C", "20 °F", "numbers"),
        ("20 km/h", "20 km/s", "numbers"),
        ("20 m²", "20 m", "numbers"),
        ("5 pm", "5 am", "numbers"),
        ("5 apple", "5 apples", ""),
        ("5 minute", "5 minutes", ""),
        ("5 bar", "5 bars", ""),
        ("5 mb", "5 mb,", ""),
        ("10-15 year", "10-15 years", ""),
        ("the mid 1990s", "the mid-1990s", ""),
        ("the 1990's", "the 1990s", ""),
        ("the 1990 s", "the 1990s", ""),
        ("5 km long", "5-km long", ""),
        ("5 km long", "5-m long", "numbers"),
        ("5 AM", "5 am", ""),
        ("2019 A man", "2019 a man", ""),
        ("5 J", "5 K", "numbers"),
        ("2000 W", "2000 V", "numbers"),
        ("5 %", "6 %", "numbers"),
        ("2 t shirts", "2 T-shirts", ""),
    ],
)
def test_a_quantity_keeps_its_unit(quantity: str, becomes: str, expected: str) -> None:
    assert reason(f"Take {quantity} of it every day.", f"Take {becomes} of it every day.") == expected


@pytest.mark.parametrize(
    ("source", "output"), [("Take 5 % of it.", "Take 5% of it."), ("Take 5% of it.", "Take 5 % of it.")]
)
def test_the_space_before_a_percent_sign_may_change(source: str, output: str) -> None:
    result = check(source, Segment(0, len(source)), output, tolerance=Tolerance(spacing=False))
    assert apply(source, result.edits) == output, result


@pytest.mark.parametrize(
    "text", ["In 2019 J. Smith saw it.", "On May 5 T. Cook saw it.", "In 2012 N. Korea did it.", "In 2012 TV was bad."]
)
def test_a_comma_after_a_date_changes_no_quantity(text: str) -> None:
    number = text.split()[1 + text.startswith("On")]
    assert reason(text, text.replace(number, f"{number},")) == ""


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
    ("source", "output"),
    [
        ("We went to see Dr. Wollf about it.", "We went to see Dr. Wolf about it."),
        ("Mr. Smyth was there again.", "Mr. Smith was there again."),
        ("It was seen before (Wollf et al.) in it.", "It was seen before (Wolf et al.) in it."),
        ("It was done on 5 Mar 2020 again.", "It was done on 5 May 2020 again."),
        ("They call him “Wollf of the hill” there.", "They call him “Wolf of the hill” there."),
        ("The Anna–Wollf rule is used in it.", "The Anna–Wolf rule is used in it."),
        ("It was seen by all of\nWollf and him.", "It was seen by all of\nWolf and him."),
        ("We saw it there with Örban and him.", "We saw it there with Urban and him."),
    ],
)
def test_a_name_is_told_by_its_place(source: str, output: str) -> None:
    assert reason(source, output) == "names"


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("It is late. Teh cat is here.", "It is late. The cat is here."),
        ("It is late! “Teh cat is here.”", "It is late! “The cat is here.”"),
        ("He said, “Teh cat is here.”", "He said, “The cat is here.”"),
        ("He said “Teh cat is here.”", "He said “The cat is here.”"),
        ("Dear Sir,\nTeh cat is here with us.", "Dear Sir,\nThe cat is here with us."),
        ("Feed the cat\nMlik is in the house over there", "Feed the cat\nMilk is in the house over there"),
        ("It was 5 p.m. Teh cat is here.", "It was 5 p.m. The cat is here."),
        ("Look at this: Teh cat is here.", "Look at this: The cat is here."),
        ("It is late.Teh cat is here.", "It is late.The cat is here."),
        ("It is late. 😀 Teh cat is here.", "It is late. 😀 The cat is here."),
        ("Buy these things:\n- Teh cat\n- Mlik for the cat", "Buy these things:\n- The cat\n- Milk for the cat"),
        ("2.1 Teh cat in the house", "2.1 The cat in the house"),
        ("Getting Start With Teh Tool", "Getting Started With The Tool"),
        ("We saw wednesday of it.", "We saw Wednesday of it."),
        ("It is nice. then we goes.", "It is nice. Then we go."),
    ],
)
def test_what_begins_a_sentence_is_no_name(source: str, output: str) -> None:
    assert reason(source, output) == ""


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


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("वह घर गया वह सो गया।", "वह घर गया। वह सो गया।", "marks"),
        ("我昨天去学校了他没来。", "我昨天去学校了。他没来。", "fragment"),
        ("هو ذهب إلى البيت", "هو ذهب إلى البيت،", "marks"),
        ("Que hora es en la estación?", "¿Qué hora es en la estación?", ""),
        ("می روم به خانه.", "می\u200cروم به خانه.", ""),
        ("私はこーひーを飲む。", "私はコーヒーを飲む。", ""),
        ("人人は歩く。", "人々は歩く。", ""),
        ("我买了苹果 香蕉和梨。", "我买了苹果、香蕉和梨。", ""),
    ],
)
def test_every_script_has_its_own_marks_and_letters(source: str, output: str, expected: str) -> None:
    assert reason(source, output, any_language=True) == expected


@pytest.mark.parametrize("sign", ["-", "–", "−"])
def test_a_number_keeps_its_sign_in_every_language(sign: str) -> None:
    source = f"Heute ist es {sign}5 Grad kalt hier."
    assert reason(source, source.replace(sign, ""), any_language=True) == "numbers"


def test_headings_get_no_colon() -> None:
    source, output = "Notes about teh garden in spring", "Notes about the garden in spring:"
    for ends in (True, False):
        result = check(source, Segment(0, len(source), ends=ends), output)
        assert apply(source, result.edits) == (output if ends else output[:-1])
