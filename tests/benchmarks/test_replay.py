"""The replay benchmark: its counting, the published drafting rules, and its reports."""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
import re
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from benchmarks import transcripts
from benchmarks.drafts import cost as draft_cost
from benchmarks.replay import markdown_tables, oracle
from benchmarks.replay import report as replay_report
from benchmarks.replay import run as replay
from benchmarks.replay.figures import Figures
from benchmarks.replay.limits import PromisingBudget, within_mean
from benchmarks.replay.methods import HfPromptLookup, Llma, LongestSuffix, PromptLookup, ShallowAggressive
from benchmarks.replay.priors import priors_json
from benchmarks.replay.terminal import terminal
from copyspec.budget import Budget
from copyspec.drafters.copying import estimates
from copyspec.tree import EMPTY, DraftTree

EOS = 9
FIELDS = [field.name for field in dataclasses.fields(Figures)]
RECORDED = Path(__file__).parents[3] / "shared" / "data"


class Always:
    """Drafts the right tokens, `length` per call."""

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


def assert_equal_drafts(prompt: Sequence[int], output: Sequence[int], eos: int, rng: random.Random) -> None:
    """Hugging Face's class and the dictionary draft the same before every token, with outputs extended in random
    pieces."""
    drafters = HfPromptLookup(prompt, [], eos), PromptLookup(prompt, [], eos)
    at = 0
    while True:
        ours, theirs = (list(drafter.propose(Budget(32)).tokens) for drafter in drafters)
        assert ours == theirs, (prompt, output[:at])
        if at == len(output):
            return
        end = min(len(output), at + rng.randint(1, 4))
        for drafter in drafters:
            drafter.accept(output[at:end])
        at = end


def test_prompt_lookup_drafts_as_the_class_of_transformers() -> None:
    """Random tokens from a small vocabulary give many matches; prompts may contain end-of-sequence tokens."""
    rng = random.Random(0)
    for _ in range(60):
        kinds = rng.randint(1, 12)
        prompt, output = ([rng.randint(0, kinds) for _ in range(rng.randint(1, 60))] for _ in range(2))
        assert_equal_drafts(prompt, output, EOS, rng)


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded outputs are not beside this checkout")
def test_prompt_lookup_drafts_as_the_class_of_transformers_on_recorded_outputs() -> None:
    tokenizer = transcripts.load_tokenizer(RECORDED / "tokenizers" / "llama3.tokenizer.json.gz")
    files = [RECORDED / "transcripts" / f"{task}.jsonl.gz" for task in ("gec_document", "rag", "chat")]
    eos = transcripts.end_token(tokenizer)
    for row in transcripts.choose_rows(transcripts.read_transcripts(files), 1):
        tokens = transcripts.tokenise(row, tokenizer, eos)
        assert_equal_drafts(tokens.prompt, tokens.output, eos, random.Random(0))


def test_longest_suffix_takes_the_latest_of_the_longest() -> None:
    assert drafted(LongestSuffix([1, 2, 3, 5, 1, 2, 4, 6], [[0, 1, 2, 8]], EOS), [0, 1, 2]) == [8]
    assert drafted(LongestSuffix([1, 2, 3, 5, 1, 2, 4, 6], [], EOS), [1, 2])[:2] == [4, 6]


def test_llma_takes_the_first_occurrence_of_the_longest_ngram_of_the_output() -> None:
    references = [[1, 2, 3, 4], [7, 1, 2, 5]]
    assert drafted(Llma([], references, EOS), [1, 2]) == [3, 4]
    assert drafted(Llma([], references, EOS), [7, 1, 2]) == [5]
    assert drafted(Llma([1, 2, 3], references, EOS), []) == []


def test_llma_copies_nineteen_tokens_after_at_most_five() -> None:
    reference = list(range(100, 160))
    assert drafted(Llma([], [[103, 7], reference], EOS), [101, 102, 103]) == reference[4:23]
    five = [
        [1, 102, 103, 104, 105, 106, 7],
        reference,
    ]  # the sixth token back does not count, so this is the first occurrence
    assert drafted(Llma([], five, EOS), [101, 102, 103, 104, 105, 106]) == [7]


def test_shallow_aggressive_decoding_resumes_on_a_unique_ngram() -> None:
    source = [1, 2, 3, 4, 2, 5]
    assert drafted(ShallowAggressive([], [source], EOS), []) == source
    assert drafted(ShallowAggressive([], [source], EOS), [1, 2]) == [3, 4, 2, 5]
    assert drafted(ShallowAggressive([], [source], EOS), [1, 8]) == []
    assert drafted(ShallowAggressive([], [source], EOS), [1, 8, 2]) == []
    assert drafted(ShallowAggressive([], [source], EOS), [1, 8, 2, 3]) == [4, 2, 5]
    assert drafted(ShallowAggressive([], [source], EOS), [1, 8, 4, 2]) == [5]
    assert drafted(ShallowAggressive([], [source], EOS), [1, 8, 2, 5]) == []


