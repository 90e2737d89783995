"""Options for a prompt and the texts to copy from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from copyspec.cli.common import hint_at_file, panel, read

_texts = panel("Texts to copy from")

Prompt: TypeAlias = Annotated[str | None, typer.Argument(help="The prompt; - reads it from stdin.")]
PromptFile: TypeAlias = Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")]
ChatSystem: TypeAlias = Annotated[str | None, typer.Option(help="System message; the prompt becomes a chat.")]
Chat: TypeAlias = Annotated[
    bool | None,
    typer.Option(help="Put the prompt through the chat template. Default: for the models that copyspec names."),
]
Reference: TypeAlias = Annotated[
    list[str] | None, _texts("Text to copy from; not shown to the model. Repeatable.", "--reference", "-r")
]
ReferenceFile: TypeAlias = Annotated[
    list[Path] | None, _texts("Like the previous option, from a file.", "--reference-file", "-R")
]
EditText: TypeAlias = Annotated[str | None, _texts("The text that the output is an edit of.", "--edit")]
EditFile: TypeAlias = Annotated[Path | None, _texts("Like the previous option, from a file.")]


def chat_option(chat: bool | None) -> bool | Literal["auto"]:
    """The call option `chat` of `--chat` and `--no-chat`."""
    return "auto" if chat is None else chat


def read_references(texts: Sequence[str] | None, files: Sequence[Path] | None) -> list[str]:
    """The texts to copy from, those of files after the others."""
    for text in texts or ():
        hint_at_file("--reference", text, "--reference-file")
    return [*(texts or ()), *(read(path, "--reference-file") for path in files or ())]
