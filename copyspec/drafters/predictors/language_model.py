"""A small language model as drafter: it reads along with the row, and its likely tokens become draft nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from copyspec.drafters.predictors.base import Path, Reliability, Weights, Words, calibrated, paths, walked
from copyspec.options import SamplingOptions
from copyspec.tree import EMPTY, ROOT, DraftTree
from copyspec.verification.noise import gumbel
from copyspec.verification.picking import Picker

if TYPE_CHECKING:
    from copyspec.budget import Budget
    from copyspec.targets.base import Session, Target

CHAIN_TOKENS = 5  # of a chain: longer ones seldom hold to their end (design of the field: 5 to 7)
CONFIDENCE = 0.4
"""A chain ends behind the first token that the model gives less: the token itself costs one node, the pass is paid."""

WORDS = 8  # likeliest tokens looked at after a node
MEMORY = 0.9  # weight of earlier passes in the time of one
SHORT_PASS = 64  # tokens: longer passes read a prompt, and say nothing of what the next one takes
SUBSTITUTE = 0  # read in place of a token that the draft model does not have: it is a context a little wrong


@dataclass(frozen=True, slots=True)
class RowContext:
    """What a drafter that is no copier is told of its row."""

    prompt: Sequence[int]
    sampling: SamplingOptions
    position: int
    """Absolute position of the output's first token in the target: where the noise of its first draw is keyed."""
    vocab_size: int
    """Of the target: no other token is drafted."""


class DraftModel:
    """A model that drafts for another, with what has been learned of it; shared by the rows of an engine.

    It is wrapped as a target of its own and never altered. Raises ValueError for a model whose state cannot go back
    to where a draft was rejected.
    """

    def __init__(self, target: Target) -> None:
        if not target.supports_drafts:
            raise ValueError(
                "the draft model has recurrent layers, whose state cannot return to where a draft was rejected; "
                "choose a draft model with attention layers alone"
            )
        self.target = target
        self.reliability = Reliability()
        self.weights = Weights()
        self.seconds = 0.0

    def took(self, seconds: float, columns: int) -> None:
        """One pass over `columns` tokens took `seconds`."""
        if columns > SHORT_PASS:
            return
        self.seconds = MEMORY * self.seconds + (1 - MEMORY) * seconds if self.seconds else seconds


