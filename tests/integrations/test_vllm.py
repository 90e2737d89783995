"""The plug-in in a copy of vLLM's interface: drafts, requests that come and go, unreliable parts of vLLM."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from copyspec.engine.logits.language import Language
from copyspec.integrations.costs import Calibration, StepCosts, cut
from copyspec.integrations.vllm import Prediction, config, copying
from copyspec.integrations.vllm.parameters import EDIT_SOURCE, REFERENCES, read_texts
from kit.vllm_engine import MAX_LENGTH, Parameters, Request, Runner, engine_config, fake_vllm
from tests.helpers.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
WORDS = [
    "a",
    "wall",
    "of",
    "stone",
    "stands",
    "by",
    "the",
    "sea",
    "where",
    "lizards",
    "and",
    "wrens",
    "live",
    "in",
    "its",
    "gaps",
    "for",
    "two",
    "hundred",
    "years",
]


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Language, "ngrams", None)  # English n-grams would take longer than all other tests here
    with fake_vllm(TOKENIZER):
        yield


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def text(seed: int, words: int = 12) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def request(seed: int, parameters: Parameters | None = None, *, prompt: str | None = None) -> Request:
    """A request that generates a text and ends."""
    script = [*ids(" " + text(seed)), 0]
    return Request(ids(prompt or f"write {seed}:"), script, parameters or Parameters(max_tokens=None))


def run(runner: Runner) -> None:
    steps = 0
    while runner.requests:
        runner.step()
        steps += 1
        assert steps < 500


def with_source(seed: int) -> Parameters:
    return copying(Parameters(max_tokens=None), edit_source=text(seed))


def test_a_told_text_is_written_in_few_steps() -> None:
    plain, runner = request(1), Runner(engine_config())
    runner.add("a", plain)
    run(runner)
    helped, referred = (
        request(1, with_source(1)),
        request(1, copying(Parameters(max_tokens=None), references=[text(2), text(1)])),
    )
    for key, row in (("b", helped), ("c", referred)):
        runner.add(key, row)
    run(runner)
    assert helped.output == referred.output == plain.output == plain.script
    assert helped.steps <= len(plain.script) / 10
    assert referred.steps <= len(plain.script) / 6
    assert plain.steps > 2 * helped.steps


@pytest.mark.parametrize("ends", [[], [0]], ids=["header", "end of turn"])
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_drafted_after_the_end_of_the_told_text(seed: int, ends: list[int]) -> None:
    """In the prompt the text goes on: with the end of the turn, or with the header of the answer alone, and after that
    with the output itself. A pass brings the end by itself."""
    runner = Runner(engine_config(random.Random(seed).choice([16, 32, 64])))
    prompt = [*ids(f"write: {text(seed)}"), *ends, *ids(" answer")]
    row = runner.add("a", request(seed, with_source(seed)))
    row.prompt_token_ids = prompt
    while runner.requests:
        (draft,) = runner.step()
        if runner.requests:
            assert draft == row.script[len(row.output) : -1][: len(draft)]
    assert row.steps <= 1 + len(row.script) / 10


@pytest.mark.parametrize("seed", [None, 7])
def test_long_texts_are_prepared_and_freed_in_parts_while_all_rows_go_on(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request sampled with a seed is prepared at once: its output may depend on when it is drafted."""
    monkeypatch.setattr("copyspec.integrations.vllm.rows.SLICE", 1000)
    monkeypatch.setattr("copyspec.integrations.vllm.proposer.PREPARING_SECONDS", 1e-9)
    references = [ids(text(number, 40)) for number in range(100, 140)]
    long = request(1, copying(Parameters(max_tokens=None, seed=seed), references=[*references, text(1)]))
    long.sampling_params.temperature = float(seed is not None)
    other, runner = request(2, with_source(2)), Runner(engine_config())
    runner.add("long", long)
    runner.add("other", other)
    runner.step()
    row = runner.drafter._rows["long"]
    assert (row.drafter is None) == (seed is None) == (not long.drafts)
    parts = 0
    while row.drafter is None:
        parts += 1
        assert not long.drafts
        runner.step()
    assert parts > 10 if seed is None else not parts
    run(runner)
    assert long.output == long.script and other.output == other.script
    assert other.steps <= len(other.script) / 10
    assert seed is None or long.steps <= len(long.script) / 3
    monkeypatch.setattr("copyspec.integrations.vllm.proposer.PREPARING_SECONDS", 1.0)
    runner.add("last", request(0))
    runner.step()
    assert len(runner.drafter._ended) == 1, "its first part is freed with its last step"
    runner.step()
    assert not runner.drafter._ended


