"""User-defined drafters (`drafter=`): the context that they are made with, and the merging of several drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from operator import index
from types import MappingProxyType

from copyspec.budget import Budget
from copyspec.common.checks import shown
from copyspec.drafters.base import Composite, Drafter, ScoredDraft, wanted_layers
from copyspec.drafters.predictors.base import PredictorFactory
from copyspec.sources import OUTPUT, Source
from copyspec.tree import EMPTY, ROOT, DraftTree, Origin, check_tree


@dataclass(frozen=True, slots=True)
class DraftContext:
    """The row that a drafter is made for, before its first output token."""

    prompt: Sequence[int]
    """Token ids of the prompt, as the model reads them."""
    sources: Sequence[Source]
    """The edit source, the references and the prompt, as token ids; `Origin.source` is an index into them."""
    eos_token_ids: frozenset[int]
    vocab_size: int
    encode: Callable[[str], list[int]]
    """Text to token ids, without special tokens."""
    decode: Callable[[Sequence[int]], str]


DrafterFactory = Callable[[DraftContext], Drafter]
"""Makes the drafter of one row; called once for each sample of each prompt, when its row begins."""


OwnDrafter = DrafterFactory | PredictorFactory
"""What `drafter=` takes beside names."""


def make_custom(factory: DrafterFactory, context: DraftContext) -> Drafter:
    """Return the factory's drafter. Raises TypeError if it lacks `propose` or `accept`."""
    drafter = factory(context)
    missing = [name for name in ("propose", "accept") if not callable(getattr(drafter, name, None))]
    if missing:
        raise TypeError(
            f"drafter={_name(factory)} returned {shown(drafter)}, which has no method {missing[0]!r}; a drafter has "
            "propose(budget) and accept(tokens), see copyspec.drafters.base.Drafter"
        )
    return drafter


class JoinedDrafter(Composite):
    """Merges the trees of several drafters: equal paths become one, and the most likely nodes are kept.

    This is the merge-based tree construction of SpecInfer (Miao et al. 2024, arXiv 2305.09781).
    """

    def __init__(
        self,
        own: Sequence[Drafter],
        vocab_size: int,
        builtin: Drafter | None = None,
        *,
        sources: Sequence[Source] = (),
        layers: int = 0,
    ) -> None:
        """Counters name the tokens of `own` drafters, except copies, after the class of each. `sources`: those that
        their origins name; `layers`: the target's number of layers that a drafter may want the states of."""
        self._parts = self._drafters = [*([builtin] if builtin is not None else []), *own]
        self._builtin = builtin
        self._vocab_size = vocab_size
        self._sources = sources
        self._layers = layers
        self._length = 0  # of the output

    @property
    def wanted_layers(self) -> Sequence[int]:
        """As `Drafter.wanted_layers`. Raises TypeError or ValueError for layers that the target does not have."""
        layers: set[int] = set()
        for drafter in self._drafters:
            wanted = wanted_layers(drafter)
            if not isinstance(wanted, (Sequence, set, frozenset)) or isinstance(wanted, str):
                raise TypeError(
                    f"{type(drafter).__name__}.wanted_layers is {shown(wanted)}; it must list layer numbers"
                )
            for layer in wanted:
                if not (isinstance(layer, Integral) and 0 <= layer < self._layers):
                    raise ValueError(
                        f"{type(drafter).__name__}.wanted_layers holds {shown(layer)}; the model has "
                        f"{self._layers} layers whose inputs can be read, numbered from 0"
                    )
                layers.add(int(layer))
        return sorted(layers)

    def begin(self, budget: Budget) -> None:
        """See `Drafter.begin`; drafters of callers have no such part."""
        if (begin := getattr(self._builtin, "begin", None)) is not None:
            begin(budget)

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most likely nodes of all drafts, at most `budget.max_nodes`."""
        if budget.max_nodes <= 0:
            return EMPTY
        trees = [self._checked(drafter, drafter.propose(budget), budget) for drafter in self._drafters]
        self.unmeasured = sum([float(getattr(drafter, "unmeasured", 0.0)) for drafter in self._drafters])
        return join(trees, budget.max_nodes)

    def accept(self, tokens: Sequence[int]) -> None:
        """Pass the accepted tokens on to every drafter."""
        self._length += len(tokens)
        for drafter in self._drafters:
            drafter.accept(tokens)

    def observe(self, scored: ScoredDraft) -> None:
        """Pass the target's logits on to every drafter that observes them, with a tree that none can change."""
        tree = scored.tree
        scored.tree = replace(
            tree,
            tokens=tuple(tree.tokens),
            parents=tuple(tree.parents),
            scores=tuple(tree.scores),
            origins=tuple(tree.origins),
            drafters=tree.drafters and tuple(tree.drafters),
        )
        super().observe(scored)

    def _checked(self, drafter: Drafter, tree: object, budget: Budget) -> DraftTree:
        """Return `tree` if it is valid, that of a custom drafter as a copy that the drafter cannot change any more.

        Raises TypeError or ValueError, which names the drafter and the defect."""
        name = type(drafter).__name__
        if not isinstance(tree, DraftTree):
            raise TypeError(f"{name}.propose returned {shown(tree)}; it must return a DraftTree, also for no draft")
        try:
            check_tree(tree, self._vocab_size)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} proposed an invalid draft tree: {error}") from error
        if drafter is self._builtin:
            return tree
        wrong = self._fault(tree, budget)
        if wrong is not None:
            raise ValueError(f"{name} proposed an invalid draft tree: {wrong}")
        return _named(_frozen(tree), name)

    def _fault(self, tree: DraftTree, budget: Budget) -> str | None:
        """What is wrong with the size, tokens, scores, origins or drafters of a tree of sound shape; None if nothing
        is."""
        if tree.notes is not None:  # other trees are cut, which would bias a rule that reads these
            if not isinstance(tree.notes, Mapping) or not all(node in range(ROOT, len(tree)) for node in tree.notes):
                return f"notes must map nodes of the tree, or {ROOT}, to what the rule reads; got {shown(tree.notes)}"
            if len(tree) > budget.max_nodes:
                return f"it has notes and {len(tree)} nodes; budget.max_nodes is {budget.max_nodes}"
        depths = tree.depths() if any(tree.origins) else [0] * len(tree)
        for node, (token, score, origin) in enumerate(zip(tree.tokens, tree.scores, tree.origins, strict=True)):
            if type(token) is not int and not hasattr(token, "__index__"):
                return f"node {node} has token {shown(token)}, which is no integer"
            if not (type(score) is float or isinstance(score, Real)) or not 0.0 <= score <= 1.0:
                return (
                    f"node {node} has score {score if isinstance(score, Real) else shown(score)}; a score is a number, "
                    "the estimated probability that the path to the node is accepted, from 0 to 1"
                )
            if origin is not None and (wrong := self._origin_fault(origin, depths[node])) is not None:
                return f"node {node} has origin {shown(origin)}; {wrong}"
        strange = next((name for name in tree.drafters or () if not (name is None or isinstance(name, str))), None)
        return None if strange is None else f"drafters holds {shown(strange)}; each is a name or None"

    def _origin_fault(self, origin: object, depth: int) -> str | None:
        """What is wrong with the origin of a node at `depth`."""
        if not (isinstance(origin, Origin) and all(type(part) is int or isinstance(part, Integral) for part in origin)):
            return "an origin is None or an Origin(source, offset) of two integers"
        source, offset = origin
        if not (source == OUTPUT or 0 <= source < len(self._sources)):
            return f"the row has {len(self._sources)} sources, numbered from 0, and its output, {OUTPUT}"
        length = self._length + depth - 1 if source == OUTPUT else len(self._sources[source].tokens)
        return None if 0 <= offset < length else f"that source holds {length} tokens before the node"


