"""Quality measurements of the bundled model: GLEU against values computed by hand, the guard, samples."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.quality import technical
from benchmarks.quality.gleu import corpus_gleu, score, sentence_gleu, statistics
from benchmarks.quality.guarded import Remembering
from benchmarks.quality.model import guarded
from benchmarks.quality.run import best_overlap, chosen_outputs, sample, share
from copyspec.pipelines import Edit, FunctionCorrector, GuardOptions, Outcome


def test_statistics_by_hand() -> None:
    # unigrams: a b d e match (4); source-only "c" is not in the output
    # bigrams of the output: ab, bd, de; reference has ab, bd, de -> 3; trigrams abd, bde -> 2; abde -> 1
    assert statistics("a b c e", "a b d e", "a b d e") == [4, 4, 4, 4, 3, 3, 2, 2, 1, 1]
    # the source kept: unigrams a b e match, c is penalised: 3 - 1; bigrams: ab 1, minus bc and ce: max(0, 1 - 2)
    assert statistics("a b c e", "a b c e", "a b d e") == [4, 4, 2, 4, 0, 3, 0, 2, 0, 1]


def test_score_by_hand() -> None:
    counts = np.array([4, 4, 4, 4, 3, 3, 2, 2, 1, 1])
    assert score(counts) == pytest.approx(1.0)
    # shorter than the reference: brevity penalty exp(1 - 5/4); precisions 3/4, 2/3, 1/2, 1
    counts = np.array([4, 5, 3, 4, 2, 3, 1, 2, 1, 1])
    assert score(counts) == pytest.approx(math.exp(-0.25) * (3 / 4 * 2 / 3 * 1 / 2 * 1) ** 0.25)
    zero = np.array([4, 4, 2, 4, 0, 3, 0, 2, 0, 1])
    assert score(zero) == 0.0
    assert score(zero, smooth=True) == pytest.approx((2 / 4 * 1 / 3 * 1 / 2 * 1) ** 0.25)


def test_corpus_prefers_the_correction_and_is_seeded() -> None:
    sources = ["He go to the school every day .", "This is good ."]
    references = [["He goes to school every day .", "He goes to the school every day ."], ["This is good ."] * 2]
    fixed = ["He goes to school every day .", "This is good ."]
    assert corpus_gleu(sources, fixed, references) > corpus_gleu(sources, sources, references)
    assert corpus_gleu(sources, fixed, references, seed=3) == corpus_gleu(sources, fixed, references, seed=3)
    assert sentence_gleu(sources[1], fixed[1], references[1]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="1 outputs"):
        corpus_gleu(sources, ["x"], references)


def test_guard_keeps_the_source_where_little_is_left() -> None:
    assert guarded("a b c d e", "a b c d f") == "a b c d f"
    assert guarded("a b c d e", "x y z") == "a b c d e"


def test_samples_and_shares() -> None:
    assert sample(range(10), None, 0) == list(range(10))
    assert sample(range(100), 5, 1) == sample(range(100), 5, 1)
    assert sample(range(100), 5, 1) == sorted(sample(range(100), 5, 1))
    assert share([]) == 0.0
    assert share([True, False]) == 0.5


def test_outputs_are_chosen_by_rule() -> None:
    rows = [
        {"source": "He go home .", "output": "He goes home .", "references": ["He goes home ."]},
        {"source": "He goes home .", "output": "He go home .", "references": ["He goes home ."]},
        {"source": "Same .", "output": "Same .", "references": ["Same ."]},
    ]
    chosen = chosen_outputs(rows)
    assert [row["output"] for row in chosen["good"]] == ["He goes home ."]
    assert [row["output"] for row in chosen["bad"]] == ["He go home ."]


def test_overlap_baseline() -> None:
    assert (
        best_overlap("Who wrote the letter?", ["It rained.", "Anna wrote the letter.", "He read."])
        == "Anna wrote the letter."
    )


def test_corrections_kept_for_one_model_are_not_taken_for_those_of_another(tmp_path: Path) -> None:
    def corrector(weights: str) -> Any:
        return SimpleNamespace(
            identity={"weights": weights, "segment_tokens": 9}, by_sentence=False, limit=None,
            correct=lambda texts: ((place, Outcome(f" {weights} {text}")) for place, text in enumerate(texts)),
        )  # fmt: skip

    keep = tmp_path / "kept.jsonl"
    list(Remembering(corrector("a"), keep).correct(["x", "y"]))
    assert Remembering(corrector("a"), keep).known("y") == "a y"
    with pytest.raises(SystemExit, match=r"holds rows of .*'weights': 'a'"):
        Remembering(corrector("b"), keep)


def test_technical_pages_hold_their_mistakes() -> None:
    pages = list(technical.read_pages())
    assert sum(len(mistakes) for _, _, mistakes in pages) == 69
    for name, text, mistakes in pages:
        repairs = [Edit(mistake.start, mistake.end, mistake.right[0]) for mistake in mistakes]
        assert technical.judged(text, mistakes, repairs) == (len(mistakes), [])
        assert all(text[mistake.start : mistake.end] not in mistake.right for mistake in mistakes), name
        wrong = [replace(repairs[0], replacement="xyz"), Edit(0, 1, "X")]
        count, harm = technical.judged(text, mistakes, wrong)
        assert count == 0 and len(harm) == 2
    stays = technical.measure(FunctionCorrector(lambda text: text), GuardOptions())
    assert stays["repaired"] == 0 and stays["harmful"] == [] and len(stays["left"]) == 69
