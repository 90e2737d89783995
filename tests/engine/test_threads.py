"""Number of torch threads: the fastest by measurement, never more than the program may use, and restored afterwards."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import copyspec
from copyspec import Engine
from copyspec.budget import CostModel
from copyspec.cli.app import main
from copyspec.engine.logits.language import Language
from copyspec.engine.running import threads as engine_threads
from copyspec.engine.running.threads import MAX_WAIT, Load, ThreadChoice, allowed, held_by_others
from copyspec.literature import Typical
from tests.helpers.tiny import tiny_engine, tiny_model, tiny_tokenizer

PROMPT = "some text that the model goes on with"

Machine = Callable[[int], tuple[float, float]]
"""Maps the number of threads to (seconds of a pass, CPU time of its first thread)."""


def scaling(gain: float, seconds: float = 0.01) -> Machine:
    """Free cores: each doubling of the threads divides the time of a pass by `gain`."""

    def run(count: int) -> tuple[float, float]:
        took = seconds / gain ** (count.bit_length() - 1)
        return took, took

    return run


def beside_busy(seconds: float = 0.01) -> Machine:
    """Every core is busy: one thread gets half of a core, and several wait for each other."""
    noise = random.Random(0)

    def run(count: int) -> tuple[float, float]:
        if count == 1:
            return 2.0 * seconds, seconds
        took = seconds * noise.choice([2, 3, 10, 30, 60])
        return took, 0.5 * took  # the first thread spins while it has a core

    return run


def spend(choice: ThreadChoice, machine: Machine, passes: int, bound: int = 8, *, expected: float = 0.0) -> float:
    """Return the seconds of `passes` passes; the expected time follows the measured one, as in the cost model."""
    total = 0.0
    for _ in range(passes):
        count = choice.next(bound)
        seconds, used = machine(count)
        choice.observe(count, bound, seconds, used, seconds / expected if expected else None)
        expected = expected * min(max(seconds / expected, 0.5), 2.0) ** 0.2 if expected else seconds
        total += seconds
    return total


def test_more_threads_are_tried_late_and_kept_where_they_pay() -> None:
    choice = ThreadChoice(1)
    spend(choice, scaling(1.8), 150)
    assert choice.count == 1, "a short call is no place for trials"
    spend(choice, scaling(1.8), 5000)
    assert choice.count == 8
    choice = ThreadChoice(1)
    spend(choice, scaling(1.2), 5000)
    assert choice.count == 1, "a fifth is not worth twice the cores"


def test_fewer_threads_are_taken_where_more_do_not_pay() -> None:
    choice = ThreadChoice(8)
    spend(choice, scaling(1.02), 60)
    assert choice.count <= 4
    for gain in (1.15, 1.7):  # prompts gain more than the passes that are compared
        choice = ThreadChoice(8)
        spend(choice, scaling(gain), 500)
        assert choice.count == 8


@pytest.mark.parametrize("start", [1, 2, 8])
def test_beside_busy_programs_it_comes_down_to_one(start: int) -> None:
    machine = beside_busy()
    choice = ThreadChoice(start)
    first = spend(choice, machine, 12)
    assert choice.count == 1
    assert first < 0.3 + 12 * 0.02 + 3 * 0.6, "a few slow passes are enough"
    passes = 5000
    assert spend(choice, machine, passes) < 1.05 * passes * 0.02, "what trials lose is bounded"


def test_what_becomes_slow_is_noticed_and_what_is_free_again_too() -> None:
    choice = ThreadChoice(8)
    spend(choice, scaling(1.8), 300)
    assert choice.count == 8
    machine = beside_busy()
    while choice.count > 1:
        assert spend(choice, machine, 1) < 1.0
    spend(choice, scaling(1.8), 100_000)
    assert choice.count == 8


def test_a_neighbour_of_an_hour_costs_a_minute_after_it() -> None:
    choice = ThreadChoice(2)
    spend(choice, beside_busy(), 150_000)
    assert choice.count == 1
    slow = 0.0
    while choice.count == 1 and slow < 100:
        slow += spend(choice, scaling(1.8), 20)
    assert slow < 70


def test_a_neighbour_whom_the_first_thread_does_not_feel_is_noticed_by_the_clock() -> None:
    choice = ThreadChoice(2)
    spend(choice, scaling(1.8), 300, bound=2)

    def one_core_busy(count: int) -> tuple[float, float]:
        return (0.01, 0.01) if count == 1 else (0.2, 0.2)  # it spins, on a core of its own

    assert spend(choice, one_core_busy, 20, bound=2, expected=0.01) < 8 * 0.2
    assert choice.count == 1


def test_tiny_passes_and_failures_wait() -> None:
    choice = ThreadChoice(1)
    spend(choice, scaling(1.8, seconds=1e-4), 50_000)
    assert choice.count == 1, "starting threads takes longer than such a pass"
    choice = ThreadChoice(1)
    tried = []

    def in_vain(count: int) -> tuple[float, float]:
        tried.append(count)
        return (0.01, 0.01) if count == 1 else (0.5, 0.5)

    total = spend(choice, in_vain, 100_000)
    lost = tried.count(2) * 0.49
    assert 0 < lost < 0.02 * total + 1.0 and choice._wait <= MAX_WAIT


def test_no_pass_takes_more_than_it_may() -> None:
    choice = ThreadChoice(8)
    assert choice.next(2) == 2
    choice.observe(2, 2, 0.01, 0.01, 1.0)
    assert choice.count == 8


@pytest.fixture(autouse=True)
def _no_ngrams(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take a third of a second per engine, and do not matter here."""
    monkeypatch.setattr(Language, "ngrams", None)


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, four_threads: None) -> Iterator[tuple[Engine, list[int]]]:
    """An engine that may use four threads, and the number of threads of each of its passes."""
    monkeypatch.setattr(engine_threads, "allowed", lambda: 4)
    model = tiny_model()
    counts: list[int] = []
    model.register_forward_pre_hook(lambda *_: counts.append(torch.get_num_threads()))
    yield Engine(model, tiny_tokenizer()), counts