def test_without_a_told_text_it_copies_from_the_prompt() -> None:
    prompt = f"Correct the grammar of this text:\n\n{text(3)}\n\nWrite nothing else."
    alone, runner = request(3, prompt=prompt), Runner(engine_config())
    runner.add("a", alone)
    run(runner)
    assert alone.output == alone.script and alone.steps <= len(alone.script) / 6


def test_a_drafter_never_sees_more_than_the_limits_of_its_row() -> None:
    runner = Runner(engine_config(tokens=8))
    first = request(1, with_source(1))
    runner.add("a", first)
    while runner.requests:
        for draft in runner.step():
            assert len(draft) <= 8
    limited = request(1, copying(Parameters(max_tokens=20), edit_source=text(1)))
    limited.script = limited.script[:20]
    runner.add("b", limited)
    while runner.requests:
        for draft in runner.step():
            assert not draft or len(limited.output) + len(draft) < 20
    late = request(1, copying(Parameters(max_tokens=None, min_tokens=30), edit_source=text(1)))
    runner.add("c", late)
    while runner.requests:
        for draft in runner.step():
            assert not draft or len(late.output) > 30
    assert runner.effective_drafter_max_model_len > MAX_LENGTH
    long = request(1, with_source(1), prompt="x" * (MAX_LENGTH - 30))
    long.script = long.script[:30]
    runner.add("d", long)
    while runner.requests:
        for draft in runner.step():
            assert not draft or long.num_prompt_tokens + len(long.output) + len(draft) < MAX_LENGTH


def test_requests_come_go_and_move_and_none_is_kept() -> None:
    rng, runner, done = random.Random(0), Runner(engine_config()), []
    for number in range(300):
        key = f"id {rng.randrange(40)}"  # ids are reused
        if key not in runner.requests:
            new = request(number, with_source(number) if number % 2 else None)
            new.unread = rng.choice([0, 0, 1, 3])
            done.append(runner.add(key, new))
        if runner.requests and rng.random() < 0.2:
            aborted = rng.choice(sorted(runner.requests))
            done.remove(runner.requests[aborted])
            runner.remove(aborted)
        if runner.requests:
            runner.step()
        assert runner.drafter.num_rows <= len(runner.requests) + 9  # plus those that ended in the last step
    run(runner)
    assert all(row.output == row.script for row in done)
    helped = [row.steps / len(row.script) for row in done if row.sampling_params.extra_args]
    assert sum(helped) / len(helped) < 0.2
    runner.add("last", request(0))
    runner.step()
    assert runner.drafter.num_rows == 1


def test_without_a_runner_it_drafts_from_tokens_alone_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        runner = Runner(engine_config(), hidden=True)
        requests = []
        for number in range(12):
            prompt = f"Correct the grammar of this text:\n\n{text(number)}\n\nWrite nothing else."
            requests.append(runner.add(f"{number}", request(number, with_source(number), prompt=prompt)))
            runner.step()
        run(runner)
    assert [row.output for row in requests] == [row.script for row in requests]
    assert sum(row.steps for row in requests) < 0.5 * sum(len(row.script) for row in requests)
    assert [record.message for record in caplog.records if "runner was not found" in record.message]
    assert len(caplog.records) == 1
    assert runner.effective_drafter_max_model_len == MAX_LENGTH
    runner.add("last", request(0))
    runner.step()
    assert runner.drafter.num_rows == 1


WRONG_TEXTS: list[dict[str, Any]] = [
    {EDIT_SOURCE: 3}, {REFERENCES: [2.5]}, {EDIT_SOURCE: [[1]]}, {REFERENCES: {}}, {REFERENCES: ["\ud800"]},
    {EDIT_SOURCE: [1, True]}, {REFERENCES: [1] * 6_000 + [float("nan")]}, {REFERENCES: [[1], [2, None]]},
]  # fmt: skip


