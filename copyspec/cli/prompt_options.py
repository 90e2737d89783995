"""Options for a prompt and the texts to copy from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from copyspec.cli.common import hint_at_file, read

_TEXTS = "Texts to copy from"

Prompt: TypeAlias = Annotated[str | None, typer.Argument(help="The prompt; - reads it from stdin.")]
PromptFile: TypeAlias = Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")]
ChatSystem: TypeAlias = Annotated[str | None, typer.Option(help="System message; the prompt becomes a chat.")]
Chat: TypeAlias = Annotated[
    bool | None,
    typer.Option(help="Put the prompt through the chat template. Default: for the models that copyspec names."),
]
Reference: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--reference", "-r", help="Text to copy from; not shown to the model. Repeatable.", rich_help_panel=_TEXTS
    ),
]
ReferenceFile: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--reference-file", "-R", help="Like the previous option, from a file.", rich_help_panel=_TEXTS),
]
EditText: TypeAlias = Annotated[
    str | None, typer.Option("--edit", help="The text that the output is an edit of.", rich_help_panel=_TEXTS)
]
EditFile: TypeAlias = Annotated[
    Path | None, typer.Option(help="Like the previous option, from a file.", rich_help_panel=_TEXTS)
]


def chat_option(chat: bool | None) -> bool | Literal["auto"]:
    """The call option `chat` of `--chat` and `--no-chat`."""
    return "auto" if chat is None else chat


def read_references(texts: Sequence[str] | None, files: Sequence[Path] | None) -> list[str]:
    """The texts to copy from, those of files after the others."""
    for text in texts or ():
        hint_at_file("--reference", text, "--reference-file")
    return [*(texts or ()), *(read(path, "--reference-file") for path in files or ())]