def test_passes_take_their_threads_and_the_program_keeps_its_own(watched: tuple[Engine, list[int]]) -> None:
    engine, counts = watched
    for options, expected in (({}, 1), ({"threads": 3}, 3), ({"threads": 1, "drafter": "none"}, 1)):
        counts.clear()
        result = engine.generate(PROMPT, max_new_tokens=6, **options)  # type: ignore[call-overload]
        assert set(counts) == {expected} and len(result.token_ids) == 6
        assert torch.get_num_threads() == 4
    engine.threads = 2
    counts.clear()
    for _ in engine.stream(PROMPT, max_new_tokens=4):
        assert torch.get_num_threads() == 4, "between passes the program has its own"
    assert set(counts) == {2} == {engine.threads}
    engine.generate(PROMPT, max_new_tokens=2, threads=4)
    engine.threads = None
    assert engine.threads == 1 and counts[-1] == 4


def test_passes_of_a_lent_copy_take_as_many(watched: tuple[Engine, list[int]]) -> None:
    engine, counts = watched
    run = engine.lend(tiny_model())
    for threads, expected in ((None, 1), (3, 3)):
        engine.threads = threads
        assert run(torch.get_num_threads) == expected and torch.get_num_threads() == 4
    with pytest.raises(KeyError, match="mine"):
        run(lambda: {}["mine"])
    assert torch.get_num_threads() == 4 and counts == [], "the model itself made no pass"


