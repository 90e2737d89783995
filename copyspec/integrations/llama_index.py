"""LlamaIndex: a model that drafts its answers from the nodes in its prompt, and a retriever over an index.

from copyspec.integrations.llama_index import CopySpecLlamaLLM, IndexRetriever

engine = RetrieverQueryEngine.from_args(IndexRetriever(*load_corpus(folder)), llm=CopySpecLlamaLLM(model="smollm2"))
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Any

try:
    from llama_index.core.base.llms.generic_utils import (
        astream_completion_response_to_chat_response,
        completion_response_to_chat_response,
    )
    from llama_index.core.base.llms.types import (
        ChatMessage,
        ChatResponse,
        ChatResponseAsyncGen,
        ChatResponseGen,
        CompletionResponse,
        CompletionResponseAsyncGen,
        CompletionResponseGen,
        LLMMetadata,
        MessageRole,
    )
    from llama_index.core.llms import CustomLLM
    from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ImportError as error:
    raise ImportError(
        "copyspec.integrations.llama_index needs llama-index-core: pip install llama-index-core"
    ) from error

from pydantic import PrivateAttr

from copyspec import Engine, agenerate
from copyspec.pipelines.models import chat_option, engine_and_options
from copyspec.retrievers import Passage, Retriever
from copyspec.targets.model.limits import trained_length

UNKNOWN_WINDOW = 4096
"""Tokens of prompt and output for which LlamaIndex plans if a model names no length, and has no limit."""

_LIMITS = {"max_tokens", "max_new_tokens"}
"""Both name the same limit: one given in a call replaces that of the constructor, whichever name either uses."""


class CopySpecLlamaLLM(CustomLLM):  # type: ignore[misc]
    """A local model for LlamaIndex. It copies from the prompt, which contains the nodes, and from
    `copyspec.references`.

    `model`: as for `copyspec.generate`. Prompts go through the chat template if there is one, unless `chat=False`.
    `options` are those of `generate`, also those that say how the model is loaded, and fields of LlamaIndex's models,
    `system_prompt` for example. Each call may override those of `generate`; unknown options raise.
    """

    context_window: int = UNKNOWN_WINDOW
    max_tokens: int = 512

    _engine: Engine = PrivateAttr()
    _options: dict[str, Any] = PrivateAttr(default_factory=dict)

    def __init__(self, model: Any = None, *, max_tokens: int = 512, **options: Any) -> None:
        fields = {name: options.pop(name) for name in type(self).model_fields if name in options}
        engine, checked = engine_and_options(model, options, ["references"])
        window = engine.max_length or trained_length(engine.model.config) or UNKNOWN_WINDOW
        super().__init__(max_tokens=max_tokens, **{"context_window": window, **fields})
        self._engine, self._options = engine, checked

    @classmethod
    def class_name(cls) -> str:
        """The class name in LlamaIndex's serialisation."""
        return "CopySpecLlamaLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """Model name, context window and output limit."""
        return LLMMetadata(
            context_window=self.context_window, num_output=self.max_tokens, model_name=self._engine.name or "copyspec"
        )

    @llm_completion_callback()  # type: ignore[untyped-decorator]
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Generate the answer, with the engine's `Result` in `raw`."""
        result = self._engine.generate(prompt, **self._given(kwargs))
        return CompletionResponse(text=result.text, raw=result)

    @llm_completion_callback()  # type: ignore[untyped-decorator]
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Generate the answer in pieces."""

        def pieces() -> CompletionResponseGen:
            written = ""
            for chunk in self._engine.stream(prompt, **self._streamed(kwargs)):
                written += chunk.text
                yield CompletionResponse(text=written, delta=chunk.text, raw=chunk)

        return pieces()

    @llm_chat_callback()  # type: ignore[untyped-decorator]
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation. Without a chat template the roles are written out, as LlamaIndex does."""
        if not self._engine.tokenizer.chat_template:
            return super().chat(messages, **kwargs)
        result = self._engine.generate(_turns(messages), **self._given({"chat": True, **kwargs}))
        return ChatResponse(message=_answer(result.text), raw=result)

    @llm_chat_callback()  # type: ignore[untyped-decorator]
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer a conversation in pieces."""
        if not self._engine.tokenizer.chat_template:
            return super().stream_chat(messages, **kwargs)

        def pieces() -> ChatResponseGen:
            written = ""
            for chunk in self._engine.stream(_turns(messages), **self._streamed({"chat": True, **kwargs})):
                written += chunk.text
                yield ChatResponse(message=_answer(written), delta=chunk.text, raw=chunk)

        return pieces()

    @llm_completion_callback()  # type: ignore[untyped-decorator]
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """`complete` for asyncio. Calls awaited at the same time share passes; cancelling the task ends the
        decoding."""
        result = await agenerate(prompt, model=self._engine, **self._given(kwargs))
        return CompletionResponse(text=result.text, raw=result)

    @llm_completion_callback()  # type: ignore[untyped-decorator]
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """`stream_complete` for asyncio."""

        async def pieces() -> CompletionResponseAsyncGen:
            written = ""
            chunks = agenerate(prompt, stream=True, model=self._engine, **self._streamed(kwargs))
            async with aclosing(chunks):
                async for chunk in chunks:
                    written += chunk.text
                    yield CompletionResponse(text=written, delta=chunk.text, raw=chunk)

        return pieces()

    @llm_chat_callback()  # type: ignore[untyped-decorator]
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """`chat` for asyncio."""
        if not self._engine.tokenizer.chat_template:
            answer = await self.acomplete(self.messages_to_prompt(messages), formatted=True, **kwargs)
            return completion_response_to_chat_response(answer)
        options = self._given({"chat": True, **kwargs})
        result = await agenerate(_turns(messages), model=self._engine, **options)
        return ChatResponse(message=_answer(result.text), raw=result)

    @llm_chat_callback()  # type: ignore[untyped-decorator]
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """`stream_chat` for asyncio."""
        if not self._engine.tokenizer.chat_template:
            answers = await self.astream_complete(self.messages_to_prompt(messages), formatted=True, **kwargs)
            return astream_completion_response_to_chat_response(answers)

        async def pieces() -> ChatResponseAsyncGen:
            written = ""
            options = self._streamed({"chat": True, **kwargs})
            chunks = agenerate(_turns(messages), stream=True, model=self._engine, **options)
            async with aclosing(chunks):
                async for chunk in chunks:
                    written += chunk.text
                    yield ChatResponse(message=_answer(written), delta=chunk.text, raw=chunk)

        return pieces()

    def _streamed(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a stream. Raises ValueError for several samples: their pieces would be one answer."""
        call_options = self._given(options)
        if (call_options.get("n") or 1) > 1:
            raise ValueError(f"n={call_options['n']} cannot be streamed; leave stream out, or stream once per seed")
        return call_options

    def _given(self, options: dict[str, Any]) -> dict[str, Any]:
        # LlamaIndex passes formatted=True for every prompt of a query engine: its variables are filled in, but nothing
        # has applied the model's chat template.
        call_options: dict[str, Any] = {"max_new_tokens": self.max_tokens, "chat": chat_option(self._engine)}
        for nearer in (self._options, options):
            if not _LIMITS.isdisjoint(nearer):
                call_options = {name: value for name, value in call_options.items() if name not in _LIMITS}
            call_options |= nearer
        return call_options


