"""Decoding against a slow reference: one token at a time, everything recomputed, no drafts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers import LogitsProcessor, NoRepeatNGramLogitsProcessor

from copyspec.budget import Budget, CostModel
from copyspec.decoding import loop
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import CANCELLED, Finish, Request
from copyspec.decoding.row import Row
from copyspec.decoding.stats import Stats
from copyspec.options import CHEAP_NODES, MOST_NODES, START_NODES, DraftOptions, SamplingOptions
from copyspec.sources import Source
from copyspec.tree import ROOT, DraftTree
from tests.helpers.fakes import FakeSession, FakeTarget, ScriptedDrafter

VOCAB = 12


class StopAtSum:
    """Stops when the sum of the output reaches a bound; depends on every token, in order."""

    def __init__(self, bound: int) -> None:
        self.bound, self.sum = bound, 0

    def push(self, token: int) -> str | None:
        self.sum += token
        return f"sum {self.sum}" if self.sum >= self.bound else None


class CountingProcessor(LogitsProcessor):
    """Bans the last token, and checks that it sees each prefix once and in order, as in plain decoding."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        scores = scores.clone()
        scores[0, input_ids[0, -1]] = -torch.inf
        return scores


class Outcome:
    def __init__(self, tokens: list[int], finish: Finish | None, stats: Stats | None, origins: list[Any]) -> None:
        self.tokens, self.finish, self.stats, self.origins = tokens, finish, stats, origins


def run(target: FakeTarget, requests: Sequence[Request], **options: Any) -> list[Outcome]:
    draft = DraftOptions(max_nodes=options.pop("max_nodes", 6), adaptive=options.pop("adaptive", False))
    outcomes = [Outcome([], None, None, []) for _ in requests]
    for step in decode(target, requests, DecodeSettings(draft=draft, **options)):
        for output in step:
            outcome = outcomes[output.row]
            assert outcome.finish is None, "a finished row must not go on"
            assert len(output.tokens) == len(output.origins) > 0
            outcome.tokens += output.tokens
            outcome.origins += output.origins
            outcome.finish, outcome.stats = output.finish, output.stats
    assert all(session.closed for session in target.sessions)
    return outcomes


def plain(target: FakeTarget, request: Request) -> Outcome:
    """Decode the same request without a drafter, alone in its batch."""
    return run(target, [Request(**{**fields(request), "drafter": None})])[0]


def fields(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


def greedy_reference(target: FakeTarget, prompt: Sequence[int], length: int, eos: frozenset[int]) -> list[int]:
    output: list[int] = []
    while len(output) < length:
        output.append(int(target.logits([*prompt, *output]).argmax()))
        if output[-1] in eos:
            break
    return output


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "seed": draw(st.integers(0, 10_000)),
        "rows": draw(st.integers(1, 8)),
        "batch_size": draw(st.integers(1, 8)),
        "max_nodes": draw(st.integers(0, 9)),
        "accuracy": draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        "eos": draw(st.frozensets(st.integers(0, VOCAB - 1), max_size=2)),
        "supports_trees": draw(st.booleans()),
        "adaptive": draw(st.booleans()),
    }


def make_requests(target: FakeTarget, case: dict[str, Any], build: Callable[[random.Random], dict[str, Any]]) -> Any:
    """Make requests with drafters that know the plain output, and the plain outcomes."""
    rng = random.Random(case["seed"])
    requests, expected = [], []
    for row in range(case["rows"]):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 6))]
        length = rng.randint(1, 24)
        choices = build(rng)
        stops = choices.pop("stops", lambda: ())
        request = Request(prompt=prompt, max_new_tokens=length, eos_token_ids=case["eos"], stops=stops(), **choices)
        outcome = plain(target, request)
        expected.append(outcome)
        request.stops = stops()
        # The script continues past the end, so that the end falls inside a run that would be accepted.
        script = outcome.tokens + [rng.randrange(VOCAB) for _ in range(8)]
        with_script(request, script, case["accuracy"], seed=case["seed"] + row)
        requests.append(request)
    return requests, expected


