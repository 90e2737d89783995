"""Pipelines on a tiny random model: their requests to the engine, and how they use its output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import processors

import copyspec
from copyspec import Input
from copyspec.engine.results import Result, Stats
from copyspec.models.loading import BUNDLED
from copyspec.pipelines import (
    EditPipeline,
    FileOptions,
    GECPipeline,
    GuardOptions,
    LateCorrector,
    ModelCorrector,
    ModelOptions,
    answer,
)
from copyspec.pipelines.rag.quoting import is_near
from copyspec.targets.rows.prefixes import BLOCK_TOKENS
from pipelines.instructions import fill
from pipelines.models import wants_chat
from tests.helpers.fake_server import Sent, completion, fake_server
from tests.helpers.tiny import tiny_engine, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("steady_drafts")


@pytest.fixture(scope="module")
def engine() -> copyspec.Engine:
    return tiny_engine()


@pytest.fixture
def calls(engine: copyspec.Engine, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Make the engine answer each prompt with its text in upper case, in reverse order, and record the calls."""
    seen: list[dict[str, object]] = []

    def generate(prompt: object, references: object = None, **options: object) -> Result:
        seen.append({"prompt": prompt, "references": references, **options})
        return _result(" The kettle is red.")

    def generate_each(inputs: Iterable[Input | None], **options: object) -> Iterator[tuple[int, Result]]:
        taken = list(takewhile(lambda input_: input_ is not None, inputs))
        seen.extend({"prompt": input_.prompt, "edit_source": input_.edit_source, **options} for input_ in taken)
        for index, input_ in reversed(list(enumerate(taken))):
            yield index, _result(" " + str(input_.prompt).rpartition(": ")[2].upper())

    monkeypatch.setattr(engine, "generate", generate)
    monkeypatch.setattr(engine, "generate_each", generate_each)
    return seen


def _result(text: str) -> Result:
    cut = "CUT" in text
    return Result(text, (1, 2), "length" if cut else "stop", None, prompt_tokens=3, stats=Stats())


@dataclass
class Asked:
    """A model that answers each prompt with its text in upper case, and what it was asked: prompt and edited text."""

    model: copyspec.Engine | copyspec.Remote
    calls: Callable[[], list[tuple[str, str]]]


@pytest.fixture(params=["here", "behind a URL"])
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    """The same for a model in this process and one behind a URL."""
    if request.param == "here":
        calls: list[dict[str, object]] = request.getfixturevalue("calls")
        engine: copyspec.Engine = request.getfixturevalue("engine")
        yield Asked(engine, lambda: [(str(call["prompt"]), str(call["edit_source"])) for call in calls])
        assert all(call["chat"] is True for call in calls)
        return
    pytest.importorskip("openai")

    def reply(body: dict[str, Any]) -> Sent:
        text = body["messages"][-1]["content"].rpartition(": ")[2].upper()
        return Sent(completion(text, finish="length" if "CUT" in text else "stop"))

    card = {"id": "m", "owned_by": "copyspec", "max_model_len": 1024}
    with fake_server(reply, [card]) as server, copyspec.remote(server.url) as remote:
        yield Asked(remote, lambda: [(body["messages"][-1]["content"], body["edit_source"]) for body in server.bodies])


def test_corrections_come_in_order_and_keep_the_white_space(asked: Asked) -> None:
    corrections = GECPipeline(asked.model)(["one", "  two\n", "", " \n\t", "three\u2028"])
    assert [c.text for c in corrections] == ["ONE", "  TWO\n", "", " \n\t", "THREE\u2028"]
    assert [c.changed for c in corrections] == [True, True, False, False, True]
    assert corrections[2].result is None and corrections[2].is_complete
    assert sorted(source for _, source in asked.calls()) == ["one", "three", "two"]
    assert all(prompt == f"Correct the grammar: {source}" for prompt, source in asked.calls())


def test_one_text_gives_one_correction(asked: Asked) -> None:
    assert GECPipeline(asked.model, instruction="Fix: {text}")("one").text == "ONE"
    assert asked.calls()[0][0] == "Fix: one"


def test_an_output_that_was_cut_keeps_the_source(asked: Asked) -> None:
    cut = GECPipeline(asked.model)("a cut text")
    assert (cut.text, cut.changed, cut.is_complete) == ("a cut text", False, False)
    assert [refusal.reason for refusal in cut.refused] == ["cut"]


