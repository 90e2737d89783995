"""The runner: everything once, in order and in bounded memory, whatever order a corrector finishes in."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import copyspec
from copyspec.pipelines import (
    Correction,
    Corrector,
    Edit,
    FunctionCorrector,
    GECPipeline,
    GuardOptions,
    ModelCorrector,
    ModelOptions,
    Outcome,
    Part,
    Refusal,
    Runner,
    RunOptions,
    Segment,
    Work,
)
from copyspec.pipelines.editing import runner as runner_module
from copyspec.pipelines.editing.journal import Journal
from copyspec.pipelines.edits.diff import apply
from copyspec.pipelines.models import ENCODER_INSTRUCTION, engine_in, fingerprint, instruction_for
from tests.helpers.models import tiny
from tests.helpers.own_generate import generated_each
from tests.helpers.texts import bart, byte_level, llama, sentencepiece_like
from tests.helpers.tiny import tiny_engine, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("steady_drafts")


class Shuffled:
    """A corrector that finishes texts in random order, holds some back while it can take more, and counts its texts."""

    by_sentence = False
    limit: int | None = None
    identity: Mapping[str, object] = {"name": "shuffled"}

    def __init__(self, function: Callable[[str], str] = str.upper, *, rows: int = 4, seed: int = 0) -> None:
        self.function, self.rows, self.rng = function, rows, random.Random(seed)
        self.asked: list[str] = []

    def length(self, text: str) -> int:
        return len(text)

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        running: list[tuple[int, str]] = []
        numbers = itertools.count()
        source = iter(texts)
        is_empty = False
        while not is_empty or running:
            while not is_empty and len(running) < self.rows:
                try:
                    text = next(source)
                except StopIteration:
                    is_empty = True
                    break
                if text is None:
                    break
                running.append((next(numbers), text))
                self.asked.append(text)
            if running:
                index, text = running.pop(self.rng.randrange(len(running)))
                yield index, Outcome(self.function(text))


FREE = RunOptions(GuardOptions(max_edit_ratio=100, any_language=True, allow_swaps=True, allow_numbers=True), pack=0)


def part(text: str) -> Part:
    return Part(text, (Segment(0, len(text)),) if text.strip() else ())


def corrected(runner: Runner, texts: Iterable[str]) -> list[str]:
    return [
        apply(done.part.text, done.edits)
        for done in runner.run(Work(None, part(text)) for text in texts)
        if done.part is not None
    ]


@settings(max_examples=60)
@given(
    texts=st.lists(st.sampled_from(["", " ", "ab", "cd ef", "gh", "ij kl mn", "op"]), max_size=40),
    rows=st.integers(1, 6),
    pack=st.sampled_from([0, 1, 5, 32]),
    seed=st.integers(0, 5),
)
def test_parts_come_in_order_each_once(texts: list[str], rows: int, pack: int, seed: int) -> None:
    corrector = Shuffled(rows=rows, seed=seed)
    options = RunOptions(
        GuardOptions(max_edit_ratio=100, any_language=True, allow_swaps=True, allow_numbers=True), pack=pack
    )
    assert corrected(Runner(corrector, options), texts) == [text.upper() for text in texts]
    assert sorted(corrector.asked) == sorted({text for text in texts if text.strip()})


@settings(max_examples=30)
@given(seed=st.integers(0, 20), limit=st.integers(1, 6))
def test_the_look_ahead_is_bounded(seed: int, limit: int) -> None:
    taken = 0

    def works() -> Iterator[Work[int]]:
        nonlocal taken
        for index in range(60):
            taken += 1
            yield Work(index, part(f"text {index}" if index % 3 else ""))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_module, "LOOKAHEAD_PARTS", limit)
        given_back = 0
        for done in Runner(Shuffled(seed=seed), FREE).run(works()):
            assert done.owner == given_back
            given_back += 1
            assert taken - given_back <= limit
    assert given_back == 60


def test_characters_bound_it_too_and_one_long_part_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "LOOKAHEAD_CHARS", 10)
    texts = ["x y " * 12 + "x", "ab", "y" * 5, "z z " * 25 + "z"]
    assert corrected(Runner(Shuffled(), FREE), texts) == [text.upper() for text in texts]


def test_markers_pass_in_their_place() -> None:
    works = [Work(0, part("a b")), Work(1), Work(2, part("c d")), Work(3)]
    done = list(Runner(Shuffled(), FREE).run(works))
    assert [(work.owner, work.part is None) for work in done] == [(0, False), (1, True), (2, False), (3, True)]


def test_texts_are_sorted_by_length_within_a_window_only() -> None:
    corrector = Shuffled(rows=1)
    texts = ["aaa", "b", "cc", "ddddd", "e f g h", "i"]
    assert corrected(Runner(corrector, RunOptions(pack=3)), texts)
    assert corrector.asked == ["aaa", "cc", "b", "e f g h", "ddddd", "i"]


def test_equal_texts_are_asked_once_as_far_as_memory_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    corrector = Shuffled()
    texts = ["same text", "other", "same text"] * 5
    done = list(Runner(corrector, FREE).run(Work(None, part(text)) for text in texts))
    assert sorted(corrector.asked) == ["other", "same text"]
    assert sum(piece.was_known for work in done for piece in work.pieces) == 13
    monkeypatch.setattr(runner_module, "MEMO_CHARS", 3)
    corrector = Shuffled(rows=1)
    assert corrected(Runner(corrector, FREE), texts) == [text.upper() for text in texts]
    assert len(corrector.asked) > 2


def test_guards_decide_and_are_told() -> None:
    (done,) = Runner(FunctionCorrector(lambda text: text.replace("7", "8"))).run([Work(None, part("He has 7 cat"))])
    assert not done.edits and [refusal.reason for refusal in done.refusals] == ["numbers"]
    (done,) = Runner(FunctionCorrector(lambda text: "")).run([Work(None, part("He has cat"))])
    assert [refusal.reason for refusal in done.refusals] == ["empty"]


def test_what_a_format_refused_is_passed_on() -> None:
    refusal = Refusal("encoding", "no text")
    (done,) = Runner(Shuffled()).run([Work(None, Part("\udcff", refused=(refusal,)))])
    assert done.refusals == (refusal,)


class Sentences(Shuffled):
    by_sentence = True


def test_sentences_are_given_one_by_one_but_lines_of_a_corpus_whole() -> None:
    corrector = Sentences(rows=1)
    text = "He go. She stay! We was."
    assert corrected(Runner(corrector, FREE), [text]) == [text.upper()]
    assert sorted(corrector.asked) == ["He go.", "She stay!", "We was."]
    tokenized = Part("He go . She stay .", (Segment(0, 18, is_tokenized=True),))
    corrector = Sentences()
    list(Runner(corrector, FREE).run([Work(None, tokenized)]))
    assert corrector.asked == ["He go . She stay ."]


def test_what_is_too_long_is_split_and_what_cannot_be_is_told() -> None:
    corrector = Shuffled(rows=1)
    corrector.limit = 10
    text = "He go. She stay. " + "x" * 30 + " end."
    (done,) = Runner(corrector, FREE).run([Work(None, part(text))])
    assert all(len(asked) <= 10 for asked in corrector.asked) and len(corrector.asked) >= 3
    assert [refusal.reason for refusal in done.refusals] == ["length", "fragment"]
    assert apply(text, done.edits) == "HE GO. SHE STAY. " + "x" * 30 + " end.", "it goes on and gets no capital"


def test_outcomes_go_through_a_journal(tmp_path: Path) -> None:
    texts = ["one", "two", "one", "three"]
    edits: list[list[object]] = []
    asked = []
    for resume in (False, True):
        corrector = Shuffled()
        with Journal(tmp_path / "j", {"a": 1}, resume=resume) as journal:
            assert len(journal) == (3 if resume else 0)
            done = list(Runner(corrector, FREE).run([Work(None, part(text), journal) for text in texts]))
        edits.append([list(work.edits) for work in done])
        asked.append(len(corrector.asked))
    assert edits[0] == edits[1] and asked == [3, 0]
    assert all(piece.was_known for work in done for piece in work.pieces)


def test_equal_texts_of_two_files_stand_in_both_journals(tmp_path: Path) -> None:
    journals = [Journal(tmp_path / name, {}, resume=False) for name in "ab"]
    list(Runner(Shuffled(rows=1), FREE).run(Work(None, part("one two"), journal) for journal in journals))
    for journal in journals:
        journal.close()
    for name in "ab":
        with Journal(tmp_path / name, {}, resume=True) as journal:
            assert len(journal) == 1


def ending(texts: Iterable[str | None]) -> Iterator[str | None]:
    for count, text in enumerate(texts):
        assert count < 1000, "the texts have no end"
        yield text


class Batching(Shuffled):
    """Answers in batches of three, and what is left at the end; drops texts."""

    def __init__(self, *, drops: str = "") -> None:
        super().__init__()
        self.drops = drops

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        waiting: list[tuple[int, str]] = []
        for index, text in enumerate(text for text in ending(texts) if text is not None):
            if text != self.drops:
                waiting.append((index, text))
            if len(waiting) == 3:
                yield from ((number, Outcome(self.function(text))) for number, text in waiting)
                waiting = []
        yield from ((number, Outcome(self.function(text))) for number, text in waiting)


def test_a_corrector_may_wait_for_the_end_and_may_not_leave_out_a_text() -> None:
    texts = ["a b", "c d", "e f", "g h"]
    assert corrected(Runner(Batching(), FREE), texts) == [text.upper() for text in texts]
    with pytest.raises(ValueError, match="the corrector ended without an outcome for 'c d'"):
        corrected(Runner(Batching(drops="c d"), FREE), texts)
    twice = Batching()
    twice.correct = lambda texts: ((0, Outcome("A B")) for _ in [*texts, None])  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="gave an outcome for text 0, which it was not given"):
        corrected(Runner(twice, FREE), texts[:1])


# -- models -------------------------------------------------------------------------------------------------------


def random_sentences(count: int, words: Iterable[str], seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    known = list(words)
    return [" ".join(rng.choices(known, k=rng.randint(2, 6))) + "." for _ in range(count)]


SENTENCES, LIMIT = 60, 12
WORDS = ["the", "The", "cat", "sat", "school", "sea", "goes", "day", "near", "mat", "dog"]


@pytest.mark.parametrize("batch_size", [1, 8])
def test_llama_corrections_equal_generate(batch_size: int) -> None:
    engine = copyspec.Engine(llama(len(byte_level())), byte_level(), name="llama")
    texts = random_sentences(SENTENCES, WORDS)
    check_against_generate(ModelCorrector(engine, ModelOptions(max_new_tokens=LIMIT, batch_size=batch_size)), texts)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_t5_corrections_equal_generate(batch_size: int) -> None:
    tokenizer = sentencepiece_like()
    model = tiny("t5", eos=1, vocab_size=len(tokenizer))
    engine = copyspec.Engine(model, tokenizer, name="tiny t5")
    texts = random_sentences(SENTENCES, WORDS, seed=1)
    check_against_generate(ModelCorrector(engine, ModelOptions(max_new_tokens=LIMIT, batch_size=batch_size)), texts)


def check_against_generate(corrector: ModelCorrector, texts: list[str]) -> None:
    """Check that copied corrections have the tokens of `model.generate`, text by text."""
    engine = engine_in(corrector.model)
    asked: list[str] = []

    def noted() -> Iterator[str]:
        for text in dict.fromkeys(texts):
            asked.append(text)
            yield text

    corrected = list[tuple[Sequence[int], Sequence[int]]]()
    accepted = 0
    for index, outcome in corrector.correct(noted()):
        assert outcome.result is not None
        prompt = corrector.instruction.replace("{text}", asked[index])
        if corrector.chat:
            ids = engine.codec.encode_chat([{"role": "user", "content": prompt}]).ids
        else:
            ids = engine.codec.encode(prompt, wrap=True).ids
        corrected.append((ids, outcome.result.token_ids))
        accepted += outcome.result.stats.num_accepted_tokens
    assert accepted > 0
    limit = corrector.options.max_new_tokens or 0
    expected = generated_each(engine.model, [ids for ids, _ in corrected], limit)
    for ids, tokens in corrected:
        assert list(tokens) == expected[tuple(ids)]


def test_an_encoder_decoder_gets_sentences_behind_a_prefix() -> None:
    engine = copyspec.Engine(bart(len(sentencepiece_like())), sentencepiece_like(), name="bart")
    corrector = ModelCorrector(engine)
    assert corrector.by_sentence and not corrector.chat and corrector.instruction == ENCODER_INSTRUCTION
    assert corrector.limit is not None and 0 < corrector.limit < 64
    assert ModelCorrector(engine, ModelOptions(instruction="{text}", by_sentence=False)).instruction == "{text}"
    engine.model.config.prefix = "fix: "  # type: ignore[union-attr]
    try:
        assert instruction_for(engine) == "fix: {text}"
    finally:
        del engine.model.config.prefix


def test_the_source_is_what_the_output_is_expected_to_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = copyspec.Engine(bart(len(sentencepiece_like())), sentencepiece_like(), name="bart")
    seen: list[copyspec.Input] = []

    def generate_each(inputs: Iterable[copyspec.Input | None], **options: object) -> Iterator[tuple[int, None]]:
        for index, input_ in enumerate(inputs):
            assert input_ is not None
            seen.append(input_)
            yield index, None

    monkeypatch.setattr(engine, "generate_each", generate_each)
    (outcome,) = [outcome for _, outcome in ModelCorrector(engine).correct(["the cat sat"])]
    assert (seen[0].prompt, seen[0].edit_source) == ("grammar: the cat sat", "the cat sat")
    assert outcome.text is None and outcome.refusal is not None and outcome.refusal.reason == "length"


def test_characters_that_a_vocabulary_lacks_are_known_to_be_lost() -> None:
    engine = copyspec.Engine(bart(len(sentencepiece_like())), sentencepiece_like(), name="bart")
    assert ModelCorrector(engine).model.lost("the {cat} sat~") == "{}~"
    assert ModelCorrector(tiny_engine()).model.lost("the {cat} sat~") == ""


def test_models_are_told_apart_by_their_weights() -> None:
    engines = [copyspec.Engine(tiny_model(seed), tiny_tokenizer(), name="same") for seed in (0, 0, 1)]
    first, same, other = map(fingerprint, engines)
    assert first == same != other
    engines[1].model.config._name_or_path = "elsewhere"
    assert fingerprint(engines[1]) == first, "the same model in another folder"


def test_wrong_options_say_so() -> None:
    engine = copyspec.Engine(tiny_model(), tiny_tokenizer(chat=False))
    with pytest.raises(ValueError, match=r"has no \{text\}"):
        GECPipeline(engine, instruction="Correct this")
    with pytest.raises(ValueError, match="system='Be brief' needs a chat template"):
        GECPipeline(engine, system="Be brief")
    with pytest.raises(ValueError, match="segment_tokens must be an integer >= 1, got 0"):
        GECPipeline(engine, segment_tokens=0)
    with pytest.raises(TypeError, match="unknown option 'batchsize'; did you mean 'batch_size'"):
        GECPipeline(engine, batchsize=4)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="batch_size cannot be given beside a corrector"):
        GECPipeline(FunctionCorrector(str.upper), batch_size=4)
    with pytest.raises(TypeError, match="one str: 'He go'"):
        GECPipeline(FunctionCorrector(str.upper)).stream("He go")


def test_any_function_is_a_corrector_and_streams_have_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "LOOKAHEAD_PARTS", 50)
    pipeline = GECPipeline(FunctionCorrector(lambda text: text.replace("goed", "went")))
    assert isinstance(pipeline.corrector, Corrector)
    endless = (f"He goed {'x' * (n % 7)} home.\n" for n in itertools.count())
    corrections: list[Correction] = list(itertools.islice(pipeline.stream(endless), 200))
    assert [c.text for c in corrections[:2]] == ["He went  home.\n", "He went x home.\n"]
    assert corrections[0].edits[0].replacement == "went" and corrections[0].changed


def test_two_pieces_of_a_segment_may_insert_where_they_meet() -> None:
    joined = runner_module._joined([Edit(0, 0, "a"), Edit(3, 3, " b"), Edit(3, 3, "c"), Edit(3, 5, "d")])
    assert joined == [Edit(0, 0, "a"), Edit(3, 3, " bc"), Edit(3, 5, "d")]
