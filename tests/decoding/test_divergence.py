"""Where outputs depart from their edit source, and by which margin: independent of drafts and batches."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
import torch

import copyspec
from copyspec.decoding import divergence
from copyspec.decoding.divergence import MAX_MARGIN, Divergence, DivergenceTracker
from tests.helpers.texts import byte_level, llama

EOS = 9


def followed(source: list[int], output: list[int], scores: torch.Tensor) -> tuple[Divergence, ...]:
    watch, at_once = DivergenceTracker(source, frozenset({EOS})), DivergenceTracker(source, frozenset({EOS}))
    for token in output:
        watch.follow([token], lambda _: scores)
    at_once.follow(output, lambda _: scores)
    assert at_once.found() == watch.found(), "however many tokens a pass brings"
    return watch.found()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([1, 2, 3, 4, 5, EOS], []),
        ([1, 2, 8, 4, 5, EOS], [(2, 3, 5.0)]),  # 3 became 8
        ([1, 2, 4, 5, EOS], [(2, 4, 1.0)]),  # 3 was deleted, which is known when 5 follows 4
        ([1, 2, 8, 3, 4, 5, EOS], [(2, 2, 5.0)]),  # 8 was inserted
        ([1, 2, 3, 4, 5, 8, EOS], [(5, 5, -1.0)]),  # 8 was appended, where the source would have ended
        ([1, 2, 3, EOS], [(3, 5, 5.0)]),  # the rest was deleted
        ([8, 2, 3, 4, 7, EOS], [(0, 1, 7.0), (4, 5, 2.0)]),
    ],
)
def test_divergences(output: list[int], expected: list[tuple[int, int, float]]) -> None:
    scores = torch.arange(10.0)
    scores[EOS] = 9.0
    assert [
        (change.start, change.end, change.margin) for change in followed([1, 2, 3, 4, 5], output, scores)
    ] == expected


def test_margins_are_bounded() -> None:
    scores = torch.full((10,), float("-inf"))
    scores[8] = 0.0
    (change,) = followed([1, 2], [8, 2, EOS], scores)
    assert change.margin == MAX_MARGIN


def test_any_output_is_followed_to_its_end() -> None:
    rng = random.Random(0)
    for _ in range(200):
        source = [rng.randrange(6) for _ in range(rng.randrange(1, 30))]
        output = [rng.randrange(6) if rng.random() < 0.2 else token for token in source if rng.random() > 0.1] + [EOS]
        divergences = followed(source, output, torch.arange(10.0))
        assert bool(divergences) == (output[:-1] != source)
        assert all(0 <= change.start <= change.end <= len(source) for change in divergences)
        assert all(a.end <= b.start for a, b in pairwise(divergences))


def test_a_long_source_is_followed_as_with_all_of_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through a long insertion and deletion, after which more than one window may be needed."""
    rng = random.Random(0)
    for size in (20, 2000):
        source = [rng.randrange(size) for _ in range(12_000)]
        output = [rng.randrange(size) if rng.random() < 0.03 else token for token in source]
        for at in (11_000, 7000, 2000):
            inserted = rng.choices(range(size), k=rng.choice([100, 700, 1500]))
            output[at : at + rng.choice([0, 400, 3000])] = inserted
        runs = []
        for window in (divergence.WINDOW, len(source)):
            monkeypatch.setattr(divergence, "WINDOW", window)
            watch = DivergenceTracker(source, frozenset({EOS}))
            watch.follow(output, lambda _: torch.zeros(2000))
            runs.append(watch.found())
        assert runs[0] == runs[1] and len(runs[0]) > 100
        monkeypatch.undo()


def test_many_divergences_of_a_long_source_take_little_time() -> None:
    source = list(range(10, 100_010))
    output = [9 if place % 12 == 0 else token for place, token in enumerate(source)]
    scores = torch.zeros(10)
    watch = DivergenceTracker(source, frozenset({8}))
    started = time.process_time()
    for place in range(0, len(output), 10):
        watch.follow(output[place : place + 10], lambda _: scores)
    assert time.process_time() - started < 2.0
    assert [(change.start, change.end) for change in watch.found()] == [
        (at, at + 1) for at in range(0, len(source), 12)
    ]


def test_the_same_with_drafts_in_batches_and_plainly() -> None:
    tokenizer = byte_level()
    engine = copyspec.Engine(llama(len(tokenizer)).float(), tokenizer)
    texts = ["we was late and he go home", "a cat", "the end of it all, is it not?"]
    runs = [
        engine.generate(texts, edit_source=texts, max_new_tokens=24, **options)
        for options in ({}, {"drafter": "none"}, {"batch_size": 1})
    ]
    for results in zip(*runs, strict=True):
        first, *others = results
        assert first.changes
        for other in others:
            assert other.token_ids == first.token_ids
            assert [(change.start, change.end) for change in other.changes] == [(e.start, e.end) for e in first.changes]
            for a, b in zip(first.changes, other.changes, strict=True):
                assert a.margin == pytest.approx(b.margin, abs=1e-3)
    sampled = engine.generate(texts[0], edit_source=texts[0], max_new_tokens=8, temperature=1.0)
    assert sampled.changes == () and engine.generate(texts[0], max_new_tokens=8).changes == ()
