"""References reach the models of their own run without wiring, and never change what is generated or shown
elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("langchain_core")

from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.tracers import BaseTracer
from pydantic import BaseModel, create_model

import copyspec
from copyspec import Engine, OutputCache
from copyspec.literature import Lenience
from copyspec.pipelines.langchain import ChatCopySpec, CopySpecLLM, with_references
from copyspec.pipelines.langchain.calls import Answers
from copyspec.pipelines.langchain.documents import Private, explicit, gather, text_of
from tests.helpers.chains import PROMPT, QUESTIONS, SECRET, Seen, lcel
from tests.helpers.tiny import tiny_model, tiny_tokenizer
from tests.langchain.test_tools import Script, says

if TYPE_CHECKING:
    from langchain_core.tracers.schemas import Run

pytestmark = pytest.mark.usefixtures("steady_drafts")


def test_artifacts_of_tools_are_copied_from(llm: ChatCopySpec, seen: Seen) -> None:
    documents = [Document("first", id="1"), Document("second", id="2")]
    call = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "1"}])
    for artifact in (documents, {"documents": documents}, tuple(documents)):
        seen.clear()
        llm.invoke([HumanMessage("hi"), call, ToolMessage("found", tool_call_id="1", artifact=artifact)])
        assert seen[0][1] == ["1", "2"]
    seen.clear()
    llm.invoke([HumanMessage("hi"), call, ToolMessage("found", tool_call_id="1", artifact={"rows": 3})])
    circle: list[object] = [Document(page_content="no tokenizer reads \ud800"), *documents]
    circle.append(circle)
    llm.invoke([HumanMessage("hi"), call, ToolMessage("found", tool_call_id="1", artifact=circle)])
    assert seen[0][1] == []


def test_explicit_ways(llm: ChatCopySpec, engine: Engine, seen: Seen) -> None:
    document = Document("text", id="x")
    llm.bind(references=[document]).invoke("hi")
    llm.invoke("hi", references=document)
    list(llm.stream("hi", references=["text"]))
    CopySpecLLM(model=engine, max_tokens=3).bind(references=document).invoke("hi")
    assert [references for _, references in seen] == [["x"], ["x"], ["text"], ["x"]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "references must be a str, .* got int: 5"),
        ([Document("a"), 3.5], r"references\[1\] must be a str, .* got float: 3.5"),
        ({"a": "b"}, "references is a dict without a text"),
        ({"a", "b"}, "references must be a str, .* got set"),
    ],
)
def test_what_is_no_reference_is_named(llm: ChatCopySpec, engine: Engine, given: object, message: str) -> None:
    for model in (llm, CopySpecLLM(model=engine, max_tokens=3), llm.bind(references=given)):
        with pytest.raises(TypeError, match=message):
            model.invoke("hi", references=given)


def jobs_of(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Records the names of the sources of every job."""
    named: list[list[str]] = []
    begin = Answers.__init__

    def spy(self: Answers, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        named.extend([source.name for source in job.sources] for job in self._call.jobs)

    monkeypatch.setattr(Answers, "__init__", spy)
    return named


def test_blocks_and_predictions_become_sources(llm: ChatCopySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    named = jobs_of(monkeypatch)
    with copyspec.references({"text": "around", "name": "block"}):
        llm.invoke("hi")
    llm.invoke("hi", prediction={"type": "content", "content": "hello there"})
    asyncio.run(llm.ainvoke("hi", prediction="hello there"))
    assert named == [["block", "prompt"], ["prediction", "prompt"], ["prediction", "prompt"]]


def test_documents_in_the_prompt_are_copied_from_as_they_stand(engine: Engine) -> None:
    quote = " the vault opens at noon and closes at one"
    chain = {"context": RunnableLambda(lambda question: f"the guide says:{quote}"), "question": RunnablePassthrough()}
    llm = ChatCopySpec(model=engine, max_tokens=100)
    answer = (chain | PROMPT | llm.bind(logits_processor=says(quote))).invoke("When?")
    counters = answer.response_metadata["copyspec"]
    assert answer.content == quote.strip()
    (span,) = counters["spans"]
    assert span["kind"] == "prompt" and (span["start"], span["end"]) == (0, len(quote.strip()))
    assert counters["num_accepted_tokens_per_source"]["prompt"] > 0.8 * counters["num_output_tokens"]
    assert counters["num_passes"] < 0.1 * counters["num_output_tokens"]


def test_earlier_answers_stay_in_their_namespace(
    llm: ChatCopySpec, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = jobs_of(monkeypatch)
    ann, bob = OutputCache("ann"), OutputCache("bob")
    of_ann = ChatCopySpec(model=engine, max_tokens=3, model_kwargs={"output_cache": ann})
    for model in (of_ann, llm.bind(output_cache=bob), llm, of_ann):
        model.invoke("the same question")
    assert named == [["prompt"], ["prompt"], ["prompt"], ["cache ann", "prompt"]]
    assert len(ann) == len(bob) == 1


def test_with_references_binds_by_key_and_streams(llm: ChatCopySpec, seen: Seen) -> None:
    inner = PROMPT | llm | StrOutputParser()
    chain = RunnablePassthrough.assign(docs=lambda inputs: [Document("text", id=inputs["question"])]) | with_references(
        inner, key="docs"
    )
    inputs = [{"context": "c", "question": question} for question in QUESTIONS]
    chain.invoke(inputs[0])
    assert len(list(chain.stream(inputs[1]))) > 1
    asyncio.run(chain.abatch(inputs[2:]))
    for question in QUESTIONS:
        assert [references for prompt, references in seen if question in prompt] == [[question]]
    with pytest.raises(ValueError, match="no ChatCopySpec, CopySpecLLM or ChatOpenAI"):
        with_references(PROMPT, key="docs")
    with pytest.raises(TypeError, match="needs a dict"):
        with_references(llm, key="docs").invoke("text")
    with pytest.raises(KeyError, match="finds no 'docs' in the input; it has question"):
        with_references(inner, key="docs").invoke({"question": "x"})


@pytest.mark.parametrize(
    "made",
    [
        lambda llm: RunnableParallel(raw=PROMPT | llm),
        lambda llm: RunnablePassthrough.assign(answer=PROMPT | llm),
        lambda llm: PROMPT | llm.with_fallbacks([llm]),
        lambda llm: PROMPT | RunnableLambda(fails).with_fallbacks([llm]),
        lambda llm: PROMPT | llm.configurable_fields(max_tokens=ConfigurableField(id="limit")),
        lambda llm: PROMPT | llm.configurable_alternatives(ConfigurableField(id="model"), other=lambda: llm),
        lambda llm: (
            PROMPT
            | llm.configurable_alternatives(ConfigurableField(id="model"), other=lambda: llm).with_config(
                configurable={"model": "other"}
            )
        ),
        lambda llm: PROMPT | llm.bind(stop=["."]).configurable_fields(kwargs=ConfigurableField(id="kwargs")),
        lambda llm: RunnableBranch((lambda _: True, PROMPT | llm), PROMPT),
        pytest.param(
            lambda llm: PROMPT | llm.with_structured_output(Answer, method="json_schema", include_raw=True),
            marks=pytest.mark.skipif(find_spec("llguidance") is None, reason="needs llguidance"),
        ),
    ],
)
def test_with_references_finds_the_models_inside(
    made: Callable[[ChatCopySpec], Runnable[object, object]], llm: ChatCopySpec, seen: Seen
) -> None:
    chain = with_references(made(llm), key="docs")
    inputs = {"context": "c", "question": QUESTIONS[0], "docs": [Document("text", id="x")]}
    chain.invoke(inputs)
    assert len(list(chain.stream(inputs))) > 0
    assert [references for _, references in seen] == [["x"], ["x"]]


def fails(inputs: object) -> str:
    raise ValueError("so that the next one is asked")


class Answer(BaseModel):
    text: str


class Tracer(BaseTracer):
    """A tracer that keeps what it is told about models."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[str] = []

    def _persist_run(self, run: Run) -> None:
        pass

    def _on_llm_start(self, run: Run) -> None:
        self.runs.append(repr(run.model_dump(exclude={"inputs"})))

    _on_chat_model_start = _on_llm_start
    _on_llm_end = _on_llm_start
    _on_chain_start = _on_llm_start
    _on_chain_end = _on_llm_start


@pytest.mark.parametrize("kind", [ChatCopySpec, CopySpecLLM])
def test_traces_do_not_show_references(engine: Engine, kind: type[ChatCopySpec] | type[CopySpecLLM]) -> None:
    tracer = Tracer()
    llm = kind(model=engine, max_tokens=3, model_kwargs={"prediction": SECRET})
    config = {"callbacks": [tracer]}
    for options in ({"references": [Document(SECRET)]}, {"references": SECRET}, {"prediction": SECRET}):
        llm.invoke("hi", config, **options)  # type: ignore[arg-type]
        list(llm.stream("hi", config, **options))  # type: ignore[arg-type]
        (PROMPT | llm.bind(**options)).invoke({"context": "", "question": "hi"}, config)  # type: ignore[arg-type]
        llm.batch(["hi", "ho"], config, **options)  # type: ignore[arg-type]
        asyncio.run(llm.ainvoke("hi", config, **options))  # type: ignore[arg-type]
        asyncio.run(_stream_with(llm, config, options))
    assert len(tracer.runs) >= 36
    assert not [run for run in tracer.runs if SECRET in run]


async def _stream_with(
    llm: ChatCopySpec | CopySpecLLM, config: dict[str, list[Tracer]], options: dict[str, object]
) -> None:
    async for _ in llm.astream("hi", config, **options):  # type: ignore[arg-type]
        pass


def test_streams_hand_no_reference_to_what_traces_their_arguments(
    llm: ChatCopySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """langchain-core 1.1 handed all of them to callback handlers."""
    handed: list[str] = []

    def spied(stream: Callable[..., object]) -> Callable[..., object]:
        def stream_and_note(*arguments: object, **options: object) -> object:
            handed.append(repr(options))
            return stream(*arguments, **options)

        return stream_and_note

    for name in ("stream", "astream"):
        monkeypatch.setattr(BaseChatModel, name, spied(getattr(BaseChatModel, name)))
    options: dict[str, object] = {"references": [Document(SECRET)], "prediction": SECRET}
    list(llm.stream("hi", **options))
    asyncio.run(_stream_with(llm, {}, options))
    assert len(handed) == 2 and not [options for options in handed if SECRET in options]


class Reading(BaseCallbackHandler):
    def __init__(self) -> None:
        self.params: list[dict[str, object]] = []

    def on_chat_model_start(self, serialized: object, messages: object, **kwargs: object) -> None:
        self.params.append(kwargs["invocation_params"])  # type: ignore[arg-type]


def test_invocation_params_and_cache_keys_are_those_without_references(engine: Engine) -> None:
    cache = InMemoryCache()
    llm = ChatCopySpec(model=engine, max_tokens=3, cache=cache)
    reading = Reading()
    config = {"callbacks": [reading]}
    first = llm.invoke("hi", config, references=["one"])  # type: ignore[arg-type]
    assert llm.invoke("hi", config).content == first.content  # type: ignore[arg-type]
    llm.invoke("hi", config, references=[Document("two")], prediction="three")  # type: ignore[arg-type]
    assert len(cache._cache) == 1, "references change no answer, so they make no other key"
    assert reading.params[0] == reading.params[1] == reading.params[2]
    llm.invoke("hi", config, temperature=0.5, seed=1)  # type: ignore[arg-type]
    assert len(cache._cache) == 2
    assert len({ChatCopySpec(model=engine, stop=stop)._get_llm_string() for stop in ("a", "b")}) == 2


@pytest.mark.parametrize("kind", [ChatCopySpec, CopySpecLLM])
def test_answers_that_depend_on_references_or_options_are_not_another_calls(kind: type, engine: Engine) -> None:
    cache = InMemoryCache()
    llm = kind(model=engine, max_tokens=3, cache=cache)
    for text in ("one", "two"):
        llm.invoke("hi", references=[text])
    assert len(cache._cache) == 1, "references change nothing"
    for text in ("one", "two"):
        llm.invoke("hi", references=[text], rule=Lenience(0.5))
    assert len(cache._cache) == 3, "they may with a rule"
    assert llm.invoke("hi", max_tokens=1) != llm.invoke("hi", max_tokens=2)
    assert len(cache._cache) == 5


@pytest.mark.parametrize("kind", [ChatCopySpec, CopySpecLLM])
def test_answers_of_other_processors_are_not_in_the_cache(
    kind: type, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Script, "__repr__", lambda self: "Script()")  # as of two at the address of one that is gone
    cache = InMemoryCache()
    llm = kind(model=engine, max_tokens=3, cache=cache)
    for processors in (says, lambda text: [says(text)]):
        for text in ("one", "two"):
            answer = llm.invoke("hi", logits_processor=processors(text))
            assert getattr(answer, "content", answer) == text
    assert len(cache._cache) == 4
    same = says("six")
    for _ in range(2):
        llm.invoke("hi", logits_processor=same)
    assert len(cache._cache) == 5


@pytest.mark.parametrize("kind", [ChatCopySpec, CopySpecLLM])
def test_answers_of_other_schemas_are_not_in_the_cache(kind: type, engine: Engine) -> None:
    pytest.importorskip("llguidance")
    cache = InMemoryCache()
    llm = kind(model=engine, max_tokens=12, cache=cache)
    for name in ("cats", "dogs", "cats"):
        answer = llm.invoke("hi", json_schema=create_model("Same", **{name: (int, ...)}))  # type: ignore[call-overload]
        assert f'"{name}"' in getattr(answer, "content", answer)
    assert len(cache._cache) == 2, "the same fields are the same schema"


def test_what_is_not_given_does_not_hide_the_models_own_in_a_cache_key(engine: Engine) -> None:
    keys = {ChatCopySpec(model=engine, max_tokens=most)._get_llm_string(max_tokens=None) for most in (1, 2)}
    assert len(keys) == 2


def test_other_handlers_are_told_what_they_were_told_before(llm: ChatCopySpec) -> None:
    from langchain_core.language_models import FakeListLLM

    tracer = Tracer()
    answered = asyncio.run(FakeListLLM(responses=["yes"]).ainvoke("hi", {"callbacks": [tracer]}))
    assert answered == "yes" and len(tracer.runs) == 2, "start and end"


def test_fields_may_be_configured(llm: ChatCopySpec) -> None:
    chosen = llm.configurable_fields(max_tokens=ConfigurableField(id="limit"))
    answer = chosen.invoke("hi", {"configurable": {"limit": 2}})
    assert isinstance(answer, AIMessage) and answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 2


def test_private_says_nothing() -> None:
    assert SECRET not in repr(Private(SECRET)) and SECRET not in str({"references": Private([SECRET])})
    assert explicit(Private(Private(SECRET))) == [SECRET]
    assert explicit(None) == [] and explicit([1, 2]) == [[1, 2]] and explicit(("a", "b")) == ["a", "b"]


def test_found_documents_are_taken_once_and_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    from copyspec.pipelines.langchain import documents

    listed = [Document("aa"), Document("bb"), Document("aa"), Document("cc")]
    assert [text_of(document) for document in gather(["bb", [1, 2]], listed)] == ["bb", None, "aa", "cc"]
    monkeypatch.setattr(documents, "MAX_FOUND_CHARACTERS", 5)
    assert [text_of(document) for document in gather(["handed over"], listed)] == ["handed over", "aa", "bb"]


def test_answers_are_those_without_references_and_of_plain_decoding(engine: Engine) -> None:
    import torch

    with_them = ChatCopySpec(model=engine, max_tokens=24)
    without = ChatCopySpec(model=engine, max_tokens=24, auto_references=False, model_kwargs={"drafter": "none"})
    chains = [lcel(with_them), lcel(without)]
    answers = [chain.batch(QUESTIONS) for chain in chains]
    assert answers[0] == answers[1]
    tokenizer = tiny_tokenizer()
    for question, answer in zip(QUESTIONS[:4], answers[0][:4], strict=True):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"1: {question}"}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"]
        output = tiny_model().generate(ids, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(ids))
        assert answer == engine.codec.decode(output[0, ids.shape[1] :].tolist())
