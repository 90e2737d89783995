"""The commands and pipelines with a server: answers, conversations, places of quotes, indexes."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import copyspec
from copyspec.client.embedding import ServerEmbedder
from copyspec.client.sending import AgainError
from copyspec.pipelines import DocumentAnswers, GECPipeline, GuardOptions
from copyspec.pipelines.rag.answering import NOTHING
from tests.helpers.commands import run, run_binary
from tests.helpers.fake_server import Sent, asked_text, completion, fake_server

PASSAGES = ["The lighthouse was built in 1871 by two brothers.", "The kettle boils at noon, and it is red."]


def stream(*pieces: str, finish: str | None = "stop", **delta: Any) -> Sent:
    deltas = [{"content": piece, **delta} for piece in pieces]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish is not None:
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        events.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    lines = "".join(f"data: {json.dumps({**head, **event})}\n\n" for event in events) + "data: [DONE]\n\n"
    return Sent(lines.encode(), headers={"content-type": "text/event-stream"})


def answering(*pieces: str, **more: Any) -> Any:
    return lambda body: stream(*pieces, **more) if body.get("stream") else Sent(completion("".join(pieces)))


def test_an_answer_from_documents_quotes_its_places() -> None:
    pieces = ("<thi", "nk>Hm</think>\n\nIt was ", "built in 1871 by two", " brothers.")
    with fake_server(answering(*pieces)) as server, copyspec.remote(server.url) as remote:
        chunks = list(DocumentAnswers(PASSAGES, model=remote).stream("When was the lighthouse built?"))
    answer = chunks[-1].answer
    assert answer is not None and answer.is_sure and answer.text == "It was built in 1871 by two brothers."
    assert "".join(chunk.text for chunk in chunks) == answer.text
    (cited,) = answer.citations
    assert answer.text[cited.start : cited.end] == PASSAGES[0][cited.document_start : cited.document_end]
    assert answer.result is not None and answer.result.reasoning == "Hm"
    (body,) = server.bodies
    assert body["stream_options"] == {"include_usage": True} and PASSAGES[0] in body["messages"][0]["content"]
    assert remote.usage.prompt_tokens == 9


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (stream("It was ", finish=None), "broke off"),
        (stream("It was ", finish="content_filter"), "was stopped"),
        (Sent(stream("It was built").body, headers={"content-type": "text/event-stream"}, cut=150), "broke off|failed"),
    ],
)
def test_an_answer_that_breaks_off_is_an_error(sent: Sent, message: str) -> None:
    with fake_server(lambda body: sent) as server, copyspec.remote(server.url) as remote:
        chunks = DocumentAnswers(PASSAGES, model=remote).stream("When was the lighthouse built?")
        with pytest.raises(copyspec.ServerError, match=message):
            list(chunks)


def test_a_server_that_finds_the_prompt_too_long_gets_fewer_passages() -> None:
    def reply(body: dict[str, Any]) -> Sent:
        if len(body["messages"][0]["content"]) > 1_000:
            return Sent({"error": {"message": "too long", "code": "context_length_exceeded"}}, 400)
        return stream("The lighthouse was built in 1871.")

    more = "of red stone and with a lamp. " + "It shines. " * 9
    texts = [f"The lighthouse number {n} was built in 1871, {more}" for n in range(9)]
    with fake_server(reply) as server, copyspec.remote(server.url) as remote:
        assert DocumentAnswers(texts, model=remote)("When was the lighthouse built?").is_found
        sizes = [len(body["messages"][0]["content"]) for body in server.bodies]
        assert sizes == sorted(sizes, reverse=True) and sizes[-2] > 1_000 >= sizes[-1] > 700


def test_rag_quotes_and_says_what_was_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "town.md").write_text("\n\n".join(PASSAGES))
    run(capsys, "index", "add", "town", str(tmp_path / "town.md"), "--dir", str(tmp_path / "i"))
    page = tmp_path / "p.html"
    asked = ["rag", "When was the lighthouse built?", "-i", "town", "--dir", str(tmp_path / "i")]
    with fake_server(answering("It was built in 1871.")) as server:
        code, out, err = run(capsys, *asked, "--server", server.url, "--html", str(page))
        assert code == 0 and "It was built in 1871." in out and "town.md, characters" in out
        assert "1 answer; 9 tokens in, 4 out" in err and "built in 1871" in page.read_text()
        code, out, _ = run(capsys, *asked, "--server", server.url, "--json")
        assert json.loads(out)["finish_reason"] == "stop"
        code, _, err = run(capsys, *asked, "--server", server.url, "--stride", "8")
        assert code == 2 and "--stride is for a model in this process" in err
    with fake_server(answering(f"{NOTHING}.")) as server:
        assert run(capsys, *asked, "--server", server.url)[0] == 1


def test_generate_shows_where_text_came_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, asked = tmp_path / "p.html", ["generate", "Quote it.", "-r", PASSAGES[0], "--edit", "It was red."]
    with fake_server(answering("The lighthouse was built", " in 1871.")) as server:
        more = ["--server", server.url, "--system", "Be short.", "--top-p", "0.5", "--seed", "3", "--html", str(page)]
        code, out, err = run(capsys, *asked, *more, "--stats")
        assert code == 0 and out == "The lighthouse was built in 1871.\n" and "1 answer; 7 tokens in" in err
        body = server.bodies[-1]
        assert (body["top_p"], body["seed"], body["temperature"]) == (0.5, 3, 0.0) and "top_k" not in body
        assert [message["role"] for message in body["messages"]] == ["system", "user"]
        assert "references[0]" in page.read_text()
        code, out, _ = run(capsys, *asked, "--server", server.url, "--json")
        (span, *_) = json.loads(out)["spans"]
        assert span["place"]["source"] == "references[0]" and (span["start_char"], span["end_char"]) == (0, 32)
        assert run(capsys, *asked, "--server", server.url, "--stream")[1] == "The lighthouse was built in 1871.\n"
        code, _, err = run(capsys, *asked, "--server", server.url, "--compare")
        assert code == 2 and "--compare is for a model in this process" in err


def test_a_conversation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def reply(body: dict[str, Any]) -> Sent:
        nonlocal count
        count += 1
        if count == 2:
            return Sent({"error": {"message": "too long", "code": "context_length_exceeded"}}, 400)
        return stream("An ", f"answer {count}.")

    lines = io.TextIOWrapper(io.BytesIO(b"One?\nTwo?\nThree?\n/spans\n"))
    monkeypatch.setattr("sys.stdin", lines)
    with fake_server(reply) as server:
        code, out, err = run(capsys, "chat", "--server", server.url, "--stats")
    assert code == 0 and out.split("\n")[0] == "An answer 1." and "An answer 3." in out
    assert "the oldest messages are left out" in err and "answers; " in err
    assert [[message["content"] for message in body["messages"]] for body in server.bodies] == [
        ["One?"],
        ["One?", "An answer 1.", "Two?"],
        ["Two?"],
        ["Two?", "An answer 3.", "Three?"],
    ]


def embedded(body: dict[str, Any]) -> Sent:
    """Vectors that count a few letters; they come in any order."""
    rows = [[1.0 + text.count(letter) for letter in "abcdefghijk"] for text in body["input"]]
    return Sent({"data": [{"index": at, "embedding": row} for at, row in reversed(list(enumerate(rows)))]})


def test_a_dense_index_by_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "town.md").write_text("\n\n".join(f"# Part {n}\n\n{PASSAGES[n % 2]} Number {n}." for n in range(150)))
    place = ["--dir", str(tmp_path / "i")]
    add = ["index", "add", "town", str(tmp_path / "town.md"), "--kind", "dense", *place]
    with fake_server(embedded) as server:
        by = ["--embedder-server", server.url, "--encoder", "e5", "--prefix", "passage: "]
        code, out, err = run(capsys, *add, *by)
        assert code == 0, err
        sizes = [len(body["input"]) for body in server.bodies]
        assert max(sizes) == 64 and sum(sizes) >= 150 and {body["model"] for body in server.bodies} == {"e5"}
        assert all(text.startswith("passage: ") for body in server.bodies for text in body["input"])
        manifest = next((tmp_path / "i").rglob("manifest.json")).read_text()
        assert '"name": "e5"' in manifest
        ask = ["rag", "When was the lighthouse built?", "-i", "town", *place]
        code, _, err = run(capsys, *ask)
        assert code == 2 and "encoder 'e5'" in err
        code, out, err = run(capsys, *ask, *by[:4])
        assert code == 0 and "1871" in out, err
    code, _, err = run(capsys, *add, "--embedder-server", "http://127.0.0.1:1")
    assert code == 2 and "--encoder" in err


@pytest.mark.parametrize(
    "sent",
    [
        Sent({"data": []}),
        Sent({"data": [{"index": 1, "embedding": [1.0]}, {"index": 1, "embedding": [1.0]}]}),
        Sent({"data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": [1.0]}]}),
        Sent(b"<html>"),
    ],
)
def test_wrong_vectors_are_never_used(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copyspec.client.sending.FIRST_PAUSE", 0.001)
    with fake_server(lambda body: sent) as server:
        embed = ServerEmbedder(server.url, "e5")
        with pytest.raises((copyspec.ServerError, AgainError)):
            embed(["a", "b"])
        embed.close()


def test_several_threads_share_a_server() -> None:
    def reply(body: dict[str, Any]) -> Sent:
        return Sent(completion(asked_text(body).replace("teh", "the")), delay=0.01)

    with fake_server(reply) as server, copyspec.remote(server.url) as remote:
        texts: dict[int, str] = {}

        def work(number: int) -> None:
            pipeline = GECPipeline(remote, guards=GuardOptions(allow_swaps=True))
            texts[number] = pipeline(f"It was teh number {number}.").text

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert texts == {number: f"It was the number {number}." for number in range(8)}


def test_a_closed_iterator_ends_its_requests() -> None:
    def reply(body: dict[str, Any]) -> Sent:
        return Sent(completion(asked_text(body)), delay=0.2)

    with fake_server(reply) as server, copyspec.remote(server.url, concurrency=4) as remote:
        texts = (f"It is number {number}." for number in range(10_000))
        corrections = GECPipeline(remote, pack=0).stream(texts)
        assert next(corrections).text == "It is number 0."
        corrections.close()
        assert len(server.bodies) <= 9


@pytest.mark.parametrize(
    "command",
    [["gec", "--check"], ["gec", "--diff"], *([name, "--instruction", "Correct"] for name in ("edit", "apply"))],
)
def test_a_server_that_cannot_be_asked_is_no_finding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "a.txt").write_text("We saw it.\n")
    with fake_server(lambda body: Sent(b"{}")) as server:
        url = server.url
    code, out, err = run(capsys, *command, str(tmp_path / "a.txt"), "--server", url, "-m", "m")
    assert (code, out) == (2, "") and "the connection failed" in err


@pytest.mark.parametrize(
    "pieces", [("It is \ud83d", "\ude00.\n"), ("It is \ud83d.\n",), ("It is \udc80.\n",), ("It is \ude00\ud83d",)]
)
def test_halves_of_characters_from_a_server_can_be_written(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, pieces: tuple[str, ...]
) -> None:
    file = tmp_path / "a.txt"
    with fake_server(answering(*pieces)) as server, copyspec.remote(server.url) as remote:
        text = remote.generate("Smile.").text
        chunks = list(remote.stream("Smile."))
        server.reply = lambda body: stream("", reasoning_content=pieces[0])
        thought = "".join(chunk.reasoning for chunk in remote.stream("Smile."))
        server.reply = answering(*pieces)
        file.write_text("It is.\n")
        options = ["--instruction", "Smile.", "--server", server.url]
        streamed = run_binary(capfdbinary, "apply", file, *options, "--stream")
        written = run_binary(capfdbinary, "apply", file, *options, "-i")
    units = "".join(pieces).encode("utf-16", "surrogatepass")
    assert "".join(chunk.content for chunk in chunks) == text == units.decode("utf-16", "replace")
    assert thought.encode().decode().startswith("It is ")
    assert streamed[:2] == (0, text.encode()) and written[0] == 0
    assert file.read_bytes().strip() == text.encode().strip()
