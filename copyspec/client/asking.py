"""How a pipeline asks a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asking:
    """How all inputs of a pipeline are asked."""

    instruction: str | None = None  # a template with `{text}` that the prompts are made from
    system: str | None = None
    batch_size: int = 8  # prompts that a model in this process decodes at once
    drafts: bool = True
    draft_models: tuple[str, ...] = ()
    earlier: int = 0  # number of latest corrected places that are copied from, too
    margins: bool = False  # of changes from the edited text; a model in this process always gives them
    logprobs: int | None = None
