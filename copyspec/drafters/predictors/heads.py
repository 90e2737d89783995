"""Draft heads as a `Predictor`: they predict from the target's hidden states, which `observe` receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from copyspec.drafters.base import ScoredDraft
from copyspec.drafters.predictors.base import (
    PRIOR_ACCURACY,
    CalibratedPredictor,
    Learned,
    Path,
    RowContext,
    TokenProbs,
    paths,
    walked,
)
from copyspec.drafters.predictors.head_folder import HeadFile
from copyspec.drafters.predictors.head_weights import AtOnce, Heads, ParallelHeads, RecurrentHead, Stepwise
from copyspec.drafters.predictors.mtp_layer import MTP_ACCURACY, MtpLayer
from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.hooks.modules import decoder_layers, output_head, real_weight
from copyspec.targets.hooks.states import LAST
from copyspec.targets.linears import Forward, few_row_product
from copyspec.tree import DraftTree
from copyspec.verification.noise import gumbel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOP_K = 8
"""Most likely tokens kept per node."""

BEAM = 4
"""Nodes of a level that a recurrent head reads in addition to those drafted already. More rows take longer, and the
fifth most likely path of a level is seldom accepted."""

MIN_BEAM_PROB = 0.03
"""Minimum probability of a path for the head to read on from it."""


class DraftHeads(Learned):
    """The heads of one model, their measured reliability, weight and time; shared by all rows of an engine."""

    def __init__(self, file: HeadFile, model: PreTrainedModel) -> None:
        super().__init__(MTP_ACCURACY if isinstance(file.heads, MtpLayer) else PRIOR_ACCURACY)
        self._file, self._model = file, model
        self._bound: _Bound | None = None

    @property
    def bound(self) -> _Bound:
        """The weights on the model's current device; the model may have been moved."""
        module = output_head(self._model)
        output = getattr(module, "weight", None)
        assert module is not None and isinstance(output, torch.Tensor)
        bound = self._bound
        if bound is None or bound.output is not output or bound.place != _place(output):
            with inference_mode(False), torch.no_grad():  # weights made in inference mode could not be packed
                bound = self._bound = self._bind(output)
        return bound

    def _bind(self, held: torch.Tensor) -> _Bound:
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
        return _Bound(heads, held, _place(held), shared, few_row_product(shared), table, vocabulary)

    @property
    def depth(self) -> int:
        """Number of tokens predicted ahead."""
        return self._file.heads.depth

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the target whose inputs the heads read; LAST: the last hidden states."""
        return self._file.heads.reads(len(decoder_layers(self._model)))

    def reader(self) -> Any:
        """The state of a new row in layers that attend to earlier tokens; None for other heads."""
        heads = self._file.heads
        return None if isinstance(heads, (ParallelHeads, RecurrentHead)) else heads.reader()


@dataclass(slots=True)
class _Bound:
    """Heads, and the model's weights that they share."""

    heads: Heads
    output: torch.Tensor  # [V, D]
    place: tuple[object, ...]
    shared: torch.Tensor  # [V', D], the rows of `output` that are drafted from
    product: Forward  # multiplication by `shared`
    embeddings: torch.Tensor  # [V, D]
    vocabulary: torch.Tensor | None  # [V']


