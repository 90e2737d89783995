"""How much text a request may bring to copy from: each of its characters is tokenized and indexed before the output."""

from __future__ import annotations

MAX_CHARACTERS = 1_000_000
"""Of all texts of a request: a tokenizer takes about a second for them."""

TOKEN_CHARACTERS = 4  # characters of English text per token, about

MAX_REFERENCES = 4096
"""Each text has a share of the time that is spent before the first token: 300,000 of one word took seconds."""


def count_characters(value: object) -> int:
    """Number of characters in all texts of a JSON value, names of fields among them. Numbers in lists are token ids."""
    count, left = 0, [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, (list, dict)):
            held = value if isinstance(value, list) else [*value, *value.values()]
            texts = [each for each in held if not isinstance(each, int)]
            left += texts
            if isinstance(value, list):
                count += TOKEN_CHARACTERS * (len(held) - len(texts))
    return count


def check_references(references: object) -> None:
    """Raise ValueError if `references` holds too many texts, in one list or in one list per prompt."""
    each = references if isinstance(references, list) else [references]
    # Token ids are one text.
    count = sum(len(one) if isinstance(one, list) and one and not isinstance(one[0], int) else 1 for one in each)
    if count > MAX_REFERENCES:
        raise ValueError(f"references holds {count} texts; at most {MAX_REFERENCES} are taken here: join short ones")
