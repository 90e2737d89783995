"""Servers that fail in every way, and runs that are ended: no wrong file, nothing lost, nothing paid for twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

import copyspec
from copyspec.client import sending
from copyspec.client.sending import as_ended
from copyspec.pipelines import FileOptions, GECPipeline, GuardOptions, Summary
from tests.helpers.commands import run
from tests.helpers.fake_server import Sent, asked_text, completion, fake_server

ROOT = Path(__file__).parent.parent.parent
WORDS = ("cat", "dog", "house", "tree", "river", "stone", "bread", "table", "window", "garden", "teacher", "letter")


def sentences(count: int, seed: int = 0) -> list[str]:
    """Different ones, each with a mistake that `corrected` mends. No two have the same words in another order: with
    swaps allowed, the answer to one would be an answer to the other."""
    random_ = random.Random(seed)
    texts: dict[tuple[str, ...], str] = {}
    while len(texts) < count:
        one, two, three, four = random_.sample(WORDS, 4)
        five = random_.choice(WORDS)
        text = f"There was teh {one} and teh {two} near the {three} of {four} in {five}."
        texts.setdefault(tuple(sorted((one, two, three, four, five))), text)
    return list(texts.values())


def corrected(text: str) -> str:
    return text.replace("teh", "the")


def right(body: dict[str, Any]) -> dict[str, Any]:
    return completion(corrected(asked_text(body)))


class Faulty:
    """A server that fails at random, and counts what it did. It fails a text fewer times in a row than it is asked: at
    a quarter of all requests, one of 2,000 texts would else meet as many faults as there are tries in 1 of 60 runs."""

    def __init__(self, share: float, seed: int = 0) -> None:
        self.random, self.share = random.Random(seed), share
        self.did: Counter[str] = Counter()
        self.in_a_row: Counter[str] = Counter()
        self.last = "The lighthouse keeper sings of whales."

    def __call__(self, body: dict[str, Any]) -> Sent:
        text, answer = asked_text(body), right(body)
        kind = "right"
        if self.random.random() < self.share and self.in_a_row[text] < sending.TRIES - 2:
            kind = self.random.choice(KINDS)
        self.in_a_row[text] = 0 if kind == "right" else self.in_a_row[text] + 1
        self.did[kind] += 1
        other, self.last = self.last, text
        return faults(kind, answer, other, self.random)


def faults(kind: str, answer: dict[str, Any], other: str, random_: random.Random) -> Sent:
    data = json.dumps(answer).encode()
    made = {
        "right": lambda: Sent(data),
        "late": lambda: Sent(data, delay=0.05),
        "dropped": lambda: Sent(data, cut=0),
        "cut": lambda: Sent(data, cut=random_.randrange(20, len(data))),
        "429": lambda: Sent({"error": {"message": "slow down"}}, 429, {"retry-after": "0.01"}),
        "500": lambda: Sent({"error": {"message": "CUDA error"}}, 500),
        "503": lambda: Sent(b"", 503),
        "no JSON": lambda: Sent(data[: len(data) // 2]),
        "other JSON": lambda: Sent({"choices": []}),
        "other model": lambda: Sent({**answer, "model": "another-model"}),
        "other answer": lambda: Sent(completion(corrected(other))),
        "half": lambda: Sent(completion(answer["choices"][0]["message"]["content"][:20], finish=None)),
        "page": lambda: Sent(b"<html>Welcome</html>", 200, {"content-type": "text/html"}),
        "error page": lambda: Sent(b"<!doctype html><h1>Bad gateway</h1>", 502, {"content-type": "text/html"}),
    }
    return made[kind]()


KINDS = ("late", "dropped", "cut", "429", "500", "503", "no JSON", "other JSON", "other model", "other answer")
KINDS += ("half", "page", "error page")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sending, "LONGEST_PAUSE", 0.1)


def test_2000_requests_to_a_faulty_server_make_the_right_files(tmp_path: Path) -> None:
    texts, faulty = sentences(2000), Faulty(0.25)
    paths = [tmp_path / f"{number}.txt" for number in range(20)]
    for number, path in enumerate(paths):
        path.write_text("\n\n".join(texts[100 * number : 100 * number + 100]) + "\n")
    total = Summary()
    with fake_server(faulty) as server, copyspec.remote(server.url) as remote:
        pipeline = GECPipeline(remote, guards=GuardOptions(allow_swaps=True))
        for report in pipeline.files(paths, FileOptions(in_place=True)):
            assert report.error is None
            total.add(report.summary)
    assert "\n\n".join(path.read_text().strip() for path in paths) == "\n\n".join(map(corrected, texts))
    assert total.segments == total.changed == 2000 and not total.skipped and remote.usage.requests == 2000
    assert set(faulty.did) == {"right", *KINDS}
    assert not list(tmp_path.glob("*journal*"))
    named = sum(remote.failures.values())
    assert named == sum(faulty.did.values()) - 2000 and len(remote.failures) >= 8, remote.failures


def test_an_answer_to_a_text_that_differs_in_one_word_or_two_is_asked_for_again() -> None:
    """With swaps allowed, no guard could tell it from a correction."""
    texts = sentences(2000, seed=3)
    draw, words = random.Random(0), [text.split() for text in texts]
    pairs = [
        (one, two)
        for one in draw.sample(range(len(texts)), 40)
        for two in [two for two in range(len(texts)) if 0 < sum(map(str.__ne__, words[one], words[two])) <= 2][:5]
    ]
    with fake_server(lambda body: Sent(right(body))) as server:
        for one, two in pairs:
            asked, answers = Counter[str](), [*[corrected(texts[two])] * 2, corrected(texts[one])]

            def reply(body: dict[str, Any], one: int = one, asked: Any = asked, answers: Any = answers) -> Sent:
                is_own = asked_text(body) == texts[one]
                asked["own"] += is_own
                return Sent(completion(answers[min(asked["own"], 3) - 1])) if is_own else Sent(right(body))

            server.reply = reply
            with copyspec.remote(server.url) as remote:
                pipeline = GECPipeline(remote, guards=GuardOptions(allow_swaps=True))
                pipeline(texts[two])
                assert pipeline(texts[one]).text == corrected(texts[one])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("late", "429", "503", "other answer")])
def test_a_text_that_always_fails_fails_its_file_alone(kind: str, tmp_path: Path) -> None:
    texts = sentences(12)
    paths = [tmp_path / "bad.txt", tmp_path / "good.txt"]
    paths[0].write_text("\n\n".join(texts[:6]))
    paths[1].write_text("\n\n".join(texts[6:]))

    def reply(body: dict[str, Any]) -> Sent:
        is_bad = asked_text(body) == texts[3]
        slow = 0.02 if asked_text(body) in texts[6:] else 0.0  # others are answered after the first try of the bad one
        return faults(kind, right(body), texts[7], random.Random(1)) if is_bad else Sent(right(body), delay=slow)

    with fake_server(reply) as server, copyspec.remote(server.url, concurrency=2) as remote:
        pipeline = GECPipeline(remote, guards=GuardOptions(allow_swaps=True), pack=0)
        bad, good = pipeline.files(paths, FileOptions(in_place=True))
        assert good.error is None and paths[1].read_text() == "\n\n".join(map(corrected, texts[6:]))
        assert isinstance(bad.error, copyspec.ServerError) and "the server failed: " in str(bad.error)
        assert paths[0].read_text() == "\n\n".join(texts[:6])
        server.reply, seen = lambda body: Sent(right(body)), len(server.bodies)
        (again,) = pipeline.files(paths[0], FileOptions(in_place=True, resume=True))
        assert again.error is None and paths[0].read_text() == "\n\n".join(map(corrected, texts[:6]))
        assert [asked_text(body) for body in server.bodies[seen:]] == [texts[3]]


def test_a_server_that_is_gone_ends_the_run_and_keeps_what_was_answered(tmp_path: Path) -> None:
    texts, path = sentences(60), tmp_path / "a.txt"
    path.write_text("\n\n".join(texts))
    is_gone = False

    def reply(body: dict[str, Any]) -> Sent:
        nonlocal is_gone
        is_gone = is_gone or len(server.bodies) > 30
        return Sent(b"", cut=0) if is_gone else Sent(right(body))

    with fake_server(reply) as server, copyspec.remote(server.url, concurrency=4) as remote:
        pipeline = GECPipeline(remote, guards=GuardOptions(allow_swaps=True))
        with pytest.raises(copyspec.ServerError, match=r"/v1: the connection failed .* and so 8 times"):
            list(pipeline.files(path, FileOptions(in_place=True)))
        answered = remote.usage.requests
        assert path.read_text() == "\n\n".join(texts) and 0 < answered <= 30
        is_gone, seen = False, len(server.bodies)
        server.reply = lambda body: Sent(right(body))
        (report,) = pipeline.files(path, FileOptions(in_place=True, resume=True))
        assert report.error is None and path.read_text() == "\n\n".join(map(corrected, texts))
        assert len(server.bodies) - seen == 60 - answered


def test_the_command_says_how_to_go_on_after_a_server_that_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "FIRST_PAUSE", 0.01)
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(sentences(60)))

    def reply(body: dict[str, Any]) -> Sent:
        return Sent(b"", cut=0) if len(server.bodies) > 30 else Sent(right(body))

    with fake_server(reply) as server:
        code, out, err = run(capsys, "gec", "-i", str(path), "--server", server.url, "--concurrency", "4")
    assert (code, out) == (2, "") and "the same command with --resume continues" in err
    assert path.read_text() == "\n\n".join(sentences(60))


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (Sent({"error": {"message": "Incorrect key: sk-1234"}}, 401), r"401 \(Incorrect key: \*\*\*\); check the key"),
        (Sent({"error": {"message": "no model 'm'"}}, 404), r"404 \(no model 'm'\)"),
        (Sent({"error": {"message": "no money", "code": "insufficient_quota"}}, 429), "429 .*no money"),
        (Sent({"error": {"message": "messages must alternate"}}, 400), "400 .*must alternate"),
        (Sent(completion("x", model="other")), "another model has answered: 'other' instead of 'm', and so 8 times"),
        (Sent(b"<html>", 200), "it sent an HTML page instead of JSON, and so 8 times"),
    ],
)
def test_what_no_request_can_mend_ends_the_run(sent: Sent, message: str) -> None:
    with fake_server(lambda body: sent) as server, copyspec.remote(server.url, api_key="sk-1234") as remote:
        with pytest.raises(copyspec.ServerError, match=message):
            GECPipeline(remote)("There was teh cat.")
        assert len(server.bodies) <= sending.TRIES + 1


def test_a_busy_server_gets_fewer_requests_and_what_it_asks_for() -> None:
    times: list[float] = []

    def reply(body: dict[str, Any]) -> Sent:
        times.append(time.monotonic())
        if server.open > 4 or len(times) == 1:
            return Sent({"error": {"message": "busy"}}, 429, {"retry-after": "0.3"}, delay=0.02)
        return Sent(right(body), delay=0.02)

    with fake_server(reply) as server, copyspec.remote(server.url, concurrency=32) as remote:
        texts = sentences(150)
        corrections = GECPipeline(remote, guards=GuardOptions(allow_swaps=True))(texts)
    assert [correction.text for correction in corrections] == list(map(corrected, texts))
    assert server.most <= 32
    later = [after - before for before, after in pairwise(times) if after - before > 0.25]
    assert later, "it waits as long as it is asked to"
    assert sum(remote.failures.values()) < 75, "of requests beyond what the server takes few are sent"


def test_no_more_requests_than_wanted_are_under_way() -> None:
    with fake_server(lambda body: Sent(right(body), delay=0.01)) as server:
        with copyspec.remote(server.url, concurrency=3) as remote:
            GECPipeline(remote)(sentences(40))
        assert server.most == 3


def test_a_client_has_few_requests_under_way() -> None:
    with fake_server(lambda body: Sent(right(body), delay=0.1)) as server:  # which a busy machine takes to ask
        with copyspec.remote(server.url, concurrency=2 * sending.LANE + 1) as remote:
            GECPipeline(remote)(sentences(40))
            (lanes,) = remote._sender._lanes.values()
            assert len(lanes) == 3 and not any(lane.running for lane in lanes)
        assert server.most == 2 * sending.LANE + 1 and not remote._sender._lanes


def test_a_request_that_outlives_the_closing_leaves_no_connection_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was waiting to be sent again, and was answered while the others were being closed."""
    monkeypatch.setattr(sending, "FIRST_PAUSE", 0.2)
    asked = threading.Event()

    def reply(body: dict[str, Any]) -> Sent:
        is_first = not asked.is_set()
        asked.set()
        return Sent({"error": {"message": "failed"}}, 500) if is_first else Sent(right(body))

    with fake_server(reply) as server, copyspec.remote(server.url, model="m") as remote:
        remote._recipient()
        asked.clear()
        thread = threading.Thread(target=remote.generate, args=("first",))
        thread.start()
        assert asked.wait(10)
        time.sleep(0.1)  # until the error has arrived
        remote.close()
        thread.join()
        assert not remote._sender._lanes
        failed = dict(remote.failures)
        assert remote.generate("second").text == "second" and dict(remote.failures) == failed


