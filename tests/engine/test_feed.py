"""Streams of inputs: any number of prompts are decoded through one batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from copyspec import Engine, Input
from copyspec.engine.running.feed import HELD_BATCHES
from tests.helpers.texts import CORPUS
from tests.helpers.texts import engine as tiny_engine

pytestmark = pytest.mark.usefixtures("steady_drafts")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine()


def prompts(count: int) -> list[str]:
    return [f"{i} Correct: {CORPUS[i % len(CORPUS)]}" for i in range(count)]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_a_stream_gives_what_a_list_gives(engine: Engine, batch_size: int) -> None:
    texts = [CORPUS[i % len(CORPUS)] for i in range(9)]
    expected = engine.generate(prompts(9), edit_source=texts, max_new_tokens=24)
    inputs = (Input(prompt, edit_source=text) for prompt, text in zip(prompts(9), texts, strict=True))
    got = list(engine.generate_each(inputs, max_new_tokens=24, batch_size=batch_size))
    assert [index for index, _ in got] == list(range(9))
    assert [result and result.token_ids for _, result in got] == [result.token_ids for result in expected]


def test_inputs_are_taken_as_rows_become_free(engine: Engine) -> None:
    taken = finished = 0

    def inputs() -> Iterator[Input | None]:
        nonlocal taken
        for prompt in prompts(12):
            yield None
            taken += 1
            yield Input(prompt, max_new_tokens=4 + taken)

    for index, result in engine.generate_each(inputs(), ordered=False, batch_size=3, ignore_eos=True):
        assert result is not None and len(result.token_ids) == 5 + index
        finished += 1
        assert taken <= finished + 3
    assert finished == 12


def test_a_slow_input_does_not_let_results_pile_up(engine: Engine) -> None:
    taken = 0
    limit = HELD_BATCHES * 2

    def inputs() -> Iterator[Input]:
        nonlocal taken
        for prompt in prompts(3 * limit):
            yield Input(prompt, max_new_tokens=2 if taken else 200)
            taken += 1

    results = engine.generate_each(inputs(), batch_size=2, ignore_eos=True)
    first, result = next(results)
    assert first == 0 and result is not None and len(result.token_ids) == 200
    assert limit <= taken <= limit + 2, "those held and those running"
    assert [index for index, _ in results] == list(range(1, 3 * limit)) and taken == 3 * limit


def test_numbers_of_numpy_are_limits(engine: Engine) -> None:
    limit: Any = np.int64(2)
    ((_, result),) = engine.generate_each([Input("Hi", max_new_tokens=limit)], ignore_eos=True)
    assert result is not None and len(result.token_ids) == 2


def test_a_prompt_too_long_can_be_skipped(engine: Engine) -> None:
    inputs = [Input("Hi"), Input("word " * 3000), Input("Ho")]
    got = dict(engine.generate_each(inputs, max_new_tokens=3, skip_too_long=True))
    assert list(got) == [0, 1, 2] and got[1] is None and got[0] is not None and got[2] is not None
    with pytest.raises(ValueError, match=r"input 1: .* tokens, but the model's context"):
        list(engine.generate_each(inputs, max_new_tokens=3))


def test_wrong_calls_say_what_to_write(engine: Engine) -> None:
    with pytest.raises(ValueError, match="n=2 is not supported for a stream"):
        engine.generate_each([], n=2, temperature=1.0)
    with pytest.raises(ValueError, match=r"Input\(prompt, edit_source="):
        engine.generate_each([], edit_source="text")
    for option in ({"max_new_tokens": [5, 50]}, {"temperature": [0.5]}, {"seed": [1, 2]}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} must be one value for all inputs, got a list"):
            engine.generate_each([Input("a")], **option)
    with pytest.raises(TypeError, match="input 0: an Input holds one prompt, got 2"):
        list(engine.generate_each([Input(["a", "b"])]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="input 1: max_new_tokens must be an integer >= 1, got 0"):
        list(engine.generate_each([Input("a", max_new_tokens=2), Input("b", max_new_tokens=0)]))
    with pytest.raises(TypeError, match=r"input 0: it must be a copyspec\.Input; got str: 'a'"):
        list(engine.generate_each(["a"]))  # type: ignore[list-item]
    for inputs in ("abc", None, 3, {"a": 1}):
        with pytest.raises(TypeError, match=r"inputs must be an iterable of copyspec\.Input; got"):
            engine.generate_each(inputs)  # type: ignore[arg-type]
    for name in ("ordered", "skip_too_long"):
        with pytest.raises(TypeError, match=f"{name} must be True or False; got str: 'x'"):
            engine.generate_each([], **{name: "x"})
    assert list(engine.generate_each([])) == []


def test_closing_a_stream_ends_it(engine: Engine) -> None:
    stream = engine.generate_each((Input(prompt) for prompt in prompts(50)), max_new_tokens=5)
    next(stream)
    stream.close()
    assert engine.generate("Hi", max_new_tokens=2).token_ids
