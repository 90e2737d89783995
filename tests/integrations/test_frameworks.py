"""LlamaIndex and Haystack: their documents as references, with a model and a retriever for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

import copyspec
from copyspec.engine.inputs import parse_references
from copyspec.retrievers import Corpora, Document, load_corpus, split_passages
from tests.helpers.models import tiny
from tests.helpers.tiny import tiny_model, tiny_tokenizer

TEXT = "# Birds\n\nHerons wait in shallow water.\n\n# Boats\n\nThe boat leaves at nine."


@pytest.fixture(scope="module")
def engine() -> copyspec.Engine:
    return copyspec.Engine(tiny_model(), tiny_tokenizer())


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


def test_llama_index(engine: copyspec.Engine, corpus: Path) -> None:
    pytest.importorskip("llama_index.core")
    from llama_index.core import PromptTemplate
    from llama_index.core.llms import ChatMessage, ImageBlock, MessageRole

    from copyspec.integrations.llama_index import CopySpecLlamaLLM, IndexRetriever

    llm = CopySpecLlamaLLM(engine, max_tokens=12)
    plain = engine.generate("the cat", chat=True, drafter="none", max_new_tokens=12)
    assert llm.complete("the cat").text == llm.complete("the cat", formatted=True).text == plain.text
    assert "".join(each.delta or "" for each in llm.stream_complete("the cat")) == plain.text
    with copyspec.references("the cat sat on the mat"):
        assert llm.complete("the cat").text == plain.text
    assert llm.predict(PromptTemplate("the {animal}"), animal="cat") == plain.text
    turns = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="the cat")]
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the cat"}]
    answer = engine.generate(said, drafter="none", max_new_tokens=12).text
    assert llm.chat(turns).message.content == answer
    assert "".join(each.delta or "" for each in llm.stream_chat(turns)) == answer
    turns[0].role = MessageRole.DEVELOPER
    assert llm.chat(turns).message.content == answer, "chat templates call it system"
    with pytest.raises(ValueError, match=r"messages\[0\] holds image: the model reads text only"):
        llm.chat([ChatMessage(role="user", blocks=[ImageBlock(url="http://a/b.png")])])
    with pytest.raises(TypeError, match="colour"):
        llm.complete("the cat", colour="red")
    for options in ({"max_tokens": 5}, {"max_new_tokens": 5}):
        assert (
            llm.complete("the cat", ignore_eos=True, **options).raw.token_ids
            == engine.generate("the cat", chat=True, ignore_eos=True, max_new_tokens=5).token_ids
        )
    shorter = CopySpecLlamaLLM(engine, max_new_tokens=7, ignore_eos=True)
    assert len(shorter.complete("the cat").raw.token_ids) == 7
    assert len(shorter.complete("the cat", max_tokens=5).raw.token_ids) == 5
    (found,) = IndexRetriever(*load_corpus(corpus), k=1).retrieve("When does the boat leave?")
    assert found.node.metadata == {"file_path": "guide.md", "heading": "Boats"}
    assert TEXT[found.node.start_char_idx : found.node.end_char_idx] == found.text
    ((reference,),) = parse_references([found], 1)
    assert (reference.name, reference.text) == ("guide.md", found.text)


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
        ((found,), (bare,)) = (IndexRetriever(retriever, each, k=1).retrieve("herons") for each in (passages, None))
        ids[name] = found.node.node_id
        assert bare.node.node_id != found.node.node_id
    assert ids["a"] != ids["b"] and ids["a"] == ids["again"]


def test_haystack(engine: copyspec.Engine, corpus: Path) -> None:
    haystack = pytest.importorskip("haystack")
    from copyspec.integrations.haystack import CopySpecGenerator, CorpusRetriever

    pipeline = haystack.Pipeline()
    pipeline.add_component("retriever", CorpusRetriever(*load_corpus(corpus), top_k=1))
    pipeline.add_component("generator", CopySpecGenerator(engine, max_new_tokens=12))
    pipeline.connect("retriever.documents", "generator.documents")
    given = {"retriever": {"query": "When does the boat leave?"}, "generator": {"prompt": "the cat"}}
    made = pipeline.run(given, include_outputs_from={"retriever"})
    plain = engine.generate("the cat", chat=True, drafter="none", max_new_tokens=12)
    assert made["generator"]["replies"] == [plain.text]
    (found,) = made["retriever"]["documents"]
    assert found.meta == {"source": "guide.md", "heading": "Boats", "start": TEXT.index("# Boats"), "end": len(TEXT)}
    ((reference,),) = parse_references([found], 1)
    assert (reference.name, reference.text) == ("guide.md", found.content)


def test_langchain_documents_know_their_place_and_encoders_are_embeddings(corpus: Path) -> None:
    from copyspec.retrievers.langchain import DocumentRetriever, EncoderEmbeddings

    (found,) = DocumentRetriever.load(corpus, k=1).invoke("When does the boat leave?")
    start = TEXT.index("# Boats")
    wanted = {"source": "guide.md", "heading": "Boats", "start": start, "end": len(TEXT)}
    assert {key: found.metadata[key] for key in wanted} == wanted and "page" not in found.metadata
    embeddings = EncoderEmbeddings(lambda texts: [[float(len(text)), 1.0] for text in texts])
    assert embeddings.embed_documents(["ab", "c"]) == [[2.0, 1.0], [1.0, 1.0]]
    assert embeddings.embed_query("abc") == [3.0, 1.0]