def test_an_output_that_time_has_cut_says_so() -> None:
    engine = tiny_engine()
    engine.model.generation_config.max_time = 1e-9
    refusals = [GECPipeline(engine)("He go home.").refused[0], EditPipeline(engine)("He go home.", "Do it").refusal]
    for refusal in refusals:
        assert refusal is not None and refusal.reason == "cut"
        assert re.match(r"cut after \d+ tokens? by max_time in the model's generation_config: ", refusal.detail)


def test_a_list_with_something_else_in_it_names_it(engine: copyspec.Engine) -> None:
    with pytest.raises(TypeError, match=r"texts\[1\] must be a str; got int: 5"):
        GECPipeline(engine)(["abc", 5])  # type: ignore[list-item]


def test_a_text_longer_than_the_context_is_split(asked: Asked) -> None:
    corrected = GECPipeline(asked.model, guards=GuardOptions(max_edit_ratio=1))("He go. " * 400)
    assert corrected.text == "HE GO. " * 400
    assert all(len(source) < 1000 for _, source in asked.calls()) and len(corrected.results) == len(asked.calls())
    assert corrected.is_complete and corrected.fits


def test_a_text_without_a_place_to_split_keeps_its_source(
    engine: copyspec.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    long = "He" * 1500
    short, none, whole, last = GECPipeline(engine, max_new_tokens=5)(["He go.", "", long, "We was."])
    assert whole.text == long and not whole.fits and not whole.is_complete and whole.result is None
    assert none.is_complete and short.result is not None and last.result is not None
    assert "parts of 4 texts were left unchanged: 2 cut, 1 length" in caplog.text
    GECPipeline(engine)(long)
    assert "parts of 1 text were left unchanged: 1 length" in caplog.text


def test_what_the_tokenizer_wraps_by_itself_is_no_chat() -> None:
    wrapping = tiny_tokenizer()
    ends = [("<|user|>", 1), ("<|assistant|>", 2)]
    wrapping.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|user|> $A <|assistant|>", special_tokens=ends
    )
    own, chat = copyspec.Engine(tiny_model(), wrapping), tiny_engine()
    assert not wants_chat(own) and wants_chat(chat)
    corrected = [GECPipeline(one, max_new_tokens=20)("He go.").result for one in (own, chat)]
    assert corrected[0] is not None and corrected[1] is not None
    assert corrected[0].token_ids == corrected[1].token_ids


def test_nothing_to_correct_asks_nothing(engine: copyspec.Engine, calls: list[dict[str, object]]) -> None:
    assert GECPipeline(engine)([]) == [] and not calls


@pytest.mark.parametrize("texts", [["He go home.", "We was late!", "a {text} b"]])
def test_corrections_against_plain_decoding(texts: list[str]) -> None:
    engine = copyspec.Engine(tiny_model(1), tiny_tokenizer())
    copied = GECPipeline(engine, max_new_tokens=30)(texts)
    for text, correction in zip(texts, copied, strict=True):
        plain = engine.generate("Correct the grammar: " + text, chat=True, drafter="none", max_new_tokens=30)
        assert correction.result is not None and correction.result.token_ids == plain.token_ids


def test_a_model_without_chat_template_gets_plain_text(calls: object) -> None:
    engine = copyspec.Engine(tiny_model(), tiny_tokenizer(chat=False))
    assert GECPipeline(engine, max_new_tokens=5)("He go.").result is not None


def test_answers_are_located_in_their_passage(engine: copyspec.Engine, calls: list[dict[str, object]]) -> None:
    passages = ["Cups stand on a shelf.", "Look at the stove. The kettle is red. It is old.", "Nothing more."]
    quote = answer("Which colour is the kettle?", passages, model=engine)
    assert (quote.text, quote.passage, quote.is_verbatim) == ("The kettle is red.", 1, True)
    assert passages[1][quote.start : quote.end] == quote.text
    assert calls[0]["references"] == [passages[1]]
    assert calls[0]["prompt"] == f"Quote the sentence that answers: Which colour is the kettle?\n{passages[1]}"


def test_an_answer_in_other_words_has_no_place(engine: copyspec.Engine, calls: list[dict[str, object]]) -> None:
    quote = answer("kettle?", ["The kettle was red."], model=engine)
    assert (quote.start, quote.end, quote.is_verbatim) == (None, None, False)


