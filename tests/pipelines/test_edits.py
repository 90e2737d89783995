"""Edits: only real differences, applied to the original characters."""

from __future__ import annotations

import unicodedata
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.pipelines.documents import Edit, Segment, model_text
from copyspec.pipelines.edits.alignment import align
from copyspec.pipelines.edits.diff import apply, diff, merge, segment_edits, shift, tokenized
from copyspec.pipelines.edits.words import Tolerance, words

STRICT = Tolerance(forms=False, quotes=False, spacing=False)
LEXICON = [
    "the",
    "cat",
    "cats",
    "do",
    "n't",
    "don't",
    "it's",
    "its",
    ",",
    ".",
    "-",
    "(",
    ")",
    "a",
    "lot",
    "alot",
    "3.5",
]
GAPS = [" ", "", "\n", "  ", "\t"]

texts = st.lists(st.tuples(st.sampled_from(LEXICON), st.sampled_from(GAPS)), max_size=12).map(
    lambda pairs: "".join(word + gap for word, gap in pairs)
)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(texts, texts)
def test_applied_edits_give_the_corrected_words(source: str, corrected: str) -> None:
    applied = apply(source, diff(source, corrected, tolerance=STRICT))
    assert applied.split() == corrected.split()


@given(any_text, any_text)
def test_applied_edits_give_the_corrected_characters_of_any_text(source: str, corrected: str) -> None:
    applied = apply(source, diff(source, corrected, tolerance=Tolerance(forms=False, quotes=False)))
    assert "".join(applied.split()) == "".join(corrected.split())


@given(any_text, any_text)
def test_edits_ascend_whatever_the_text(source: str, corrected: str) -> None:
    merge(diff(source, corrected))  # raises if edits overlap
    apply(source, diff(source, corrected))


@given(any_text)
def test_a_text_up_to_white_space_gives_no_edits(text: str) -> None:
    assert diff(text, text) == []
    assert diff(text, " ".join(text.split())) == []
    assert diff(text, "\n" + text.replace(" ", "\u00a0") + " ") == []


@given(any_text)
def test_compatibility_forms_give_no_edits(text: str) -> None:
    assert diff(text, unicodedata.normalize("NFC", text)) == []


@given(texts, texts)
def test_alignment_is_longest(left: str, right: str) -> None:
    source, target = words(left, STRICT), words(right, STRICT)
    pairs = align(source, target)
    assert all(source[i].key == target[j].key for i, j in pairs)
    assert pairs == sorted(set(pairs)) and len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert len(pairs) == _longest([w.key for w in source], [w.key for w in target])


def _longest(left: list[str], right: list[str]) -> int:
    row = [0] * (len(right) + 1)
    for a in left:
        before = row[:]
        for j, b in enumerate(right):
            row[j + 1] = before[j] + 1 if a == b else max(before[j + 1], row[j])
    return row[-1]


@pytest.mark.parametrize(
    "text",
    [
        "“Quotes” and ‘these’, it’s – fine — well…",
        "ﬁne ½ Ｆｕｌｌ width №5 ™",
        "e\u0301 and é, no\u00a0break, soft\u00adhyphen, zero\u200bwidth",
        "한국어 \u1112\u1161\u11ab",
        "family 👩‍👩‍👧 ok ❤️",
    ],
)
def test_what_tokenizers_normalise_is_no_edit(text: str) -> None:
    normal = unicodedata.normalize("NFKC", text).translate(str.maketrans("“”‘’–—", "\"\"''--"))
    normal = normal.translate(dict.fromkeys(map(ord, "\u00ad\u200b\u200d\ufe0f")))
    assert diff(text, " ".join(normal.split())) == []
    assert diff(text, normal, tolerance=STRICT) != []


def test_what_the_model_cannot_write_stays() -> None:
    tolerance = Tolerance(lost="{}")
    assert diff("see {x} there", "see x there", tolerance=tolerance) == []
    assert apply("he see {x} there", diff("he see {x} there", "he sees x there", tolerance=tolerance)) == (
        "he sees {x} there"
    )
    assert apply("a the { b", diff("a the { b", "a b", tolerance=tolerance)) == "a { b"
    with pytest.raises(ValueError, match="white space"):
        Tolerance(lost="{ ")


