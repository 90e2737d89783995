"""Draft model for llama-cpp-python that drafts by copying: `llama_cpp.Llama(draft_model=...)`.

This module imports neither llama_cpp nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from copyspec import drafters
from copyspec.budget import Budget
from copyspec.common.checks import check_count, shown
from copyspec.engine.asking.inputs import parse_edits, parse_prediction, parse_references
from copyspec.engine.results.spans import Reference
from copyspec.integrations.costs import StepCosts
from copyspec.sources import Source, SourceKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from copyspec.drafters.base import Drafter

LATEST = 0.1
"""Weight of the last evaluation of one token in their mean time."""


class EvaluationCosts:
    """Learns what evaluations cost. One of several tokens runs other kernels than one of a single token, and often
    takes much longer than its number of tokens explains."""

    def __init__(self) -> None:
        self._steps = StepCosts()  # of several tokens
        self._single = 0.0  # seconds; 0: not measured

    def observe(self, tokens: int, seconds: float) -> None:
        """Record that an evaluation of `tokens` tokens took `seconds`."""
        if tokens > 1:
            self._steps.observe(tokens, seconds)
        else:
            self._single += (LATEST if self._single else 1.0) * (seconds - self._single)

    def budget(self, most: int, *, is_first: bool) -> Budget:
        """The budget of a draft of up to `most` tokens. `is_first`: behind a prompt, which is several tokens itself."""
        start, token = self._steps.seconds(1)
        single = start if is_first or not self._single else min(self._single, start)
        costs = [1.0, *[(start + token * n) / single for n in range(1, most + 1)]]
        return Budget(most, costs, chain=True)  # llama.cpp verifies no trees


class DraftModel:
    """Drafts for one `llama_cpp.Llama` by copying from the prompt and the output, and inside `copying(llm, ...)` from
    the texts given there.

    llama.cpp verifies chains, one sequence at a time. With any draft model, llama-cpp-python 0.3 needs `n_batch` as
    large as `n_ctx`, or `logits_all=True`: beyond `n_batch` tokens it raises "could not broadcast".
    """

    def __init__(self, num_pred_tokens: int = 32) -> None:
        """`num_pred_tokens`: maximum draft length; the name is llama-cpp-python's. Shorter drafts are made where the
        measured cost of evaluations says so; it is measured inside `copying`."""
        check_count("num_pred_tokens", num_pred_tokens)
        self.num_pred_tokens = num_pred_tokens
        self.costs = EvaluationCosts()
        self._given: list[Source] = []
        self._eos: list[int] = []
        self._drafter: Drafter | None = None
        self._known: NDArray[np.intc] = np.empty(0, np.intc)

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: object) -> NDArray[np.intc]:
        """Draft tokens that may follow `input_ids`, the prompt and output so far. [at most num_pred_tokens]"""
        ids = np.asarray(input_ids)
        known = len(self._known)
        # Growth by more than one draft and a token means a new prompt, such as the next turn of a chat.
        goes_on = self._drafter is not None and 0 < len(ids) - known <= self.num_pred_tokens + 1
        if not goes_on or not np.array_equal(ids[:known], self._known):
            known = len(ids) - 1
            self._begin(ids[:known])
        assert self._drafter is not None
        self._drafter.accept(ids[known:].tolist())
        self._known = ids.copy()
        return self._propose()

    def first(self, prompt: NDArray[np.intc]) -> NDArray[np.intc]:
        """Draft tokens that may begin an output, for the evaluation that reads its prompt."""
        self._begin(prompt)
        self._known = prompt
        return self._propose(is_first=True)

    def give(self, sources: Sequence[Source], eos: Sequence[int] = ()) -> None:
        """Set the texts to copy from, replacing earlier ones, from the next call on."""
        self._given, self._eos = list(sources), list(eos)
        self._drafter = None

    def _begin(self, prompt: NDArray[np.intc]) -> None:
        self._drafter = drafters.create([*self._given, Source(prompt.tolist(), "prompt")], self._eos)

    def _propose(self, *, is_first: bool = False) -> NDArray[np.intc]:
        assert self._drafter is not None
        budget = self.costs.budget(self.num_pred_tokens, is_first=is_first)
        return np.array(self._drafter.propose(budget).tokens, dtype=np.intc)


@contextmanager
def copying(
    llm: Any,
    *,
    edit_source: object = None,
    references: object = None,
    prediction: object = None,
    prompt_logits: bool = False,
) -> Iterator[None]:
    """Let calls of `llm` inside the context copy from these texts, which the model does not see.

    The texts are those of `copyspec.generate` for one prompt: `edit_source`, the text being edited; `references`, a
    text, a document, token ids, or a list of those; `prediction`, the expected output. `llm` decodes one sequence at a
    time, so only one thread may use it.

    Inside the context the evaluation that reads a prompt carries the first draft. With any draft model llama-cpp-python
    computes the logits of every prompt token; inside the context it computes only those of the last one, and the other
    rows of `llm.scores` are NaN, unless `prompt_logits` is set, which `logprobs` with `echo` needs.

    Raises TypeError or ValueError for invalid texts, inside another such block, and if `llm` has no `DraftModel` or
    would fail with a draft model.
    """
    model = getattr(llm, "draft_model", None)
    if not isinstance(model, DraftModel):
        raise TypeError(
            "llm must be a llama_cpp.Llama(..., draft_model=copyspec.integrations.llama_cpp.DraftModel()); its draft "
            f"model is {shown(model)}"
        )
    check_batch(llm)
    if isinstance(getattr(llm.eval, "__self__", None), _Evaluation):
        raise ValueError("llm is inside another copying(...) block already: give all texts to one of the two")
    encode: Callable[[str], list[int]] = lambda text: llm.tokenize(text.encode(), add_bos=False, special=False)  # noqa: E731
    pairs: list[tuple[Reference, SourceKind]] = [
        (edit, "edit") for edit in parse_edits(edit_source, 1) if edit is not None
    ]
    pairs += [
        (reference, "reference") for reference in (*parse_prediction(prediction), *parse_references(references, 1)[0])
    ]
    sources = []
    for reference, kind in pairs:
        # Encode as after a space: the copied text is seldom at the very beginning of the output.
        ids = encode(" " + reference.text.lstrip(" ")) if reference.text is not None else list(reference.ids or ())
        if ids:
            sources.append(Source(ids, kind))
    model.give(sources, [llm.token_eos()])
    try:
        with _Evaluation(llm, model, prompt_logits):
            yield
    finally:
        model.give(())


class _Evaluation:
    """Replaces `llm.eval` inside a context: prompts carry the first draft, and evaluations are timed."""

    def __init__(self, llm: Any, model: DraftModel, prompt_logits: bool) -> None:
        self._llm, self._model, self._prompt_logits = llm, model, prompt_logits
        self._evaluate, self._generate = llm.eval, llm.generate
        self._own = {name: value for name, value in vars(llm).items() if name in ("eval", "generate")}
        self._prompt = False  # whether the next evaluation begins an output

    def __enter__(self) -> None:
        self._llm.eval, self._llm.generate = self.eval, self.generate

    def __exit__(self, *error: object) -> None:
        for name in ("eval", "generate"):
            delattr(self._llm, name)
        vars(self._llm).update(self._own)

    def generate(self, *args: Any, **named: Any) -> Any:
        self._prompt = True
        return self._generate(*args, **named)

    def eval(self, tokens: Sequence[int]) -> None:
        prompt, self._prompt = self._prompt and len(tokens) > 0, False
        draft = self._first_draft(tokens) if prompt else []
        begun = perf_counter()
        if prompt and not self._prompt_logits:
            self._evaluate_end([*tokens, *draft], 1 + len(draft))
        else:
            self._evaluate([*tokens, *draft])
        if tokens:
            self._model.costs.observe(len(tokens) + len(draft), perf_counter() - begun)

    def _first_draft(self, tokens: Sequence[int]) -> list[int]:
        """The draft behind the prompt, which ends with `tokens`, as far as there is room for it."""
        llm, known = self._llm, self._llm.n_tokens
        room = min(llm.n_ctx() - known, llm.n_batch) - len(tokens)
        if room <= 0:
            return []
        ids = np.concatenate([llm.input_ids[:known], np.asarray(tokens, np.intc)])
        draft: list[int] = self._model.first(ids)[:room].tolist()
        return draft

    def _evaluate_end(self, tokens: list[int], rows: int) -> None:
        """Evaluate `tokens`, computing the logits of the last `rows` alone. Those of others become NaN."""
        llm, start, own = self._llm, self._llm.n_tokens, self._llm._batch
        set_batch = own.set_batch

        def set_end(batch: Sequence[int], n_past: int, logits_all: bool) -> None:
            set_batch(batch=batch, n_past=n_past, logits_all=logits_all)
            for i in range(max(len(batch) - rows, 0), len(batch)):
                own.batch.logits[i] = True

        own.set_batch, llm._logits_all = set_end, False
        try:
            self._evaluate(tokens)
        finally:
            del own.set_batch
            llm._logits_all = True
        llm.scores[start : llm.n_tokens] = np.nan
        logits = np.ctypeslib.as_array(llm._ctx.get_logits(), shape=(rows * llm.n_vocab(),))
        # Stopping criteria and `logprobs` read these rows.
        llm.scores[llm.n_tokens - rows : llm.n_tokens] = logits.reshape(rows, -1)


def check_batch(llm: Any) -> None:
    """Raise ValueError if llama-cpp-python would fail once prompt and output exceed `n_batch`, or write wrong text from
    the first rejected draft on."""
    # llama-cpp-python rolls drafts back with kv_cache_seq_rm, and ignores that it fails for recurrent states.
    if getattr(llm, "_is_recurrent", False) or getattr(llm, "_is_hybrid", False):
        raise ValueError(
            "this model has a recurrent state, which llama-cpp-python cannot roll back behind a rejected draft: load "
            "it without draft_model"
        )
    scores = getattr(llm, "scores", None)
    rows = len(scores) if scores is not None else llm.n_batch
    if rows < llm.n_ctx():
        raise ValueError(
            f"Llama(n_batch={llm.n_batch}) with a draft model fails beyond {rows} tokens of prompt and output: give "
            f"n_batch={llm.n_ctx()}, as large as n_ctx, or logits_all=True"
        )
