"""Growing a tree, compiled and in Python."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Sequence
from contextlib import suppress
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.budget import Budget
from copyspec.drafters import CopyDrafter, compiled, copying, growth
from copyspec.drafters.corpus import Corpus
from copyspec.drafters.estimates import Estimates
from copyspec.drafters.growth import Cursor, Grown
from copyspec.drafters.ngrams import NGrams
from copyspec.sources import Source
from copyspec.tree import ROOT
from training.ngrams import count

needs_compiler = pytest.mark.skipif(not compiled.IS_COMPILED, reason="copyspec was installed without a C compiler")

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
    """To the last bit, along whole outputs that repeat, edit and leave their sources."""
    edited = data.draw(texts(alphabet, 60))
    sources = [Source(edited, "edit"), Source(data.draw(texts(alphabet, 60)), "reference")]
    sources.append(Source(data.draw(texts(alphabet, 60)), "prompt"))
    output = [*edited[: data.draw(st.integers(0, 60))], *data.draw(texts(alphabet, 30)), *edited[-20:]]
    rise = data.draw(st.sampled_from([None, 0.0, 0.01, 0.2]))
    budget = Budget(nodes, [1.0 + rise * n for n in range(nodes + 1)] if rise is not None else ())
    ngrams = data.draw(st.sampled_from([None, LETTERS]))
    grown = []

    def by_both(corpus: Corpus, cursors: list[Cursor], *rest: object) -> Grown:
        found, expected = (make(corpus, list(cursors), *rest) for make in (compiled.grow, growth.grow))  # type: ignore[arg-type]
        assert found == expected
        grown.append(found)
        return found

    drafter = CopyDrafter(sources, eos=ord("."), ngrams=ngrams)
    with mock.patch.object(copying, "grow", by_both):
        at = 0
        while at < len(output):
            tree = drafter.propose(budget)
            step = _accepted(tree.tokens, tree.parents, output[at:])
            drafter.accept(output[at : at + step])
            at += step
    assert grown


def _accepted(tokens: Sequence[int], parents: Sequence[int], output: Sequence[int]) -> int:
    node, length = ROOT, 0
    for child, parent in enumerate(parents):
        if parent == node and length < len(output) - 1 and tokens[child] == output[length]:
            node, length = child, length + 1
    return length + 1


def _arguments() -> list[object]:
    corpus, estimates = Corpus([Source([1, 2, 3, 1, 2, ord(" "), ord("a")], "prompt")], eos=7), Estimates()
    weights = [estimates.none_at_root, estimates.none_deeper, estimates.language, estimates.common]
    text = [corpus.tokens, corpus.kinds, corpus.output_start, corpus.places, corpus.written]
    said = [[(3, 100)], estimates.at_root, estimates.deeper, estimates.crowds]
    return [compiled._TABLES, *text, *said, *weights, corpus.common, 64, (), ARRAYS]


@needs_compiler
@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (0, None),
        (1, (1, 2)),
        (1, ["one"]),
        (2, []),
        (4, {1: 3, 2: 3, 3: 3}),
        (4, {1: [99], 2: [99], 3: [-5]}),
        (6, [(3, 10**6)]),
        (6, [(-1, 0)]),
        (6, [(99, 0)]),
        (6, [3]),
        (7, [1.0]),
        (9, [1.0]),
        (14, ["one"]),
        (15, 0),
        (16, (1.0, 1.0)),
        (17, ({1: 0},)),
        (17, ({ord("a") + 1: 10**6}, *ARRAYS[1:])),
        (17, (ARRAYS[0], ARRAYS[1][1:], *ARRAYS[2:])),
        (17, (*ARRAYS[:2], array("q", [10**6]) * len(ARRAYS[2]), *ARRAYS[3:])),
        (17, (*ARRAYS[:3], array("i", [1]), *ARRAYS[4:])),
    ],
)
def test_wrong_arguments_of_the_compiled_module_raise(place: int, wrong: object) -> None:
    assert compiled._growth.grow(*_arguments())  # type: ignore[arg-type]
    arguments = _arguments()
    arguments[place] = wrong
    with pytest.raises((TypeError, ValueError, IndexError)):
        compiled._growth.grow(*arguments)  # type: ignore[arg-type]


@needs_compiler
def test_tables_that_do_not_fit_raise() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        compiled._growth.make_tables([0], [0, 0], [0], [0], [0] * 4, 1, 0, 4, 4, 21, 3, 8, *[0.1] * 8)
    with pytest.raises(ValueError, match="a table holds 1"):
        compiled._growth.make_tables([1], [0], [0], [0], [0] * 4, 1, 0, 4, 4, 21, 3, 8, *[0.1] * 8)


@needs_compiler
def test_the_compiled_module_keeps_no_memory() -> None:
    right, wrong = _arguments(), _arguments()
    wrong[4] = {1: [99], 2: [99], 3: [-5]}

    def use() -> int:
        for arguments in (right, wrong) * 500:
            with suppress(ValueError):
                compiled._growth.grow(*arguments)  # type: ignore[arg-type]
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
    monkeypatch.setattr(compiled, "_TABLES", None)
    with mock.patch.object(growth, "grow", wraps=growth.grow) as grow:
        assert CopyDrafter(sources, eos=7).propose(Budget(8)) == tree
    assert grow.call_count == 1
