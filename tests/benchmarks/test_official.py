"""Official scores of correction: texts and tokens, the scorers' files, and the table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality.official import by_m2, gold_m2, running, scores, split, table, tokens_of

WORDS = st.sampled_from(
    ["I", "do", "n't", "it", "'s", "know", "(", ")", ",", ".", "?", "U.S.", "3.5", "well-known", '"', "%"]
)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("I do n't know , ( it ) is John 's .", "I don't know, (it) is John's."),
        ("Why ?", "Why?"),
        ("We 've 3.5 % .", "We've 3.5%."),
        ("' bomb' ' here", "' bomb' ' here"),
    ],
)
def test_sentences_are_given_as_running_text(tokens: str, text: str) -> None:
    assert running(tokens) == text


@given(st.lists(WORDS, min_size=1, max_size=12))
def test_running_text_has_the_tokens_again(tokens: list[str]) -> None:
    source = " ".join(tokens)
    text = running(source)
    assert text == source or tokens_of(text) == tokens
    assert split(source, text) == source, "an answer that changes nothing has no edits"
    assert "".join(tokens_of(text)) == source.replace(" ", "")


def test_edits_of_all_annotators_are_written() -> None:
    rows = [{"source": "a b c", "edits": [[[0, 1, "Vt", "x"], [2, 2, "Mec", ","]], []]}]
    first, second, third, last = gold_m2(rows).strip().split("\n")
    assert first == "S a b c" and second == "A 0 1|||Vt|||x|||REQUIRED|||-NONE-|||0"
    assert third.startswith("A 2 2|||Mec|||,") and last == "A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1"


def test_the_scorers_figures_are_read(tmp_path: Path) -> None:
    scorer = tmp_path / "scorer.py"
    scorer.write_text(
        "import sys\nassert open(sys.argv[1]).read() == 'x b\\n' and open(sys.argv[2]).read().startswith('S a b')\n"
        "print('Precision   : 0.5000\\nRecall      : 0.2500\\nF_0.5       : 0.4167')"
    )
    values = by_m2([sys.executable, str(scorer)], [{"source": "a b", "edits": [[]]}], ["x b"])
    assert values == {"precision": 0.5, "recall": 0.25, "f05": 0.4167}


def test_figures_of_counts_and_the_table() -> None:
    assert scores(2, 2, 6) == {"precision": 0.5, "recall": 0.25, "f05": 0.4167}
    assert scores(0, 0, 5) == {"precision": 1.0, "recall": 0.0, "f05": 0.0}
    report = {
        "sets": {"conll14": {"rows": 1, "scores": {"M2": {"it": scores(2, 2, 6)}}}},
        "sentences_a_second": {"it": 12.4},
        "correct": {"it": 3},
        "correct_sentences": 300,
    }
    assert table(report).split("\n")[-1] == "| it | 0.50 / 0.25 / 0.417 | 12 | 3 of 300 |"
