"""States of recurrent layers, row by row and node by node, so that rejected drafts leave no trace in them.

In a pass, each module that keeps a state (a gated delta rule, Mamba, a short convolution) reads the uncached tokens as
it does in plain decoding. The nodes of a draft tree follow level by level, as single tokens that each start from the
state of their parent, and the state after each is kept until `keep` has chosen one. The projections around the
recurrence, which hold most of the weights, are computed for all nodes at once. So trees are verified like those of
attention, and a row's state is what plain decoding computes from the accepted tokens alone. A gated delta rule takes
all tokens of a pass at once instead (`hooks.delta_rule`), and makes a state only of the accepted node.

The layers of the cache that hold states, or an indexer's keys, beside keys and values are here, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.cache_utils import LinearAttentionLayer

from copyspec.targets.detours import detour, original
from copyspec.targets.hooks.delta_rule import CONV, RECURRENT, Paths, TreeRule, follows_rule
from copyspec.targets.hooks.recurrence import LayerParts, State, mixers, read_state, write_state
from copyspec.targets.passes import PassCache, PassLayer
from copyspec.tree import ROOT

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.passes import Pass
    from copyspec.tree import DraftTree

NODE_BYTES = 1 << 29
"""Memory for states after the nodes of a pass: 7 nodes of a layer's 2 MB in 36 layers, as of Qwen3-Next."""

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
    for number, each in enumerate(parts):
        if each.states:
            cache.layers.append(StatePassLayer(cache, number, each.states) if each.attends else StateLayer(each.states))
        else:
            cache.layers.append(IndexedPassLayer(cache, number) if each.indexes else PassLayer(cache, number))


@dataclass(slots=True)
class _Drafts:
    """The rows of a pass: which they are, its tokens, and the tree of each."""

    rows: Sequence[int]
    work: Pass
    trees: Sequence[DraftTree]
    paths: Paths | None = None

    def tree_paths(self, has_state: Sequence[bool], device: torch.device) -> Paths:
        """The nodes of all rows, behind the uncached tokens of those that have a state; made once."""
        if self.paths is None:
            places, parents, spans = list[int](), list[int](), list[range]()
            for place, tree in enumerate(self.trees):
                read, first = self.read(place), len(places)
                places += range(read.start if has_state[place] else read.stop, self.work.first[place + 1])
                parents += [at - 1 if at > first else -1 for at in range(first, len(places))]
                nodes = len(places) - len(tree.tokens)
                parents[nodes:] = [-1 if nodes == first and up < 0 else nodes + up for up in tree.parents]
                spans.append(range(first, len(places)))
            self.paths = Paths(places, parents, spans, device)
        return self.paths

    def read(self, place: int) -> range:
        """The uncached tokens of a row, as places in the pass; its nodes follow."""
        first, last = self.work.first[place], self.work.first[place + 1]
        return range(first, last - len(self.trees[place].tokens))

    def nodes(self) -> list[int]:
        """The nodes of all rows, as places in the pass."""
        return [
            token
            for place in range(len(self.rows))
            for token in range(self.read(place).stop, self.work.first[place + 1])
        ]

    def levels(self) -> Sequence[list[tuple[int, int]]]:
        """The nodes of all trees by depth, as (place of the row, node)."""
        levels: list[list[tuple[int, int]]] = []
        for place, tree in enumerate(self.trees):
            for node, depth in enumerate(tree.depths()):
                if len(levels) < depth:
                    levels.append([])
                levels[depth - 1].append((place, node))
        return levels


