"""Choosing a rule of verification by name. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from copyspec.options import SamplingOptions
from copyspec.verification.classic.lossy import BiLD, Lenience, TopKGap, Typical
from copyspec.verification.classic.rules import Coupled, Greedy, KSequential, MultiStep, Rejection, Rule

_EXACT: tuple[type[Rule], ...] = (Coupled, Greedy, Rejection, MultiStep, KSequential)
_LOSSY: tuple[type[Rule], ...] = (Lenience, TopKGap, BiLD, Typical)

RULES: Mapping[str, type[Rule]] = {kind.name: kind for kind in (*_EXACT, *_LOSSY)}
"""Every rule by its name, the default first."""
DEFAULT_RULE = Coupled.name


@dataclass(frozen=True, slots=True)
class VerificationOptions:
    """Which rule accepts drafts. Every rule but the lossy ones keeps the target's distribution."""

    rule: str = DEFAULT_RULE  # a name in RULES
    lossy: bool = False  # True: a rule that changes the output's distribution may be used
    settings: Mapping[str, float] = field(default_factory=dict)  # of the rule: lenience's "lenience", and so on

    @property
    def is_lossy(self) -> bool:
        return RULES[self.rule].preserves is None

    def make(self, sampling: SamplingOptions) -> Rule:
        """The rule; raises ValueError that names the option, its value and the way out."""
        if not isinstance(self.lossy, bool):
            raise ValueError(f"lossy must be True or False, got {self.lossy!r}")
        chosen = rule(self.rule, **self.settings)
        if chosen.preserves is None and not self.lossy:
            exact = ", ".join(repr(kind.name) for kind in _EXACT)
            raise ValueError(
                f"rule {self.rule!r} changes what the model would write: say lossy=True to accept that, "
                f"or choose one that does not ({exact})"
            )
        chosen.check(sampling)
        return chosen


def decides_apart(chosen: Rule, sampling: SamplingOptions) -> bool:
    """True where the rule's tokens are not those of the default, at these options: greedy P leaves the exact rules
    nothing to choose."""
    return chosen.preserves is None or (chosen.preserves == "distribution" and not sampling.is_greedy)


def rule(name: str, /, **settings: float) -> Rule:
    """The rule of that name with its settings. Raises ValueError for unknown names, settings and values."""
    kind = RULES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"unknown rule {name!r}; rules are {', '.join(map(repr, RULES))}")
    known = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    for given in settings:
        if given not in known:
            has = f"its settings are {', '.join(map(repr, known))}" if known else "it has no settings"
            raise ValueError(f"rule {name!r} does not know the setting {given!r}; {has}")
    return kind(**settings)
