"""CopySpecLLM: continuations in batches, also by encoder-decoder models; citations: where words were copied from."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

pytest.importorskip("langchain_core")

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from copyspec import Engine, Place, Span
from copyspec.pipelines.langchain import ChatCopySpec, CitedAnswer, CopySpecLLM, with_citations
from copyspec.pipelines.langchain.documents import copied_parts, id_of, text_of
from tests.helpers.models import tiny
from tests.helpers.texts import bart, counted, new_engine, sentencepiece_like
from tests.helpers.tiny import tiny_engine

pytestmark = pytest.mark.usefixtures("steady_drafts")

PROMPTS = [f"The {word} sat on the mat" for word in ("cat", "dog", "star", "sea", "sky", "school", "day", "grammar")]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return new_engine()


@pytest.fixture
def llm(engine: Engine) -> CopySpecLLM:
    return CopySpecLLM(model=engine, max_tokens=16)


def test_batches_are_decoded_together(engine: Engine, llm: CopySpecLLM) -> None:
    with counted(engine) as alone:
        wanted = [engine.generate(prompt, drafter="none", max_new_tokens=16).text for prompt in PROMPTS]
        serial = alone()
    with counted(engine) as shared:
        assert llm.batch(PROMPTS) == wanted
        assert shared() < serial / 2
    assert asyncio.run(llm.abatch(PROMPTS)) == wanted  # type: ignore[arg-type]
    assert llm.invoke(PROMPTS[0]) == wanted[0] == asyncio.run(llm.ainvoke(PROMPTS[0]))  # type: ignore[arg-type]
    assert "".join(llm.stream(PROMPTS[0])) == wanted[0]


def test_streams_of_asyncio(llm: CopySpecLLM) -> None:
    async def main() -> None:
        assert "".join([piece async for piece in llm.astream(PROMPTS[0])]) == await llm.ainvoke(PROMPTS[0])

    asyncio.run(main())


def test_counters_and_reasons_come_with_generations(llm: CopySpecLLM) -> None:
    result = llm.generate(PROMPTS[:2], stop=["zzz"])
    info = result.generations[1][0].generation_info
    assert info is not None and info["finish_reason"] in ("stop", "length") and info["model_name"] == "tiny"
    assert result.llm_output is not None
    usages = [generations[0].generation_info["usage_metadata"] for generations in result.generations]  # type: ignore[index]
    assert result.llm_output["token_usage"]["output_tokens"] == sum(usage["output_tokens"] for usage in usages)
    several = llm.generate(PROMPTS[:2], n=2, temperature=1.0, seed=1)
    assert [len(generations) for generations in several.generations] == [2, 2]


def test_tokens_stop_options_and_names(engine: Engine, llm: CopySpecLLM) -> None:
    text = llm.invoke(PROMPTS[0])
    assert llm.invoke(PROMPTS[0], stop=[text[3:6]]) == text[: text.index(text[3:6])]
    assert llm.get_num_tokens("The cat") == len(engine.codec.encode("The cat").ids)
    assert llm._get_ls_params()["ls_provider"] == "copyspec" and llm._llm_type == "copyspec"
    for name in ("prompt", "loop"):
        with pytest.raises(TypeError, match=f"unknown option '{name}'"):
            llm.invoke("the cat", **{name: "x"})
    with pytest.raises(TypeError, match="unknown option 'bogus'"):
        llm.invoke(PROMPTS[0], bogus=1)
    for name, hint in (("max_tokn", "max_tokens"), ("drafter", "model_kwargs"), ("references", r"bind\(references=")):
        with pytest.raises(ValidationError, match=f"'{name}'.*{hint}"):
            CopySpecLLM(model=engine, **{name: 1})  # type: ignore[arg-type]
    chat = CopySpecLLM(model=engine, max_tokens=16, model_kwargs={"chat": True}).invoke(PROMPTS[0])
    assert chat == engine.generate(PROMPTS[0], chat=True, max_new_tokens=16).text


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_encoder_decoder_models_answer_too(kind: str) -> None:
    tokenizer = sentencepiece_like()
    model = bart(len(tokenizer)) if kind == "bart" else tiny("t5", vocab_size=len(tokenizer))
    engine = Engine(model, tokenizer, name=kind)
    chain = PromptTemplate.from_template("{text}") | CopySpecLLM(model=engine, max_tokens=12)
    wanted = engine.generate("The cat sat", drafter="none", max_new_tokens=12).text
    assert chain.invoke({"text": "The cat sat"}) == wanted == "".join(chain.stream({"text": "The cat sat"}))


class Quoting:
    """A chain whose model writes a sentence of its document: random weights with a bias for these tokens in order."""

    def __init__(self, quote: str, document: Document) -> None:
        from tests.langchain.test_tools import Script

        engine = tiny_engine(name="tiny")
        llm = ChatCopySpec(model=engine, max_tokens=100, model_kwargs={"logits_processor": Script(lambda _: quote)})
        prompt = ChatPromptTemplate.from_template("{question}")
        find = RunnableLambda(lambda question: {"docs": [document], "question": question})
        self.llm = llm.bind(references=[document])
        self.message = find | prompt | self.llm
        self.text = self.message | StrOutputParser() | RunnableLambda(str.strip)


DOCUMENT = Document(
    "The library is open from nine to six. On Sundays it is closed.", id="d1", metadata={"source": "a.md"}
)


def test_answers_name_the_documents_that_were_copied_from() -> None:
    quoting = Quoting(" On Sundays it is closed, dear.", DOCUMENT)
    cited = with_citations(quoting.text)
    for answer in (cited.invoke("When?"), asyncio.run(cited.ainvoke("When?")), cited.batch(["When?"])[0]):  # type: ignore[arg-type]
        assert isinstance(answer, CitedAnswer)
        assert str(answer) == answer.text == "On Sundays it is closed, dear."
        (citation,) = answer.citations
        assert answer.text[citation.start : citation.end] == citation.text
        assert citation.text == "On Sundays it is closed"
        assert citation.document is DOCUMENT and answer.documents == (DOCUMENT,)
        assert DOCUMENT.page_content[citation.document_start : citation.document_end] == citation.text


@pytest.mark.parametrize("is_async", [False, True])
def test_citations_come_while_the_answer_is_streamed(is_async: bool) -> None:
    """Chunks join to the output of `invoke`, and a quote's citation comes before the end of a longer answer."""
    quoting = Quoting("The library is open from nine to six. Ring the bell twice. On Sundays it is closed.", DOCUMENT)
    for chain in (quoting.message, quoting.message | StrOutputParser(), quoting.text):
        cited = with_citations(chain)
        pieces = list(cited.stream("When?"))
        if is_async:
            pieces = asyncio.run(_pieces(cited))
        joined = pieces[0]
        for piece in pieces[1:]:
            so_far = joined.text + piece.text
            assert all(so_far[citation.start : citation.end] == citation.text for citation in piece.citations)
            joined += piece
        assert joined == cited.invoke("When?") and len(joined.citations) == 2
        if chain is not quoting.text:  # its last step needs the whole answer
            first = next(place for place, piece in enumerate(pieces) if piece.citations)
            assert len("".join(piece.text for piece in pieces[: first + 1])) < joined.citations[1].start


