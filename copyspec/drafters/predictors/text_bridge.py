"""A draft model with another tokenizer than the target's: its drafts are decoded to text and encoded again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from time import perf_counter

from copyspec.drafters.predictors.base import CalibratedPredictor, Path, RowContext
from copyspec.drafters.predictors.language_model import DraftModel, Reader
from copyspec.options import SamplingOptions
from copyspec.tree import EMPTY, DraftTree

CHAIN_TOKENS = 5  # length of a drafted chain: longer ones are seldom accepted whole (usual in the literature: 5 to 7)
CONFIDENCE = 0.4
"""A chain ends after the first token of lower probability. That token is still drafted: its forward pass has been made,
and it only costs a node."""

OVERLAP = 32
"""Last tokens of the text that are tokenised for the draft model again, together with those that follow: enough for any
word that continues. Tokenising the whole text for each draft would take time that grows with its length."""

SEAM = 8
"""Last tokens of the text that are tokenised again together with the draft: enough for any word or character that
continues from the text into the draft."""

Encode = Callable[[str], Sequence[int]]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Tokenizing:
    """A tokenizer: `encode` adds no special tokens, and `decode` leaves them out."""

    encode: Encode
    decode: Decode


class BridgedPredictor(CalibratedPredictor):
    """The predictions of a draft model whose tokenizer is not the target's.

    The draft model reads the text in its own tokens and drafts a chain. The chain is decoded, encoded with the target's
    tokenizer, and drafted as far as both texts agree. The model drafts greedily: the sampling noise belongs to the
    target's vocabulary, so draws from another vocabulary cannot be coupled to it. Universal assisted generation in
    transformers does the same for chains (`_assisted_decoding` with two tokenizers).
    """

    def __init__(
        self,
        model: DraftModel,
        context: RowContext,
        ours: Tokenizing,
        theirs: Tokenizing,
        *,
        tokens: int = CHAIN_TOKENS,
        confidence: float = CONFIDENCE,
    ) -> None:
        """`ours`: the target's tokenizer; `theirs`: the draft model's. Raises ValueError for an encoder-decoder draft
        model, whose prompt is separate from its output."""
        if model.target.is_encoder_decoder:
            raise ValueError("a draft model with a tokenizer of its own must be decoder-only")
        super().__init__(model)
        self._model = model
        self._ours, self._theirs = ours, theirs
        self._vocab_size = context.vocab_size
        self._text = list(context.prompt)  # in the target's tokens
        self._followed = len(self._text)  # how many of them the reader has
        prompt = theirs.encode(ours.decode(context.prompt))
        plain = replace(context, prompt=prompt, sampling=SamplingOptions(), vocab_size=model.target.vocab_size)
        self._reader = Reader(model.target, plain)
        self._tokens, self._confidence = tokens, confidence
        self._has_read = False

    def run(self, tree: DraftTree) -> bool:
        """Draft one chain per step; `tree` is ignored. Returns False for later calls of the step and empty drafts."""
        if self._has_read:
            return False
        self._has_read = True
        started = perf_counter()
        self._follow()
        drafted, chances, columns = self._chain()
        if not drafted:
            return False
        path: Path = ()
        for token, chance in self._in_our_tokens(drafted, chances):
            self._predicted[path] = [(token, chance)]
            path = (*path, token)
        self._model.took(perf_counter() - started, columns)
        return bool(path)

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        self._has_read = False
        self._text += tokens

    def _follow(self) -> None:
        """Give the reader what was accepted since its last run, in place of the tokens that a word which continues had
        before."""
        start = max(0, self._followed - OVERLAP)
        texts = (self._ours.decode(self._text[start:end]) for end in (self._followed, len(self._text)))
        before, now = map(self._theirs.encode, texts)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False)))
        self._reader.rewrite(now[same:], len(before) - same)
        self._followed = len(self._text)

    def _chain(self) -> tuple[list[int], list[float], int]:
        """Draft a chain: the draft model's tokens, their conditional probabilities, and the number of tokens read."""
        drafted: list[int] = []
        chances: list[float] = []
        columns = 0
        while len(drafted) < self._tokens:
            predictions = self._reader.read(tuple(drafted), EMPTY)
            if predictions is None or not predictions[0]:  # the context is full, or the scores are NaN
                break
            columns += self._reader.columns
            token, chance = predictions[0][0]
            drafted.append(token)
            chances.append(chance)
            if chance < self._confidence:
                break
        return drafted, chances, columns

    def _in_our_tokens(self, drafted: Sequence[int], chances: Sequence[float]) -> list[tuple[int, float]]:
        """The drafted text in the target's tokens, with their conditional probabilities.

        A token is right if all draft-model tokens up to its last character are. The last token may only be the
        beginning of a longer one; it is drafted all the same, because a node costs less than a token is worth.
        """
        seam = self._text[-SEAM:]
        before = self._ours.decode(seam)
        texts = [self._theirs.decode(drafted[: index + 1]) for index in range(len(drafted))]
        if not texts or not texts[-1] or "�" in texts[-1]:
            return []
        whole = list(self._ours.encode(before + texts[-1]))
        if whole[: len(seam)] != seam:
            return []
        tokens = whole[len(seam) :]
        ends = [len(text) for text in texts]
        holds = list(accumulate(chances, lambda product, chance: product * chance))
        predicted: list[tuple[int, float]] = []
        reached = 1.0
        for index, token in enumerate(tokens):
            if token >= self._vocab_size:
                break
            length = len(self._ours.decode([*seam, *tokens[: index + 1]])) - len(before)
            now = holds[min(bisect_left(ends, length), len(ends) - 1)]
            predicted.append((token, now / reached))
            reached = now
        return predicted
