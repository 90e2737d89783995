"""Another corrector's corrections as drafts: the same output in fewer passes, asked for only while they pay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pytest

from copyspec import Engine
from copyspec.pipelines import FunctionCorrector, ModelCorrector, ModelOptions, Outcome
from copyspec.pipelines.editing.hypotheses import LOOK_AGAIN, TRIALS, Hypotheses, Price
from tests.helpers.texts import byte_level, llama

pytestmark = pytest.mark.usefixtures("steady_drafts")


@pytest.fixture(scope="module")
def engine() -> Engine:
    tokenizer = byte_level(template=None)
    return Engine(llama(len(tokenizer)), tokenizer)


class Knowing:
    """Answers what it was told to, and counts."""

    by_sentence = False
    limit: int | None = None
    identity: Mapping[str, object] = {}

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known, self.asked = known, 0

    def length(self, text: str) -> int:
        return len(text)

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        for index, text in enumerate(text for text in texts if text is not None):
            self.asked += 1
            yield index, Outcome(self.known[text])


def test_outputs_are_the_same_in_fewer_passes(engine: Engine) -> None:
    texts = [f"the cat number {number} sat on the mat" for number in range(6)]
    plain = dict(ModelCorrector(engine, ModelOptions(max_new_tokens=40)).correct(texts))
    corrector = ModelCorrector(engine, ModelOptions(max_new_tokens=40))
    small = Knowing({text: plain[index].result.text for index, text in enumerate(texts)})  # type: ignore[union-attr]
    corrector._hypotheses = Hypotheses([small], batch_size=2)
    corrector._hypotheses.price.choose = lambda: True  # type: ignore[method-assign]
    drafted = dict(corrector.correct(texts))
    calls = []
    for found in (plain, drafted):
        results = [found[index].result for index in range(len(texts))]
        assert [result.token_ids for result in results] == [plain[i].result.token_ids for i in range(len(texts))]  # type: ignore[union-attr]
        calls.append(sum(result.stats.num_calls for result in results))  # type: ignore[union-attr]
    assert small.asked == len(texts)
    assert calls[1] < 0.6 * calls[0]


def test_texts_are_asked_ahead_and_never_waited_for() -> None:
    small = Knowing({letter: letter.upper() for letter in "abcde"})
    hypotheses = Hypotheses([small], batch_size=2)
    hypotheses.price.choose = lambda: True  # type: ignore[method-assign]
    given = iter(["a", None, "b", "c", "d", None, None, "e"])
    ahead = hypotheses.ahead(given)
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


def test_what_the_small_one_cannot_correct_is_decoded_without() -> None:
    class Silent(FunctionCorrector):
        def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
            yield from ((index, Outcome(None)) for index, text in enumerate(texts) if text is not None)

    hypotheses = Hypotheses([Silent(str.upper)], batch_size=2)
    hypotheses.price.choose = lambda: True  # type: ignore[method-assign]
    assert [*hypotheses.ahead(["a", "b", "c"])] == [("a", ()), ("b", ()), ("c", ())]
