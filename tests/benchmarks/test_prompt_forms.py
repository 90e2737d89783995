"""The prompt forms of the replay: the edited text is found as a block in them."""

from __future__ import annotations

import pytest

from benchmarks.replay.prompt_forms import FITTED, HELD_OUT, Form
from copyspec.text.blocks import find_blocks

TEXTS = (
    "She have two cat, and he go to school every days with them.",
    "The peoples is waiting since three hours, but nobody come.",
    "We was late because of the trafic in the city, again.",
)


def _is_set_apart(form: Form) -> bool:
    """Whether the text is not inside a line after a sentence, where nothing marks its start."""
    prompt, _ = form.make([(text, text) for text in TEXTS[: form.texts]])
    return not prompt[: prompt.index(TEXTS[0])].endswith(("! ", "? ", ". ", "else "))


FORMS = [form for form in (*HELD_OUT, *FITTED) if _is_set_apart(form)]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_edited_text_starts_a_block(form: Form) -> None:
    prompt, output = form.make([(text, text) for text in TEXTS[: form.texts]])
    starts = {prompt[start:] for block in find_blocks(prompt) for start, _ in block.starts}
    bare = output.strip().strip("\"'`")
    assert any(start.startswith((TEXTS[0], output.strip(), bare)) for start in starts)
