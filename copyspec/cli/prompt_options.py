"""Options for a prompt and the texts to copy from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from copyspec.cli.common import check_outputs, hint_at_file, read, read_edited, read_prompt
from copyspec.common.checks import option

Prompt: TypeAlias = Annotated[str | None, typer.Argument(help="The prompt; - reads it from stdin.")]

_TEXTS = {"rich_help_panel": "Texts to copy from"}


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The texts of one call."""

    file: Path | None = option(None, "Read the prompt from a file.", "--file", "-f")
    system: str | None = option(None, "System message; the prompt becomes a chat.")
    chat: bool | None = option(
        None, "Put the prompt through the chat template. Default: for the models that copyspec names."
    )
    references: tuple[str, ...] = option(
        (), "Text to copy from; not shown to the model. Repeatable.", "--reference", "-r", **_TEXTS
    )
    reference_file: tuple[Path, ...] = option(
        (), "Like the previous option, from a file.", "--reference-file", "-R", **_TEXTS
    )
    edit_source: str | None = option(None, "The text that the output is an edit of.", "--edit", **_TEXTS)
    edit_file: Path | None = option(None, "Like the previous option, from a file.", **_TEXTS)

    def read(self, prompt: str | None, outputs: Mapping[str, Path | None]) -> tuple[str, list[str], dict[str, Any]]:
        """The prompt, the references, and the options of the call. Raises UsageError, also if an output would replace
        a file that is read."""
        text = read_prompt(prompt, self.file)
        check_outputs(outputs, [self.file, self.edit_file, *self.reference_file])
        for reference in self.references:
            hint_at_file("--reference", reference, "--reference-file")
        references = [*self.references, *(read(path, "--reference-file") for path in self.reference_file)]
        chat = "auto" if self.chat is None else self.chat
        edited = read_edited(self.edit_source, self.edit_file)
        return text, references, {"system": self.system, "chat": chat, "edit_source": edited}
