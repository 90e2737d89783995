"""Reads the options of `generate` from their source, and formats them as a TypedDict and as a table."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "copyspec" / "engine" / "asking" / "call_options.py"

HEADER = '''"""The keyword options of one call, besides prompt and references, as types for type checkers.

Generated from call_options.py by `python -m docs.update`: options are written there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from copyspec.engine.drafting.datastores import TokenStore
from copyspec.engine.drafting.output_cache import OutputCache

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

    from copyspec.drafters.custom import OwnDrafter
    from copyspec.engine.drafting.draft_models import DraftChoice
    from copyspec.verification.rule import Rule

    DrafterName = Literal["auto", "copy", "model", "none"]


class GenerateOptions(TypedDict, total=False):
    """Keyword options of `generate` and its relatives. Anything else is an error."""

'''


@dataclass(frozen=True)
class Option:
    """One field of `CallOptions`, as written in its source."""

    name: str
    annotation: str
    doc: str


def options() -> list[Option]:
    """Return every option, in the order of the source."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    options_class = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "CallOptions")
    result = []
    for node, following in zip(options_class.body, options_class.body[1:], strict=False):
        if not isinstance(node, ast.AnnAssign) or "init=False" in ast.unparse(node):
            continue
        assert isinstance(node.target, ast.Name)
        assert isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant), node.target.id
        result.append(Option(node.target.id, ast.unparse(node.annotation), str(following.value.value)))
    return result


def keywords() -> str:
    """Format `copyspec.engine.asking.keywords`. Every option also accepts None, which stands for the default."""
    lines = []
    for option in options():
        annotation = option.annotation.replace("'", '"')
        annotation += "" if "None" in annotation else " | None"
        doc = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", option.doc)
        lines += [f"    {option.name}: {annotation}", f'    """{doc}"""']
    return HEADER + "\n".join(lines) + "\n"


def table() -> str:
    """Format the rows of docs/api.md."""
    rows = ["| option | meaning |", "|---|---|"]
    for option in options():
        doc = " ".join(option.doc.split()).replace("|", "\\|")
        rows.append(f"| `{option.name}` | {doc} |")
    return "\n".join(rows)
