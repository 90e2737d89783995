"""Passes references to a chain's models explicitly, from a value of the chain's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import RunnableConfigurableAlternatives, RunnableConfigurableFields
from langchain_core.runnables.passthrough import RunnableAssign

from copyspec.engine.asking.inputs import parse_references

from .documents import Private, explicit
from .fields import EngineFields


def with_references(chain: Runnable[object, object], *, key: str) -> Runnable[object, object]:
    """Make the models of `chain` copy from `input[key]`: documents or texts, which the models are not shown.

        RunnablePassthrough.assign(docs=retriever) | with_references(prompt | llm | StrOutputParser(), key="docs")

    Models are copyspec's own, and langchain_openai's if their server is `copyspec serve` or vLLM with copyspec, which
    receive the texts with the request. Streams, batches and asyncio work as for `chain`. Raises ValueError if the
    chain has no such model, and KeyError for an input without `key`.
    """
    models: list[object] = []
    _bind(chain, Private(None), models)
    if not models:
        raise ValueError(
            f"there is no ChatCopySpec, CopySpecLLM or ChatOpenAI in {type(chain).__name__}: nothing would copy"
        )

    def bound(inputs: object) -> Runnable[object, object]:
        if not isinstance(inputs, Mapping):
            raise TypeError(f"with_references(key={key!r}) needs a dict that has it; got {type(inputs).__name__}")
        if key not in inputs:
            raise KeyError(
                f"with_references(key={key!r}) finds no {key!r} in the input; it has {', '.join(map(str, inputs))}"
            )
        return _bind(chain, Private(inputs[key]), [])

    return RunnableLambda(bound, name="with_references")


def _bind(chain: Runnable[object, object], references: Private, models: list[object]) -> Runnable[object, object]:
    """The chain with the references bound to its models, which are added to `models`."""
    bind = partial(_bind, references=references, models=models)
    if isinstance(chain, RunnableSequence):
        return RunnableSequence(*map(bind, chain.steps), name=chain.name)
    if isinstance(chain, RunnableParallel):
        return chain.model_copy(update={"steps__": {key: bind(step) for key, step in chain.steps__.items()}})
    if isinstance(chain, RunnableAssign):
        return chain.model_copy(update={"mapper": bind(chain.mapper)})  # type: ignore[return-value]
    if isinstance(chain, RunnableWithFallbacks):
        fallbacks = [bind(fallback) for fallback in chain.fallbacks]
        return chain.model_copy(update={"runnable": bind(chain.runnable), "fallbacks": fallbacks})
    if isinstance(chain, RunnableBranch):
        branches = [(condition, bind(chosen)) for condition, chosen in chain.branches]
        return chain.model_copy(update={"branches": branches, "default": bind(chain.default)})
    if isinstance(chain, RunnableConfigurableAlternatives):
        others = {
            key: bind(branch) if isinstance(branch, Runnable) else partial(_bind_made, branch, references)
            for key, branch in chain.alternatives.items()
        }
        return chain.model_copy(update={"default": bind(chain.default), "alternatives": others})
    if isinstance(chain, RunnableBindingBase):
        copied: dict[str, object] = {"bound": bind(chain.bound)}
        if _is_remote(chain.bound) and "extra_body" in chain.kwargs:  # bound outside, so it takes precedence
            copied["kwargs"] = {**chain.kwargs, "extra_body": _body(chain.kwargs["extra_body"], references)}
        return chain.model_copy(update=copied)
    model: object = chain
    if isinstance(chain, RunnableConfigurableFields):
        model = chain.default
        if not (_is_remote(model) or isinstance(model, EngineFields)):
            return chain.model_copy(update={"default": bind(chain.default)})
    if _is_remote(model):
        models.append(model)
        return chain.bind(extra_body=_body(getattr(model, "extra_body", None), references))
    if not isinstance(model, EngineFields):
        return chain
    models.append(model)
    return chain.bind(references=references)


def _bind_made(make: Callable[[], Runnable[object, object]], references: Private) -> Runnable[object, object]:
    return _bind(make(), references, [])


def _is_remote(chain: object) -> bool:
    """Whether it is a client of OpenAI's API. Checked by class name, so that langchain_openai need not be installed."""
    return any(
        base.__module__.startswith("langchain_openai.") and base.__name__ in ("BaseChatOpenAI", "BaseOpenAI")
        for base in type(chain).__mro__
    )


def _body(body: object, references: Private) -> dict[str, object]:
    """The `extra_body` of a request, with references in the form that servers accept."""
    parsed = parse_references(explicit(references), 1)[0]
    texts = [
        list(reference.ids or ()) if reference.text is None else {"text": reference.text, "name": reference.name}
        for reference in parsed
    ]
    return {**(body if isinstance(body, Mapping) else {}), "references": texts}