class Tokens(BaseCallbackHandler):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_llm_new_token(self, token: str, **kwargs: object) -> None:
        self.texts.append(token)


def test_tokens_reach_the_handlers_of_invoke_if_wanted(engine: Engine) -> None:
    llm = CopySpecLLM(model=engine, max_tokens=16, streaming=True)
    for call in (llm.invoke, lambda *args: asyncio.run(llm.ainvoke(*args))):
        tokens = Tokens()
        text = call(PROMPTS[0], {"callbacks": [tokens]})
        assert "".join(tokens.texts) == text and len(tokens.texts) > 1
    tokens = Tokens()
    assert llm.batch(PROMPTS[:2], {"callbacks": [tokens]}) == [llm.invoke(prompt) for prompt in PROMPTS[:2]]


def test_options_go_to_the_chain_that_is_cited(engine: Engine) -> None:
    llm = CopySpecLLM(model=engine, max_tokens=16)
    cited = with_citations(llm)
    assert cited.invoke(PROMPTS[0], max_tokens=4).text == llm.invoke(PROMPTS[0], max_tokens=4) != llm.invoke(PROMPTS[0])
    bound = cited.bind(max_tokens=4)
    pieces = [piece.text for piece in bound.stream(PROMPTS[0])]
    assert "".join(pieces) == bound.invoke(PROMPTS[0]).text == llm.invoke(PROMPTS[0], max_tokens=4)
    assert asyncio.run(bound.ainvoke(PROMPTS[0])) == bound.invoke(PROMPTS[0])
    with pytest.raises(TypeError, match="colour"):
        cited.invoke(PROMPTS[0], colour="red")


