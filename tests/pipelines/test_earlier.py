"""Earlier corrections of a run: drafts are copied from them, and they change no output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

import copyspec
from copyspec.pipelines import GECPipeline, ModelCorrector, ModelOptions
from copyspec.pipelines.edits.earlier import PLACE_CHARS, EarlierCorrections, places
from tests.helpers.tiny import tiny_model, tiny_tokenizer


@pytest.mark.parametrize(
    ("text", "corrected", "expected"),
    [
        ("He go to school every day with his friend and likes it", "He goes to school every day with his friends and "
         "likes it", ["He goes to school", " with his friends and likes"]),
        ("we was late .", "We were late .", ["We were late ."]),
        ("I have went home yesterday evening", "I went home yesterday evening", ["I went home yesterday"]),
        ("a b c d e f", "a b c d e f g", [" e f g"]),
        ("one two three four", "two three four", ["two three four"]),
        ("It is late.", "It is  late.", []),
        ("x", "y " * PLACE_CHARS, []),
    ],
)  # fmt: skip
def test_places_are_the_new_words_and_two_on_either_side(text: str, corrected: str, expected: list[str]) -> None:
    assert places(text, corrected) == expected


def test_the_last_places_are_kept() -> None:
    earlier = EarlierCorrections(lambda text: [len(text)], most=2)
    for number in range(3):
        earlier.add("He go home", f"He goes{'s' * number} home")
        earlier.add("It is late", "It is late")
    assert earlier.ids() == [[len("He goess home")], [len("He goesss home")]]
    none = EarlierCorrections(lambda text: [1], most=0)
    none.add("He go home", "He goes home")
    assert none.ids() == []


def test_what_was_corrected_comes_with_later_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = copyspec.load()
    seen: list[copyspec.Input] = []
    generate_each = engine.generate_each

    def noted(inputs: Iterable[copyspec.Input | None], **options: object) -> Iterator[object]:
        def each() -> Iterator[copyspec.Input | None]:
            for one in inputs:
                if one is not None:
                    seen.append(one)
                yield one

        return generate_each(each(), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "generate_each", noted)
    texts = ["The childrens came to see the boat.", "It is late.", "Next year we wants to sail."]
    outcomes: dict[int, dict[int, str | None]] = {}
    for most in (32, 1, 0):
        seen.clear()
        corrector = ModelCorrector(engine, ModelOptions(batch_size=1, earlier=most))
        outcomes[most] = {index: outcome.text for index, outcome in corrector.correct(texts)}
        decoded = [[engine.codec.decode(list(ids)) for ids in one.earlier] for one in seen]
        assert decoded == ([[], *[["The children came to"]] * 2] if most else [[], [], []])
    assert (
        outcomes[32] == outcomes[1] == outcomes[0]
        and (outcomes[0][0] or "").strip() == "The children came to see the boat."
    )


def test_wrong_earlier_texts_say_so() -> None:
    engine = copyspec.Engine(tiny_model(), tiny_tokenizer(chat=False))
    with pytest.raises(TypeError, match="earlier must hold lists of token ids; got str: 'the cat'"):
        list(engine.generate_each([copyspec.Input("the cat", earlier=["the cat"])]))  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"earlier\[1\]\[1\] is not a token id: -2"):
        list(engine.generate_each([copyspec.Input("the cat", earlier=[[5], [5, -2]])]))
    with pytest.raises(ValueError, match=r"earlier must be an integer >= 0 .*, got -1"):
        GECPipeline(engine, earlier=-1)
