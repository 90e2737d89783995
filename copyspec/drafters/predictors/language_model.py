"""A small language model as drafter: it follows each row with its own KV cache, and its top tokens become nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from copyspec.drafters.predictors.base import (
    CalibratedPredictor,
    Learned,
    Path,
    RowContext,
    TokenProbs,
    paths,
    walked,
)
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.tree import EMPTY, DraftTree
from copyspec.verification.noise import gumbel
from copyspec.verification.picking import Picker

if TYPE_CHECKING:
    from copyspec.targets.base import Session, Target

TOP_K = 8  # top tokens read after each node
SHORT_PASS = 64  # tokens; longer passes read a prompt, and do not predict the time of the next one
SUBSTITUTE = 0  # stands for a token that the draft model lacks: a slightly wrong context only costs acceptance


class DraftModel(Learned):
    """A draft model with its learned calibration, weights and speed; shared by the rows of an engine.

    The model is wrapped as a `Target` and never altered. Raises ValueError for a model that verifies no drafts, and so
    cannot take its own guesses back.
    """

    def __init__(self, target: Target) -> None:
        if not target.supports_drafts:
            raise ValueError(
                f"the draft model, {type(getattr(target, 'model', target)).__name__}, verifies no drafts, so its own "
                "guesses cannot be taken back; choose another draft model"
            )
        super().__init__()
        self.target = target

    def took(self, seconds: float, columns: int) -> None:
        """Record that a run whose forward passes read `columns` tokens took `seconds`."""
        if columns <= SHORT_PASS:
            self.time.took(seconds)


class Reader:
    """One row of a draft model: its tokens, and a KV cache that follows the accepted path.

    Nothing is computed twice: accepted draft tokens stay in the cache, rejected ones are removed, and the tokens that
    the target added are read with the next forward pass.
    """

    def __init__(self, target: Target, context: RowContext) -> None:
        self._target = target
        self._prompt = self._known(context.prompt)
        self._tokens = target.start(self._prompt)  # all tokens of the row
        self._agreed = 0  # length of their prefix that is known to equal the cache's
        self._held: list[int] = []  # tokens in the cache
        self._scored = EMPTY  # tree of the last forward pass, whose nodes are in the cache until the next one
        self._session: Session | None = None
        self.columns = 0  # tokens of the last forward pass
        self._sampling = context.sampling
        self._position = context.position
        self._vocab_size = min(context.vocab_size, target.vocab_size)
        bias = {token: value for token, value in context.sampling.logit_bias.items() if token < target.vocab_size}
        processing = replace(context.sampling, repetition_penalty=1.0, logit_bias=bias)
        self._picker = Picker(processing, (), (), 0, target.device)

    def follow(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output."""
        self._tokens += self._known(tokens)
        self._position += len(tokens)

    def rewrite(self, tokens: Sequence[int], drop: int) -> None:
        """Replace the row's last `drop` tokens by `tokens`, for a text whose end was tokenised again; the cache keeps
        the common prefix."""
        remaining = max(0, len(self._tokens) - drop)
        self._tokens[remaining:] = self._known(tokens)
        self._agreed = min(self._agreed, remaining)

    def read(self, path: Path, tree: DraftTree) -> list[TokenProbs] | None:
        """Return the most likely tokens after the text plus `path`, and after each node of `tree` from there. [1 + m]

        None if the text, the path and the tree's depth exceed the model's context length, or the prompt its encoder's.
        """
        depths = [0, *tree.depths()]
        limit, encoded = self._target.max_length, self._target.encoder_length
        if limit is not None and len(self._tokens) + len(path) + max(depths) > limit:
            return None
        if encoded is not None and len(self._prompt) > encoded:
            return None
        if not self._tokens:
            return None
        path, tree = tuple(self._known(path)), replace(tree, tokens=self._known(tree.tokens))
        session = self._settled(path)
        uncached = [*self._tokens, *path][len(self._held) :]
        scores = session.score([uncached], [tree])
        self._held += uncached
        self._scored, self.columns = tree, len(uncached) + len(tree)
        return self._likeliest(scores[0], len(path), depths)

    def _settled(self, path: Path) -> Session:
        """The session, its cache trimmed to a prefix of text plus path that lacks at least the last token."""
        if self._session is None:
            self._session = self._target.open([self._prompt])
            return self._session
        whole = [*self._tokens[self._agreed :], *path]  # after the agreed prefix
        if self._held:
            along = walked(self._scored.tokens, self._scored.parents, whole[len(self._held) - self._agreed :])
            self._session.keep([along])
            self._held += [self._scored.tokens[node] for node in along]
            self._scored = EMPTY
        pairs = zip(self._held[self._agreed :], whole, strict=False)
        same = self._agreed + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        same = min(same, self._agreed + len(whole) - 1)
        if same < len(self._held):
            self._session.trim([same])
            del self._held[self._session.lengths[0] :]
        self._agreed = min(same, len(self._tokens) - 1)
        return self._session

    @in_inference_mode
    def _likeliest(self, logits: torch.Tensor, ahead: int, depths: Sequence[int]) -> list[TokenProbs]:
        """The top tokens of each row of `logits`, `ahead` tokens past the end of the text.

        When sampling, the target's own noise is added to the draft model's scores, so that both tend to the same token.
        """
        scores = self._picker.unperturbed(logits[: len(depths)], ())
        if not self._sampling.is_greedy:
            first = self._position + ahead
            positions = range(first, first + 1 + max(depths))
            size = scores.shape[-1]
            noise = gumbel(self._sampling.seed, self._sampling.sample, positions, size, scores.device)
            scores = scores + noise[list(depths)]
        best = scores[:, : self._vocab_size].softmax(-1).topk(min(TOP_K, self._vocab_size))
        table = torch.stack([best.indices.double(), best.values.double()], -1).tolist()  # one device-to-host copy
        return [[(int(token), probability) for token, probability in row if probability > 0] for row in table]

    def _known(self, tokens: Sequence[int]) -> list[int]:
        size = self._target.vocab_size
        if max(tokens, default=0) < size:
            return list(tokens)
        return [token if token < size else SUBSTITUTE for token in tokens]


class ModelPredictor(CalibratedPredictor):
    """A draft model's predictions for one row."""

    def __init__(self, model: DraftModel, context: RowContext) -> None:
        super().__init__(model)
        self._model = model
        self._reader = Reader(model.target, context)

    def run(self, tree: DraftTree) -> bool:
        if not self._model.target.supports_trees:
            tree = tree.first_chain()
        started = perf_counter()
        predictions = self._reader.read((), tree)
        if predictions is None:
            return False
        self._model.took(perf_counter() - started, self._reader.columns)
        self._predicted.update(zip([(), *paths(tree.tokens, tree.parents)], predictions, strict=True))
        return True

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        self._reader.follow(tokens)
