"""Options for the model that a command loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from copyspec.cli.common import panel, quiet_libraries
from copyspec.common.checks import brief, option

if TYPE_CHECKING:
    from copyspec.engine.engine import Engine

model_option = panel("Model")


def _variables(text: str) -> dict[str, object]:
    """The variables of the chat template. Raises BadParameter, as a ValueError would lose its message here."""
    from copyspec.text.chat import check_variables

    try:
        value: object = json.loads(text)
        return dict(check_variables("the object", value))
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(
            f'{brief(text)} is no JSON object such as {{"enable_thinking": false}}: {error}'
        ) from None


@dataclass(frozen=True, slots=True)
class NamedModel:
    """The model of a command and how it is loaded; with a server only its name counts."""

    model: str | None = option(
        None,
        "Hub id, folder, GGUF file or name (copyspec models). Default: $COPYSPEC_MODEL, or as listed there.",
        "--model",
        "-m",
    )
    adapter: str | None = option(None, "Folder of a LoRA adapter (peft) that is merged into the model.")
    device: str | None = option(None, "cpu, cuda, cuda:1, auto.")
    dtype: str = option("auto", "auto (float32 on a CPU), float32, bfloat16 or float16.")
    threads: int | None = option(None, "Threads of torch on a CPU. Default: the number measured to be fastest.")
    chat_template_kwargs: Mapping[str, object] | None = option(
        None,
        'Variables of the chat template: {"enable_thinking": false}.',
        kind=dict | None,  # typer reads the plain class
        parser=_variables,
        metavar="JSON",
    )

    def load(self, *, corrects: bool = False) -> Engine:
        """Load the model: the default one, or with `corrects` the best one at correcting and quoting English text."""
        import copyspec
        from copyspec.api import load_corrector

        quiet_libraries()
        load = load_corrector if corrects else copyspec.load
        engine = load(self.model, adapter=self.adapter, device=self.device, dtype=self.dtype)
        engine.threads = self.threads
        engine.chat_template_kwargs = self.chat_template_kwargs or {}
        return engine


@dataclass(frozen=True, slots=True)
class MergingModel(NamedModel):
    """The model that merges edits: none without a name, as neither the bundled model nor SmolLM2 can."""

    model: str | None = option(
        None,
        "Hub id, folder, GGUF file or name (copyspec models). Default: $COPYSPEC_MODEL, or none: exact edits only.",
        "--model",
        "-m",
    )
