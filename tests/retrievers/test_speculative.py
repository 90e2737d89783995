"""Speculative retrieval: guesses are the index's best if the cache holds it, and verification corrects the others. The
scheduler finds the best round, and threads neither lose exceptions nor outlive it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.retrievers import BM25Retriever, DenseRetriever, Hit, Retriever
from copyspec.retrievers.shortlist import shortlist_of
from copyspec.retrievers.speculative.retriever import SpeculativeRetriever
from copyspec.retrievers.speculative.scheduler import (
    CLEAR_SPEEDUP,
    MIN_ROUNDS,
    MIN_SPEEDUP,
    RETRY,
    Costs,
    Plan,
    Scheduler,
    best_batch,
    best_plan,
    expected_steps,
    reading_pays,
    round_seconds,
)

TEXTS = [
    "The lamp of the lightship was lit at dusk.",
    "Swifts sleep while they fly.",
    "The harbour froze in the winter of that year.",
    "A crew stayed on board for a month, then another came.",
    "Bread was baked on board twice a week.",
    "The lightship was towed to the harbour for repairs.",
]
QUERIES = ["lightship lamp", "who baked bread", "winter harbour", "swifts fly", "crew on board", "nothing of it"]


class SlowRetriever(BM25Retriever):
    """A retriever whose searches wait until they are released; some queries fail."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(texts)
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[str]] = []

    def search_batch(self, queries: Sequence[str], k: int = 4) -> list[list[Hit]]:
        self.batches.append(list(queries))
        assert self.gate.wait(10)
        if "fail" in queries:
            raise ConnectionError("the knowledge base is away")
        return super().search_batch(queries, k)


@given(
    texts=st.lists(st.text("ab ", min_size=1), min_size=1, max_size=12).filter(lambda ts: any(t.strip() for t in ts)),
    queries=st.lists(st.text("ab ", max_size=6), min_size=1, max_size=8),
    prefetch=st.integers(1, 6),
)
def test_a_guess_is_right_exactly_where_the_cache_holds_the_best_text(
    texts: list[str], queries: list[str], prefetch: int
) -> None:
    base = BM25Retriever(texts)
    retriever = SpeculativeRetriever(base, prefetch=prefetch)
    for query in queries:
        truth = base.search(query, 1)[0]
        cached = set(retriever.cached)
        guess = retriever.guess(query)
        assert (guess is None) == (not cached)
        if truth.id in cached:
            assert guess == truth
        assert retriever.search(query, 3) == base.search(query, 3)


class Unknown:
    """A retriever without its own shortlist."""

    def __init__(self, base: Retriever) -> None:
        self.score = base.score


def letters(texts: list[str]) -> list[list[float]]:
    return [[text.count("a") - 0.5, text.count("b"), len(text)] for text in texts]


def far(texts: list[str]) -> list[list[float]]:
    """Return vectors that are almost equal in float32."""
    return [[1e3 + row[0] * 1e-4, row[1] * 1e-4] for row in letters(texts)]


BASES: dict[str, Callable[[list[str]], Retriever]] = {
    "bm25": BM25Retriever,
    "ip": lambda texts: DenseRetriever(texts, letters),
    "l2": lambda texts: DenseRetriever(texts, letters, metric="l2"),
    "ip, near ties": lambda texts: DenseRetriever(texts, far),
    "l2, near ties": lambda texts: DenseRetriever(texts, far, metric="l2"),
}


