"""The target's seam: the model whose output is wanted, seen as something that scores trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from copyspec.tree import DraftTree

if TYPE_CHECKING:
    import torch

    from copyspec.targets.hooks.states import RowStates


class UnsupportedModelError(ValueError):
    """The architecture cannot verify drafts, for example because recurrent layers cannot be rolled back."""


class Session(Protocol):
    """The rows of one batch inside the target: their caches, and nothing that outlives `close`."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens whose keys and values are cached, per row. [B]"""
        ...

    @property
    def runner(self) -> str:
        """How the last pass was made (`copyspec.targets.static.settings.Runner`)."""
        ...

    @property
    def is_settled(self) -> bool:
        """False: the last pass prepared later ones, and its time says nothing of theirs."""
        ...

    def score_with_states(
        self, chains: Sequence[Sequence[int]], trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[torch.Tensor, Sequence[RowStates] | None]:
        """As `score`, and the hidden states of each row: those that the logits were made of, under `states.LAST`, and
        what each of `layers` was given. None where the passes of this kind keep none."""
        ...

    def score(self, chains: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> torch.Tensor:
        """Logits after the last token of each row's chain and after each node of its tree, in one target pass.

        `chains` [B] holds what the cache lacks: the whole prompt in the first call (prefill and the first
        tree share one pass), the last accepted token (the root) later; never empty. Returns [B, 1 + M, V] in
        the model's dtype, M the largest tree: column 0 is the root, column 1 + i node i; columns beyond a
        row's tree are undefined. They hold until the next `score`. Chains longer than the prefill
        chunk are cached in several passes.
        """
        ...

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Commits the chain and the accepted nodes of each row, root to leaf; everything else of the last
        `score` leaves the cache. Then `lengths[r]` has grown by len(chain) + len(path)."""
        ...

    def trim(self, lengths: Sequence[int]) -> None:
        """Forgets what row r holds beyond its first `lengths[r]` tokens; what the last `score` computed too."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these rows only, in this order: finished rows leave the batch."""
        ...

    def join(self, other: Session) -> None:
        """The rows of `other`, a session of the same target, come behind the rows of this one; `other` is closed.
        Both have committed what they scored last."""
        ...

    def close(self) -> None:
        """Frees the caches and leaves the user's model as it was. Safe to call twice."""
        ...


class Target(Protocol):
    """A model that can be decoded from. Never altered: whatever a session changes, its `close` undoes."""

    @property
    def supports_trees(self) -> bool:
        """False: only chains can be verified (`DraftTree.first_chain`)."""
        ...

    @property
    def supports_drafts(self) -> bool:
        """False: only empty trees may be scored (plain decoding of recurrent models, on request)."""
        ...

    @property
    def is_encoder_decoder(self) -> bool: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int | None:
        """Positions of a row's chain and output together that the model can hold; None without a limit."""
        ...

    @property
    def device(self) -> torch.device: ...

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> Session:
        """A session with one row per prompt (for encoder-decoder models the encoder runs here).

        `new_tokens`: how many may follow, where that is known; room for them is set aside.
        """
        ...

    def start(self, prompt: Sequence[int]) -> list[int]:
        """The chain that a row's first `score` begins with: the prompt itself, or the decoder's start tokens."""
        ...
