"""A space that a chat template leaves for the answer to write is removed from its text; nothing else is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from copyspec import Engine
from tests.helpers.texts import FRAME_TEMPLATE, byte_level, llama

BARE = "{% for m in messages %}{{ m['content'] }}<|assistant|>{% endfor %}"
LINE = BARE.replace("<|assistant|>", "<|assistant|>\n")
TEXT = " The cat sat on the mat."


@pytest.fixture(scope="module")
def engine() -> Any:
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.chat_template = BARE
    return Engine(llama(len(tokenizer)), tokenizer, name="spaced")


class Says:
    """Forces the model to output a text, token by token."""

    def __init__(self, engine: Any, text: str) -> None:
        self.tokens = [*engine.codec.encode(text).ids, engine.tokenizer.eos_token_id]
        self.start: int | None = None

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.start = ids.shape[1] if self.start is None else self.start
        forced = torch.full_like(scores, -1e9)
        forced[:, self.tokens[min(ids.shape[1] - self.start, len(self.tokens) - 1)]] = 0
        return forced


def texts(engine: Any, prompt: object, text: str = TEXT, **options: Any) -> set[str]:
    """Return the text of the answer, as a whole and joined from a stream."""
    whole = engine.generate(prompt, logits_processor=Says(engine, text), **options)
    assert "stop" in options or whole.token_ids[:-1] == tuple(engine.codec.encode(text).ids)
    streamed = list(engine.generate(prompt, stream=True, logits_processor=Says(engine, text), **options))
    return {whole.text, "".join(chunk.text for chunk in streamed), streamed[-1].result.text}


def test_the_space_before_an_answer(engine: Any) -> None:
    chat = [{"role": "user", "content": "Where?"}]
    plain = TEXT[1:]
    assert texts(engine, chat) == texts(engine, "Where?", chat=True) == {plain}
    assert texts(engine, chat, " " + TEXT) == {TEXT}, "one space"
    assert texts(engine, chat, "\n" + TEXT) == {"\n" + TEXT}
    assert texts(engine, chat, stop=" on") == {"The cat sat"}
    assert texts(engine, chat, "Yes.") == {"Yes."} and texts(engine, chat, "") == {""}
    went_on = [*chat, {"role": "assistant", "content": "There:"}]
    for prompt, rendered in ((went_on, False), ("Where?", False), ("Where?<|assistant|>", True)):
        assert texts(engine, prompt, rendered=rendered) == {TEXT}
    tokenizer = copy.deepcopy(engine.tokenizer)
    tokenizer.chat_template = LINE
    assert texts(Engine(engine.model, tokenizer), chat) == {TEXT}, "the template has ended a line"


def test_the_frame_that_a_tokenizer_writes_is_a_chat_template(engine: Any) -> None:
    framing = Engine(engine.model, byte_level(template=FRAME_TEMPLATE, wraps=True))
    chat = [{"role": "user", "content": "Where?"}]
    assert framing.generate("Where?", max_new_tokens=1).prompt_tokens == len(framing.codec.encode_chat(chat).ids)
    assert texts(framing, "Where?") == texts(framing, chat) == {TEXT[1:]}
    assert texts(framing, "Where?", chat=False) == texts(framing, framing.codec.encode("Where?").ids) == {TEXT}
    for other in (byte_level(template=BARE, wraps=True), byte_level(template=None, wraps=True)):
        assert texts(Engine(engine.model, other), "Where?") == {TEXT}, "no chat, whatever is written around it"


def test_a_constraint_holds_for_the_whole_text(engine: Any) -> None:
    pytest.importorskip("llguidance")
    chat = [{"role": "user", "content": "Where?"}]
    for options in ({"choices": [" a", " b"]}, {"regex": " [ab]"}):
        whole = engine.generate(chat, **options)
        streamed = list(engine.generate(chat, stream=True, **options))
        assert whole.text in (" a", " b")
        assert whole.text == streamed[-1].result.text == "".join(chunk.text for chunk in streamed)


@pytest.mark.parametrize("text", ["  The cat", " The cat", "The cat", "   "])
def test_what_is_dropped_is_counted(engine: Any, text: str) -> None:
    from copyspec.cli.showing import _Pieces
    from copyspec.engine.asking.call_options import check_options
    from copyspec.engine.comparison import compare_jobs

    chat = [{"role": "user", "content": "Where?"}]
    pieces = _Pieces(engine.codec)
    chunks = list(engine.generate(chat, stream=True, logits_processor=Says(engine, text)))
    grown = "".join(piece for chunk in chunks for piece, _ in pieces.push(chunk))
    assert grown == "".join(chunk.text for chunk in chunks)
    options = check_options({"logits_processor": Says(engine, text), "max_new_tokens": 12})
    (comparison,) = compare_jobs(engine, chat, None, options)
    for run in comparison.runs:
        assert "".join(landing.text for landing in run.landings) == run.result.text == text.removeprefix(" ")


@pytest.mark.usefixtures("steady_drafts")
def test_places_in_the_text_move_with_it(engine: Any) -> None:
    chat = [{"role": "user", "content": "Where?"}]
    source = "I know. The cat sat on the mat. Yes."
    result = engine.generate(chat, [source], logits_processor=Says(engine, TEXT))
    (span,) = [span for span in result.spans if span.place.kind == "reference"]
    place = span.place
    assert place.start_char is not None and place.end_char is not None
    assert result.text[span.start_char : span.end_char] == source[place.start_char : place.end_char].strip()
    (piece,) = (piece for piece in result.provenance().pieces if piece.end - piece.start > 8)
    assert result.text[piece.start : piece.end] == result.text[span.start_char : span.end_char]
