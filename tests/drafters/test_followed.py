"""The edited text is found in the prompt: hardly more passes than when it is given, and spans point into the prompt."""

from __future__ import annotations

import random
import time
from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

import copyspec
from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.copying import versions
from copyspec.drafters.copying.corpus import CopyCorpus
from copyspec.drafters.copying.estimates import Estimates
from copyspec.drafters.copying.situations import FOLLOWED_RESUMED, RESUMED_ONE, STRIDE
from copyspec.drafters.copying.versions import MAX_LENGTH, Version, VersionComparisons, compare, find_versions
from copyspec.models.loading import BUNDLED
from copyspec.sources import Source

EOS = 0
TEXT = list(range(100, 160))
PROMPT = [1, 2, 3, *TEXT, 4, 5]


def test_resumptions_that_fail_are_expected_less() -> None:
    estimates = Estimates(found=True)
    situation = FOLLOWED_RESUMED * STRIDE + RESUMED_ONE + 2
    before = estimates.at_root[situation]
    estimates.record_resumed(before, before / (before + estimates.miss_at_root), right=True)
    assert estimates.at_root[situation] == before
    for _ in range(3):
        estimates.record_resumed(before, before / (before + estimates.miss_at_root), right=False)
    assert estimates.at_root[situation] < 0.5 * before


def test_a_chain_takes_the_whole_budget() -> None:
    drafter = create([Source(PROMPT, "prompt"), Source(TEXT, "edit")], frozenset({EOS}))
    chain = drafter.propose(Budget(16, chain=True))
    assert list(chain.tokens) == TEXT[:16] and list(chain.parents) == list(range(-1, 15))


