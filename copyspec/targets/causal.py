"""Decoder-only targets, which run prefill and draft trees through the model's public forward, and what they share with
encoder-decoder targets: the model with the facts read from it, and sessions, which hold rows in a tree cache.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch

from copyspec.lockless import cached_property
from copyspec.targets.facts import ModelFacts, read_device, read_dtype, read_facts
from copyspec.targets.hooks.attention import masked_attention, takes_masks, without_cudnn_attention
from copyspec.targets.hooks.inference import in_inference_mode, inference_mode
from copyspec.targets.hooks.positions import positions_from_outside
from copyspec.targets.hooks.recurrence import special_layers
from copyspec.targets.hooks.states import RowStates, hidden_states
from copyspec.targets.layers import HeadInput
from copyspec.targets.limits import encoder_length
from copyspec.targets.linears import FastLinears
from copyspec.targets.recurrent import RecurrentStates, add_layers
from copyspec.targets.rows import RowSessions
from copyspec.targets.scores import Scores
from copyspec.targets.static.settings import LOOK_AHEAD, node_bucket, slot_bucket
from copyspec.targets.tree_cache import Columns, Move, TreeCache, Write, check_rows, lay_out
from copyspec.tree import EMPTY, ROOT, DraftTree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Session
    from copyspec.targets.prefixes import Layers

PREFILL_CHUNK = 2048
"""Maximum tokens of one prefill pass: enough to keep any device busy, few enough to bound activations and masks."""

MASK_LIMIT = 1 << 25
"""Maximum elements of a mask (160 MiB as bool and float32); above it, rows are prefilled one at a time."""

POSITIONS = 16
"""Positions that are made at once, for as many passes of a single token: one made alone takes three times as long."""

_UNCHANGED: AbstractContextManager[None] = nullcontext()


class WrappedModel(ABC):
    """A model with its facts. It may be moved to another device or dtype between sessions, so these are reread."""

    def __init__(self, model: PreTrainedModel, facts: ModelFacts, *, supports_trees: bool = True) -> None:
        """`supports_trees`: False if only chains, one row at a time, match the model's plain logits."""
        self.model = model
        self.supports_trees = supports_trees
        self.vocab_size, self.max_length = facts.vocab_size, facts.max_length
        self.layer_parts = special_layers(model)
        self.encoder_length = encoder_length(model.config)
        self._facts = facts

    @property
    def facts(self) -> ModelFacts:
        held, weight = self._facts, self.model.get_input_embeddings().weight
        if weight.device == held.device and weight.dtype == held.zero.dtype:
            return held
        # Offloaded or quantised weights name neither the device nor the dtype of passes.
        if read_device(self.model) != held.device or read_dtype(self.model) != held.zero.dtype:
            self._facts = read_facts(self.model)
            self.__dict__.pop("linears", None)
        return self._facts

    @cached_property
    def linears(self) -> FastLinears:
        """The model's fast linear layers, for passes of few tokens."""
        with torch.autocast("cpu", enabled=False):  # its comparisons with PyTorch are of the model's own dtype
            return FastLinears(self.model)

    @abstractmethod
    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        """Open a session with one row per prompt. Raises ValueError for a model in training mode."""

    @property
    def device(self) -> torch.device:
        return self.facts.device

    @property
    def layers_by(self) -> str:
        linears = vars(self).get("linears")
        return linears.layers_by if isinstance(linears, FastLinears) else "by transformers"


