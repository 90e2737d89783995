"""The draft model against llama-cpp-python's loop in miniature: drafts are verified, wrong ones cut, turns go on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from copyspec.integrations.llama_cpp import DraftModel, copying

TEXT = "a wall of stone stands by the sea where lizards and wrens live in its gaps for two hundred years"


class FakeLlama:
    """It writes what it is told to, a character a token, and asks its draft model as llama_cpp.Llama.generate does."""

    def __init__(self, draft_model: Any, n_batch: int = 512) -> None:
        self.draft_model = draft_model
        self.n_batch = n_batch
        self.scores = np.zeros((n_batch, 1))
        self.evaluations = 0

    def n_ctx(self) -> int:
        return 512

    def token_eos(self) -> int:
        return 0

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        assert not add_bos and not special
        return list(text)

    def write(self, prompt: str, output: str) -> str:
        ids, script = list(prompt.encode()), [*output.encode(), 0]
        written, self.evaluations = 0, 0
        draft: list[int] = []
        while written < len(script):
            self.evaluations += 1
            accepted = 0
            while accepted < len(draft) and script[written + accepted : written + accepted + 1] == [draft[accepted]]:
                accepted += 1
            fresh = script[written : written + accepted + 1]
            ids += fresh
            written += len(fresh)
            found = self.draft_model(np.array(ids, dtype=np.intc))
            assert found.dtype == np.intc and len(found) <= 16
            draft = found.tolist()
        return bytes(ids[len(prompt.encode()) : -1]).decode()


def test_a_told_text_is_written_in_few_evaluations() -> None:
    llm = FakeLlama(DraftModel())
    with copying(llm, edit_source=TEXT):
        assert llm.write("Correct it:", " " + TEXT) == " " + TEXT
    told = llm.evaluations
    assert llm.write("Write:", " " + TEXT) == " " + TEXT  # what was told is forgotten
    assert told <= len(TEXT) / 8 and llm.evaluations > 3 * told
    with copying(llm, references=["of no use", TEXT]):
        llm.write("Write:", " " + TEXT)
    assert llm.evaluations <= len(TEXT) / 5


def test_the_prompt_is_copied_from_in_every_turn() -> None:
    llm = FakeLlama(DraftModel())
    first = llm.write(TEXT + "\nAgain:", TEXT)
    assert llm.evaluations < len(TEXT) / 4
    llm.write(TEXT + "\nAgain:" + first + "\nAnd the other way round:", TEXT[::-1])
    llm.write(TEXT + "\nOnce more:", TEXT)
    assert llm.evaluations < len(TEXT) / 4


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="num_pred_tokens must be"):
        DraftModel(0)
    with pytest.raises(TypeError, match="draft_model=copyspec"), copying(FakeLlama(None)):
        pass
    with pytest.raises(TypeError, match="edit_source must be"), copying(FakeLlama(DraftModel()), edit_source=3):
        pass
    with pytest.raises(ValueError, match="n_batch=512, as large as n_ctx"), copying(FakeLlama(DraftModel(), 128)):
        pass


def test_it_needs_no_torch() -> None:
    code = "import sys, copyspec.integrations.llama_cpp; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