@pytest.mark.usefixtures("steady_drafts")
@pytest.mark.skipif(not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout")
def test_spans_lead_to_the_prompt() -> None:
    text = "Next year we wants to sail to the the islands. The childrens have already drawn a map of the coast."
    prompt = f"Correct the grammar: {text}"
    engine = copyspec.load("default", dtype="float32")
    result = engine.generate(prompt)
    edited = engine.generate(prompt, edit_source=text)
    plain = engine.generate(prompt, drafter="none")
    assert result.token_ids == edited.token_ids == plain.token_ids
    streamed = list(engine.generate(prompt, stream=True))
    assert "".join(chunk.text for chunk in streamed) == result.text
    assert {chunk.source for chunk in streamed} <= {"prompt", "output", None}
    assert result.stats.num_passes <= edited.stats.num_passes + 1
    assert set(result.stats.num_accepted_tokens_per_source) <= {"prompt", "output", "end", "words"}
    spans = [span for span in result.spans if span.place.source == "prompt"]
    assert sum(span.end - span.start for span in spans) > len(result.token_ids) / 2
    for span in spans:
        assert span.place.start_char is not None
        copied = prompt[span.place.start_char : span.place.end_char].strip()
        assert copied == result.text[span.start_char : span.end_char].strip()


def test_repetitive_texts_are_compared_and_searched_in_little_time() -> None:
    started = time.process_time()
    edit, reference = Source([5] * MAX_LENGTH, "edit"), Source(([5, 5, 9] * MAX_LENGTH)[:MAX_LENGTH], "reference")
    assert not CopyCorpus([edit, reference, Source([1], "prompt")], 2).versions
    assert not CopyCorpus([edit, *[reference] * 50, Source([1], "prompt")], 2).versions
    assert time.process_time() - started < 5.0, "by the cube of the length it would take minutes"
    for quoted in ([5000] * 30_000, [*[5000] * 29_999, 6], [6, *[5000] * 29_999], [5000, 6] * 15_000):
        started = time.process_time()
        CopyCorpus([Source(quoted, "reference"), Source([5000] * 60_000, "prompt")], 2)
        assert time.process_time() - started < 0.5


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The texts of each comparison that is prepared."""
    made = list[object]()

    def counted(*texts: object, **options: object) -> object:
        made.append(texts)
        return SequenceMatcher(*texts, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(versions, "SequenceMatcher", counted)
    return made


def test_no_comparison_is_prepared_once_the_steps_are_spent(
    made: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [5] * 3_000 + [token // 3_000 for token in range(5 * 3_000, 55 * 3_000)]
    edited, same, *others = (range(start, start + 3_000) for start in range(0, len(tokens), 3_000))
    assert not find_versions(tokens, edited, [same, *others])
    assert len(made) == 1, "the first one takes 9 million steps"
    monkeypatch.setattr(versions, "MAX_STEPS", 20 * 6_000)
    assert not find_versions(tokens, edited, others)
    assert len(made) == 1 + 20


def test_the_rows_of_a_call_share_comparisons_and_have_steps_of_their_own(
    made: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "MAX_STEPS", 500)  # a comparison takes 270
    prompt, text, version = Source([1], "prompt"), list(range(10, 100)), list(range(12, 100))
    comparisons = VersionComparisons()
    for first in (3, 3, 4, 5, 6, 3):
        sources = [Source([first, *text], "edit"), *[Source(version, "reference")] * 2, prompt]
        assert len(CopyCorpus(sources, 2, comparisons=comparisons).versions) == 1, "as of a row alone"
    assert len(made) == 4 * 2


def test_texts_as_long_as_may_be_are_versions_if_they_repeat_tokens_as_prose_does() -> None:
    rng = random.Random(0)
    text = rng.choices(range(10, 5000), [1 / rank for rank in range(10, 5000)], k=MAX_LENGTH - 2)
    edited = [rng.randrange(10, 5000) if rng.random() < 0.1 else token for token in text]
    other = rng.choices(range(5000, 9000), k=MAX_LENGTH - 2)
    references = [Source(text, "reference") for text in (edited, other, text[:-9], text[: MAX_LENGTH // 3])]
    corpus = CopyCorpus([Source(text, "edit"), *references, Source([1], "prompt")], 2)
    assert [len(version.version) for version in corpus.versions] == [MAX_LENGTH - 1, MAX_LENGTH - 10]
    short = [Source([token % 90 + 10, *range(10, 100)], "reference") for token in range(50)]
    assert len(CopyCorpus([Source(list(range(10, 100)), "edit"), *short, Source([1], "prompt")], 2).versions) == 50


def test_texts_with_many_equal_tokens_as_in_code_are_versions() -> None:
    rng = random.Random(0)
    line = [*range(10, 20), 1, 1, 1, 2, 2, 3, 3, 4]  # a million pairs in 4,096 tokens
    text = [token if rng.random() > 0.3 else rng.randrange(20, 900) for _ in range(220) for token in line][:3900]
    edited = [rng.randrange(20, 900) if rng.random() < 0.05 else token for token in text]
    sources = [Source(text, "edit"), Source(edited, "reference"), Source([1], "prompt")]
    assert len(CopyCorpus(sources, None).versions) == 1


lists_of_few = st.lists(st.integers(1, 3), max_size=20)


@given(lists_of_few, lists_of_few)
def test_texts_are_compared_as_by_difflib(text: list[int], other: list[int]) -> None:
    expected = SequenceMatcher(None, text, other, autojunk=False).get_matching_blocks()
    matcher = SequenceMatcher(None, text, other, autojunk=False)
    assert compare(matcher, text, other, 10_000) >= 0 and matcher.get_matching_blocks() == expected


@given(st.lists(st.integers(1, 2), min_size=8, max_size=10), st.data())
def test_quotations_are_found_wherever_they_stand(edited: list[int], data: st.DataObject) -> None:
    """The first and the last token of each may differ."""
    part = st.sampled_from([edited, edited[:4], [1], [3], [*edited[:-1], 3]])
    prompts = [[token for piece in data.draw(st.lists(part, max_size=5)) for token in piece] for _ in range(2)]
    corpus = CopyCorpus([Source(edited, "edit"), *(Source(prompt, "prompt") for prompt in prompts)], None)
    expected: list[int] = []
    inside, end = edited[1:-1], 0
    for place in range(corpus.followed[1], len(corpus.tokens)):
        if place >= end and corpus.tokens[place : place + len(inside)] == inside:
            expected.append(place - 1)
            end = place + len(inside)
    assert corpus.quotations == expected


@given(st.lists(st.integers(1, 4), max_size=12), st.lists(st.integers(1, 4), max_size=12), st.data())
def test_a_version_stands_in_itself(source: list[int], version: list[int], data: st.DataObject) -> None:
    tokens = [-1, *source, EOS, -1, *version, EOS, -1]
    first, second = range(1, len(source) + 2), range(len(source) + 3, len(tokens) - 1)
    matcher = SequenceMatcher(None, [*source, EOS], [*version, EOS], autojunk=False)
    made = Version(tokens, first, second, matcher.get_opcodes())
    tokens += data.draw(st.lists(st.integers(1, 4), max_size=4))
    for position in first:
        place, length = made.beside(position)
        assert second.start <= place <= second.stop and 0 <= length <= place - second.start
    for position in [*second, second.stop]:
        assert first.start <= made.source_place(position) <= first.stop
    assert version != source or all(made.beside(at)[0] - second.start == at - first.start for at in first)