def _turns(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """The messages for the chat template. Raises ValueError for content that is not text."""
    for number, message in enumerate(messages):
        kinds = {block.block_type for block in message.blocks} - {"text", "thinking"}
        if kinds:
            raise ValueError(f"messages[{number}] holds {', '.join(sorted(kinds))}: the model reads text only")
    return [
        {"role": _ROLES.get(message.role.value, message.role.value), "content": message.content or ""}
        for message in messages
    ]


_ROLES = {"developer": "system", "chatbot": "assistant", "model": "assistant"}
"""Roles of LlamaIndex that chat templates call otherwise."""


def _answer(text: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.ASSISTANT, content=text)


class IndexRetriever(BaseRetriever):  # type: ignore[misc]
    """Any retriever of `copyspec.retrievers` as a LlamaIndex retriever that returns nodes with scores.

    `passages`, returned by `load_corpus` together with the retriever, fill the nodes' metadata: file_path, heading,
    page, and the characters in `start_char_idx` and `end_char_idx`.
    """

    def __init__(self, retriever: Retriever, passages: Sequence[Passage] | None = None, *, k: int = 4) -> None:
        if passages is not None and len(passages) != len(retriever):
            raise ValueError(f"passages holds {len(passages)} for the {len(retriever)} texts of the retriever")
        self._retriever, self._passages, self._k = retriever, passages, k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self._retriever.search(query_bundle.query_str, self._k)
        return [NodeWithScore(node=self._node(hit.id, hit.text), score=hit.score) for hit in hits]

    def _node(self, number: int, text: str) -> TextNode:
        if self._passages is None:
            return TextNode(text=text, id_=_id(text))
        passage = self._passages[number]
        metadata = {"file_path": passage.document, "heading": passage.heading, "page": passage.page}
        return TextNode(
            text=text,
            id_=_id(passage.document, passage.start, text),
            metadata={key: value for key, value in metadata.items() if value},
            start_char_idx=passage.start,
            end_char_idx=passage.start + len(text),
        )


def _id(*content: object) -> str:
    """An id that differs between the nodes of several corpora, which LlamaIndex joins by it."""
    return sha256(repr(content).encode("utf-8", "surrogatepass")).hexdigest()


__all__ = ["CopySpecLlamaLLM", "IndexRetriever"]
