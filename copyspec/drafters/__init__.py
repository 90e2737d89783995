"""Drafters: each proposes a tree of draft tokens, copied from sources or predicted, for the target to verify."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set

from copyspec.drafters.base import Drafter
from copyspec.drafters.blend import BlendDrafter, PredictorDrafter
from copyspec.drafters.copying.drafter import CopyDrafter
from copyspec.drafters.copying.versions import VersionComparisons
from copyspec.drafters.predictors.base import Predictor
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.sources import Source

__all__ = ["CopyDrafter", "Drafter", "create"]


def create(
    sources: Sequence[Source],
    eos_token_ids: Collection[int],
    *,
    continues_prompt: bool = True,
    predictors: Sequence[Callable[[], Predictor]] = (),
    copies: bool = True,
    ngrams: NGrams | None = None,
    breaks: Set[int] = frozenset(),
    at_once: bool = True,
    comparisons: VersionComparisons | None = None,
) -> Drafter:
    """Make the drafter of one row.

    `sources`: the list that `Origin.source` is an index into.
    `eos_token_ids`: see `CopyDrafter`.
    `continues_prompt`: the last source of kind `prompt` stands directly before the output. It is false for
    encoder-decoder models, where that source is followed as the edited text if there is no other.
    `predictors`: factories of the row's predictors, which draft beside the copies, or alone if `copies` is false.
    `ngrams`: n-grams of the language in the target's tokens, drafted where nothing is copied.
    `breaks`: tokens that end an introduction before the edited text (`text.blocks.break_tokens`).
    `at_once`: False leaves the index of a CopyDrafter's sources to its `prepare`.
    `comparisons`: those of the edited text with its versions, by all rows of the call; None: the row makes its own.
    """
    models = [make() for make in predictors]
    if models and not copies:
        return PredictorDrafter(models)
    if models:
        return BlendDrafter(
            sources,
            models,
            eos=eos_token_ids,
            continues_prompt=continues_prompt,
            ngrams=ngrams,
            breaks=breaks,
            comparisons=comparisons,
        )
    return CopyDrafter(
        sources,
        eos=eos_token_ids,
        continues_prompt=continues_prompt,
        ngrams=ngrams,
        breaks=breaks,
        at_once=at_once,
        comparisons=comparisons,
    )
