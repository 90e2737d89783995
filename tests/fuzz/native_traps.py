"""Objects that modify their container when they are read, compared, counted or dropped."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf, nan
from random import Random
from typing import Any, TypeVar

INTEGERS = [0, 1, 2, 5, 97, -1, -2, -3, -4, 2**21, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63)]
NUMBERS: list[Any] = [*INTEGERS, 10**400, True, 0.0, -0.0, 1.5, 1e-308, 5e-324, 1e308, -1.0, inf, -inf, nan, None, "1"]

Value = TypeVar("Value")


class TrapError(Exception):
    """Raised by a trap instead of answering."""


class Trap:
    """An object of no valid type that implements every protocol."""

    def __init__(self, rng: Random, case: dict[str, Any], grow: Callable[..., object]) -> None:
        self._rng = rng
        self._case = case
        self._grow = grow
        self._left = 3  # maximum number of times that it acts, so that recursion ends
        self.equal_to: object = None
        self.springs_at_end = False
        self.itself: object = None

    def _spring(self, answer: Value) -> Value:
        if self._left > 0:
            self._left -= 1
            self._change(self._rng.choice([*self._case.values()]))
        return answer

    def _change(self, value: Any) -> None:
        rng = self._rng
        if rng.random() < 0.05:
            raise TrapError
        if rng.random() < 0.1:
            gc.collect(0)
        if rng.random() < 0.1:
            with suppress(Exception):
                self._grow(*self._case.values())
        if rng.random() < 0.1:  # lists that are still being filled
            for other in gc.get_objects():
                if type(other) is list and other:
                    self.itself = other[-1]
        if isinstance(value, list):
            self._change_list(value)
        elif isinstance(value, dict):
            self._change_dict(value)
        elif isinstance(value, tuple):
            for item in value:
                if isinstance(item, dict) and rng.random() < 0.3:
                    self._change_dict(item)
                elif isinstance(item, array) and rng.random() < 0.5:
                    self._change_array(item)

    def _change_list(self, values: list[Any]) -> None:
        match self._rng.randint(0, 5):
            case 0:
                values.clear()
            case 1:
                del values[len(values) // 2 :]
            case 2:
                values.extend(values[:50])
            case 3:
                values[:] = [self] * len(values)
            case 4:
                values[:] = [self._rng.choice(NUMBERS)] * len(values)
            case 5:
                values.sort(key=id)

    def _change_dict(self, values: dict[Any, Any]) -> None:
        match self._rng.randint(0, 4):
            case 0:
                values.clear()
            case 1:
                for key in values:
                    values[key] = []
            case 2:
                for item in [*values.values()]:
                    if isinstance(item, list):
                        self._change_list(item)
            case 3:
                values.update({number: [number] for number in range(300)})
            case 4 if values:
                values.popitem()

    def _change_array(self, values: array[Any]) -> None:
        with suppress(BufferError, TypeError, OverflowError, IndexError):
            if self._rng.random() < 0.5:
                values[self._rng.randrange(len(values) or 1)] = self._rng.choice(NUMBERS)
            elif self._rng.random() < 0.5:
                values.extend(values)
            else:
                del values[len(values) // 2 :]

    def __index__(self) -> int:
        return self._spring(self._rng.choice(INTEGERS[:9]))

    __int__ = __index__

    def __float__(self) -> float:
        return self._spring(self._rng.choice([0.0, 0.5, 7.0, -1.0, inf, nan]))

    def __eq__(self, other: object) -> bool:
        return self._spring(self._rng.random() < 0.5)

    def __hash__(self) -> int:
        return hash(self.equal_to)

    def __bool__(self) -> bool:
        return self._spring(True)

    def __len__(self) -> int:
        return self._spring(9)

    def __getitem__(self, index: object) -> Any:
        return self._spring(self)

    def __iter__(self) -> Iterator[Any]:
        return self._spring(iter([self, 1, 2.0]))

    def __repr__(self) -> str:
        return self._spring("a trap")

    def spring_quietly(self) -> None:
        """Act without raising, for callers that ignore errors."""
        with suppress(Exception):
            self._spring(None)

    def __del__(self) -> None:
        if self.springs_at_end:
            self.spring_quietly()


class IntegerTrap(Trap, int):
    """A subclass of int, which passes type checks."""

    def __new__(cls, rng: Random, case: dict[str, Any], grow: Callable[..., object]) -> IntegerTrap:
        return int.__new__(cls, rng.choice(INTEGERS))


class NumberTrap(Trap, float):
    """A subclass of float."""

    def __new__(cls, rng: Random, case: dict[str, Any], grow: Callable[..., object]) -> NumberTrap:
        return float.__new__(cls, rng.choice([0.0, 1.0, nan]))


class PairTrap(Trap, tuple[Any, ...]):
    """A subclass of tuple whose two items are traps."""

    def __new__(cls, rng: Random, case: dict[str, Any], grow: Callable[..., object]) -> PairTrap:
        return tuple.__new__(cls, (Trap(rng, case, grow), Trap(rng, case, grow)))


def make_trap(rng: Random, case: dict[str, Any], grow: Callable[..., object]) -> Trap:
    """Make a trap that modifies the containers of `case`, and calls `grow` while `grow` is running."""
    trap = rng.choice([Trap, Trap, IntegerTrap, NumberTrap, PairTrap])(rng, case, grow)
    trap.springs_at_end = rng.random() < 0.1
    return trap
