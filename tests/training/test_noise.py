"""Every mistake can be undone from the wrong text alone, and depends only on the seed."""

from __future__ import annotations

import random

import pytest

from training.examples import CORRECT, ExampleMaker, Mixture
from training.lexicon import Lexicon, edits
from training.noise import AIMED, ALL_NOISES, BY_NAME, NOISES, corrupt
from training.text import join_words, spaced, split_sentences, split_words

_PROSE = [
    "However, the children have lived in the old house since the war, and they want to learn the language.",
    "She has worked in the city for a long time because the people there think that the work is important.",
    "They go to school in the morning, and he goes to the market with many friends.",
    "I believe that an old man of the village knows several stories of the world.",
    "For example, it is different from the question of the teacher, but we have opened the door again.",
    "He will walk to the end of the street and open the letter which she wanted to see.",
    "The government wanted information about these houses on Monday, so they opened many letters of the people.",
    "We walk through the forest of the north, and she walks with us; they open the book of the law.",
    "You have wanted to open the windows of the house, and it opens easily.",
    "He walks to the school of the village with many teachers and talks to a friend.",
    "They talk about the story of the world and want to talk about the stories of an island.",
    "You want to walk, we want to talk, they want to open a school, and she wants a house of the people.",
]


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    # repeated, so that the counts pass the thresholds of clear evidence
    return Lexicon(_PROSE * 30)


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_every_mistake_is_undone_from_the_wrong_text_alone(noise, lexicon) -> None:
    made = 0
    for seed in range(20):
        for sentence in _PROSE:
            words = split_words(sentence)
            if noise.undo(words, lexicon) != words:
                continue
            wrong = noise.apply(words, lexicon, random.Random(seed))
            if wrong is not None:
                made += 1
                assert join_words(wrong) != sentence
                assert join_words(noise.undo(split_words(join_words(wrong)), lexicon)) == sentence
    assert made, f"{noise.name} never found a place in the sample"


def test_a_mistake_that_cannot_be_undone_is_refused(lexicon) -> None:
    # "that that" is an exception to the rule for doubled words: the rule would destroy it
    words = split_words("He knows that that is the end.")
    _, kinds = corrupt(words, lexicon, random.Random(0), 5)
    assert "doubled" not in kinds


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("article_sound", "It is an old house.", {"It is a old house."}),
        ("be_missing", "She is very tired.", {"She very tired."}),
        ("stative", "He knew it.", {"He was knowing it."}),
        ("stative", "Do they know it?", set()),
        ("progressive", "She is walking home.", {"She is walk home.", "She is walked home.", "She is walks home."}),
        ("demonstrative", "It is in these houses.", {"It is in this houses."}),
        ("amount", "How many people?", {"How much people?", "How very much people?"}),
        ("good", "They speak well.", {"They speak good."}),
        ("pair", "It is between you and me.", {"It is between you and I."}),
        ("me_first", "My friend and I went.", {"Me and my friend went.", "I and my friend went."}),
        ("article_bare", "They go to school.", {"They go to the school.", "They go to a school."}),
    ],
)
def test_mistakes_that_only_the_sentence_tells(kind: str, right: str, wrong: set[str], lexicon) -> None:
    changed = (BY_NAME[kind].apply(split_words(right), lexicon, random.Random(seed)) for seed in range(12))
    made = {join_words(words) for words in changed if words is not None}
    assert made <= wrong
    assert bool(made) == bool(wrong)


def test_a_sentence_is_looked_for_after_its_mistake(lexicon) -> None:
    maker = ExampleMaker(_PROSE, lexicon, Mixture(sentence=1.0, aimed=1.0, clean=0.3, spaced=0.0, plain=0.5))
    drawn = [maker._aimed(random.Random(seed)) for seed in range(60)]
    examples = [example for example in drawn if example is not None]
    assert {kind for example in examples for kind in example.kinds[:1]} <= set(AIMED) <= set(BY_NAME)
    assert len({example.kinds[:1] for example in examples}) > 8
    for example in examples:  # unchanged, or with a mistake
        assert (example.prompt == CORRECT + example.answer[1:]) == (not example.kinds)


def test_mistakes_are_a_function_of_the_seed(lexicon) -> None:
    words = split_words(_PROSE[0])
    runs = [corrupt(words, lexicon, random.Random(7), 3) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len({join_words(corrupt(words, lexicon, random.Random(seed), 3)[0]) for seed in range(20)}) > 10


def test_the_input_is_left_as_it_was(lexicon) -> None:
    words = split_words(_PROSE[1])
    before = list(words)
    corrupt(words, lexicon, random.Random(0), 5)
    assert words == before


def test_words_and_sentences_lose_nothing() -> None:
    text = 'Mr. Smith said, "I don\'t know — 3.5% of it?" Then he left. It cost $1,200 (naïve 漢字 😀).'
    assert join_words(split_words(text)) == text
    sentences = split_sentences(text)
    assert " ".join(sentences) == text
    assert sentences[0].startswith("Mr. Smith said")
    assert spaced(split_words("I don't know, he's late.")) == "I do n't know , he 's late ."


def test_edits_are_one_step_away() -> None:
    near = edits("cat")
    assert {"at", "act", "cot", "cart", "cats"} <= near
    assert "cat" not in near
    assert "dog" not in near


def test_names_are_stable() -> None:
    assert len(BY_NAME) == len(ALL_NOISES)
