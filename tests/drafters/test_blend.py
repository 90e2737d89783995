"""Copies and models in one tree: shares of probability, origins, models read while it pays, learned accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.blend import BlendDrafter, PredictorDrafter
from copyspec.drafters.predictors.base import Path, Reliability, TokenProbs, Weights, calibrated, paths
from copyspec.sources import Source
from copyspec.tree import ROOT, DraftTree, check_tree


class Table:
    """A predictor that returns given predictions once it has read the node."""

    kind = "model"
    is_model = True

    def __init__(self, said: Mapping[Path, TokenProbs], seconds: float = 0.0, accuracy: float = 0.5) -> None:
        self.said, self.seconds, self.top1_accuracy = dict(said), seconds, accuracy
        self.known: set[Path] = set()
        self.runs: list[DraftTree] = []
        self.output: list[int] = []
        self.gradients: list[float] = []
        self.skips = self.asked = 0

    def weight(self, miss_prob: float) -> float:
        return 4.0

    def predict(self, path: Path) -> TokenProbs | None:
        self.asked += 1
        return self.said.get(path, ()) if path in self.known else None

    def run(self, tree: DraftTree) -> bool:
        self.runs.append(tree)
        self.known |= {(), *paths(tree.tokens, tree.parents)}
        return True

    def accept(self, tokens: Sequence[int]) -> None:
        self.known.clear()
        self.output += tokens

    def skip(self) -> None:
        self.skips += 1

    def update_weight(self, miss_prob: float, gradient: float) -> None:
        self.gradients.append(gradient)


def node(tree: DraftTree, path: Path) -> int | None:
    node_paths = paths(tree.tokens, tree.parents)
    return node_paths.index(path) if path in node_paths else None


def test_models_alone_are_taken_at_their_word() -> None:
    said = {(): [(5, 0.6), (6, 0.3)], (5,): [(7, 0.5)], (6,): [(8, 0.9)]}
    tree = PredictorDrafter([Table(said)]).propose(Budget(8))
    check_tree(tree)
    scores = dict(zip(paths(tree.tokens, tree.parents), tree.scores, strict=True))
    assert scores == pytest.approx({(5,): 0.6, (6,): 0.3, (5, 7): 0.3, (6, 8): 0.27})
    assert list(tree.tokens[:2]) == [5, 7], "the likeliest chain comes first"
    assert set(tree.drafters or ()) == {"model"} and set(tree.origins) == {None}


def test_several_models_share_one_tree() -> None:
    tree = PredictorDrafter([Table({(): [(5, 0.8)]}), Table({(): [(5, 0.4), (6, 0.6)]})]).propose(Budget(8))
    scores = dict(zip(paths(tree.tokens, tree.parents), tree.scores, strict=True))
    assert scores == pytest.approx({(5,): 0.6, (6,): 0.3})


def test_without_a_word_the_tree_is_that_of_the_copies() -> None:
    sources = [Source([1, 2, 3, 4, 5, 6, 2, 3, 9], "edit"), Source([7, 1, 2], "prompt")]
    table = Table({})
    table.is_model = False  # like a datastore, for which nodes need not be read
    silent = BlendDrafter(sources, [table], eos=0)
    copies = create(sources, [0])
    for joined in ([1], [2, 3, 4], [8], [5]):
        tree, expected = silent.propose(Budget(12)), copies.propose(Budget(12))
        assert (tree.tokens, tree.parents) == (expected.tokens, expected.parents)
        assert tree.scores == pytest.approx(expected.scores) and tree.origins == expected.origins
        assert tree.drafters is None
        silent.accept(joined)
        copies.accept(joined)


def test_growth_ends_where_no_node_can_pay() -> None:
    """The tree is the same, but nodes whose cost exceeds their expected gain are not even examined."""
    sources = [Source([*range(1, 60), 3, 5], "reference"), Source([7, 1, 2, 3], "prompt")]
    trees, asked = [], []
    for costs in ([1 + 0.05 * nodes for nodes in range(65)], []):
        table = Table({(): [(4, 0.5), (90, 0.2)], (4,): [(5, 0.9)]})
        trees.append(BlendDrafter(sources, [table], eos=0).propose(Budget(64, costs)))
        asked.append(table.asked)
    short, full = (dict(zip(paths(tree.tokens, tree.parents), tree.scores, strict=True)) for tree in trees)
    scores = sorted(full.values(), reverse=True)
    assert 0 < len(short) == Budget(64, [1 + 0.05 * nodes for nodes in range(65)]).cut(scores)
    assert short == pytest.approx({path: full[path] for path in short}) and min(short.values()) >= scores[len(short)]
    assert asked[0] < asked[1] / 2


def test_copies_go_on_behind_what_a_model_says() -> None:
    """No copy predicts 20. The model does, and what follows 20 in the reference is drafted after it."""
    sources = [Source([20, 21, 22, 23], "reference"), Source([1, 2, 3], "prompt")]
    drafter = BlendDrafter(sources, [Table({(): [(30, 0.5), (20, 0.4)]})], eos=0)
    drafter.propose(Budget(16))
    drafter.accept([4])
    tree = drafter.propose(Budget(16))
    check_tree(tree)
    assert tree.drafters is not None
    copied = node(tree, (20, 21))
    assert copied is not None and tree.origins[copied] == (0, 1) and tree.drafters[copied] is None
    said = node(tree, (30,))
    assert said is not None and tree.origins[said] is None and tree.drafters[said] == "model"


def test_a_copy_that_a_model_confirms_gains_and_keeps_its_origin() -> None:
    sources = [Source([5, 6, 5, 7], "reference"), Source([1, 5], "prompt")]
    alone = create(sources, [0]).propose(Budget(8))
    both = BlendDrafter(sources, [Table({(): [(7, 1.0)]})], eos=0).propose(Budget(8))
    before, after = node(alone, (7,)), node(both, (7,))
    assert before is not None and after is not None
    assert both.scores[after] > alone.scores[before]
    assert both.origins[after] == alone.origins[before] is not None


@given(st.lists(st.integers(0, 5), min_size=2, max_size=30), st.data())
def test_children_share_the_mass_of_their_parent(text: list[int], data: st.DataObject) -> None:
    word = st.lists(st.tuples(st.integers(0, 7), st.floats(0.01, 0.3)), max_size=3, unique_by=lambda pair: pair[0])
    said = {(): data.draw(word), **{(token,): data.draw(word) for token in range(6)}}
    drafter = BlendDrafter([Source(text, "prompt")], [Table(said), Table(dict(list(said.items())[:3]))], eos=0)
    for joined in data.draw(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), max_size=4)):
        tree = drafter.propose(Budget(20))
        check_tree(tree)
        mass = dict.fromkeys(range(ROOT, len(tree)), 0.0)
        for child, parent in enumerate(tree.parents):
            mass[parent] += tree.scores[child]
        for parent, total in mass.items():
            assert total <= (1.0 if parent == ROOT else tree.scores[parent]) + 1e-9
        drafter.accept(joined)


def test_models_are_read_level_by_level_while_that_pays() -> None:
    said = {tuple(range(1, depth + 1)): [(depth + 1, 0.9)] for depth in range(9)}
    free = Table(said)
    tree = PredictorDrafter([free]).propose(Budget(16))
    assert len(tree) == len(free.runs) == 5
    dear = Table(said, seconds=2.0)
    assert len(PredictorDrafter([dear]).propose(Budget(16, [1.0] * 17, seconds=1.0))) == 0
    assert not dear.runs and dear.skips == 1
    fair = Table(said, seconds=0.2, accuracy=0.9)
    PredictorDrafter([fair]).propose(Budget(16, [1.0] * 17, seconds=1.0))
    assert 1 <= len(fair.runs) < 5


def test_weights_follow_who_is_right() -> None:
    sources = [Source([1, 2, 3, 1, 2, 4, 1, 2, 5], "reference"), Source([9, 1, 2], "prompt")]
    for right, sign in ((6, 1), (3, -1)):
        model = Table({(): [(6, 0.9)]})
        drafter = BlendDrafter(sources, [model], eos=0)
        drafter.propose(Budget(8))
        drafter.accept([right])
        assert len(model.gradients) == 1 and model.gradients[0] * sign > 0
        assert model.output == [right]
    weights = Weights()
    before = weights(0.5)
    weights.update(0.5, 0.6)
    assert weights(0.5) > before and weights(0.01) == Weights()(0.01)


def test_reliability_of_a_model_that_is_never_and_always_right() -> None:
    never, always = Reliability(), Reliability()
    for _ in range(200):
        never.record([(1, 0.55)], 2)
        always.record([(1, 0.55)], 1)
    assert never(0.55) < 0.1 and always(0.55) > 0.9
    assert never.top1_accuracy < 0.1 and always.top1_accuracy > 0.9
    for _ in range(300):
        never.skip()
    assert never.top1_accuracy > 0.4
    assert sum(chance for _, chance in calibrated([(1, 0.55), (2, 0.5)], always)) <= 1.0 + 1e-9
