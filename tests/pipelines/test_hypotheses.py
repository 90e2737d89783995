"""Another corrector's outputs as drafts: the same output in fewer passes, requested only while they pay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from copyspec import Engine
from copyspec.pipelines import ModelCorrector, ModelOptions
from copyspec.pipelines.editing.hypotheses import LOOK_AGAIN, TRIALS, Hypotheses, Price
from copyspec.pipelines.editing.versions import LEVELS, _swap, _with_swaps
from tests.helpers.texts import byte_level, llama

pytestmark = pytest.mark.usefixtures("steady_drafts")


@pytest.fixture(scope="module")
def engine() -> Engine:
    tokenizer = byte_level(template=None)
    return Engine(llama(len(tokenizer)), tokenizer)


class Knowing:
    """A corrector that gives known answers and counts its calls."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known, self.asked = known, 0

    def versions(self, texts: Iterable[str]) -> list[tuple[str, ...]]:
        listed = list(texts)
        self.asked += len(listed)
        return [(self.known[text],) for text in listed]


def test_outputs_are_the_same_in_fewer_passes(engine: Engine) -> None:
    texts = [f"the cat number {number} sat on the mat" for number in range(6)]
    plain = dict(ModelCorrector(engine, ModelOptions(max_new_tokens=40)).correct(texts))
    corrector = ModelCorrector(engine, ModelOptions(max_new_tokens=40))
    small = Knowing({text: plain[index].result.text for index, text in enumerate(texts)})  # type: ignore[union-attr]
    corrector._hypotheses = Hypotheses([small], batch_size=2)
    corrector._hypotheses.price.choose = lambda: True  # type: ignore[method-assign]
    drafted = dict(corrector.correct(texts))
    calls = []
    for corrections in (plain, drafted):
        results = [corrections[index].result for index in range(len(texts))]
        assert [result.token_ids for result in results] == [plain[i].result.token_ids for i in range(len(texts))]  # type: ignore[union-attr]
        calls.append(sum(result.stats.num_passes for result in results))  # type: ignore[union-attr]
    assert small.asked == len(texts)
    assert calls[1] < 0.6 * calls[0]


def test_texts_are_asked_ahead_and_never_waited_for() -> None:
    small = Knowing({letter: letter.upper() for letter in "abcde"})
    hypotheses = Hypotheses([small], batch_size=2)
    hypotheses.price.choose = lambda: True  # type: ignore[method-assign]
    texts = iter(["a", None, "b", "c", "d", None, None, "e"])
    ahead = hypotheses.with_hypotheses(texts)
    assert next(ahead) == ("a", ("A",)) and small.asked == 1
    assert [*ahead] == [None, ("b", ("B",)), ("c", ("C",)), ("d", ("D",)), None, None, ("e", ("E",))]


@pytest.mark.parametrize(("with_one", "making", "pays"), [(0.2, 0.3, True), (0.2, 0.9, False), (1.1, 0.0, False)])
def test_what_does_not_pay_is_given_up_and_looked_at_again(with_one: float, making: float, pays: bool) -> None:
    price = Price()
    chosen = []
    for _ in range(2 * TRIALS + 10 * LOOK_AGAIN):
        chosen.append(price.choose())
        if chosen[-1]:
            price.made(making, 1)
        price.decoded(with_one if chosen[-1] else 1.0, 1, has=chosen[-1])
    assert price.pays == pays
    often = sum(chosen[2 * TRIALS :]) / (10 * LOOK_AGAIN)
    assert often == pytest.approx(1 - 1 / LOOK_AGAIN if pays else 1 / LOOK_AGAIN, abs=0.01)


def test_second_choices_stand_in_further_texts() -> None:
    swaps = [(0.3, 3, 8, " dogs"), (0.2, 3, 8, " cat"), (0.05, 3, 8, " hats"), (0.3, 12, 12, " down")]
    assert _with_swaps("Two cats sat.", swaps) == [
        "Two cats sat.", "Two dogs sat down.", "Two cat sat.", "Two hats sat."
    ]  # fmt: skip
    assert _swap("He goes to school by bus.", "He goes to the school") == (10, 10, " the")
    assert _swap("He goes to school by bus.", "He goes to school by") is None


def test_a_model_writes_its_corrections_and_its_second_choices(engine: Engine) -> None:
    corrector = ModelCorrector(engine, ModelOptions(max_new_tokens=12))
    texts = ["The cat sat. It sleeps well.", "", "A mat"]
    outputs = {index: outcome.text or texts[index] for index, outcome in corrector.correct(texts)}
    versions = corrector.versions(texts)
    assert [len(row) for row in versions] == [1 + len(LEVELS)] * 3 and versions[1] == ("",) * (1 + len(LEVELS))
    assert versions[2][0] == outputs[2].strip()  # some models begin with a space
