"""Looks up a verification rule by name. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from copyspec.checks import brief
from copyspec.options import SamplingOptions
from copyspec.verification.classic.lossy import BiLD, Lenience, TopKGap, Typical
from copyspec.verification.classic.rules import Coupled, Greedy, KSequential, MultiStep, Rejection, Rule

_EXACT: tuple[type[Rule], ...] = (Coupled, Greedy, Rejection, MultiStep, KSequential)
_LOSSY: tuple[type[Rule], ...] = (Lenience, TopKGap, BiLD, Typical)

RULES: Mapping[str, type[Rule]] = {kind.name: kind for kind in (*_EXACT, *_LOSSY)}
"""All rules by name, the default first."""
DEFAULT_RULE = Coupled.name


@dataclass(frozen=True, slots=True)
class VerificationOptions:
    """Which rule accepts draft tokens. All rules but the lossy ones keep the target's distribution."""

    rule: str = DEFAULT_RULE  # a name in RULES
    lossy: bool = False  # True allows a rule that changes the output's distribution
    settings: Mapping[str, float] = field(default_factory=dict)  # options of the rule, such as "lenience"

    @property
    def is_lossy(self) -> bool:
        return RULES[self.rule].preserves is None

    def make(self, sampling: SamplingOptions) -> Rule:
        """Create the rule. Raises ValueError that names the option, its value and what to use instead."""
        if not isinstance(self.lossy, bool):
            raise ValueError(f"lossy must be True or False, got {self.lossy!r}")
        chosen = rule(self.rule, **self.settings)
        if chosen.preserves is None and not self.lossy:
            exact = ", ".join(repr(kind.name) for kind in _EXACT)
            raise ValueError(
                f"rule {self.rule!r} does not preserve the model's output: pass lossy=True to accept that, "
                f"or use one that does ({exact})"
            )
        chosen.check(sampling)
        return chosen


def may_change_tokens(chosen: Rule, sampling: SamplingOptions) -> bool:
    """Whether the rule's tokens can differ from the default's with these options. Under greedy decoding all exact
    rules pick the same tokens."""
    return chosen.preserves is None or (chosen.preserves == "distribution" and not sampling.is_greedy)


def rule(name: str, /, **settings: float) -> Rule:
    """Create a rule from its name and settings. Raises ValueError for unknown names and settings, and bad values."""
    kind = RULES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"unknown rule {brief(name)}; rules are {', '.join(map(repr, RULES))}")
    known = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    for given in settings:
        if given not in known:
            has = f"its settings are {', '.join(map(repr, known))}" if known else "it has no settings"
            raise ValueError(f"rule {name!r} does not know the setting {given!r}; {has}")
    return kind(**settings)
