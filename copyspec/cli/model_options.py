"""Options for the model that a command loads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from copyspec.checks import brief
from copyspec.cli.common import panel

if TYPE_CHECKING:
    from copyspec.api import LoadOptions

model_option = panel("Model")
DRAFT_MODEL_HELP = "A smaller model that drafts as well: hub id, folder, layers:N or heads:FOLDER. Repeatable."

Model: TypeAlias = Annotated[
    str | None,
    model_option(
        "Hub id, folder, GGUF file or name (copyspec models). Default: $COPYSPEC_MODEL, or as listed there.",
        "--model",
        "-m",
    ),
]
Adapter: TypeAlias = Annotated[
    str | None, model_option("Folder of a LoRA adapter (peft) that is merged into the model.")
]
Device: TypeAlias = Annotated[str | None, model_option("cpu, cuda, cuda:1, auto.")]
Dtype: TypeAlias = Annotated[str, model_option("auto (float32 on a CPU), float32, bfloat16 or float16.")]
Threads: TypeAlias = Annotated[
    int | None, model_option("Threads of torch on a CPU. Default: the number measured to be fastest.")
]


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


Variables: TypeAlias = Annotated[
    dict | None,  # type: ignore[type-arg]  # typer reads the plain class
    model_option(
        'Variables of the chat template: {"enable_thinking": false}.',
        "--chat-template-kwargs",
        parser=_variables,
        metavar="JSON",
    ),
]


def loading(device: str | None, dtype: str, adapter: str | None) -> LoadOptions:
    """The options as keywords of `copyspec.load`, with an adapter only if one is given."""
    options: LoadOptions = {"device": device, "dtype": dtype}
    if adapter is not None:
        options["adapter"] = adapter
    return options
