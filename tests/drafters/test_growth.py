"""Growing a draft tree: the compiled and the Python version."""

from __future__ import annotations

import gc
import json
import tracemalloc
from array import array
from collections.abc import Sequence
from contextlib import suppress
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.budget import Budget
from copyspec.drafters import CopyDrafter
from copyspec.drafters.copying import drafter as copying
from copyspec.drafters.copying import growth, situations
from copyspec.drafters.copying.corpus import CopyCorpus
from copyspec.drafters.copying.drafter import BREAKING_CONSTANTS, CONSTANTS, TABLES
from copyspec.drafters.copying.estimates import Estimates
from copyspec.drafters.copying.growth import Cursor, Grown, PredictorCalls
from copyspec.drafters.copying.native_module import COMPILED
from copyspec.drafters.copying.substitutes import COLUMNS, SUBSTITUTE_RATIOS
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.sources import Source
from copyspec.tree import ROOT, Origin
from tests.fuzz import native as fuzz_native
from tests.fuzz.native import fuzz
from tests.fuzz.native_cases import ARGUMENTS, Case, guessing, in_python
from training.ngrams import count

needs_compiler = pytest.mark.skipif(COMPILED is None, reason="copyspec was installed without a C compiler")

PROSE = "a cab at a bad cafe fed a bee and a bad cab fed a cafe " * 4
LETTERS = NGrams(count([PROSE], 1000, (1, 1, 1)), lambda texts: [list(map(ord, text)) for text in texts])
assert LETTERS.arrays is not None
ARRAYS = LETTERS.arrays


def texts(alphabet: str, most: int) -> st.SearchStrategy[list[int]]:
    return st.text(alphabet, min_size=1, max_size=most).map(lambda text: list(map(ord, text)))


@needs_compiler
@settings(max_examples=100, deadline=None)
@given(data=st.data(), alphabet=st.sampled_from(["a", "ab", "abcdef "]), nodes=st.sampled_from([1, 8, 40, 80]))
def test_compiled_and_in_python_the_same_trees_are_grown(data: st.DataObject, alphabet: str, nodes: int) -> None:
    """Bit by bit, along whole outputs that repeat, edit and leave their sources."""
    edited = data.draw(texts(alphabet, 60))
    # Without an edited text, copies that soon break off are grown with other constants.
    kind = data.draw(st.sampled_from(["edit", "reference"]))
    sources = [Source(edited, kind), Source(data.draw(texts(alphabet, 60)), "reference")]  # type: ignore[arg-type]
    sources.append(Source(data.draw(texts(alphabet, 60)), "prompt"))
    output = [*edited[: data.draw(st.integers(0, 60))], *data.draw(texts(alphabet, 30)), *edited[-20:]]
    rise = data.draw(st.sampled_from([None, 0.0, 0.01, 0.2]))
    budget = Budget(nodes, [1.0 + rise * n for n in range(nodes + 1)] if rise is not None else ())
    ngrams = data.draw(st.sampled_from([None, LETTERS]))
    predictors = guessing(Random(data.draw(st.integers(0, 99))))
    grown, compiled = [], copying.grow

    def by_both(corpus: CopyCorpus, cursors: list[Cursor], *rest: object) -> Grown:
        for said in (predictors, ()):
            grown_tree, expected = (make(corpus, list(cursors), *rest, said) for make in (compiled, growth.grow))  # type: ignore[arg-type]
            assert grown_tree == expected
        grown.append(grown_tree)
        return grown_tree

    drafter = CopyDrafter(sources, eos=ord("."), ngrams=ngrams)
    with mock.patch.object(copying, "grow", by_both):
        at = 0
        while at < len(output):
            tree = drafter.propose(budget)
            step = _accepted(tree.tokens, tree.parents, output[at:])
            drafter.accept(output[at : at + step])
            at += step
    assert grown