COMMAND = "import sys\nfrom copyspec.cli import main\nraise SystemExit(main(sys.argv[1:]))"


def start(path: Path, url: str, *more: str) -> subprocess.Popen[str]:
    arguments = ["gec", "-i", str(path), "--server", url, "--concurrency", "8", "--allow-swaps", *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments], stderr=subprocess.PIPE, text=True, env=environment
    )


def journaled(path: Path) -> int:
    journals = list(path.parent.glob("*journal*"))
    return sum(line.startswith('{"key"') for journal in journals for line in journal.read_text().splitlines())


@pytest.fixture
def slow() -> Iterator[Any]:
    with fake_server(lambda body: Sent(right(body), delay=0.02)) as server:
        yield server


def wait_for(count: int, server: Any, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while len(server.bodies) < count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def test_a_run_killed_at_random_moments_pays_for_nothing_twice(slow: Any, tmp_path: Path) -> None:
    texts, path, random_ = sentences(240), tmp_path / "a.txt", random.Random(3)
    path.write_text("\n\n".join(texts))
    paid, kills = 0, 0
    while kills < 10 and paid < len(texts) - 20:
        seen = len(slow.bodies)
        process = start(path, slow.url, *(["--resume"] if kills else []))
        wait_for(seen + random_.randrange(2, 24), slow, process)
        process.kill()
        process.communicate()
        time.sleep(0.1)  # until the server has read what the process had sent
        assert path.read_text() == "\n\n".join(texts)
        now = journaled(path)
        # Nothing is asked for again but what was under way.
        assert len({asked_text(body) for body in slow.bodies[seen:]}) == len(slow.bodies) - seen
        assert now >= paid and (now - paid) >= len(slow.bodies) - seen - 9
        paid, kills = now, kills + 1
    process, seen = start(path, slow.url, "--resume"), len(slow.bodies)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert path.read_text() == "\n\n".join(map(corrected, texts))
    assert len(slow.bodies) - seen == len(texts) - paid


def test_ctrl_c_keeps_every_answer_that_was_under_way(slow: Any, tmp_path: Path) -> None:
    texts, path = sentences(200), tmp_path / "a.txt"
    path.write_text("\n\n".join(texts))
    process = start(path, slow.url)
    wait_for(50, slow, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "answers are under way and will be kept" in errors and "--resume continues" in errors
    assert journaled(path) == len(slow.bodies) < 200
    assert f"{len(slow.bodies)} answers" in errors


def test_ctrl_c_in_the_middle_of_anything_ends_the_run_after_what_is_under_way() -> None:
    """Wherever the thread is: waiting, or at work on an answer."""
    started: list[Future[int]] = []

    def begin(number: int) -> Future[int]:
        started.append(Future())
        return started[-1]

    answers = as_ended(iter(range(100)), begin, 3)
    threading.Timer(0.05, lambda: [future.set_result(7) for future in started]).start()
    assert next(answers)[1] == 7
    signal.raise_signal(signal.SIGINT)  # at work on it
    count = len(started)
    for future in started:
        if not future.done():
            future.set_result(7)
    assert [value for _, value in islice(answers, count - 1)] == [7] * (count - 1) and len(started) == count
    with pytest.raises(KeyboardInterrupt):
        next(answers)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
