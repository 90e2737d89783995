"""Guards: what a model may not change stays, and its comments around a text never reach the file."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.pipelines import Edit, Part, unwritable
from copyspec.pipelines.documents import Segment
from copyspec.pipelines.edits.diff import apply
from copyspec.pipelines.guards import bounded
from copyspec.pipelines.guards.guards import Checked, GuardOptions, check
from copyspec.pipelines.guards.wrappers import unwrapped

_SOON = 15.0  # CPU seconds; usually a fifth of one, 4 on a very busy machine, minutes if something is quadratic

SOURCE = "He go to school every day, and he like it."
RIGHT = "He goes to school every day, and he likes it."

WRAPPED = [
    f"Here is the corrected text: {RIGHT}",
    f"Here is the corrected text:\n\n{RIGHT}",
    f"Here's the corrected version:\n{RIGHT}",
    f"Sure! Here is the corrected sentence:\n\n{RIGHT}",
    f"Certainly! Here's your text with the grammar fixed:\n\n```\n{RIGHT}\n```",
    f"```text\n{RIGHT}\n```",
    f"```\n{RIGHT}\n```\n\nI corrected two verbs.",
    f"Corrected text: {RIGHT}",
    f"**Corrected text:** {RIGHT}",
    f"Corrected: {RIGHT}",
    f"Correction:\n{RIGHT}",
    f"Output: {RIGHT}",
    f"Answer: {RIGHT}",
    f'"{RIGHT}"',
    f"“{RIGHT}”",
    f"**{RIGHT}**",
    f"> {RIGHT}",
    f'The corrected sentence is: "{RIGHT}"',
    f"<think>\nThe verbs are wrong: go, like.\n</think>\n\n{RIGHT}",
    f"The verbs are wrong.</think>{RIGHT}",
    f"<corrected>{RIGHT}</corrected>",
    f"{RIGHT}\n\nNote: I changed 'go' to 'goes' and 'like' to 'likes'.",
    f"{RIGHT}\n\nExplanation:\n- go -> goes\n- like -> likes",
    f"{RIGHT}\n\n**Changes made:**\n1. go\n2. like",
    f"Sure, here you go:\n\n{RIGHT}\n\nLet me know if you need anything else!",
    f"I've corrected the grammar for you:\n\n{RIGHT}",
    f"Original: {SOURCE}\nCorrected: {RIGHT}",
    f"Of course. The corrected text is below.\n\n---\n\n{RIGHT}\n\n---",
    f"Assistant: {RIGHT}",
    f"Here is the corrected text:\n\n> {RIGHT}\n\nI hope this helps!",
    f"The text with corrections:\n{RIGHT}",
    f'Okay, here\'s the revised version of the sentence:\n\n"{RIGHT}"\n\nI fixed the verbs.',
]


@pytest.mark.parametrize("output", WRAPPED)
def test_wrappers_come_off(output: str) -> None:
    assert unwrapped(output, SOURCE).strip("-\n ") == RIGHT


@pytest.mark.parametrize(
    "text",
    [
        "Here is the corrected text: read it.",
        "Sure, I will come. See you.",
        "Output: 5 lines.",
        "Note: the door is open.\n\nNote: it is cold.",
        '"Quoted," he said, "twice."',
        '"A quote."',
        "```\ncode\n```",
        "**Bold text**",
        "<think>tags in the text</think> stay",
        "Corrected text: yes",
        "No corrections needed.",
        "The text is good.",
        "Of course.",
        "I've corrected the grammar: done.",
        "> quoted",
        "Explanation: none\n\nChanges: none",
        "a\n\nLet me know what you think.",
        "(in brackets)",
        "[in brackets]",
        "Answer: 42",
        "Original: a\nCorrected: b",
    ],
)
def test_the_texts_own_words_stay(text: str) -> None:
    assert unwrapped(text, text) == text
    assert unwrapped(f"Here is the corrected text:\n\n{text}", text) == text
    changed = text.replace(".", ", now.").replace("text", "texts")
    assert unwrapped(changed, text) == changed


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_word_of_the_source_is_lost(source: str, output: str) -> None:
    unwrapped_text = unwrapped(output, source)
    assert (
        unwrapped_text.strip() in output
        or output in ("", unwrapped_text)
        or unwrapped_text == source
        or "> " in output
        or "- " in output
    )
    assert unwrapped(source, source) == source.strip() or source.strip() == ""


def test_nothing_to_correct_is_the_source() -> None:
    for output in ("No corrections needed.", "The text is already correct.", "There are no errors in this sentence."):
        assert unwrapped(output, SOURCE) == SOURCE


def test_insertions_at_the_beginning_stay() -> None:
    assert unwrapped("However, he goes to school.", "he go to school.") == "However, he goes to school."
    assert unwrapped("This is why he goes.", "Is why he go.") == "This is why he goes."


def checked(source: str, output: str, **options: object) -> Checked:
    segment = Segment(0, len(source))
    return check(source, segment, output, options=GuardOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("I canot see it from here.", "I cannot see it from here."),
        ("It happened in the mid 1990s.", "It happened in the mid-1990s."),
        ("He is a 10-15 year old boy.", "He is a 10-15-year-old boy."),
        ("We came for the three time.", "We came for the third time."),
        ("Each one of them are here.", "Each of them is here."),
    ],
)
def test_spellings_hyphens_and_ordinals_are_corrected(source: str, output: str) -> None:
    assert apply(source, checked(source, output).edits) == output


@pytest.mark.parametrize(
    ("source", "output", "reason"),
    [
        ("We has 32 cats in the house.", "We have 16 cats in the house.", "numbers"),
        ("We has 1,000 cats in it.", "We have 1000 cats in it.", "numbers"),
        ("We has cats in the house.", "We have 3 cats in the house.", "numbers"),
        ("We has 3 cats in the house.", "We have three cats in the house.", "numbers"),
        ("He go out at -5 degrees.", "He goes out at 5 degrees.", "numbers"),
        ("He go out at 5 degrees.", "He goes out at -5 degrees.", "numbers"),
        ("Pages 5-10 is good to read.", "Pages 5 10 are good to read.", "marks"),
        ("We stays here for two days.", "We stay here for three days.", "swap"),
        ("He have twelve thousand cats.", "He has twelve cats.", "swap"),
        ("He have sixteen cats.", "He has sixty cats.", "swap"),
        ("You shares it and we can see it.", "You share it and we cannot see it.", "swap"),
        ("See https://ex.org/a-teh.html it are good.", "See https://ex.org/a-the.html it is good.", "links"),
        ("Write to jon@ex.org it are good.", "Write to john@ex.org it is good.", "links"),
        ("Call `teh_fn` it are good.", "Call `the function` it is good.", "code"),
        ("Call set_vale it are good.", "Call set_value it is good.", "code"),
        ("Use --no-chek it are good.", "Use --no-check it is good.", "code"),
        ("Open /usr/lcal/x it are good.", "Open /usr/local/x it is good.", "code"),
        ("Say {nmae} it are good.", "Say {name} it is good.", "code"),
        ("Open src/recieve/handler.x it are good.", "Open src/receive/handler.x it is good.", "code"),
        ("See github.com/acme/recieve it are good.", "See github.com/acme/receive it is good.", "links"),
        (f"The key {'xaF' * 14} are good.", f"The key {'xaF' * 13}a is good.", "code"),
        ("We runs on Linux every day.", "We run on Linguistics every day.", "names"),
        ("We tells NASA every day.", "We tell NATO every day.", "names"),
    ],
)
def test_guarded_edits_are_left_out_and_told(source: str, output: str, reason: str) -> None:
    result = checked(source, output)
    assert [refusal.reason for refusal in result.dropped] == [reason]
    assert len(result.edits) == 1 and result.refusal is None
    whole = checked(source, output, all_or_nothing=True)
    assert whole.edits == () and whole.refusal == result.dropped[0]
    if reason in ("numbers", "links", "names"):
        allowed = checked(source, output, **{f"allow_{reason}": True}, allow_swaps=True)
        if reason != "links" or "." not in source.split("@")[0]:
            assert apply(source, allowed.edits) == output


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("a long -term plan for man -kind are it", "a long -term plan for mankind is it"),
        ("see https://ex.org it are good", "see https://ex.org, it is good."),
        ("we has 5 cat", "we have 5 cats."),
        ("in london and PARIS it rain", "in London and Paris it rains"),
        ("Getting Start With Teh Tool", "Getting Started With The Tool"),
        ("tHe cat are in the 2nd house", "The cat is in the 2nd house"),
        ("It is nice.Then we goes", "It is nice. Then we go"),
        ("I seen `x = 3` and `y`.", "I saw `x = 3` and `y`."),
        ("WE HAS A CAT", "WE HAVE A CAT"),
        ("Use and/or/teh one, yes/no/mabye.", "Use and/or/the one, yes/no/maybe."),
    ],
)
def test_ordinary_corrections_pass(source: str, output: str) -> None:
    result = checked(source, output)
    assert (result.refusal, list(result.dropped)) == (None, [])
    assert result.edits


def test_a_rewritten_segment_stays() -> None:
    result = checked("He go to school every day with his friend.", "Each morning the boy walks over to class alone.")
    assert result.edits == () and result.refusal is not None and result.refusal.reason == "ratio"
    assert checked("He go", "He goes").refusal is None
    assert (
        checked("a b c d e f", "g h i j k l", max_edit_ratio=1.0, allow_new_words=True, allow_swaps=True).refusal
        is None
    )
    assert checked("He go home", " ").refusal is not None
    longer = "We go home now and then we go out again."  # added words count, so that a ratio may exceed 1
    for ratio, is_kept in ((1.0, False), (2.0, True)):
        assert bool(checked("We go home now.", longer, max_edit_ratio=ratio, allow_swaps=True).edits) == is_kept


@pytest.mark.parametrize(
    ("source", "output", "told"),
    [
        ("We has 32 cats in it.", "We have 16 cats in it.", "'32' would become '16', but numbers may not change"),
        ("We has cats in it.", "We have 3 cats in it.", "' 3' would be added, but numbers may not change"),
        ("We tells NASA it.", "We tell NATO it.", "'NASA' would become 'NATO', but names may not change"),
        (
            "We stays here for two days.",
            "We stay here for three days.",
            "'two' would become 'three', but 'three' is another word, not another form or spelling",
        ),
        (
            "She like an easy fly ball.",
            "She likes an easy ball.",
            "'easy fly' would become 'easy', but the word 'fly' would be lost",
        ),
        (
            "She like the noise ...",
            "She likes the noise ..",
            "'...' would become '..', which changes where or how a sentence ends",
        ),
        (
            "See the (old) town, it are good.",
            "See the (old town, it is good.",
            "'(old)' would become '(old', but a mark such as ')' is neither added nor removed",
        ),
    ],
)
def test_refusals_are_sentences_for_writers(source: str, output: str, told: str) -> None:
    assert [refusal.detail for refusal in checked(source, output).dropped] == [told]


@pytest.mark.parametrize(
    ("replacement", "segment", "told"),
    [
        ("\x1b", Segment(0, 5), "'\\x1b' would add '\\x1b', which is not text"),
        ("€", Segment(0, 5), "'€' would add '€', which the encoding 'latin-1' lacks"),
        ("<b>", Segment(0, 5, forbidden="<"), "'<b>' would add '<', which is markup in this format"),
        (
            "=",
            Segment(0, 5, not_first="="),
            "'he' would become '=', but then the cell would begin with '=', as formulas do",
        ),
        (
            "1.",
            Segment(0, 5, begins_block=lambda line: line.startswith("1.")),
            "'he go' would become '1. go', which begins with markup, as list items and headings do",
        ),
    ],
)
def test_what_cannot_be_written_is_told_in_a_sentence(replacement: str, segment: Segment, told: str) -> None:
    refusal = unwritable(Part("he go", encoding="latin-1"), segment, [Edit(0, 2, replacement)])
    assert refusal is not None and refusal.detail == told


def test_a_text_that_lost_a_part_stays() -> None:
    source = "He go to school every day with his friend, and he like it there very much."
    result = checked(source, "He goes to school every day with his friend.")
    assert result.edits == () and result.refusal is not None and result.refusal.reason == "lost"
    assert result.refusal.detail == "7 of 16 words would be lost, above the limit of 25 % (max_lost_ratio)"
    assert checked(source, "He goes to school every day with his friend.", max_lost_ratio=1).edits
    with pytest.raises(ValueError, match="max_lost_ratio=-1"):
        GuardOptions(max_lost_ratio=-1)


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("Task", "Task. Task.", "Task"),
        ("Task", "T task", "Task"),
        ("Total", "Totalal.", "Total"),
        ("childrens", "Mill children are.", "childrens"),
        ("Part two", "Part two. Part two.", "Part two"),
        ("buy new ropes", "Boppes.", "buy new ropes"),
        ("buy new ropes", "buy ropes", "buy new ropes"),
        ("Dear Anna,", "Dear Anna, Dear Anna, Dear.", "Dear Anna,"),
        ("Opne questions", "Open questions.", "Open questions"),
        ("The boat", "The boat.", "The boat"),
        ("recieve", "receive", "receive"),
        ("teh", "The", "The"),
        ("alot", "a lot", "a lot"),
        ("dont worry", "don't worry", "don't worry"),
        ("tasks tasks", "tasks", "tasks"),
        ("He go.", "He goes there.", "He goes there."),
        ("“Go!”", "“Go away!”", "“Go away!”"),
        ("he go home late", "he goes home late.", "he goes home late."),
    ],
)
def test_few_words_without_an_end_become_no_sentence(source: str, output: str, expected: str) -> None:
    result = checked(source, output)
    assert apply(source, result.edits) == expected
    refusals = [*result.dropped, *([result.refusal] if result.refusal else [])]
    assert {refusal.reason for refusal in refusals} <= {"fragment"} and bool(refusals) == (expected != output)


def test_protected_spans_stay() -> None:
    source = "He see [teh link](http://x.y) and teh cat"
    segment = Segment(0, len(source), protected=((16, 29),))
    result = check(source, segment, "He sees [the link](http://the.y) and the cat")
    assert apply(source, result.edits) == "He sees [the link](http://x.y) and the cat"
    assert [refusal.reason for refusal in result.dropped] == ["protected"]


@pytest.mark.parametrize("unit", ["x", "A", "a_", "a.b", "a-", "a@", "aé", "你", "你a"])
def test_long_words_take_little_time(unit: str) -> None:
    """A text may contain data. With quadratic time, these took minutes."""

    word = unit * (10_000 // len(unit))
    start = time.process_time()
    assert checked(f"{word} are good.", f"{word} is good.", any_language=True).edits
    checked(f"{word} foo are good.", f"{word[:-1]} bar baz is good.", max_edit_ratio=9)
    assert time.process_time() - start < _SOON


@pytest.mark.parametrize("unit", ["\n", "\n-", "<a> ", "<a>x</a>", "<a>x</b>", "```\n", "Sure! ", " : ", "\nNote: "])
def test_long_answers_take_little_time(unit: str) -> None:
    """A model's output may be very long. With quadratic time, or every ending compared, this took minutes."""
    start = time.process_time()
    assert unwrapped(f"Sure: {unit * (60_000 // len(unit))}He goes.", "He go.")
    assert time.process_time() - start < _SOON


