"""Decoder-only targets, which run prompts and draft trees through the model's public forward, and what they share with
encoder-decoder targets: the model with the facts read from it, and sessions, whose rows are scored together in passes
over the tokens of all.
"""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from copyspec.common.lockless import cached_property
from copyspec.targets.base import RowStates, Scores
from copyspec.targets.cpu.batch_invariant import BatchInvariant
from copyspec.targets.cpu.linears import FastLinears
from copyspec.targets.eager.row_attention import NotByRow, RowAttention, TokenAttention, attending, attends_by_interface
from copyspec.targets.hooks.attention import ROWS, masked_attention, takes_masks, without_cudnn_attention
from copyspec.targets.hooks.inference import in_inference_mode, inference_mode
from copyspec.targets.hooks.positions import positions_from_outside
from copyspec.targets.hooks.recurrence import State, special_layers
from copyspec.targets.hooks.states import HiddenStates, hidden_states
from copyspec.targets.model.facts import ModelFacts, read_device, read_dtype, read_facts, training_error
from copyspec.targets.model.generation import first_tokens
from copyspec.targets.model.limits import encoder_length
from copyspec.targets.recurrent.states import RecurrentStates, add_layers
from copyspec.targets.rows.passes import Pass, PassCache, RowCache, check_rows, lay_out
from copyspec.tree import EMPTY, ROOT, DraftTree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Session
    from copyspec.targets.rows.prefixes import Layers, Prefix

logger = logging.getLogger(__name__)

PREFILL_CHUNK = 2048
"""Maximum tokens of a pass that reads prompts: enough to keep any device busy, few enough to bound activations and
masks."""

LOOK_AHEAD = 512
"""Extra slots for new tokens, at most, so that a row's first buffers seldom grow."""

MASK_LIMIT = 1 << 25
"""Maximum elements of the masks of a pass (160 MiB as bool and float32); above it, prompts are read before, one row at
a time."""

JOINT_LIMIT = 1 << 20
"""Maximum of tokens times slots of a pass over several rows whose attention sees the slots of all: the rows of a larger
one are parted."""

EXACT_TOKENS = 128
"""Tokens of a pass in which each has the bits that it has alone: as many as the compiled linear layers multiply."""

_UNCHANGED: AbstractContextManager[Any] = nullcontext()

Rows = Sequence[Sequence[int]]


class WrappedModel(ABC):
    """A model with its facts. It may be moved to another device or dtype between sessions, so these are reread."""

    supports_drafts, keeps_states = True, False

    def __init__(self, model: PreTrainedModel, facts: ModelFacts, *, supports_trees: bool = True) -> None:
        """`supports_trees`: False if only chains, one row at a time, match the model's plain logits."""
        self.model = model
        self.supports_trees = supports_trees
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self.vocab_size, self.max_length = facts.vocab_size, facts.max_length
        self.layer_parts = special_layers(model)
        self.is_recurrent = any([part.states for part in self.layer_parts])
        self.attends_by_row = not self.layer_parts and not self.is_encoder_decoder and attends_by_interface(model)
        """Whether attention in a pass over several rows is computed row by row; False once a layer turned out not to
        call it as this needs."""
        self.is_exact = False
        """Whether passes in float32 on a CPU give each token the bits that it has in a pass of one (exact mode)."""
        self.encoder_length = encoder_length(model.config)
        capacity = getattr(model.config, "expert_capacity", sys.maxsize)
        self.most_nodes = capacity - 1
        """Draft nodes of a row: experts with a capacity drop tokens that exceed it."""
        self.most_tokens = min(facts.max_length or sys.maxsize, capacity)
        """Tokens of a pass over several rows, for the same reason; some models have buffers for so many."""
        self._facts = facts

    @property
    def facts(self) -> ModelFacts:
        facts, weight = self._facts, self.model.get_input_embeddings().weight
        if weight.device == facts.device and weight.dtype == facts.zero.dtype:
            return facts
        # Offloaded or quantised weights name neither the device nor the dtype of passes.
        if read_device(self.model) != facts.device or read_dtype(self.model) != facts.zero.dtype:
            self._facts = read_facts(self.model)
            self.__dict__.pop("linears", None)
        return self._facts

    @property
    def may_be_exact(self) -> bool:
        """Whether exact mode may compute each token as if it were alone: of a recurrent model in float32 on a CPU."""
        facts = self.facts
        return self.is_recurrent and facts.device.type == "cpu" and facts.zero.dtype == torch.float32

    @cached_property
    def linears(self) -> FastLinears:
        """The model's fast linear layers, for passes of few tokens."""
        with torch.autocast("cpu", enabled=False):  # its comparisons with PyTorch are of the model's own dtype
            return FastLinears(self.model)

    @abstractmethod
    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        """Open a session with one row per prompt. Raises ValueError for a model in training mode."""

    def start(self, prompt: Sequence[int]) -> list[int]:
        """See `Target`."""
        return first_tokens(self.model) if self.is_encoder_decoder else list(prompt)

    def prepare(self) -> None:
        """Make sure that rows may join: called before each does. Raises ValueError for a model in training mode."""
        if self.model.training:
            raise training_error(self.model)
        if not self.is_encoder_decoder and self.linears.counts:  # else no layer uses the module
            self.linears.check()

    @property
    def device(self) -> torch.device:
        return self.facts.device

    @property
    def layers_by(self) -> str:
        linears = vars(self).get("linears")
        return linears.layers_by if isinstance(linears, FastLinears) else "by transformers"


