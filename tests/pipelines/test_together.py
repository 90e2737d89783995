"""Changes that are judged together."""

from __future__ import annotations

import random

import pytest

from copyspec.pipelines.documents import Edit
from copyspec.pipelines.guards.together import groups, mistakes

WORDS = ["first", "second", "this", "is", "are", "these", "has", "have", "cat", "cats", "moved", "or", "the", "orthe"]


@pytest.mark.parametrize("seed", range(20))
def test_groups_divide_all_changes_and_ascend(seed: int) -> None:
    """A word may move over others, so that groups are joined in any order."""
    draw = random.Random(seed)
    for _ in range(50):
        words = [draw.choice(WORDS) for _ in range(12)]
        text, edits, at = " ".join(words), list[Edit](), 0
        for word in words:
            if draw.random() < 0.5:
                start, end = draw.choice([(at, at + len(word)), (at, at)])
                new = draw.choice(["", *WORDS])
                edits += [Edit(start, end, new if end > start else f"{new or 'a'} ")]
            at += len(word) + 1
        divided = groups(text, edits)
        assert sorted(place for group in divided for place in group) == list(range(len(edits)))
        assert all(group == sorted(group) for group in divided)


def test_words_that_are_divided_belong_together() -> None:
    text = "a piece of code, orthe way"
    edits = [Edit(16, 16, " or"), Edit(17, 22, "the")]
    assert groups(text, edits) == [[0, 1]]
    assert groups("He go too school", [Edit(3, 5, "goes"), Edit(6, 9, "to")]) == [[0], [1]]


@pytest.mark.parametrize(
    ("text", "was", "becomes", "forms"),
    [
        ("It is used has centre", "", " to", ("has", "have")),
        ("They able goes home", "", " to", ("goes", "go")),
        ("He did not to goes home", " to", "", ("goes", "go")),
        ("It can seeing this", "can", "is", ("seeing", "sees")),
        ("They will delete by us", "", " be", ("delete", "deleted")),
    ],
)
def test_a_form_belongs_to_the_function_word_before_it(
    text: str, was: str, becomes: str, forms: tuple[str, str]
) -> None:
    at = text.index(forms[0])
    start = at - 1 - len(was)
    one, two = Edit(start, at - 1, becomes), Edit(at, at + len(forms[0]), forms[1])
    assert text[start : at - 1] == was and groups(text, [one, two]) == [[0, 1]]
    wrong = f"{text[:at]}teh{text[at + len(forms[0]) :]}"  # a misspelling is wrong by itself
    assert groups(wrong, [one, Edit(at, at + 3, "the")]) == [[0], [1]]
    far = f"{text[:at]}now {text[at:]}"
    assert groups(far, [one, Edit(at + 4, at + 4 + len(forms[0]), forms[1])]) == [[0], [1]]


@pytest.mark.parametrize(("was", "becomes"), [("phpseclib", "PHPService"), ("Korvid", "Covid"), ("Dask", "Desktop")])
def test_function_words_belong_to_a_word_beside_them_that_is_misread(was: str, becomes: str) -> None:
    text = f"{was} ongoing work on {was} here"
    end, at = len(was), len(was) + 17
    misread = [Edit(0, end, becomes), Edit(end, end, " is"), Edit(at - 1, at - 1, " the"), Edit(at, at + end, becomes)]
    assert groups(text, misread) == [[0, 1], [2, 3]]
    spelling = [Edit(0, end, f"{was}s"), Edit(end, end, " is")]
    assert groups(text, spelling) == [[0], [1]]


def _edits(wrong: str, right: str) -> list[Edit]:
    """One edit for each word that differs; "_" stands for no word on that side."""
    edits, at = list[Edit](), 0
    for was, becomes in zip(wrong.split(), right.split(), strict=True):
        if was == "_":
            edits.append(Edit(at, at, f"{becomes} "))
            continue
        if was != becomes:
            edits.append(Edit(at, at + len(was), becomes))
        at += len(was) + 1
    return edits


@pytest.mark.parametrize(
    ("wrong", "right", "count"),
    [
        ("users give update that is short", "users give updates that are short", 1),
        ("it allow to give update that is", "it allows to give updates that are", 1),
        ("this big cat are here", "these big cats is here", 1),
        ("It is used _ has it", "It is used to have it", 2),
        ("They will _ delete it", "They will be deleted it", 2),
        ("It phpseclib _ ongoing", "It PHPService is ongoing", 2),
    ],
)
def test_an_agreement_is_one_mistake(wrong: str, right: str, count: int) -> None:
    edits = _edits(wrong, right)
    assert len(edits) >= count
    assert mistakes(" ".join(word for word in wrong.split() if word != "_"), edits) == count