async def _pieces(chain: Runnable[object, CitedAnswer]) -> list[CitedAnswer]:
    return [piece async for piece in chain.astream("When?")]


def test_what_streams_no_text_is_cited_whole() -> None:
    quoting = Quoting("On Sundays it is closed.", DOCUMENT)
    parts = with_citations(quoting.message | (lambda message: [message.text]))
    assert [piece.text for piece in parts.stream("When?")] == ["['On Sundays it is closed.']"]


def test_spans_in_messages_name_documents_without_their_text() -> None:
    message = Quoting("On Sundays it is closed.", DOCUMENT).message.invoke("When?")
    assert isinstance(message, AIMessage)
    spans = [span for span in message.response_metadata["copyspec"]["spans"] if span["document_id"] == "d1"]
    assert spans and spans[0]["kind"] == "reference"
    assert "closed" in DOCUMENT.page_content[spans[0]["document_start"] : spans[0]["document_end"]]
    assert "closed" not in str(message.response_metadata)


BREWERY = Document("Beer was made in this town. The brewery closed in 1954. Its yard is a market.", id="d2")
HARBOUR = Document("The harbour was built later. The end.", id="d3")


def spans_at(answer: str, *copies: tuple[int, int, int, int]) -> list[Span]:
    """Make the spans of an answer from (start and end in the answer, reference, offset in the reference)."""
    return [
        Span(Place(str(index), "reference", index, 0, 1, there, there + end - start), 0, 1, start, end)
        for start, end, index, there in copies
    ]


@pytest.mark.parametrize(
    ("answer", "copies", "cited"),
    [
        # The first word was drafted from another document, or written by the model.
        ("The brewery closed in 1954.", [(0, 3, 1, 0), (3, 27, 0, 31)], [("The brewery closed in 1954.", "d2", 28)]),
        ("The brewery closed in 1954.", [(3, 27, 0, 31)], [("The brewery closed in 1954.", "d2", 28)]),
        # A word that the document contains only in part is excluded.
        ("Breathe brewery closed.", [(8, 22, 0, 32)], [("brewery closed", "d2", 32)]),
        # A long copy keeps all its words.
        (
            "The harbour was built later. The brewery closed.",
            [(0, 32, 1, 0), (32, 47, 0, 31)],
            [("The harbour was built later. The", "d3", 0), ("brewery closed", "d2", 32)],
        ),
        # Words before the copy are included if the document contains them there.
        ("1954. Its yard is gone.", [(6, 17, 0, 56)], [("1954. Its yard is", "d2", 50)]),
    ],
)
def test_a_citation_begins_with_the_first_word_that_its_document_holds(
    answer: str, copies: list[tuple[int, int, int, int]], cited: list[tuple[str, str, int]]
) -> None:
    documents = [BREWERY, HARBOUR]
    parts = copied_parts(answer, spans_at(answer, *copies), documents)
    places = [(answer[part.start : part.end], id_of(part.reference), part.document_start) for part in parts]
    assert places == cited
    for part in parts:
        text = text_of(part.reference)
        assert text is not None and text[part.document_start : part.document_end] == answer[part.start : part.end]


def test_a_citation_begins_with_no_part_of_a_word_that_has_vowel_signs() -> None:
    document, answer = Document("हिन्दी में किताबें यहाँ मिलती हैं।"), "कहिन्दी में किताबें यहाँ"
    (part,) = copied_parts(answer, spans_at(answer, (8, len(answer), 0, 7)), [document])
    assert answer[part.start : part.end] == "में किताबें यहाँ" and part.document_start == 7


def test_answers_without_copies_have_no_citations() -> None:
    quoting = Quoting("No idea.", DOCUMENT)
    assert with_citations(quoting.message).invoke("When?").citations == ()
    with pytest.raises(TypeError, match="Expected a Runnable"):
        with_citations("no chain")  # type: ignore[arg-type]
    assert with_citations(RunnablePassthrough()).invoke("text") == CitedAnswer("text", ())
    short = with_citations(Quoting("On Sundays", DOCUMENT).message, min_characters=50).invoke("When?")
    assert short.citations == () and short.documents == ()
