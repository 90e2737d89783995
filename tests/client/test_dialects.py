"""What requests hold for each kind of server, and what becomes of answers of each kind."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import copyspec
from copyspec.client.dialects import DIALECTS, TOP_LOGPROBS
from copyspec.integrations.vllm.parameters import DRAFTS, EDIT_SOURCE, REFERENCES
from copyspec.pipelines import (
    ApplyOptions,
    ApplyPipeline,
    EditOptions,
    EditPipeline,
    GECPipeline,
    GuardOptions,
    IterativeRAG,
)
from copyspec.retrievers import BM25Retriever
from tests.helpers.commands import run
from tests.helpers.fake_server import FakeServer, Sent, asked_text, completion, fake_server

TEXT, RIGHT = "He go to the school.", "He goes to the school."


def mended(body: dict[str, Any]) -> Sent:
    return Sent(completion(asked_text(body).replace(" go ", " goes ")))


def refusing(*fields: str, param: bool = True) -> Callable[[dict[str, Any]], Sent]:
    """A server that refuses these fields, one at a time, by name or without saying which."""

    def reply(body: dict[str, Any]) -> Sent:
        wrong = next((name for name in fields if name in body), None)
        if wrong is None:
            return mended(body)
        message = f"Unsupported parameter: '{wrong}'" if param else "this body is not valid"
        return Sent({"error": {"message": message, "param": wrong if param else None, "type": "invalid"}}, 400)

    return reply


def corrected(server: FakeServer, **options: Any) -> str:
    with copyspec.remote(server.url, **options) as remote:
        return GECPipeline(remote, guards=GuardOptions(allow_swaps=True))(TEXT).text


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "auto"])
def test_each_dialect_tells_the_edited_text_in_its_way(dialect: Any) -> None:
    with fake_server(mended) as server:
        assert corrected(server, dialect=dialect) == RIGHT
    (body,) = server.bodies
    common = {"model", "messages", "max_tokens", "temperature"}
    expected: dict[str, Any] = {
        "copyspec": {"edit_source": TEXT, "changes": True},
        "vllm": {"edit_source": TEXT, "logprobs": True, "top_logprobs": TOP_LOGPROBS},
        "vllm-xargs": {"vllm_xargs": {EDIT_SOURCE: TEXT}, "logprobs": True, "top_logprobs": TOP_LOGPROBS},
        "prediction": {
            "prediction": {"type": "content", "content": TEXT},
            "logprobs": True,
            "top_logprobs": TOP_LOGPROBS,
        },
        "plain": {},
    }
    assert {name: value for name, value in body.items() if name not in common} == expected[dialect]
    assert body["temperature"] == 0.0 and body["model"] == "m"


@pytest.mark.parametrize(
    ("owner", "middleware", "dialect"),
    [
        ("copyspec", False, "copyspec"),
        ("vllm", True, "vllm"),
        ("vllm", False, "vllm-xargs"),
        ("llamacpp", False, "prediction"),
    ],
)
def test_the_server_is_asked_once_what_it_is(owner: str, middleware: bool, dialect: str) -> None:
    def reply(body: dict[str, Any]) -> Sent:
        if body["messages"]:
            return mended(body)
        about = "edit_source[0] must be a str" if middleware else "messages is empty"
        return Sent({"error": {"message": about}}, 400)

    cards = [{"id": "m", "owned_by": owner, "max_model_len": 4096}]
    with fake_server(reply, cards) as server, copyspec.remote(server.url) as remote:
        pipeline = GECPipeline(remote)
        assert [pipeline(text).text for text in (TEXT, "It is red.")] == [RIGHT, "It is red."]
        assert remote.dialect.name == dialect and remote.context == 4096 and remote.name == "m"
    assert len(server.bodies) == 2 + (owner == "vllm")


def test_drafts_are_turned_off_where_that_can_be_said() -> None:
    fields = {"copyspec": "drafts", "vllm": "drafts", "vllm-xargs": "vllm_xargs", "prediction": None, "plain": None}
    for dialect, field in fields.items():
        with fake_server(mended) as server, copyspec.remote(server.url, dialect=dialect) as remote:  # type: ignore[arg-type]
            EditPipeline(remote, EditOptions(drafts=False))(TEXT, "Correct the grammar:")
        (body,) = server.bodies
        assert "prediction" not in body and (field is None or not body[field] or body[field] == {DRAFTS: 0})
    assert tuple(f"copyspec_{name}" for name in ("edit_source", "references", "drafts")) == (
        EDIT_SOURCE,
        REFERENCES,
        DRAFTS,
    )


@pytest.mark.parametrize("fields", [("prediction",), ("logprobs",), ("prediction", "top_logprobs", "temperature")])
@pytest.mark.parametrize("param", [True, False])
def test_a_refused_field_is_left_out_from_then_on(
    fields: tuple[str, ...], param: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not param and "temperature" in fields:
        pytest.skip("every server has a temperature: it is left out only where it is named")
    with fake_server(refusing(*fields, param=param)) as server, copyspec.remote(server.url, concurrency=2) as remote:
        texts = [TEXT, "She go home.", "It go on."]
        corrections = GECPipeline(remote, guards=GuardOptions(allow_swaps=True))(texts)
    assert [correction.text for correction in corrections] == [text.replace(" go ", " goes ") for text in texts]
    assert not set(fields) & set(server.bodies[-1])
    said = [record.getMessage() for record in caplog.records if "it does not take" in record.getMessage()]
    assert len(said) == len(set(said)) and 1 <= len(said) <= len(fields)


def test_an_error_that_is_not_about_a_field_is_told_and_nothing_left_out() -> None:
    def reply(body: dict[str, Any]) -> Sent:
        return Sent({"error": {"message": "roles must alternate"}}, 400)

    with fake_server(reply) as server, copyspec.remote(server.url) as remote:
        with pytest.raises(copyspec.ServerError, match="roles must alternate"):
            GECPipeline(remote)(TEXT)
        assert not remote.dialect.left_out


def test_models_that_want_other_limits_and_no_system_message() -> None:
    def reply(body: dict[str, Any]) -> Sent:
        if "max_tokens" in body:
            message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return Sent({"error": {"message": message, "param": "max_tokens"}}, 400)
        if body["messages"][0]["role"] == "system":
            return Sent({"error": {"message": "System role not supported"}}, 400)
        return mended(body)

    with fake_server(reply) as server, copyspec.remote(server.url) as remote:
        pipeline = GECPipeline(remote, system="Be careful.", guards=GuardOptions(allow_swaps=True))
        with pytest.raises(AssertionError):  # the prompt is behind the system message now
            assert pipeline(TEXT).text == TEXT
    last = server.bodies[-1]
    assert last["max_completion_tokens"] > 0 and "max_tokens" not in last
    assert [message["content"] for message in last["messages"]] == [f"Be careful.\n\nCorrect the grammar: {TEXT}"]


@pytest.mark.parametrize(
    "message",
    [
        "'max_tokens' or 'max_completion_tokens' is too large: 900. This model's maximum context length is 512 tokens "
        "and your request has 40 input tokens",
        "max_tokens is too large: 9256. This model supports at most 4096 completion tokens",
    ],
)
def test_a_limit_that_is_too_high_is_left_to_the_server(message: str) -> None:
    def reply(body: dict[str, Any]) -> Sent:
        return Sent({"error": {"message": message, "code": 400}}, 400) if "max_tokens" in body else mended(body)

    with fake_server(reply) as server:
        assert corrected(server) == RIGHT
    assert len(server.bodies) == 2 and {*server.bodies[0]} - {*server.bodies[1]} == {"max_tokens"}


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (completion(RIGHT[:12], finish="length"), "cut"),
        (completion("", finish="content_filter"), "filtered"),
        (completion(RIGHT, finish="insufficient_system_resource"), "unfinished"),
        (completion(None, refusal="I can't help with that."), "filtered"),
        (completion(""), "empty"),
        (completion("   \n"), "empty"),
        (completion("<think>He go... hm"), "empty"),
        (completion("I'm sorry, but I can't assist with that request."), "chat"),
        (completion("I cannot correct this text, as it may be harmful."), "chat"),
        (completion("As an AI language model, I do not have opinions on schools."), "chat"),
        ({"error": {"message": "blocked by our content management policy", "code": "content_filter"}}, "filtered"),
        ({"error": {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"}}, "length"),
    ],
)
def test_what_is_no_answer_is_counted_and_never_written(sent: dict[str, Any], reason: str, tmp_path: Path) -> None:
    status = 400 if "error" in sent else 200
    with fake_server(lambda body: Sent(sent, status)) as server, copyspec.remote(server.url) as remote:
        correction = GECPipeline(remote)(TEXT)
        assert correction.text == TEXT and [refusal.reason for refusal in correction.refused] == [reason]
        edited = EditPipeline(remote)(TEXT, "Correct it")
        assert edited.text == TEXT and edited.refusal is not None and edited.refusal.reason == reason


@pytest.mark.parametrize("wrapped", ["```\n{}\n```", "Here is the corrected text:\n\n{}", '"{}"', "<think>x</think>{}"])
def test_what_stands_around_an_answer_comes_off(wrapped: str) -> None:
    with fake_server(lambda body: Sent(completion(wrapped.format(RIGHT)))) as server:
        assert corrected(server) == RIGHT


def with_logprobs(pieces: list[tuple[str, float, list[tuple[str, float]]]]) -> dict[str, Any]:
    content = [
        {"token": token, "logprob": own, "bytes": None, "top_logprobs": [{"token": t, "logprob": p} for t, p in top]}
        for token, own, top in pieces
    ]
    return completion("".join(token for token, *_ in pieces), choice={"logprobs": {"content": content}})


PIECES: list[tuple[str, float, list[tuple[str, float]]]] = [
    ("He", -0.01, [("He", -0.01), ("She", -5.0)]),
    (" goes", -0.5, [(" goes", -0.5), (" go", -1.5), (" went", -3.0)]),
    (" to", -0.01, []),
    (" the", -0.1, [(" the", -0.1)]),
    (" school.", -0.01, []),
]


def test_margins_come_from_log_probabilities(caplog: pytest.LogCaptureFixture) -> None:
    with fake_server(lambda body: Sent(with_logprobs(PIECES))) as server, copyspec.remote(server.url) as remote:
        unsure, sure = (GECPipeline(remote, guards=GuardOptions(precision=0.0, min_confidence=p)) for p in (0.9, 0.7))
        refused, made = unsure(TEXT), sure(TEXT)
    assert made.text == RIGHT and made.edits[0].margin == pytest.approx(1.0)  # probability .73
    assert refused.text == TEXT and [refusal.reason for refusal in refused.dropped] == ["margin"]
    assert "min_confidence" not in caplog.text


def test_without_log_probabilities_a_confidence_cannot_be_had(caplog: pytest.LogCaptureFixture) -> None:
    with fake_server(mended) as server, copyspec.remote(server.url) as remote:
        pipeline = GECPipeline(remote, guards=GuardOptions(min_confidence=0.9))
        pipeline([TEXT, "She go home."])
    assert caplog.text.count("min_confidence has no effect") == 1


def test_the_key_is_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "sk-verysecret-0123456789"
    monkeypatch.setenv("COPYSPEC_API_KEY", key)
    path, pages = tmp_path / "a.txt", [tmp_path / name for name in ("p.html", "e.jsonl")]
    path.write_text(f"{TEXT}\n\nShe go home.\n")
    count = 0

    def reply(body: dict[str, Any]) -> Sent:
        nonlocal count
        count += 1
        if count == 2:
            return Sent({"error": {"message": f"rate limit of {key}"}}, 429, {"retry-after": "0"})
        if count > 3:
            return Sent({"error": {"message": f"Incorrect API key provided: {key}"}}, 401)
        return mended(body)

    with fake_server(reply) as server:
        assert run(capsys, "-v", "gec", "-i", str(path), "--server", server.url, "--allow-swaps")[0] == 0
        path.write_text(f"{TEXT} It is red.\n\nShe go home.\n")
        reports = ["--html", str(pages[0]), "--edits", str(pages[1])]
        with caught(logging.DEBUG) as lines:
            code, out, err = run(capsys, "gec", "-i", str(path), "--server", server.url, "--concurrency", "1", *reports)
    assert code == 2 and "check the key" in err and "***" in err
    written = [path.read_text() for path in tmp_path.iterdir()]
    assert all(header["authorization"] == f"Bearer {key}" for header in server.headers)
    assert not any(key in text for text in (out, err, *lines, *written))
    monkeypatch.delenv("COPYSPEC_API_KEY")
    file = tmp_path / "key"
    file.write_text(f"{key}\n")
    with fake_server(mended) as server:
        code, *_ = run(capsys, "gec", str(path), "--server", server.url, "--api-key-file", str(file))
        assert code == 0 and server.headers[0]["authorization"] == f"Bearer {key}"
        assert key not in repr(copyspec.remote(server.url, api_key=key))
    monkeypatch.setenv("OPENAI_API_KEY", key)  # is not for a server on plain http
    with fake_server(mended) as server:
        assert run(capsys, "gec", str(path), "--server", server.url)[0] == 0
        assert "authorization" not in server.headers[0]


class caught:
    """The lines of all loggers."""

    def __init__(self, level: int) -> None:
        self.lines: list[str] = []
        self._handler = logging.Handler(level)
        self._handler.emit = lambda record: self.lines.append(f"{record.getMessage()} {record.args}")  # type: ignore[method-assign]

    def __enter__(self) -> list[str]:
        root = logging.getLogger()
        self._before = root.level
        root.addHandler(self._handler)
        root.setLevel(logging.DEBUG)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self._handler)
        logging.getLogger().setLevel(self._before)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", "no address of a server"),
        ("ftp://host/v1", "no address of a server"),
        ("http://host:99999999/v1", "no address of a server"),
        ("http://user:pw@host/v1", "holds a user or a password"),
        ("http://host/v1?key=x", "no address of a server"),
    ],
)
def test_wrong_addresses_are_named_without_passwords(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        copyspec.remote(url)
    assert "pw" not in str(error.value)
    assert (
        copyspec.remote("http://h:1").url == copyspec.remote("http://h:1/v1/chat/completions/").url == "http://h:1/v1"
    )


def test_what_belongs_to_another_place_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    for option in (["--device", "cpu"], ["--adapter", "x"], ["--draft-model", "default"]):
        code, _, err = run(capsys, "gec", str(path), "--server", "http://127.0.0.1:1", *option)
        assert code == 2 and f"{option[0]} is for a model in this process" in err
    code, _, err = run(capsys, "gec", str(path), "--dialect", "plain")
    assert code == 2 and "name one with --server" in err
    with pytest.raises(TypeError, match="needs a model in this process"):
        IterativeRAG(BM25Retriever(["a town"]), model=copyspec.remote("http://h"))


def test_a_project_may_only_name_a_server_on_this_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, settings = tmp_path / "a.txt", tmp_path / ".copyspec.toml"
    path.write_text(TEXT)
    with fake_server(mended, [{"id": "m"}, {"id": "n"}]) as server:
        settings.write_text(f"server = {json.dumps(server.url)}\nmodel = 'm'\nallow_swaps = true\n")
        code, out, _ = run(capsys, "gec", str(path))
        assert (code, out) == (0, RIGHT) and server.bodies[0]["model"] == "m"
    for text, message in (
        ("server = 'https://example.com/v1'\n", "may only name one on this machine"),
        ("server = 'http://127.0.0.1.example.com/v1'\n", "may only name one on this machine"),
        ("server = 5\n", "url must be a str"),
        ("model = 'm'\n", "without the 'server'"),
    ):
        settings.write_text(text)
        code, _, err = run(capsys, "gec", str(path))
        assert code == 2 and message in err


def test_edits_are_merged_by_a_served_model() -> None:
    file, snippet = "a = 1\nb = 2\nc = 3\n", "# ...\nd = 4\n"
    answer = Sent(completion(f"```\n{file}d = 4\n```"))
    with fake_server(lambda body: answer) as server, copyspec.remote(server.url, dialect="copyspec") as remote:
        applied = ApplyPipeline(remote, ApplyOptions(preset="fastapply"))(file, snippet, "Add d")
    assert applied.text == file + "d = 4\n" and applied.how == "merged by the model"
    (body,) = server.bodies
    assert body["edit_source"] == file.strip() and body["references"] == [snippet]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
