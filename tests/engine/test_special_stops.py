"""Stop strings that are special tokens: such a token ends the output, although it is no part of the text."""

from __future__ import annotations

import random
from typing import Any

import pytest

from copyspec import Engine
from tests.engine.test_tools import CHAT, WAIT, Says, engine_of
from tests.helpers.chat_templates import FAMILIES

SPECIAL = [(name, text) for name, family in FAMILIES.items() for text in family.special[:3]]


def said(engine: Engine, text: str, stop: list[str], **options: Any) -> tuple[Any, list[Any]]:
    """The result and the chunks for the same words of the model."""
    options = {"stop": stop, "max_new_tokens": 80, **options}
    whole = engine.generate(CHAT, logits_processor=Says(engine, text), **options)
    pieces = list(engine.generate(CHAT, stream=True, logits_processor=Says(engine, text), **options))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert "".join(piece.content for piece in pieces) == whole.content
    return whole, pieces


@pytest.mark.parametrize(("name", "token"), SPECIAL)
def test_a_special_token_ends_the_output(name: str, token: str) -> None:
    engine = engine_of(name)
    number = engine.tokenizer.convert_tokens_to_ids(token)
    for drafter in ("auto", "none"):
        result, _ = said(engine, f"One, two {token} three", ["zzz", token], drafter=drafter)
        by_id = engine.generate(  # type: ignore[call-overload]
            CHAT, stop_token_ids=[number], max_new_tokens=80, logits_processor=Says(engine, f"One, two {token} three")
        )
        assert (result.text, result.token_ids) == (by_id.text, by_id.token_ids) and "three" not in result.text
        assert (result.finish_reason, result.stop_reason) == ("stop", token)


def test_the_first_of_several_kinds_of_stops_ends_the_output() -> None:
    engine, random_ = engine_of("kimi"), random.Random(5)
    special = [*FAMILIES["kimi"].special]
    for _ in range(12):
        words = [random_.choice([*"abcdefg", *special]) for _ in range(12)]
        stops = [*random_.sample(special, 2), random_.choice("abcdefg")]
        at = min([place for place, word in enumerate(words) if word in stops], default=None)
        result, _ = said(engine, "".join(words), stops)
        assert result.text == "".join(word for word in words[:at] if word not in special)
        assert result.stop_reason == (None if at is None else words[at])


def test_a_call_that_a_stop_cuts_off_is_none() -> None:
    result, _ = said(
        engine_of("deepseek"), "Well. <|calls_begin|><|call_begin|>wait<|sep|>{}", ["<|calls_begin|>"], tools=[WAIT]
    )
    assert (result.content.strip(), result.tool_calls, result.parts.invalid) == ("Well.", (), ())
    assert result.stop_reason == "<|calls_begin|>"


def test_written_out_in_letters_it_is_a_string_as_any_other() -> None:
    engine = engine_of("hermes")
    letters = engine.codec.encode("<|im_end|>").ids
    assert engine.codec.special_ids.isdisjoint(letters)
    says = Says(engine, "One two")
    says.tokens[-1:] = [*letters, *says.tokens[-1:]]
    result = engine.generate(CHAT, stop="<|im_end|>", max_new_tokens=80, logits_processor=says)  # type: ignore[call-overload]
    assert (result.text, result.stop_reason) == ("One two", "<|im_end|>")
