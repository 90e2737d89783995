"""Sampling and drafting options of decoding, validated on construction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from copyspec.checks import brief, check_number, check_whole

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


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How much is drafted. It does not change the output under the default rule. Raises ValueError for a number out of
    range."""

    max_nodes: int = 32  # maximum draft nodes that one pass verifies; 0: plain decoding
    adaptive: bool = True  # fit the tree to the measured cost of a pass; False: always up to max_nodes

    def __post_init__(self) -> None:
        check_whole("max_draft_nodes", self.max_nodes, low=0, high=1024, why="0 decodes plainly")