def test_where_copies_break_off_soon_one_constant_is_another() -> None:
    pairs = list(zip(CONSTANTS, BREAKING_CONSTANTS, strict=True))
    assert [pair for pair in pairs if pair[0] != pair[1]] == [(growth.COPY_PRIORITY, growth.COPY_PRIORITY_SHORT)]


def test_copies_break_off_soon_where_the_last_passes_brought_few_tokens() -> None:
    estimates = Estimates()
    assert not estimates.copies_break
    estimates.record_pass(1)
    assert estimates.copies_break
    for tokens in (8, 8):
        estimates.record_pass(tokens)
    assert not estimates.copies_break


def _accepted(tokens: Sequence[int], parents: Sequence[int], output: Sequence[int]) -> int:
    node, length = ROOT, 0
    for child, parent in enumerate(parents):
        if parent == node and length < len(output) - 1 and tokens[child] == output[length]:
            node, length = child, length + 1
    return length + 1


def _case() -> Case:
    corpus, estimates = CopyCorpus([Source([1, 2, 3, 1, 2, ord(" "), ord("a")], "prompt")], eos=7), Estimates()
    weights = [estimates.miss_at_root, estimates.miss_deeper, estimates.ngram_scale, estimates.common]
    said = [[(3, 100)], estimates.at_root, estimates.deeper, list(estimates.crowds)]
    said += [{3: 2 * COLUMNS}, SUBSTITUTE_RATIOS]
    text = [corpus.tokens, corpus.kinds, corpus.places, corpus.written]
    arguments = [TABLES, *text, *said, *weights, corpus.common, 64, (), ARRAYS, ()]
    return dict(zip(ARGUMENTS, arguments, strict=True))


def _grow(case: Case) -> tuple[object, ...]:
    return COMPILED.grow(*case.values())