class Reader:
    """One row inside a draft model: what it has read, and the cache kept in step with the accepted path.

    Nothing is computed twice: what was drafted and accepted stays in the cache, the rest is cut off, and what the
    target added is read with the next pass.
    """

    def __init__(self, target: Target, context: RowContext) -> None:
        self._target = target
        self._prompt = self._known(context.prompt)
        self._tokens = target.start(self._prompt)  # all of the row: what a pass continues
        self._agreed = 0  # of these, known to be equal to what the cache holds
        self._held: list[int] = []  # the cache's tokens
        self._scored = EMPTY  # tree of the last pass, whose nodes are in the cache until the next one
        self._session: Session | None = None
        self.columns = 0  # tokens of the last pass
        self._sampling = context.sampling
        self._position = context.position
        self._vocab_size = min(context.vocab_size, target.vocab_size)
        bias = {token: value for token, value in context.sampling.logit_bias.items() if token < target.vocab_size}
        processing = replace(context.sampling, repetition_penalty=1.0, logit_bias=bias)
        self._picker = Picker(processing, (), (), 0, target.device)

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens in the cache, those of the last pass left out. [1]"""
        return self._session.lengths if self._session is not None else [0]

    def follow(self, tokens: Sequence[int]) -> None:
        """The output grew by `tokens`."""
        self._tokens += self._known(tokens)
        self._position += len(tokens)

    def rewrite(self, tokens: Sequence[int]) -> None:
        """The whole text is `tokens` now, for texts that are tokenised anew; the cache keeps what is the same."""
        self._tokens, self._agreed = self._known(tokens), 0

    def read(self, path: Path, tree: DraftTree) -> list[Words] | None:
        """The likeliest tokens after the text and `path`, and from there after each node of `tree`. [1 + m]

        None where the text, the path and the tree's depth do not fit into the model's context.
        """
        depths = [0, *tree.depths()]
        limit = self._target.max_length
        if limit is not None and len(self._tokens) + len(path) + max(depths) > limit:
            return None
        if not self._tokens:
            return None
        path, tree = tuple(self._known(path)), replace(tree, tokens=self._known(tree.tokens))
        session = self._settled(path)
        chain = [*self._tokens, *path][len(self._held) :]
        logits = session.score([chain], [tree])
        self._held += chain
        self._scored, self.columns = tree, len(chain) + len(tree)
        return self._likeliest(logits[0], len(path), depths)

    def _settled(self, path: Path) -> Session:
        """The session with a cache that holds a true beginning of text and path, at least one token short of it."""
        if self._session is None:
            self._session = self._target.open([self._prompt])
            return self._session
        whole = [*self._tokens[self._agreed :], *path]  # behind what is known to be the same
        if self._held:
            along = walked(self._scored, whole[len(self._held) - self._agreed :])
            self._session.keep([along])
            self._held += [self._scored.tokens[node] for node in along]
            self._scored = EMPTY
        pairs = zip(self._held[self._agreed :], whole, strict=False)
        same = self._agreed + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        same = min(same, self._agreed + len(whole) - 1)
        if same < len(self._held):
            self._session.trim([same])
            del self._held[same:]
        self._agreed = min(same, len(self._tokens) - 1)
        return self._session

    @torch.inference_mode()
    def _likeliest(self, logits: torch.Tensor, ahead: int, depths: Sequence[int]) -> list[Words]:
        """Under sampling the target's own noise joins the model's scores: both then tend to the same token."""
        scores = self._picker.unperturbed(logits[: len(depths)], ())
        if not self._sampling.is_greedy:
            first = self._position + ahead
            positions = range(first, first + 1 + max(depths))
            size = scores.shape[-1]
            noise = gumbel(self._sampling.seed, self._sampling.sample, positions, size, scores.device)
            scores = scores + noise[list(depths)]
        best = scores[:, : self._vocab_size].softmax(-1).topk(min(WORDS, self._vocab_size))
        table = torch.stack([best.indices.double(), best.values.double()], -1).tolist()  # the one host read of a pass
        return [[(int(token), probability) for token, probability in row if probability > 0] for row in table]

    def _known(self, tokens: Sequence[int]) -> list[int]:
        size = self._target.vocab_size
        if max(tokens, default=0) < size:
            return list(tokens)
        return [token if token < size else SUBSTITUTE for token in tokens]


class ModelPredictor:
    """A draft model's words for one row, as likely as its earlier words have been."""

    kind = "model"
    can_read = True

    def __init__(self, model: DraftModel, context: RowContext) -> None:
        self._model = model
        self._reader = Reader(model.target, context)
        self._said: dict[Path, Words] = {}  # as the model put it, since the output last grew

    def weight(self, left: float) -> float:
        return self._model.weights(left)

    @property
    def hits(self) -> float:
        return self._model.reliability.hits

    @property
    def seconds(self) -> float:
        return self._model.seconds

    def words(self, path: Path) -> Words | None:
        said = self._said.get(path)
        return None if said is None else calibrated(said, self._model.reliability)

    def read(self, tree: DraftTree) -> bool:
        if not self._model.target.supports_trees:
            tree = tree.first_chain()
        return self._read((), tree)

    def read_after(self, path: Path) -> bool:
        """Looks at `path` alone. Cheaper than a tree where drafts have been read up to its last token."""
        return self._read(path, EMPTY)

    def follow(self, tokens: Sequence[int]) -> None:
        for index, token in enumerate(tokens):
            if said := self._said.get(tuple(tokens[:index])):
                self._model.reliability.record(said, token)
        self._said.clear()
        self._reader.follow(tokens)

    def rest(self) -> None:
        self._model.reliability.rest()

    def learn(self, left: float, gradient: float) -> None:
        self._model.weights.learn(left, gradient)

    def _read(self, path: Path, tree: DraftTree) -> bool:
        started = perf_counter()
        found = self._reader.read(path, tree)
        if found is None:
            return False
        self._model.took(perf_counter() - started, self._reader.columns)
        for node, words in zip([(), *paths(tree.tokens, tree.parents)], found, strict=True):
            self._said[(*path, *node)] = words
        return True


class LanguageModelDrafter:
    """Drafts a chain of the model's own choices, without copies: SpS and the assistants of transformers.

    Why output stays exact under sampling, although drafts are drawn with the target's noise (coupled drafting): a
    token of the output is the argmax of the target's scores and the noise of its position, whatever was drafted.
    A draft decides only whether the target's pass has already been made, so the noise may be known to whoever
    drafts. The other rules of verification draw with numbers of their own, to which this noise is independent: for
    them the draft is certain, like a copy.
    """

    def __init__(
        self,
        model: DraftModel,
        context: RowContext,
        *,
        tokens: int = CHAIN_TOKENS,
        confidence: float = CONFIDENCE,
    ) -> None:
        self._predictor = ModelPredictor(model, context)
        self._tokens, self._confidence = tokens, confidence

    def propose(self, budget: Budget) -> DraftTree:
        """At most `tokens` nodes, one behind another; fewer behind a token that the model is not sure of."""
        path: Path = ()
        scores: list[float] = []
        score = 1.0
        while len(path) < min(self._tokens, budget.max_nodes) and self._predictor.read_after(path):
            words = self._predictor.words(path)
            if not words:
                break
            token, probability = words[0]
            path, score = (*path, token), score * probability
            scores.append(score)
            if probability < self._confidence:
                break
        kept = budget.cut(scores)
        if not kept:
            return EMPTY
        return DraftTree(path[:kept], range(ROOT, kept - 1), scores[:kept], [None] * kept, makers=["model"] * kept)

    def accept(self, tokens: Sequence[int]) -> None:
        """Follows the output."""
        self._predictor.follow(tokens)
