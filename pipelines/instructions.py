"""Instructions: templates with fields for what the model is given."""

from __future__ import annotations

import re

from copyspec.common.checks import check_type

INSTRUCTION = "Correct the grammar: {text}"
"""The instruction the bundled model was trained on; instruction-tuned models understand it too."""


def check_template(template: str, *names: str) -> str:
    """Return `template`. Raises TypeError if it is no str, ValueError if it lacks the field of one of `names`."""
    check_type(isinstance(template, str), "instruction", template, "a str")
    for name in names:
        if "{" + name + "}" not in template:
            raise ValueError(f"the instruction {template!r} has no {{{name}}}: write where the {name} belongs")
    return template


def fill(template: str, **fields: str) -> str:
    """Replace each `{name}` in `template`. Unlike `str.format`, this leaves all other braces alone."""
    pattern = "|".join(re.escape("{" + name + "}") for name in fields)
    return re.sub(pattern, lambda match: fields[match[0][1:-1]], template)
