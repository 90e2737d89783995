"""A target whose sessions use static shapes where the model allows it, and regular sessions otherwise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast
from weakref import proxy

import torch

from copyspec.common.forks import fork_safe
from copyspec.common.lockless import LiveSet
from copyspec.options import StaticOptions
from copyspec.targets.hooks.attention import masked_attention, without_cudnn_attention
from copyspec.targets.hooks.model_state import ModelState
from copyspec.targets.hooks.recurrence import LayerParts
from copyspec.targets.model.facts import read_facts, training_error
from copyspec.targets.selftest import checking as selftest
from copyspec.targets.static import tree_attention
from copyspec.targets.static.buffers import CacheLayout
from copyspec.targets.static.fused_layers import FusedLayer, fused, fused_layers
from copyspec.targets.static.layout import Shape
from copyspec.targets.static.pools import FreePools, PagePool, PoolSize
from copyspec.targets.static.program import StaticProgram, enter_causal, enter_encoder_decoder
from copyspec.targets.static.refusals import DynamicTarget, attention_refusal, fusing_refusal, refusal
from copyspec.targets.static.running import Captures, ProgramRunner
from copyspec.targets.static.settings import PREFILL_TOKENS, QUERIES
from copyspec.targets.static.static_session import EncoderSession, StaticSession
from copyspec.targets.static.triton_kernels import kernels_run
from copyspec.tree import EMPTY

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Session
    from copyspec.targets.model.facts import ModelFacts
    from copyspec.targets.rows.prefixes import PrefixSession

logger = logging.getLogger(__name__)


class StaticTarget:
    """Wraps another target, which provides the sessions where static passes are not possible."""

    def __init__(self, inner: DynamicTarget, options: StaticOptions | None = None, *, is_checked: bool = False) -> None:
        """`is_checked`: skip the self-test of architectures that this project's tests do not cover."""
        self.inner, self.model = inner, inner.model
        self.supports_drafts, self.supports_trees = inner.supports_drafts, inner.supports_trees
        self.is_encoder_decoder, self.is_recurrent = inner.is_encoder_decoder, inner.is_recurrent
        self.vocab_size, self.max_length, self.encoder_length = inner.vocab_size, inner.max_length, inner.encoder_length
        self.options = options or StaticOptions()
        self.options.verify()
        self.pools = FreePools()
        self._is_checked = is_checked
        self._layout: CacheLayout | None = None
        self.state: ModelState | None = None
        """State of the model when its programs were made."""
        self._runners: LiveSet[ProgramRunner] = LiveSet()
        self._captures = Captures()
        self._refused: str | None = None
        self._is_dynamic = False  # whether open sessions are dynamic for the sake of a drafter
        self.uses_tree_attention = False
        self._tree_attention_works: bool | None = None  # None: not tried yet
        self._fused_layers_work: bool | None = None
        self._failures: dict[str, str | None] = {}  # by kind of attention: what `_failure` found
        self._fused: Sequence[FusedLayer] = ()
        self._sessions: LiveSet[Session] = LiveSet()
        self._lock = fork_safe(threading.RLock())

    @property
    def facts(self) -> ModelFacts:
        return self.inner.facts

    @property
    def keeps_states(self) -> bool:
        return self.inner.keeps_states and not self.options.compile

    @property
    def device(self) -> torch.device:
        return self.inner.device

    @property
    def layers_by(self) -> str:
        return f"fused ({len(self._fused)})" if self._fused else self.inner.layers_by

    def start(self, prompt: Sequence[int]) -> list[int]:
        return self.inner.start(prompt)

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        """Open a static session or one of the inner target. All sessions open at the same time are of one kind, so that
        they can join: the first decides. Compiled passes keep no states: where those are wanted, the inner target's
        are made, unless static ones were asked for. Under autocast, all are the inner target's: it keeps copies of
        weights that a graph would read after they were freed."""
        if self.model.training:
            raise training_error(self.model)
        if _is_autocast(self.device):
            return self.inner.open(prompts, new_tokens)
        with self._lock:
            is_changed = self._check_state()
            if self.options.use == "auto" and self.device.type != "cuda":  # the model was moved
                return self.inner.open(prompts, new_tokens)
            if not any([len(session.lengths) for session in self._sessions]):  # none is open
                options = self.options
                self._is_dynamic = keeps_states and options.compile and options.use == "auto" and not options.exact
                self._decide(self._refusal() or self._failure("masks"))
            elif is_changed and self._refused is None:
                self._fused = self._fusible()
            if self._refused is None and not self._is_dynamic:
                session: Session = StaticSession(self, prompts, new_tokens)
            else:
                session = self.inner.open(prompts, new_tokens)
            self._sessions.add(session)
            return session

    def refresh(self) -> None:
        if self.model.training:
            raise training_error(self.model)
        with self._lock:
            if self._check_state() and self._refused is None:
                self._fused = self._fusible()

    def encoder_session(self, prompts: Sequence[Sequence[int]]) -> EncoderSession | None:
        return cast("EncoderSession", self.inner.open(prompts)) if self.is_encoder_decoder else None

    def layout(self) -> CacheLayout:
        if self._layout is None:
            session = self.inner.open([[0]])
            session.score([[0]], [EMPTY])
            session.keep([[]])
            cached, parts = cast("PrefixSession", session), self.inner.layer_parts
            layers = cached.read(0, 0, 1)
            if not parts and None in layers:
                raise ValueError("some of its layers keep no keys and values of their own")
            attending = {number for number, layer in enumerate(layers) if layer is not None}
            parts = [LayerParts(part.states, attends=number in attending) for number, part in enumerate(parts)]
            self._layout = CacheLayout([layer for layer in layers if layer is not None], parts, cached.states(0))
            session.close()
        return self._layout

    def pool(self, size: PoolSize) -> PagePool:
        return self.pools.take(size, lambda size: PagePool(size, self._runner))

    @property
    def tile(self) -> int:
        """Tokens that a unit of attention has at most: so many that their queries fill a program. In exact mode one,
        whose sums are the same in any tree and batch."""
        if self.options.exact:
            return 1
        config = self.model.config.get_text_config(decoder=True)
        heads, planes = int(getattr(config, "num_attention_heads", 0) or 1), self.layout().planes
        return max(1, QUERIES * planes[0][0].kind.heads // heads) if planes else PREFILL_TOKENS

    def _runner(self, pool: PagePool) -> ProgramRunner:
        facts, model = self.facts, self.model
        # Cycles would keep the memory of a target that is no longer used until garbage is collected.
        target, pool, ranges = proxy(self), proxy(pool), pool.cross_ranges
        enter = enter_causal(model, facts)
        if pool.cross is not None:
            enter = enter_encoder_decoder(model, facts, pool.cross, ranges)

        def make(shape: Shape) -> StaticProgram:
            return StaticProgram(
                enter,
                model,
                facts,
                pool.key_values,
                pool.block_table,
                shape,
                target.tile,
                states=pool.states,
                tree_attention=target.uses_tree_attention,
                compiled=target.options.compile,
            )

        runner = ProgramRunner(
            make,
            facts.device,
            self.options,
            lambda: target._entered(),  # a method would refer to the target
            lambda: target._may_capture(),
            self._captures,
        )
        self._runners.add(runner)
        return runner

    @contextmanager
    def _entered(self) -> Iterator[None]:
        attention = masked_attention(self.model, self.facts.configs, self._attention())
        with attention, fused(self._fused), without_cudnn_attention(self.facts.device):
            yield

    def _wants_tree_attention(self) -> bool:
        options = self.options
        if options.attention != "auto":
            return options.attention == "tree"
        return options.exact or (not options.compile and kernels_run(self.device))

    def _attention(self) -> str | None:
        return tree_attention.NAME if self.uses_tree_attention else self.facts.attention

    def _check_state(self) -> bool:
        """Drop captured programs if what they hold has changed: the addresses of weights, or what modules run, by
        hooks, other forwards or adapters. Returns whether it has."""
        state = ModelState(self.model)
        if state == self.state:
            return False
        self.pools.clear()
        for runner in self._runners:
            runner.forget()
        self.state, self._layout = state, None
        self._tree_attention_works = self._fused_layers_work = None
        self._failures.clear()
        self._captures.are_possible = True
        return True

    def _may_capture(self) -> bool:
        """Whether the model is what it was when sessions were opened: a capture of anything else would outlive it."""
        return ModelState(self.model) == self.state and refusal(self.inner) is None

    def _refusal(self) -> str | None:
        """Why passes of this model cannot be static with these options; None if no reason is known."""
        options = self.options
        if self.is_recurrent and (options.exact or options.compile):
            mode = "exact mode in float32 on a CPU alone" if options.exact else "no torch.compile"
            return f"{type(self.model).__name__} keeps recurrent states, of which there is {mode}"
        return refusal(self.inner)

    def _failure(self, attention: Literal["masks", "tree"]) -> str | None:
        """Why static passes do not match `generate`; None if they do, or are known to. Tested once for each state of
        the model."""
        if self._is_checked:
            return None
        if attention not in self._failures:
            known = selftest.is_known(self.model)
            self._failures[attention] = None if known else self._test(attention)
        return self._failures[attention]

    def _test(self, attention: Literal["masks", "tree"]) -> str | None:
        options = StaticOptions(use="always", graphs=False, attention=attention)
        tested = list[StaticTarget]()

        def make(model: PreTrainedModel) -> StaticTarget:
            kind: Any = type(self.inner)
            tested.append(StaticTarget(kind(model, read_facts(model)), options, is_checked=True))
            return tested[-1]

        try:
            failure = selftest.attempt(make, self.model, kind=f"static {attention}")
        finally:
            for target in tested:
                target.pools.close()
        if failure is None:
            return None
        return f"{type(self.model).__name__} has no static passes that score like plain decoding ({failure})"

    def _decide(self, reason: str | None) -> None:
        if reason is not None and reason != self._refused:
            logger.warning("%s; its passes have no static shapes", reason)
        self._refused = reason
        if reason is None and self._tree_attention_works is None and self._wants_tree_attention():
            why = attention_refusal(self.inner, self.layout()) or self._failure("tree")
            if why is not None:
                logger.warning("%s; its attention takes masks", why)
            self._tree_attention_works = why is None
        self.uses_tree_attention = bool(self._tree_attention_works)
        if self.options.exact and reason is None and not self.uses_tree_attention:
            self._refused = f"{type(self.model).__name__} has no exact mode, whose attention does not take masks"
            logger.warning("%s; its passes have no static shapes", self._refused)
        self._fused = self._fusible() if reason is None else ()

    def _fusible(self) -> Sequence[FusedLayer]:
        """The layers that run with few kernels: those of models of Llama's kind whose scores stay the same."""
        if not self.options.fuse or self.options.compile or self._fused_layers_work is False:
            return ()
        layers = fused_layers(self.model, self.device)
        if layers and self._fused_layers_work is None:
            why = fusing_refusal(self.inner, self.layout(), self._attention(), layers)
            if why is not None:
                logger.warning("%s; its layers run as they are", why)
            self._fused_layers_work = why is None
        return layers if self._fused_layers_work else ()


def _is_autocast(device: torch.device) -> bool:
    return device.type in ("cuda", "cpu") and torch.is_autocast_enabled(device.type)
