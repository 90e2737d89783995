"""Looks up a verification rule by name. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from copyspec.checks import brief
from copyspec.options import SamplingOptions
from copyspec.verification.classic.lossy import BiLD, Lenience, TopKGap, Typical
from copyspec.verification.classic.rules import Coupled, Greedy, KSequential, MultiStep, Rejection, Rule

_EXACT: tuple[type[Rule], ...] = (Coupled, Greedy, Rejection, MultiStep, KSequential)
_LOSSY: tuple[type[Rule], ...] = (Lenience, TopKGap, BiLD, Typical)

RULES: Mapping[str, type[Rule]] = {kind.name: kind for kind in (*_EXACT, *_LOSSY)}
"""All rules by name, the default first."""
DEFAULT_RULE = Coupled.name


def is_lossy(name: str) -> bool:
    """Whether a rule changes the output's distribution. The others keep the target's."""
    return RULES[name].preserves is None


def make_rule(name: str, settings: Mapping[str, float], sampling: SamplingOptions, *, lossy: bool) -> Rule:
    """Create a rule for these sampling options; `lossy` allows one that changes the output's distribution.

    Raises ValueError that names the option, its value and what to use instead.
    """
    chosen = rule(name, **settings)
    if is_lossy(name) and not lossy:
        exact = ", ".join(repr(kind.name) for kind in _EXACT)
        raise ValueError(
            f"rule {name!r} does not preserve the model's output: pass lossy=True to accept that, "
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
