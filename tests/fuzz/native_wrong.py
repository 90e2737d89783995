"""Makes invalid calls of the compiled module, for `tests.fuzz.native`."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np

from copyspec.drafters.copying.substitutes import COLUMNS
from tests.fuzz.native_cases import Case
from tests.fuzz.native_traps import NUMBERS, Trap, make_trap

MAX_NODES = 1000
"""Maximum nodes of a tree grown with invalid weights, since with some of them scores never fall."""


class ManyItems(list[Any]):
    """A list that reports more items than it has."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: object) -> Any:
        return self


class FullTable(dict[Any, Any]):
    """A dictionary that contains every key."""

    def __missing__(self, key: object) -> Any:
        return self


def spoil(rng: Random, case: Case, grow: Callable[..., object]) -> None:
    """Make a call invalid, in one way or several."""
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        with suppress(Exception):  # raised by a trap, or because an earlier change replaced something
            _spoil_once(rng, case, make_trap(rng, case, grow))


def _spoil_once(rng: Random, case: Case, trap: Trap) -> None:
    match rng.randint(0, 11):
        case 11:
            case["predictors"] = _spoil_predictors(rng, trap)
        case 0:
            case[rng.choice([*case])] = _anything(rng, trap)
        case 1 | 2 | 3:
            _spoil_list(rng, case[rng.choice([name for name, value in case.items() if _is_list(value)])], trap)
        case 4 | 5:
            _spoil_places(rng, case[rng.choice(["places", "written"])], trap)
        case 6 | 7:
            case["ngrams"] = _spoil_ngrams(rng, case["ngrams"], trap)
        case 8:
            name = rng.choice(["miss_at_root", "miss_deeper", "ngram_scale", "max_nodes", "costs"])
            case[name] = rng.choice([trap, rng.choice(NUMBERS), [1.0], [rng.choice(NUMBERS)] * 99])
        case 9:
            _watch_collections(rng, trap)
        case 10:  # forks that lead beyond the text, or start at its end
            for at in rng.choice([[-1], [0], range(0, len(case["text"]), 2)]):
                case["text"][at] = -rng.choice([3, len(case["text"]), len(case["text"]) + rng.randint(1, 99), 2**62])
    # Done before the trap is dropped, which may call `grow`.
    if isinstance(case["max_nodes"], int) and MAX_NODES < case["max_nodes"] < 2**63:
        case["max_nodes"] = MAX_NODES