def test_an_error_and_an_abandoned_stream_leave_the_threads_as_they_were(watched: tuple[Engine, list[int]]) -> None:
    engine, _ = watched

    def fails(ids: object, scores: object) -> object:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        engine.generate(PROMPT, logits_processor=fails, max_new_tokens=4)  # type: ignore[arg-type]
    assert torch.get_num_threads() == 4
    stream = engine.stream(PROMPT, max_new_tokens=30)
    next(stream)
    del stream
    assert torch.get_num_threads() == 4


def test_what_the_program_leaves_is_the_most_that_is_taken(watched: tuple[Engine, list[int]]) -> None:
    engine, counts = watched
    engine._threads.choice = ThreadChoice(4)
    torch.set_num_threads(2)
    engine.generate(PROMPT, max_new_tokens=3)
    assert counts[0] == max(counts) == 2 == torch.get_num_threads()


def test_both_sides_of_a_comparison_take_one_number(watched: tuple[Engine, list[int]]) -> None:
    engine, counts = watched
    engine._threads.choice = choice = ThreadChoice(4)
    choice._tried = 2  # a trial is in progress
    assert copyspec.compare(PROMPT, model=engine, max_new_tokens=6).equal  # type: ignore[union-attr]
    assert len(set(counts)) == 1
    counts.clear()
    options = {"rule": Typical(), "temperature": 0.8, "seed": 1, "max_new_tokens": 12}
    engine.generate(PROMPT, draft_model="layers:1", **options)  # type: ignore[call-overload]
    assert len(set(counts)) == 1, "times must not decide anything where outputs depend on the passes"


def test_a_thread_that_meets_torch_during_a_pass_gets_the_programs_number(watched: tuple[Engine, list[int]]) -> None:
    engine, _ = watched
    counts: list[int] = []

    def meet(*_: object) -> None:
        if not counts:
            counts.append(0)
            other = threading.Thread(target=lambda: counts.append(engine_threads._own()))
            other.start()
            other.join()

    with engine.model.register_forward_pre_hook(meet):
        engine.generate(PROMPT, max_new_tokens=2)
    assert counts[1:] == [4]


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2"])
def test_what_is_no_number_of_threads(bad: object) -> None:
    engine = tiny_engine()
    with pytest.raises(ValueError, match=r"threads must be an integer"):
        engine.generate(PROMPT, threads=bad)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"threads must be an integer"):
        engine.threads = bad  # type: ignore[assignment]


def test_a_pass_is_compared_with_what_was_expected_of_it() -> None:
    costs = CostModel(lambda: 0.0)
    assert costs.take_ratio() is None
    costs.observe(1, 0.01)
    assert costs.take_ratio() is None
    for _ in range(5):
        costs.observe(1, 0.01)
    costs.observe(1, 0.08)
    assert costs.take_ratio() == pytest.approx(8.0) and costs.take_ratio() is None


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/pod/a\n", "sys/fs/cgroup/pod/cpu.max": "150000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/b\n",
                "sys/fs/cgroup/cpu/docker/b/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/docker/b/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        ({"proc/self/cgroup": "nonsense\n0::/../..\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        ({}, None),
    ],
)
def test_a_containers_quota_counts(tmp_path: Path, files: dict[str, str], quota: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    everything = allowed(tmp_path / "nothing")
    assert everything >= 1
    assert allowed(tmp_path) == (everything if quota is None else min(everything, quota))


def test_the_load_of_others_is_some_number_of_cores() -> None:
    assert held_by_others(None) >= 0.0
    now = Load.read()
    assert now is None or held_by_others(Load(now.at - 1.0, now.busy - 1.5)) >= 1.0


@pytest.mark.usefixtures("named_model")
def test_the_command_line_has_the_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["generate", "a b", "--max-new-tokens", "2", "--threads", "1"]) == 0
    text = tmp_path / "a.txt"
    text.write_text("He go home.\n")
    for command in (["generate", "a b"], ["gec", str(text)]):
        capsys.readouterr()
        assert main([*command, "--threads", "0"]) == 2
        assert "threads must be an integer" in capsys.readouterr().err
