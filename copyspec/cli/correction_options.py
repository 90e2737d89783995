"""Options that `gec`, `edit` and `apply` share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from copyspec.cli.common import UsageError, panel
from copyspec.common.checks import option

BACKUP_SUFFIX = ".bak"
# Titles of help panels
input_option = panel("Input")
output_option = panel("Output")
guard_option = panel("Guards")
run_option = panel("Run")

Plain: TypeAlias = Annotated[bool, run_option("Decode without copying: same output, slower.", "--plain")]
Whole: TypeAlias = Annotated[bool, output_option("Print the new version instead of a diff.", "--whole")]
AsDiff: TypeAlias = Annotated[
    bool, output_option("Print a unified diff (the default); exit code 1 if it is not empty.", "--diff")
]
Check: TypeAlias = Annotated[bool, output_option("Write nothing; exit code 1 if something would change.", "--check")]
Quiet: TypeAlias = Annotated[bool, run_option("Print nothing but errors (on stderr).", "--quiet", "-q")]


@dataclass(frozen=True, slots=True)
class InPlace:
    """Whether files are replaced, and what becomes of the old ones."""

    in_place: bool = option(False, "Write corrections into the files themselves.", "--in-place", "-i")
    backup: bool = option(False, "With -i: keep the old file as FILE.bak, FILE.bak.1 ...")
    backup_suffix: str | None = option(None, "Like --backup, with another suffix than .bak.")

    def suffix(self, paths: Sequence[str], *, in_place: bool) -> str | None:
        """The suffix of backups, or None for no backups. Raises UsageError for invalid combinations."""
        suffix = self.backup_suffix
        if not self.backup and suffix is None:
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