def test_wrong_texts_of_a_request_are_ignored_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    runner = Runner(engine_config())
    with caplog.at_level(logging.WARNING):
        for number, wrong in enumerate(WRONG_TEXTS):
            runner.add(str(number), request(number, Parameters(max_tokens=None, extra_args=wrong)))
        requests = list(runner.requests.values())
        run(runner)
    assert [row.output for row in requests] == [row.script for row in requests]
    assert len(caplog.records) == 1 and "copyspec_edit_source must be a str" in caplog.text


def test_ids_that_the_model_does_not_have_are_not_drafted() -> None:
    runner = Runner(engine_config())
    parameters = Parameters(max_tokens=None, extra_args={EDIT_SOURCE: [5000, *ids(" " + text(1)), -3, 259, 10**40]})
    runner.add("a", request(1, parameters))
    while runner.requests:
        assert all(0 <= token < 259 for draft in runner.step() for token in draft)


class OfMistral:
    """Stands in for vLLM's tokenizer of Mistral's models, whose attributes are methods."""

    all_special_tokens = ()
    chat_template = None

    def added_tokens_decoder(self) -> dict[int, str]:
        return {}


@pytest.mark.parametrize("tokenizer", [None, OfMistral(), object()])
def test_without_a_tokenizer_it_copies_from_token_ids(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    with fake_vllm(tokenizer), caplog.at_level(logging.WARNING):
        config = engine_config()
        config.model_config.try_get_generation_config = lambda: {}
        runner = Runner(config)
        told = runner.add("a", request(1, copying(Parameters(max_tokens=None), edit_source=ids(" " + text(1)))))
        alone = runner.add("b", request(3, prompt=f"Correct: {text(3)}"))
        ignored = [runner.add(f"{number}", request(number, with_source(number))) for number in (4, 5)]
        run(runner)
    for row in (told, alone, *ignored):
        assert row.output == row.script
    assert told.steps <= len(told.script) / 10 and alone.steps <= len(alone.script) / 3
    assert ignored[0].steps > 2 * told.steps
    assert [record.message.split(" (")[0] for record in caplog.records] == [
        "vLLM has no tokenizer here that copyspec can use",
        "invalid texts to copy from are ignored, here and in later requests: the engine has no tokenizer for texts; "
        "give token ids",
    ]


TOO_MUCH: list[dict[str, Any]] = [
    {"edit_source": "a" * 1_000_001},
    {"prediction": {"type": "content", "content": "a" * 1_000_001}},
    {"references": ["a" * 600_000] * 2},
    {"references": [[5] * 125_000] * 3},
    {"references": ["a"] * 5000},
]


@pytest.mark.parametrize("given", TOO_MUCH, ids=lambda given: next(iter(given)))
def test_more_than_a_million_characters_are_refused_before_they_are_encoded(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copyspec.text.codec.Codec.encode_copy", lambda *_: pytest.fail("it was encoded"))
    server = Server(TOKENIZER)
    status, answer = post(server, given)
    assert status == 400 and not server.bodies
    assert re.search(r"at most (1000000|4096) are taken", answer["error"]["message"])
    with pytest.raises(ValueError, match=r"at most (1000000|4096) are taken"):
        copying(Parameters(), **given)


def test_too_long_texts_of_a_request_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    wrong = [{EDIT_SOURCE: "a" * 4_000_001}, {REFERENCES: [1] * 4_000_001}, {REFERENCES: ["a"] * 5000}]
    for extra_args in wrong:
        runner = Runner(engine_config())
        row = runner.add("a", request(1, Parameters(max_tokens=None, extra_args=extra_args)))
        with caplog.at_level(logging.WARNING):
            run(runner)
        assert row.output == row.script
    assert len(caplog.records) == 3 and all("at most" in record.message for record in caplog.records)
    assert read_texts({EDIT_SOURCE: [1] * 1_000_000})[0] == [1] * 1_000_000, "a million characters of one token each"


def test_bodies_are_parsed_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[object] = []

    def rewrite(self: Prediction, scope: Any, body: bytes) -> bytes:
        threads.append(threading.current_thread())
        return body

    monkeypatch.setattr(Prediction, "_rewrite", rewrite)
    assert post(Server(), b'{"prediction": "a"}') == (200, b'{"prediction": "a"}')
    assert threads and threads != [threading.main_thread()]


def test_an_error_while_drafting_does_not_reach_the_engine(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(engine_config())
    monkeypatch.setattr(runner.drafter._maker, "make", lambda *args: 1 / 0)
    wanted = runner.add("a", request(1))
    with caplog.at_level(logging.ERROR):
        run(runner)
    assert wanted.output == wanted.script
    assert len(caplog.records) == 1 and "continues without drafts" in caplog.text


def test_a_sampler_that_loses_parameters_is_mended(caplog: pytest.LogCaptureFixture) -> None:
    import torch

    with fake_vllm(TOKENIZER, broken=True), caplog.at_level(logging.WARNING):
        Runner(engine_config())
        mended: Any = sys.modules["vllm.v1.sample.rejection_sampler"]
        expanded = mended.expand_batch_to_tokens(torch.tensor([0.0, 0.7]), torch.tensor([2, 3]), 3, 0, 1)
        torch.testing.assert_close(expanded, torch.tensor([1.0, 1.0, 0.7]))
    assert "copyspec has replaced it" in caplog.text


def test_where_it_cannot_be_mended_nothing_is_drafted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copyspec.integrations.vllm.runner._expands", lambda expand: False)
    with caplog.at_level(logging.WARNING):
        runner = Runner(engine_config())
    wanted = runner.add("a", request(1, with_source(1)))
    run(runner)
    assert wanted.output == wanted.script and not wanted.drafted
    assert "nothing is drafted" in caplog.text


def test_other_versions_are_warned_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.41.1", raising=False)
    with caplog.at_level(logging.WARNING):
        Runner(engine_config())
    assert "was tested with vLLM 0.32; this is 0.41.1" in caplog.text


def test_recurrent_models_on_a_cpu_are_refused() -> None:
    config = engine_config()
    config.model_config.has_inner_state = True
    config.device_config = SimpleNamespace(device_type="cuda")
    Runner(config)
    config.device_config.device_type = "cpu"
    with pytest.raises(ValueError, match="computes models with recurrent states wrongly"):
        Runner(config)


@pytest.mark.parametrize("own", [{"adaptiv": True}, {"adaptive": 1}])
def test_unknown_settings_are_refused(own: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"may hold 'adaptive', True or False"):
        Runner(engine_config(**own))


def slope(costs: StepCosts) -> float:
    """Return the cost of a draft token relative to a step of ten rows without drafts."""
    empty, token = costs.seconds(10)
    return token / empty


def test_costs_are_those_of_the_tokens_of_a_step() -> None:
    rng, costs = random.Random(0), StepCosts()
    for _ in range(200):
        rows, drafted = rng.randint(1, 32), rng.randint(0, 200)
        costs.observe(rows + drafted, 5e-3 + 3e-4 * (rows + drafted))
    costs.observe(18, 9.0)  # a disturbance
    assert slope(costs) == pytest.approx(3e-4 / 8e-3, rel=0.1)
    for _ in range(300):  # the same on a machine kept busy by other work
        tokens = rng.randint(1, 200)
        costs.observe(tokens, (5e-3 + 3e-4 * tokens) * rng.choice([1, 1, 1.3, 2, 8]))
    assert slope(costs) == pytest.approx(3e-4 / 8e-3, rel=0.5)
    for _ in range(300):
        costs.observe(rng.randint(1, 200), 5e-3)
    assert slope(costs) == pytest.approx(1e-3, rel=0.2)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_steps_that_read_prompts_say_nothing_about_drafts(
    seed: int, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that begins where another ended leaves the number of rows as it was."""
    rng, observed = random.Random(seed), list[int]()
    monkeypatch.setattr(StepCosts, "observe", lambda self, tokens, seconds: observed.append(tokens))
    runner = Runner(engine_config(), hidden=hidden)
    waiting = [request(number, with_source(number) if rng.random() < 0.5 else None) for number in range(12)]
    for row in waiting:
        row.unread = rng.choice([0, 0, 2])
    most, verified = rng.randint(1, 3), 0
    while runner.requests or waiting:
        while waiting and len(runner.requests) < most:
            runner.add(f"r{len(waiting)}", waiting.pop())
        rows = list(runner.requests.values())
        tokens = len(rows) + sum(len(row.drafts) for row in rows)
        old, steps = {id(row) for row in rows if row.output}, len(observed)
        runner.step()
        if any(id(row) not in old for row in rows):
            assert len(observed) == steps
        elif len(observed) > steps:
            assert observed[steps:] == [tokens]
            verified += 1
    assert verified > 10


def test_rows_that_are_sampled_with_a_seed_draft_whatever_it_costs() -> None:
    """vLLM's random stream depends on the drafts."""
    runner = Runner(engine_config(adaptive=True))
    for _ in range(50):
        for tokens in (2, 34):
            runner.drafter._costs.observe(tokens, 1e-3 * tokens**2)
    seeded = Parameters(max_tokens=None, temperature=0.8, seed=1)
    rows = [request(1, copying(seeded, edit_source=text(1))), request(1, with_source(1))]
    for number, row in enumerate(rows):
        runner.add(str(number), row)
    drafts = runner.step()
    assert len(drafts[0]) == 16 and len(drafts[1]) < 16


def test_probabilities_are_corrected_by_what_was_accepted() -> None:
    calibration = Calibration()
    for _ in range(60):
        calibration.observe(48, 8 * sum(calibration.apply([0.9, 0.5, 0.3, 0.2, 0.8, 0.4])), 40)
    assert sum(calibration.apply([0.9, 0.5, 0.3, 0.2, 0.8, 0.4])) == pytest.approx(5, abs=0.2)
    for _ in range(200):
        calibration.observe(3, sum(calibration.apply([0.9, 0.8, 0.7])), 0)
    assert sum(calibration.apply([0.9, 0.8, 0.7])) < 2


def test_drafts_that_did_not_pay_are_tried_again() -> None:
    """A busy machine made them expensive for a while."""
    costs, sure = StepCosts(), ([1, 2, 3], [0.95, 0.9, 0.85])
    for step in range(100):
        tokens = 16 + 48 * (step % 2)
        costs.observe(tokens, 1e-3 * tokens)
    assert costs.fit([sure] * 16) == [[]] * 16
    waited = 0
    while costs.fit([sure] * 16) == [[]] * 16:
        costs.observe(16, 1e-2)
        waited += 1
    assert 20 < waited < 1000
    for _ in range(20):
        drafted = sum(map(len, costs.fit([sure] * 16)))
        costs.observe(16 + drafted, 1e-2 + 1e-5 * drafted)
    assert costs.fit([sure] * 16) == [[1, 2, 3]] * 16


def test_a_full_batch_drafts_what_pays_and_no_more() -> None:
    cheap, dear = StepCosts(), StepCosts()
    rng = random.Random(0)
    for _ in range(50):
        rows, drafted = rng.randint(1, 32), rng.randint(0, 200)
        cheap.observe(rows + drafted, 1e-2 + 1e-6 * drafted)
        dear.observe(rows + drafted, 1e-4 * (rows + drafted))
    sure, unsure = ([1, 2, 3], [0.95, 0.9, 0.85]), ([4, 5], [0.3, 0.1])
    assert cheap.fit([sure, unsure] * 8) == [[1, 2, 3], [4, 5]] * 8
    assert dear.fit([unsure] * 16) == [[]] * 16
    assert cheap.fit([]) == [] and cheap.fit([((), ())] * 2) == [[], []]
    assert cut([sure, unsure], 0.2) == [[1, 2, 3], [4]]


def test_parameters_are_copied_and_checked() -> None:
    params = Parameters(extra_args={"other": 1})
    copied = copying(params, edit_source="a", references=["b", [1, 2], {"text": "c"}], prediction="d")
    assert params.extra_args == {"other": 1}
    assert copied.extra_args == {"other": 1, EDIT_SOURCE: "a", REFERENCES: ["b", [1, 2], "c", "d"]}
    assert copying(Parameters(), prediction={"type": "content", "content": "d"}).extra_args == {EDIT_SOURCE: "d"}
    assert copying(Parameters()).extra_args == {}
    assert read_texts(copied.extra_args) == ("a", ["b", [1, 2], "c", "d"])
    assert read_texts({REFERENCES: [1, -1, 2], EDIT_SOURCE: ""}) == (None, [[1, -1, 2]])
    with pytest.raises(TypeError, match="edit_source must be a str"):
        copying(params, edit_source=3)
    with pytest.raises(TypeError, match=r"params must be vllm\.SamplingParams; got int: 3"):
        copying(3, edit_source="a")  # type: ignore[type-var]


def test_the_engine_is_configured_by_the_name_of_the_class() -> None:
    settings = config(32)
    module, _, name = str(settings["model"]).rpartition(".")
    assert getattr(__import__(module, fromlist=[name]), name).__name__ == "Proposer"
    assert settings["num_speculative_tokens"] == 32
    with pytest.raises(ValueError, match="num_speculative_tokens must be an integer from 1 to 128"):
        config(0)


def test_neither_vllm_nor_torch_is_needed_to_prepare_requests() -> None:
    code = (
        "import sys, copyspec.integrations.vllm as plug_in; plug_in.config();"
        "print([name for name in ('vllm', 'torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


class Server:
    """An ASGI application that keeps the bodies it receives."""

    def __init__(self, tokenizer: Any = None) -> None:
        self.bodies: list[Any] = []
        self.lengths: list[int] = []
        self.after: list[Any] = []
        engine = type("Engine", (), {"renderer": type("Renderer", (), {"tokenizer": tokenizer})})
        self.state = type("State", (), {"engine_client": engine})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.bodies.append(message["body"])
        self.lengths += [int(value) for name, value in scope["headers"] if name == b"content-length"]
        self.after.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})


def post(server: Server, body: Any, path: str = "/v1/chat/completions", *, gone: bool = False) -> tuple[int, Any]:
    """Return the status and the body: of the middleware's own answer, or of the request that reached the server."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    half = len(raw) // 2
    messages: list[Any] = [
        {"type": "http.request", "body": raw[:half], "more_body": True},
        {"type": "http.request", "body": raw[half:]},
        {"type": "http.disconnect"},
    ]
    if gone:
        messages = [messages[0], messages[2]]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"Content-Length", str(len(raw)).encode())]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "app": server}
    asyncio.run(Prediction(server)(scope, receive, send))
    if not sent:
        return 0, None
    return sent[0]["status"], json.loads(sent[1]["body"]) if len(sent) > 1 else server.bodies[-1]


def test_the_middleware_moves_texts_into_xargs() -> None:
    server = Server()
    body = {"model": "m", "prediction": {"type": "content", "content": "é a"}, "references": ["b", "c"]}
    status, got = post(server, body | {"vllm_xargs": {"x": 1}})
    assert status == 200
    assert json.loads(got) == {"model": "m", "vllm_xargs": {"x": 1, EDIT_SOURCE: "é a", REFERENCES: ["b", "c"]}}
    assert server.lengths == [len(got)] and server.after == [{"type": "http.disconnect"}]


def test_the_middleware_turns_drafts_off_for_one_request() -> None:
    body = {"model": "m", "prediction": "a", "drafts": False}
    status, got = post(Server(), body)
    assert status == 200 and json.loads(got) == {"model": "m", "vllm_xargs": {EDIT_SOURCE: "a", "copyspec_drafts": 0}}
    assert post(Server(), body | {"drafts": "no"})[0] == 400
    assert json.loads(post(Server(), {"drafts": True})[1]) == {"vllm_xargs": {"copyspec_drafts": 1}}


def nested(depth: int, before: str = "[", after: str = "]") -> bytes:
    return (before * depth + "1" + after * depth).encode()


@pytest.mark.parametrize("field", ["references", "edit_source", "prediction", "vllm_xargs", "metadata"])
@pytest.mark.parametrize(
    "value",
    [
        *(nested(depth) for depth in (1, 64, 300, 600, 900, 990, 5000, 100_000)),
        *(nested(depth, '{"text":', "}") for depth in (1, 300, 900, 990, 5000)),
        *(nested(depth, '{"type":"content","content":', "}") for depth in (1, 300, 480, 900)),
        *(b"1" * digits for digits in (1, 30, 400, 4301, 100_000)),
        *(b"-1", b"1.5", b"1e400", b"-1e999", b"NaN", b"Infinity", b"true", b"null", b'""', b"[]", b"{}", b"[null]"),
        *(b"[1e400]", b"[NaN]", b"[" + b"9" * 40 + b"]", b"[[true]]", b"[[1.5]]", b"[[-5]]", b"[[[1]]]", b"[" * 50),
        *(b'"\\ud800"', b'["\\udfff\\ud800"]', b'{"\\ud800": "\\ud800"}', b'"\xff"', b'{"a": 1, "a": 2}', b'"\x00"'),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_the_middleware_answers_any_body(field: str, value: bytes) -> None:
    for body in (
        b'{"prompt": "x", "references": ["a"], "' + field.encode() + b'": ' + value + b"}",
        b'{"' + field.encode() + b'": ' + value + b', "references": ["a"]}',
    ):
        assert post(Server(), body)[0] in (200, 400)
    for encoding in ("utf-16", "utf-32", "utf-8-sig", "latin-1"):
        text = body.decode("latin-1")
        assert post(Server(), text.encode(encoding))[0] in (200, 400)


@pytest.mark.parametrize(
    "length", [b"9" * 5000, b"0" * 5000 + b"7", b"-1", b"", b"\xb2", b"1e3", b"0x10", b" 7", b"1" * 19]
)
def test_the_middleware_takes_any_content_length(length: bytes) -> None:
    messages, passed = [{"type": "http.request", "body": b"{}"}], []

    async def receive() -> Any:
        return messages.pop(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append((await receive())["body"])

    async def send(_: Any) -> None:
        pytest.fail("the middleware answers itself")

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [(b"content-length", length)]}
    asyncio.run(Prediction(app)(scope, receive, send))
    assert passed == [b"{}"]


def test_the_middleware_reads_no_body_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copyspec.integrations.vllm.middleware.MAX_BODY_BYTES", 100)
    server, body = Server(), {"references": ["b" * 100]}
    status, _ = post(server, body)
    assert status == 200 and json.dumps(body).encode().startswith(server.bodies[-1]), "a long one passes unread"
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:  # in chunks, without a length
        return {"type": "http.request", "body": b"x" * 60, "more_body": True}

    asyncio.run(Prediction(server)({"type": "http", "method": "POST", "path": "/v1/completions"}, receive, send))
    assert sent[0]["status"] == 413 and b"more than 100 bytes" in sent[1]["body"]


def test_the_middleware_encodes_with_the_servers_tokenizer() -> None:
    server = Server(TOKENIZER)
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    _, got = post(server, {"prediction": {"type": "content", "content": parts}, "references": ["b", [5, 6]]})
    xargs = json.loads(got)["vllm_xargs"]
    assert xargs == {EDIT_SOURCE: ids(" abc"), REFERENCES: [*ids(" b"), -1, 5, 6]}
    assert read_texts(xargs) == (xargs[EDIT_SOURCE], [xargs[REFERENCES]])


@pytest.mark.parametrize(
    "wrong",
    [
        {"prediction": 3},
        {"prediction": {"type": "content"}},
        {"edit_source": ["a", "b"]},
        {"references": {"name": "no text"}},
        {"references": [[1, "a"]]},
        {"references": [["a"], ["b"]]},
        {"references": [[1, 2]]},  # there is no tokenizer to tell their meaning
        {"edit_source": [1, 10**40]},
    ],
)
def test_wrong_texts_are_answered_with_400(wrong: dict[str, Any]) -> None:
    server = Server()
    status, answer = post(server, {"model": "m"} | wrong)
    assert status == 400 and not server.bodies
    assert next(iter(wrong)) in answer["error"]["message"] and answer["error"]["code"] == 400


@pytest.mark.parametrize("body", [b"no json", b"[1]", b'{"prompt": "a"}', b'{"prediction": null}', b"", b"[" * 99_999])
def test_other_bodies_go_through_unchanged(body: bytes) -> None:
    assert post(Server(), body) == (200, body)


def test_other_paths_and_lost_clients() -> None:
    server = Server()
    body = {"prediction": "a"}
    assert post(server, body, gone=True) == (0, None) and not server.bodies

    async def through(scope: Any, receive: Any, send: Any) -> None:
        server.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def call() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b'{"prediction": "a"}'}

        async def send(message: Any) -> None: ...

        await Prediction(through)({"type": "http", "method": "POST", "path": "/tokenize"}, receive, send)
        await Prediction(through)({"type": "websocket", "path": "/"}, receive, send)

    asyncio.run(call())
    assert server.bodies == [b'{"prediction": "a"}'] * 2


def test_rows_are_followed_in_numpy_arrays_of_any_width() -> None:
    runner = Runner(engine_config())
    one = runner.add("a", request(1, with_source(1)))
    sampled = [one.script[:1]]
    one.output += sampled[0]
    tokens = np.array([[*one.prompt_token_ids, *sampled[0]]], dtype=np.int64)
    (draft,) = runner.drafter.propose(sampled, np.array([tokens.shape[1]]), tokens)
    assert draft == one.script[1 : 1 + len(draft)] and len(draft) == 16
