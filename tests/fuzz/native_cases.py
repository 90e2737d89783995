"""Makes valid calls of the compiled module, with growth.py's results, for `tests.fuzz.native`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import mul
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from copyspec.budget import Budget
from copyspec.drafters import CopyDrafter
from copyspec.drafters.copying import drafter as copying
from copyspec.drafters.copying import growth
from copyspec.drafters.copying.drafter import CONSTANTS
from copyspec.drafters.copying.growth import Grown, PredictorCalls
from copyspec.drafters.predictors.base import TokenProbs
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.sources import FORK, Source, SourceKind
from copyspec.text.blocks import BUCKETS
from training.ngrams import count

Case = dict[str, Any]
"""The arguments of one call of `grow`, by name, in order."""

PROSE = "a cab at a bad cafe fed a bee and a bad cab fed a cafe " * 4
FORKED = 0.4  # fraction of rows whose sources are blocks of the prompt, with forks
KINDS: tuple[SourceKind, ...] = ("edit", "reference", "prompt")


ARGUMENTS = (
    *("tables", "text", "kinds", "places", "written", "cursors", "at_root", "deeper", "crowds", "substitutes"),
    *(
        "repeated",
        "miss_at_root",
        "miss_deeper",
        "ngram_scale",
        "common_weights",
        "common",
        "max_nodes",
        "costs",
        "ngrams",
        "predictors",
    ),
)


class Guesses:
    """A predictor whose predictions are arbitrary but depend only on the path."""

    def __init__(self, seed: int, alphabet: str) -> None:
        self._seed, self._alphabet = seed, alphabet

    def predict(self, path: tuple[int, ...]) -> TokenProbs | None:
        number = (
            hash((self._seed, path)) & 0xFFFFFFFF
        )  # not Random, since seeding it breaks CPython when memory runs out
        if number % 5 < 2:
            return None if number % 2 else ()
        tokens = [*dict.fromkeys(ord(self._alphabet[(number >> at) % len(self._alphabet)]) for at in range(number % 8))]
        return [(token, 0.9 * (1 + (number >> at) % 7) / 7 / len(tokens)) for at, token in enumerate(tokens)]

    def weight(self, miss_prob: float) -> float:
        return 0.1 + miss_prob


def guessing(rng: Random) -> tuple[PredictorCalls, ...]:
    """Make up to three predictors; some may be models."""
    guesses = [Guesses(rng.randrange(1000), rng.choice(["a", "ab", "abcdef "])) for _ in range(rng.randint(0, 3))]
    are_models = rng.random() < 0.5
    return tuple(PredictorCalls(guess.predict, guess.weight, are_models and rng.random() < 0.7) for guess in guesses)


def record(rng: Random, module: Any, most: int) -> list[Case]:
    """Record up to `most` calls from drafting along outputs that repeat their sources with changes."""
    cases: list[Case] = []

    def grow(*arguments: Any) -> object:
        cases.append(copied(dict(zip(ARGUMENTS, arguments, strict=True))))
        return module.grow(*arguments)

    ngrams = NGrams(count([PROSE], 1000, (1, 1, 1)), lambda texts: [[*map(ord, text)] for text in texts])
    tables = module.make_tables(*CONSTANTS)  # once for all rows, so that a case need not contain them
    with (
        mock.patch.object(copying, "COMPILED", SimpleNamespace(grow=grow, walk=module.walk, columns=module.columns)),
        mock.patch.object(copying, "TABLES", tables),
        mock.patch.object(copying, "BREAKING_TABLES", tables),
    ):
        while len(cases) < most:
            _draft(rng, rng.choice([None, ngrams, ngrams]))
    return cases[:most]


def in_python(case: Case) -> tuple[object, ...]:
    """Return growth.py's result for a call."""
    values = SimpleNamespace(**case)
    corpus = SimpleNamespace(
        **{name: case[name] for name in ("kinds", "places", "written", "common")},
        tokens=values.text,
        output_start=len(values.kinds) - 1,
        substitutes=SimpleNamespace(packed=values.substitutes),
    )
    estimates = SimpleNamespace(**case | {"common": values.common_weights, "copies_break": False})
    ngrams = None
    if values.ngrams is not None:
        ngrams = NGrams.__new__(NGrams)
        places, starts, stops, tokens, shares, left = values.ngrams
        ngrams._places, ngrams._starts, ngrams._stops = places, starts, stops
        ngrams._tokens, ngrams._shares, ngrams._left = tokens, shares, left
    budget = Budget(values.max_nodes, values.costs)
    grown: Any = growth.grow(corpus, values.cursors, estimates, budget, ngrams, values.predictors)  # type: ignore[arg-type]
    return tuple(getattr(grown, name) for name in Grown.__slots__)