def with_script(request: Request, script: list[int], accuracy: float = 1.0, seed: int = 0, vocab: int = VOCAB) -> None:
    request.drafter = lambda: ScriptedDrafter(script, vocab, accuracy, seed)
    request.sources = [Source(script, "reference")]


def assert_equal(outcomes: list[Outcome], expected: list[Outcome]) -> None:
    assert [o.tokens for o in outcomes] == [o.tokens for o in expected]
    assert [o.finish for o in outcomes] == [o.finish for o in expected]


@hypothesis_settings(max_examples=60, deadline=None)
@given(cases())
def test_greedy_against_reference(case: dict[str, Any]) -> None:
    target = FakeTarget(VOCAB, supports_trees=case["supports_trees"])
    requests, expected = make_requests(target, case, lambda rng: {"sampling": SamplingOptions()})
    for request, outcome in zip(requests, expected, strict=True):
        reference = greedy_reference(target, request.prompt, request.max_new_tokens, case["eos"])
        assert outcome.tokens == reference
    options = {name: case[name] for name in ("batch_size", "max_nodes", "adaptive")}
    assert_equal(run(target, requests, **options), expected)


def random_sampling(rng: random.Random) -> dict[str, Any]:
    sampling = SamplingOptions(
        temperature=rng.choice([0.0, 0.3, 0.7, 1.0, 1.5]),
        top_k=rng.choice([0, 0, 3]),
        top_p=rng.choice([1.0, 0.9, 0.5]),
        min_p=rng.choice([0.0, 0.1]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        logit_bias=rng.choice([{}, {2: -3.0, 5: 2.5}]),
        seed=rng.randrange(1000),
        sample=rng.randrange(3),
    )
    processors = rng.choice([(), (), (NoRepeatNGramLogitsProcessor(2),), (CountingProcessor(),)])
    bound = rng.randint(5, 120)
    return {"sampling": sampling, "processors": processors, "stops": lambda: (StopAtSum(bound),)}


@hypothesis_settings(max_examples=60, deadline=None)
@given(cases())
def test_sampling_and_processors_equal_plain(case: dict[str, Any]) -> None:
    target = FakeTarget(VOCAB, supports_trees=case["supports_trees"])
    requests, expected = make_requests(target, case, random_sampling)
    options = {name: case[name] for name in ("batch_size", "max_nodes", "adaptive")}
    assert_equal(run(target, requests, **options), expected)


def test_processors_see_each_prefix_once_and_nothing_beyond_the_end() -> None:
    target = FakeTarget(VOCAB)
    alone, drafted = CountingProcessor(), CountingProcessor()
    request = Request([1, 2], 10, SamplingOptions(), processors=[alone])
    script = [*run(target, [request])[0].tokens, 3, 3, 3]
    request.processors = [drafted]
    with_script(request, script)
    (outcome,) = run(target, [request])
    assert outcome.tokens == script[:10] and outcome.stats is not None and outcome.stats.num_passes < 10
    assert drafted.seen == alone.seen
    assert len(alone.seen) == 10


@pytest.mark.parametrize("end", range(1, 13))
@pytest.mark.parametrize("how", ["eos", "stop", "length"])
def test_every_stop_at_every_position_of_an_accepted_run(end: int, how: str) -> None:
    target = FakeTarget(vocab_size=20_000, order=3)
    script = greedy_reference(target, [7], 20, frozenset())
    assert len(set(script)) == len(script), "positions must be told apart by their token"

    class StopAt:
        def push(self, token: int) -> str | None:
            return "here" if token == script[end - 1] else None

    request = Request(
        [7],
        max_new_tokens=end if how == "length" else 20,
        sampling=SamplingOptions(),
        eos_token_ids=frozenset({script[end - 1]} if how == "eos" else ()),
        stops=[StopAt()] if how == "stop" else [],
    )
    with_script(request, script, seed=end, vocab=20_000)
    (outcome,) = run(target, [request], max_nodes=32)
    assert outcome.tokens == script[:end]
    expected = {"eos": Finish("stop", script[end - 1]), "stop": Finish("stop", "here"), "length": Finish("length")}
    assert outcome.finish == expected[how]


def test_the_context_is_never_exceeded() -> None:
    target = FakeTarget(VOCAB, max_length=10)
    script = greedy_reference(target, [1, 2, 3], 30, frozenset())
    request = Request([1, 2, 3], 30, SamplingOptions())
    with_script(request, script)
    (outcome,) = run(target, [request], max_nodes=32)
    assert outcome.tokens == script[:8]  # the eighth token needs no position
    assert outcome.finish == Finish("length")
    with pytest.raises(ValueError, match="11 tokens does not fit into the model's context of 10"):
        run(target, [Request([1] * 11, 5, SamplingOptions())])
    with pytest.raises(ValueError, match="empty prompt"):
        run(target, [Request([], 5, SamplingOptions())])


def test_accepted_tokens_save_calls_and_are_counted() -> None:
    target = FakeTarget(VOCAB)
    script = greedy_reference(target, [5], 40, frozenset())

    class Perfect(ScriptedDrafter):
        def propose(self, budget: Any) -> Any:
            from copyspec.tree import DraftTree, Origin

            at = len(self.output)
            tokens = self.script[at : at + budget.max_nodes]
            origins = [Origin(0, at + i) for i in range(len(tokens))]
            return DraftTree(tokens, list(range(-1, len(tokens) - 1)), [0.9] * len(tokens), origins)

    request = Request(
        [5], 40, SamplingOptions(), sources=[Source(script, "edit")], drafter=lambda: Perfect(script, VOCAB, 1)
    )
    (outcome,) = run(target, [request], max_nodes=7)
    stats = outcome.stats
    assert stats is not None
    assert outcome.tokens == script
    assert stats.num_passes == stats.num_drafts == 5
    assert stats.num_output_tokens == 40 and stats.num_accepted_tokens == 35
    assert stats.num_accepted_tokens_per_pos == (5,) * 7
    assert stats.num_accepted_tokens_per_source == {"edit": 35} == stats.num_draft_tokens_per_source
    # The target's own token continues the copy, and therefore has an origin too.
    assert [origin.offset for origin in outcome.origins] == list(range(40))


@pytest.mark.parametrize("nodes", [4, 5, 8])
def test_a_pass_that_ends_with_a_draft_token_saves_one_less(nodes: int) -> None:
    """Of five output tokens in one pass, four were saved, whether the last is the target's own or not."""
    target = FakeTarget(vocab_size=20_000, order=3)
    script = greedy_reference(target, [7], 12, frozenset())

    class Perfect(ScriptedDrafter):
        def propose(self, budget: Budget) -> DraftTree:
            return DraftTree.of_chain(script[: budget.max_nodes], 0.9)

    request = Request([7], 12, SamplingOptions(), frozenset({script[4]}))
    request.drafter = lambda: Perfect(script, 20_000, 1.0)
    settings = DecodeSettings(draft=DraftOptions(max_nodes=nodes))
    ((output,),) = decode(target, [request], settings, CostModel(slope=0.0))
    assert output.stats is not None and output.tokens == script[:5]
    assert output.stats.saved_passes == output.stats.num_output_tokens - output.stats.num_passes == 4


def test_closing_the_iterator_frees_the_caches() -> None:
    target = FakeTarget(VOCAB)
    steps = decode(target, [Request([1], 50, SamplingOptions())])
    next(steps)
    steps.close()
    assert target.sessions[0].closed


@hypothesis_settings(max_examples=40, deadline=None)
@given(case=cases(), gaps=st.lists(st.booleans(), max_size=30))
def test_requests_may_come_late(case: dict[str, Any], gaps: list[bool]) -> None:
    target = FakeTarget(VOCAB, supports_trees=case["supports_trees"])
    requests, expected = make_requests(target, case, lambda rng: {"sampling": SamplingOptions()})
    waiting = list(requests)

    def coming() -> Iterator[Request | None]:
        for nothing_now in [*gaps, *[False] * len(requests)]:
            if nothing_now:
                yield None
            elif waiting:
                yield waiting.pop(0)

    running: set[int] = set()
    tokens: list[list[int]] = [[] for _ in requests]
    settings = DecodeSettings(draft=DraftOptions(max_nodes=case["max_nodes"]), batch_size=case["batch_size"])
    for step in decode(target, coming(), settings):
        for output in step:
            tokens[output.row] += output.tokens
            running.add(output.row)
            if output.finish is not None:
                running.discard(output.row)
        assert len(running) <= case["batch_size"]
    assert not waiting
    assert tokens == [outcome.tokens for outcome in expected]
    assert all(session.closed for session in target.sessions)


@hypothesis_settings(max_examples=80, deadline=None)
@given(case=cases())
def test_rows_told_after_the_next_launch_are_the_same(case: dict[str, Any]) -> None:
    target = FakeTarget(VOCAB, supports_trees=case["supports_trees"])
    requests, expected = make_requests(target, case, random_sampling)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "SYNCHRONOUS", ())
        options = {name: case[name] for name in ("max_nodes", "batch_size", "adaptive")}
        assert_equal(run(target, requests, **options), expected)


