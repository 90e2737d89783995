"""The draft model against llama-cpp-python's loop in miniature: drafts are verified, wrong ones cut, turns go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
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
        self.evaluations = self.n_tokens = 0
        self._logits_all = True
        self._ctx = self
        self.logits: list[bool] = []  # of the evaluations: of all their tokens

    def n_ctx(self) -> int:
        return 512

    def n_vocab(self) -> int:
        return 1

    def get_logits_ith(self, number: int) -> Any:
        assert number == -1
        return np.ctypeslib.as_ctypes(np.array([7.0], np.single))

    def eval(self, tokens: Sequence[int]) -> None:
        if len(tokens) > self.n_batch:
            raise RuntimeError("llama_decode returned 1")
        self.evaluations += 1
        self.logits.append(self._logits_all)
        self.n_tokens += len(tokens)

    def token_eos(self) -> int:
        return 0

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        assert not add_bos and not special
        return list(text)

    def write(self, prompt: str, output: str) -> str:
        ids, script = list(prompt.encode()), [*output.encode(), 0]
        written = self.evaluations = self.n_tokens = 0
        draft: list[int] = []
        while written < len(script):
            self.eval([ids[-1], *draft] if written else ids)
            accepted = 0
            while accepted < len(draft) and script[written + accepted : written + accepted + 1] == [draft[accepted]]:
                accepted += 1
            fresh = script[written : written + accepted + 1]
            ids += fresh
            written += len(fresh)
            self.n_tokens = len(ids) - 1
            if written >= len(script):
                break
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


def test_of_prompts_the_last_logits_are_computed_alone() -> None:
    llm = FakeLlama(DraftModel())
    llm.write("Before:", TEXT)
    for told, kept in [({}, False), ({"prompt_logits": True}, True)]:
        llm.logits = []
        with copying(llm, edit_source=TEXT, **told):
            for _ in range(2):  # prompts of one block
                llm.write("Correct it:", " " + TEXT)
                assert llm.logits == [kept] + [True] * (llm.evaluations - 1)
                llm.logits = []
        assert llm._logits_all and "eval" not in vars(llm)
    llm.scores[:] = 0
    with copying(llm):
        llm.n_tokens = 0
        llm.eval([1, 2, 3])
        assert np.isnan(llm.scores[:2]).all() and llm.scores[2:4].tolist() == [[7.0], [0.0]]
        llm.eval([])  # the whole prompt is known
        with pytest.raises(RuntimeError, match="llama_decode"):
            llm.eval([1] * 513)
        assert llm._logits_all


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
