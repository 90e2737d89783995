"""Draft model for llama-cpp-python that drafts by copying: `llama_cpp.Llama(draft_model=...)`.

This module imports neither llama_cpp nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from copyspec import drafters
from copyspec.budget import Budget
from copyspec.checks import check_count, shown
from copyspec.sources import Source, SourceKind
from copyspec.text.references import Reference, parse_edits, parse_prediction, parse_references

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from copyspec.drafters.base import Drafter

TOKEN_COST = 0.02
"""Cost of one draft token relative to an evaluation without drafts; a lower value allows longer drafts."""


class DraftModel:
    """Drafts for one `llama_cpp.Llama` by copying from the prompt and the output, and inside `copying(llm, ...)` from
    the texts given there.

    llama.cpp verifies chains, one sequence at a time. With any draft model, llama-cpp-python 0.3 needs `n_batch` as
    large as `n_ctx`, or `logits_all=True`: beyond `n_batch` tokens it raises "could not broadcast".
    """

    def __init__(self, num_pred_tokens: int = 16) -> None:
        """`num_pred_tokens`: maximum draft length; the name is llama-cpp-python's."""
        check_count("num_pred_tokens", num_pred_tokens)
        self._most = num_pred_tokens
        costs = [1.0 + TOKEN_COST * tokens for tokens in range(num_pred_tokens + 1)]
        self._budget = Budget(num_pred_tokens, costs, chain=True)  # llama.cpp verifies no trees
        self._given: list[Source] = []
        self._eos: list[int] = []
        self._drafter: Drafter | None = None
        self._known: NDArray[np.intc] = np.empty(0, np.intc)
        self.drafted = False
        """Whether llama.cpp's next evaluation is a token with its draft, not a prompt."""

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: object) -> NDArray[np.intc]:
        """Draft tokens that may follow `input_ids`, the prompt and output so far. [at most num_pred_tokens]"""
        self._follow(np.asarray(input_ids))
        self.drafted = True
        assert self._drafter is not None
        return np.array(self._drafter.propose(self._budget).tokens, dtype=np.intc)

    def give(self, sources: Sequence[Source], eos: Sequence[int] = ()) -> None:
        """Set the texts to copy from, replacing earlier ones, from the next call on."""
        self._given, self._eos = list(sources), list(eos)
        self._drafter = None
        self.drafted = False

    def _follow(self, ids: NDArray[np.intc]) -> None:
        known = len(self._known)
        grown = len(ids) - known
        # Growth by more than one draft and a token means a new prompt, such as the next turn of a chat.
        goes_on = self._drafter is not None and 0 < grown <= self._most + 1
        if not goes_on or not np.array_equal(ids[:known], self._known):
            known = len(ids) - 1
            self._drafter = drafters.create([*self._given, Source(ids[:known].tolist(), "prompt")], self._eos)
        assert self._drafter is not None
        self._drafter.accept(ids[known:].tolist())
        self._known = ids.copy()


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

    With any draft model llama-cpp-python computes the logits of every prompt token. Inside the context it computes only
    those of the last one, and the other rows of `llm.scores` are NaN, unless `prompt_logits` is set, which `logprobs`
    with `echo` needs.

    Raises TypeError or ValueError for invalid texts, and if `llm` has no `DraftModel` or would fail with a draft model.
    """
    model = getattr(llm, "draft_model", None)
    if not isinstance(model, DraftModel):
        raise TypeError(
            "llm must be a llama_cpp.Llama(..., draft_model=copyspec.integrations.llama_cpp.DraftModel()); its draft "
            f"model is {shown(model)}"
        )
    check_batch(llm)
    encode: Callable[[str], list[int]] = lambda text: llm.tokenize(text.encode(), add_bos=False, special=False)  # noqa: E731
    found: list[tuple[Reference, SourceKind]] = [
        (each, "edit") for each in parse_edits(edit_source, 1) if each is not None
    ]
    found += [(each, "reference") for each in (*parse_prediction(prediction), *parse_references(references, 1)[0])]
    sources = []
    for reference, kind in found:
        # Encode as after a space: the copied text is seldom at the very beginning of the output.
        ids = encode(" " + reference.text.lstrip(" ")) if reference.text is not None else list(reference.ids or ())
        if ids:
            sources.append(Source(ids, kind))
    model.give(sources, [llm.token_eos()])
    try:
        with nullcontext() if prompt_logits else _last_logits_of_prompts(llm, model):
            yield
    finally:
        model.give(())


@contextmanager
def _last_logits_of_prompts(llm: Any, model: DraftModel) -> Iterator[None]:
    """Make `llm.eval` compute only the last logits for tokens that are not a draft."""
    evaluate, own = llm.eval, "eval" in vars(llm)

    def evaluate_shortly(tokens: Sequence[int]) -> None:
        drafted, model.drafted = model.drafted, False
        if drafted or not len(tokens) or not getattr(llm, "_logits_all", False):
            evaluate(tokens)
            return
        start = llm.n_tokens
        llm._logits_all = False
        try:
            evaluate(tokens)
        finally:
            llm._logits_all = True
        llm.scores[start : llm.n_tokens] = np.nan
        # Stopping criteria and `logprobs` read this row.
        llm.scores[llm.n_tokens - 1] = np.ctypeslib.as_array(llm._ctx.get_logits_ith(-1), shape=(llm.n_vocab(),))

    llm.eval = evaluate_shortly
    try:
        yield
    finally:
        if own:
            llm.eval = evaluate
        else:
            del llm.eval


def check_batch(llm: Any) -> None:
    """Raise ValueError if llama-cpp-python would fail once prompt and output exceed `n_batch`."""
    scores = getattr(llm, "scores", None)
    rows = len(scores) if scores is not None else llm.n_batch
    if rows < llm.n_ctx():
        raise ValueError(
            f"Llama(n_batch={llm.n_batch}) with a draft model fails beyond {rows} tokens of prompt and output: give "
            f"n_batch={llm.n_ctx()}, as large as n_ctx, or logits_all=True"
        )
