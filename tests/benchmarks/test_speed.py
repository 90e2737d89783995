"""The speed benchmark on tiny shapes: replayed outputs are the recorded ones, and all methods are counted alike."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from benchmarks.data import DATA, lines
from benchmarks.speed import run as speed
from benchmarks.speed.methods import Limits, Methods, Run
from benchmarks.speed.models import SHAPES, Model, load_model
from benchmarks.speed.prompts import Case, PromptSet, TranscriptOptions, text_set, transcript_sets, uncopyable_set
from benchmarks.speed.report import Difference, add_up, measure_gap, table
from copyspec.sources import Source
from tests.helpers.tiny import tiny_model, tiny_tokenizer

EOS = 1
OWN = ("plain", "copyspec")
ALL = ("plain", "hf", "hf-prompt-lookup", "copyspec")


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-qwen2"])
def model(request: pytest.FixtureRequest) -> Model:
    return load_model(f"shape:{request.param}", "cpu", torch.float32)


@pytest.fixture
def methods(model: Model) -> Iterator[Methods]:
    methods = Methods(model)
    yield methods
    methods.close()
    assert not model.model._forward_hooks


def _case(prompt: list[int], recorded: list[int]) -> Case:
    return Case(prompt, (Source(recorded[:-1], "edit"), Source(prompt, "prompt")), recorded)


@pytest.mark.parametrize("name", ALL)
def test_replay_says_what_was_recorded(methods: Methods, name: str) -> None:
    recorded = [*range(20, 50), *range(20, 30), EOS]
    run = methods.get(name)([_case([5, 6, 7, 20, 21], recorded)], Limits(100, frozenset({EOS})))
    assert run.outputs == [recorded]
    assert 0 < run.prefill_seconds < run.total_seconds
    assert run.calls <= len(recorded)


def test_drafts_of_a_replay_are_verified(methods: Methods) -> None:
    recorded = [*range(20, 60), EOS]
    case, limits = _case([5, 6], recorded), Limits(100, frozenset({EOS}))
    copied = methods.get("copyspec")([case], limits)
    assert copied.calls < 10 and copied.drafted >= 35
    assert methods.get("plain")([case], limits).calls == len(recorded)


@pytest.mark.parametrize("name", ["plain", "hf", "copyspec"])
def test_replay_follows_the_rows_that_are_left(methods: Methods, name: str) -> None:
    outputs = [[30, 31, EOS], [40, 41, 42, 43, 44, EOS], [50, EOS], [60, 61, 62, 63, EOS]]
    cases = [_case([5] * (2 + index), recorded) for index, recorded in enumerate(outputs)]
    assert methods.get(name)(cases, Limits(20, frozenset({EOS}))).outputs == outputs


@pytest.mark.parametrize("name", ALL)
def test_the_limit_is_the_same_for_all(methods: Methods, name: str) -> None:
    recorded = [*range(20, 60), EOS]
    assert methods.get(name)([_case([5, 6], recorded)], Limits(7, frozenset({EOS}))).outputs == [recorded[:7]]


def test_uncopyable_text_cannot_be_copied(model: Model) -> None:
    prompts = uncopyable_set(model, 2)
    assert prompts == uncopyable_set(model, 2)
    assert prompts.is_replay and [len(case.recorded or ()) for case in prompts.cases] == [121, 121]
    known = {source.kind for case in prompts.cases for source in case.sources}
    assert known == {"reference", "prompt"}


def test_figures_are_medians_and_differences_are_found() -> None:
    def run(tokens: list[int], seconds: float) -> Run:
        return Run([tokens], seconds, prefill_seconds=0.25, calls=2, row_calls=2)

    figures = add_up("x", [[run([1, 2, 3, 4], s)] for s in (1.0, 9.0, 2.0)], [[1, 2, 3, 4]], peak=0.0)
    assert (figures.seconds_total, figures.seconds_decode, figures.tokens_per_second) == (2.0, 1.75, 2.0)
    assert figures.mean_acceptance_length == 2.0 and figures.equal
    other = add_up("x", [[run([1, 2, 3, 4], 1.0)], [run([1, 9], 1.0)]], [[1, 2, 3, 4]], peak=0.0)
    assert other.first_difference is not None
    assert (other.first_difference.position, other.first_difference.expected, other.first_difference.got) == (1, 2, 9)
    shorter = add_up("x", [[run([1, 2], 1.0)]], [[1, 2, 3]], peak=0.0).first_difference
    assert shorter is not None and (shorter.position, shorter.expected, shorter.got) == (2, 3, None)


def test_the_gap_of_a_difference_is_measured() -> None:
    model = tiny_model()
    with torch.inference_mode():
        logits = model(torch.tensor([[5, 6, 7]])).logits[0, -1]
    gap = measure_gap(Difference(0, 2, 9, 11), [5, 6, 7], model)
    assert gap.logit_gap == pytest.approx(float(logits[9] - logits[11]))
    ended = Difference(0, 2, None, 11)
    assert measure_gap(ended, [5, 6, 7], model) == ended
    figures = add_up("x", [[Run([[1, 2]], 1.0, calls=2, row_calls=2)]], [[1, 3]], peak=0.0)
    figures.first_difference = gap
    assert "1 outputs differ" in table([figures]) and "apart" in table([figures])


def test_the_command_writes_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    words = ["--model", "shape:tiny-llama", "--rows", "2", "--repeat", "1", "--json", str(out)]
    assert speed.main(words) == 0
    report = json.loads(out.read_text())
    assert report["command"].startswith("python -m benchmarks.speed --model shape:tiny-llama")
    assert report["versions"]["torch"] == torch.__version__
    (only,) = report["sets"]
    assert only["replay"] is True
    rows = {row["method"]: row for row in only["methods"]}
    assert set(rows) == set(ALL)
    assert all(row["equal"] and row["tokens"] == 242 for row in rows.values())
    assert rows["hf"]["speedup"]["hf"] == 1.0
    assert rows["plain"]["calls"] == 242
    assert set(rows["copyspec"]["shares"]) == {"draft", "target", "verify", "rest"}
    printed = capsys.readouterr().out
    assert "uncopyable (replay): 2 prompts" in printed and max(map(len, printed.splitlines())) <= 80


def test_transcripts_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["a", "b", "c", "d", "e", "f", "g", "the", "cat", "sat", "on", "mat"]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(["</s>", *words])}, unk_token="a"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    row = {"task": "gec", "model": "m", "prompt": "a b the cat sat", "references": ["the cat sat on the mat"]}
    rows = [row | {"id": f"set-{i}", "output": "the cat sat on a mat", "group": str(i)} for i in range(3)]
    with gzip.open(tmp_path / "t.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    shape = ["--model", "shape:tiny-llama", "--repeat", "1", "--rows", "2"]
    files = ["--transcripts", str(tmp_path / "t.jsonl.gz"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    assert speed.main([*shape, *files]) == 0
    assert "gec set m (replay): 2 prompts" in capsys.readouterr().out


def test_an_end_past_the_models_vocabulary_is_refused(tmp_path: Path) -> None:
    model = Model("tiny", tiny_model(), None, frozenset())
    words = {f"w{i}": i for i in range(model.model.config.vocab_size)}  # no end of sequence among them
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="needs 260 tokens with its end of sequence, 'tiny' has only 259"):
        transcript_sets(model, TranscriptOptions([], str(tmp_path / "tokenizer.json")))


def test_a_model_that_speaks_for_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "texts.txt").write_text("we was late\n\nit rain\n", encoding="utf-8")
    words = ["--model", str(tmp_path), "--repeat", "1", "--rows", "2", "--max-new-tokens", "12"]
    assert speed.main([*words, "--prompts", "paragraphs", str(tmp_path / "texts.txt")]) == 0
    printed = capsys.readouterr().out
    assert "\nparagraphs: 2 prompts" in printed and "texts.txt: 2 prompts" in printed


def test_an_assistant_changes_no_output() -> None:
    model = Model("tiny", tiny_model(), tiny_tokenizer(), frozenset({0}))
    methods = Methods(model, assistant=tiny_model(1))
    cases, limits = text_set(model, "sentences", limit=1).cases, Limits(12, frozenset({0}))
    assert methods.get("hf-assistant")(cases, limits).outputs == methods.get("hf")(cases, limits).outputs
    methods.close()


def test_outputs_without_an_end_are_left_out() -> None:
    limits = Limits(3, frozenset({0}))
    prompts = PromptSet("x", [Case([length], ()) for length in (1, 2, 5)], frozenset({0}))

    def method(cases: Sequence[Case], limits: Limits) -> Run:
        return Run([[7] * cases[0].prompt[0] + [0]] if cases[0].prompt[0] < 3 else [[7, 7, 7]])

    left, left_out = speed._ending(prompts, {"copyspec": method}, limits)
    assert ([case.prompt for case in left.cases], left_out) == ([[1], [2]], 1)
    endless = PromptSet("x", prompts.cases[2:], frozenset({0}))
    assert speed._ending(endless, {"hf": method}, limits) == (endless, 0)

    def never(cases: Sequence[Case], limits: Limits) -> Run:
        return Run([[7, 7, 7]])

    assert speed._ending(prompts, {"copyspec": never, "plain": method}, limits) == (left, 1), "the baseline decides"


def test_texts_come_with_the_sources_of_generate() -> None:
    model = Model("tiny", tiny_model(), tiny_tokenizer(), frozenset({0}))
    case = text_set(model, "sentences", limit=1).cases[0]
    assert [source.kind for source in case.sources] == ["edit", "prompt"]
    assert list(case.sources[1].tokens) == case.prompt
    assert model.tokenizer is not None
    prompt = model.tokenizer.decode(case.prompt)
    assert prompt.startswith("<|user|>Correct the grammar: The gardener") and prompt.endswith("<|assistant|>")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "shape:llama-8"], "no shape 'llama-8'"),
        (["--model", "nowhere"], "no model in 'nowhere'"),
        (["--model", "shape:tiny-llama", "--methods", "hf,lookup"], "no method 'lookup'"),
        (["--model", "shape:tiny-llama", "--methods", "hf-assistant"], "needs --assistant"),
        (["--model", "shape:tiny-llama", "--prompts", "sentences"], "has no tokenizer"),
        (["--model", "shape:tiny-llama", "--transcripts", "x"], "give the tokenizer of that architecture"),
        (["--model", "shape:tiny-llama", "--batch-size", "2", "--methods", "hf-prompt-lookup"], "one prompt at a time"),
        (["--model", "shape:tiny-llama", "--assistant", "x"], "speaks for itself"),
    ],
)
def test_wrong_calls_say_what_is_wrong(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert speed.main(words) == 2
    assert message in capsys.readouterr().err


def test_shapes_have_their_published_size() -> None:
    billions = {
        "llama-160m": 0.16,
        "llama-7b": 6.74,
        "llama3-8b": 8.03,
        "mistral-7b": 7.24,
        "qwen2.5-0.5b": 0.49,
        "qwen2.5-7b": 7.62,
    }
    for name, expected in billions.items():
        sizes = dict(SHAPES[name])
        from transformers import AutoConfig, AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(str(sizes.pop("model_type")), **sizes))
        assert model.num_parameters() / 1e9 == pytest.approx(expected, abs=0.006), name


def test_the_built_in_texts_are_what_they_say() -> None:
    sentences, paragraphs = lines(), lines(DATA / "paragraphs.txt")
    assert len(set(sentences)) >= 40 and len(set(paragraphs)) >= 15
    for paragraph in paragraphs:
        ends = sum(paragraph.count(mark) for mark in ".?!") + (not paragraph.endswith((".", "?", "!")))
        assert 3 <= ends <= 6, paragraph
