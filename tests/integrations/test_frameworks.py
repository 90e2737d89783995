"""LlamaIndex and Haystack: their documents as references, with a model and a retriever for each."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import copyspec
from copyspec.engine.asking.inputs import parse_references
from copyspec.pipelines.models import engine_and_options
from copyspec.retrievers import Corpora, Document, load_corpus, split_passages
from tests.helpers.models import tiny
from tests.helpers.tiny import tiny_engine, tiny_model, tiny_tokenizer

TEXT = "# Birds\n\nHerons wait in shallow water.\n\n# Boats\n\nThe boat leaves at nine."


@pytest.fixture(scope="module")
def engine() -> copyspec.Engine:
    return tiny_engine()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    Corpora(tmp_path).add_bm25("c", split_passages(Document("guide.md", TEXT)))
    return tmp_path / "c"


@dataclass
class Node:
    """The parts of a LlamaIndex node that references use."""

    metadata: dict[str, object] = field(default_factory=lambda: {"file_path": "a.md"})

    def get_content(self) -> str:
        return "Herons wait."


@dataclass
class HaystackDocument:
    """The parts of a Haystack document that references use."""

    content: str | None = "Herons wait."
    meta: dict[str, object] = field(default_factory=dict)


def test_documents_of_other_packages_are_references() -> None:
    ((node, other),) = parse_references([Node(), HaystackDocument()], 1)
    assert (node.name, node.text, other.name, other.text) == ("a.md", "Herons wait.", "references[1]", "Herons wait.")
    with pytest.raises(TypeError, match="a LlamaIndex or Haystack document"):
        parse_references([HaystackDocument(content=None)], 1)


def test_options_of_loading_load_the_model_and_unknown_ones_load_nothing(
    engine: copyspec.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[dict[str, object]] = []
    monkeypatch.setattr(copyspec, "load", lambda model, **loading: loaded.append(loading) or engine)
    for wrong, meant in (("dtpye", "dtype"), ("max_new_token", "max_new_tokens")):
        with pytest.raises(TypeError, match=f"unknown option '{wrong}'; did you mean '{meant}'"):
            engine_and_options("folder", {wrong: 3})
    with pytest.raises(ValueError, match="temperature"):
        engine_and_options("folder", {"temperature": -1})
    assert not loaded
    options = {"dtype": "float32", "device": "cpu", "max_new_tokens": 3, "references": ["a"]}
    assert engine_and_options("folder", options, ["references"]) == (engine, {"max_new_tokens": 3, "references": ["a"]})
    assert loaded == [{"dtype": "float32", "device": "cpu"}]


def test_a_loaded_model_takes_no_options_of_loading(engine: copyspec.Engine) -> None:
    assert engine_and_options(engine, {"seed": 1}) == (engine, {"seed": 1})
    with pytest.raises(ValueError, match="dtype cannot be changed any more"):
        engine_and_options(engine, {"dtype": "float32"})


def test_llama_index(engine: copyspec.Engine, corpus: Path) -> None:
    pytest.importorskip("llama_index.core")
    from llama_index.core import PromptTemplate
    from llama_index.core.llms import ChatMessage, ImageBlock, MessageRole

    from copyspec.integrations.llama_index import CopySpecLlamaLLM, IndexRetriever

    llm = CopySpecLlamaLLM(engine, max_tokens=12)
    plain = engine.generate("the cat", chat=True, drafter="none", max_new_tokens=12)
    assert llm.complete("the cat").text == llm.complete("the cat", formatted=True).text == plain.text
    assert "".join(chunk.delta or "" for chunk in llm.stream_complete("the cat")) == plain.text
    with copyspec.references("the cat sat on the mat"):
        assert llm.complete("the cat").text == plain.text
    assert llm.predict(PromptTemplate("the {animal}"), animal="cat") == plain.text
    turns = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="the cat")]
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the cat"}]
    answer = engine.generate(said, drafter="none", max_new_tokens=12).text
    assert llm.chat(turns).message.content == answer
    assert "".join(chunk.delta or "" for chunk in llm.stream_chat(turns)) == answer
    with pytest.raises(ValueError, match="n=2 cannot be streamed"):
        list(llm.stream_complete("the cat", n=2, temperature=1.0))
    with pytest.raises(ValueError, match="n=2 cannot be streamed"):
        list(llm.stream_chat(turns, n=2, temperature=1.0))
    turns[0].role = MessageRole.DEVELOPER
    assert llm.chat(turns).message.content == answer, "chat templates call it system"
    with pytest.raises(ValueError, match=r"messages\[0\] holds image: the model reads text only"):
        llm.chat([ChatMessage(role="user", blocks=[ImageBlock(url="http://a/b.png")])])
    with pytest.raises(TypeError, match="colour"):
        llm.complete("the cat", colour="red")
    with pytest.raises(TypeError, match="colour"):
        CopySpecLlamaLLM(engine, colour="red")
    saved = CopySpecLlamaLLM(engine, max_tokens=12, system_prompt="Be brief.")
    assert saved.system_prompt == "Be brief."
    again = CopySpecLlamaLLM.from_dict(saved.to_dict(), model=engine)
    assert again.to_dict() == saved.to_dict() and again.complete("the cat").text == saved.complete("the cat").text
    for options in ({"max_tokens": 5}, {"max_new_tokens": 5}):
        assert (
            llm.complete("the cat", ignore_eos=True, **options).raw.token_ids
            == engine.generate("the cat", chat=True, ignore_eos=True, max_new_tokens=5).token_ids
        )
    shorter = CopySpecLlamaLLM(engine, max_new_tokens=7, ignore_eos=True)
    assert len(shorter.complete("the cat").raw.token_ids) == 7
    assert len(shorter.complete("the cat", max_tokens=5).raw.token_ids) == 5
    (node,) = IndexRetriever(*load_corpus(corpus), k=1).retrieve("When does the boat leave?")
    assert node.node.metadata == {"file_path": "guide.md", "heading": "Boats"}
    assert TEXT[node.node.start_char_idx : node.node.end_char_idx] == node.text
    ((reference,),) = parse_references([node], 1)
    assert (reference.name, reference.text) == ("guide.md", node.text)


async def test_asyncio_of_llama_index_leaves_the_event_loop_free(engine: copyspec.Engine) -> None:
    pytest.importorskip("llama_index.core")
    from llama_index.core.llms import ChatMessage

    from copyspec.integrations.llama_index import CopySpecLlamaLLM

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    turns = [[ChatMessage(role="user", content=text)] for text in ("the cat", "the dog")]
    for made in (engine, copyspec.Engine(tiny_model(), tiny_tokenizer(chat=False))):
        llm = CopySpecLlamaLLM(made, max_tokens=40, ignore_eos=True, drafter="none")
        ticks, ticker = 0, asyncio.create_task(tick())
        answers = await asyncio.gather(*map(llm.achat, turns))
        ticker.cancel()
        assert ticks > 5, "a call takes 40 passes"
        assert [answer.message.content for answer in answers] == [llm.chat(turn).message.content for turn in turns]
        whole = await llm.acomplete("the cat")
        assert whole.text == llm.complete("the cat").text and len(whole.raw.token_ids) == 40
        for streamed, text in (
            (await llm.astream_complete("the cat"), whole.text),
            (await llm.astream_chat(turns[1]), answers[1].message.content),
        ):
            assert "".join([chunk.delta or "" async for chunk in streamed]) == text
        with pytest.raises(TypeError, match="colour"):
            await llm.acomplete("the cat", colour="red")


def test_the_window_that_llama_index_plans_for_is_the_models() -> None:
    pytest.importorskip("llama_index.core")
    from copyspec.integrations.llama_index import CopySpecLlamaLLM

    models = {
        "llama": ({}, 512),
        "gpt2": ({"n_positions": 48}, 48),
        "t5": ({"n_positions": 48}, 48),
        "bloom": ({}, 4096),
    }
    for name, (options, window) in models.items():
        engine = copyspec.Engine(tiny(name, **options), tiny_tokenizer())
        assert CopySpecLlamaLLM(engine).metadata.context_window == window


def test_nodes_of_several_corpora_can_be_joined(tmp_path: Path) -> None:
    pytest.importorskip("llama_index.core")
    from copyspec.integrations.llama_index import IndexRetriever

    corpora = Corpora(tmp_path)
    texts = {"a": ("a.md", "Herons wait."), "b": ("b.md", "Herons wait."), "again": ("a.md", "Herons wait.")}
    ids = {}
    for name, (file, text) in texts.items():
        corpora.add_bm25(name, split_passages(Document(file, text)))
        retriever, passages = load_corpus(tmp_path / name)
        ((placed,), (bare,)) = (
            IndexRetriever(retriever, places, k=1).retrieve("herons") for places in (passages, None)
        )
        ids[name] = placed.node.node_id
        assert bare.node.node_id != placed.node.node_id
    assert ids["a"] != ids["b"] and ids["a"] == ids["again"]


def test_haystack(engine: copyspec.Engine, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    haystack = pytest.importorskip("haystack")
    from copyspec.integrations.haystack import CopySpecGenerator, CorpusRetriever

    with pytest.raises(TypeError, match="colour"):
        CopySpecGenerator(engine, colour="red")
    pipeline = haystack.Pipeline()
    pipeline.add_component("retriever", CorpusRetriever(*load_corpus(corpus), top_k=1))
    pipeline.add_component("generator", CopySpecGenerator(engine, max_new_tokens=12))
    pipeline.connect("retriever.documents", "generator.documents")
    inputs = {"retriever": {"query": "When does the boat leave?"}, "generator": {"prompt": "the cat"}}
    made = pipeline.run(inputs, include_outputs_from={"retriever"})
    plain = engine.generate("the cat", chat=True, drafter="none", max_new_tokens=12)
    assert made["generator"]["replies"] == [plain.text]
    (document,) = made["retriever"]["documents"]
    assert document.meta == {"source": "guide.md", "heading": "Boats", "start": TEXT.index("# Boats"), "end": len(TEXT)}
    ((reference,),) = parse_references([document], 1)
    assert (reference.name, reference.text) == ("guide.md", document.content)
    with monkeypatch.context() as patch:
        patch.setattr(copyspec, "load", lambda model, **loading: engine)
        named = haystack.Pipeline()
        named.add_component("retriever", CorpusRetriever(corpus, top_k=1))
        named.add_component("generator", CopySpecGenerator("folder", max_new_tokens=12))
        named.connect("retriever.documents", "generator.documents")
        again = loaded(haystack.Pipeline, named.dumps())
    assert again.run(inputs)["generator"]["replies"] == [plain.text]


def loaded(kind: type[Any], text: str) -> Any:
    """A saved pipeline. Newer versions of Haystack ask which modules to trust; older ones do not know the argument."""
    knows = "allowed_modules" in inspect.signature(kind.loads).parameters
    return kind.loads(text, **({"allowed_modules": ["copyspec.integrations.haystack"]} if knows else {}))


class ComponentStub:
    """The parts of `haystack.component` that the components use."""

    def __call__(self, made: type) -> type:
        return made

    def output_types(self, **types: object) -> Callable[[Callable[..., object]], Callable[..., object]]:
        return lambda run: run


@dataclass
class HaystackHit:
    content: str
    score: float
    meta: dict[str, object]


@pytest.fixture
def components(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The components, over Haystack or, where it is not installed, over the parts of it that they use."""
    name, is_missing = "copyspec.integrations.haystack", find_spec("haystack") is None
    if is_missing:
        stub = ModuleType("haystack")
        vars(stub).update(
            Document=HaystackHit,
            component=ComponentStub(),
            default_to_dict=lambda made, **options: {"type": type(made).__name__, "init_parameters": options},
            default_from_dict=lambda kind, data: kind(**data["init_parameters"]),
        )
        monkeypatch.setitem(sys.modules, "haystack", stub)
    yield import_module(name)
    if is_missing:
        del sys.modules[name]