def test_the_first_closing_tag_ends_what_a_tag_holds() -> None:
    for output in (f"<a>{RIGHT}</a> <a>x</a>", f"<b>x <a>{RIGHT}</a>", f"x</a> <a>{RIGHT}</a></a>"):
        assert unwrapped(output, SOURCE) == RIGHT
    assert unwrapped(f"<a>{RIGHT}</b>", SOURCE) == f"<a>{RIGHT}</b>"


def test_own_patterns() -> None:
    result = checked(
        "The foo-7x are good and fine.", "The foo-7y is good and fine.", protect=(r"foo-\w+",), allow_numbers=True
    )
    assert apply("The foo-7x are good and fine.", result.edits) == "The foo-7x is good and fine."
    assert [refusal.reason for refusal in result.dropped] == ["protect"]


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="not a valid regular expression"):
        GuardOptions(protect=("(",))
    monkeypatch.setattr(bounded, "SECONDS", 0.01)
    with pytest.raises(ValueError, match=r"protect: '\(\?:a\|a\)\+\$' takes more than 0.01 seconds on 'aaa"):
        list(bounded.BoundedPattern("(?:a|a)+$").finditer("a" * 60 + "!"))
    with pytest.raises(TypeError, match="tuple"):
        GuardOptions(protect="abc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_edit_ratio=-1"):
        GuardOptions(max_edit_ratio=-1)


