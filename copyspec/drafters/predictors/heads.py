"""Draft heads as a `Predictor`: they predict from the target's hidden states, which `observe` receives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from copyspec.drafters.base import ScoredDraft
from copyspec.drafters.predictors.base import (
    PRIOR_ACCURACY,
    CalibratedPredictor,
    Learned,
    Path,
    RowContext,
    TokenProbs,
    walked,
)
from copyspec.drafters.predictors.head_folder import HeadFile
from copyspec.drafters.predictors.head_pairs import PairMemory, PairMemoryRow
from copyspec.drafters.predictors.head_walk import Asked, HeadWeights, PairPiece, ride, waits_for_nobody, walk
from copyspec.drafters.predictors.head_weights import AtOnce, Stepwise, probe
from copyspec.drafters.predictors.learned_file import LearnedFile
from copyspec.drafters.predictors.mtp_layer import MTP_ACCURACY, MtpLayer
from copyspec.targets.base import LAST
from copyspec.targets.cpu.linears import few_row_product
from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.hooks.modules import decoder_layers, output_head, real_weight
from copyspec.tree import DraftTree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

MIN_GAIN = 0.05
"""Expected tokens for which another level is read while costs are unknown."""

MOST_PIECES = 8
"""Passes of a row whose states are kept as the passes left them, until the row's own are copied."""


class DraftHeads(Learned):
    """The heads of one model, their measured reliability, weight and time; shared by all rows of an engine."""

    def __init__(self, file: HeadFile, model: PreTrainedModel, name: str | None = None) -> None:
        """`name`: under which what is learned of them is kept in the user's cache; None: it is not."""
        super().__init__(MTP_ACCURACY if isinstance(file.heads, MtpLayer) else PRIOR_ACCURACY)
        self._file, self._model = file, model
        self.layers = file.heads.reads(len(decoder_layers(model)))
        """Layers of the target whose inputs the heads read; LAST: the last hidden states."""
        self._kept: LearnedFile | None = None
        if name is not None:
            output, config = weights_of(model)[0], model.config
            known = name, config.name_or_path, str(output.dtype), output.device.type, probe(output).tolist()
            self._kept = LearnedFile(*known)
            self._kept.load(self)
        self._bound: tuple[HeadWeights, torch.Tensor, tuple[object, ...]] | None = None
        self.waiting = WeakKeyDictionary[HeadsPredictor, tuple[DraftTree, float]]()
        """Rows that are to be read together: the tree that is drafted already, and the price of a level. Those of a
        call that was interrupted are gone with it."""

    @property
    def bound(self) -> HeadWeights:
        """The weights on the model's current device; the model may have been moved."""
        module = output_head(self._model)
        output = getattr(module, "weight", None)
        assert module is not None and isinstance(output, torch.Tensor)
        bound = self._bound
        if bound is None or bound[1] is not output or bound[2] != _place(output):
            with inference_mode(False), torch.no_grad():  # weights made in inference mode could not be packed
                bound = self._bound = self._bind(), output, _place(output)
        return bound[0]

    def _bind(self) -> HeadWeights:
        file = self._file
        output, table = weights_of(self._model)  # an offloaded model keeps them elsewhere
        vocabulary = None if file.vocabulary is None else file.vocabulary.to(output.device)
        own = file.heads.output
        if isinstance(file.heads, MtpLayer) and file.heads.embeddings is not None:
            table = file.heads.embeddings.to(table)
        if own is not None:
            shared = own.to(output)
        else:
            shared = output.detach() if vocabulary is None else output.detach()[vocabulary].contiguous()
        if vocabulary is not None and shared.device.type == "cpu":  # copies in bfloat16 take half the time to read
            shared = shared.bfloat16().to(shared.dtype)
        heads = file.heads.moved(shared)
        product, memory = few_row_product(shared), PairMemory(heads.context)
        return HeadWeights(heads, shared, product, table, vocabulary, len(output), memory)

    @property
    def depth(self) -> int:
        """Number of tokens predicted ahead."""
        return self._file.heads.depth

    @property
    def context(self) -> int:
        """Number of earlier pairs of a state and a token attended to."""
        return self._file.heads.context

    @property
    def predicts_at_once(self) -> bool:
        """Whether predictions depend on the number of tokens drafted alone."""
        return isinstance(self._file.heads, AtOnce)

    def read_waiting(self, first: HeadsPredictor) -> None:
        """Read all rows that wait, `first` among them, in one walk. Where that fails, this row alone."""
        waiting = dict(self.waiting.items())
        self.waiting.clear()
        try:
            self._read(waiting)
        except Exception as error:
            if len(waiting) == 1:
                raise
            logger.info("the heads of %d rows are not read together: %s", len(waiting), error)
            self._read({first: waiting[first]})

    def _read(self, waiting: Mapping[HeadsPredictor, tuple[DraftTree, float]]) -> None:
        with inference_mode(True):
            bound = self.bound
            started = perf_counter()  # binding takes longer than many reads, but only once
            levels = max([self._levels(price) for _, price in waiting.values()])
            of_rows = walk(bound, [row.asked(tree) for row, (tree, _) in waiting.items()], levels)
        seconds = perf_counter() - started
        share = seconds / len(waiting)
        # A level of a layer takes as long as several of a recurrent head: whether another pays is decided for each.
        self.time.took(share / levels if isinstance(bound.heads, Stepwise) else share)
        for row, predictions in zip(waiting, of_rows, strict=True):
            row.take(predictions, share)
        if self._kept is not None:
            self._kept.has_read(self)

    def ride(
        self, rows: Sequence[tuple[HeadsPredictor, ScoredDraft]], picks: torch.Tensor
    ) -> tuple[torch.Tensor, Callable[[list[float]], None]] | None:
        """See `Rider.ride`."""
        try:
            with inference_mode(True):
                levels = max([self._levels(row.price) for row, _ in rows])
                asked = [row.asked_along(scored) for row, scored in rows]
                table, read = ride(self.bound, asked, picks, levels)
        except Exception as error:  # which would end other rows, too; where it is the row's own, `run` raises it
            logger.info("the heads of %d rows are not read with their pass: %s", len(rows), error)
            return None

        def take(numbers: list[float]) -> None:
            for (row, _), predictions in zip(rows, read(numbers), strict=True):
                row.ridden = predictions

        return table, take

    def _levels(self, price: float) -> int:
        """How many levels to read where a level costs as much as `price` expected tokens; 0: unknown."""
        if not isinstance(self._file.heads, Stepwise):
            return self.depth
        levels, accuracy = 1, self.reliability.top1_accuracy
        while levels < self.depth and accuracy ** (levels + 1) > (price or MIN_GAIN):
            levels += 1
        return levels