class TreeSession(ABC):
    """Rows of one batch in one tree cache. Subclasses implement how their model is called.

    Without `supports_trees` the model builds its own masks and positions: a draft is a plain continuation of the text,
    and the session has one row. With `few_shapes` (any device but a CPU), passes use a small set of sizes, and prompts
    are read in their own pass.
    """

    runner = "eager"
    is_settled = True
    computed = None
    keeps_prefixes = False
    """Whether a row's keys and values depend on its tokens and their positions alone, so that `PrefixCache` may hold
    them."""
    pads = False
    """Whether prompts of different lengths are read in one pass, which does not give the bits of a pass of each."""

    def __init__(
        self, target: WrappedModel, facts: ModelFacts, rows: int, new_tokens: int = 0, *, few_shapes: bool = False
    ) -> None:
        """`facts`: the target's, as they are now. `new_tokens`: expected number of tokens after the prompts."""
        self._target, self._model, self._facts = target, target.model, facts
        self._is_on_cpu = facts.device.type == "cpu"
        self._cache = TreeCache(rows)
        self._chains_only = not target.supports_trees
        self.prefill_chunk = PREFILL_CHUNK
        self._states: RecurrentStates | None = None
        if target.layer_parts:
            add_layers(self._cache, target.layer_parts)
        if any([each.states for each in target.layer_parts]):
            self._states = RecurrentStates(self._model, self._cache, rows)
            self.prefill_chunk = sys.maxsize  # what follows a state is read token by token
        self._few_shapes = few_shapes and not self._chains_only and not target.layer_parts
        self._ahead, self._attended = min(new_tokens, LOOK_AHEAD), 0
        self._lengths = [0] * rows
        self._uncached: Sequence[Sequence[int]] | None = None  # of the last `score`, until `keep` commits them

    @property
    def lengths(self) -> Sequence[int]:
        return self._lengths

    @property
    def most_nodes(self) -> int:
        return sys.maxsize if self._states is None else self._states.most_nodes

    def score(self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree], row: int | None = None) -> Scores:
        """See `Session`. `row`: the only row of the pass, of which the tokens and the tree are; None: all rows."""
        logits = self._logits(uncached, trees, row)
        width = logits.shape[1]
        starts = range(0, len(logits) * width, width)
        return Scores(logits.reshape(-1, logits.shape[2]), starts, [1 + len(tree.tokens) for tree in trees])

    def _logits(
        self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree], row: int | None = None
    ) -> torch.Tensor:
        """The logits of `score` as a rectangle, [B, 1 + M, V]."""
        if row is None:
            check_rows(len(self._lengths), uncached, trees)
            self._uncached = uncached
        model, configs = self._model, self._facts.configs
        with inference_mode(True), _UNCHANGED if takes_masks(configs) else masked_attention(model, configs):
            starts = list(self._lengths) if row is None else [self._lengths[row]]
            if self._few_shapes:
                return self._pass_of_few_shapes(starts, uncached, trees)
            tree_width, longest = max([len(tree.tokens) for tree in trees]), max(map(len, uncached))
            if longest > 1 and self._needs_pieces(uncached, tree_width):
                rows = range(len(uncached)) if row is None else [row]
                for each, ids, start in zip(rows, uncached, starts, strict=True):
                    self._prefill(each, ids[:-1], start)
                starts = [start + len(ids) - 1 for start, ids in zip(starts, uncached, strict=True)]
                uncached, longest = [ids[-1:] for ids in uncached], 1
            kept, states = 1, _UNCHANGED
            if self._states is not None:
                of_pass = range(len(self._lengths)) if row is None else [row]
                states = self._states.during(of_pass, [len(ids) for ids in uncached], trees)
            if self._chains_only:
                uncached, kept = [[*uncached[0], *only_chain(trees[0])]], 1 + tree_width
            if kept > tree_width and len(set(starts)) == 1 and (longest == 1 or len(set(map(len, uncached))) == 1):
                self._cache.write = Write(starts[0], starts[0] + len(uncached[0]), row=row)
                with states:
                    return self._continue(uncached, starts[0], kept)
            columns = lay_out(starts, uncached, trees, facts=self._facts)
            columns.write.row = row
            with states:
                return self._score(columns)

    def score_with_states(
        self,
        uncached: Sequence[Sequence[int]],
        trees: Sequence[DraftTree],
        layers: Sequence[int] = (),
        row: int | None = None,
    ) -> tuple[Scores, Sequence[RowStates] | None]:
        """See `Session`; `row` as in `score`."""
        with hidden_states(self._model, layers) as kept:
            logits = self._logits(uncached, trees, row)
        width = logits.shape[1]
        starts = range(0, len(logits) * width, width)
        scores = Scores(logits.reshape(-1, logits.shape[2]), starts, [1 + len(tree.tokens) for tree in trees])
        states = kept.of_pass()
        if states is None:
            return scores, None
        found = list[dict[int, torch.Tensor]]()
        for place, (ids, tree) in enumerate(zip(uncached, trees, strict=True)):
            found.append({})
            for layer, each in states.items():
                root = 0 if self._few_shapes else each.shape[1] - logits.shape[1]
                found[place][layer] = each[place, max(0, root + 1 - len(ids)) : root + 1 + len(tree.tokens)]
        return scores, found

    def _pass_of_few_shapes(
        self, starts: list[int], uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]
    ) -> torch.Tensor:
        width = 1 + max([len(tree.tokens) for tree in trees])
        nodes, ends = node_bucket(width), list(map(int.__add__, starts, map(len, uncached)))
        if (needed := max(ends) + nodes) > self._attended:
            self._attended = self._cache.reserved = slot_bucket(needed + self._ahead)
        if max(map(len, uncached)) > 1:
            self._read([ids[:-1] for ids in uncached], starts)
            starts, uncached = [end - 1 for end in ends], [ids[-1:] for ids in uncached]
        return self._score(lay_out(starts, uncached, trees, nodes, self._attended, self._facts))[:, :width]

    @in_inference_mode
    def prefill(self, uncached: Sequence[Sequence[int]]) -> None:
        """Cache these tokens after each row's cached ones, without returning logits."""
        starts = self._lengths
        with masked_attention(self._model, self._facts.configs):
            self._read(uncached, starts)
        self._lengths = [start + len(ids) for start, ids in zip(starts, uncached, strict=True)]
        self._uncached = None

    def contents(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer, [B, H, S, D]; row r holds its tokens in slots 0 .. lengths[r] - 1."""
        return self._cache.contents()

    @in_inference_mode
    def load(self, prefixes: Sequence[Sequence[Layers]], room: int) -> None:
        """Start the rows, which must be empty, with these pieces; `room`: number of slots to allocate."""
        self._lengths = self._cache.load(prefixes, room)

    @in_inference_mode
    def read(self, row: int, start: int, stop: int) -> Layers:
        """Copy the keys and values in slots start .. stop - 1 of a row, [H, n, D] per layer."""
        return self._cache.read(row, start, stop)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        if self._uncached is None:
            raise RuntimeError("keep() commits what the last score() computed; call score() first")
        moves = []
        for row, (ids, path) in enumerate(zip(self._uncached, paths, strict=True)):
            end = self._lengths[row] + len(ids)
            self._lengths[row] = end + len(path)
            # The tree's first chain is already in place; the nodes of a path are in rising order.
            if path and path[-1] != len(path) - 1:
                in_place = next(place for place, node in enumerate(path) if place != node)
                moves.append(Move(row, [end + node for node in path[in_place:]], end + in_place))
            if self._states is not None:
                self._states.keep(row, path[-1] if path else ROOT)
        self._uncached = None
        if moves:
            self._cache.move(moves)

    def trim(self, lengths: Sequence[int]) -> None:
        if len(lengths) != len(self._lengths) or any(map(int.__gt__, lengths, self._lengths)):
            raise ValueError(f"rows of {list(self._lengths)} tokens cannot be cut to {list(lengths)}")
        before = self._lengths
        # Slots after a row's length are never visible, and the next pass overwrites them.
        self._lengths = list(lengths)
        if self._states is not None:
            self._lengths = self._states.go_back(before, lengths)
        self._uncached = None

    @in_inference_mode
    def select(self, rows: Sequence[int]) -> None:
        self._cache.select(rows)
        if self._states is not None:
            self._states.select(rows)
        self._lengths = [self._lengths[row] for row in rows]
        self._uncached = None

    @in_inference_mode
    def join(self, other: Session) -> None:
        assert isinstance(other, TreeSession)
        self._cache.join(other._cache)
        if self._states is not None and other._states is not None:
            self._states.join(other._states)
        self._attended = max(self._attended, other._attended)
        self._lengths = [*self._lengths, *other._lengths]
        self._uncached = None
        other.close()

    def close(self) -> None:
        self._cache, self._states = TreeCache(0), None
        self._lengths = []

    @abstractmethod
    def _continue(self, uncached: Sequence[Sequence[int]], start: int, kept: int) -> torch.Tensor:
        """Logits of the last `kept` tokens of rows of equally many, which follow `start` cached tokens. [B, kept, V]

        The model builds its own masks and positions, as in plain decoding.
        """

    @abstractmethod
    def _score(self, columns: Columns) -> torch.Tensor:
        """Logits of the last `columns.kept` columns, written to the cache as `columns.write` says. [B, kept, V]"""

    def _needs_pieces(self, uncached: Sequence[Sequence[int]], tree_width: int) -> bool:
        """Whether all tokens but the last of each row are read beforehand, row by row and in pieces."""
        longest = max(map(len, uncached))
        mask = len(uncached) * (longest + tree_width) * (max(self._lengths) + longest + tree_width)
        return longest > 1 and (longest > self.prefill_chunk or mask > MASK_LIMIT)

    def _read(self, uncached: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Cache tokens with the model's own causal mask: in one pass if starts and lengths are equal, else by row.

        With `pads`, lengths may differ: what is written after the end of a shorter row is never seen.
        """
        longest = max(map(len, uncached))
        is_level = len(set(map(len, uncached))) == 1 or self.pads
        if len(set(starts)) == 1 and is_level and not self._needs_pieces(uncached, 0):
            self._cache.write = Write(starts[0], starts[0] + longest)
            # Padded with a token of the row: values of one that was never trained might overflow.
            self._continue([[*ids, *[ids[-1]] * (longest - len(ids))] for ids in uncached], starts[0], 1)
            return
        for row, ids in enumerate(uncached):
            self._prefill(row, ids, starts[row])

    def _prefill(self, row: int, tokens: Sequence[int], start: int) -> None:
        for begin in range(0, len(tokens), self.prefill_chunk):
            piece = tokens[begin : begin + self.prefill_chunk]
            first = start + begin
            self._cache.write = Write(first, first + len(piece), row=row)
            if self._states is None:
                self._continue([piece], first, kept=1)
                continue
            with self._states.during([row], [len(piece)], [EMPTY]):
                self._continue([piece], first, kept=1)
            self._states.keep(row, ROOT)


class CausalTarget(WrappedModel):
    """A decoder-only model. `supports_trees` is False if only chains, one row at a time, match its plain logits."""

    supports_drafts = True
    is_encoder_decoder = False

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        if self.model.training:
            raise training_error(self.model)
        facts = self.facts
        if self.linears.counts:  # else no layer uses the module
            self.linears.check()
        if self.supports_trees and facts.positions != "mpt":
            return CausalSession(self, facts, len(prompts), new_tokens, few_shapes=facts.few_shapes)
        return RowSessions([CausalSession(self, facts, 1, new_tokens, few_shapes=facts.few_shapes) for _ in prompts])

    def start(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)


class CausalSession(TreeSession):
    """The session of a `CausalTarget`."""

    @property
    def keeps_prefixes(self) -> bool:  # type: ignore[override]
        """See `TreeSession`."""
        return not self._target.layer_parts

    _positions: Mapping[int, torch.Tensor] = MappingProxyType({})  # [1, 1] each, of the next single tokens

    def _continue(self, uncached: Sequence[Sequence[int]], start: int, kept: int) -> torch.Tensor:
        width = len(uncached[0])
        tokens = torch.from_numpy(np.array(uncached, dtype=np.int64))  # a third of the time of torch.tensor
        if not self._is_on_cpu:
            tokens = tokens.to(self._facts.device, non_blocking=self._facts.non_blocking)
        if width > 1:
            positions = torch.arange(start, start + width, device=self._facts.device).unsqueeze(0)
            return self._forward(tokens, positions, None, kept)
        if start not in self._positions:
            following = range(start, start + POSITIONS)
            split = torch.arange(start, following.stop, device=self._facts.device).view(-1, 1, 1).unbind()
            self._positions = dict(zip(following, split, strict=True))
        return self._forward(tokens, self._positions[start], None, kept)

    def _score(self, columns: Columns) -> torch.Tensor:
        facts = self._facts
        self._cache.write = columns.write
        packed = torch.from_numpy(columns.packed)
        tokens, positions = packed if self._is_on_cpu else packed.to(facts.device, non_blocking=facts.non_blocking)
        masks = columns.mask if columns.mask is not None else columns.masks(facts)
        with _UNCHANGED if facts.attention is None and not facts.few_shapes else self._attending():
            if facts.positions == "argument":
                return self._forward(tokens, positions, masks, columns.kept)
            keys = torch.from_numpy(columns.key_positions()).to(facts.device, non_blocking=facts.non_blocking)
            with positions_from_outside(self._model, facts.positions, positions, keys):
                return self._forward(tokens, positions, masks, columns.kept)

    @contextmanager
    def _attending(self) -> Iterator[None]:
        facts = self._facts
        with masked_attention(self._model, facts.configs, facts.attention), without_cudnn_attention(facts.device):
            yield

    def _forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        masks: torch.Tensor | dict[str, torch.Tensor] | None,
        kept: int,
    ) -> torch.Tensor:
        arguments: dict[str, object] = {
            "input_ids": tokens,
            "attention_mask": masks,
            self._facts.cache: self._cache,
            "use_cache": True,
        }
        if "position_ids" in self._facts.arguments:
            arguments["position_ids"] = positions
        if "logits_to_keep" in self._facts.arguments:
            arguments["logits_to_keep"] = kept
        linears, write = self._target.linears, self._cache.write
        rows, width = tokens.shape
        head_input: HeadInput | None = None
        if linears.leaves_out_padding and 0 < write.tokens < rows * width and write.slots is not None:
            places = (write.slots[:, -kept:].reshape(-1) >= 0).nonzero().squeeze(1)
            head_input = HeadInput(rows, kept, places, get_ident())
        counts = (rows * width, rows * kept) if head_input is None else (write.tokens, len(head_input.tokens))
        pays = linears.packs or counts[0] in linears.counts or counts[1] in linears.counts
        with linears.used(head_input) if pays else _UNCHANGED:
            logits: torch.Tensor = self._model(**arguments).logits
        return logits if logits.shape[1] == kept else last_logits(logits, kept)


def only_chain(tree: DraftTree) -> Sequence[int]:
    """The tokens of a tree without branches. Raises ValueError if it has any."""
    if any(parent != node - 1 for node, parent in enumerate(tree.parents)):
        raise ValueError("this target verifies chains only: pass DraftTree.first_chain() of each tree")
    return tree.tokens


def last_logits(logits: torch.Tensor, kept: int) -> torch.Tensor:
    """The logits at the last `kept` positions. Raises ValueError if the model's forward gave others than [B, Q, V]."""
    if logits.dim() != 3 or logits.shape[1] < kept:
        raise ValueError(
            f"the model's forward returned logits of shape {list(logits.shape)}, but [rows, at least {kept}, "
            "vocabulary] is needed: was it replaced by one that returns only the last ones?"
        )
    return logits[:, -kept:]


def training_error(model: PreTrainedModel) -> ValueError:
    """The error for a model in training mode."""
    name = type(model).__name__
    return ValueError(f"{name} is in training mode, where dropout makes its output random; call model.eval() first")