class RecurrentStates:
    """The states of a session's rows, and of the nodes of the last pass."""

    def __init__(self, model: PreTrainedModel, cache: PassCache) -> None:
        self._mixers, self._cache = mixers(model), cache
        self._rows: list[dict[int, State]] = []  # by mixer
        self._follow_rule = [follows_rule(mixer) for _, mixer in self._mixers]
        self._nodes: list[dict[int, Callable[[int], State]]] = []  # of the last pass, by mixer: after ROOT or a node
        self._drafts: _Drafts

    @contextmanager
    def during(self, rows: Sequence[int], work: Pass, trees: Sequence[DraftTree]) -> Iterator[None]:
        """Let the model's mixers read and write the states of these rows while a pass runs."""
        self._drafts = _Drafts(rows, work, trees)
        self._nodes = self._nodes or [{} for _ in self._rows]
        for row in rows:
            self._nodes[row] = {}
        with ExitStack() as detours:
            for number, (layer, mixer) in enumerate(self._mixers):
                stepped = self._stepped(number, mixer, self._cache.layers[layer])
                detours.enter_context(detour(mixer, "forward", stepped))
            yield

    def keep(self, row: int, node: int) -> None:
        """Make the states after this node of the last pass (ROOT: after the uncached tokens) the row's."""
        nodes, self._nodes[row] = self._nodes[row], {}
        for number, after in nodes.items():
            self._rows[row] = {**self._rows[row], number: {key: each.clone() for key, each in after(node).items()}}

    def go_back(self, before: Sequence[int], wanted: Sequence[int]) -> list[int]:
        """The lengths to which rows of `before` tokens can be cut, at most the wanted ones: a state cannot go back, so
        that a row of which something is cut begins anew."""
        for row, (length, shorter) in enumerate(zip(before, wanted, strict=True)):
            if shorter < length:
                self._rows[row] = {}
        return [shorter if shorter == length else 0 for length, shorter in zip(before, wanted, strict=True)]

    @property
    def most_nodes(self) -> int:
        """How many nodes a row's tree may have, so that the states after all of them fit into NODE_BYTES."""
        rows = self._rows[:1]
        size = sum(
            each.nbytes
            for row in rows
            for number, states in row.items()
            if not self._follow_rule[number]
            for each in states.values()
        )
        return max(1, NODE_BYTES // (size * len(self._rows))) if size else sys.maxsize

    def select(self, rows: Sequence[int]) -> None:
        self._rows, self._nodes = [self._rows[row] for row in rows], []

    def add(self, count: int) -> None:
        """Append so many rows, which have no states yet."""
        self._rows, self._nodes = [*self._rows, *[{} for _ in range(count)]], []

    def _stepped(self, number: int, mixer: nn.Module, layer: object) -> Callable[..., Any]:
        """The mixer's forward with states by node."""
        forward = original(mixer, "forward")

        def stepped(*args: Any, **named: Any) -> Any:
            hidden: torch.Tensor = args[0] if args else named["hidden_states"]
            drafts, tokens = self._drafts, hidden.shape[1]
            linears, outputs = _Projections(mixer), _Outputs(tokens)

            def run(
                places: Places, states: Sequence[State], mix: Callable[..., Any] = forward
            ) -> tuple[Any, list[State]]:
                """Run the mixer on some tokens of rows that have these states; also return their new states."""
                write_state(layer, {key: torch.cat([each[key] for each in states]) for key in states[0]})
                index = torch.tensor(places, device=hidden.device)
                part = hidden[0, index]
                linears.input = part
                more = [part, *(_cut(each, tokens, index) for each in args[1:])] if args else []
                by_name = {name: part if each is hidden else _cut(each, tokens, index) for name, each in named.items()}
                mixed = mix(*more, **by_name)
                after = read_state(layer)
                return mixed, [{key: each[at : at + 1] for key, each in after.items()} for at in range(len(states))]

            nodes: list[list[State]] = [[] for _ in drafts.rows]
            drafted = drafts.nodes()
            has_state = [number in self._rows[row] for row in drafts.rows]
            at_once = bool(drafted) and self._follow_rule[number]
            for rows in self._alike(number):
                if at_once and has_state[rows[0]]:
                    continue
                read = [drafts.read(row) for row in rows]
                states = [self._rows[drafts.rows[row]].get(number, {}) for row in rows]
                # Some mixers read several tokens from no state only.
                step = 1 if states[0] else len(read[0])
                for start in range(0, len(read[0]), step):
                    places = [list(each[start : start + step]) for each in read]
                    with linears.watched():
                        mixed, states = run(places, states)
                    linears.note_output(mixed)
                    outputs.put(mixed, places)
                for row, state in zip(rows, states, strict=True):
                    nodes[row].append(state)
            if at_once:
                paths = drafts.tree_paths(has_state, hidden.device)
                before = [
                    of_row[0] if of_row else self._rows[row][number]
                    for row, of_row in zip(drafts.rows, nodes, strict=True)
                ]
                rule = TreeRule(paths, *(torch.cat([each[key] for each in before]) for key in (CONV, RECURRENT)))
                alone = [[place] for place in paths.places]
                outputs.put(run(alone, before, rule.forward(mixer))[0], alone)
                for place, (row, span) in enumerate(zip(drafts.rows, paths.spans, strict=True)):
                    self._nodes[row][number] = partial(
                        _after, rule, span.stop - len(drafts.trees[place].tokens), nodes[place]
                    )
                return outputs.result()
            if drafted:
                with linears.at_once(hidden[:, drafted]) as last:
                    results = outputs if last is None else _Outputs(tokens)
                    for level in drafts.levels():
                        places = [[drafts.read(row).stop + node] for row, node in level]
                        linears.nodes = [drafted.index(place) for (place,) in places]
                        parents = [nodes[row][1 + drafts.trees[row].parents[node]] for row, node in level]
                        mixed, states = run(places, parents)
                        results.put(mixed, places)
                        for (row, node), state in zip(level, states, strict=True):
                            nodes[row] += [{}] * (2 + node - len(nodes[row]))
                            nodes[row][1 + node] = state
                if last is not None:
                    outputs.put(last(results.result()[:, drafted]), [drafted])
            for row, of_row in zip(drafts.rows, nodes, strict=True):
                self._nodes[row][number] = partial(_after, None, 0, of_row)
            return outputs.result()

        return stepped

    def _alike(self, number: int) -> list[list[int]]:
        """The rows of the pass, as places in it, that read their uncached tokens in one call: as many, from states or
        from none."""
        groups: dict[tuple[int, bool], list[int]] = {}
        for place, row in enumerate(self._drafts.rows):
            groups.setdefault((len(self._drafts.read(place)), number in self._rows[row]), []).append(place)
        return [*groups.values()]


def _after(rule: TreeRule | None, first: int, states: Sequence[State], node: int) -> State:
    """The states after a node or ROOT. `first`: the place of a row's first node among the tokens of its rule; `states`:
    those that are there already, ROOT's first."""
    return states[1 + node] if rule is None or (states and node == ROOT) else rule.state(first + node)


def _cut(value: Any, tokens: int, index: torch.Tensor) -> Any:
    """Some tokens, [n, m], of an argument with a number for each token of the pass, [1, T, ...]: [n, m, ...]. Others
    are returned as they are."""
    if isinstance(value, tuple):
        return tuple(_cut(each, tokens, index) for each in value)
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.shape[:2] != (1, tokens):
        return value
    return value[0, index]


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


class _Projections:
    """The linear layers at the beginning and the end of a mixer. They are found by watching a call: those that are
    given its very input, and the one whose output it returns."""

    def __init__(self, mixer: nn.Module) -> None:
        self.input: torch.Tensor | None = None  # of the call that runs
        self.nodes: list[int] = []  # of a call for a level, among all nodes
        self._linears = [each for each in mixer.modules() if type(each) is nn.Linear]
        self._first: list[nn.Linear] = []
        self._last: nn.Linear | None = None
        self._called: tuple[nn.Linear, torch.Tensor] | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note which linear layers are given the input while the context is active."""
        self._first = []
        with ExitStack() as detours:
            for linear in self._linears:
                detours.enter_context(detour(linear, "forward", self._watching(linear)))
            yield

    def _watching(self, linear: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
        forward = original(linear, "forward")

        def watching(given: torch.Tensor) -> torch.Tensor:
            if given is self.input:
                self._first.append(linear)
            result: torch.Tensor = forward(given)
            self._called = linear, result
            return result

        return watching

    def note_output(self, output: Any) -> None:
        """Note whether the mixer's output was that of the linear layer that was called last."""
        self._last = self._called[0] if self._called is not None and self._called[1] is output else None

    @contextmanager
    def at_once(self, drafted: torch.Tensor) -> Iterator[Callable[[torch.Tensor], torch.Tensor] | None]:
        """Replace these linear layers while nodes are run level by level: the first ones are computed for all nodes,
        [1, M, D], and the last one is left for the end and returned, if there is one."""
        with ExitStack() as detours:
            for linear in dict.fromkeys(self._first):
                product = original(linear, "forward")(drafted)
                detours.enter_context(
                    detour(linear, "forward", lambda given, product=product: product[0, self.nodes].unsqueeze(1))
                )
            if self._last is None:
                yield None
                return
            last = original(self._last, "forward")
            detours.enter_context(detour(self._last, "forward", lambda given: given))
            yield last