def test_a_question_that_shares_no_word_is_told(
    engine: copyspec.Engine, calls: list[dict[str, object]], caplog: pytest.LogCaptureFixture
) -> None:
    assert answer("kettle?", ["Nothing.", "A kettle.", "kettle kettle"], model=engine).is_found
    assert not caplog.records
    quote = answer("xyzzy", ["Nothing.", "A kettle."], model=engine)
    assert (quote.passage, quote.is_found) == (0, False)
    assert "no passage shares a word with the question 'xyzzy'" in caplog.text


def test_a_quote_far_from_the_question_is_no_answer(
    engine: copyspec.Engine, calls: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    passage = "The red kettle boils. It is old. Cups stand there. Trains leave at nine. Buses leave at ten."
    wanted = iter(["Buses leave at ten.", "Buses leave at ten.", "Buses leave at ten.", "It is old."])
    generate = engine.generate
    monkeypatch.setattr(
        engine, "generate", lambda *args, **options: replace(generate(*args, **options), text=next(wanted))
    )
    quote = answer("How does a kettle boil?", [passage, "Other."], model=engine)
    assert (quote.text, quote.start, quote.citations, quote.is_found) == ("", None, (), False)
    assert "The red kettle boils." in str(calls[1]["prompt"]) and "Trains" not in str(calls[1]["prompt"])
    quote = answer("How does a kettle boil?", [passage, "Other."], model=engine)
    assert (quote.text, quote.is_found, passage[quote.start : quote.end]) == ("It is old.", True, "It is old.")
    place = passage.index("Cups")
    assert not is_near("kettle?", passage, place, place + 4) and is_near("kettle?", passage, place - 11, place - 1)


def test_a_late_corrector_loads_nothing_before_it_is_asked(engine: copyspec.Engine) -> None:
    made = []

    def make() -> ModelCorrector:
        made.append(1)
        return ModelCorrector(engine)

    pipeline = GECPipeline(LateCorrector(make))
    assert not made and pipeline("") and not made


def test_instructions_need_their_fields(engine: copyspec.Engine) -> None:
    with pytest.raises(ValueError, match=r"has no \{text\}"):
        GECPipeline(engine, instruction="Correct this")
    with pytest.raises(ValueError, match=r"has no \{passage\}"):
        answer("q", ["word"], model=engine, instruction="{question}")


def test_filling_leaves_other_braces_alone() -> None:
    assert fill("{a} {x} {b}", a="{b}", b="{a}\\1") == "{b} {x} {a}\\1"


@pytest.mark.skipif(not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout")
@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_bundled_model_corrects_files_as_it_would_plainly(batch_size: int, tmp_path: Path) -> None:
    engine = copyspec.load(str(BUNDLED), dtype="float32")
    essay = (Path(__file__).parents[2] / "examples" / "texts" / "essay.txt").read_bytes()
    texts = []
    for drafts in (True, False):
        file = tmp_path / "essay.txt"
        file.write_bytes(essay.replace(b"\n", b"\r\n\r\n"))
        pipeline = GECPipeline(engine, batch_size=batch_size, drafts=drafts)
        (report,) = pipeline.files(file, FileOptions(in_place=True))
        texts.append(file.read_bytes())
        assert report.is_changed and report.summary.edits > 0 and report.error is None
    assert texts[0] == texts[1] != essay.replace(b"\n", b"\r\n\r\n")
    assert texts[0].count(b"\r\n\r\n") == essay.count(b"\n")


@pytest.mark.parametrize(("batch_size", "dtype", "shares"), [(2, "float32", True), (1, "bfloat16", False)])
def test_a_long_instruction_is_read_once(batch_size: int, dtype: str, shares: bool) -> None:
    instruction = "Correct the grammar. " + "Ted maked tea: Ted made tea. " * 6 + "{text}: "
    texts = [f"The {noun} is red and the kettles is blue." for noun in ("wall", "door", "roof", "gate", "lamp")]
    model = tiny_model().to(getattr(torch, dtype))
    engine = copyspec.Engine(model, tiny_tokenizer(chat=False))
    options = ModelOptions(instruction=instruction, batch_size=batch_size, max_new_tokens=8)
    outcomes = dict(ModelCorrector(engine, options).correct(texts))
    template = instruction.partition("{text}")[0]
    alone = [engine.generate(template + text + ": ", max_new_tokens=8, drafter="none") for text in texts]
    if dtype == "float32":
        assert [outcomes[i].result.token_ids for i in range(5)] == [result.token_ids for result in alone]
    assert (outcomes[4].result.stats.num_cached_tokens >= BLOCK_TOKENS) is shares
    assert len(engine.prefix_cache) <= len(engine.codec.encode(template).ids)