def published_sad(source: Sequence[int], output: Sequence[int]) -> int:
    """Count the calls of the published algorithm. `output` ends with EOS, which `source` does not contain."""
    ends: dict[tuple[int, ...], list[int]] = {}
    for end in range(1, len(source) + 1):
        for n in range(1, min(3, end) + 1):
            ends.setdefault(tuple(source[end - n : end]), []).append(end)
    at = calls = 0
    while at < len(output):
        start = 0 if at == 0 else -1
        for n in range(1, min(3, at) + 1) if at else ():
            places = ends.get(tuple(output[at - n : at]), [])
            if len(places) == 1:
                start = places[0]
                break
        calls += 1
        rest = source[start:] if start >= 0 else []
        right = next((i for i, token in enumerate(rest) if token != output[at + i]), len(rest))
        at += right + 1
    return calls


def test_shallow_aggressive_decoding_makes_the_published_calls() -> None:
    rng = random.Random(1)
    for _ in range(100):
        source = [rng.randint(10, 24) for _ in range(rng.randint(1, 30))]
        output = [token for token in source if rng.random() < 0.9]
        output = [rng.randint(10, 24) if rng.random() < 0.15 else token for token in output] + [EOS]
        tally = replay.Tally()
        replay.replay(ShallowAggressive([], [source], EOS), output, Budget(100), tally)
        assert tally.calls == published_sad(source, output), (source, output)


def test_a_budget_keeps_what_promises_enough() -> None:
    budget = PromisingBudget(9, least_score=0.2)
    assert budget.cut([0.9, 0.5, 0.21, 0.1]) == 3
    assert budget.cut([0.15, 0.35, 0.1]) == 2, "a good node behind one that is less so"
    assert budget.cut([0.1]) == 0
    assert budget.cut([0.9] * 20) == 9, "no more than a call may carry"


def counts_of(trees: Sequence[Sequence[float]], budget: Budget) -> replay.Tally:
    """Count calls whose trees have these scores."""
    return replay.Tally(calls=len(trees), nodes=sum(budget.cut(scores) for scores in trees))


@pytest.mark.parametrize("mean", [1.0, 2.5, 8.0, 40.0])
def test_the_mean_of_nodes_is_used_and_not_exceeded(mean: float) -> None:
    rng = random.Random(0)
    trees = [sorted((rng.random() ** 2 for _ in range(32)), reverse=True) for _ in range(500)]
    measured = within_mean(lambda budget: counts_of(trees, budget), mean, 32)
    assert 0.95 * min(mean, 32) <= measured.nodes / measured.calls <= mean


def test_trees_are_large_where_drafts_are_sure_and_small_elsewhere() -> None:
    sure, poor = [0.95**depth for depth in range(1, 33)], [0.3 / rank for rank in range(1, 33)]
    nodes: dict[bool, int] = {}

    def measure(budget: Budget) -> replay.Tally:
        nodes.update({True: budget.cut(sure), False: budget.cut(poor)})
        return counts_of([sure, poor, poor, poor], budget)

    within_mean(measure, 8, 32)
    assert nodes[True] > 15 and nodes[False] < 5


def test_drafts_that_are_all_certain_are_made_shorter() -> None:
    measured = within_mean(lambda budget: counts_of([[1.0] * 24, [1.0] * 3], budget), 8, 32)
    assert measured.nodes == 16, "13 and 3 nodes"


def write(folder: Path, words: Sequence[str], rows: Sequence[dict[str, object]]) -> tuple[Path, Path]:
    """Write transcripts, and a tokenizer of these words."""
    vocabulary = ["[UNK]", "</s>", *words]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    with gzip.open(folder / "rows.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    return folder, folder / "tokenizer.json"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A tokenizer of words, and transcripts of an editing task and of another task."""
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "far", "away", "from", "it"]
    source = "the cat sat on a mat and the dog ran far away from it"
    common = {"prompt": f"the {source} cat", "references": [source], "group": "g", "model": "m"}
    rows = [
        {**common, "id": "edits-m-1", "task": "gec", "output": source.replace("mat", "dog")},
        {**common, "id": "answers:2", "task": "rag", "output": "the dog ran far away from it"},
    ]
    return write(tmp_path, words, rows)


