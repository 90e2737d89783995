"""States of recurrent layers, row by row and node by node, so that rejected drafts leave no trace in them.

In a pass, each module that keeps a state (a gated delta rule, Mamba, a short convolution) reads the uncached tokens as
it does in plain decoding, and takes the nodes of the draft trees all at once (`tree_mixers`); `keep` makes the
state after the accepted node. A module that writes its state in another way, or whose forward a program has replaced,
takes the nodes level by level, as single tokens that each start from the state of their parent; these states are kept
until one is chosen. So trees are verified like those of attention, and a row's state is what plain decoding computes
from the accepted tokens alone.

The layers of the cache that hold states, or an indexer's keys, beside keys and values are here, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.cache_utils import LinearAttentionLayer

from copyspec.targets.cpu.batch_invariant import BatchInvariant
from copyspec.targets.hooks.detours import detour, original
from copyspec.targets.hooks.recurrence import LayerParts, State, limits_prompts, mixers, read_state, write_state
from copyspec.targets.recurrent.paths import TOGETHER, Paths
from copyspec.targets.recurrent.tree_mixers import TreeRun, of_tokens, takes_trees
from copyspec.targets.rows.passes import PassCache, PassLayer
from copyspec.tree import ROOT

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.rows.passes import Pass
    from copyspec.tree import DraftTree

NODE_BYTES = 1 << 30
"""Memory for what is kept of the nodes of a pass until one is chosen: in Qwen3-Next 2 MB per node."""

Places = Sequence[Sequence[int]]
"""Tokens of a pass, [n, m]: m of each of n rows."""


class StateLayer(LinearAttentionLayer):
    """A layer of the cache that holds recurrent states alone."""

    is_initialized = False  # it has no keys and values


class StatePassLayer(LinearAttentionLayer, PassLayer):  # type: ignore[no-untyped-call, override]
    """A layer of the cache that holds recurrent states, and keys and values."""

    def __init__(self, cache: PassCache, number: int, number_of_states: int) -> None:
        PassLayer.__init__(self, cache, number)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
        self.is_initialized = True

    def lazy_initialization(self, *tensors: torch.Tensor, **states: Any) -> None:  # type: ignore[override]
        """As in transformers, keys and values come by place, and states by name."""
        if not tensors:
            LinearAttentionLayer.lazy_initialization(self, **states)


class IndexedPassLayer(PassLayer):  # type: ignore[no-untyped-call]
    """A layer of the cache that holds keys of an indexer beside keys and values."""

    def __init__(self, cache: PassCache, number: int) -> None:
        super().__init__(cache, number)
        self._index = PassLayer(cache, ~number)  # layers have other numbers

    def update_indexer(self, keys: torch.Tensor) -> torch.Tensor:
        """Write the pass's keys, [1, T, D]; return those of all slots in use, [1, K, D]."""
        index = keys.unsqueeze(1)
        return self._index.update(index, index[..., :0])[0].squeeze(1)


def add_layers(cache: PassCache, parts: Sequence[LayerParts]) -> None:
    """Let an empty cache have layers that hold these parts."""
    for number, part in enumerate(parts):
        if part.states:
            cache.layers.append(StatePassLayer(cache, number, part.states) if part.attends else StateLayer(part.states))
        else:
            cache.layers.append(IndexedPassLayer(cache, number) if part.indexes else PassLayer(cache, number))