def weights_of(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the model's output weights and its embeddings, [V, D] each."""
    head, embeddings = real_weight(output_head(model)), real_weight(model.get_input_embeddings())
    assert isinstance(head, torch.Tensor) and isinstance(embeddings, torch.Tensor)
    return head, embeddings


def _place(weight: torch.Tensor) -> tuple[object, ...]:
    return weight.device, weight.dtype, weight.data_ptr()


class HeadsPredictor(CalibratedPredictor):
    """Predictions of the heads for one row."""

    kind = "heads"
    wants_states = True

    def __init__(self, heads: DraftHeads, context: RowContext) -> None:
        super().__init__(heads)
        self._heads = heads
        self._tokens = list(context.prompt)
        self._sampling = context.sampling
        self._position = context.position
        self._scored: ScoredDraft | None = None
        self._pieces: list[PairPiece] = []
        """Pairs of hidden states and the tokens that followed them: where earlier tokens are attended to, those that
        were not read yet, else only the latest."""
        self._before = 0  # pairs that precede these
        self._memory: PairMemoryRow | None = None
        self._was_read = self._is_new = False  # since the output last grew, and not yet returned by `run`
        self.ridden: dict[Path, TokenProbs] | None = None
        """What was read with the pass itself."""
        self.price = 0.0  # see `enlist`
        self.share = 0.0
        """Seconds that the last walk took, divided by its rows."""

    @property
    def wanted_layers(self) -> Sequence[int]:
        """See `Drafter.wanted_layers`."""
        return [layer for layer in self._heads.layers if layer != LAST]

    def predict(self, path: Path) -> TokenProbs | None:
        if self._was_read:
            return super().predict(path) or ()  # what was not read is not read any more
        return None if self._pieces and len(path) < self._heads.depth else ()

    def observe(self, scored: ScoredDraft) -> None:
        """Keep the states of a forward pass until it is known which of its nodes was accepted last."""
        states, self.ridden = scored.states, None
        self._scored = None if states is None else scored
        # A draft with new words is followed by another one most of the time. What rides is not read behind the copies
        # of that one: about 3 % fewer tokens a pass, against waiting for the device and for the launch of a walk.
        is_new = self._was_read and self.kind in (scored.tree.drafters or ())
        if states is None or scored.riders is None or not is_new or waits_for_nobody(states):
            return
        if scored.states_of(self._heads.layers) is not None:
            scored.riders.setdefault(self._heads, []).append((self, scored))

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        scored, self._scored = self._scored, None
        self._heads.waiting.pop(self, None)
        self._position += len(tokens)
        self._was_read = self._is_new = False
        if self.ridden is not None:
            self._before += len(tokens)
            self._predicted, self.ridden, self._was_read = self.ridden, None, True
        elif not self._follow(scored, tokens):
            self._pieces, self._memory, self._before = [], None, 0  # states are missing in between
        self._tokens += tokens

    def enlist(self, tree: DraftTree, price: float = 0.0) -> None:
        """Have the next `run` of any row read this one, too: the root, nodes of `tree` and likely paths of the heads'
        own. `price`: expected tokens for which a level is worth its time; 0: unknown."""
        self.price = price
        if self._pieces:
            self._heads.waiting[self] = tree, price

    def run(self, tree: DraftTree) -> bool:
        """Read all rows that wait, and this one."""
        if self._pieces:
            if self not in self._heads.waiting:
                self.enlist(tree)
            self._heads.read_waiting(self)
        is_new, self._is_new = self._is_new, False
        return is_new

    def asked(self, tree: DraftTree) -> Asked:
        """What is to be read."""
        if self._heads.context and self._memory is None:
            self._memory = self._heads.bound.memory.row()
        return Asked(self._pieces, self._before, self._memory, self._sampling, self._position, tree)

    def asked_along(self, scored: ScoredDraft) -> Asked:
        """What is to be read behind the path that the pass accepts."""
        states, tree = scored.states_of(self._heads.layers), scored.tree
        assert states is not None
        root = len(states[0]) - 1 - len(tree)
        piece = PairPiece(states, range(root, len(states[0])), [-1, *tree.tokens])
        return Asked([piece], self._before, self._memory, self._sampling, self._position, tree, scored.start)

    def take(self, predictions: dict[Path, TokenProbs], share: float) -> None:
        """Take what was read; `share`: its seconds."""
        self._before += _count(self._pieces)
        self._pieces, self._predicted, self.share = [], predictions, share
        self._was_read = self._is_new = True

    def _follow(self, scored: ScoredDraft | None, tokens: Sequence[int]) -> bool:
        """Keep the hidden states along `tokens`. Returns False if some of them are unknown."""
        states = None if scored is None else scored.states_of(self._heads.layers)
        if scored is None or states is None:
            return False
        root = len(states[0]) - 1 - len(scored.tree)
        path = walked(scored.tree.tokens, scored.tree.parents, tokens[:-1])
        if len(path) < len(tokens) - 1:
            return False
        places, following = [root, *[root + 1 + node for node in path]], list(tokens)
        most = self._heads.context
        if not most:
            self._pieces = [PairPiece(states, places[-1:], following[-1:])]
            return True
        before = min(root, len(self._tokens) - 1)
        if before > 0:  # a prompt, or the part of it that was not in the prefix cache
            places, following = [*range(root - before, root), *places], [*self._tokens[-before:], *following]
        self._pieces.append(PairPiece(states, places, following))
        while (beyond := _count(self._pieces) - most) > 0:  # which nothing attends to that is read later
            first = self._pieces.pop(0)
            self._before += min(beyond, len(first.places))
            if beyond < len(first.places):
                self._pieces.insert(0, PairPiece(first.states, first.places[beyond:], first.tokens[beyond:]))
        if len(self._pieces) > MOST_PIECES:
            self._pieces = [_joined(self._pieces)]
        return True

    def _uncalibrated(self, path: Path) -> TokenProbs | None:
        return self._predicted.get((0,) * len(path) if self._heads.predicts_at_once else path)


def _count(pieces: Sequence[PairPiece]) -> int:
    return sum([len(piece.places) for piece in pieces])


def _joined(pieces: Sequence[PairPiece]) -> PairPiece:
    """The pairs of pieces, without the other states of their passes."""
    layers = zip(*[[layer[piece.places] for layer in piece.states] for piece in pieces], strict=True)
    tokens = [token for piece in pieces for token in piece.tokens]
    return PairPiece([torch.cat(layer) for layer in layers], range(len(tokens)), tokens)