def test_patterns_and_words_may_come_from_an_iterator() -> None:
    options = GuardOptions(protect=iter([r"foo-\w+"]), words=iter(["Frobnix"]))  # type: ignore[arg-type]
    source = "The foo-ab are good."
    for _ in range(2):
        result = check(source, Segment(0, len(source)), "The foo-ac is good.", options=options)
        assert "protect" in [refusal.reason for refusal in result.dropped]
    assert options.words == ("Frobnix",)
    with pytest.raises(TypeError, match="protect must be a sequence of regular expressions, each a str; got int: 3"):
        GuardOptions(protect=(3,))  # type: ignore[arg-type]


def test_wrappers_may_stay() -> None:
    text = f'"{SOURCE}"'
    assert checked(SOURCE, f'"{RIGHT}"').refusal is None
    assert apply(SOURCE, checked(SOURCE, f'"{RIGHT}"', strip_wrappers=False, allow_swaps=True).edits) == f'"{RIGHT}"'
    assert apply(text, checked(text, f'"{RIGHT}"').edits) == f'"{RIGHT}"'


@pytest.mark.parametrize("unit", ["a,B,", "你a,", "a b_c ", "http://a.b/c;x,"])
def test_many_edits_of_a_long_word_take_little_time(unit: str) -> None:
    """Without white space, the whole text was scanned for each edit."""
    source = unit * (9_000 // len(unit))
    output = "".join("" if number % 13 == 0 else char for number, char in enumerate(source))
    start = time.process_time()
    allowed = {"allow_new_words": True, "any_language": True, "precision": 0}
    checked(source, output, max_edit_ratio=1e9, max_lost_ratio=1e9, **allowed)
    assert time.process_time() - start < _SOON / 3


def test_white_space_of_an_answer_takes_little_time() -> None:
    start = time.process_time()
    assert checked("He go home.", f"He goes{chr(9) * 60_000}home.", strip_wrappers=False).edits
    assert time.process_time() - start < _SOON / 3
