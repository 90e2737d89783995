"""The edited text is found in the prompt: hardly more passes than where it is told, and spans of the prompt."""

from __future__ import annotations

import pytest

import copyspec
from benchmarks.replay.run import Tally, accepted_path
from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.models.loading import BUNDLED
from copyspec.sources import Source
from copyspec.tree import ROOT

EOS = 0
TEXT = list(range(100, 160))
EDITED = [*TEXT[:10], 900, *TEXT[11:25], *TEXT[26:40], 901, 902, *TEXT[40:], EOS]
PROMPT = [1, 2, 3, *TEXT, 4, 5]


def _calls(sources: list[Source], output: list[int]) -> int:
    drafter, tally, at = create(sources, frozenset({EOS})), Tally(), 0
    while at < len(output):
        tree = drafter.propose(Budget(16))
        assert (
            all(parent < node for node, parent in enumerate(tree.parents)) and min(tree.parents, default=ROOT) >= ROOT
        )
        length = accepted_path(tree, output, at) + 1
        drafter.accept(output[at : at + length])
        at += length
        tally.calls += 1
    return tally.calls


def test_a_found_text_is_followed_like_one_that_is_told() -> None:
    prompt = Source(PROMPT, "prompt")
    told = _calls([Source(TEXT, "edit"), prompt], EDITED)
    found = _calls([prompt, Source(TEXT, "block", [(0, 14)], (3, 63))], EDITED)
    unfound = _calls([prompt], EDITED)
    assert found <= told + 1 and found < unfound


def test_one_text_may_end_in_two_places() -> None:
    prompt = Source(PROMPT, "prompt")
    blocks = [Source(TEXT, "block", [(0, 13)], (3, 63)), Source(TEXT[:30], "block", [(0, 13)], (3, 33))]
    assert _calls([prompt, *blocks], [*TEXT[:30], EOS]) <= 4
    assert _calls([prompt, *blocks], [*TEXT, EOS]) <= 6


@pytest.mark.skipif(not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout")
def test_spans_lead_to_the_prompt() -> None:
    text = "Next year we wants to sail to the the islands. The childrens have already drawn a map of the coast."
    prompt = f"Correct the grammar: {text}"
    engine = copyspec.load("default", dtype="float32")
    found = engine.generate(prompt)
    told = engine.generate(prompt, edit_source=text)
    plain = engine.generate(prompt, drafter="none")
    assert found.token_ids == told.token_ids == plain.token_ids
    streamed = list(engine.generate(prompt, stream=True))
    assert "".join(chunk.text for chunk in streamed) == found.text
    assert {chunk.source for chunk in streamed} <= {"prompt", "output", None}
    assert found.stats.num_calls <= told.stats.num_calls + 1
    assert set(found.stats.num_accepted_tokens_per_source) <= {"prompt", "output", "end", "words"}
    spans = [span for span in found.spans if span.place.source == "prompt"]
    assert sum(span.end - span.start for span in spans) > len(found.token_ids) / 2
    for span in spans:
        assert span.place.start_char is not None
        copied = prompt[span.place.start_char : span.place.end_char].strip()
        assert copied == found.text[span.start_char : span.end_char].strip()
