"""The replay benchmark: how it counts, what the published rules draft, what it prints and writes."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from benchmarks import draft_cost, replay, transcripts
from benchmarks.replay_methods import Llma, LongestSuffix, PromptLookup, ShallowAggressive
from benchmarks.replay_priors import priors_module
from copyspec.budget import Budget
from copyspec.drafters import priors
from copyspec.tree import EMPTY, DraftTree

EOS = 9
FIELDS = [field.name for field in dataclasses.fields(replay.Figures)]


class Always:
    """Drafts the right tokens, `length` a call."""

    def __init__(self, output: Sequence[int], length: int) -> None:
        self.rest, self.length = list(output), length

    def propose(self, budget: Budget) -> DraftTree:
        tokens = self.rest[: self.length]
        return DraftTree(tokens, range(-1, len(tokens) - 1), [1.0] * len(tokens), [None] * len(tokens))

    def accept(self, tokens: Sequence[int]) -> None:
        del self.rest[: len(tokens)]


@pytest.mark.parametrize(("length", "calls"), [(0, 10), (1, 5), (4, 2), (9, 1), (10, 1)])
def test_every_call_is_counted(length: int, calls: int) -> None:
    tally = replay.Tally()
    output = list(range(10))
    replay.replay(Always(output, length), output, Budget(32), tally)
    assert (tally.calls, tally.output_tokens, tally.rows) == (calls, 10, 1)
    assert len(tally.microseconds) == calls


def test_the_longest_path_is_accepted() -> None:
    tree = DraftTree([1, 2, 5, 2, 3], [-1, 0, -1, 2, 3], [1.0] * 5, [None] * 5)
    assert replay.accepted_path(tree, [0, 5, 2, 3, 4], 1) == 3
    assert replay.accepted_path(tree, [1, 2], 0) == 2
    assert replay.accepted_path(EMPTY, [1], 0) == 0


def drafted(drafter: PromptLookup | LongestSuffix | Llma | ShallowAggressive, output: Sequence[int]) -> list[int]:
    drafter.accept(output)
    return list(drafter.propose(Budget(32)).tokens)


def test_prompt_lookup_takes_the_leftmost_match_of_two_then_one() -> None:
    prompt = [1, 2, 3, 7, 1, 2, 4, 8, *range(20, 40)]
    assert drafted(PromptLookup(prompt, [], EOS), [1, 2]) == [3, 7, 1, 2, 4, 8, 20, 21, 22, 23]
    assert drafted(PromptLookup(prompt, [], EOS), [7, 2]) == [3, 7, 1, 2, 4, 8, 20, 21, 22, 23]
    assert drafted(PromptLookup(prompt, [], EOS), [50]) == []


def test_longest_suffix_takes_the_latest_of_the_longest() -> None:
    assert drafted(LongestSuffix([1, 2, 3, 5, 1, 2, 4, 6], [[0, 1, 2, 8]], EOS), [0, 1, 2]) == [8]
    assert drafted(LongestSuffix([1, 2, 3, 5, 1, 2, 4, 6], [], EOS), [1, 2])[:2] == [4, 6]


def test_llma_takes_the_first_occurrence_of_the_longest_ngram_of_the_output() -> None:
    references = [[1, 2, 3, 4], [7, 1, 2, 5]]
    assert drafted(Llma([], references, EOS), [1, 2]) == [3, 4]
    assert drafted(Llma([], references, EOS), [7, 1, 2]) == [5]
    assert drafted(Llma([1, 2, 3], references, EOS), []) == []


def test_shallow_aggressive_decoding_resumes_on_a_unique_ngram() -> None:
    source = [1, 2, 3, 4, 2, 5]
    assert drafted(ShallowAggressive([], [source], EOS), []) == [*source, EOS]
    assert drafted(ShallowAggressive([], [source], EOS), [1, 2]) == [3, 4, 2, 5, EOS]
    assert drafted(ShallowAggressive([], [source], EOS), [1, 8]) == []
    assert drafted(ShallowAggressive([], [source], EOS), [1, 8, 2]) == []
    assert drafted(ShallowAggressive([], [source], EOS), [1, 8, 2, 5]) == [EOS]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A tokenizer of words and transcripts of an editing task and another."""
    words = ["[UNK]", "</s>", "the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "far", "away", "from", "it"]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = "the cat sat on a mat and the dog ran far away from it"
    common = {"prompt": f"the {source} cat", "references": [source], "group": "g", "model": "m"}
    rows = [
        {**common, "id": "edits-m-1", "task": "gec", "output": source.replace("mat", "dog")},
        {**common, "id": "answers:2", "task": "rag", "output": "the dog ran far away from it"},
    ]
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    return tmp_path, tmp_path / "tokenizer.json"


def test_command_prints_a_table_and_writes_json(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tokenizer = files
    out = tmp_path / "figures.json"
    assert replay.main([str(folder), "--tokenizer", str(tokenizer), "--nodes", "8", "--json", str(out)]) == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert [list(line) for line in figures] == [FIELDS] * 10
    assert {(line["task"], line["set"]) for line in figures} == {("gec", "edits"), ("rag", "answers")}
    for line in figures:
        assert line["tokens_per_call"] == pytest.approx(line["output_tokens"] / line["calls"], abs=1e-3)
    by_method = {line["method"]: line for line in figures if line["task"] == "gec"}
    assert by_method["copyspec"]["output_tokens"] == 15  # fourteen words and the end of sequence
    assert by_method["copyspec"]["calls"] < by_method["prompt-lookup"]["calls"]
    assert "median over the sets" in capsys.readouterr().out


def test_draft_cost_measures_every_kind_of_source(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, tokenizer = files
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on a mat and the dog ran far away from it " * 20, encoding="utf-8")
    arguments = ["--tokenizer", str(tokenizer), "--text", str(text), "--context", "50,100"]
    assert draft_cost.main([*arguments, "--json", str(tmp_path / "cost.json")]) == 0
    costs = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))["costs"]
    assert [(cost["context"], cost["kind"]) for cost in costs] == [
        (context, kind) for context in (50, 100) for kind in ("edit", "reference", "prompt")
    ]
    capsys.readouterr()
    assert draft_cost.main([*arguments[:-1], "5000"]) == 2
    assert "give a longer text" in capsys.readouterr().err


def test_the_priors_are_as_their_command_writes_them() -> None:
    module = Path(priors.__file__).read_text(encoding="utf-8")
    assert priors_module(priors.PRIORS, priors.CROWDS) == module


def test_wrong_calls_say_what_to_give(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tokenizer = files
    assert replay.main([str(tmp_path / "nowhere"), "--tokenizer", str(tokenizer)]) == 2
    assert "jsonl.gz" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        replay.main([str(folder), "--tokenizer", str(tokenizer), "--methods", "magic"])
    assert "'magic'" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        transcripts.load_tokenizer(tmp_path / "none.json")


def test_rows_are_chosen_by_set_and_seed() -> None:
    rows = [transcripts.Transcript(str(n), "t", str(n % 2), "m", "g", "", (), "") for n in range(40)]
    chosen = transcripts.choose_rows(rows, 5, seed=1)
    assert len(chosen) == 10 and chosen == transcripts.choose_rows(rows, 5, seed=1)
    assert chosen != transcripts.choose_rows(rows, 5, seed=2)
    assert transcripts.choose_rows(rows, None) == rows
