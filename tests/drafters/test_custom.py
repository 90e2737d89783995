"""Custom drafters: they never change the output, share the tree with copies, and their errors reach the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import copyspec
from copyspec import Budget, DraftContext, DraftTree, Engine, ScoredDraft
from copyspec.drafters.custom import JoinedDrafter, join
from copyspec.literature import Sampled
from copyspec.sources import OUTPUT
from copyspec.text.chat import ChatError
from copyspec.tree import ROOT, Origin, check_tree
from tests.helpers.texts import byte_level, new_engine

pytestmark = pytest.mark.usefixtures("steady_drafts")

OPTIONS = {"max_new_tokens": 24, "ignore_eos": True}
PROMPTS = ["The cat sat on the mat", "A dog sat on the mat", "the sea"]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return new_engine()


class Knowing:
    """Drafts a known output, and is wrong from some token on."""

    def __init__(self, output: Sequence[int], right: int = 100) -> None:
        self._output = [token if place < right else token ^ 1 for place, token in enumerate(output)]
        self._done = 0

    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree.of_chain(self._output[self._done : self._done + budget.max_nodes])

    def accept(self, tokens: Sequence[int]) -> None:
        self._done += len(tokens)


def plain(engine: Engine, prompt: object, **options: object) -> list[tuple[int, ...]]:
    results = engine.generate(prompt, drafter="none", **{**OPTIONS, **options})  # type: ignore[call-overload]
    return [result.token_ids for result in results] if isinstance(results, list) else [results.token_ids]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("right", [100, 5, 0])
def test_text_chat_batch_and_stream_equal_plain_decoding(
    engine: Engine, right: int, options: dict[str, object]
) -> None:
    def factory(context: DraftContext) -> Knowing:
        return Knowing(known[tuple(context.prompt)], right)

    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    for prompt in PROMPTS:
        (known[tuple(engine.codec.encode(prompt, wrap=True).ids)],) = plain(engine, prompt, **options)
    for drafter in (factory, ["auto", factory], [factory, factory]):
        call = {**OPTIONS, **options, "drafter": drafter}
        results = engine.generate(PROMPTS, **call)  # type: ignore[call-overload]
        assert [result.token_ids for result in results] == list(known.values())
        *_, last = engine.stream(PROMPTS[0], **call)  # type: ignore[arg-type]
        assert last.result is not None and last.result.token_ids == results[0].token_ids


def test_right_drafts_save_passes_and_are_counted(engine: Engine) -> None:
    (wanted,) = plain(engine, PROMPTS[0])
    result = engine.generate(PROMPTS[0], drafter=lambda context: Knowing(wanted), **OPTIONS)  # type: ignore[call-overload]
    assert result.token_ids == wanted and result.stats.num_passes <= 6
    assert sum(result.stats.num_accepted_tokens_per_source.values()) >= 15


def test_the_context_says_what_the_row_is_made_of(engine: Engine) -> None:
    seen: list[DraftContext] = []

    def factory(context: DraftContext) -> Knowing:
        seen.append(context)
        return Knowing([])

    engine.generate(PROMPTS[:2], ["some reference"], drafter=factory, **OPTIONS)  # type: ignore[call-overload]
    assert [context.decode(context.prompt) for context in seen] == PROMPTS[:2]
    assert [source.kind for source in seen[0].sources] == ["reference", "prompt"]
    assert seen[0].decode(seen[0].encode("sea")) == "sea" and seen[0].vocab_size == len(byte_level())


def test_an_observer_sees_the_logits_of_every_node(engine: Engine) -> None:
    class Observer(Knowing):
        seen: list[int] = []  # noqa: RUF012

        def observe(self, scored: ScoredDraft) -> None:
            assert scored.logits.shape == (1 + len(scored.tree), len(byte_level()))
            self.seen.append(scored.top(2)[0][0][0])

    (wanted,) = plain(engine, PROMPTS[0])
    result = engine.generate(PROMPTS[0], drafter=lambda context: Observer(wanted), **OPTIONS)  # type: ignore[call-overload]
    assert result.token_ids == wanted and len(Observer.seen) == result.stats.num_passes
    assert Observer.seen[0] == wanted[0]


class Raises(Knowing):
    def propose(self, budget: Budget) -> DraftTree:
        raise ArithmeticError("my drafter broke")


class Wants(Knowing):
    """Wants the states of layers, or raises when it is asked for them."""

    wants_states = True

    def __init__(self, tokens: Sequence[int], layers: object) -> None:
        super().__init__(tokens)
        self._layers = layers

    @property
    def wanted_layers(self) -> object:
        if isinstance(self._layers, Exception):
            raise self._layers
        return self._layers

    def observe(self, scored: ScoredDraft) -> None:
        pass


def proposing(tree: object) -> Callable[[DraftContext], object]:
    drafter = type("Mine", (), {"propose": lambda self, budget: tree, "accept": lambda self, tokens: None})
    return lambda context: drafter()


def fails(context: DraftContext) -> Knowing:
    raise ArithmeticError("my factory broke")


@pytest.mark.parametrize(
    ("factory", "error", "message"),
    [
        (fails, ArithmeticError, "my factory broke"),
        (lambda context: Raises([]), ArithmeticError, "my drafter broke"),
        (lambda context: 3, TypeError, r"returned int: 3, which has no method 'propose'"),
        (proposing([1, 2]), TypeError, r"Mine.propose returned list: \[1, 2\]; it must return a DraftTree"),
        (proposing(DraftTree([1], [3], [0.5], [None])), ValueError, "Mine proposed an invalid draft tree: node 0 has"),
        (
            proposing(DraftTree.of_chain([10**6])),
            ValueError,
            "Mine proposed an invalid draft tree: 1000000 is",
        ),
        (proposing(DraftTree([1], [ROOT], [float("nan")], [None])), ValueError, "node 0 has score nan"),
        (proposing(DraftTree(["a"], [ROOT], [0.5], [None])), ValueError, "Mine proposed an invalid draft tree"),  # type: ignore[list-item]
        (
            proposing(DraftTree([1.5], [ROOT], [0.5], [None])),
            ValueError,
            "1.5 is not a token id",
        ),  # type: ignore[list-item]
        (proposing(DraftTree([1], [ROOT], [torch.ones(1)], [None])), ValueError, "a score is a number"),  # type: ignore[list-item]
        (proposing(DraftTree([1], [ROOT], [0.5], [Origin(99, 0)])), ValueError, "the row has 1 sources"),
        (proposing(DraftTree([1], [ROOT], [0.5], [Origin(0, 10**9)])), ValueError, "that source holds .* tokens"),
        (proposing(DraftTree([1], [ROOT], [0.5], [Origin(OUTPUT, 0)])), ValueError, "holds 0 tokens before the node"),
        (proposing(DraftTree([1], [ROOT], [0.5], [(0, 0)])), ValueError, "an origin is None or an Origin"),  # type: ignore[list-item]
        (proposing(DraftTree([1], [ROOT], [0.5], [None], drafters=[["a"]])), ValueError, "drafters holds"),  # type: ignore[list-item]
        (
            proposing(replace(DraftTree.of_chain([1] * 5000), notes={ROOT: Sampled([1], torch.tensor([0.0, 1.0]))})),
            ValueError,
            "it has notes and 5000 nodes; budget.max_nodes is",
        ),
        (lambda context: Wants([], [99]), ValueError, "wanted_layers holds int: 99; the model has 2 layers"),
        (lambda context: Wants([], ["x"]), ValueError, "wanted_layers holds str"),
        (lambda context: Wants([], 3), TypeError, "wanted_layers is int: 3; it must list"),
        (lambda context: Wants([], ArithmeticError("mine")), ArithmeticError, "mine"),
    ],
)
def test_what_is_wrong_with_a_drafter_is_said_and_nothing_is_broken(
    engine: Engine, factory: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine.generate(PROMPTS[0], drafter=factory, **OPTIONS)  # type: ignore[call-overload]
    assert engine.scheduler.running == engine.scheduler.waiting == 0
    assert engine.generate(PROMPTS[0], **OPTIONS).token_ids == plain(engine, PROMPTS[0])[0]  # type: ignore[call-overload]


def test_a_broken_drafter_disturbs_no_other_caller(engine: Engine) -> None:
    good = engine.submit(PROMPTS[0], **OPTIONS)  # type: ignore[arg-type]
    bad = engine.submit(PROMPTS[1], drafter=lambda context: Raises([]), **OPTIONS)  # type: ignore[arg-type, return-value]
    assert [result.token_ids for result in good.results()] == plain(engine, PROMPTS[0])
    with pytest.raises(ArithmeticError, match="my drafter broke"):
        bad.results()


def test_a_drafter_cannot_change_the_output_or_what_later_calls_read(engine: Engine) -> None:
    source = "The cat sat on the mat near the school. " * 10

    class Vandal(Knowing):
        def observe(self, scored: ScoredDraft) -> None:
            scored.logits.zero_()
            for values in (scored.tree.tokens, scored.tree.parents, scored.tree.origins):
                with pytest.raises(AttributeError):
                    values.clear()  # type: ignore[attr-defined]

    def factory(context: DraftContext) -> Vandal:
        for values in (context.prompt, *(source.tokens for source in context.sources)):
            with pytest.raises(AttributeError):
                values.clear()  # type: ignore[attr-defined]
        return Vandal([])

    (wanted,) = plain(engine, PROMPTS[0])
    for drafter in (factory, ["auto", factory]):
        result = engine.generate(PROMPTS[0], edit_source=source, drafter=drafter, **OPTIONS)  # type: ignore[call-overload]
        assert result.token_ids == wanted


def test_a_drafter_that_rewrites_its_tree_afterwards_does_not_change_the_output(engine: Engine) -> None:
    (wanted,) = plain(engine, PROMPTS[0])
    size = len(byte_level())

    class Rewriting(Knowing):
        """Drafts wrong tokens, and puts the right ones in their place once it sees the logits after the wrong ones."""

        def propose(self, budget: Budget) -> DraftTree:
            tree = super().propose(budget)
            draws = {ROOT: Sampled(list(tree.tokens[:1]), torch.full((size,), 1 / size))}
            self._held = tree.tokens, draws
            return replace(tree, notes=draws if len(tree) else None)

        def observe(self, scored: ScoredDraft) -> None:
            tokens, draws = self._held
            tokens[:] = [token for ((token, _),) in scored.top(1)][: len(tokens)]  # type: ignore[index]
            draws.clear()

    result = engine.generate(PROMPTS[0], drafter=lambda context: Rewriting(wanted, 0), **OPTIONS)  # type: ignore[call-overload]
    assert result.token_ids == wanted and result.stats.num_draft_tokens
    drafter = Rewriting(wanted, 0)
    tree = JoinedDrafter([drafter], size).propose(Budget(4))
    before = list(tree.tokens)
    drafter._held[0][:] = []  # type: ignore[index]
    drafter._held[1].clear()
    assert list(tree.tokens) == before and tree.notes is not None and list(tree.notes) == [ROOT]


def test_a_drafter_may_use_its_lists_again(engine: Engine) -> None:
    tokens: list[int] = []

    class Reusing(Knowing):
        def propose(self, budget: Budget) -> DraftTree:
            tree = super().propose(Budget(1 + self._done % 3))
            tokens[:] = tree.tokens
            return replace(tree, tokens=tokens, notes={ROOT: Sampled([], torch.tensor([1.0]))})

    wanted = [plain(engine, prompt)[0] for prompt in PROMPTS]
    good = engine.submit(PROMPTS[0], **OPTIONS)  # type: ignore[arg-type]
    others = [
        engine.submit(prompt, drafter=lambda context, known=known: Reusing(known), **OPTIONS)  # type: ignore[arg-type, misc]
        for prompt, known in zip(PROMPTS[1:], wanted[1:], strict=True)
    ]
    assert [call.results()[0].token_ids for call in (good, *others)] == wanted


@pytest.mark.parametrize("convert", [torch.tensor, np.array], ids=["torch", "numpy"])
def test_trees_of_arrays_are_drafted_as_those_of_lists(engine: Engine, convert: Callable[[object], object]) -> None:
    class Arrays(Knowing):
        def propose(self, budget: Budget) -> DraftTree:
            tree = super().propose(budget)
            return replace(tree, tokens=convert(tree.tokens), parents=convert(tree.parents)) if len(tree) else tree

    (wanted,) = plain(engine, PROMPTS[0])
    result = engine.generate(PROMPTS[0], drafter=lambda context: Arrays(wanted), **OPTIONS)  # type: ignore[call-overload]
    assert result.token_ids == wanted and result.stats.num_accepted_tokens > 0
    expected, tree = (
        replace(JoinedDrafter([kind(wanted)], len(byte_level())).propose(Budget(8)), drafters=None)
        for kind in (Knowing, Arrays)
    )
    assert tree == expected and len(tree) == 8 and {type(node) for node in (*tree.tokens, *tree.parents)} == {int}


@pytest.mark.parametrize(
    ("drafter", "error", "message"),
    [
        ("copied", TypeError, "'auto', 'copy', 'model', 'none', a function that makes a drafter, or a list"),
        ([], TypeError, "drafter must be"),
        (3, TypeError, "drafter must be"),
        (["auto", "copy"], ValueError, "holds 'auto' and 'copy'"),
        (["none", fails], ValueError, "and not 'none'"),
    ],
)
def test_wrong_choices_are_named(drafter: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        copyspec.engine.asking.call_options.check_options({"drafter": drafter})


def trees() -> st.SearchStrategy[DraftTree]:
    def build(parts: list[tuple[int, int, float]]) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        for token, above, share in parts:
            parent = above % (len(tokens) + 1) - 1
            if (parent, token) not in zip(parents, tokens, strict=True):
                tokens.append(token)
                parents.append(parent)
                scores.append(share * (1.0 if parent == ROOT else scores[parent]))
        return DraftTree(tokens, parents, scores, [None] * len(tokens))

    part = st.tuples(st.integers(0, 3), st.integers(0, 20), st.floats(0, 1))
    return st.lists(part, max_size=12).map(build)


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    scores: dict[tuple[int, ...], float] = {}
    at: list[tuple[int, ...]] = []
    for token, parent, score in zip(tree.tokens, tree.parents, tree.scores, strict=True):
        at.append(((*at[parent], token)) if parent != ROOT else (token,))
        scores[at[-1]] = score
    return scores


@given(st.lists(trees(), min_size=1, max_size=3), st.integers(1, 16))
def test_joined_trees_hold_the_likeliest_paths_of_all(given_trees: list[DraftTree], most: int) -> None:
    joined = join(given_trees, most)
    check_tree(joined, 4)
    joined_paths, everything = paths(joined), [paths(tree) for tree in given_trees]
    known = set().union(*everything)
    assert set(joined_paths) <= known and len(joined_paths) == min(most, len(known))
    best = sorted((max(tree.get(path, 0.0) for tree in everything) for path in known), reverse=True)
    assert sum(joined_paths.values()) <= sum(best[: len(joined_paths)]) + 1e-9
    assert list(joined.scores[: len(joined.first_chain())]) == sorted(joined.first_chain().scores, reverse=True)


def test_a_function_alone_leaves_no_draft_model_unused(engine: Engine) -> None:
    with pytest.raises(ValueError, match=r"draft_model would draft nothing.*drafter=\['auto', function\]"):
        engine.generate(PROMPTS[0], drafter=lambda context: Knowing([]), draft_model="layers:1")  # type: ignore[call-overload]
    for options in ({"chat": True}, {"rendered": True}):
        with pytest.raises(ChatError, match="needs a str; prompt 0 is token ids"):
            engine.generate([1, 2, 3], **options)  # type: ignore[call-overload]
