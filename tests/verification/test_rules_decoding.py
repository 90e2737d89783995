"""Rules chosen by a caller, through decoding and engine: what they preserve, reproducibility, and what results
report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from copyspec.budget import Budget
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.decoding.stats import Stats
from copyspec.engine.asking.call_options import check_options
from copyspec.engine.engine import Engine
from copyspec.literature import BiLD, MultiStep, Typical
from copyspec.literature.sampled import KeyedRandom, draw
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.tree import DraftTree
from tests.helpers.enumeration import RULES, rule, tree_of
from tests.helpers.fakes import FakeTarget
from tests.helpers.tiny import tiny_engine

VOCAB = 12
PROMPT = [3, 1, 4]
STEADY = DecodeSettings(draft=DraftOptions(max_nodes=16, adaptive=False))
LOSSY = [name for name, kind in RULES.items() if not kind.keeps_distribution]


class SamplingDrafter:
    """Draws two tokens and one more after each from a blurred copy of the target, next to a copied child."""

    def __init__(self, target: FakeTarget, sampling: SamplingOptions, prompt: Sequence[int], blur: float) -> None:
        self.target, self.sampling, self.ids, self.blur = target, sampling, list(prompt), blur

    def propose(self, budget: Budget) -> DraftTree:
        top = self._draw([], 2)
        below = {(token,): self._draw([token], 1) for token in (0, *top.tokens)}
        return tree_of({(): [0]}, {(): top, **below})

    def _draw(self, path: list[int], count: int) -> object:
        q = (self.target.logits([*self.ids, *path]) / self.blur).softmax(-1)
        return draw(q, count, KeyedRandom(self.sampling, len(self.ids) + len(path), drafting=True))

    def accept(self, tokens: Sequence[int]) -> None:
        self.ids.extend(tokens)


def request(target: FakeTarget, name: str | None, sampling: SamplingOptions, blur: float | None) -> Request:
    """Make a request. `name` None: the default rule; `blur` None: no drafts."""
    drafter = None if blur is None else lambda: SamplingDrafter(target, sampling, PROMPT, blur)
    chosen = None if name is None else rule(name)
    return Request(PROMPT, 40, sampling, drafter=drafter, rule=chosen)  # type: ignore[arg-type, return-value]


def run(target: FakeTarget, requests: Sequence[Request]) -> tuple[list[list[int]], list[Stats]]:
    outputs: list[list[int]] = [[] for _ in requests]
    stats = [Stats() for _ in requests]
    for step in decode(target, requests, STEADY):
        for output in step:
            outputs[output.row] += output.tokens
            stats[output.row] = output.stats or stats[output.row]
    return outputs, stats


def test_exact_rules_keep_greedy_output_and_accept_drafts() -> None:
    target, greedy = FakeTarget(), SamplingOptions()
    (plain,), _ = run(target, [request(target, None, greedy, None)])
    for name in sorted(set(RULES) - set(LOSSY)):
        (output,), (stats,) = run(target, [request(target, name, greedy, 1.0)])
        assert output == plain
        assert stats.num_passes < 40 and stats.num_accepted_tokens > 0


@pytest.mark.parametrize("name", ["rejection", "multi-step", "k-sequential", "lenience", "typical"])
def test_rows_of_a_batch_decide_as_alone(name: str) -> None:
    """Rules, seeds and the default in one batch: the output of a row does not depend on its neighbours."""
    target = FakeTarget()
    requests = [request(target, name, SamplingOptions(temperature=1.0, seed=seed), 1.3) for seed in range(3)]
    requests.insert(1, request(target, None, SamplingOptions(temperature=1.0, seed=9), 1.3))
    requests.insert(2, request(target, None, SamplingOptions(), 1.3))
    together, _ = run(target, requests)
    assert together == [run(target, [one])[0][0] for one in requests]
    assert together == run(target, requests)[0]


def test_a_drafter_that_draws_is_accepted_more_often_by_the_rules_made_for_it() -> None:
    """Draws from P itself: the classical rules accept every first draw, the default only what it would have drawn."""
    target = FakeTarget()
    calls = {}
    for name in ("coupled", "rejection", "multi-step", "k-sequential"):
        requests = [request(target, name, SamplingOptions(temperature=1.0, seed=seed), 1.0) for seed in range(12)]
        calls[name] = sum(stats.num_passes for stats in run(target, requests)[1])
    least = 12 * 14  # 40 tokens, three per call
    assert calls["rejection"] == calls["multi-step"] == calls["k-sequential"] == least < calls["coupled"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    yield tiny_engine()


TEXT = "the cat sat on the mat and the cat sat on the hat"


def test_results_name_their_rule(engine: Engine) -> None:
    result = engine.generate(TEXT, max_new_tokens=12)
    assert result.rule is None
    exact = engine.generate(TEXT, max_new_tokens=12, rule=MultiStep())
    assert (exact.rule, exact.token_ids) == ("multi-step", result.token_ids)
    lossy = engine.generate(TEXT, references=[TEXT], max_new_tokens=12, rule=Typical())
    assert json.loads(json.dumps(lossy.to_dict()))["rule"] == "typical"


def test_lenient_rules_need_fewer_calls_and_write_other_text(engine: Engine) -> None:
    """A model with random weights does not follow the text; a rule that accepts everything does."""
    exact = engine.generate(TEXT, edit_source=TEXT, max_new_tokens=30)
    lossy = engine.generate(TEXT, edit_source=TEXT, max_new_tokens=30, rule=BiLD(rollback=1000))
    assert lossy.stats.num_passes < exact.stats.num_passes
    assert lossy.token_ids != exact.token_ids


@pytest.mark.parametrize("name", ["rejection", "multi-step", "k-sequential", "lenience", "typical"])
def test_calls_repeat(engine: Engine, name: str) -> None:
    def once() -> tuple[int, ...]:
        return engine.generate(
            TEXT, references=[TEXT], max_new_tokens=20, temperature=0.9, seed=5, rule=rule(name)
        ).token_ids

    assert once() == once()


def test_drafts_are_steady_where_the_output_depends_on_them() -> None:
    assert check_options({}).draft.adaptive
    assert check_options({"rule": MultiStep()}).draft.adaptive, "greedy: the output is the model's"
    assert not check_options({"rule": MultiStep(), "temperature": 1}).draft.adaptive
    assert not check_options({"rule": Typical()}).draft.adaptive


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"rule": "typical"},
            TypeError,
            "rule must be an object of copyspec.literature.*got str",
        ),
        ({"rule": Typical}, TypeError, "rule must be an object of copyspec.literature"),
        (
            {"rule": SimpleNamespace(name="own", model=None, check=print, uses_drafts=print)},
            TypeError,
            "all members of copyspec.verification.rule.Rule: it has no 'picks'",
        ),
        ({"rule": BiLD(), "temperature": 1}, ValueError, "leave out temperature=1"),
        ({"lossy": True}, TypeError, "unknown option 'lossy'"),
    ],
)
def test_bad_choices_are_named(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_options(options)