@needs_compiler
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("tables", None),
        ("tables", [TABLES]),
        ("text", (1, 2)),
        ("text", ["one"]),
        ("text", [1.0] * 9),
        ("text", [2**63] * 9),
        ("kinds", []),
        ("kinds", [4] * 9),
        ("places", {1: 3, 2: 3, 3: 3}),
        ("places", {1: [99], 2: [99], 3: [-5]}),
        ("cursors", [(3, 10**6)]),
        ("cursors", [(-1, 0)]),
        ("cursors", [(99, 0)]),
        ("cursors", [(2**64, 0)]),
        ("cursors", [3]),
        ("at_root", [1.0]),
        ("deeper", [1.0]),
        ("crowds", [1.0]),
        ("crowds", {}),
        ("substitutes", {3: 99 * COLUMNS}),
        ("substitutes", {3: "a"}),
        ("substitutes", {3: 2**64}),
        ("repeated", [1.0]),
        ("repeated", {}),
        ("common", ["one"]),
        ("max_nodes", 2**63),
        ("costs", (1.0, 1.0)),
        ("costs", 5),
        ("ngrams", ARRAYS[1:]),
        ("ngrams", [*ARRAYS]),
        ("ngrams", ({1: 0},)),
        ("ngrams", ({ord("a") + 1: 10**6}, *ARRAYS[1:])),
        ("ngrams", ({ord("a") + 1: "a"}, *ARRAYS[1:])),
        ("ngrams", (ARRAYS[0], ARRAYS[1][1:], *ARRAYS[2:])),
        ("ngrams", (*ARRAYS[:2], array("q", [10**6]) * len(ARRAYS[2]), *ARRAYS[3:])),
        ("ngrams", (*ARRAYS[:3], array("i", [1]), *ARRAYS[4:])),
        ("ngrams", (*ARRAYS[:3], list(ARRAYS[3]), *ARRAYS[4:])),
        ("ngrams", (*ARRAYS[:3], array("d", ARRAYS[3]), *ARRAYS[4:])),
        ("ngrams", (*ARRAYS[:3], memoryview(ARRAYS[3])[::-1], *ARRAYS[4:])),
        ("ngrams", (*ARRAYS[:3], array("q", [-2]) * len(ARRAYS[3]), *ARRAYS[4:])),
        ("ngrams", (*ARRAYS[:4], array("d", [nan]) * len(ARRAYS[4]), ARRAYS[5])),
        ("ngrams", (*ARRAYS[:5], array("d", [nan]) * len(ARRAYS[5]))),
        ("predictors", []),
        ("predictors", (None,)),
        ("predictors", ((print, print, 1),)),
        ("predictors", ((lambda _: 5, lambda _: 1.0, True),)),
        ("predictors", ((lambda _: [5], lambda _: 1.0, True),)),
        ("predictors", ((lambda _: [(5,)], lambda _: 1.0, True),)),
        ("predictors", ((lambda _: [(2**63, 0.5)], lambda _: 1.0, True),)),
        ("predictors", ((lambda _: [(5, "a")], lambda _: 1.0, True),)),
        ("predictors", ((lambda _: [(5, 0.5)], lambda _: None, True),)),
    ],
)
def test_wrong_arguments_of_the_compiled_module_raise(name: str, wrong: object) -> None:
    assert _grow(_case())
    with pytest.raises((TypeError, ValueError, IndexError, OverflowError, BufferError)):
        _grow(_case() | {name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("common", [5, -2], "common tokens are different ids from 0"),
        ("common", [5, 6, 5], "common tokens are different ids from 0"),
        ("cursors", [(3, -1)], r"invalid cursor \(3, -1\)"),
        ("cursors", [(8, 1)], r"invalid cursor \(8, 1\)"),
        ("miss_at_root", 0.0, "miss weight must be > 0, got 0.0"),
        ("miss_deeper", nan, "miss weight must be > 0, got nan"),
        ("ngram_scale", -1.0, "ngram_scale must be >= 0, got -1.0"),
        ("max_nodes", 0, "max_nodes is 0"),
        ("max_nodes", -(2**31), "max_nodes is -2147483648"),
        ("costs", [1.0, 1.0, nan], "costs are numbers above 0, got nan"),
        ("costs", [1.0, 0.0], "costs are numbers above 0, got 0.0"),
        ("at_root", [nan] * situations.COUNT, "weights add up to nan"),
        ("deeper", [-9.0] * situations.COUNT, "weights add up to -"),
        ("common_weights", [inf] * 16, "weights add up to inf"),
        (
            "predictors",
            (PredictorCalls(lambda _: [(-1, 0.5)], lambda _: 1.0, True),),
            r"a token from 0 and its probability",
        ),
        ("predictors", (PredictorCalls(lambda _: [(5, nan)], lambda _: 1.0, True),), r"probability, got \(5, nan\)"),
        (
            "predictors",
            (PredictorCalls(lambda _: [(5, 0.5)], lambda _: 0.0, False),),
            r"predictor weight must be > 0, got 0.0",
        ),
    ],
)
def test_numbers_that_are_none_raise_the_same_compiled_and_in_python(name: str, wrong: object, message: str) -> None:
    case = _case() | {"common": [5, 6], name: wrong}
    for grow in (_grow, in_python) if COMPILED is not None else (in_python,):
        with pytest.raises(ValueError, match=message):
            grow(case)


@needs_compiler
@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (1, [0, 0], "length holds 2 numbers instead of 1"),
        (0, [1], "following holds 1"),
        (0, [-1], "following holds -1"),
        (2, [2**24], "crowd_row holds 16777216"),
        (3, [], "0 companies"),
        (3, [0] * 33, "33 companies"),
        (4, [1], "after_substitute holds 1"),
        (5, [0] * 3, "joined holds 3 numbers instead of 4"),
        (6, 0, "gaps 0"),
        (7, 4, "written 4"),
        (8, 0, "max_joining 0"),
        (9, -1, "max_cursors -1"),
        (10, 2**31 - 1, "3 tokens of 2147483647 bits"),
        (10, 22, "3 tokens of 22 bits"),
        (11, 9, "9 tokens of 21 bits"),
        (12, -(2**63), "max_continuations -9223372036854775808"),
        (13, nan, "a constant is nan"),
        (20, 0.0, "a constant is 0.0"),
        (21, 0, "columns 0"),
        (23, inf, "a constant is inf"),
    ],
)
def test_tables_that_do_not_fit_raise(place: int, wrong: object, message: str) -> None:
    tables: list[object] = [[0], [0], [0], [0], [0], [0] * 4, 1, 0, 4, 4, 21, 3, 8, *[0.1] * 8, 1, *[0.1] * 3]
    assert COMPILED.make_tables(*tables)  # type: ignore[arg-type]
    tables[place] = wrong
    with pytest.raises(ValueError, match=message):
        COMPILED.make_tables(*tables)  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize("where", ["text", "places", "common", "deeper", "cursors", "costs", "keys"])