def test_command_prints_a_table_and_writes_json(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tokenizer = files
    out = tmp_path / "figures.json"
    assert replay.main([str(folder), "--tokenizer", str(tokenizer), "--nodes", "8", "--json", str(out)]) == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert [list(line) for line in figures] == [FIELDS] * 2 * len(replay.METHODS)
    assert {(line["task"], line["set"]) for line in figures} == {("gec", "edits"), ("rag", "answers")}
    for line in figures:
        assert line["tokens_per_call"] == pytest.approx(line["output_tokens"] / line["calls"], abs=1e-3)
    by_method = {line["method"]: line for line in figures if line["task"] == "gec"}
    assert by_method["copyspec"]["output_tokens"] == 15  # fourteen words and the end of sequence
    assert by_method["copyspec"]["calls"] < by_method["prompt-lookup"]["calls"]
    assert by_method["hf-prompt-lookup"]["calls"] == by_method["prompt-lookup"]["calls"]
    table = capsys.readouterr().out
    assert "median over the sets" in table and "at most 8 nodes a call" in table
    assert max(len(line) for line in table.splitlines()) <= 80


def test_several_limits_and_a_mean_of_nodes(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tokenizer = files
    out = tmp_path / "figures.json"
    arguments = [str(folder), "--tokenizer", str(tokenizer), "--methods", "copyspec,sad", "--nodes", "16,4"]
    assert replay.main([*arguments, "--mean-nodes", "2.5", "--json", str(out)]) == 0
    figures = [Figures(**line) for line in json.loads(out.read_text(encoding="utf-8"))]
    assert [line.nodes for line in figures] == [16] * 4 + [4] * 4
    assert all(line.nodes_per_call <= 2.5 == line.mean_nodes for line in figures)
    assert "at most 4 nodes a call, 2.5 on average" in capsys.readouterr().out


def test_methods_of_peers_say_what_they_need(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "arctic_inference", None)  # makes the import fail, as if it were not installed
    with pytest.raises(SystemExit):
        replay.main([str(files[0]), "--tokenizer", str(files[1]), "--methods", "copyspec,arctic"])
    assert "arctic runs the compiled code of arctic-inference, which is not installed" in capsys.readouterr().err


def test_peers_are_compared_at_the_same_limit() -> None:
    def line(method: str, tokens: float, mean: float | None = None) -> Figures:
        return Figures("code_edit", "edits", "m", method, 32, 5, 100, 20, tokens, 7.5, 1.0, 1.0, mean)

    report = markdown_tables.Report(
        command="", date="", machine={}, versions={}, rows=5,
        figures=[line("copyspec", 9.0)], mean_figures=[line("copyspec", 6.0, 8.0)], few_rows=2, few_figures=[],
        peer_figures=[line("arctic", 7.0), line("arctic", 6.5, 8.0)],
    )  # fmt: skip
    table = markdown_tables.same_rows_table(report)
    assert "| 7.00 [7.5] | 6.50 [7.5] | 9.00 [7.5] | 6.00 [7.5] |" in table
    assert "6.00 against 6.50 of Arctic (at most 32 nodes a call, 8 on average)" in table
    assert table.count("against") == 1, "32 nodes at most are compared with 32 at most"


class Page(HTMLParser):
    """Collects the tags of a page in order, and the number of open ones; void elements are not counted."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(files: tuple[Path, Path], tmp_path: Path) -> None:
    folder, tokenizer = files
    out = tmp_path / "page.html"
    arguments = [str(folder), "--tokenizer", str(tokenizer), "--methods", "copyspec,hf-prompt-lookup,prompt-lookup"]
    assert replay.main([*arguments, "--html", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in page.found}
    assert not any(name in attributes for _, attributes in page.found for name in ("src", "href"))
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text
    marks = [attributes for tag, attributes in page.found if tag == "g" and "transform" in attributes]
    assert len([mark for mark in marks if "class" in mark]) == 2 * 2, "two sets; of two prompt lookups one is drawn"
    assert "prompt-lookup, answers m: " in text and "--methods copyspec,hf-prompt-lookup" in text
    for title in ("Tokens per call by set and method", "tokens per call of the model", "How it was measured"):
        assert title in text


def test_the_chart_as_a_picture(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tokenizer = files
    arguments = [str(folder), "--tokenizer", str(tokenizer), "--methods", "copyspec,sad"]
    out = tmp_path / "chart.png"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(SystemExit):
            replay.main([*arguments, "--png", str(out)])
    assert ".[benchmarks]" in capsys.readouterr().err and not out.exists()
    pytest.importorskip("matplotlib")
    assert replay.main([*arguments, "--png", str(out)]) == 0
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_documented_tables_are_those_of_the_figures() -> None:
    report = markdown_tables.read()
    assert report is not None
    page = replay_report.PAGE.read_text(encoding="utf-8")
    assert replay_report.filled(page, report) == page, "run: python -m benchmarks.replay.report"
    assert {line.method for line in report.figures} >= set(replay.METHODS)
    assert all(line.nodes_per_call <= replay_report.MEAN_NODES for line in report.mean_figures)
    tables = re.findall(r"^\|.*\|$", page, re.MULTILINE)
    for key in {line.key for line in report.figures}:
        assert any(key[1] in row or key[2] in row for row in tables), key
    assert replay_report.CHART.stat().st_size < 150_000


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
        (context, kind) for context in (50, 100) for kind in draft_cost.KINDS
    ]
    assert all(cost["draft_us_p50"] > 0 and cost["first_us_p50"] > 0 for cost in costs)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        draft_cost.main([*arguments, "--repeat", "0"])
    assert "--repeat 0 measures nothing" in capsys.readouterr().err
    assert draft_cost.main([*arguments[:-1], "5000"]) == 2
    assert "give a longer text" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "fitted"), [("priors.json", estimates.NAMED), ("priors_found.json", estimates.FOUND)])
def test_the_priors_are_as_their_command_writes_them(name: str, fitted: estimates.Priors) -> None:
    content = Path(estimates.__file__).with_name(name).read_text(encoding="utf-8")
    assert priors_json(fitted.weights, fitted.crowds) == content


def test_wrong_calls_say_what_to_give(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tokenizer = files
    assert replay.main([str(tmp_path / "nowhere"), "--tokenizer", str(tokenizer)]) == 2
    assert "jsonl.gz" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        replay.main([str(folder), "--tokenizer", str(tokenizer), "--methods", "magic"])
    assert "'magic'" in capsys.readouterr().err
    wrong = {"--nodes": "0", "--mean-nodes": "none", "--rows": "-1", "--json": str(tmp_path / "no" / "folder.json")}
    for option, value in wrong.items():
        with pytest.raises(SystemExit):
            replay.main([str(folder), "--tokenizer", str(tokenizer), f"{option}={value}"])
        said = capsys.readouterr().err
        assert option in said and repr(value) in said
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        transcripts.load_tokenizer(tmp_path / "none.json")


def test_rows_are_chosen_by_set_and_seed() -> None:
    rows = [transcripts.Transcript(str(n), "t", str(n % 2), "m", "g", "", (), "") for n in range(40)]
    chosen = transcripts.choose_rows(rows, 5, seed=1)
    assert len(chosen) == 10 and chosen == transcripts.choose_rows(rows, 5, seed=1)
    assert chosen != transcripts.choose_rows(rows, 5, seed=2)
    assert transcripts.choose_rows(rows, None) == rows


def test_an_oracle_head_adds_what_it_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside copies it names new words, and costs next to nothing where it knows none."""
    draw, words, rows = random.Random(0), [f"w{number}" for number in range(300)], list[dict[str, object]]()
    for number in range(6):
        source = draw.sample(words, 40)
        output = " ".join([draw.choice(words) if draw.random() < 0.3 else word for word in source])
        texts = {"prompt": " ".join(source), "references": [" ".join(source)], "output": output}
        rows.append({"id": f"edits:{number}", "task": "code_edit", "group": f"{number}", "model": "m", **texts})
    (folder, tokenizer), report = write(tmp_path, words, rows), tmp_path / "heads.json"
    arguments = [str(folder), "--tokenizer", str(tokenizer), "--accuracy"]
    assert oracle.main([*arguments, ".01,.5,.9", "--json", str(report)]) == 0
    alone, *heads = json.loads(report.read_text())
    assert (alone["accuracy"], alone["steps_per_pass"], alone["cost"]) == (0.0, 0.0, 1.0)
    passes = [line["tokens_per_pass"] for line in heads]
    assert passes[0] >= 0.95 * alone["tokens_per_pass"] and passes[2] > passes[1] > alone["tokens_per_pass"]
    assert heads[0]["cost"] < 1.05 and heads[2]["cost"] < heads[1]["cost"] < 1.0
    with pytest.raises(SystemExit):
        oracle.main([*arguments, "1.5"])
    assert "no list of shares" in capsys.readouterr().err


def test_the_table_takes_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"method-{number}-of-some" for number in range(9)]
    figures = [Figures("rag", "set", "m", name, 32, 5, 100, 20, 2.0, 7.5, 1.0, 1.0) for name in names]
    for width, tables in ((80, 2), (60, 3), (300, 1)):
        monkeypatch.setenv("COLUMNS", str(width))
        text = terminal(figures)
        heads = [line for line in text.splitlines() if line.startswith("Tokens per call")]
        assert len(heads) == tables and max(map(len, text.splitlines())) <= width
        assert all(line.endswith(", further methods") for line in heads[1:]) and "further" not in heads[0]
