"""The compiled functions refuse arguments of any wrong shape with an error that Python callers expect."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from copyspec import _trees
from copyspec.targets.static.layout import Shape
from copyspec.targets.static.settings import PAGE, SPLIT

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(_trees, name) for name in dir(_trees) if callable(getattr(_trees, name)) and not name.startswith("_")
}
GOOD: dict[str, tuple[Any, ...]] = {
    "is_sound": ((1, 2), (-1, 0), (0.5, 0.2), (None, None), None, 10),
    "accepted": ((1, 2), (-1, 0), (1, 2, 3)),
    "fit_shared": ([((-1, 0), (0.5, 0.2), 1.0, 2), None], (1.0, 1.1, 1.2), 1.5),
    "in_order": ((1, 2), (-1, 0), (0.5, 0.2), (None, None), (0, 1)),
    "record": ((-1, 0), (0.5, 0.2), (0,), 0.9, 1.0, 1.0),
}


class Odd:
    """Fails in every way in which an object can."""

    def __len__(self) -> int:
        raise ValueError("no length")

    def __iter__(self) -> Any:
        raise ValueError("no items")

    def __index__(self) -> int:
        raise ValueError("no number")

    __float__ = __index__


class Endless:
    def __getitem__(self, index: int) -> int:
        if index > 100:
            raise IndexError
        return index


def values() -> list[Any]:
    plain: list[Any] = [
        None, True, 0, -1, 2**62, -(2**63), 2**64, 10**40, 1.5, float("nan"), float("inf"), "", "abc", "\ud800", b"ab",
        (), [], {}, set(), (1,), [1, 2], (1, 2, 3, 4), {"a": 1}, range(3), iter([1]), object(), type, Odd(), Endless(),
        array("q", [1]), array("d", [1.0]), np.zeros((1, 2, 3), dtype=np.int64), np.zeros((1, 2)), np.int64(3),
        np.zeros(0, dtype=bool), np.float32(0.5), memoryview(b"abc"), bytearray(9), lambda: 1,
    ]  # fmt: skip
    return [
        *plain,
        ((), (), 1.0, 0), [(), (), 1.0, 0], ((1,), (0.5,), 1.0), [None], [[1]], [[[1]]], ((1, 2), "ab"), [Odd()],
        (Odd(), Odd()), [(Odd(), (), 1.0, 0)], (((), (), 1.0, 0),), [((-1,), (0.5,), "1", 1)], [{"a": 1}], ["OOdn"],
        [((-1,), (0.5,), 1.0, 2**80)], [b"abcd"],
    ]  # fmt: skip


def check(name: str, arguments: tuple[Any, ...]) -> None:
    try:
        FUNCTIONS[name](*arguments)
    except (TypeError, ValueError, OverflowError, MemoryError, BufferError) as error:
        assert str(error) or isinstance(error, MemoryError)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_of_any_shape(name: str) -> None:
    draw = random.Random(name)
    for _ in range(3000):
        check(name, tuple(draw.choice(values()) for _ in range(draw.randint(0, 12))))


@pytest.mark.parametrize("name", GOOD)
def test_one_wrong_argument(name: str) -> None:
    FUNCTIONS[name](*GOOD[name])
    for place in range(len(GOOD[name])):
        for value in values():
            check(name, (*GOOD[name][:place], value, *GOOD[name][place + 1 :]))


def test_one_wrong_item() -> None:
    draft = ((-1, 0), (0.5, 0.2), 1.0, 2)
    for place in range(4):
        for value in values():
            check("fit_shared", ([(*draft[:place], value, *draft[place + 1 :])], *GOOD["fit_shared"][1:]))
    for value in values():
        check("fit_shared", ([value], *GOOD["fit_shared"][1:]))


def test_one_wrong_argument_of_a_layout() -> None:
    packed, visible = np.zeros((2, 3), dtype=np.int64), np.zeros(12, dtype=bool)
    good = ([1], [(5,)], [(1, 2)], [(-1, 0)], packed, visible, None, 0)
    shape = Shape(8, 8, 30)
    host = np.zeros(sum(shape.parts), dtype=np.int64)
    rows = ([63], [0], [(3, 4)], [(5,)], [(1, 2)], [(-1, 0)], [3], [(3, 4)], [(1,)], [62])
    static = (host, 8, 8, 8, 30, False, *rows, 1, PAGE, 4, 0, SPLIT)
    for name, arguments in (("lay_out", good), ("lay_out_static", static)):
        FUNCTIONS[name](*arguments)
        for place in range(len(arguments)):
            for value in values():
                check(name, (*arguments[:place], value, *arguments[place + 1 :]))
                check(name, (*arguments[:place], [value], *arguments[place + 1 :]))
                check(name, (*arguments[:place], [[value, value]], *arguments[place + 1 :]))


@pytest.mark.parametrize("tokens", [8, 16, 24])
@pytest.mark.parametrize("shift", range(50, 62))
def test_more_units_of_work_than_a_number_holds_are_refused(tokens: int, shift: int) -> None:
    """Pages of any size are allowed, so that a row may begin far behind them."""
    shape = Shape(tokens, 1, 256)
    host = np.zeros(sum(shape.parts), dtype=np.int64)
    row = ([1 << shift], [0], [(0,)], [(5,) * tokens], [()], [()], [1], (), (), ())
    with pytest.raises(ValueError, match="units do not fit"):
        _trees.lay_out_static(host, tokens, shape.moves, 1, 256, False, *row, 0, 1 << 62, tokens, 1, 1)


@pytest.mark.parametrize("draft", [1, "OOdn", [(), (), 1.0, 0], {"a": 1}, 1.5, b"abcd", object(), range(4)])
def test_a_draft_that_is_no_tuple_is_named(draft: object) -> None:
    with pytest.raises(TypeError, match=f"a draft is a tuple of parents.+, not {type(draft).__name__}"):
        _trees.fit_shared([draft], (1.0, 1.1), 1.5)  # type: ignore[list-item]
