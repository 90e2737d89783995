"""The steps between two passes, compiled and in Python: they draft the same and learn the same."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from math import nan
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.budget import Budget
from copyspec.drafters import CopyDrafter
from copyspec.drafters.copying import alignment, corpus, drafter, resumptions
from copyspec.drafters.copying import drafter as copying
from copyspec.drafters.copying.native_module import COMPILED
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.sources import Source
from tests.fuzz.native_cases import PROSE, random_row
from training.ngrams import count

pytestmark = pytest.mark.skipif(COMPILED is None, reason="copyspec was installed without a C compiler")

LETTERS = NGrams(count([PROSE], 1000, (1, 1, 1)), lambda texts: [list(map(ord, text)) for text in texts])


@contextmanager
def in_python() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (alignment, corpus, copying):
            stack.enter_context(mock.patch.object(module, "COMPILED", None))
        yield


def state(drafter: CopyDrafter) -> list[object]:
    """Return all that a drafter has learned, and what it knows of its output."""
    corpus, estimates, tracker = drafter._corpus, drafter._estimates, drafter._tracker
    learned = [getattr(estimates, name) for name in vars(estimates)]
    known = [corpus.tokens, [*corpus.written.items()], corpus._counts, corpus.common, corpus.substitutes.packed]
    return [*learned, *known, tracker._copied, tracker._followed.is_active, tracker.cursors()]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), chain=st.booleans(), tokens=st.sampled_from([1, 3, 12]))
def test_drafters_learn_the_same(seed: int, chain: bool, tokens: int) -> None:
    """Bit by bit, along outputs that follow the drafts for a while and then leave them."""
    rng = Random(seed)
    sources, output = random_row(rng)
    ngrams, eos = rng.choice([None, LETTERS]), rng.choice([None, ord(".")])
    drafter, other = [CopyDrafter(sources, eos=eos, ngrams=ngrams) for _ in range(2)]
    with in_python():
        other = CopyDrafter(sources, eos=eos, ngrams=ngrams)
    output = [*output, *rng.choices(output, k=20), *output[-20:]]
    while output:
        nodes, rise = rng.choice([1, 8, 40]), rng.choice([None, 0.0, 0.01, 0.2])
        budget = Budget(nodes, [1.0 + rise * n for n in range(nodes + 1)] if rise is not None else (), chain=chain)
        drafted = drafter.chain(nodes) if chain and rise is None else drafter.propose(budget)
        step = rng.randint(1, tokens)
        with in_python():
            assert drafted == (other.chain(nodes) if chain and rise is None else other.propose(budget))
            other.accept(output[:step])
            expected = state(other)
        drafter.accept(tuple(output[:step]) if rng.random() < 0.2 else output[:step])
        assert state(drafter) == expected
        output = output[step:]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_columns_of_resumptions_are_the_same(seed: int) -> None:
    rng = Random(seed)
    ngrams = NGrams.__new__(NGrams)
    for name in ("_places", "_starts", "_stops", "_tokens", "_shares", "_left", "arrays"):
        setattr(ngrams, name, getattr(LETTERS, name))
    letters = [ord(letter) for letter in set(PROSE)] + [2**40]
    ngrams.small_words, ngrams.word_pieces = (frozenset(rng.sample(letters, k=3)) for _ in range(2))
    text, since = [*map(ord, rng.choices(PROSE, k=80)), *rng.choices(letters, k=4)], rng.choice([1, 2, 3, 4, 9, 48])
    shifts = [0, 1, 2, 3] if since < 4 else [0, since, since - 1]
    arguments = (text, rng.randint(0, 30), since, shifts, ngrams)
    assert copying.columns(*arguments) == [*resumptions.columns(*arguments)]


def _calls() -> dict[str, list[Any]]:
    """Return valid arguments of each function."""
    tree: list[Any] = [[5, 6, 5], [-1, 0, 0], [0.5, 0.4, 0.1], [1, 2, 3], [[(2, 65)], [(3, 66)], []]]
    text, weights = [-1, 5, 6, 5, -4, 7, 8, 6, 5], [0.5] * 400
    return {
        "best_chain": [drafter.TABLES, text, [0.5] * 600, 0.5, *tree, 9],
        "extend": [[5, 6], {5: [1], 6: [2]}, {5: 3, 6: 1}, [5, 6], [7, 6, 6, 5], 3, 2],
        "walk": [
            *(drafter.RATES, [5, 9, 8], *tree, text, 6, {5: 24 * 7, 6: 24 * 8 + 2}),
            *(array("d", [0.0] * 400), weights, [0.5] * 400, [0.5] * 400),
        ],
        "make_odds": [[0.5] * 32, (0.1, 0.3, 0.5), 4, 3, 20],
        "columns": [
            *(drafter.TABLES, drafter.ODDS, text, 3, 2, [0, 1, 2], frozenset({5}), frozenset({6}), LETTERS.arrays)
        ],
        "make_rates": [0.99, 6.0, 3.0, 6.0, 20, 3, 3, 4],
    }


class Trap:
    """A number that empties or changes its container when it is read, and is equal to some numbers."""

    def __init__(self, rng: Random, arguments: list[Any]) -> None:
        self._rng, self._arguments = rng, arguments

    def __index__(self) -> int:
        for argument in self._arguments:
            if isinstance(argument, list | dict) and self._rng.random() < 0.4:
                argument.clear()
        return self._rng.randint(-3, 9)

    def __float__(self) -> float:
        return float(self.__index__())

    def __eq__(self, other: object) -> bool:
        return self.__index__() > 3

    def __hash__(self) -> int:
        return self._rng.choice([5, 6, 7])


def _spoil(rng: Random, arguments: list[Any]) -> None:
    trap = Trap(rng, arguments)
    values: list[Any] = [
        trap,
        None,
        -1,
        0,
        3,
        2**31,
        2**63 - 1,
        -(2**63),
        2**64,
        nan,
        "a",
        (),
        [],
        {},
        [trap],
        [[trap]],
        0.5,
    ]
    at = rng.randrange(len(arguments))
    value = arguments[at]
    match rng.randint(0, 4), value:
        case (0, _):
            arguments[at] = rng.choice([*values, array("d", [1.0]), array("i", [1]), {5: trap, 6: [trap]}, {trap: 1}])
        case (1, list()) if value:
            del value[rng.randrange(len(value)) :]
        case (_, dict()) if value:
            value[rng.choice([*value, trap])] = rng.choice(values)
        case (_, list()) if value:
            value[rng.randrange(min(len(value), 12))] = rng.choice([*values, (trap, trap), (1, -5), [(1, 2**40)]])
        case _:
            with suppress(TypeError):
                arguments[at] = rng.choice([value * 2, -value])


@pytest.mark.parametrize("name", ["best_chain", "extend", "walk", "make_rates", "make_odds", "columns"])
def test_wrong_arguments_raise_or_do_no_harm(name: str) -> None:
    function: Callable[..., object] = getattr(COMPILED, name)
    function(*_calls()[name])
    raised = set()
    for seed in range(600):
        rng, arguments = Random(seed), _calls()[name]
        for _ in range(rng.choice([1, 1, 2, 4])):
            with suppress(Exception):
                _spoil(rng, arguments)
        try:
            function(*arguments)
        except (IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError, BufferError) as error:
            raised.add(type(error))
    assert {TypeError, ValueError} <= raised


def test_cursors_of_nodes_act_as_the_list_that_they_are_in_python() -> None:
    drafter, other = (CopyDrafter([Source([1, 2, 3, 4, 1, 2, 5], "prompt")], eos=7) for _ in range(2))
    drafter.propose(Budget(8))
    with in_python():
        other.propose(Budget(8))
    cursors, expected = drafter._grown.cursors, other._grown.cursors
    assert cursors == expected and cursors != 5 and len(cursors) == len(expected) > 2
    assert [*cursors] == expected and cursors[-1] == expected[-1] and cursors != [*expected[1:]]
    with pytest.raises(IndexError):
        cursors[len(expected)]
    cursors.append([(1, 2)])
    assert cursors == [*expected, [(1, 2)]] and cursors[len(expected)] == cursors[-1] == [(1, 2)]
    cursors.append(cursors)  # type: ignore[arg-type]
    del cursors, drafter
    assert gc.collect() > 0


@pytest.mark.parametrize("name", ["align", "best_chain", "extend", "walk", "make_rates", "make_odds", "columns"])
def test_calls_keep_no_memory(name: str) -> None:
    function: Callable[..., object] = getattr(COMPILED, name)

    def use() -> int:
        for number in range(300):
            arguments: list[Any] = [[5, 6, 7] * 9, 16, 0, 32, 24, 3] if name == "align" else _calls()[name]
            if number % 2:
                arguments[-1] = "a"
            with suppress(TypeError):
                function(*arguments)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        used = [use() for _ in range(4)]
        # A leak would grow the memory in every round.
        assert min(after - before for before, after in pairwise(used)) < 1000
    finally:
        tracemalloc.stop()
