"""What documents ask for beyond single sentences: a reason for another number, labels and lines as they are, and words
that no other word fits better than."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from string import ascii_lowercase
from types import MappingProxyType

import pytest

from copyspec.engine.results import Change
from copyspec.pipelines import (
    FunctionCorrector,
    GECPipeline,
    GuardOptions,
    Outcome,
    Runner,
    RunOptions,
    Work,
    format_of,
)
from copyspec.pipelines.guards.misspellings import near_words
from copyspec.pipelines.guards.number import is_noun, plural
from copyspec.pipelines.guards.vocabulary import is_english, is_rare

BESIDE = "It is a good day. They went home. She was here."
NOUNS = "payload identity proverb theory faculty parameter keyword".split()  # noqa: SIM905


def corrected(text: str, was: str, becomes: str) -> str:
    return GECPipeline(FunctionCorrector(lambda piece: piece.replace(was, becomes)))(text).text


@pytest.mark.parametrize("noun", NOUNS)
def test_the_number_of_a_noun_changes_only_where_something_tells_it(noun: str) -> None:
    assert is_noun(noun)
    for one, other in ((noun, plural(noun)), (plural(noun), noun)):
        for frame in ("We changed the {} of it.", "This can decrease {}.", "He spoke about {} and went on."):
            text = f"{BESIDE}\n\n{frame.format(one)}"
            assert corrected(text, f" {one}", f" {other}") == text
            alone = frame.format(one)
            assert corrected(alone, f" {one}", f" {other}") == frame.format(other)
    for frame in ("It has many {}.", "We changed two of the {}.", "The {} are gone."):
        text = f"{BESIDE}\n\n{frame.format(noun)}"
        assert corrected(text, f" {noun}", f" {plural(noun)}") == text.replace(f" {noun}", f" {plural(noun)}")


@pytest.mark.parametrize("noun", ["children", "feet", "information", "equipment", "mice", "software", "women"])
def test_what_has_no_plural_gets_rid_of_one(noun: str) -> None:
    for frame in ("The {} came to see it.", "He spoke about {} and went on."):
        text = f"{BESIDE}\n\n{frame.format(plural(noun))}"
        assert corrected(text, f" {plural(noun)}", f" {noun}") == f"{BESIDE}\n\n{frame.format(noun)}"
        right = f"{BESIDE}\n\n{frame.format(noun)}"
        assert corrected(right, f" {noun}", f" {plural(noun)}") == right


@pytest.mark.parametrize("verb", ["file", "handle", "request", "result", "option", "walk", "open", "begin"])
def test_verbs_agree_with_their_subjects(verb: str) -> None:
    assert not is_noun(verb)
    text = f"{BESIDE}\n\nThe old machine {verb} it."
    assert corrected(text, f" {verb}", f" {verb}s") == text.replace(f" {verb}", f" {verb}s")


@pytest.mark.parametrize("subject", ["data", "media", "team", "staff", "a number of users", "the majority of them"])
def test_subjects_of_either_number(subject: str) -> None:
    for pair in (("is", "are"), ("was", "were"), ("has", "have"), ("does", "do")):
        for was, becomes in (pair, pair[::-1]):
            text = f"{BESIDE}\n\nIn the evening {subject} that we know {was} kept."
            assert corrected(text, f"know {was}", f"know {becomes}") == text
            other = text.replace(subject, "the file")
            assert corrected(other, f"know {was}", f"know {becomes}") != other


@pytest.mark.parametrize("verb", ["add", "print", "return", "write", "open", "handle"])
def test_notes_begin_with_either_form_of_a_verb(verb: str) -> None:
    for was, becomes in ((verb, f"{verb}s"), (f"{verb}s", verb)):
        text = f"{BESIDE}\n\n{was.capitalize()} the name of it to the list."
        assert corrected(text, was.capitalize(), becomes.capitalize()) == text


@pytest.mark.parametrize("seed", range(5))
def test_words_divided_at_the_end_of_a_line_stay(seed: int) -> None:
    rng = random.Random(seed)
    word = rng.choice(["generated", "separated", "expression", "characters", "interpretation"])
    cut = rng.randrange(3, len(word) - 2)
    text = f"{BESIDE}\nIt is a word that was {word[:cut]}-\n{word[cut:]} by the way.\n"
    assert corrected(text, f"{word[:cut]}-\n{word[cut:]}", word) == text
    joined = text.replace("-\n", " -")
    assert corrected(joined, f"{word[:cut]} -{word[cut:]}", word) == joined.replace(f"{word[:cut]} -{word[cut:]}", word)


@pytest.mark.parametrize("name", ["eve", "upp", "lene", "formt"])
@pytest.mark.parametrize("mark", [" -", " –", ":"])
def test_names_of_entries_stay(name: str, mark: str) -> None:
    for becomes in (name.capitalize(), next(near_words(name)), "Ever"):
        for before in ("", f"{BESIDE}\n\n"):
            text = f"{before}{name}{mark} analyzes an image to see it."
            assert corrected(text, f"{name}{mark}", f"{becomes}{mark}") == text
            alone = f"{before}{name}:"
            assert corrected(alone, f"{name}:", f"{becomes}:") == alone


@pytest.mark.parametrize("word", ["redistributions", "Jän", "Grüße", "señal"])
def test_plurals_and_words_of_other_languages_are_no_misspellings(word: str) -> None:
    becomes = word.removesuffix("s") if word.endswith("ns") else "Jan"
    text = f"{BESIDE}\n\nThis was about {word} of it."
    assert corrected(text, word, becomes) == text
    for wrong in ("informations", "softwares", "childrens"):
        text = f"{BESIDE}\n\nThis was about {wrong} of it."
        assert corrected(text, wrong, wrong.removesuffix("s")) == text.replace(wrong, wrong.removesuffix("s"))


@pytest.mark.parametrize("keyword", ["Date", "Id", "Revision", "Header"])
def test_keywords_of_version_control_stay(keyword: str) -> None:
    text = f"{BESIDE}\n\nIt was here: ${keyword}: page.txt 8956 2022-01-21 (Fr, 21. Jan) they was $ and goes on."
    assert corrected(text, "they was", "they were") == text and corrected(text, "page", "pages") == text


def test_pages_of_headings_and_code_are_documents() -> None:
    page = "# jx lint\n\n```\njx lint\n```\n\n## Synopsis\n\n{}\n\n## Source\n"
    for text, was, becomes in (
        ("Lists the files if the condition is true", "true", "true."),
        ("Adds one or more names to the files", "Adds", "Add"),
    ):
        source = page.format(text)
        change = FunctionCorrector(lambda piece, was=was, becomes=becomes: piece.replace(was, becomes))  # type: ignore[misc]
        parts = list(format_of("-", "md").read(io.BytesIO(source.encode())))
        works = [Work(None, part, None, parts) for part in parts]
        made = [done.edits for done in Runner(change, RunOptions()).run(works)]
        assert not any(made)


@pytest.mark.parametrize("label", ["Definition in file", "Members of class", "Notes to section"])
def test_labels_keep_their_function_words(label: str) -> None:
    word = label.split()[1]
    for name in ("close.c", "Widget", "the index"):
        page = f"{BESIDE}\n\n{label} {name}\n\n{BESIDE}"
        assert corrected(page, f" {word} ", " from ") == page
        assert corrected(page, f" {word} ", f" {word} the ") == page
    page = f"{BESIDE}\n\nNow look as this code:\n\n{BESIDE}"
    assert corrected(page, " as ", " at ") == page.replace(" as ", " at ")


def test_texts_get_no_full_stops_where_hardly_any_has_one() -> None:
    labels = "\n\n".join(["Name of it", "The list of users", "An open file", "The last one"])
    text = "It is sent when the disk is full"
    for page in (f"{labels}\n\n{text}", f"{text}\n\n{labels}"):
        assert corrected(page, "is full", "is full.") == page
    assert corrected(f"{BESIDE}\n\n{BESIDE}\n\n{text}", "is full", "is full.").endswith("full.")
    assert corrected(text, "is full", "is full.") == f"{text}."


class Speller:
    """A corrector that writes one word for another, beside a language model that has a favourite."""

    identity: Mapping[str, object] = MappingProxyType({})
    by_sentence, limit, calibration = True, None, "smollm2-correct"

    def __init__(self, was: str, becomes: str, margin: float, favourite: str) -> None:
        self._was, self._becomes, self._margin, self._favourite = was, becomes, margin, favourite

    def length(self, text: str) -> int:
        return len(text)

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        for index, text in enumerate(text for text in texts if text is not None):
            at = text.find(self._was)
            changes = [Change(at, at + len(self._was), self._margin)] if at >= 0 else None
            yield index, Outcome(text.replace(self._was, self._becomes), changes=changes)

    def fluency(self, before: str, texts: tuple[str, ...]) -> list[float]:
        return [8.0 * (self._becomes in text) + 9.0 * (f" {self._favourite} " in text) for text in texts]


@pytest.mark.parametrize(
    ("wrong", "right", "other"), [("fiels", "fields", "files"), ("formt", "format", "form"), ("lene", "line", "lane")]
)
def test_a_misspelt_word_becomes_the_likeliest_of_those_it_is_near(wrong: str, right: str, other: str) -> None:
    assert {right, other} <= set(near_words(wrong))
    text = f"They said that header {wrong} must not be longer."
    for favourite, made in (("x", other), (other, other), (right, wrong)):
        pipeline = GECPipeline(Speller(f" {wrong} ", f" {other} ", 9.0, favourite))
        assert pipeline(text).text == text.replace(f" {wrong} ", f" {made} ")


@pytest.mark.parametrize(
    ("was", "becomes", "other"),
    [
        ("my", "I", "may"),
        ("form", "forms", "from"),
        ("an", "a", "and"),
        ("of", "off", "or"),
        ("tree", "trees", "three"),
    ],
)
def test_a_word_stays_if_one_that_differs_by_a_letter_is_likelier(was: str, becomes: str, other: str) -> None:
    assert other in near_words(was)
    alone = f"They said that {was} name is here."
    for favourite, made in (("x", becomes), (other, was)):
        pipeline = GECPipeline(Speller(f" {was} ", f" {becomes} ", 9.0, favourite))
        text = f"{BESIDE} {alone}"
        assert pipeline(text).text == text.replace(f" {was} ", f" {made} ")
        assert pipeline(alone).text == alone.replace(f" {was} ", f" {becomes} ")


@pytest.mark.parametrize(("was", "other"), [("on", "one"), ("to", "too"), ("of", "off"), ("by", "buy")])
def test_a_word_stays_if_it_may_be_one_that_lacks_a_letter(was: str, other: str) -> None:
    text = f"{BESIDE} They made {was} such place."
    for favourite, made in (("x", " "), (other, f" {was} ")):
        speller = Speller(f"made {was} such", "made such", 9.0, favourite)
        pipeline = GECPipeline(speller, guards=GuardOptions(precision=0.8))
        assert pipeline(text).text == text.replace(f" {was} ", made)


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("nodesep", "nodes"),
        ("linkloc", "link"),
        ("treectl", "tree"),
        ("phkmalloc", "malloc"),
        ("environnement", "environmental"),
        ("documentaire", "documented"),
    ],
)
def test_unknown_words_stay_where_a_slip_would_be_too_large(word: str, other: str) -> None:
    text = f"{BESIDE}\n\nSet the {word} now."
    assert corrected(text, word, other) == text
    for wrong, right in (("environnement", "environment"), ("neccesary", "necessary"), ("noddes", "nodes")):
        assert corrected(text.replace(word, wrong), wrong, right) == text.replace(word, right)


def test_short_unknown_words_are_abbreviations_in_documents() -> None:
    letters = random.Random(5)
    drawn = {"".join(letters.choices(ascii_lowercase, k=3)) for _ in range(400)} | {"iff", "nod", "ann"}
    words = [word for word in sorted(drawn) if not (is_english(word) or is_rare(word)) and [*near_words(word)]]
    others = {word: next(near_words(word)) for word in words}
    assert len(words) > 100 and "iff" in words
    for word, other in others.items():
        text = f"{BESIDE}\n\nThey said that it {word} must be larger."
        assert corrected(text, f" {word} ", f" {other} ") == text or sorted(word) == sorted(other) or len(other) > 3
    for wrong, right in (("teh", "the"), ("wil", "will"), ("adn", "and")):
        text = f"{BESIDE}\n\nThey saw {wrong} other one."
        assert corrected(text, f" {wrong} ", f" {right} ") == text.replace(wrong, right)


@pytest.mark.parametrize(
    ("one", "two"),
    [("simplistic", "simple"), ("historic", "historical"), ("economic", "economical"), ("sensible", "sensitive")],
)
def test_no_adjective_stands_for_another_in_documents(one: str, two: str) -> None:
    for was, becomes in ((one, two), (two, one)):
        text = f"{BESIDE}\n\nThis is a really {was} approach."
        assert corrected(text, f" {was} ", f" {becomes} ") == text
    text = f"{BESIDE}\n\nIt was a beauty day."
    assert corrected(text, " beauty ", " beautiful ") == text.replace("beauty", "beautiful")


@pytest.mark.parametrize(
    ("was", "becomes", "rest"),
    [
        (" a ", " an ", "hour"),
        (" an ", " a ", "unique name"),
        (" exceeds ", " exceed ", "it"),
        (" to be ", " be ", "there"),
        (" wrote ", " written ", "it"),
    ],
)
def test_what_two_words_alone_tell_needs_little_more(was: str, becomes: str, rest: str) -> None:
    before = {" exceeds ": "They must not", " to be ": "They should", " wrote ": "He has"}.get(was, "They took")
    text = f"{BESIDE * 4} {before}{was}{rest}."
    made = GECPipeline(Speller(f"{before}{was}{rest}", f"{before}{becomes}{rest}", 1.5, "x"))(text).text
    assert made == text.replace(f"{before}{was}{rest}", f"{before}{becomes}{rest}")


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        *(
            pair
            for words in ("of in", "out on", "from for", "at on", "with by")
            for pair in permutations(words.split())
        ),
        ("exotically", "exotic"),
        ("tester", "test"),
        ("establish", "establishment"),
        ("as", "as a"),
        ("in", "in the"),
    ],
)
def test_documents_keep_their_prepositions_and_parts_of_speech_and_get_no_articles(was: str, becomes: str) -> None:
    for frame in ("They saw it concentrating {} scale.", "We wrote {} names here."):
        alone = frame.format(was)
        pipeline = GECPipeline(Speller(f" {was} ", f" {becomes} ", 12.0, "x"))
        assert pipeline(f"{BESIDE} {alone}").text == f"{BESIDE} {alone}"
        assert pipeline(alone).text == frame.format(becomes)


@pytest.mark.parametrize(
    "pair",
    [
        *("was were", "is are", "this these", "copys copies", "copied copies", "delete deleted", "showed shown"),
        *(
            "stopping stops",
            "write written",
            "you your",
            "though thought",
            "difference different",
            "like likely",
            "able able to",
        ),
    ],
)
def test_documents_get_other_forms_of_their_words(pair: str) -> None:
    was, becomes = pair.split(maxsplit=1)
    text = f"{BESIDE} They saw that it {was} on names which may {was} here."
    was = f"it {was} on"
    made = GECPipeline(Speller(was, f"it {becomes} on", 12.0, "x"))(text).text
    assert made == text.replace(was, f"it {becomes} on")


@pytest.mark.parametrize(
    ("governor", "was", "becomes"),
    [("depends", "of", "on"), ("forward", "on", "to"), ("consisting", "in", "of"), ("according", "with", "to"),
     ("based", "in", "on"), ("associated", "to", "with"), ("interested", "on", "in"), ("differs", "to", "from")],
)  # fmt: skip
def test_documents_get_the_preposition_that_a_word_asks_for(governor: str, was: str, becomes: str) -> None:
    for before, makes in ((governor, becomes), ("names", was)):
        text = f"{BESIDE} They saw that it {before} {{}} what was here."
        pipeline = GECPipeline(Speller(f"{before} {was} ", f"{before} {becomes} ", 12.0, "x"))
        assert pipeline(text.format(was)).text == text.format(makes)