@dataclass(slots=True)
class _Drafts:
    """The rows of a pass: which they are, its tokens, and the tree of each."""

    rows: Sequence[int]
    work: Pass
    trees: Sequence[DraftTree]
    prompts: Sequence[int]  # their lengths
    paths: Paths | None = None
    pieces: dict[int, list[Paths]] = field(default_factory=dict)  # of what rows read, by place

    def tree_paths(self, joins: Sequence[bool], device: torch.device) -> Paths:
        """The nodes of all rows, behind the uncached tokens of those rows that join; made once."""
        if self.paths is None:
            places, parents, spans = list[int](), list[int](), list[range]()
            for place, tree in enumerate(self.trees):
                read, first = self.read(place), len(places)
                places += range(read.start if joins[place] else read.stop, self.work.first[place + 1])
                parents += [at - 1 if at > first else -1 for at in range(first, len(places))]
                nodes = len(places) - len(tree.tokens)
                parents[nodes:] = [-1 if nodes == first and up < 0 else nodes + up for up in tree.parents]
                spans.append(range(first, len(places)))
            self.paths = self._paths(places, parents, spans, device)
        return self.paths

    def read_paths(self, place: int, device: torch.device) -> list[Paths]:
        """The uncached tokens of a row, in pieces, as time and memory grow by their square; made once."""
        if place not in self.pieces:
            read = self.read(place)
            cuts = [read[start : start + TOGETHER] for start in range(0, len(read), TOGETHER)]
            self.pieces[place] = [
                self._paths(cut, range(-1, len(cut) - 1), [range(len(cut))], device, place) for cut in cuts
            ]
        return self.pieces[place]

    def _paths(
        self,
        places: Sequence[int],
        parents: Sequence[int],
        spans: Sequence[range],
        device: torch.device,
        first: int = 0,
    ) -> Paths:
        """`first`: the row that the first span is of."""
        paths = Paths(places, parents, spans, device)
        of_rows = self.prompts[first : first + len(spans)]
        if any(map(int.__lt__, self.work.starts[first:], of_rows)):
            lengths = torch.tensor(of_rows)[paths.rows]
            paths.is_prompt = (torch.from_numpy(self.work.packed[1])[list(places)] < lengths).to(device)
        return paths

    def read(self, place: int) -> range:
        """The uncached tokens of a row, as places in the pass; its nodes follow."""
        first, last = self.work.first[place], self.work.first[place + 1]
        return range(first, last - len(self.trees[place].tokens))

    def is_prompt(self, place: int) -> bool:
        """Whether the first uncached token of a row is of its prompt: some mixers read single ones in another way."""
        return self.work.starts[place] < self.prompts[place]

    def levels(self, *, is_exact: bool) -> Sequence[list[tuple[int, int]]]:
        """The nodes of all trees by depth, as (place of the row, node). `is_exact`: one by one."""
        levels: list[list[tuple[int, int]]] = []
        for place, tree in enumerate(self.trees):
            for node, depth in enumerate(tree.depths()):
                if len(levels) < depth:
                    levels.append([])
                levels[depth - 1].append((place, node))
        return [[node] for level in levels for node in level] if is_exact else levels


