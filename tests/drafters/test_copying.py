"""The copy drafter: its trees satisfy the contract, and copied and edited texts are drafted as they should be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.budget import Budget
from copyspec.drafters import CopyDrafter, create
from copyspec.drafters.base import Drafter
from copyspec.sources import OUTPUT, Source, SourceKind
from copyspec.tree import ROOT, DraftTree, check_tree

EOS = 99


@dataclass
class Run:
    """The trees proposed along an output, and the number of calls that it took."""

    trees: list[DraftTree]
    accepted: list[int]

    @property
    def calls(self) -> int:
        return len(self.trees)


def run(drafter: Drafter, output: Sequence[int], budget: Budget) -> Run:
    result, at = Run([], []), 0
    while at < len(output):
        tree = drafter.propose(budget)
        edges = zip(tree.parents, tree.tokens, strict=True)
        children = {edge: node for node, edge in enumerate(edges)}
        node, length = ROOT, 0
        while at + length < len(output) and (node, output[at + length]) in children:
            node, length = children[node, output[at + length]], length + 1
        drafter.accept(output[at : at + length + 1])
        result.trees.append(tree)
        result.accepted.append(length)
        at += length + 1
    return result


def check_contract(tree: DraftTree, sources: Sequence[Source], output: Sequence[int], budget: Budget) -> None:
    check_tree(tree)
    assert len(tree) <= budget.max_nodes
    best_child: dict[int, int] = {}
    for node, (parent, score) in enumerate(zip(tree.parents, tree.scores, strict=True)):
        assert 0.0 < score <= (1.0 if parent == ROOT else tree.scores[parent])
        if parent not in best_child or score > tree.scores[best_child[parent]]:
            best_child[parent] = node
    chain, node = 0, ROOT
    while node in best_child:
        node = best_child[node]
        assert node == chain, "the most likely chain is stored first"
        chain += 1
    for token, origin in zip(tree.tokens, tree.origins, strict=True):
        if origin is None:  # the end of sequence, or a common token of the text
            assert token == EOS or token in output or any(token in source.tokens for source in sources)
        else:
            tokens = output if origin.source == OUTPUT else sources[origin.source].tokens
            assert tokens[origin.offset] == token


def source_lists(vocabulary: int) -> st.SearchStrategy[list[Source]]:
    kinds: st.SearchStrategy[SourceKind] = st.sampled_from(["edit", "reference", "prompt"])
    tokens = st.lists(st.integers(0, vocabulary - 1), max_size=60)
    return st.lists(st.builds(Source, tokens, kinds), max_size=4)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), vocabulary=st.sampled_from([1, 2, 5, 60]), nodes=st.sampled_from([0, 1, 3, 8, 32]))
def test_every_tree_keeps_the_contract(data: st.DataObject, vocabulary: int, nodes: int) -> None:
    sources = data.draw(source_lists(vocabulary))
    noise = data.draw(st.lists(st.integers(0, vocabulary - 1), max_size=20))
    copied = [token for source in sources for token in source.tokens][:80]
    output = [*copied[: len(copied) // 2], *noise, *copied[len(copied) // 2 :], EOS]
    costs = data.draw(st.sampled_from([(), tuple(1 + 0.03 * n for n in range(nodes + 1))]))
    budget = Budget(nodes, costs)
    first = run(create(sources, {EOS}), output, budget)
    at = 0
    for tree, accepted in zip(first.trees, first.accepted, strict=True):
        check_contract(tree, sources, output[:at], budget)
        at += accepted + 1
    assert run(create(sources, {EOS}), output, budget).trees == first.trees, "the same row, the same trees"


@pytest.mark.parametrize("kind", ["edit", "reference", "prompt"])
@pytest.mark.parametrize(
    "tokens",
    [[], [5], [5] * 40, [1, 2, 3] * 20, list(range(100_000, 100_050)), list(range(90)) * 8],
    ids=["empty", "one token", "all equal", "repeated n-grams", "large ids", "long"],
)
def test_awkward_sources(tokens: list[int], kind: SourceKind) -> None:
    sources = [Source(tokens, kind)]
    output = [*tokens[-30:], 7, 7, *tokens[:30], 200_000, EOS]
    budget, at = Budget(16), 0
    result = run(create(sources, {EOS}), output, budget)
    for tree, accepted in zip(result.trees, result.accepted, strict=True):
        check_contract(tree, sources, output[:at], budget)
        at += accepted + 1


def test_without_sources_only_the_output_is_copied() -> None:
    drafter = create([], ())
    assert len(drafter.propose(Budget(8))) == 0
    result = run(drafter, [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6], Budget(8))
    assert result.calls < 12


def test_accept_without_propose_is_followed() -> None:
    drafter = create([Source(range(20, 60), "edit")], {EOS})
    drafter.accept(range(20, 30))
    assert list(drafter.propose(Budget(4)).tokens) == [30, 31, 32, 33]


@pytest.mark.parametrize("nodes", [1, 8, 32])
def test_a_perfect_copy_fills_the_budget(nodes: int) -> None:
    source = list(range(100, 300))
    result = run(create([Source(source, "edit")], {EOS}), [*source, EOS], Budget(nodes))
    assert result.accepted[:-1] == [nodes] * (result.calls - 1)


def test_the_first_tree_of_an_edit_is_the_source_and_its_end() -> None:
    tree = create([Source([10, 11, 12], "edit"), Source([1, 2, 3], "prompt")], {EOS}).propose(Budget(8))
    assert list(tree.first_chain().tokens) == [10, 11, 12, EOS]
    assert [origin and tuple(origin) for origin in tree.first_chain().origins] == [(0, 0), (0, 1), (0, 2), None]


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda s: [*s[:20], 9, *s[21:]], id="substitution"),
        pytest.param(lambda s: [*s[:20], 9, *s[20:]], id="insertion"),
        pytest.param(lambda s: [*s[:20], *s[21:]], id="deletion"),
        pytest.param(lambda s: [*s[:20], 9, *s[22:]], id="two by one"),
    ],
)
def test_an_edit_resumes_within_one_call(edit: Callable[[list[int]], list[int]]) -> None:
    source = list(range(100, 160))
    result = run(create([Source(source, "edit")], {EOS}), [*edit(source), EOS], Budget(32))
    assert result.accepted[0] == 20
    assert 0 not in result.accepted[1:-1]
    assert sum(result.accepted[1:3]) >= 24


def test_a_long_insertion_resumes_where_it_broke_off() -> None:
    source, inserted = list(range(100, 400)), list(range(1000, 1100))
    drafter = create([Source(source, "edit")], {EOS})
    drafter.accept([*source[:150], *inserted, source[150]])
    assert list(drafter.propose(Budget(8)).first_chain().tokens) == source[151:159]


def test_a_prompt_continues_into_the_output() -> None:
    sources = [Source([1, 2, 3, 4, 5, 50, 60, 1, 2], "prompt")]
    assert create(sources, ()).propose(Budget(3)).tokens[0] == 3
    alone = CopyDrafter(sources, eos=None, continues_prompt=False)
    assert 3 not in alone.propose(Budget(3)).tokens[:1]


def test_a_quotation_in_the_prompt_is_no_second_evidence() -> None:
    quoted = list(range(100, 130))
    reference = Source(quoted, "reference")
    once = create([reference, Source([1, 2, 3, 4], "prompt")], ())
    twice = create([reference, Source([1, 2, *quoted, 3, 4], "prompt")], ())
    for drafter in (once, twice):
        drafter.accept([104, 105])
    score_once, score_twice = (drafter.propose(Budget(1)).scores[0] for drafter in (once, twice))
    assert score_twice == pytest.approx(score_once, abs=0.02)


def test_several_ends_of_sequence_take_the_prompts_own() -> None:
    sources = [Source([10], "edit"), Source([1, 77, 2, 88, 3], "prompt")]
    assert create(sources, {66, 77, 88}).propose(Budget(4)).first_chain().tokens[1] == 88
    assert create(sources[:1], {66, 77}).propose(Budget(4)).first_chain().tokens[1] == 66


def test_a_common_token_has_no_origin() -> None:
    drafter = create([Source([1, 2, 1, 3, 1, 4], "reference")], ())
    drafter.accept([50])
    tree = drafter.propose(Budget(4))
    assert tree.tokens[0] == 1 and tree.origins[0] is None


def test_costs_cut_what_does_not_pay() -> None:
    source = [Source(list(range(100, 160)), "reference"), Source(list(range(50)), "prompt")]
    steep = Budget(32, [1 + 0.5 * n for n in range(33)])
    assert len(create(source, ()).propose(steep)) == 0
    copying = create([Source(range(100, 160), "edit")], ())
    assert 4 <= len(copying.propose(Budget(32, [1 + 0.1 * n for n in range(33)]))) < 32


def test_a_source_that_misleads_loses_its_weight() -> None:
    pairs = [token for index in range(40) for token in (2 * index, 2 * index + 1)]
    drafter = create([Source(pairs, "reference")], ())
    scores = []
    for index in range(30):
        drafter.accept([2 * index])
        tree = drafter.propose(Budget(1))
        scores.append(tree.scores[0] if tree.tokens[0] == 2 * index + 1 else 0.0)
        drafter.accept([5000 + index])
    assert scores[-1] < 0.7 * scores[1]


def test_importing_drafters_loads_no_torch() -> None:
    code = "import sys, copyspec.drafters; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