class TreeSession(ABC):
    """Rows of one batch. Subclasses implement how their model is called.

    Without `supports_trees` the model builds its own masks and positions: a draft is a plain continuation of the text,
    and each row has passes of its own.
    """

    runner = "eager"
    is_settled = True
    computes = None
    most_tokens = sys.maxsize
    keeps_prefixes = False
    """Whether what is cached of a row depends on its tokens and their positions alone, so that `PrefixCache` may hold
    it."""

    def __init__(
        self, target: WrappedModel, facts: ModelFacts, prompts: Sequence[Sequence[int]] = (), new_tokens: int = 0
    ) -> None:
        """`facts`: the target's, as they are now. `new_tokens`: expected number of tokens after the prompts."""
        self._target, self._model, self._facts = target, target.model, facts
        self._cache = PassCache()
        self._ahead = 0
        self._rows: list[RowCache] = []
        self._chains_only = not target.supports_trees
        self._is_exact = target.is_exact and target.may_be_exact
        self.prefill_chunk = PREFILL_CHUNK
        self._states: RecurrentStates | None = None
        if target.layer_parts:
            add_layers(self._cache, target.layer_parts)
        if target.is_recurrent:
            self._states = RecurrentStates(self._model, self._cache, is_exact=self._is_exact)
            self.prefill_chunk = sys.maxsize  # what follows a state is read token by token
        self._uncached: Rows | None = None  # of the last `score`, until `keep` commits them
        self._recorded: HiddenStates | None = None  # of the running pass, if they were asked for
        self._recorded_parts: list[RowStates] = []  # the same of rows that were scored in passes of their own
        self.add(prompts, new_tokens)

    @property
    def lengths(self) -> Sequence[int]:
        return [row.length for row in self._rows]

    @property
    def most_nodes(self) -> int:
        most = min(self._target.most_nodes, EXACT_TOKENS - 1) if self._is_exact else self._target.most_nodes
        return most if self._states is None else min(most, self._states.most_nodes)

    @property
    def is_recurrent(self) -> bool:
        """Whether rows have recurrent states."""
        return self._states is not None

    def score(self, uncached: Rows, trees: Sequence[DraftTree]) -> Scores:
        check_rows(len(self._rows), uncached, trees)
        self._uncached = uncached
        if self._chains_only:
            rows = range(len(trees))
            return Scores.of_rows([*map(self._score_chain, rows, uncached, trees)])
        starts = [row.length for row in self._rows[: len(uncached)]]
        sizes = [1 + len(tree.tokens) for tree in trees]
        with inference_mode(True):
            count = sum(map(len, uncached)) + sum(sizes)
            is_large = count > self.prefill_chunk or count * (count + sum(starts)) > MASK_LIMIT
            is_large = is_large and max(map(len, uncached)) > 1 and not self._fit(uncached, trees)
            if self._is_exact or is_large:
                self._read([ids[:-1] for ids in uncached], starts)
                starts = [start + len(ids) - 1 for start, ids in zip(starts, uncached, strict=True)]
                uncached = [ids[-1:] for ids in uncached]
            if sizes == [1] and not self._is_exact:
                logits = self._continue(0, uncached[0], starts[0], 1)
            else:
                logits = self._pass(lay_out(starts, uncached, trees, self._facts), trees, range(len(trees)))
        return Scores(logits, list(accumulate(sizes[:-1], initial=0)), sizes)

    @in_inference_mode
    def _score_chain(self, place: int, ids: Sequence[int], tree: DraftTree) -> torch.Tensor:
        """The logits at a row's root and after each token of its draft, [1 + m, V]."""
        start, chain = self._rows[place].length, only_chain(tree)
        size = len(ids) + len(chain)
        if len(ids) > 1 and (size > self.prefill_chunk or size * (start + size) > MASK_LIMIT):
            self._read_row(place, ids[:-1], start)
            start, ids = start + len(ids) - 1, ids[-1:]
        logits = self._continue(place, [*ids, *chain], start, 1 + len(chain))
        if self._recorded is not None:
            work = self._cache.work
            self._recorded_parts += self._recorded.of_rows(work.first, work.scored) or []
        return logits

    def score_with_states(
        self, uncached: Rows, trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[Scores, Sequence[RowStates] | None]:
        self._recorded_parts = []
        with hidden_states(self._model, layers) as self._recorded:
            scores, states, work = self.score(uncached, trees), self._recorded, self._cache.work
        apart, self._recorded, self._recorded_parts = self._recorded_parts, None, []
        return scores, apart or states.of_rows(work.first, work.scored)

    @in_inference_mode
    def load(self, prefixes: Sequence[Prefix], room: int) -> None:
        """Start the last rows, which must be empty, with these; `room`: number of slots to allocate."""
        first = len(self._rows) - len(prefixes)
        for place, prefix in enumerate(prefixes, first):
            row = self._rows[place]
            row.reserved = max(row.reserved, room)
            row.fill(prefix.pieces)
            row.length = prefix.length
            if self._states is not None and prefix.length:
                self._states.begin(place, prefix.states)

    @in_inference_mode
    def read(self, row: int, start: int, stop: int) -> Layers:
        """Copy the keys and values in slots start .. stop - 1 of a row, [H, n, D] per layer."""
        return self._rows[row].read(start, stop)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        if self._uncached is None:
            raise RuntimeError("keep() commits what the last score() computed; call score() first")
        for place, (row, ids, path) in enumerate(zip(self._rows, self._uncached, paths, strict=False)):
            end = row.length + len(ids)
            row.length = end + len(path)
            # The tree's first chain is already in place; the nodes of a path are in rising order.
            if path and path[-1] != len(path) - 1:
                moved = next(at for at, node in enumerate(path) if at != node)
                row.move([end + node for node in path[moved:]], end + moved)
            if self._states is not None:
                self._states.keep(place, path[-1] if path else ROOT)
        self._uncached = None

    def trim(self, lengths: Sequence[int]) -> None:
        before = self.lengths
        if len(lengths) != len(before) or any(map(int.__gt__, lengths, before)):
            raise ValueError(f"rows of {list(before)} tokens cannot be cut to {list(lengths)}")
        if self._states is not None:
            lengths = self._states.go_back(before, lengths)
        # Slots after a row's length are never visible, and the next pass overwrites them.
        for row, length in zip(self._rows, lengths, strict=True):
            row.length = length
        self._uncached = None

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]
        self._cache.rows = ()  # which are those of the last pass
        if self._states is not None:
            self._states.select(rows)
        self._uncached = None

    def add(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> None:
        self._target.prepare()
        self._ahead = min(new_tokens, LOOK_AHEAD)
        self._rows += [RowCache(self._ahead) for _ in prompts]
        if self._states is not None:
            self._states.add([len(prompt) for prompt in prompts])
        self._uncached = None

    def close(self) -> None:
        self._cache, self._states = PassCache(), None
        self._rows = []

    def states(self, row: int) -> Sequence[State]:
        """The recurrent states of a row, by mixer. They are never written to."""
        return [] if self._states is None else self._states.of(row)

    @abstractmethod
    def _call(self, tokens: torch.Tensor, positions: torch.Tensor, masks: Any) -> torch.Tensor:
        """Run the model on `tokens` [1, T]; return the logits of the pass that the cache knows, [N, V]."""

    def _pass(self, work: Pass, trees: Sequence[DraftTree], places: Sequence[int]) -> torch.Tensor:
        """Score the roots and nodes of the rows in these places, [N, V]."""
        facts, rows = self._facts, [self._rows[place] for place in places]
        joint = 0 if self._target.attends_by_row else work.first[-1] * sum(work.ends())
        most = EXACT_TOKENS if self._is_exact else self._target.most_tokens
        if len(rows) > 1 and (work.first[-1] > most or joint > JOINT_LIMIT):
            half = len(rows) // 2
            return torch.cat([self._part(work, trees, places, part) for part in (range(half), range(half, len(rows)))])
        packed = torch.from_numpy(work.packed).to(facts.device, non_blocking=facts.non_blocking)
        tokens, positions = packed.unsqueeze(1)
        states = _UNCHANGED if self._states is None else self._states.during(places, work, trees)
        with states:
            if self._is_exact:
                return self._by_row(work, rows, tokens, positions)
            if len(rows) > 1 and self._target.attends_by_row:
                try:
                    return self._by_row(work, rows, tokens, positions)
                except NotByRow:
                    self._target.attends_by_row = False
                    return self._pass(work, trees, places)  # which may be too large now
            self._cache.work, self._cache.rows, self._cache.is_plain, self._cache.attention = work, rows, False, None
            is_masked = facts.attention is None and facts.zero.is_cpu and takes_masks(facts.configs)
            masks = work.mask if work.mask is not None else work.joint_masks(facts)
            with (
                _UNCHANGED if is_masked else self._attending(facts.attention),
                _UNCHANGED if facts.positions == "argument" else self._positioned(work, positions),
            ):
                logits = self._call(tokens, positions, masks)
        if len(rows) == 1 or not logits.isnan().any():
            return logits
        # NaN of one row may have reached others: 0 times NaN is NaN.
        return torch.cat([self._part(work, trees, places, [row]) for row in range(len(rows))])

    def _part(self, work: Pass, trees: Sequence[DraftTree], places: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        """The logits of some rows of a pass, in a pass of their own."""
        drafts = [trees[row] for row in rows]
        ids = [work.tokens[work.first[row] : work.first[row + 1] - len(trees[row].tokens)].tolist() for row in rows]
        part = lay_out([work.starts[row] for row in rows], ids, drafts, self._facts)
        before = len(self._recorded_parts)
        logits = self._pass(part, drafts, [places[row] for row in rows])
        if self._recorded is not None and len(self._recorded_parts) == before:  # it was not parted itself
            self._recorded_parts += self._recorded.of_rows(part.first, part.scored) or []
        return logits

    def _by_row(
        self, work: Pass, rows: Sequence[RowCache], tokens: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        facts = self._facts
        attention = (TokenAttention if self._is_exact else RowAttention)(self._model, work, rows, facts)
        self._cache.work, self._cache.rows, self._cache.is_plain = work, rows, False
        self._cache.attention = None if self._is_exact else attention
        with (
            self._attending(ROWS),
            attending(attention),
            _UNCHANGED if facts.positions == "argument" else self._positioned(work, positions),
            BatchInvariant() if self._is_exact else _UNCHANGED,
        ):
            logits = self._call(tokens, positions, attention.markers())
        attention.end()
        self._cache.attention = None
        return logits

    def _continue(self, place: int, ids: Sequence[int], start: int, scored: int) -> torch.Tensor:
        """The logits at the last `scored` of tokens that follow the `start` cached ones of a row, [scored, V]. The
        model makes its own masks and positions, as in plain decoding."""
        facts, row = self._facts, self._rows[place]
        work = Pass([start], [0, len(ids)], [scored], np.array([ids, range(start, start + len(ids))]), [None])
        packed = torch.from_numpy(work.packed).to(facts.device, non_blocking=facts.non_blocking)
        tokens, positions = packed.unsqueeze(1)
        self._cache.work, self._cache.rows, self._cache.is_plain, self._cache.attention = work, [row], True, None
        states = _UNCHANGED if self._states is None else self._states.during([place], work, [EMPTY])
        plain = _UNCHANGED if takes_masks(facts.configs) else masked_attention(self._model, facts.configs)
        with plain, states:
            return self._call(tokens, positions, None)

    @contextmanager
    def _attending(self, name: str | None) -> Iterator[None]:
        """Let attention take the masks of a pass, by the implementation of this name; None: the model's own."""
        with masked_attention(self._model, self._facts.configs, name), without_cudnn_attention(self._facts.device):
            yield

    def _positioned(self, work: Pass, positions: torch.Tensor) -> AbstractContextManager[None]:
        """Give the positions of a pass, [1, T], and those of its rows' slots to a model that takes no argument for
        them."""
        facts = self._facts
        keys = torch.from_numpy(np.concatenate([work.key_positions(row) for row in range(len(work.starts))]))[None]
        on_device = keys.to(facts.device, non_blocking=facts.non_blocking)
        return positions_from_outside(self._model, facts.positions, positions, on_device)

    def _fit(self, uncached: Rows, trees: Sequence[DraftTree]) -> bool:
        """Whether these tokens and trees of all rows fit into one pass."""
        sizes = [len(ids) + len(tree.tokens) for ids, tree in zip(uncached, trees, strict=True)]
        used = [row.length + size for row, size in zip(self._rows, sizes, strict=False)]
        by_row = self._target.attends_by_row or len(sizes) == 1
        mask = sum(map(int.__mul__, sizes, used)) if by_row else sum(sizes) * sum(used)
        return sum(sizes) <= self.prefill_chunk and mask <= MASK_LIMIT

    def _read(self, uncached: Rows, starts: Sequence[int]) -> None:
        """Cache these tokens: those of a row in pieces, and of several rows together as far as they fit into a pass. In
        exact mode, those of a prompt in one piece, and others one by one."""
        empty = [EMPTY] * len(uncached)
        if not self._is_exact and len(uncached) > 1 and all(map(len, uncached)) and self._fit(uncached, empty):
            self._pass(lay_out(starts, uncached, empty, self._facts), empty, range(len(empty)))
            for place in range(len(uncached)) if self._states is not None else ():
                self._states.keep(place, ROOT)  # type: ignore[union-attr]
            return
        for place, (ids, start) in enumerate(zip(uncached, starts, strict=True)):
            self._read_row(place, ids, start)

    def _read_row(self, place: int, ids: Sequence[int], start: int) -> None:
        head = self._states.of_prompt(place, start, len(ids)) if self._is_exact else len(ids)  # type: ignore[union-attr]
        for begin in [*range(0, head, self.prefill_chunk), *range(head, len(ids))]:
            if begin < head:
                self._continue(place, ids[begin : min(begin + self.prefill_chunk, head)], start + begin, 1)
            else:
                self._pass(lay_out([start + begin], [[ids[begin]]], [EMPTY], self._facts), [EMPTY], [place])
            if self._states is not None:
                self._states.keep(place, ROOT)


class CausalTarget(WrappedModel):
    """A decoder-only model. `supports_trees` is False if only chains, one row at a time, match its plain logits."""

    keeps_states = True
    _was_tried = False

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        facts = self.facts
        if self.is_exact and not self._was_tried and self.may_be_exact:
            self.is_exact, self._was_tried = self._tries_exact(), True
        return CausalSession(self, facts, prompts, new_tokens)

    @in_inference_mode
    def _tries_exact(self) -> bool:
        """Whether the nodes of a tree have the bits of the same tokens one by one; else the log says why not."""
        tokens = [token % self.vocab_size for token in range(1, 8)]
        tree = DraftTree(tokens[3:], [ROOT, 0, ROOT, 2], [0.5] * 4, [None] * 4)
        together, alone = (CausalSession(self, self.facts, [tokens[:3], tokens[:2]][:rows]) for rows in (2, 1))
        reason = "its tokens have other bits in a tree"
        try:
            scores = together.score([tokens[:3], tokens[:2]], [tree, EMPTY])[0][[0, 3, 4]]
            together.keep([[2, 3], []])
            same = list[bool]()
            for ids, expected in zip((tokens[:3], tokens[5:6], tokens[6:]), scores, strict=True):
                same.append(alone.score([ids], [EMPTY])[0][0].equal(expected))
                alone.keep([[]])
            pairs = zip(together.states(0), alone.states(0), strict=True)
            if all([*same, *(state[key].equal(other[key]) for state, other in pairs for key in state)]):
                return True
        except Exception as error:  # of a layer that is called otherwise than others
            reason = str(error)
        logger.warning("%s has no exact mode: %s", type(self.model).__name__, reason)
        return False


class CausalSession(TreeSession):
    """The session of a `CausalTarget`."""

    @property
    def keeps_prefixes(self) -> bool:  # type: ignore[override]
        """See `TreeSession`."""
        if self._is_exact or (self._states is not None and not self._states.reads_pieces):
            return False
        return not any([part.indexes for part in self._target.layer_parts])

    def _call(self, tokens: torch.Tensor, positions: torch.Tensor, masks: Any) -> torch.Tensor:
        facts, count, work = self._facts, tokens.shape[1], self._cache.work
        number = sum(work.scored)
        arguments: dict[str, object] = {
            "input_ids": tokens,
            "attention_mask": masks,
            facts.cache: self._cache,
            "use_cache": True,
        }
        if "position_ids" in facts.arguments:
            arguments["position_ids"] = positions
        if "logits_to_keep" in facts.arguments:
            is_tail = len(work.scored) == 1 or number == count
            # On the CPU: the last layers may be on another device than the first.
            arguments["logits_to_keep"] = number if is_tail else torch.tensor(work.wanted(), device="cpu")
        linears = self._target.linears
        pays = linears.packs or count in linears.counts or number in linears.counts
        with linears.used() if pays else _UNCHANGED:
            logits: torch.Tensor = self._model(**arguments).logits
        is_whole = logits.dim() == 3 and logits.shape[1] == number
        return logits[0] if is_whole else wanted_logits(logits, work)


def only_chain(tree: DraftTree) -> Sequence[int]:
    """The tokens of a tree without branches. Raises ValueError if it has any."""
    if any(parent != node - 1 for node, parent in enumerate(tree.parents)):
        raise ValueError("this target verifies chains only: pass DraftTree.first_chain() of each tree")
    return tree.tokens


def wanted_logits(logits: torch.Tensor, work: Pass) -> torch.Tensor:
    """The logits of a pass, [N, V], of those that a forward gave for all its tokens or for the scored ones, [1, T or N,
    V]. Raises ValueError if it gave others."""
    wanted = work.wanted()
    if logits.dim() == 3 and logits.shape[1] == len(wanted):
        return logits[0]
    if logits.dim() != 3 or logits.shape[1] != work.first[-1]:
        raise ValueError(
            f"the model's forward returned logits of shape {list(logits.shape)}, but [1, at least {len(wanted)}, "
            "vocabulary] is needed: was it replaced by one that returns only the last ones?"
        )
    return logits[0, torch.tensor(wanted, device="cpu")]