class RecurrentStates:
    """The states of a session's rows, and of the nodes of the last pass."""

    def __init__(self, model: PreTrainedModel, cache: PassCache, *, is_exact: bool = False) -> None:
        """`is_exact`: let each token behind a state have the bits that it has in a pass of one token."""
        self._model, self._mixers, self._cache, self._is_exact = model, mixers(model), cache, is_exact
        self._rows: list[dict[int, State]] = []  # by mixer
        self._prompts: list[int] = []  # their lengths
        self._take_trees = [takes_trees(mixer) for _, mixer in self._mixers]
        self._nodes: list[dict[int, Callable[[int], State]]] = []  # of the last pass, by mixer: after ROOT or a node
        self._drafts: _Drafts

    @property
    def reads_pieces(self) -> bool:
        """Whether prompts read in pieces are those read at once: other mixers take what follows a state as single
        tokens of an output."""
        return all(self._take_trees) or not limits_prompts(self._model)

    @contextmanager
    def during(self, rows: Sequence[int], work: Pass, trees: Sequence[DraftTree]) -> Iterator[None]:
        """Let the model's mixers read and write the states of these rows while a pass runs."""
        self._drafts = _Drafts(rows, work, trees, [self._prompts[row] for row in rows])
        self._nodes = self._nodes or [{} for _ in self._rows]
        for row in rows:
            self._nodes[row] = {}
        with ExitStack() as detours:
            for number, (layer, mixer) in enumerate(self._mixers):
                stepped = self._stepped(number, mixer, self._cache.layers[layer])
                detours.enter_context(detour(mixer, "forward", stepped))
            yield

    def of_prompt(self, row: int, start: int, count: int) -> int:
        """How many of so many tokens after `start` cached ones stand before the last one of the row's prompt."""
        return max(0, min(count, self._prompts[row] - 1 - start))

    def of(self, row: int) -> list[State]:
        """The states of a row, by mixer."""
        return [self._rows[row][number] for number in range(len(self._mixers))]

    def begin(self, row: int, states: Sequence[State]) -> None:
        """Let a row that has none have these states."""
        self._rows[row] = dict(enumerate(states))

    def keep(self, row: int, node: int) -> None:
        """Make the states after this node of the last pass (ROOT: after the uncached tokens) the row's."""
        nodes, self._nodes[row] = self._nodes[row], {}
        with BatchInvariant() if self._is_exact else nullcontext():  # some states are computed only now
            for number, after in nodes.items():
                state = {key: value.clone() for key, value in after(node).items()}
                self._rows[row] = {**self._rows[row], number: state}

    def go_back(self, before: Sequence[int], wanted: Sequence[int]) -> list[int]:
        """The lengths to which rows of `before` tokens can be cut, at most the wanted ones: a state cannot go back, so
        that a row of which something is cut begins anew."""
        for row, (length, shorter) in enumerate(zip(before, wanted, strict=True)):
            if shorter < length:
                self._rows[row] = {}
        return [shorter if shorter == length else 0 for length, shorter in zip(before, wanted, strict=True)]

    @property
    def most_nodes(self) -> int:
        """How many nodes a row's tree may have, so that what is kept of all rows' nodes fits into NODE_BYTES."""
        first = self._rows[0] if self._rows else {}
        size = sum(self._kept(number, value) for number, state in first.items() for value in state.values())
        return max(1, NODE_BYTES // (size * len(self._rows))) if size else sys.maxsize

    def _kept(self, number: int, state: torch.Tensor) -> int:
        """Bytes that are kept of a node whose state is this one, [1, ..., A, B]: all of it, or the keys and the values
        that it is made of, in float32."""
        if not self._take_trees[number]:
            return state.nbytes
        return sum(4 * state.numel() // size for size in state.shape[-2:])

    def select(self, rows: Sequence[int]) -> None:
        self._rows, self._nodes = [self._rows[row] for row in rows], []
        self._prompts = [self._prompts[row] for row in rows]

    def add(self, prompts: Sequence[int]) -> None:
        """Append rows with prompts of so many tokens, which have no states yet."""
        self._rows, self._nodes = [*self._rows, *[{} for _ in prompts]], []
        self._prompts += prompts

    def _stepped(self, number: int, mixer: nn.Module, layer: object) -> Callable[..., Any]:
        """The mixer's forward with states by node."""
        forward = original(mixer, "forward")

        def stepped(*args: Any, **named: Any) -> Any:
            hidden: torch.Tensor = args[0] if args else named["hidden_states"]
            drafts, tokens = self._drafts, hidden.shape[1]
            outputs = _Outputs(tokens)

            def run(places: Places, states: Sequence[State], mix: Callable[..., Any] = forward) -> list[State]:
                """Run the mixer on some tokens of rows that have these states; return their new states."""
                write_state(layer, {key: torch.cat([state[key] for state in states]) for key in states[0]})
                index = torch.tensor(places, device=hidden.device)
                cut = partial(of_tokens, tokens, lambda values: values[0, index])
                outputs.put(mix(*map(cut, args), **{name: cut(value) for name, value in named.items()}), places)
                after = read_state(layer)
                return [{key: value[at : at + 1] for key, value in after.items()} for at in range(len(states))]

            nodes: list[list[State]] = [[] for _ in drafts.rows]

            def read_on(place: int, state: State) -> State:
                """The state of a row behind its uncached tokens, from that before them."""
                for paths in drafts.read_paths(place, hidden.device):
                    piece = TreeRun(paths)
                    run([[token] for token in paths.places], [state], piece.forward(mixer))
                    state = piece.state(len(paths.places) - 1, state)
                return state

            joins = [
                number in self._rows[row] and len(drafts.read(place)) <= TOGETHER
                for place, row in enumerate(drafts.rows)
            ]
            at_once = self._take_trees[number] and (any(map(len, drafts.trees)) or (self._is_exact and any(joins)))
            for rows in self._alike(number):
                if at_once and joins[rows[0]]:
                    continue
                read = [drafts.read(row) for row in rows]
                states = [self._rows[drafts.rows[row]].get(number, {}) for row in rows]
                count, has_state = len(read[0]), bool(states[0])
                if has_state and self._take_trees[number] and (count > 1 or drafts.is_prompt(rows[0])):
                    states = [read_on(row, state) for row, state in zip(rows, states, strict=True)]
                else:
                    step = 1 if has_state else count  # some mixers read several tokens from no state only
                    for start in range(0, count, step):
                        states = run([list(value[start : start + step]) for value in read], states)
                for row, state in zip(rows, states, strict=True):
                    nodes[row].append(state)
            taken = None
            if at_once:
                paths = drafts.tree_paths(joins, hidden.device)
                before = [
                    of_row[0] if of_row else self._rows[row][number]
                    for row, of_row in zip(drafts.rows, nodes, strict=True)
                ]
                taken = TreeRun(paths, is_exact=self._is_exact)
                run([[place] for place in paths.places], before, taken.forward(mixer))
            else:
                for level in drafts.levels(is_exact=self._is_exact):
                    parents = [nodes[row][1 + drafts.trees[row].parents[node]] for row, node in level]
                    after = run([[drafts.read(row).stop + node] for row, node in level], parents)
                    for (row, node), state in zip(level, after, strict=True):
                        nodes[row] += [{}] * (2 + node - len(nodes[row]))
                        nodes[row][1 + node] = state
            for place, row in enumerate(drafts.rows):
                self._nodes[row][number] = partial(_after, nodes[place])
                if taken is not None:
                    first = paths.spans[place].stop - len(drafts.trees[place].tokens)
                    self._nodes[row][number] = partial(_after_run, taken, first, before[place], bool(nodes[place]))
            return outputs.result()

        return stepped

    def _alike(self, number: int) -> list[list[int]]:
        """The rows of the pass, as places in it, that read their uncached tokens in one call: as many, from states or
        from none, of prompts or of outputs."""
        drafts, groups = self._drafts, dict[tuple[int, bool, bool], list[int]]()
        if self._is_exact:
            return [[place] for place in range(len(drafts.rows))]
        for place, row in enumerate(drafts.rows):
            alike = len(drafts.read(place)), number in self._rows[row], drafts.is_prompt(place)
            groups.setdefault(alike, []).append(place)
        return [*groups.values()]


def _after(states: Sequence[State], node: int) -> State:
    """The states after a node or ROOT. `states`: ROOT's first."""
    return states[1 + node]


def _after_run(run: TreeRun, first: int, before: State, is_root: bool, node: int) -> State:
    """The same of a run. `first`: the place of a row's first node among its tokens; `before`: the states that these
    follow, which may be ROOT's."""
    return before if is_root and node == ROOT else run.state(first + node, before)


class _Outputs:
    """What a mixer returns for all tokens of a pass, put together from calls for some."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._values: list[Any] = []
        self._is_tuple = False

    def put(self, mixed: Any, places: Places) -> None:
        """Add what it returned for these tokens: [n, m, ...], alone or several. Of other values the last counts."""
        self._is_tuple = isinstance(mixed, tuple)
        parts = [*mixed] if isinstance(mixed, tuple) else [mixed]
        self._values = self._values or [None] * len(parts)
        for number, part in enumerate(parts):
            if not isinstance(part, torch.Tensor):
                self._values[number] = part
                continue
            if self._values[number] is None:
                self._values[number] = part.new_zeros((1, self._tokens, *part.shape[2:]))
            self._values[number][0, torch.tensor(places, device=part.device)] = part

    def result(self) -> Any:
        return tuple(self._values) if self._is_tuple else self._values[0]
