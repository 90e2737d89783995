"""Options that `gec` and `edit` share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from copyspec.cli.common import UsageError
from copyspec.cli.model_options import DRAFT_MODEL_HELP, MODEL

BACKUP_SUFFIX = ".bak"
# Titles of help panels
INPUT, OUTPUT, GUARDS, RUN = "Input", "Output", "Guards", "Run"

System: TypeAlias = Annotated[str | None, typer.Option(help="System message, for chat models.", rich_help_panel=MODEL)]
MaxNewTokens: TypeAlias = Annotated[
    int | None, typer.Option(help="Default: by the length of the text.", rich_help_panel=MODEL)
]
Plain: TypeAlias = Annotated[
    bool, typer.Option("--plain", help="Decode without copying: same output, slower.", rich_help_panel=RUN)
]
DraftModel: TypeAlias = Annotated[list[str] | None, typer.Option(help=DRAFT_MODEL_HELP, rich_help_panel=MODEL)]
InPlace: TypeAlias = Annotated[
    bool, typer.Option("--in-place", "-i", help="Write corrections into the files themselves.", rich_help_panel=OUTPUT)
]
Backup: TypeAlias = Annotated[
    bool,
    typer.Option("--backup", help="With -i: keep the old file as FILE.bak, FILE.bak.1 ...", rich_help_panel=OUTPUT),
]
BackupSuffix: TypeAlias = Annotated[
    str | None, typer.Option(help="Like --backup, with another suffix than .bak.", rich_help_panel=OUTPUT)
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors (on stderr).", rich_help_panel=RUN)
]


def backup_suffix_for(backup: bool, suffix: str | None, paths: Sequence[str], *, in_place: bool) -> str | None:
    """The suffix of backups, or None for no backups. Raises UsageError for invalid combinations."""
    if not backup and suffix is None:
        return None
    if not in_place:
        option = "--backup" if suffix is None else f"--backup-suffix {suffix}"
        raise UsageError(f"{option} needs files to be replaced; give --in-place too")
    if suffix is not None and (not suffix or os.sep in suffix):
        raise UsageError(f"--backup-suffix {suffix!r} must be a suffix, for example {BACKUP_SUFFIX!r}")
    if suffix is None and (named := next((path for path in paths if _is_misplaced_suffix(path)), None)):
        raise UsageError(f"--backup takes no suffix, and there is no file {named!r}: give --backup-suffix {named}")
    return suffix or BACKUP_SUFFIX


def _is_misplaced_suffix(path: str) -> bool:
    """A positional path such as `.bak` that names no file: the user meant --backup-suffix."""
    return path.startswith((".", "~")) and os.sep not in path and len(path) > 1 and not os.path.lexists(path)
