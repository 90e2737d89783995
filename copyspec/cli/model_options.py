"""Options for the model that a command loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from copyspec.api import LoadOptions

MODEL = "Model"
DRAFT_MODEL_HELP = (
    "A smaller model that drafts as well: hub id, folder, layers:N, heads:FOLDER, skip:FILE or pool. Repeatable."
)

Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Hub id, folder, GGUF file or name (copyspec models). Default: $COPYSPEC_MODEL, or as listed there.",
        rich_help_panel=MODEL,
    ),
]
Adapter: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Folder of a LoRA adapter (peft) that is merged into the model.", rich_help_panel=MODEL),
]
Device: TypeAlias = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, auto.", rich_help_panel=MODEL)]
Dtype: TypeAlias = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=MODEL)]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option(help="Threads of torch on a CPU. Default: the number measured to be fastest.", rich_help_panel=MODEL),
]


def loading(device: str | None, dtype: str, adapter: str | None) -> LoadOptions:
    """The options as keywords of `copyspec.load`, with an adapter only if one is given."""
    options: LoadOptions = {"device": device, "dtype": dtype}
    if adapter is not None:
        options["adapter"] = adapter
    return options
