"""The interface of a target: the model whose output is wanted, which scores draft trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from copyspec.tree import DraftTree

if TYPE_CHECKING:
    import torch


class UnsupportedModelError(ValueError):
    """The architecture cannot verify drafts, for example because recurrent layers cannot be rolled back."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The scores of a pass: logits after each row's last uncached token (the root) and after each node of its tree,
    all rows after each other."""

    logits: torch.Tensor  # [N, V], in the model's dtype; rows of `starts` and `sizes` may leave some out
    starts: Sequence[int]  # [B], index of each row's root; its nodes follow
    sizes: Sequence[int]  # [B], 1 + nodes of its tree

    @classmethod
    def of_rows(cls, rows: Sequence[torch.Tensor]) -> Scores:
        """Of the logits of each row, [1 + m, V]."""
        import torch  # not before a model is loaded

        sizes = [len(row) for row in rows]
        logits = rows[0] if len(rows) == 1 else torch.cat(list(rows))
        return cls(logits, list(accumulate(sizes[:-1], initial=0)), sizes)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> torch.Tensor:
        """The logits of a row, [1 + m, V]: index 0 is the root, index 1 + i node i."""
        start = self.starts[row]
        return self.logits[start : start + self.sizes[row]]


LAST = -1
"""Key for the output head's input, in place of a layer number."""

RowStates = Mapping[int, "torch.Tensor"]
"""One row's hidden states of one pass, by layer or LAST, [c + m, D] each: at the c last uncached tokens that were
recorded, and at the tree's m nodes."""


class ModelRunner(Protocol):
    """What runs passes: the tokens of rows and what is cached of them in, scores and hidden states out.

    Two rooms have such: `eager`, where the model's own forward runs, with layers by `cpu` where these are faster, or
    `generate` step by step; and `static`, where programs of fixed shapes run, which a GPU captures. Neither imports the
    other; `dispatch` alone knows both.
    """

    @property
    def runner(self) -> str:
        """How the last pass was run (`copyspec.options.Runner`)."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether the last pass's time is representative; False: it included one-time work such as graph capture."""
        ...

    @property
    def computes(self) -> Callable[[int], int] | None:
        """The tokens that a pass over so many computes, padding included; None: no others."""
        ...

    @property
    def most_tokens(self) -> int:
        """Tokens that a pass should have at most, so that rows that are decoded do not wait long for prompts."""
        ...

    @property
    def most_nodes(self) -> int:
        """Draft nodes that a row's tree may have: what memory and the capacity of experts allow."""
        ...

    def score_with_states(
        self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[Scores, Sequence[RowStates] | None]:
        """As `score`, but also return each row's hidden states: the inputs of the output head, under LAST, and of each
        of `layers`. None in their place where this kind of pass records none."""
        ...

    def score(self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> Scores:
        """Logits after each row's uncached tokens and after each node of its tree, in one target pass.

        These are rows 0 .. B - 1 of the session; others, which are behind them, take no part in the pass. `uncached`
        [B] holds tokens that are not cached yet, at least one per row: the prompt in the first calls (prefill and the
        first tree share a pass), later the last accepted token (the root). The scores are valid until the next `score`;
        after an error, the session can only be closed. More tokens than the prefill chunk are cached in several passes.
        """
        ...


class Session(ModelRunner, Protocol):
    """The rows of one batch in the target, with their KV caches. Nothing outlives `close`."""

    @property
    def lengths(self) -> Sequence[int]:
        """Number of cached tokens per row. [B]"""
        ...

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit the uncached tokens and the accepted nodes (root to leaf) of each row. Everything else that the last
        `score` cached is dropped; `lengths[r]` grows by len(uncached[r]) + len(path)."""
        ...

    def trim(self, lengths: Sequence[int]) -> None:
        """Truncate row r to its first `lengths[r]` tokens, and drop what the last `score` cached. A row with recurrent
        states, which cannot go back, is cut to 0 tokens instead: `lengths` tells."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order; used when rows finish."""
        ...

    def add(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> None:
        """Append a row per prompt, of which nothing is cached yet; as in `Target.open`. The last `score` must have been
        committed."""
        ...

    def close(self) -> None:
        """Free the caches and restore the user's model. Safe to call twice."""
        ...


class Target(Protocol):
    """A model that can be decoded. It is never altered: a session's `close` undoes all its changes."""

    @property
    def supports_trees(self) -> bool:
        """False if only chains can be verified (`DraftTree.first_chain`)."""
        ...

    @property
    def supports_drafts(self) -> bool:
        """False if trees must be empty (plain decoding of recurrent models, on request)."""
        ...

    @property
    def keeps_states(self) -> bool:
        """Whether its usual passes keep hidden states (`Session.score_with_states`)."""
        ...

    @property
    def is_encoder_decoder(self) -> bool: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int | None:
        """Maximum length of a row's first tokens and output together, in positions; None without a limit."""
        ...

    @property
    def encoder_length(self) -> int | None:
        """Maximum length of a prompt that an encoder reads, in tokens; None without an encoder or a limit."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def layers_by(self) -> str:
        """Who has computed the decoder layers in passes of few tokens, for reports: "compiled", "fused" or "by
        transformers", with the reason."""
        ...

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        """Open a session with one row per prompt (the encoder of encoder-decoder models runs here).

        `new_tokens`: expected number of output tokens, if known; slots are reserved for them. `keeps_states`: a drafter
        will ask for hidden states (`Session.score_with_states`), which not every kind of pass keeps.
        """
        ...

    def start(self, prompt: Sequence[int]) -> list[int]:
        """The uncached tokens of a row's first `score`: the prompt itself, or the decoder's start tokens."""
        ...