@pytest.mark.parametrize("kind", list(BASES))
@settings(max_examples=25)
@given(data=st.data())
def test_a_shortlist_ranks_as_the_scores_do(kind: str, data: st.DataObject) -> None:
    base = BASES[kind](["ab" * (i % 5) + " a" * (i % 3) + " b" * (i % 4) + "." for i in range(40)])
    listed: list[int] = []
    shortlists = [shortlist_of(base), shortlist_of(Unknown(base))]
    assert type(shortlists[0]) is not type(shortlists[1])
    for _ in range(data.draw(st.integers(1, 6))):
        more = data.draw(
            st.lists(st.integers(0, len(base) - 1).filter(lambda text_id: text_id not in listed), unique=True)
        )
        first = data.draw(st.integers(0, len(listed)))
        slots = list(range(first, first + len(more)))
        listed[first : first + len(more)] = more
        for shortlist in shortlists:
            shortlist.put(slots, more)
        if data.draw(st.booleans()):
            base.add([data.draw(st.text("ab ", max_size=6))])
        query = data.draw(st.text("ab. ", max_size=9))
        if listed:
            scores = base.score(query, listed)
            expected = min(text_id for text_id, score in zip(listed, scores, strict=True) if score == scores.max())
            for shortlist in shortlists:
                assert shortlist.best(query) == (expected, scores.max())


def test_answers_are_guessed_at_once_and_verified_in_one_search() -> None:
    base = SlowRetriever(TEXTS)
    with SpeculativeRetriever(base, prefetch=2) as retriever:
        first = retriever.ask("lightship lamp")
        assert first.is_verified and first.hit is not None and first.hit.id == 0
        answers = [retriever.ask(query) for query in QUERIES]
        assert base.batches == [["lightship lamp"]]
        guessed = [answer.hit for answer in answers]
        wrong = retriever.verify()
        assert base.batches[1:] == [QUERIES]
        for answer, guess, query in zip(answers, guessed, QUERIES, strict=True):
            assert answer.is_verified and answer.hit == base.search(query, 1)[0]
            assert answer.was_right == (guess == answer.hit) == (answer not in wrong)
        assert wrong and retriever.verify() == []
        stats = retriever.stats
        assert (stats.guesses, stats.right, stats.searches, stats.queries) == (6, 6 - len(wrong), 2, 7)
        assert stats.hit_rate == stats.right / 6 and stats.kept_per_round == stats.right


def test_answers_stay_open_where_verification_fails() -> None:
    base = SlowRetriever(TEXTS)
    retriever = SpeculativeRetriever(base)
    retriever.search("lamp")
    open_answer = retriever.ask("swifts")
    retriever.ask("fail")
    with pytest.raises(ConnectionError, match="away"):
        retriever.verify()
    assert not open_answer.is_verified
    with pytest.raises(ConnectionError, match="away"):
        retriever.verify()


def test_the_cache_forgets_what_was_found_longest_ago() -> None:
    retriever = SpeculativeRetriever(BM25Retriever(TEXTS), prefetch=1, capacity=2)
    for query in ("lightship lamp", "swifts fly", "winter froze"):
        retriever.search(query)
    assert list(retriever.cached) == [1, 2]
    assert retriever.guess("swifts fly") == BM25Retriever(TEXTS).search("swifts fly", 1)[0]
    retriever.search("bread")
    assert list(retriever.cached) == [1, 4]  # a guess counts as a use


def test_searches_run_in_the_worker_and_their_exceptions_reach_the_caller() -> None:
    base = SlowRetriever(TEXTS)
    with SpeculativeRetriever(base) as retriever:
        base.gate.clear()
        search = retriever.submit(["swifts", "bread"])
        assert not search.done()
        base.gate.set()
        assert [hits[0].id for hits in search.result()] == [1, 4]
        assert search.done() and search.seconds >= 0
        with pytest.raises(ConnectionError, match="away"):
            retriever.submit(["fail"]).result()
        assert retriever.submit(["swifts"]).result()[0][0].id == 1


def test_close_frees_the_worker_and_cancels_what_waits() -> None:
    before = set(threading.enumerate())
    base = SlowRetriever(TEXTS)
    retriever = SpeculativeRetriever(base)
    base.gate.clear()
    running, waiting = retriever.submit(["swifts"]), retriever.submit(["bread"])
    waiting.cancel()
    while not base.batches:
        time.sleep(0.001)
    base.gate.set()
    retriever.close()
    retriever.close()
    assert running.result()[0][0].id == 1
    assert base.batches == [["swifts"]]
    assert not {thread for thread in threading.enumerate() if thread.name.startswith("copyspec-search")} - before
    with pytest.raises(RuntimeError, match="was closed"):
        retriever.submit(["swifts"])