def _is_list(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0


def _anything(rng: Random, trap: Trap) -> object:
    values: list[Callable[[], object]] = [
        lambda: None,
        lambda: trap,
        lambda: "text",
        lambda: b"bytes",
        lambda: (item for item in [trap, 1]),
        lambda: ManyItems([trap] * rng.randint(0, 400)),
        lambda: FullTable({trap: trap}),
        lambda: [trap] * rng.randint(0, 400),
        lambda: (1.0,) * rng.randint(0, 400),
        lambda: [],
        lambda: {},
        lambda: range(5),
        lambda: np.arange(9),
        lambda: rng.choice(NUMBERS),
    ]
    return rng.choice(values)()


def _spoil_list(rng: Random, values: list[Any], trap: Trap) -> None:
    at = rng.randrange(len(values))
    match rng.randint(0, 8):
        case 0:
            del values[at:]
        case 1:
            values.extend(values[: rng.randint(1, 99)])
        case 2 | 3:
            values[at] = rng.choice(NUMBERS)
        case 4:
            values[:] = [trap for _ in values]
        case 5 if isinstance(values[at], tuple):
            values[at] = (rng.choice([trap, *NUMBERS]), rng.choice([trap, *NUMBERS]))
        case 6:
            values[-1] = values[0] = trap
        case 7:
            values *= 200 // len(values) + 1
        case _:
            values[at] = trap


def _spoil_places(rng: Random, index: dict[Any, Any], trap: Trap) -> None:
    if not index:
        return
    token = rng.choice([*index])
    match rng.randint(0, 5):
        case 0:
            index[token] = _anything(rng, trap)
        case 1 | 2:
            index[token] = [rng.choice([trap, *NUMBERS]) for _ in range(rng.randint(0, 6))]
        case 3:
            trap.equal_to = token
            index[trap] = index.pop(token)
        case 4:  # at every other token, so that each lookup is compared with it
            trap.equal_to = token
            index.clear()
            index[trap] = [trap]
        case 5:
            index[token] = [rng.randint(-2, 200) for _ in range(9)]


def _spoil_predictors(rng: Random, trap: Trap) -> object:
    """Make predictors that return arbitrary objects and modify what they can at each call."""

    def answer(wanted: object) -> Any:
        def say(_: object) -> object:
            trap.__index__()
            match rng.randint(0, 5):
                case 0:
                    return _anything(rng, trap)
                case 1:
                    return [(rng.choice([trap, *NUMBERS]), rng.choice([trap, *NUMBERS]))]
                case 2:
                    return [(97, 0.5), (trap, 0.1), (98, trap)]
                case 3:
                    return [(97, 0.5), rng.choice([(1,), [97, 0.1], None, trap])]
            return wanted

        return say

    predictors = [(answer([(97, 0.5), (98, 0.1)]), answer(1.0), rng.random() < 0.5) for _ in range(rng.randint(1, 3))]
    match rng.randint(0, 4):
        case 0:
            return [*predictors]
        case 1:
            return (*predictors, _anything(rng, trap))
        case 2:
            return ((*predictors[0][:2], 1), trap)
    return tuple(predictors)


def _spoil_ngrams(rng: Random, ngrams: Any, trap: Trap) -> object:
    if not isinstance(ngrams, tuple) or len(ngrams) != 6 or not isinstance(ngrams[0], dict):
        return rng.choice([None, ngrams, _anything(rng, trap)])
    parts = list(ngrams)
    at = rng.randint(1, 5)
    match rng.randint(0, 7):
        case 0:
            del parts[at]
        case 1:
            return parts
        case 2:
            parts[at] = _anything(rng, trap)
        case 3 if parts[0]:
            _spoil_contexts(rng, parts[0], trap)
        case 4:
            with suppress(TypeError, ValueError):
                parts[at] = _other_array(rng, parts[at])
        case _:
            with suppress(TypeError, IndexError, OverflowError, ValueError):
                for _ in range(rng.choice([1, 5, 200])):
                    parts[at][rng.randrange(len(parts[at]))] = rng.choice(NUMBERS)
    return tuple(parts)


def _spoil_contexts(rng: Random, contexts: dict[Any, Any], trap: Trap) -> None:
    key = rng.choice([*contexts])
    if rng.random() < 0.3:
        contexts.update(dict.fromkeys(contexts, rng.choice([trap, *NUMBERS])))
    elif rng.random() < 0.5:
        contexts[key] = rng.choice([trap, *NUMBERS])
    else:
        trap.equal_to = key
        contexts[trap] = contexts.pop(key)


def _other_array(rng: Random, values: Any) -> object:
    raw = bytearray(memoryview(values).tobytes())
    whole: Any = memoryview(raw)
    between: Any = memoryview(b"." + bytes(raw))[1:]
    numbers = np.frombuffer(raw, dtype=np.int64 if rng.random() < 0.5 else np.float64)
    with np.errstate(all="ignore"):
        others: list[Callable[[], object]] = [
            lambda: bytes(raw),
            lambda: raw,
            lambda: list(values),
            lambda: whole.cast(rng.choice("qQdBN")),
            lambda: between.cast(rng.choice("qd")),
            lambda: memoryview(values)[::2],
            lambda: numbers,
            lambda: numbers[::-1],
            lambda: numbers.reshape(1, -1),
            lambda: numbers.astype(">i8"),
            lambda: numbers.astype(np.int32),
            lambda: numbers.astype(np.complex64),
            lambda: numbers.astype("datetime64[s]"),
            lambda: array("q"),
            lambda: array("d"),
            lambda: array("i", range(9)),
        ]
        return rng.choice(others)()


def _watch_collections(rng: Random, trap: Trap) -> None:
    """Run code at every garbage collection, which before Python 3.12 may happen inside C code. `fuzz` ends it."""
    gc.callbacks.append(lambda *_: trap.spring_quietly())
    gc.set_threshold(rng.choice([1, 3, 10, 50, 200]))


def make_tables(rng: Random, case: Case, module: Any) -> object:
    """Make tables of another shape and change the weights of `case` to fit; or make invalid tables, which raise."""
    states = rng.choice([1, 2, 9, 300])
    below = [states, 64, rng.choice([1, 50, 2**24]), rng.choice([1, 50, 2**24]), states, states]
    sizes = [states, states, states, rng.randint(1, 32), states, 4]
    tables: list[Any] = [rng.choices(range(end), k=size) for end, size in zip(below, sizes, strict=True)]
    orders = rng.randint(1, 8)
    tables += [rng.randint(1, 4), rng.randint(0, 3), rng.randint(1, 5), rng.randint(1, 30)]  # gaps, written, join, keep
    tables += [63 // orders, orders, rng.choice([1, 8])]
    tables += [rng.choice([1e-9, 0.001, 0.25, 6.0]) for _ in range(8)]
    tables.append(rng.choice([1, COLUMNS]))
    if rng.random() < 0.5:
        trap = make_trap(rng, dict(enumerate(tables)), module.grow)  # type: ignore[arg-type]
        for _ in range(rng.choice([1, 1, 3])):
            if rng.random() < 0.5:
                with suppress(Exception):  # as in `spoil`
                    _spoil_list(rng, tables[rng.randrange(6)], trap)
            else:
                tables[rng.randrange(len(tables))] = rng.choice([trap, _anything(rng, trap), *NUMBERS])
    case["at_root"], case["deeper"] = (rng.choices([0.01, 0.5, 2.0, 9.0], k=states) for _ in range(2))
    case["crowds"] = [rng.random() for _ in range(rng.choice([110, 110, 9]))]
    case["cursors"] = [(at, rng.randrange(states)) for at, _ in case["cursors"]]
    return module.make_tables(*tables)
