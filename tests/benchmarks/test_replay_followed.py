"""The replay without an edit source: hardly more passes than when it is given."""

from __future__ import annotations

from benchmarks.replay.run import Tally, accepted_path
from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.copying.corpus import QUESTION_ODDS, STATEMENT_ODDS, CopyCorpus
from copyspec.sources import FORK, Source
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
    calls_given = _calls([Source(TEXT, "edit"), prompt], EDITED)
    calls_found = _calls([prompt, Source(TEXT, "block", [(0, 14)], (3, 63))], EDITED)
    unfound = _calls([prompt], EDITED)
    assert calls_found <= calls_given + 1 and calls_found < unfound


def test_a_short_question_weighs_as_the_prompt_that_it_is() -> None:
    """An answer takes words from the block, an edit follows it. With higher odds, or longer, the block counts as a
    text."""

    def block(odds: int, asks: bool, times: int = 1) -> Source:
        return Source(TEXT * times, "block", [(0, odds)], (3, 63), asks=asks)

    sources = [Source(PROMPT, "prompt"), block(QUESTION_ODDS, True)]
    assert CopyCorpus(sources, EOS).is_question
    assert CopyCorpus([sources[0], block(STATEMENT_ODDS, False)], EOS).is_question
    for other in (block(QUESTION_ODDS + 1, True), block(STATEMENT_ODDS + 1, False), block(QUESTION_ODDS, True, 5)):
        assert not CopyCorpus([sources[0], other], EOS).is_question
    assert not CopyCorpus([sources[0], Source(TEXT, "reference")], EOS).is_question
    assert _calls(sources, EDITED) < _calls(sources[:1], EDITED)


def test_one_text_may_end_in_two_places() -> None:
    prompt = Source(PROMPT, "prompt")
    blocks = [Source(TEXT, "block", [(0, 13)], (3, 63)), Source(TEXT[:30], "block", [(0, 13)], (3, 33))]
    assert _calls([prompt, *blocks], [*TEXT[:30], EOS]) <= 4
    assert _calls([prompt, *blocks], [*TEXT, EOS]) <= 6


def test_a_copy_may_end_with_its_paragraph() -> None:
    """Token 150 is the end of a sentence with the line break after it; 151 is that end alone."""
    prompt = Source([1, *TEXT[:30], 150, *TEXT[30:], 4], "prompt")
    block = Source([*TEXT[:30], FORK, 150, *TEXT[30:]], "block", [(0, 14)], (0, 9), [[151]])
    assert _calls([prompt, block], [*TEXT[:30], 151, EOS]) <= 4
    assert _calls([prompt, block], [*TEXT[:30], 150, *TEXT[30:], EOS]) <= 7


def test_the_text_begins_behind_what_is_said_first() -> None:
    prompt, label = Source(PROMPT, "prompt"), [700, 701, 702]
    # An unnamed text is one of several guesses here; its first token must be drafted.
    for source, least in ((Source(TEXT, "edit"), 3), (Source(TEXT, "block", [(0, 14)], (3, 63)), 1)):
        drafter = create([prompt, source], frozenset({EOS}), breaks=frozenset({702}))
        drafter.propose(Budget(16))
        drafter.accept(label)
        assert accepted_path(drafter.propose(Budget(16)), TEXT, 0) >= least


def test_a_text_that_is_told_begins_as_the_prompt_has_it_behind_a_label() -> None:
    """After a space, as after the label's colon, its first token is 800."""
    prompt = Source([1, 2, 703, 800, *TEXT[1:], 4], "prompt")
    drafter = create([prompt, Source(TEXT, "edit")], frozenset({EOS}))
    drafter.accept([700, 701])
    assert accepted_path(drafter.propose(Budget(16)), [703, 800, *TEXT[1:]], 0) >= 8


def test_the_edits_of_another_version_are_drafted_where_they_belong() -> None:
    """Also after an edit of the output's own, after a skipped edit, and at a rejected insertion."""
    prompt, source = Source(PROMPT, "prompt"), Source(TEXT, "edit")
    tokens = [*TEXT[:10], 900, *TEXT[11:25], *TEXT[26:40], 901, 902, *TEXT[40:50], 903, *TEXT[51:]]
    version = Source(tokens, "reference")
    output = [*TEXT[:5], 700, *TEXT[6:10], 900, *TEXT[11:40], 901, 902, *TEXT[40:50], 903, *TEXT[51:], EOS]
    alone, beside = _calls([source, prompt], output), _calls([source, version, prompt], output)
    assert beside <= alone - 2
    assert _calls([source, version, prompt], [*version.tokens, EOS]) <= 6
    refused = [*version.tokens[:39], *TEXT[40:], EOS]
    assert _calls([source, version, prompt], refused) <= 7
