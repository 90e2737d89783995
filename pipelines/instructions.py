"""Instructions: texts with places for what a model is given."""

from __future__ import annotations

import re


def check_template(template: str, *names: str) -> str:
    """`template`; raises ValueError where it lacks the place for one of `names`."""
    for name in names:
        if "{" + name + "}" not in template:
            raise ValueError(f"the instruction {template!r} has no {{{name}}}: write where the {name} belongs")
    return template


def fill(template: str, **fields: str) -> str:
    """`template` with each `{name}` replaced. Unlike `str.format` it leaves all other braces alone."""
    pattern = "|".join(re.escape("{" + name + "}") for name in fields)
    return re.sub(pattern, lambda match: fields[match[0][1:-1]], template)
