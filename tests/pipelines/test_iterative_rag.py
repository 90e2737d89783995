"""Iterative RAG: the speculative form outputs the plain form's tokens, whatever is guessed, drafted, sampled or ended,
and the plain form outputs what a loop over `generate` does."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from time import process_time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from copyspec import Engine
from copyspec.literature import Rejection
from copyspec.pipelines.rag import citing
from copyspec.pipelines.rag.citing import MIN_WORDS, CitationStream, citations
from copyspec.pipelines.rag.iterative import IterativeRAG, RAGAnswer, Speculation
from copyspec.retrievers import BM25Retriever, DenseRetriever, Hit, Retriever, SpeculativeRetriever
from copyspec.retrievers.base import best
from tests.helpers.tiny import tiny_engine, tiny_tokenizer

WORDS = ["lamp", "ship", "was", "lit", "at", "dusk", "and", "burned", "until", "dawn", "for", "nine", "years"]


class HashRetriever:
    """Scores are pseudo-random functions of the end of the query, so that the best document changes often."""

    def __init__(self, texts: Sequence[str], *, delay: float = 0.0) -> None:
        self.texts, self.delay = list(texts), delay
        self.batches: list[list[str]] = []
        self.fails_at: int | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        return np.array([random.Random(f"{query[-2:]}/{text_id}").random() for text_id in ids])

    def search(self, query: str, k: int = 4) -> list[Hit]:
        return self.search_batch([query], k)[0]

    def search_batch(self, queries: Sequence[str], k: int = 4) -> list[list[Hit]]:
        self.batches.append(list(queries))
        time.sleep(self.delay)
        if self.fails_at is not None and len(self.batches) > self.fails_at:
            raise ConnectionError("the knowledge base is away")
        results = []
        for query in queries:
            scores = self.score(query, range(len(self)))
            results.append([Hit(int(i), float(scores[i]), self.texts[i]) for i in best(scores, k)])
        return results

    def add(self, texts: Sequence[str]) -> None:
        self.texts += texts

    def save(self, folder: object) -> None:
        raise NotImplementedError


def make_texts(count: int, seed: int) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def engine(steady_drafts: None) -> Engine:
    return tiny_engine()


def ask(
    engine: Engine, retriever: Retriever, speculation: Speculation | None, layout: dict[str, int], **options: object
) -> RAGAnswer:
    with IterativeRAG(retriever, model=engine, speculation=speculation, **layout) as pipeline:  # type: ignore[arg-type]
        return pipeline("When was the lamp lit?", **options)  # type: ignore[arg-type]


def check_equal(plain: RAGAnswer, other: RAGAnswer) -> None:
    for name in ("token_ids", "text", "finish_reason", "stop_reason", "prompt_tokens"):
        assert getattr(other.result, name) == getattr(plain.result, name), name
    assert [(document.start, document.end, document.hit.id) for document in other.documents] == [
        (document.start, document.end, document.hit.id) for document in plain.documents
    ]
    assert other.citations == plain.citations


speculations = st.builds(
    Speculation,
    prefetch=st.integers(1, 4),
    capacity=st.integers(4, 8),
    overlap=st.booleans(),
    stride=st.none() | st.integers(1, 6),
    reuse=st.booleans(),
    sources=st.integers(0, 3),
)


@settings(max_examples=20)
@given(
    count=st.integers(1, 6),
    seed=st.integers(0, 99),
    speculation=speculations,
    layout=st.fixed_dictionaries(
        {"stride": st.integers(1, 5), "query_tokens": st.integers(1, 40), "document_tokens": st.integers(1, 40)}
    ),
    temperature=st.sampled_from([0.0, 1.0]),
    drafter=st.sampled_from(["auto", "none"]),
    ends=st.sampled_from([None, "token", "string"]),
    limit=st.integers(1, 20),
)
def test_the_speculative_form_writes_the_plain_forms_tokens(
    engine: Engine,
    count: int,
    seed: int,
    speculation: Speculation,
    layout: dict[str, int],
    temperature: float,
    drafter: str,
    ends: str | None,
    limit: int,
) -> None:
    texts = make_texts(count, seed)
    options: dict[str, object] = {"max_new_tokens": limit, "temperature": temperature, "seed": seed}
    if ends == "token":
        options["stop_token_ids"] = list(range(seed % 7, 259, 7))
    if ends == "string":
        options["stop"] = ["e", "\x0b"]
    plain = ask(engine, HashRetriever(texts), None, layout, drafter="none", **options)
    other = ask(engine, HashRetriever(texts), speculation, layout, drafter=drafter, **options)
    check_equal(plain, other)


def retrievers() -> list[Retriever]:
    texts = make_texts(8, 1)
    return [
        BM25Retriever(texts, split=list),
        DenseRetriever(texts, lambda batch: [[text.count(letter) for letter in "abdehinst"] for text in batch]),
        SpeculativeRetriever(HashRetriever(texts), prefetch=3),
    ]


@pytest.mark.parametrize("retriever", retrievers(), ids=lambda retriever: type(retriever).__name__)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_are_equal_for_every_retriever(engine: Engine, retriever: Retriever, temperature: float) -> None:
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 5}
    plain = ask(engine, retriever, None, {}, drafter="none", **options)
    for speculation in (Speculation(), Speculation(stride=3), Speculation(stride=8, overlap=False, reuse=False)):
        check_equal(plain, ask(engine, retriever, speculation, {}, **options))


def test_the_seed_that_is_drawn_gives_the_answer_again(engine: Engine) -> None:
    retriever, options = HashRetriever(make_texts(5, 2)), {"max_new_tokens": 24, "temperature": 1.0}
    drawn = ask(engine, retriever, Speculation(stride=3), {}, **options)
    again = ask(engine, retriever, None, {}, seed=drawn.result.seed, **options)
    assert drawn.result.token_ids == again.result.token_ids


def test_the_plain_form_is_a_loop_over_generate(engine: Engine) -> None:
    retriever = HashRetriever(make_texts(5, 2))
    tokens: list[int] = []
    prompt = "When was the lamp lit?"
    ids = engine.codec.encode(prompt).ids
    while len(tokens) < 21:
        document = retriever.search(engine.codec.decode((ids + tokens)[-32:]), 1)[0]
        text = f"{document.text}\n\n{prompt}"
        chat = engine.codec.encode_chat([{"role": "user", "content": text}])
        written = [*chat.ids, *tokens]
        result = engine.generate(written, max_new_tokens=min(3, 21 - len(tokens)), drafter="none", ignore_eos=True)
        tokens += result.token_ids
    answer = ask(engine, retriever, None, {"stride": 3}, drafter="none", max_new_tokens=21, ignore_eos=True)
    assert list(answer.result.token_ids) == tokens


def test_an_encoder_decoder_reads_the_document_too(steady_drafts: None) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=259, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=1, initializer_factor=20.0,
    )  # fmt: skip
    engine = Engine(T5ForConditionalGeneration(config).eval(), tiny_tokenizer(chat=False))
    retriever = HashRetriever(make_texts(5, 2))
    plain = ask(engine, retriever, None, {}, drafter="none", max_new_tokens=24, ignore_eos=True)
    assert len({document.hit.id for document in plain.documents}) > 1
    check_equal(plain, ask(engine, retriever, Speculation(stride=4), {}, max_new_tokens=24, ignore_eos=True))


def test_guesses_are_verified_in_batches_and_counted(engine: Engine) -> None:
    texts = make_texts(1, 0)
    retriever = HashRetriever(texts)
    answer = ask(engine, retriever, Speculation(stride=4, overlap=False), {}, max_new_tokens=48, ignore_eos=True)
    assert [len(batch) for batch in retriever.batches] == [1, 4, 4, 3]
    stats = answer.speculation
    assert (stats.rounds, stats.guesses, stats.right, stats.kept, stats.wasted) == (3, 11, 11, 11, 0)
    assert stats.kept_per_round == 11 / 3 and stats.hit_rate == 1.0
    assert len(answer.documents) == 1 and answer.documents[0].hit.text == texts[0]
    assert (answer.documents[0].start, answer.documents[0].end) == (0, 48)


def test_a_document_is_read_once_while_it_stays(engine: Engine) -> None:
    answer = ask(engine, HashRetriever(["only one"]), None, {}, drafter="none", max_new_tokens=40, ignore_eos=True)
    assert answer.result.stats.num_passes == 40


def test_cheap_searches_are_not_speculated_on(engine: Engine) -> None:
    retriever = HashRetriever(make_texts(4, 0))
    ask(engine, retriever, Speculation(overlap=False), {}, max_new_tokens=24, ignore_eos=True)
    assert {len(batch) for batch in retriever.batches} == {1}


def test_chunks_join_to_the_text(engine: Engine) -> None:
    with IterativeRAG(HashRetriever(make_texts(4, 3)), model=engine) as pipeline:
        stream = pipeline.stream("When?", max_new_tokens=30, ignore_eos=True)
        chunks = list(stream)
        assert stream.answer is not None
        assert "".join(chunk.text for chunk in chunks) == stream.answer.text
        assert sum((chunk.token_ids for chunk in chunks), ()) == stream.answer.result.token_ids
        assert chunks[-1].result is stream.answer.result


def test_closing_a_stream_frees_the_worker_for_the_next(engine: Engine) -> None:
    before = set(threading.enumerate())
    retriever = HashRetriever(make_texts(4, 3), delay=0.002)
    pipeline = IterativeRAG(retriever, model=engine, speculation=Speculation(stride=2))
    stream = pipeline.stream("When?", max_new_tokens=200, ignore_eos=True)
    assert next(stream).token_ids
    stream.close()
    assert stream.answer is None and list(stream) == []
    assert len(pipeline("When?", max_new_tokens=9, ignore_eos=True).result.token_ids) == 9
    pipeline.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="was closed"):
        pipeline("When?", max_new_tokens=9)


@pytest.mark.parametrize("speculation", [None, Speculation(), Speculation(stride=3)])
@pytest.mark.parametrize("fails_at", [0, 2])
def test_an_exception_of_the_retriever_reaches_the_caller(
    engine: Engine, speculation: Speculation | None, fails_at: int
) -> None:
    retriever = HashRetriever(make_texts(4, 3))
    retriever.fails_at = fails_at
    with pytest.raises(ConnectionError, match="away"):
        ask(engine, retriever, speculation, {}, max_new_tokens=60, ignore_eos=True)


def test_two_requests_at_once_get_the_serial_answers(engine: Engine) -> None:
    retriever = HashRetriever(make_texts(5, 4), delay=0.001)
    questions = ["When was it lit?", "Who lit the lamp?", "For how long?", "Where?"]
    with IterativeRAG(retriever, model=engine, speculation=None) as pipeline:
        serial = [pipeline(question, max_new_tokens=24, drafter="none") for question in questions]
    with IterativeRAG(retriever, model=engine) as pipeline, ThreadPoolExecutor(4) as threads:
        for plain, other in zip(serial, threads.map(lambda q: pipeline(q, max_new_tokens=24), questions), strict=True):
            check_equal(plain, other)


def test_a_document_that_does_not_fit_is_an_error_only_where_it_is_the_right_one(engine: Engine) -> None:
    texts = ["lamp " * 400, *make_texts(3, 0)]

    class Right(HashRetriever):
        def search_batch(self, queries: Sequence[str], k: int = 4) -> list[list[Hit]]:
            results = super().search_batch(queries, 4)
            return [[hit for hit in hits if hit.id] for hits in results]

    layout = {"document_tokens": 5000}
    options = {"max_new_tokens": 40, "ignore_eos": True}
    with pytest.raises(ValueError, match="context"):
        ask(engine, HashRetriever(texts), None, layout, **options)
    plain = ask(engine, Right(texts), None, layout, drafter="none", **options)
    guessing = SpeculativeRetriever(Right(texts), prefetch=4)
    guessing._cache.add([0])
    check_equal(plain, ask(engine, guessing, Speculation(stride=3), layout, **options))
    with pytest.raises(ValueError, match="context"):
        ask(engine, HashRetriever(texts), Speculation(stride=3), layout, **options)


def test_a_document_is_cut_at_its_tokens(engine: Engine) -> None:
    from copyspec.pipelines.rag.iterative import Documents

    documents = Documents(engine, 4)
    assert documents.shown(Hit(0, 0.0, "a lamp")) == "a la"
    assert documents.shown(Hit(1, 0.0, "lamp")) == "lamp"
    assert documents.copied(Hit(0, 0.0, "a lamp")) == engine.codec.encode(" a l").ids
    documents.lead = "\n"
    assert documents.copied(Hit(0, 0.0, "a lamp")) == engine.codec.encode("a la").ids
    with pytest.raises(ValueError, match="document 2 holds a lone surrogate"):
        documents.shown(Hit(2, 0.0, "\ud800"))


def test_a_document_that_no_tokenizer_reads_and_that_is_not_shown_changes_nothing(engine: Engine) -> None:
    texts = [*make_texts(3, 0), "lamp \ud83d"]

    class Base(HashRetriever):
        def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
            return np.where(np.array(ids) == 3, -1.0, super().score(query, ids))

    layout = {"stride": 2, "query_tokens": 8, "document_tokens": 20}
    plain = ask(engine, Base(texts), None, layout, max_new_tokens=12)
    check_equal(plain, ask(engine, Base(texts), Speculation(prefetch=4, sources=4), layout, max_new_tokens=12))


@pytest.mark.parametrize(
    ("layout", "options", "message"),
    [
        ({"stride": 0}, {}, "stride must be an integer >= 1, got 0"),
        ({"query_tokens": True}, {}, "query_tokens .* got True"),
        ({"document_tokens": 1.5}, {}, "document_tokens .* got 1.5"),
        ({"instruction": "{prompt}"}, {}, "no {document}"),
        ({}, {"n": 2, "temperature": 1.0}, "n=2"),
        ({}, {"logprobs": 1}, "logprobs=1 is not supported by iterative RAG"),
        ({}, {"trace": True}, "trace=True is not supported"),
        ({}, {"max_time": 2.0}, "max_time=2.0 is not supported"),
        ({}, {"edit_source": "a"}, "edit_source"),
        ({}, {"rule": Rejection(), "temperature": 1.0}, r"rule=Rejection\(\)"),
    ],
)
def test_what_cannot_be_meant_is_named(
    engine: Engine, layout: dict[str, int], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ask(engine, HashRetriever(["a"]), None, layout, **options)


def test_wrong_types_are_named(engine: Engine) -> None:
    with pytest.raises(TypeError, match="did you mean 'stride'"):
        IterativeRAG(HashRetriever(["a"]), model=engine, strides=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="prompt must be a str, got list"):
        IterativeRAG(HashRetriever(["a"]), model=engine)(["a"])  # type: ignore[arg-type]


def longest_runs(text: str, documents: dict[int, str]) -> list[tuple[int, int]]:
    """Return the character ranges of the citations, by trying every run of words."""
    words = [(match.start(), match.end()) for match in __import__("re").finditer(r"\w+", text)]
    spoken = {name: " " + " ".join(document.split()) + " " for name, document in documents.items()}
    runs, at = [], 0
    while at < len(words):
        ends = [
            last
            for last in range(at, len(words))
            if any(f" {text[words[at][0] : words[last][1]]} " in document for document in spoken.values())
        ]
        if ends and ends[-1] - at + 1 >= min(MIN_WORDS, len(words)):
            runs.append((words[at][0], words[ends[-1]][1]))
            at = ends[-1] + 1
        else:
            at += 1
    return runs


@given(
    text=st.lists(st.sampled_from("abc"), max_size=12).map(" ".join),
    documents=st.lists(st.lists(st.sampled_from("abc"), max_size=10).map(" ".join), max_size=3),
)
def test_citations_are_the_longest_runs_of_words(text: str, documents: list[str]) -> None:
    named = dict(enumerate(documents))
    cited = citations(text, named)
    assert [(citation.start, citation.end) for citation in cited] == longest_runs(text, named)
    for citation in cited:
        assert (
            text[citation.start : citation.end]
            == named[citation.document][citation.document_start : citation.document_end]
        )


def test_citations_end_at_words_and_keep_their_full_stop() -> None:
    document = "It froze. The lamp of the ship (then new) was lit at dusk. Nobody saw."
    (one,) = islice(citations("Yes: the lamp of the ship (then new) was lit at dusk.", {4: document}), 1)
    assert document[one.document_start : one.document_end] == "lamp of the ship (then new) was lit at dusk."
    assert citations("lamps of the shipyard", {4: document}) == ()
    assert [citation.document for citation in citations("Nobody saw", {4: document})] == [4]
    assert citations("", {4: document}) == ()


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("答案是灯塔建于1871年。", "灯塔建于1871年"),
        ("我说灯塔建了。", None),
        ("灯塔建", "灯塔建"),
        ("それは灯台が1871年に建てられたからだ", "灯台が1871年に建てられた"),
        ("ตอบว่าประภาคารสร้างในปีก่อน", "ประภาคารสร้างในปี"),
        ("ตอบว่าในปีก่อน", None),
    ],
)
def test_in_scripts_without_spaces_characters_are_quoted_if_they_are_many(text: str, quoted: str | None) -> None:
    documents = {
        0: "灯塔建于1871年,高三十米。",
        1: "灯台が1871年に建てられた。",
        2: "ประภาคารสร้างในปี 1871 สูงสามสิบเมตร",
    }
    cited = citations(text, documents)
    assert [text[citation.start : citation.end] for citation in cited] == ([] if quoted is None else [quoted])
    for citation in cited:
        assert (
            text[citation.start : citation.end]
            == documents[citation.document][citation.document_start : citation.document_end]
        )


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("the old cafe", "in the old cafe\u0301 there"),
        ("cafe of old", "a cafe\u0301 of old times"),
        ("हिन्द में सब", "हिन्दी में सब"),
        ("हम सब हिन्द", "हम सब हिन्दी"),
        ("द\u0940 में सब", "हिन्द\u0940 में सब"),
        ("สามส", "สามสิบ"),
    ],
)
def test_a_citation_cuts_no_letter_from_its_marks(text: str, document: str) -> None:
    assert citations(text, {0: document}) == ()
    assert [citation.document_start for citation in citations(document, {0: document})] == [0]


def test_a_citation_may_begin_after_a_sign_with_a_mark() -> None:
    assert [
        citation.document_start for citation in citations("Stop the engine", {0: "\u26a0\ufe0fStop the engine"})
    ] == [2]


@pytest.mark.parametrize("is_quoted", [False, True])
def test_an_answer_is_settled_in_steps_that_grow_with_its_length(
    is_quoted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(chr(0x4E00 + number * 7 % 3001) for number in range(800))
    steps: list[int] = []
    for name in ("share_of_word", "_longest"):
        does = getattr(citing, name)
        monkeypatch.setattr(citing, name, lambda *args, does=does: steps.append(1) or does(*args))
    counts = []
    for size in (400, 800):
        steps.clear()
        stream = CitationStream({0: f"{text}。" if is_quoted else "。"})
        for count in range(1, size + 1):
            stream.settle(text[:count])
        assert list(stream.citations) == [], "the run has not ended"
        counts.append(len(steps))
    assert 0 < counts[1] < 3 * counts[0], counts


def test_an_answer_that_repeats_itself_is_cited_in_time_that_grows_with_its_length() -> None:
    document = {0: "so it goes " * 300}
    begun = process_time()
    text, settled_to, stream = "", 0, CitationStream(document)
    for _ in range(300):
        text += "so it goes "
        settled_to = stream.settle(text)
    assert citations(text, document)[0].end == len(text.rstrip()) and settled_to > 0
    assert process_time() - begun < 5
