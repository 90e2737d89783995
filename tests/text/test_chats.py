"""Chats have the token ids that `apply_chat_template` gives, whatever a template reads."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from copyspec.text.codec import Codec
from tests.fuzz.chats import compare, drawn, main, tokenizer_of
from tests.helpers.chat_templates import CHATS, FAMILIES, HARMONY

TEMPLATES = CHATS | {name: family.template for name, family in FAMILIES.items()} | {"harmony": HARMONY.template}
NUM_CHATS = 30  # per template; `python -m tests.fuzz.chats` draws more, for templates of your own


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_ids_are_those_of_apply_chat_template(name: str) -> None:
    """With tools, calls, thoughts, parts and variables, opened and continued."""
    rng, template = random.Random(name), TEMPLATES[name]
    outcomes: Counter[str] = Counter()
    for _ in range(3):  # tags are tokens in one tokenizer and text in another
        codec = Codec(tokenizer_of(template, rng))
        for _ in range(NUM_CHATS // 3):
            outcome = compare(codec, drawn(template, rng))
            assert outcome in ("equal", "rejected", "folded"), outcome
            outcomes[outcome] += 1
    assert outcomes["equal"] > NUM_CHATS / 5 and outcomes["folded"] <= NUM_CHATS * (name == "gemma 2"), outcomes


def test_differences_are_counted(tmp_path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "a.jinja").write_text(CHATS["phi"], encoding="utf-8")
    assert main([str(tmp_path), "--chats", "20"]) == 0 and "all: {'equal': " in capsys.readouterr().out
    encode = Codec.encode_chat
    monkeypatch.setattr(Codec, "encode_chat", lambda self, *chat: encode(self, chat[0][:1]))
    assert main([str(tmp_path), "--chats", "20"]) == 1 and "a.jinja: differ: " in capsys.readouterr().out
