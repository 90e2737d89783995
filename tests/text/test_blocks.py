"""Blocks of a prompt: the edited text is one of them, in whatever way it is set apart."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.sources import EVEN_ODDS
from copyspec.text import blocks
from copyspec.text.blocks import (
    BUCKETS,
    LOOKED_AT,
    MAX_BLOCKS,
    MAX_CHARACTERS,
    Block,
    encode_block,
    find_blocks,
    token_starts,
)

REPLY = "The lake is deep.\n\nIt was measured twice, by two people, and both came to forty metres."
TURNS = {
    "speakers": f"User:\nHow deep is it?\n\nAssistant:\n{REPLY}\n\nUser:\nShorter, please.\n\nAssistant:\n",
    "speakers in lines": f"Human: How deep is it?\nAI: {REPLY}\nHuman: Shorter, please.\nAI:",
    "chatml": f"<|im_start|>user\nHow deep is it?<|im_end|>\n<|im_start|>assistant\n{REPLY}<|im_end|>\n"
    "<|im_start|>user\nShorter, please.<|im_end|>\n<|im_start|>assistant\n",
    "llama 3": "<|start_header_id|>user<|end_header_id|>\n\nHow deep is it?<|eot_id|>"
    f"<|start_header_id|>assistant<|end_header_id|>\n\n{REPLY}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
    "Shorter, please.<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": f"<start_of_turn>user\nHow deep is it?<end_of_turn>\n<start_of_turn>model\n{REPLY}<end_of_turn>\n"
    "<start_of_turn>user\nShorter, please.<end_of_turn>\n<start_of_turn>model\n",
    "llama 2": f"<s>[INST] How deep is it? [/INST] {REPLY} </s><s>[INST] Shorter, please. [/INST]",
}


@pytest.mark.parametrize("prompt", TURNS.values(), ids=TURNS)
def test_the_last_reply_is_the_likeliest_text(prompt: str) -> None:
    starts = [(bucket, prompt[start:]) for block in find_blocks(prompt) for start, bucket in block.starts]
    assert max(starts)[1].startswith(REPLY)


def test_texts_that_are_certain_to_be_edited_keep_the_ratio_of_their_odds(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = "Correct this.\n```py\ndef add(a, b):\n    return a - b\n```"
    by_start = {}
    for limit in (2.0**5, 4.0):
        monkeypatch.setattr(blocks, "MAX_ODDS", limit)
        by_start[limit] = {start: bucket for block in find_blocks(prompt) for start, bucket in block.starts}
    fence, code = prompt.index("```"), prompt.index("def")
    assert by_start[4.0][code] == EVEN_ODDS + 2
    ratios = [starts[code] - starts[fence] for starts in by_start.values()]
    assert ratios[0] > 0 and abs(ratios[0] - ratios[1]) <= 1  # odds are rounded


def test_a_text_that_is_set_apart_ends_where_its_mark_does() -> None:
    assert "He go home." in _texts("Correct this.\n<text>He go home.</text>\nThanks.")
    code = "def add(a, b):\n    return a - b\n\n\nprint(add(1, 2))"
    assert code in _texts(f"Correct this.\n```py\n{code}\n```\nThanks.")


def test_code_in_a_fence_starts_behind_it() -> None:
    code = 'import os\n\n\ndef add(a, b):\n    """Adds: two of them."""\n    return a - b\n\n\nprint(add(1, 2))'
    for fence in ("```py", "~~~"):
        prompt = f"User:\n## Code\n{fence}\n{code}\n{fence[:3]}\n\n## Task\nRename it to total.\n\nAssistant:\n"
        starts = {start: bucket for block in find_blocks(prompt) for start, bucket in block.starts}
        begins = prompt.index(code)
        assert starts[begins] > EVEN_ODDS + 2
        assert all(bucket < starts[begins] for start, bucket in starts.items() if start != begins)


@given(st.text(alphabet=st.sampled_from("ab \n\"'`<>/:[]{}|#-=*é他<\r\t"), max_size=300))
def test_blocks_stand_in_the_text(text: str) -> None:
    blocks = find_blocks(text)
    assert len(blocks) <= MAX_BLOCKS
    assert sum(block.stop - block.start for block in blocks) <= MAX_CHARACTERS
    for block in blocks:
        assert 0 <= block.start < block.stop <= len(text)
        assert block.starts == sorted(block.starts) and block.starts
        assert all(block.start <= start < block.stop and 0 <= bucket < BUCKETS for start, bucket in block.starts)


@pytest.mark.parametrize(
    "piece", ["<a>", "```\n", '"', "'", "\n\n", "a: ", "[", "{", "A:\n\n", "<|x|>", "---\n", "`` "]
)
def test_time_is_bounded(piece: str) -> None:
    started = time.process_time()
    find_blocks(piece * (100_000 // len(piece)))
    assert time.process_time() - started < 10


def test_only_the_end_of_a_long_prompt_is_looked_at() -> None:
    text = "x" * 10 * LOOKED_AT + "\n\nCorrect this:\n\nHe go home."
    assert all(block.start >= len(text) - LOOKED_AT for block in find_blocks(text))


def test_tokens_hold_the_characters_where_texts_start() -> None:
    assert token_starts([(0, 3), (4, 5), (5, 7), (99, 1)], [(0, 3), (3, 6), (6, 8)]) == [(0, 3), (1, 7)]


@pytest.mark.parametrize(("text", "asks"), [("How many?\n", True), ("So many.\n", False)])
def test_a_block_says_whether_it_asks(text: str, asks: bool) -> None:
    def encode(own: str) -> tuple[list[int], list[tuple[int, int]]]:
        return [*map(ord, own)], [(at, at + 1) for at in range(len(own))]

    assert encode_block(text, Block(0, len(text) - 1), encode).asks is asks


def _texts(text: str) -> list[str]:
    return [text[block.start : block.stop] for block in find_blocks(text)]


@pytest.mark.parametrize("piece", [":“", "\r\n", ': a:"', "_", "*_"])
def test_no_prompt_takes_long(piece: str) -> None:
    """Unclosed quotes and long lines of underscores used to take seconds."""
    started = time.process_time()
    find_blocks((piece * 20_000)[:20_000])
    assert time.process_time() - started < 2.5