def test_components_of_haystack_are_saved_and_made_again(
    components: ModuleType, engine: copyspec.Engine, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(copyspec, "load", lambda model, **loading: loaded.append((model, loading)) or engine)
    options = {"dtype": "float32", "max_new_tokens": 12}
    made = components.CopySpecGenerator(Path("folder"), **options)
    saved = json.loads(json.dumps(made.to_dict()))
    assert saved["init_parameters"] == {"model": "folder", **options}
    again = components.CopySpecGenerator.from_dict(saved)
    assert again.to_dict() == saved and again.run("the cat")["replies"] == made.run("the cat")["replies"]
    assert loaded[1] == ("folder", {"dtype": "float32"})
    sampled = made.run("the cat", generation_kwargs={"n": 2, "temperature": 1.0, "seed": 3})
    expected = engine.generate("the cat", chat=True, n=2, temperature=1.0, seed=3, max_new_tokens=12).samples
    assert sampled["replies"] == [result.text for result in expected] and len(sampled["meta"]) == 2
    assert components.CopySpecGenerator().to_dict()["init_parameters"] == {"model": None}
    with pytest.raises(ValueError, match="is an object, which cannot be saved: give the model's name or folder"):
        components.CopySpecGenerator(engine).to_dict()

    question = "When does the boat leave?"
    saved = json.loads(json.dumps(components.CorpusRetriever(corpus, top_k=1).to_dict()))
    (document,) = components.CorpusRetriever.from_dict(saved).run(question)["documents"]
    in_memory = components.CorpusRetriever(*load_corpus(corpus), top_k=1)
    assert [document] == in_memory.run(question)["documents"] and document.meta["source"] == "guide.md"
    with pytest.raises(ValueError, match="is an object, which cannot be saved: give the folder of its corpus"):
        in_memory.to_dict()
    with pytest.raises(ValueError, match="passages come with the corpus in"):
        components.CorpusRetriever(corpus, [])


def test_langchain_documents_know_their_place_and_encoders_are_embeddings(corpus: Path) -> None:
    from copyspec.retrievers.langchain import DocumentRetriever, EncoderEmbeddings

    (document,) = DocumentRetriever.load(corpus, k=1).invoke("When does the boat leave?")
    start = TEXT.index("# Boats")
    wanted = {"source": "guide.md", "heading": "Boats", "start": start, "end": len(TEXT)}
    assert {key: document.metadata[key] for key in wanted} == wanted and "page" not in document.metadata
    embeddings = EncoderEmbeddings(lambda texts: [[float(len(text)), 1.0] for text in texts])
    assert embeddings.embed_documents(["ab", "c"]) == [[2.0, 1.0], [1.0, 1.0]]
    assert embeddings.embed_query("abc") == [3.0, 1.0]