def weights_of(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the model's output weights and its embeddings, [V, D] each."""
    found, embeddings = real_weight(output_head(model)), real_weight(model.get_input_embeddings())
    assert isinstance(found, torch.Tensor) and isinstance(embeddings, torch.Tensor)
    return found, embeddings


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
        self._pairs: list[tuple[torch.Tensor, list[int]]] = []
        """Hidden states [n, F] and the tokens that followed them: where earlier tokens are attended to those that were
        not read yet, else only the latest."""
        self._reader = heads.reader()
        self._states: dict[Path, torch.Tensor] = {}  # of a recurrent head: [D], after each path
        self._nodes: dict[Path, Any] = {}  # of a stepwise layer
        self._levels: list[TokenProbs] = []  # of what predicts at once: the same after all paths of one length

    @property
    def wanted_layers(self) -> Sequence[int]:
        """See `Drafter.wanted_layers`."""
        return [layer for layer in self._heads.layers if layer != LAST]

    def predict(self, path: Path) -> TokenProbs | None:
        if not self._is_ready or len(path) >= self._heads.depth:
            return ()  # empty, and no `run` would add anything
        return super().predict(path)

    def observe(self, scored: ScoredDraft) -> None:
        """Keep the states of a forward pass until it is known which of its nodes was accepted last."""
        self._scored = scored if scored.states is not None else None

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        scored, self._scored = self._scored, None
        self._states.clear()
        self._nodes.clear()
        self._levels = []
        self._position += len(tokens)
        if not self._follow(scored, tokens):
            self._pairs, self._reader = [], self._heads.reader()  # states are missing in between
        self._tokens += tokens

    def run(self, tree: DraftTree) -> bool:
        """Read the root and the nodes of `tree` up to the heads' depth, and likely paths of the heads' own."""
        if not self._is_ready:
            return False
        with inference_mode(True):
            bound = self._heads.bound
            started = perf_counter()  # binding takes longer than many reads, but only once
            if not isinstance(bound.heads, AtOnce):
                known = self._read_recurrent(bound, bound.heads, paths(tree.tokens, tree.parents))
            elif known := not self._levels:
                logits = self._read_at_once(bound, bound.heads)
                self._levels = self._likeliest(bound, logits, range(bound.heads.depth))
        if known:
            self._heads.time.took(perf_counter() - started)
        return known

    @property
    def _is_ready(self) -> bool:
        """Whether the hidden state is known from which the target's last token was picked."""
        return bool(self._pairs or self._levels) or () in self._predicted

    def _follow(self, scored: ScoredDraft | None, tokens: Sequence[int]) -> bool:
        """Keep the hidden states along `tokens`. Returns False if some of them are unknown."""
        states = None if scored is None else scored.read_states(self._heads.layers)
        if scored is None or states is None:
            return False
        root = len(states) - 1 - len(scored.tree)
        path = walked(scored.tree.tokens, scored.tree.parents, tokens[:-1])
        if len(path) < len(tokens) - 1:
            return False
        places, following = [root, *[root + 1 + node for node in path]], list(tokens)
        head = self._heads.bound.heads
        if not head.context:
            self._pairs = [(states[places[-1:]], following[-1:])]
            return True
        before = min(root, len(self._tokens) - 1, head.context)
        if before > 0:  # a prompt, or the part of it that was not in the prefix cache
            places, following = [*range(root - before, root), *places], [*self._tokens[-before:], *following]
        self._pairs.append((states[places], following))
        if len(self._pairs) > head.context + 1:  # the last pair attends to no older ones
            self._reader.skip(len(self._pairs.pop(0)[1]))
        return True

    def _uncalibrated(self, path: Path) -> TokenProbs | None:
        if self._levels:
            return self._levels[len(path)] if len(path) < len(self._levels) else ()
        return super()._uncalibrated(path)

    def _read_at_once(self, bound: _Bound, head: AtOnce) -> torch.Tensor:
        """The logits of all levels, [depth, V']."""
        if isinstance(head, ParallelHeads):
            return head.logits(self._pairs[-1][0][-1:].to(bound.shared), bound.shared)
        block = self._embedded(bound, head.block(self._pairs[-1][1][-1]))
        read, self._pairs = self._unread(bound), []
        return bound.product(head.head_inputs(self._reader.read(head, read, block)))

    def _unread(self, bound: _Bound) -> torch.Tensor:
        return torch.cat([each for each, _ in self._pairs]).to(bound.shared)

    def _embedded(self, bound: _Bound, tokens: Sequence[int]) -> torch.Tensor:
        return bound.embeddings[torch.tensor(tokens, device=bound.embeddings.device)].to(bound.shared)

    def _read_recurrent(self, bound: _Bound, head: RecurrentHead | Stepwise, drafted: Sequence[Path]) -> bool:
        """Read level by level; a stepwise layer only one level, which takes as long as several of a recurrent head."""
        known = len(self._predicted)
        one_level = isinstance(head, Stepwise)
        beam: list[tuple[Path, float]] = [((), 1.0)]
        for level in range(head.depth):
            here = [path for path in drafted if len(path) == level]
            wanted = dict.fromkeys([*(() if one_level and level else (path for path, _ in beam)), *here])
            fresh = [
                path for path in wanted if path not in self._predicted and (not path or path[:-1] in self._predicted)
            ]
            if fresh:
                self._advance(bound, head, fresh[:BEAM] if one_level else fresh)
                if one_level:
                    break
            beam = self._next_beam(beam)
        return len(self._predicted) > known

    def _advance(self, bound: _Bound, head: RecurrentHead | Stepwise, fresh: Sequence[Path]) -> None:
        """Read paths of one length whose parents have been read."""
        following = [path[-1] for path in fresh] if fresh[0] else [token for _, each in self._pairs for token in each]
        embeddings = self._embedded(bound, following)
        before = [path[:-1] for path in fresh if path]
        if isinstance(head, Stepwise):
            if before:
                nodes = self._reader.step(head, [self._nodes[path] for path in before], embeddings)
            else:
                nodes, self._pairs = [self._reader.read(head, self._unread(bound), embeddings)], []
            self._nodes |= zip(fresh, nodes, strict=True)
            logits = bound.product(head.head_inputs(torch.stack([node.feature for node in nodes])))
        else:
            held = [self._states[path] for path in before]
            first = torch.stack(held) if held else head.entered(self._pairs[-1][0].to(bound.shared))
            states = head.step(first, embeddings)
            self._states |= zip(fresh, states, strict=True)
            logits = bound.product(states)
        self._predicted |= zip(fresh, self._likeliest(bound, logits, [len(path) for path in fresh]), strict=True)

    def _next_beam(self, beam: Sequence[tuple[Path, float]]) -> list[tuple[Path, float]]:
        following = [
            ((*path, token), chance * probability)
            for path, chance in beam
            for token, probability in self._predicted.get(path, ())[:BEAM]
            if chance * probability >= MIN_BEAM_PROB
        ]
        return sorted(following, key=lambda each: -each[1])[:BEAM]

    def _likeliest(self, bound: _Bound, logits: torch.Tensor, depths: Sequence[int]) -> list[TokenProbs]:
        """The most likely tokens for rows of logits, [n, V'], at `depths` below the root. When sampling, the noise of
        the target's own draws is added, so that both tend to the same token."""
        scores = logits.float()
        if not self._sampling.is_greedy:
            positions = range(self._position, self._position + 1 + max(depths))
            seed, sample = self._sampling.seed, self._sampling.sample
            noise = gumbel(seed, sample, positions, len(bound.output), scores.device, only=bound.vocabulary)
            scores = scores / self._sampling.temperature + noise[list(depths)]
        best = scores.softmax(-1).topk(min(TOP_K, scores.shape[-1]))
        tokens = best.indices if bound.vocabulary is None else bound.vocabulary[best.indices]
        table = torch.stack([tokens.double(), best.values.double()], -1).tolist()
        return [[(int(token), probability) for token, probability in row if probability > 0] for row in table]