@pytest.mark.parametrize(
    ("source", "corrected", "expected"),
    [
        ("He go  to school .", "He goes to school.", "He goes  to school ."),
        ("I likes alot of\nthing .", "I like a lot of things.", "I like a lot of\nthings ."),
        ("a\nb  the c", "a b c", "a\nb c"),
        ("Hello,world", "Hello, world", "Hello, world"),
        ("We has cats of 1,000", "We have 3 cats of 1000", "We have 3 cats of 1000"),
        ("foo - bar", "foo, bar", "foo, bar"),
        ("foo-bar", "foo and bar", "foo and bar"),
        ("the the cat", "the cat", "the cat"),
        ("every one", "everyone", "everyone"),
        ("a well  known boy", "a well-known boy", "a well-known boy"),
        ("the mid 1990s", "the mid-1990s", "the mid-1990s"),
        ("Hello world again", "Hello,world again", "Hello, world again"),
        ("I don’t knows", "I doesn't know", "I doesn’t know"),
        ("dont", "don't", "don't"),
        ("I do n't know", "I don't know", "I do n't know"),
        ("He said", "He said, yes.", "He said, yes."),
        ("x", "", ""),
        ("", "x", "x"),
        ("don't go", "do not go", "do not go"),
        ("first line\nsecnd line", "first line second line", "first line\nsecond line"),
    ],
)
def test_edits_read_like_a_persons(source: str, corrected: str, expected: str) -> None:
    assert apply(source, diff(source, corrected)) == expected


def test_edits_are_of_words() -> None:
    assert diff("He go to teh school", "He goes to the school") == [Edit(3, 5, "goes"), Edit(9, 12, "the")]


def test_neighbouring_changes_are_edits_of_their_own() -> None:
    assert diff("He have see teh catt", "He has seen the big cat") == [
        Edit(3, 7, "has"),
        Edit(8, 11, "seen"),
        Edit(12, 15, "the"),
        Edit(15, 15, " big"),
        Edit(16, 20, "cat"),
    ]


def test_long_texts_are_fast_and_exact() -> None:
    source = " ".join(f"word{i % 700} the" for i in range(5000))
    corrected = " ".join(f"word{i % 700}{'s' if i % 3 else ''} the" for i in range(5000))
    start = process_time()
    assert apply(source, diff(source, corrected)) == corrected
    assert process_time() - start < 5


def test_merge_and_shift() -> None:
    first, second = [Edit(0, 1, "x")], [Edit(0, 0, "y")]
    assert merge(shift(second, 5), first) == [Edit(0, 1, "x"), Edit(5, 5, "y")]
    with pytest.raises(ValueError, match="same characters"):
        merge([Edit(0, 3, "x")], [Edit(2, 4, "y")])
    with pytest.raises(ValueError, match="must ascend"):
        apply("abc", [Edit(2, 3, ""), Edit(0, 1, "")])
    with pytest.raises(ValueError, match="3 characters"):
        apply("abc", [Edit(2, 4, "")])


def test_hidden_characters_are_neither_shown_nor_changed() -> None:
    text = "> He go\n> to teh school\n"
    segment = Segment(2, 23, hidden=((8, 10),))
    assert model_text(text, segment) == "He go to teh school"
    edits = segment_edits(text, segment, "He goes to the\nschool")
    assert apply(text, edits) == "> He goes\n> to the school\n"


def test_tokenised_segments_stay_tokenised() -> None:
    text = "He do n't likes it and left .\n"
    edits = segment_edits(text, Segment(0, len(text) - 1, is_tokenized=True), "He doesn't like it, and left.")
    assert apply(text, edits) == "He does n't like it , and left .\n"
    assert tokenized('He doesn\'t like (really) U.S. "stuff" at 3.14, e.g. this.') == (
        'He does n\'t like ( really ) U.S. " stuff " at 3.14 , e.g. this .'
    )


def test_no_space_comes_behind_an_entity() -> None:
    assert diff("| &emsp;the other half", "| & emsp; the other half") == []
    assert apply("Hello;world", diff("Hello;world", "Hello; world")) == "Hello; world"


def test_marks_on_a_letter_without_end_take_little_time() -> None:
    """Normalising takes quadratic time."""
    text = "The letter a" + "\u0301\u0316" * 15_000 + " is teh one."
    start = process_time()
    assert apply(text, diff(text, text.replace("teh", "the"))) == text.replace("teh", "the")
    assert process_time() - start < 2
