"""Makes the apply set: files, edits of them in five forms, and the results.

The edits are recorded ones: outputs of models that edited programs (`transcripts/code_edit`), and the commits of this
repository, or of any other one.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from kit.reporting import read_rows

COMMENTS = {
    **dict.fromkeys((".c", ".h", ".js", ".ts", ".tsx", ".go", ".rs", ".java"), "// {}"),
    **dict.fromkeys((".html", ".md"), "<!-- {} -->"),
    ".css": "/* {} */",
}
"""How a mark is written in a file; with # in others."""
MARKS = ("... existing code ...", "... rest of the code remains unchanged ...", "... unchanged ...", "...")
MAX_CHARS = 80_000  # of a file, about 20,000 tokens
MIN_CHARS = 600
SUFFIXES = (*COMMENTS, ".py", ".toml", ".yml")


@dataclass(frozen=True)
class Row:
    """An edit: a file before and after it."""

    id: str
    path: str
    before: str
    after: str
    instruction: str

    @property
    def is_held_out(self) -> bool:
        """Half of the rows, by their file: rules may be changed for the others only."""
        return hashlib.sha256(self.path.encode()).digest()[0] % 2 == 1


def recorded(data: Path) -> Iterator[Row]:
    """Edits of programs by models. Answers with less than half of the file's lines are left out: they are parts of
    files, though the models were asked for all of it."""
    for row in read_rows(data / "transcripts" / "code_edit.jsonl.gz"):
        before, after = row["references"][0], row["output"]
        instruction = row["prompt"].rpartition("## Instruction\n")[2].partition("\n\n## Code After")[0]
        is_whole = 2 * len(after.split("\n")) >= len(before.split("\n"))
        if is_whole and before.strip() != after.strip():
            name = f"{row['group']}.py"
            yield Row(row["id"], name, before.strip() + "\n", after.strip() + "\n", instruction)


def committed(repository: Path, seed: int = 0) -> Iterator[Row]:
    """Edits of files by the commits of a repository, in random order."""
    log = _git(
        repository, "log", "--no-merges", "--no-renames", "--diff-filter=M", "--name-only", "--format=%x00%H %s"
    ).split("\0")[1:]
    edits = [
        (head.partition(" ")[0], head.partition(" ")[2], name)
        for entry in log
        for head, *names in [entry.strip().split("\n")]
        for name in names
        if name.endswith(SUFFIXES) and "results/" not in name
    ]
    # Commits that come later change few places in this order.
    edits.sort(key=lambda edit: hashlib.sha256(f"{seed} {edit[0]} {edit[2]}".encode()).digest())
    for commit, subject, name in edits:
        try:
            before, after = (_git(repository, "show", f"{at}:{name}") for at in (f"{commit}^", commit))
        except (subprocess.CalledProcessError, UnicodeDecodeError):
            continue
        if before.strip() != after.strip() and MIN_CHARS <= len(before) <= MAX_CHARS:
            yield Row(f"{commit[:12]}:{name}", name, before, after, subject)


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode()


Region = tuple[int, int, int, int]


def regions(before: Sequence[str], after: Sequence[str], context: int) -> list[Region]:
    """Stretches that differ, as starts and ends in both, with lines around them: so many that each stands in the file
    once, and is new in the other one, blank lines apart, and begins and ends with a line that is not blank."""
    codes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    made = [(a, b, c, d) for tag, a, b, c, d in codes if tag != "equal"]
    for around in range(context, len(before) + 1):
        grown = list[Region]()
        for a, b, c, d in made:
            more, less = min(around, a, c), min(around, len(before) - b, len(after) - d)
            while 0 < more < min(a, c) and not before[a - more].strip():
                more += 1
            while 0 < less < min(len(before) - b, len(after) - d) and not before[b + less - 1].strip():
                less += 1
            here = (a - more, b + less, c - more, d + less)
            if grown and here[0] <= grown[-1][1]:
                here = (grown[-1][0], here[1], grown[-1][2], here[3])
                grown.pop()
            grown.append(here)
        if all(count(before[a:b], before) == 1 and is_new(after[c:d], before) for a, b, c, d in grown):
            return grown
    return [(0, len(before), 0, len(after))]


def is_new(part: Sequence[str], lines: Sequence[str]) -> bool:
    """Whether lines do not stand in others as they are: else nobody could know from them what goes."""
    mine, others = ("\n".join(["", *(line.strip() for line in side if line.strip()), ""]) for side in (part, lines))
    return mine not in others


def count(part: Sequence[str], lines: Sequence[str]) -> int:
    """How often lines stand in others; never for blank ones."""
    if not any(line.strip() for line in part):
        return 0
    return sum(lines[at : at + len(part)] == part for at in range(len(lines) - len(part) + 1))


def blocks(row: Row, *, dashes: bool = False) -> str:
    """Search-and-replace blocks, aider's or, with `dashes`, Cline's."""
    before, after = row.before.rstrip("\n").split("\n"), row.after.rstrip("\n").split("\n")
    begin, end = ("------- SEARCH", "+++++++ REPLACE") if dashes else ("<<<<<<< SEARCH", ">>>>>>> REPLACE")
    made = [f"{row.path}\n"]
    for a, b, c, d in regions(before, after, 1):
        made.append("\n".join([begin, *before[a:b], "=======", *after[c:d], end]) + "\n")
    return "\n".join(made)


def diff(row: Row, draw: random.Random) -> str:
    """A unified diff with wrong numbers of lines."""
    before, after = row.before.rstrip("\n").split("\n"), row.after.rstrip("\n").split("\n")
    made = [f"--- a/{row.path}", f"+++ b/{row.path}"]
    for a, b, c, d in regions(before, after, 3):
        made.append(f"@@ -{a + draw.randint(1, 40)},{b - a + draw.randint(0, 3)} +{c + 1},{d - c} @@")
        for tag, i, j, k, m in SequenceMatcher(None, before[a:b], after[c:d], autojunk=False).get_opcodes():
            old, new = before[a + i : a + j], after[c + k : c + m]
            made += [f" {line}" for line in old] if tag == "equal" else [f"-{line}" for line in old]
            made += [] if tag == "equal" else [f"+{line}" for line in new]
    return "\n".join(made) + "\n"


def patch(row: Row) -> str:
    """OpenAI's format."""
    lines = diff(row, random.Random(0)).split("\n")[2:]
    body = ["@@" if line.startswith("@@ -") else line for line in lines]
    return "\n".join(["*** Begin Patch", f"*** Update File: {row.path}", *body[:-1], "*** End Patch", ""])


def lazy(row: Row, draw: random.Random) -> str:
    """The lines that change with some around them, and marks for the others."""
    before, after = row.before.rstrip("\n").split("\n"), row.after.rstrip("\n").split("\n")
    comment = COMMENTS.get(Path(row.path).suffix, "# {}")
    mark, made, at = comment.format(draw.choice(MARKS)), list[str](), 0
    for a, b, c, d in regions(before, after, draw.randint(1, 3)):
        if a > at:
            made.append(mark)
        made += after[c:d]
        at = b
    if at < len(before):
        made.append(mark)
    return "\n".join(made) + "\n"


FORMS = ("blocks", "diff", "patch", "whole", "lazy", "instruction")


def edit(row: Row, form: str, draw: random.Random) -> str:
    """The edit of a row in a form; "" for an instruction, which stands by itself."""
    if form == "blocks":
        return blocks(row, dashes=draw.random() < 0.5)
    if form == "diff":
        return diff(row, draw)
    if form == "patch":
        return patch(row)
    return row.after if form == "whole" else lazy(row, draw) if form == "lazy" else ""
