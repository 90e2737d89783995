"""References by hand: from a value of the chain's own input."""

from __future__ import annotations

from collections.abc import Mapping

from langchain_core.runnables import Runnable, RunnableLambda, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase

from .documents import Private
from .fields import EngineFields


def with_references(chain: Runnable[object, object], *, key: str) -> Runnable[object, object]:
    """`chain`, whose copyspec models copy from `input[key]`: documents or texts, none of which they are shown.

        RunnablePassthrough.assign(docs=retriever) | with_references(prompt | llm | StrOutputParser(), key="docs")

    Streams, batches and calls from asyncio as `chain` does. Raises ValueError where the chain has no copyspec model,
    KeyError with an input that has no `key`.
    """
    if not _has_model(chain):
        raise ValueError(f"there is no ChatCopySpec or CopySpecLLM in {type(chain).__name__}: nothing would copy")

    def bound(given: object) -> Runnable[object, object]:
        if not isinstance(given, Mapping):
            raise TypeError(f"with_references(key={key!r}) needs a dict that has it; got {type(given).__name__}")
        if key not in given:
            raise KeyError(
                f"with_references(key={key!r}) finds no {key!r} in the input; it has {', '.join(map(str, given))}"
            )
        return _bind(chain, Private(given[key]))

    return RunnableLambda(bound, name="with_references")


def _has_model(chain: object) -> bool:
    if isinstance(chain, RunnableSequence):
        return any(map(_has_model, chain.steps))
    if isinstance(chain, RunnableBindingBase):
        return _has_model(chain.bound)
    return isinstance(chain, EngineFields)


def _bind(chain: Runnable[object, object], references: Private) -> Runnable[object, object]:
    if isinstance(chain, RunnableSequence):
        return RunnableSequence(*(_bind(step, references) for step in chain.steps), name=chain.name)
    if isinstance(chain, RunnableBindingBase):
        return chain.model_copy(update={"bound": _bind(chain.bound, references)})
    return chain.bind(references=references) if isinstance(chain, EngineFields) else chain