def test_a_search_that_was_cancelled_has_no_result_and_the_others_go_on() -> None:
    base = SlowRetriever(TEXTS)
    with SpeculativeRetriever(base) as retriever:
        base.gate.clear()
        running, cancelled, last = (retriever.submit([query]) for query in ("swifts", "bread", "lamp"))
        cancelled.cancel()
        cancelled.cancel()
        assert cancelled.done() and not last.done()
        base.gate.set()
        assert [search.result()[0][0].id for search in (running, last)] == [1, 0]
        with pytest.raises(CancelledError):
            cancelled.result()
        running.cancel()
        assert running.result()[0][0].id == 1


def test_the_worker_ends_with_its_retriever() -> None:
    before = set(threading.enumerate())
    retriever = SpeculativeRetriever(BM25Retriever(TEXTS))
    retriever.submit(["swifts"]).result()
    (thread,) = set(threading.enumerate()) - before
    del retriever
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_the_interpreter_ends_where_nobody_closed_the_worker() -> None:
    program = """
from concurrent.futures import CancelledError
from queue import SimpleQueue
from threading import Event
from copyspec.retrievers import Worker
begun, waiting = Event(), SimpleQueue()
def search():
    begun.set()
    try:
        waiting.get().result()  # until the end of the interpreter cancels it
    except CancelledError:
        print("searched")
worker = Worker()
worker.submit(search)
waiting.put(worker.submit(lambda: print("never begun")))
begun.wait()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("searched\n", "")


def test_threads_get_the_answers_that_one_would_get() -> None:
    base = BM25Retriever(TEXTS)
    with SpeculativeRetriever(base, prefetch=2, capacity=3) as retriever, ThreadPoolExecutor(4) as threads:

        def ask(query: str) -> tuple[list[Hit], list[list[Hit]], Hit | None]:
            return retriever.search(query, 2), retriever.submit([query]).result(), retriever.guess(query)

        for query, (hits, submitted, guess) in zip(QUERIES * 20, threads.map(ask, QUERIES * 20), strict=True):
            assert hits == base.search(query, 2) == submitted[0]
            assert guess is not None
        assert len(retriever.cached) == 3


def test_it_is_a_retriever_like_its_base(tmp_path: Path) -> None:
    retriever = SpeculativeRetriever(BM25Retriever(TEXTS))
    retriever.add(["The word zebra stands here only."])
    assert len(retriever) == len(retriever.texts) == 7
    assert retriever.search("zebra", 1)[0].id == 6
    assert retriever.score("zebra", [6, 0]).tolist() == retriever.base.score("zebra", [6, 0]).tolist()
    assert retriever.search_batch([]) == []
    retriever.save(tmp_path)
    assert BM25Retriever.load(tmp_path).search("zebra", 1)[0].id == 6


@pytest.mark.parametrize(
    ("options", "message"), [({"prefetch": 0}, "got 0"), ({"prefetch": 20, "capacity": 5}, "20 hits.*got 5")]
)
def test_wrong_options_are_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeculativeRetriever(BM25Retriever(TEXTS), **options)


def test_a_string_is_no_list_of_queries() -> None:
    retriever = SpeculativeRetriever(BM25Retriever(TEXTS))
    for call in (retriever.search_batch, retriever.submit):
        with pytest.raises(TypeError, match="queries must be a list"):
            call("swifts")  # type: ignore[operator]


def simulated_round(gamma: float, s: int, costs: Costs, ahead: int) -> tuple[float, float]:
    """Return expected steps and seconds, summed over the possible numbers of right guesses, 0 to s."""
    steps = seconds = 0.0
    for right in range(s + 1):
        chance = gamma**right * ((1 - gamma) if right < s else 1.0)
        made, searched = s * costs.step, costs.batch + s * costs.query
        hidden = min(searched, min(ahead, s) * costs.step) if right == s else 0.0
        steps += chance * min(right + 1, s)
        seconds += chance * (made + searched - hidden)
    return steps, seconds


positive = st.floats(1e-4, 10.0)


@given(gamma=st.floats(0.0, 1.0), s=st.integers(1, 64), a=positive, b0=positive, b1=positive, ahead=st.integers(0, 64))
def test_formulas_equal_the_sum_over_all_outcomes(
    gamma: float, s: int, a: float, b0: float, b1: float, ahead: int
) -> None:
    costs = Costs(a, b0, b1)
    steps, seconds = simulated_round(gamma, s, costs, ahead)
    assert expected_steps(gamma, s) == pytest.approx(steps)
    assert round_seconds(gamma, s, costs, ahead=ahead) == pytest.approx(seconds)


@given(gamma=st.floats(0.0, 1.0), a=positive, b0=positive, b1=positive, overlaps=st.booleans())
def test_the_plan_is_the_best_of_all_rounds(gamma: float, a: float, b0: float, b1: float, overlaps: bool) -> None:
    costs = Costs(a, b0, b1)
    plan = best_plan(gamma, costs, overlaps=overlaps)

    def rate(s: int) -> float:
        steps, seconds = simulated_round(gamma, s, costs, s if overlaps else 0)
        return steps / seconds

    plain = 1.0 / (a + b0 + b1)
    best = max(rate(s) for s in range(1, 65))
    if plan.speculates:
        assert rate(plan.stride) == pytest.approx(best)
        assert best > plain
    else:
        assert best <= plain * 1.0201


def test_published_figures() -> None:
    """At 0.95 and b/a = 40, the published bound of 0.6 on gamma gives 4.7x, and no bound gives 9.2x."""
    costs = Costs(1.0, 40.0, 0.0)

    def speedup(s: int) -> float:
        return 41.0 * expected_steps(0.95, s) / round_seconds(0.95, s, costs)

    assert speedup(best_plan(0.95, costs, overlaps=False).stride) == pytest.approx(9.2, abs=0.1)
    assert speedup(best_plan(0.6, costs, overlaps=False).stride) == pytest.approx(4.7, abs=0.5)


@given(gamma=st.floats(0.0, 1.0), b0=positive, b1=positive, made=st.integers(1, 30))
def test_the_batch_is_the_one_with_most_steps_a_second(gamma: float, b0: float, b1: float, made: int) -> None:
    chosen, costs = best_batch(gamma, Costs(1.0, b0, b1), made), Costs(1.0, b0, b1)
    rates = [expected_steps(gamma, s) / costs.search(s) for s in range(1, made + 1)]
    assert rates[chosen - 1] == max(rates)


def test_guesses_that_must_be_read_are_withheld_where_they_cost_more_than_they_bring() -> None:
    assert reading_pays(0.01, reading=0.03, search=0.05), "the time would be waited"
    assert not reading_pays(0.5, reading=0.03, search=0.002)
    assert reading_pays(0.95, reading=0.03, search=0.002)
    scheduler = Scheduler()
    assert scheduler.reads(), "nothing is known yet"
    scheduler.observe_search(1, 0.002)
    for _ in range(20):
        scheduler.observe_step(0.04, reads=True)
        scheduler.observe_step(0.01)
        scheduler.observe_change(False)
    assert not scheduler.reads()
    for _ in range(64):
        scheduler.observe_change(True)
    assert scheduler.reads()


def test_late_ends_make_speculation_dearer() -> None:
    cheap = Costs(1.0, 0.1, 0.1)
    assert best_plan(0.5, cheap, overlaps=True).speculates
    late = Costs(1.0, 0.1, 0.1, late=0.5)
    assert not best_plan(0.5, late, overlaps=True).speculates
    assert best_plan(0.95, late, overlaps=True).speculates


def test_cheap_searches_are_not_speculated_on_in_turn() -> None:
    assert best_plan(0.9, Costs(1.0, 0.0, 0.15), overlaps=False) == Plan()
    assert best_plan(0.9, Costs(1.0, 0.0, 0.0), overlaps=True) == Plan()
    assert best_plan(0.9, Costs(1.0, 0.0, 0.5), overlaps=True).speculates


def test_the_scheduler_learns_costs_and_gamma() -> None:
    scheduler = Scheduler(overlaps=False)
    assert scheduler.plan() == Plan() and scheduler.costs is None and scheduler.gamma == 0.5
    for _ in range(40):
        scheduler.observe_step(0.01)
        for s in (1, 4, 9):
            scheduler.observe_search(s, 0.2 + 0.003 * s)
            scheduler.observe_round(s, s)
    costs = scheduler.costs
    assert costs is not None
    assert (costs.step, costs.batch, costs.query) == pytest.approx((0.01, 0.2, 0.003), rel=0.1)
    assert scheduler.gamma > 0.98
    assert scheduler.plan() == best_plan(scheduler.gamma, costs, overlaps=False)
    for _ in range(64):
        scheduler.observe_round(0, 3)
    assert scheduler.gamma == pytest.approx(1 / 66)


@given(rounds=st.lists(st.integers(1, 20).flatmap(lambda s: st.tuples(st.integers(0, s), st.just(s))), max_size=64))
def test_gamma_is_the_beta_posterior(rounds: list[tuple[int, int]]) -> None:
    scheduler = Scheduler()
    right = wrong = 0
    for matched, s in rounds:
        scheduler.observe_round(matched, s)
        right += matched
        wrong += matched < s
    assert scheduler.gamma == pytest.approx((1 + right) / (2 + right + wrong))


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(1e-6, 10.0)), min_size=1, max_size=30))
def test_fitted_costs_are_never_negative(measured: list[tuple[int, float]]) -> None:
    scheduler = Scheduler()
    scheduler.observe_step(0.01)
    for s, seconds in measured:
        scheduler.observe_search(s, seconds)
    costs = scheduler.costs
    assert costs is not None and costs.batch >= 0 and costs.query >= 0
    assert np.isfinite(costs.search(64))


def test_batches_of_one_size_are_half_fixed_cost() -> None:
    scheduler = Scheduler()
    scheduler.observe_step(0.01)
    for _ in range(10):
        scheduler.observe_search(1, 0.2)
    costs = scheduler.costs
    assert costs is not None
    assert (costs.batch, costs.query) == pytest.approx((0.1, 0.1))


def test_a_fixed_stride_is_kept() -> None:
    assert Scheduler(stride=7).plan() == Plan(7, True, 7)
    assert Scheduler(stride=7).batch(9) == 7 and Scheduler(stride=7).reads()
    with pytest.raises(ValueError, match="got 65"):
        Scheduler(stride=65)


def test_a_small_promise_is_measured_before_it_is_believed() -> None:
    scheduler = Scheduler()
    for _ in range(20):
        scheduler.observe_step(0.01)
        scheduler.observe_search(1, 0.0015)
        scheduler.observe_round(1, 1)
    promised = best_plan(scheduler.gamma, scheduler.costs, overlaps=True)  # type: ignore[arg-type]
    assert promised.speculates and MIN_SPEEDUP < promised.promise < CLEAR_SPEEDUP
    assert not scheduler.plan().speculates, "nothing is known of the pace without"
    for _ in range(MIN_ROUNDS):
        scheduler.observe_pace(0.0115, 1, speculates=False)
    assert scheduler.plan().speculates
    for _ in range(MIN_ROUNDS):
        scheduler.observe_pace(0.0125, 1, speculates=True)  # concurrent searches slow the steps down
    assert not any(scheduler.plan().speculates for _ in range(RETRY)), "it was slower"
    assert scheduler.plan().speculates, "after a while it is tried again"
    for _ in range(MIN_ROUNDS):
        scheduler.observe_pace(0.0105, 1, speculates=True)
    assert all(scheduler.plan().speculates for _ in range(2 * RETRY))


def test_dear_searches_are_speculated_on_before_any_pace_is_known() -> None:
    scheduler = Scheduler()
    for _ in range(3):
        scheduler.observe_step(0.01)
        scheduler.observe_search(1, 0.2)
        scheduler.observe_round(1, 1)
    plan = scheduler.plan()
    assert plan.speculates and plan.promise < CLEAR_SPEEDUP