def test_a_number_may_empty_what_it_stands_in(where: str) -> None:
    """A list is checked again at every number, because reading one may run code that changes the list."""
    case = _case() | {"costs": [1.0 + 0.01 * n for n in range(65)], "at_root": [1.0] * situations.COUNT}

    class Emptying:
        def __index__(self) -> int:
            for value in case.values():
                if isinstance(value, list | dict):
                    value.clear()
            return 1

        def __float__(self) -> float:
            return float(self.__index__())

        def __eq__(self, other: object) -> bool:
            return self.__index__() > 0

        def __hash__(self) -> int:
            return hash(3)

    match where:
        case "text":
            case["text"][3] = Emptying()
        case "places":
            case["places"] = {token: [Emptying()] for token in range(128)}
        case "common":
            case["common"][0] = Emptying()
        case "cursors":
            case["cursors"] = [(Emptying(), Emptying()), (3, 100)]
        case "keys":
            case["places"] = {Emptying(): [3]}
        case _:
            case[where] = [Emptying()] * len(case[where])
    with suppress(IndexError, ValueError, TypeError):
        _grow(case)
    assert not case["text"], "it was read"


@needs_compiler
def test_ids_that_no_key_has_room_for_cut_off_what_comes_before() -> None:
    for token in (2**21 - 2, 2**21 - 1, 2**21, 2**63 - 1):
        case = _case() | {"text": [-1, 1, 2, token, 1, 2, token, ord("a")]}
        assert _grow(case) == in_python(case)


def test_numbers_below_0_in_a_source_are_borders() -> None:
    """Even -2 and -3, which have other meanings in the heap that trees grow from."""
    tokens = [5, -2, -3, 6, -(2**40)] * 4
    corpus = CopyCorpus([Source(tokens, "reference"), Source([6, 5], "prompt")], eos=7)
    assert min(corpus.common) > 0
    assert min(corpus.places) > 0
    tree = CopyDrafter([Source(tokens, "reference"), Source([6, 5], "prompt")], eos=7).propose(Budget(64))
    assert set(tree.tokens) <= {5, 6, 7}


@needs_compiler
def test_a_tree_takes_the_room_that_it_needs_whatever_it_is_allowed() -> None:
    case = _case() | {"max_nodes": 2**62}
    assert _grow(case) == in_python(case)


@needs_compiler
@given(texts("ab ", 40), texts("ab ", 40), st.sampled_from(["edit", "reference"]))
def test_the_index_is_the_same_compiled_and_in_python(text: list[int], other: list[int], kind: Any) -> None:
    """Also if a prompt quotes another source, and if a reference is a version of the edited text."""
    sources = [Source(text, kind), Source([*text, -1, *other], "reference"), Source([*other, *text, 1], "prompt")]
    whole, parts = CopyCorpus(sources, 7), CopyCorpus(sources, 7, at_once=False)
    while not parts.prepare(7):
        assert not parts.common
    assert (parts.places, parts.common) == (whole.places, whole.common)
    compiled_index = whole.places
    with mock.patch("copyspec.drafters.copying.corpus.COMPILED", None):
        in_python = CopyCorpus(sources, 7).places
    assert [*compiled_index.items()] == [*in_python.items()]


