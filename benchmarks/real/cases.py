"""Turns recorded transcripts into chats for a real model, with the texts that may be copied from."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.transcripts import EDIT_TASKS, Transcript, read_transcripts

if TYPE_CHECKING:
    from copyspec import Engine

TASKS = ("gec", "gec_document", "multiturn_edit", "rag", "summarization", "code_edit", "chat")
ROLES = {"System:": "system", "User:": "user", "Assistant:": "assistant"}


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt with its references."""

    id: str
    task: str
    chat: list[dict[str, str]]
    references: list[str]
    edit_source: str | None


def read_cases(
    folder: str | Path, engine: Engine, *, tasks: Sequence[str], per_task: int, max_prompt: int, seed: int = 0
) -> list[Case]:
    """Read at most `per_task` prompts of each task: one per group, of at most `max_prompt` tokens.

    Tasks alternate, so that an interrupted run covers all of them."""
    chosen = []
    files = {task: Path(folder) / f"{task}.jsonl.gz" for task in tasks}
    available = [task for task in tasks if files[task].is_file()] or tasks  # of none, reading says where they come from
    if missing := [task for task in tasks if task not in available]:
        print(f"without {', '.join(missing)}, which {folder} lacks", file=sys.stderr)
    for task in available:
        rows = read_transcripts([files[task]])
        random.Random(f"{seed}:{task}").shuffle(rows)
        cases: list[Case] = []
        groups: set[str] = set()
        for row in rows:
            if len(cases) == per_task:
                break
            case = case_of(row)
            # In tasks with fewer groups than prompts requested, a group may be used more than once.
            again = row.group in groups and len({row.group for row in rows}) > len(groups)
            if again or len(engine.codec.encode_chat(case.chat).ids) > max_prompt:
                continue
            groups.add(row.group)
            cases.append(case)
        chosen.append(cases)
    return [case for case in chain.from_iterable(zip_longest(*chosen)) if case is not None]


def case_of(row: Transcript) -> Case:
    """Convert a transcript to a chat. In editing tasks, the first reference is the text being edited."""
    edits = row.task in EDIT_TASKS and bool(row.references)
    return Case(
        row.id,
        row.task,
        chat_of(row.prompt),
        [] if edits else list(row.references),
        row.references[0] if edits else None,
    )


def chat_of(prompt: str) -> list[dict[str, str]]:
    """Split a flattened chat into messages at lines such as "User:". A prompt in another layout is one message."""
    lines = prompt.split("\n")
    if lines[0] not in ROLES:
        return [{"role": "user", "content": prompt}]
    messages: list[dict[str, str]] = []
    for line in lines:
        if line in ROLES:
            messages.append({"role": ROLES[line], "content": ""})
        else:
            messages[-1]["content"] += line + "\n"
    return [{**message, "content": message["content"].strip()} for message in messages if message["content"].strip()]
