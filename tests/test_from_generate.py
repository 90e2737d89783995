"""docs/from_generate.md: both sides of each table row give the same tokens, and every other call runs."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList, NoRepeatNGramLogitsProcessor

import copyspec
from tests.helpers.texts import byte_level, llama

PAGE = Path(__file__).parent.parent / "docs" / "from_generate.md"
TABLE, _, OTHERS = PAGE.read_text(encoding="utf-8").partition("| also |")
ROWS = re.findall(r"^\| `(model\.generate\(.*?)` \| `(copyspec\..*?)` \|$", TABLE, re.M)
CALLS = re.findall(r"`(\[?[^`]*?copyspec\.[^`]*)`", OTHERS)


def test_the_page_has_rows() -> None:
    assert len(ROWS) >= 12
    assert len(CALLS) >= 10


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # raised by torch.compile's own import
def test_every_other_call_runs(tmp_path: Path) -> None:
    model, tok = llama(len(byte_level()), seed=5), byte_level()
    model.save_pretrained(tmp_path)
    tok.save_pretrained(tmp_path)
    text = "the cat sat on the mat and the cat sat"
    known = {"copyspec": copyspec, "model": model, "tok": tok, "torch": torch, "name": str(tmp_path), "text": text}
    for call in CALLS:
        assert eval(html.unescape(call), known), call
    for arguments in ("num_beams=4", "generation_config={'num_beams': 4}"):
        with pytest.raises((TypeError, ValueError), match="num_beams"):
            eval(f"copyspec.generate(text, model=model, tokenizer=tok, {arguments})", known)


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_a_row_gives_what_generate_gives(row: int) -> None:
    model, tok = llama(len(byte_level()), seed=5), byte_level()
    before = model.generation_config
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=1)
    known = {
        "copyspec": copyspec,
        "model": model,
        "tok": tok,
        "text": "the cat sat on the mat and the cat sat",
        "chat": [{"role": "user", "content": "the cat sat on the mat"}],
        "config": GenerationConfig(max_new_tokens=15, repetition_penalty=1.2, eos_token_id=1, pad_token_id=1),
        "processors": LogitsProcessorList([NoRepeatNGramLogitsProcessor(3)]),
    }
    try:
        theirs, ours = (eval(html.unescape(side), known) for side in ROWS[row])
    finally:
        model.generation_config = before
    assert isinstance(theirs, torch.Tensor)
    assert theirs[0, ours.prompt_tokens :].tolist() == list(ours.token_ids)
    assert ours.token_ids
