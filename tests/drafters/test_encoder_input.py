"""An encoder's input is followed as a text that may be edited, and dropped if it is not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.copying.alignment import Alignment
from copyspec.sources import Source
from tests.drafters.test_copying import EOS, Run, check_contract, run

INSTRUCTION = [3, 4, 5]
NODES = 32


def edited(source: Sequence[int], edits: int, rng: random.Random) -> list[int]:
    """Edit `source` by `edits` substitutions, insertions and deletions with new tokens."""
    output = list(source)
    for at in sorted(rng.sample(range(5, len(source) - 5), edits), reverse=True):
        kind = rng.choice("sid")
        output[at : at + (kind != "i")] = [] if kind == "d" else [rng.randrange(200, 300)]
    return output


def follow(source: Sequence[int], output: Sequence[int]) -> Run:
    drafter = create([Source([*source, EOS], "prompt")], {EOS}, continues_prompt=False)
    return run(drafter, [*output, EOS], Budget(NODES))


@pytest.mark.parametrize("edits", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_an_edited_input_takes_few_calls(edits: int, seed: int) -> None:
    rng = random.Random(seed)
    source = [rng.randrange(100, 160) for _ in range(100)]
    output = edited(source, edits, rng)
    drafter = create([Source(source, "edit"), Source([*source, EOS], "prompt")], {EOS}, continues_prompt=False)
    as_edit = run(drafter, [*output, EOS], Budget(NODES)).calls
    assert follow(source, output).calls <= as_edit + 1
    assert follow([*INSTRUCTION, *source], output).calls <= as_edit + 2


def test_the_first_tree_is_the_input_and_its_end_with_origins() -> None:
    for tokens in ([10, 11, 12], [10, 11, 12, EOS]):
        sources = [Source([50, 51], "reference"), Source(tokens, "prompt")]
        tree = create(sources, {EOS}, continues_prompt=False).propose(Budget(16))
        check_contract(tree, sources, [], Budget(16))
        chain = tree.first_chain()
        assert list(chain.tokens)[:4] == [10, 11, 12, EOS]
        assert [origin and tuple(origin) for origin in chain.origins][:3] == [(1, 0), (1, 1), (1, 2)]
        assert (chain.origins[3] is None) == (EOS not in tokens)


def test_an_output_that_leaves_out_the_instruction_is_found_at_once() -> None:
    source = list(range(100, 150))
    drafter = create([Source([*INSTRUCTION, *source], "prompt")], {EOS}, continues_prompt=False)
    drafter.accept(source[:1])
    assert list(drafter.propose(Budget(8)).first_chain().tokens) == source[1:9]


def test_a_given_edit_is_followed_instead() -> None:
    sources = [Source([20, 21, 22], "edit"), Source([10, 11, 12], "prompt")]
    tree = create(sources, {EOS}, continues_prompt=False).propose(Budget(4))
    assert list(tree.first_chain().tokens) == [20, 21, 22, EOS]


def test_an_input_that_is_not_followed_loses_its_weight() -> None:
    rng = random.Random(0)
    source = [rng.randrange(100, 400) for _ in range(100)]
    drafter = create([Source(source, "prompt")], {EOS}, continues_prompt=False)
    costs = Budget(NODES, [1 + 0.02 * n for n in range(NODES + 1)])
    result = run(drafter, [rng.randrange(100, 400) for _ in range(120)], costs)
    sizes = [len(tree) for tree in result.trees]
    assert min(sizes[:3]) > 15
    assert sum(sizes[-30:]) < 5 * 30


def test_a_free_beginning_costs_nothing() -> None:
    source = list(range(40))
    alignment = Alignment(source, free_prefix=12)
    assert alignment.costs.tolist() == [max(0, j - 12) for j in range(41)]
    alignment.extend(source[8:20])
    assert (alignment.best(), alignment.least()) == (20, 0)