@needs_compiler
@given(st.lists(st.tuples(st.integers(-1, 12), st.integers(-2, 30)), min_size=1, max_size=12), st.data())
def test_trees_are_arranged_the_same_compiled_and_in_python(nodes: list[tuple[int, int]], data: st.DataObject) -> None:
    corpus = CopyCorpus([Source([1, 2, 3], "reference"), Source([4] * 9, "reference"), Source([5, 6], "prompt")], 7)
    corpus.extend([8] * 6)
    parents = [ROOT, *(min(parent, node) for node, (parent, _) in enumerate(nodes[1:]))]
    positions = [min(position, len(corpus.tokens) - 1) or -1 for _, position in nodes]  # position 0 is a border
    tokens, scores = list(range(len(nodes))), [0.5**node for node in range(len(nodes))]
    count = data.draw(st.integers(1, len(nodes)))
    arranged = corpus.arranged(tokens, parents, scores, positions, count)
    with mock.patch("copyspec.drafters.copying.corpus.COMPILED", None):
        assert corpus.arranged(tokens, parents, scores, positions, count) == arranged
    assert all(type(origin) in (Origin, type(None)) for origin in arranged.origins)


@needs_compiler
@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        *((0, []), (1, [5]), (1, [-2]), (1, [0]), (1, ["1"]), (2, []), (3, []), (3, [2**64]), (4, 2), (4, -1), (5, [])),
        *((6, []), (7, [2**63 - 1]), (7, [-1]), (10, int)),
    ],
)
def test_wrong_trees_raise_where_they_are_arranged(place: int, wrong: Any) -> None:
    right: list[Any] = [[5], [ROOT], [0.5], [1], 1, [1], [0], [3], 4, 6, Origin]
    assert COMPILED is not None
    assert COMPILED.arrange(*right) == ([5], [ROOT], [0.5], [(0, 0)])
    right[place] = wrong
    with pytest.raises((IndexError, OverflowError, TypeError, ValueError)):
        COMPILED.arrange(*right)


@needs_compiler
@pytest.mark.parametrize(
    ("text", "places", "stop"), [([1, 2], {}, 3), ([2**64], {}, 1), (["1"], {}, 1), ([1], {1: ()}, 1), ((1,), {}, 1)]
)
def test_wrong_texts_raise_in_the_index(text: Any, places: Any, stop: int) -> None:
    assert COMPILED is not None
    with pytest.raises((IndexError, OverflowError, TypeError)):
        COMPILED.index(text, places, 0, stop)


@needs_compiler
def test_hostile_calls_leave_the_interpreter_whole() -> None:
    """`tests.fuzz.native` makes a million such calls, with sanitizers."""
    outcome = fuzz(COMPILED, 4000, seed=17)
    assert not outcome.faults
    assert outcome.compared > 20
    assert outcome.results["wrong: a tree"] > 100


@needs_compiler
def test_the_fuzzer_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = str(COMPILED.__file__)
    assert fuzz_native.main(["--calls", "60", "--module", module, "--json", str(tmp_path / "out.json")]) == 0
    assert "60 calls" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["faults"] == []
    assert fuzz_native.main(["--module", str(tmp_path / "none.so")]) == 2
    assert "none.so" in capsys.readouterr().err


@needs_compiler
def test_the_compiled_module_keeps_no_memory() -> None:
    right, wrong = _case(), _case() | {"places": {1: [99], 2: [99], 3: [-5]}}

    def use() -> int:
        for case in (right, wrong) * 500:
            with suppress(ValueError):
                _grow(case)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        use()
        before = use()
        assert use() - before < 2000
    finally:
        tracemalloc.stop()


def test_without_a_compiler_it_is_done_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [Source([1, 2, 3, 4, 1, 2, 5], "prompt")]
    tree = CopyDrafter(sources, eos=7).propose(Budget(8))
    monkeypatch.setattr(copying, "COMPILED", None)
    with mock.patch.object(growth, "grow", wraps=growth.grow) as grow:
        assert CopyDrafter(sources, eos=7).propose(Budget(8)) == tree
    assert grow.call_count == 1