def counted_costs() -> CostModel:
    """Costs by a clock that advances when it is read: no caller takes longer than a pass."""
    return CostModel(map(float, count()).__next__)


def test_rows_are_told_while_the_device_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step brought is yielded between the next launch and its end, in the step's order; a row's last tokens at
    once, before another row may join; and all that was verified, where the next launch fails."""
    monkeypatch.setattr(loop, "SYNCHRONOUS", ())
    passes, fails_at = list[int](), 0
    score = FakeSession.score

    def counted(session: FakeSession, *arguments: Any) -> Any:
        passes.append(1)
        if len(passes) == fails_at:
            raise torch.OutOfMemoryError("full")
        return score(session, *arguments)

    monkeypatch.setattr(FakeSession, "score", counted)
    told, tokens = list[int](), [0, 0]
    requests = [Request([1, 2], length, SamplingOptions()) for length in (5, 9)]
    for step in decode(FakeTarget(VOCAB), requests, cost_model=counted_costs()):
        told.append(len(passes))
        for output in step:
            tokens[output.row] += len(output.tokens)
    assert tokens == [5, 9]
    assert told == [2, 3, 4, 5, 5, 6, 7, 8, 9]  # both rows, then the end of one; the other one alone waits for nothing

    passes.clear()
    tokens, fails_at = [0, 0], 4
    with pytest.raises(torch.OutOfMemoryError):
        for step in decode(FakeTarget(VOCAB), requests, cost_model=counted_costs()):
            for output in step:
                tokens[output.row] += len(output.tokens)
    assert tokens == [3, 3]


@pytest.mark.parametrize("place", ["add", "score", "requests"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyboardInterrupt])
def test_what_was_verified_is_told_before_an_error(
    monkeypatch: pytest.MonkeyPatch, place: str, error: type[BaseException]
) -> None:
    """Wherever it is raised; an interrupt is raised at once, since the caller could end the run and lose it."""
    monkeypatch.setattr(loop, "SYNCHRONOUS", ())

    def fail(*_: Any) -> Any:
        raise error

    def requests() -> Iterator[Request | None]:
        for _ in range(2):
            yield Request([1, 2], 9, SamplingOptions())
        yield from [None] * 2
        if place != "requests":
            monkeypatch.setattr(FakeSession, place, fail)
            yield Request([1, 2], 9, SamplingOptions())
        fail()

    tokens = 0
    with pytest.raises(error):
        for step in decode(FakeTarget(VOCAB), requests(), DecodeSettings(batch_size=3), counted_costs()):
            tokens += sum([len(output.tokens) for output in step])
    assert tokens == (4 if error is torch.OutOfMemoryError else 2)


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    delays=st.lists(st.sampled_from([0.0, 0.001, 0.5, 3.0, 4.999, 5.0, 40.0]), min_size=30, max_size=30),
    rows=st.integers(1, 4),
)
def test_a_slow_caller_does_not_count_as_passes(delays: list[float], rows: int) -> None:
    """Of a device whose passes take 5 s each: what is learned is their time, whatever callers do meanwhile."""
    now, ready, told = 0.0, 0.0, 0
    score, read = FakeSession.score, loop.best_picks

    def launch(session: FakeSession, *arguments: Any) -> Any:
        nonlocal ready
        ready = now + 5.0
        return score(session, *arguments)

    def wait(scores: Any) -> Any:
        nonlocal now
        now = max(now, ready)
        return read(scores)

    costs, seconds = CostModel(lambda: now), list[float]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "SYNCHRONOUS", ())
        patched.setattr(FakeSession, "score", launch)
        patched.setattr(loop, "best_picks", wait)
        patched.setattr(costs, "observe", lambda _, measured: seconds.append(measured))
        requests = [Request([1, 2], 20, SamplingOptions()) for _ in range(rows)]
        for _ in decode(FakeTarget(VOCAB), requests, cost_model=costs):
            now += delays[told]
            told += 1
    assert seconds == [pytest.approx(5.0)] * len(seconds)
    assert len(seconds) >= 9  # of 19 after the prompts: every second one at least


def test_rows_are_taken_as_others_finish() -> None:
    target = FakeTarget(VOCAB)
    lengths = [3, 30, 4, 5, 6, 7, 8]
    taken = []

    def coming() -> Iterator[Request]:
        for length in lengths:
            taken.append(length)
            yield Request([1, 2], length, SamplingOptions())

    steps = finished = 0
    for step in decode(target, coming(), DecodeSettings(batch_size=2)):
        steps += 1
        finished += sum(output.finish is not None for output in step)
        assert len(taken) <= finished + 2  # a request is taken only when there is room for it
    # The long row runs beside all others, whose first step is separate.
    assert steps <= sum(lengths) - 30 + len(lengths)


def test_nothing_is_learned_from_passes_that_are_not_representative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSession, "is_settled", False)
    costs = CostModel()
    for _ in decode(FakeTarget(VOCAB), [Request([1] * 40, 12, SamplingOptions())], cost_model=costs):
        pass
    assert costs.seconds(1) == 0.0 and not costs._per_token


def test_rows_that_cannot_join_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(FakeSession, "add", full)
    target = FakeTarget()
    first, second = (
        Request(prompt=[row], max_new_tokens=9, sampling=SamplingOptions(), eos_token_ids=frozenset()) for row in (1, 2)
    )
    with pytest.raises(torch.OutOfMemoryError):
        list(decode(target, [first, None, second]))
    assert [session.closed for session in target.sessions] == [True]


def test_a_failing_processor_frees_the_caches() -> None:
    class Failing(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("processor failed")

    target = FakeTarget(VOCAB)
    with pytest.raises(RuntimeError, match="processor failed"):
        run(target, [Request([1], 50, SamplingOptions(), processors=[Failing()])])
    assert target.sessions[0].closed


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (DraftTree([1, 2], [ROOT, 1], [0.5, 0.5], [None, None]), "node 1 has parent 1; a parent is -1 or a node"),
        (DraftTree([1, 1], [ROOT, ROOT], [0.5, 0.5], [None, None]), "node 1 repeats token 1 among the children"),
        (DraftTree([1], [ROOT], [0.5]), r"differ in length: \[0, 1\]"),
        (
            DraftTree([1, 12], [ROOT, 0], [0.5, 0.5], [None, None]),
            "12 is not a token id of the model: ids go from 0 to 11",
        ),
        (DraftTree([-1], [ROOT], [0.5], [None]), "-1 is not a token id of the model"),
    ],
)
def test_a_wrong_draft_tree_is_named(tree: DraftTree, message: str) -> None:
    class Wrong(ScriptedDrafter):
        def propose(self, budget: Budget) -> DraftTree:
            return tree if self.output else DraftTree([1], [ROOT], [0.5], [None])

    target = FakeTarget()
    request = Request([1], 8, SamplingOptions(), drafter=lambda: Wrong([], 12, 1.0))
    with pytest.raises(ValueError, match=f"Wrong proposed an invalid draft tree: .*{message}"):
        list(decode(target, [request]))
    assert all(session.closed for session in target.sessions)


def test_drafting_pauses_where_nothing_is_accepted() -> None:
    target = FakeTarget(VOCAB)
    wrong = [(token + 1) % VOCAB for token in greedy_reference(target, [5], 400, frozenset())]
    request = Request([5], 400, SamplingOptions())
    with_script(request, wrong)
    (outcome,) = run(target, [request], max_nodes=8, adaptive=True)
    assert outcome.stats is not None and outcome.stats.num_passes == 400
    assert outcome.stats.num_drafts < 60


def test_margins_show_the_token_and_its_runner_up() -> None:
    target = FakeTarget(VOCAB)
    for sampling in (SamplingOptions(), SamplingOptions(repetition_penalty=1.2)):
        request = Request([5, 6], 6, sampling)
        margins, tokens = [], []
        for step in decode(target, [request], DecodeSettings(keep_margins=True)):
            margins += step[0].margins
            tokens += step[0].tokens
        assert [margin.token for margin in margins] == tokens
        assert all(margin.score > margin.runner_up_score for margin in margins)
    logits = target.logits([5, 6])
    request = Request([5, 6], 1, SamplingOptions())
    (step,) = decode(target, [request], DecodeSettings(keep_margins=True))
    assert step[0].margins[0].score == logits.max()


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=7),
    st.integers(1, 4),
    st.integers(6, 30),
    st.integers(0, 99),
    st.sampled_from([SamplingOptions(), SamplingOptions(temperature=1.0, seed=3, repetition_penalty=1.2)]),
)
def test_prompts_are_read_in_pieces_beside_other_rows(
    sizes: list[tuple[int, int]], batch: int, most: int, seed: int, sampling: SamplingOptions
) -> None:
    """A pass has no more tokens than its session wants, and the outputs are those without a limit."""
    rng = random.Random(seed)
    requests = [Request([rng.randrange(VOCAB) for _ in range(length)], count, sampling) for length, count in sizes]
    expected = [plain(FakeTarget(VOCAB), request) for request in requests]
    for row, (request, outcome) in enumerate(zip(requests, expected, strict=True)):
        with_script(request, outcome.tokens, 0.7, row)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FakeSession, "most_tokens", max(most, batch + 1))
        patched.setattr(FakeSession, "computes", staticmethod(lambda tokens: tokens))
        outcomes = run(FakeTarget(VOCAB), requests, batch_size=batch, max_nodes=3, adaptive=True)
    assert_equal(outcomes, expected)
    for outcome in outcomes:
        assert outcome.stats is not None and outcome.stats.num_output_tokens == len(outcome.tokens)
        assert outcome.stats.num_passes <= len(outcome.tokens), "a pass that reads a part of a prompt is not counted"


class Leaver:
    """An owner that leaves once the target has made so many passes."""

    def __init__(self, target: FakeTarget, passes: int) -> None:
        self._target, self._passes = target, passes

    @property
    def is_cancelled(self) -> bool:
        return self._target.sessions[0].calls >= self._passes

    def fail(self, error: BaseException) -> None:
        raise error


@pytest.mark.parametrize("lengths", [(300, 3), (3, 300), (300, 300)])
@pytest.mark.parametrize("left", [1, 4])
def test_a_prompt_is_not_read_on_for_a_caller_that_has_left(
    lengths: tuple[int, int], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSession, "most_tokens", 20)
    target = FakeTarget(VOCAB)
    requests = [Request([1] * length, 9, SamplingOptions(), owner=Leaver(target, left)) for length in lengths]
    steps = [output for step in decode(target, requests, DecodeSettings(batch_size=2)) for output in step]
    ends = [output.row for output in steps if output.finish == Finish("stop", CANCELLED)]
    assert sorted(ends) == [0, 1] and not any(output.tokens for output in steps if lengths[output.row] == 300)
    assert target.sessions[0].calls <= left + 1


def test_drafts_grow_while_they_are_right_and_shrink_at_once() -> None:
    target, asked, right = FakeTarget(VOCAB), list[int](), list[int]()
    script = greedy_reference(target, [7], 5_000, frozenset())

    class Copying(ScriptedDrafter):
        def propose(self, budget: Budget) -> DraftTree:
            asked.append(budget.max_nodes)
            chain = self.script[len(self.output) :][: budget.max_nodes]
            if len(asked) == 7:
                chain[5] = (chain[5] + 1) % VOCAB
            return DraftTree.of_chain(chain, 0.9999)

        def accept(self, tokens: Sequence[int]) -> None:
            super().accept(tokens)
            right.append(len(tokens) - 1)

    request = Request([7], 5_000, SamplingOptions(), frozenset(), [], lambda: Copying(script, VOCAB, 1.0))
    ticks = count()
    steps = list(decode(target, [request], DecodeSettings(), CostModel(lambda: 1e-3 * next(ticks), slope=0.0)))
    assert [token for (output,) in steps for token in output.tokens] == script
    assert asked[:7] == [START_NODES, CHEAP_NODES, 128, 256, 512, MOST_NODES, MOST_NODES]
    assert right[6] == 5 and asked[7:9] == [CHEAP_NODES, 128], "after a wrong draft it begins anew"


def test_a_number_of_draft_nodes_is_kept_to() -> None:
    target, asked = FakeTarget(VOCAB), set[int]()
    script = greedy_reference(target, [7], 300, frozenset())

    class Copying(ScriptedDrafter):
        def propose(self, budget: Budget) -> DraftTree:
            asked.add(budget.max_nodes)
            return DraftTree.of_chain(self.script[len(self.output) :][: budget.max_nodes], 0.9999)

    request = Request([7], 300, SamplingOptions(), frozenset(), [], lambda: Copying(script, VOCAB, 1.0))
    list(decode(target, [request], DecodeSettings(DraftOptions(40))))
    assert asked == {40}


@pytest.mark.parametrize("devices", [{"cpu"}, set()])
@pytest.mark.parametrize("place", ["add", "score", "keep", "select"])
@pytest.mark.parametrize("fails_at", range(1, 8))
def test_all_that_was_verified_is_told_wherever_a_session_fails(
    monkeypatch: pytest.MonkeyPatch, devices: set[str], place: str, fails_at: int
) -> None:
    monkeypatch.setattr(loop, "SYNCHRONOUS", devices)
    act, verify, calls = getattr(FakeSession, place), Row.verify, count(1)
    verified, told = dict[int, list[int]](), dict[int, list[int]]()

    def fail(*arguments: Any) -> Any:
        if next(calls) == fails_at:
            raise torch.OutOfMemoryError("full")
        return act(*arguments)

    def watched(row: Row, *arguments: Any) -> Any:
        path = verify(row, *arguments)
        verified[row.index] = list(row.output)
        return path

    monkeypatch.setattr(FakeSession, place, fail)
    monkeypatch.setattr(Row, "verify", watched)
    requests = [Request([1, 2], length, SamplingOptions()) for length in (3, 5, 2, 9, 4, 9)]
    with suppress(torch.OutOfMemoryError):
        for step in decode(FakeTarget(VOCAB), requests, DecodeSettings(batch_size=3), counted_costs()):
            for output in step:
                told[output.row] = told.get(output.row, []) + list(output.tokens)
    assert told == verified


class Recorder:
    def __init__(self) -> None:
        self.passes: list[Any] = []

    def record(self, tree: DraftTree, path: Any, tokens: Any, counters: Stats, rows: int) -> None:
        self.passes.append((list(tree.tokens), list(path), list(tokens), counters, rows))


@hypothesis_settings(max_examples=80, deadline=None)
@given(case=cases())
def test_a_recorder_sees_the_same_where_rows_are_told_after_the_next_launch(case: dict[str, Any]) -> None:
    """Each pass with the counters up to it, without what drafters did for the next one."""
    target, recorded = FakeTarget(VOCAB, supports_trees=case["supports_trees"]), list[Any]()
    settings = DecodeSettings(DraftOptions(max_nodes=case["max_nodes"]), case["batch_size"])
    for devices in ({"cpu"}, set[str]()):
        requests, _ = make_requests(target, case, random_sampling)
        for request in requests:
            request.recorder = Recorder()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(loop, "SYNCHRONOUS", devices)
            list(decode(target, requests, settings, counted_costs()))
        recorded.append([request.recorder.passes for request in requests])
    assert recorded[0] == recorded[1]
