"""Fields for programs that correct texts: margins of changes, log-probabilities, decoding without drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.server.test_server import ASKED, CHAT, MESSAGES, events, post

if TYPE_CHECKING:
    from copyspec import Engine

EDIT = "The cat sat on the mat."


async def test_changes_come_with_their_margins(engine: Engine) -> None:
    expected = engine.generate(MESSAGES, max_new_tokens=8, edit_source=EDIT)
    assert expected.changes
    answer = (await post(engine, CHAT, {**ASKED, "edit_source": EDIT, "changes": True})).json()
    for place, change in zip(answer["choices"][0]["changes"], expected.changes, strict=True):
        assert (place["start"], place["end"]) == (change.start, change.end)
        assert place["margin"] == pytest.approx(change.margin, abs=1e-4)
    last = events(await post(engine, CHAT, {**ASKED, "edit_source": EDIT, "changes": True, "stream": True}))[-1]
    for place, change in zip(last["choices"][0]["changes"], answer["choices"][0]["changes"], strict=True):
        assert place == {**change, "margin": pytest.approx(change["margin"], abs=1e-4)}
    assert "changes" not in (await post(engine, CHAT, ASKED)).json()["choices"][0]


async def test_a_request_without_drafts_has_the_same_answer(engine: Engine) -> None:
    fast, plain = [
        (await post(engine, CHAT, {**ASKED, "edit_source": EDIT, "drafts": drafts})).json() for drafts in (True, False)
    ]
    assert fast["choices"] == plain["choices"]
    details = [body["usage"]["completion_tokens_details"] for body in (fast, plain)]
    assert details[1]["accepted_prediction_tokens"] == details[1]["rejected_prediction_tokens"] == 0
    assert sum(details[0].values()) > 0


@pytest.mark.parametrize("top", [None, 0, 3])
async def test_log_probabilities_whole_and_in_pieces(engine: Engine, top: int | None) -> None:
    expected = engine.generate(MESSAGES, max_new_tokens=8, logprobs=top or 0)
    asked: dict[str, Any] = {**ASKED, "logprobs": True, **({} if top is None else {"top_logprobs": top})}
    (choice,) = (await post(engine, CHAT, asked)).json()["choices"]
    content = choice["logprobs"]["content"]
    shown = [
        logprob for at, logprob in enumerate(expected.logprobs) if logprob.token or at + 1 < len(expected.logprobs)
    ]
    assert [entry["token"] for entry in content] == [logprob.token for logprob in shown]
    for entry, token in zip(content, shown, strict=True):
        assert entry["logprob"] == pytest.approx(token.logprob, abs=1e-4)
        assert bytes(entry["bytes"]).decode() == entry["token"] and len(entry["top_logprobs"]) == (top or 0)
    streamed = events(await post(engine, CHAT, {**asked, "stream": True}))
    pieces = [event["choices"][0]["logprobs"] for event in streamed]
    tokens = [token for piece in pieces if piece for token in piece["content"]]
    assert [entry["token"] for entry in tokens] == [entry["token"] for entry in content]
    assert [entry["logprob"] for entry in tokens] == pytest.approx([entry["logprob"] for entry in content], abs=1e-4)
    assert (await post(engine, CHAT, ASKED)).json()["choices"][0]["logprobs"] is None


async def test_wrong_values_are_named(engine: Engine) -> None:
    for fields, param in (
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"drafts": "no"}, "drafts"),
        ({"changes": 1}, "changes"),
    ):
        answer = await post(engine, CHAT, {**ASKED, **fields})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param


async def test_the_card_tells_the_context(engine: Engine) -> None:
    from tests.server.test_server import client

    async with client(engine) as http:
        (card,) = (await http.get("/v1/models")).json()["data"]
    assert card["max_model_len"] == engine.max_length and "own_model" not in card


async def test_tokens_are_counted(engine: Engine) -> None:
    counted = (await post(engine, "/tokenize", {"prompt": EDIT, "add_special_tokens": False})).json()
    ids = list(engine.codec.encode(EDIT).ids)
    assert counted == {"count": len(ids), "max_model_len": engine.max_length, "tokens": ids}
    chat = (await post(engine, "/tokenize", {"messages": MESSAGES, "model": None})).json()
    assert chat["tokens"] == list(engine.codec.encode_chat(MESSAGES).ids)
    for wrong, said in (
        ({}, "give prompt or messages"),
        ({"prompt": EDIT, "messages": MESSAGES}, "give prompt or messages"),
        ({"prompt": "x" * 4_000_000}, "characters"),
        ({"messages": [3]}, "messages"),
        ({"prompt": 3}, "prompt"),
    ):
        answer = await post(engine, "/tokenize", wrong)
        assert answer.status_code in (400, 413, 422) and said in answer.text
    assert (await post(engine, "/tokenize", {"prompt": EDIT, "model": "other"})).status_code == 404
