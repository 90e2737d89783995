"""Options of decoding: how tokens are picked, how much is drafted, and passes with static shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from copyspec.common.checks import brief, check_number, check_whole

# Beyond these, scores leave the range of float32: below the minimum sampling is greedy, above the maximum uniform.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1e6
MAX_PENALTY = 1e6  # for the same reason


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How one row's tokens are picked from the target's logits; greedy by default. Raises ValueError with the option,
    its value and the valid range."""

    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # 1: off; penalises the ids that plain decoding would have seen
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> value added to its logit
    seed: int = 0  # seed of the position-keyed noise
    sample: int = 0  # index among several samples of one prompt; selects another noise sequence
    is_greedy: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_greedy", self.temperature == 0.0)
        if self.temperature != 0 or isinstance(self.temperature, bool):
            check_number("temperature", self.temperature, low=MIN_TEMPERATURE, high=MAX_TEMPERATURE, why="or 0: greedy")
        check_whole("top_k", self.top_k, low=0, why="0 turns it off")
        check_number("top_p", self.top_p, low=0.0, high=1.0, open_low=True, why="1 turns it off")
        check_number("min_p", self.min_p, low=0.0, high=1.0, why="0 turns it off")
        check_number(
            "repetition_penalty",
            self.repetition_penalty,
            low=0.0,
            high=MAX_PENALTY,
            open_low=True,
            why="1 turns it off",
        )
        check_whole("seed", self.seed, low=0)
        if not isinstance(self.logit_bias, Mapping):
            raise ValueError(f"logit_bias must map token ids to numbers, got {brief(self.logit_bias)}")
        for token, bias in self.logit_bias.items():
            check_whole("logit_bias: a token id", token, low=0)
            check_number(f"logit_bias[{token}]", bias, low=-math.inf, high=math.inf)


START_NODES = 32
"""Draft nodes of a row that may be asked for at any time."""

CHEAP_NODES = 64
"""Draft nodes of a row that may be asked for where passes are so cheap that half as many were verified last: trees of
more gain little."""

MOST_NODES = 1024
"""Draft nodes that one pass verifies at most. A row gets more than CHEAP_NODES only while long drafts are right."""


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How much is drafted. It does not change the output under the default rule. Raises ValueError for a number out of
    range."""

    max_nodes: int | None = None
    """Maximum draft nodes that one pass verifies for a row; 0: plain decoding. None: START_NODES, twice what was
    verified last, up to CHEAP_NODES, and twice what was accepted last, up to MOST_NODES."""
    adaptive: bool = True  # fit the tree to the measured cost of a pass; False: always up to the maximum

    def __post_init__(self) -> None:
        if self.max_nodes is not None:
            check_whole("max_draft_nodes", self.max_nodes, low=0, high=MOST_NODES, why="0 decodes plainly")


Runner = Literal["eager", "static", "graph", "compiled", "compiled graph"]
"""How a pass is run: by the model with dynamic shapes ("eager"), by the static program operator by operator, by
replaying a captured program, and the last two with the program compiled."""


class CapturedGraph(Protocol):
    """Records the operations run inside its `capture` context; `replay` repeats them on the same memory."""

    def capture(self) -> AbstractContextManager[object]: ...

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """When and how a model's forward passes use static shapes. Outputs differ by rounding at most; `exact` removes the
    rounding differences between passes of different shapes."""

    use: Literal["auto", "always", "never"] = "auto"
    """`"auto"`: static passes on CUDA devices only, where they take a half or less of the time (docs/gpu.md)."""

    attention: Literal["auto", "masks", "tree"] = "auto"
    """`"tree"`: this project's own attention, without a mask over the whole context; a Triton kernel on CUDA. `"auto"`:
    that on CUDA devices where Triton runs, except with `exact` or `compile`."""

    fuse: bool = True  # run what is between the products of Llama-like layers in few kernels (not with `compile`)
    graphs: bool | None = None  # capture programs and replay them; None: on CUDA devices
    compile: bool = False  # compile the program with torch.compile: minutes for the first passes, then fewer kernels
    exact: bool = False
    """One shape for all passes: half-precision outputs equal those of plain decoding in exact mode. Of models with
    recurrent states, in float32 on a CPU: each token has the bits that it has alone, in passes of any shape."""

    new_graph: Callable[[], CapturedGraph] | None = None  # creates graphs; lets tests capture on a CPU
    compiler: str = "inductor"  # torch.compile's backend

    def verify(self) -> None:
        """Raise ValueError with the option, its value and the valid values."""
        if self.use not in ("auto", "always", "never"):
            raise ValueError(f'use must be "auto", "always" or "never", got {self.use!r}')
        if self.attention not in ("auto", "masks", "tree"):
            raise ValueError(f'attention must be "auto", "masks" or "tree", got {self.attention!r}')
        options = {name: "True" for name in ("graphs", "compile", "exact") if getattr(self, name)}
        options |= {"attention": f'"{self.attention}"'} if self.attention != "auto" else {}
        for name, value in options.items():
            if self.use == "never":
                raise ValueError(f'{name}={value} needs static passes: give use="auto" or use="always" too')
