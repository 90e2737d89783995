"""The draft model in a copy of llama-cpp-python's loop: drafts are verified, wrong ones cut, chats continue."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from copyspec.integrations.llama_cpp import DraftModel, EvaluationCosts, copying

TEXT = "a wall of stone stands by the sea where lizards and wrens live in its gaps for two hundred years"


class FakeLlama:
    """A model that outputs a given text, one character per token, with llama_cpp.Llama.generate's loop and its state. A
    token's logits are its position, in a row of one number."""

    def __init__(self, draft_model: Any, n_batch: int = 512) -> None:
        self.draft_model = draft_model
        self.n_batch = n_batch
        self.scores = np.zeros((n_batch, 1), np.single)
        self.input_ids = np.zeros(512, np.intc)
        self.evaluations = self.n_tokens = 0
        self._logits_all = True
        self._ctx = self._batch = self.batch = self
        self.logits: list[bool] = []  # for each token of the evaluation, whether it gets logits
        self.computed: list[int] = []  # number of tokens of each evaluation
        self.script: list[int] = []
        self.begin = 0

    def n_ctx(self) -> int:
        return 512

    def n_vocab(self) -> int:
        return 1

    def set_batch(self, batch: Sequence[int], n_past: int, logits_all: bool) -> None:
        self.logits = [logits_all] * (len(batch) - 1) + [True]

    def get_logits(self) -> Any:
        return np.ctypeslib.as_ctypes(np.array(self._rows(), np.single))

    def eval(self, tokens: Sequence[int]) -> None:
        if len(tokens) > self.n_batch:
            raise RuntimeError("llama_decode returned 1")
        self.evaluations += 1
        if not len(tokens):
            return
        self._batch.set_batch(batch=tokens, n_past=self.n_tokens, logits_all=self._logits_all)
        self.computed.append(sum(self.logits))
        end = self.n_tokens + len(tokens)
        self.input_ids[self.n_tokens : end] = tokens
        start, self.n_tokens = self.n_tokens, end
        if self._logits_all:
            self.scores[start:end, 0] = self._rows()

    def _rows(self) -> list[int]:
        start = self.n_tokens - len(self.logits)
        return [start + i for i, wanted in enumerate(self.logits) if wanted]

    def token_eos(self) -> int:
        return 0

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        assert not add_bos and not special
        return list(text)

    def sample(self, position: int) -> int:
        assert self.logits[position - self.n_tokens]
        assert self.scores[position, 0] == position
        return self.script[position - self.begin]

    def generate(self, tokens: list[int]) -> Iterator[int]:
        self.n_tokens = 0
        position = len(tokens) - 1
        while True:
            self.eval(tokens)
            while position < self.n_tokens:
                token = self.sample(position)
                position += 1
                yield token
                tokens = [token]
                if position < self.n_tokens and token != self.input_ids[position]:
                    self.n_tokens = position
                    break
            ids = np.append(self.input_ids[: self.n_tokens], np.intc(tokens[0]))
            draft = self.draft_model(ids)
            assert draft.dtype == np.intc and len(draft) <= self.draft_model.num_pred_tokens
            tokens += draft[: self.n_ctx() - self.n_tokens - 1].tolist()

    def write(self, prompt: str, output: str) -> str:
        ids, self.script = list(prompt.encode()), [*output.encode(), 0]
        self.begin, self.evaluations, self.computed = len(ids) - 1, 0, []
        written = []
        for token in self.generate(ids):
            if token == 0:
                break
            written.append(token)
        return bytes(written).decode()


@pytest.fixture(autouse=True)
def no_times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "cheap" not in request.node.name:  # the duration of a fake evaluation means nothing
        monkeypatch.setattr(EvaluationCosts, "observe", lambda *args: None)


def test_a_told_text_is_written_in_few_evaluations() -> None:
    llm = FakeLlama(DraftModel())
    with copying(llm, edit_source=TEXT):
        assert llm.write("Correct it:", " " + TEXT) == " " + TEXT
    with_source = llm.evaluations
    assert llm.write("Write:", " " + TEXT) == " " + TEXT  # the edit source of the first call is forgotten
    assert with_source <= len(TEXT) / 8 and llm.evaluations > 3 * with_source
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


def test_the_evaluation_of_a_prompt_carries_the_first_draft() -> None:
    llm = FakeLlama(DraftModel(16))
    llm.write("Before:", TEXT)
    assert llm.computed[0] == len("Before:")
    for options, extra in [({}, 0), ({"prompt_logits": True}, len("Correct it:") - 1)]:
        with copying(llm, edit_source=TEXT, **options):
            for _ in range(2):  # two prompts within one `with` block
                assert llm.write("Correct it:", " " + TEXT) == " " + TEXT
                assert llm.computed[0] == 17 + extra
        assert llm._logits_all and not {"eval", "generate", "set_batch"} & set(vars(llm))
    with copying(llm, edit_source="x" * 600):
        assert llm.write("a" * 500, "b" * 11) == "b" * 11  # up to the end of the context
        assert llm.computed[0] == 13
        assert llm.write("a" * 512, "") == ""
        llm.n_tokens, llm._batch = 0, llm
        llm.eval([1, 2, 3])  # an evaluation outside of generation
        assert llm.n_tokens == 3 and llm.computed[-1] == 3
    with copying(llm, edit_source=TEXT), pytest.raises(RuntimeError, match="llama_decode"):
        llm.write("a" * 513, "b")
    assert llm._logits_all and "set_batch" not in vars(llm)


def test_long_drafts_are_made_where_tokens_are_cheap() -> None:
    costs, lengths = [EvaluationCosts() for _ in range(3)], []
    for model, single, token in zip(costs, (0.0, 0.01, 0.01), (1e-5, 1e-4, 0.01), strict=True):
        for n in range(2, 40):
            model.observe(n, 0.01 + token * n)
            if single:
                model.observe(1, single)
        lengths.append(model.budget(32, is_first=False).cut([0.9**n for n in range(1, 33)]))
    assert lengths[0] >= 25 > lengths[1] > lengths[2] == 0
    assert costs[2].budget(32, is_first=True).cut([0.9**n for n in range(1, 33)]) > 0


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="num_pred_tokens must be"):
        DraftModel(0)
    with pytest.raises(TypeError, match="draft_model=copyspec"), copying(FakeLlama(None)):
        pass
    with pytest.raises(TypeError, match="edit_source must be"), copying(FakeLlama(DraftModel()), edit_source=3):
        pass
    with pytest.raises(ValueError, match="n_batch=512, as large as n_ctx"), copying(FakeLlama(DraftModel(), 128)):
        pass
    llm = FakeLlama(DraftModel())
    with copying(llm, edit_source=TEXT):
        with pytest.raises(ValueError, match="inside another copying"), copying(llm, references="a"):
            pass
        assert llm.write("Correct it:", " " + TEXT) == " " + TEXT


@pytest.mark.parametrize("kind", ["_is_recurrent", "_is_hybrid"])
def test_models_whose_state_cannot_be_rolled_back_are_refused(kind: str) -> None:
    llm = FakeLlama(DraftModel())
    setattr(llm, kind, True)
    with pytest.raises(ValueError, match=r"a recurrent state, .*: load it without draft_model"), copying(llm):
        pass
    setattr(llm, kind, False)
    with copying(llm):
        pass


def test_it_needs_no_torch() -> None:
    code = "import sys, copyspec.integrations.llama_cpp; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
