"""Methods from the literature on speculative decoding, to compare with: docs/survey.md has their figures.

    copyspec.generate(prompt, drafter=["auto", Pool()])
    copyspec.generate(prompt, rule=MultiStep(), temperature=0.8)
    copyspec.generate(prompt, rule=Contrast("layers:10"))

The engine knows none of them: it sees a drafter, a predictor or a `verification.rule.Rule`.
"""

from copyspec.literature.candidates import Sampled
from copyspec.literature.contrast import Contrast
from copyspec.literature.copies import LLMA, SAD, LongestSuffix, PromptLookup
from copyspec.literature.lookahead import Jacobi, Lookahead
from copyspec.literature.lossy import BiLD, Lenience, TopKGap, Typical
from copyspec.literature.rules import DraftRule, KSequential, MultiStep, Rejection
from copyspec.literature.sampled import KeyedRandom, draw
from copyspec.literature.token_pool import Pool

__all__ = [
    "LLMA",
    "SAD",
    "BiLD",
    "Contrast",
    "DraftRule",
    "Jacobi",
    "KSequential",
    "KeyedRandom",
    "Lenience",
    "LongestSuffix",
    "Lookahead",
    "MultiStep",
    "Pool",
    "PromptLookup",
    "Rejection",
    "Sampled",
    "TopKGap",
    "Typical",
    "draw",
]