def _frozen(tree: DraftTree) -> DraftTree:
    """A copy of plain numbers in tuples, so that the drafter may go on using its lists, arrays or tensors; notes are
    not copied themselves."""
    return DraftTree(
        tuple(map(index, tree.tokens)),
        tuple(map(index, tree.parents)),
        tuple(map(float, tree.scores)),
        tuple(tree.origins),
        None if tree.notes is None else MappingProxyType(dict(tree.notes)),
        None if tree.drafters is None else tuple(tree.drafters),
    )


def _named(tree: DraftTree, name: str) -> DraftTree:
    if tree.drafters is not None or not len(tree):
        return tree
    return replace(tree, drafters=[name if origin is None else None for origin in tree.origins])


def join(trees: Sequence[DraftTree], max_nodes: int) -> DraftTree:
    """Merge `trees` and keep the `max_nodes` most likely nodes, most likely chain first.

    If a tree has notes for the rule, the first such tree is returned unchanged."""
    proposing = [tree for tree in trees if len(tree)]
    if not proposing:
        return EMPTY
    if (noted := next((tree for tree in proposing if tree.notes), None)) is not None:
        return noted  # a rule may need all that was drawn: dropping a token because of its value would bias it
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    origins: list[Origin | None] = []
    drafters: list[str | None] = []
    known: dict[tuple[int, int], int] = {}
    for tree in proposing:
        place = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            above, score = place[parent], tree.scores[node]
            joined = known.setdefault((above, token), len(tokens))
            if joined == len(tokens):
                tokens.append(token)
                parents.append(above)
                scores.append(score)
                origins.append(tree.origins[node])
                drafters.append(tree.drafters[node] if tree.drafters is not None else None)
            elif score > scores[joined]:
                scores[joined], origins[joined] = score, origins[joined] or tree.origins[node]
            place[node] = joined
    for node, parent in enumerate(parents):  # a later tree may have raised a child's score above its parent's
        scores[node] = min(scores[node], 1.0 if parent == ROOT else scores[parent])
    likeliest = sorted(range(len(parents)), key=lambda node: (-scores[node], node))[:max_nodes]
    order = _likeliest_chain_first(parents, set(likeliest), scores)
    return DraftTree(tokens, parents, scores, origins, drafters=drafters).in_order(order)


def _likeliest_chain_first(parents: Sequence[int], nodes: set[int], scores: Sequence[float]) -> list[int]:
    """Order the kept nodes: the most likely chain first, and every parent before its children.

    Unlike those of `tree.chain_first_order`, merged nodes are in no order of likelihood: scores are compared."""
    chain: list[int] = []
    node = ROOT
    while children := [child for child in nodes if parents[child] == node]:
        node = max(children, key=lambda child: (scores[child], -child))
        chain.append(node)
    rest = sorted(nodes.difference(chain))
    return [*chain, *rest]


def _name(factory: object) -> str:
    return getattr(factory, "__name__", None) or type(factory).__name__
