"""copyspec inside llama-cpp-python: a draft model for `llama_cpp.Llama(draft_model=...)`.

Nothing here imports llama_cpp, and torch is not needed.
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
"""Of a draft token, in parts of an evaluation without any: drafts are longer where this is low."""


class DraftModel:
    """Drafts by copying, for one `llama_cpp.Llama`: from the prompt and the output, and inside `copying(llm, ...)` from
    the texts given there.

    llama.cpp verifies chains, one sequence at a time. llama-cpp-python 0.3 with any draft model wants `n_batch` as
    large as `n_ctx`, or `logits_all=True`: beyond `n_batch` tokens it raises "could not broadcast".
    """

    def __init__(self, num_pred_tokens: int = 16) -> None:
        """`num_pred_tokens`: the longest draft, under llama-cpp-python's name."""
        check_count("num_pred_tokens", num_pred_tokens)
        self._most = num_pred_tokens
        costs = [1.0 + TOKEN_COST * tokens for tokens in range(num_pred_tokens + 1)]
        self._budget = Budget(num_pred_tokens, costs, chain=True)  # llama.cpp verifies no trees
        self._given: list[Source] = []
        self._eos: list[int] = []
        self._drafter: Drafter | None = None
        self._known: NDArray[np.intc] = np.empty(0, np.intc)
        self.drafted = False
        """What llama.cpp evaluates next is a token and its draft, and no prompt."""

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: object) -> NDArray[np.intc]:
        """Tokens that may follow `input_ids`, which are prompt and output so far. [at most num_pred_tokens]"""
        self._follow(np.asarray(input_ids))
        self.drafted = True
        assert self._drafter is not None
        return np.array(self._drafter.propose(self._budget).tokens, dtype=np.intc)

    def give(self, sources: Sequence[Source], eos: Sequence[int] = ()) -> None:
        """Texts to copy from, from the next call on, in place of those that were given before."""
        self._given, self._eos = list(sources), list(eos)
        self._drafter = None
        self.drafted = False

    def _follow(self, ids: NDArray[np.intc]) -> None:
        known = len(self._known)
        grown = len(ids) - known
        # More than a draft and a token at once: the next turn of a chat, which is a prompt.
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
    """Calls of `llm` inside copy from these texts too, which the model is not shown.

    They are those of `copyspec.generate` for one prompt: `edit_source`, the text being edited; `references`, a text, a
    document, token ids, or a list of those; `prediction`, the expected output. `llm` decodes one sequence at a time,
    and so one thread uses it.

    Beside any draft model llama-cpp-python computes the logits of every token of the prompt. Inside they are computed
    for its last token alone, and its other rows of `llm.scores` are NaN, unless `prompt_logits`: `logprobs` with `echo`
    needs them.

    Raises TypeError or ValueError for anything else, and where `llm` has no `DraftModel` or would fail beside any draft
    model.
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
        # After a space: in most outputs a word of the text does not stand at the very beginning.
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
    """`llm.eval` computes, of tokens that are no draft, the logits of the last alone."""
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
        # Stopping criteria and `logprobs` look at it.
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
    """Raises ValueError where llama-cpp-python would fail as soon as prompt and output are longer than `n_batch`."""
    scores = getattr(llm, "scores", None)
    rows = len(scores) if scores is not None else llm.n_batch
    if rows < llm.n_ctx():
        raise ValueError(
            f"Llama(n_batch={llm.n_batch}) with a draft model fails beyond {rows} tokens of prompt and output: give "
            f"n_batch={llm.n_ctx()}, as large as n_ctx, or logits_all=True"
        )