def random_row(rng: Random) -> tuple[list[Source], list[int]]:
    """Make sources, some with forks, and an output that repeats the last of them with changes."""
    alphabet = rng.choice(["a", "ab", "abcdef "])
    sources = [Source([ord(rng.choice(alphabet)) for _ in range(rng.randint(1, 50))], kind) for kind in KINDS]
    sources = sources[rng.randint(0, 2) :]
    if rng.random() < FORKED:
        sources = [*(_forked_block(rng, sources[-1].tokens) for _ in range(rng.randint(1, 3))), sources[-1]]
    return sources, [token if rng.random() < 0.9 else ord(rng.choice(alphabet)) for token in sources[-1].tokens]


def _draft(rng: Random, ngrams: NGrams | None) -> None:
    sources, output = random_row(rng)
    drafter = CopyDrafter(sources, eos=rng.choice([None, ord(".")]), ngrams=ngrams)
    while output:
        nodes, rise = rng.choice([1, 8, 40, 80]), rng.choice([None, 0.0, 0.01, 0.2])
        drafter.propose(Budget(nodes, [1.0 + rise * n for n in range(nodes + 1)] if rise is not None else ()))
        step = rng.randint(1, 12)
        drafter.accept(output[:step])
        output = output[step:]


def _forked_block(rng: Random, prompt: Sequence[int]) -> Source:
    """Make a block of the prompt with forks, some of them adjacent or at the end."""
    start = rng.randrange(len(prompt))
    tokens, ends = list(prompt[start : rng.randint(start, len(prompt)) + 1]), []
    for _ in range(rng.randint(0, 4)):
        tokens.insert(rng.randint(1, len(tokens)), FORK)
        ends.append(rng.choices(prompt, k=rng.randint(0, 3)))
    starts = [(at, rng.randrange(BUCKETS)) for at, token in enumerate(tokens) if token != FORK and rng.random() < 0.3]
    return Source(tokens, "block", starts or [(0, BUCKETS - 1)], (start, start + len(tokens)), ends)


def copied(case: Case) -> Case:
    """Copy a call, including its lists, dictionaries and arrays."""
    new = {name: list(value) if isinstance(value, list) else value for name, value in case.items()}
    for name in ("places", "written"):
        new[name] = {token: list(positions) for token, positions in case[name].items()}
    new["substitutes"] = dict(case["substitutes"])
    if case["ngrams"] is not None:
        contexts, *arrays = case["ngrams"]
        new["ngrams"] = (dict(contexts), *(column[:] for column in arrays))
    return new


def vary(rng: Random, case: Case) -> None:
    """Change a call so that it remains valid."""
    for _ in range(rng.randint(0, 3)):
        match rng.randint(0, 10):
            case 10:
                case["predictors"] = guessing(rng)
            case 0:
                name = rng.choice(["at_root", "deeper", "common_weights"])
                factors = rng.choices([0.0, 1e-3, 1.0, 1.0, 7.0, 1e3], k=len(case[name]))
                case[name] = list(map(mul, case[name], factors))
            case 1:
                del case["cursors"][rng.randint(0, len(case["cursors"])) :]
            case 2:
                case["max_nodes"] = rng.choice([1, 2, 3, 64, 500])
                case["costs"] = rng.choices([1.0, 1.1, 1.5, 40.0], k=case["max_nodes"] + 1)
            case 3:
                rng.shuffle(case["common"])
            case 4:
                case[rng.choice(["miss_at_root", "miss_deeper"])] = rng.choice([1e-9, 0.01, 1, 50.0])
            case 5:
                case["ngram_scale"] = rng.choice([0.0, 0.5, 1.0])
            case 6:  # ids too large for the keys
                token, new = rng.choice(case["text"]), rng.choice([2**21 - 2, 2**21 - 1, 2**21, 2**31, 2**63 - 1])
                if token >= 0 and new not in case["text"]:
                    _rename(case, token, new)
            case 7:
                del case["common"][rng.randint(0, len(case["common"])) :]
            case 8 if (
                len(case["text"]) > 4
            ):  # forks at new positions, to any position: other forks, or the fork's own start
                for at in rng.sample(range(len(case["text"]) - 1), k=rng.randint(1, 3)):
                    case["text"][at] = -rng.randint(-FORK + 1, len(case["text"]) - 1)
            case 9 if case["ngrams"] is not None:
                for shares in case["ngrams"][4:]:
                    shares[:] = array("d", [rng.random() ** 2 for _ in shares])


def _rename(case: Case, token: int, new: int) -> None:
    for name in ("text", "common"):
        case[name] = [new if old == token else old for old in case[name]]
    for name in ("places", "written"):
        if token in case[name]:
            case[name][new] = case[name].pop(token)
