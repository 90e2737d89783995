"""The two kinds of model that can be trained, and their differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tokenizers import Tokenizer
from torch import Tensor

from training import model, seq2seq
from training.correction import CorrectionMaker, reading_tokenizer
from training.examples import ExampleMaker
from training.model import Shape, Weights
from training.seq2seq import Seq2SeqShape

AnyShape: TypeAlias = "Shape | Seq2SeqShape"
Tables: TypeAlias = "tuple[Tensor, Tensor]"


@dataclass(frozen=True)
class Family:
    """One kind of model. Shapes are of the family's own type; `...` stands for arguments of either type."""

    shape: Callable[..., AnyShape]  # from its sizes by name
    shape_of: Callable[[dict[str, Any]], AnyShape]  # from an exported config.json
    init_weights: Callable[..., Weights]  # (shape, generator)
    tables: Callable[..., Tables]  # (shape, device, dtype): tables that the forward pass looks up by position
    loss_of: Callable[..., Tensor]  # (weights, ids, answer, shape, tables): summed over the answer tokens
    to_named: Callable[..., Weights]  # (weights, shape): with the names of transformers
    from_named: Callable[..., Weights]  # its inverse
    maker: type[ExampleMaker]
    tokenizer: Callable[[Tokenizer], Tokenizer]  # converts the other family's tokenizer to this one's format


def _as_it_is(tokenizer: Tokenizer) -> Tokenizer:
    return tokenizer


FAMILIES = {
    "llama": Family(
        Shape, model.shape_of, model.init_weights, model.rotation, model.loss_of, model.to_llama, model.from_llama,
        ExampleMaker, _as_it_is,
    ),
    "t5": Family(
        Seq2SeqShape, seq2seq.shape_of, seq2seq.init_weights, seq2seq.tables, seq2seq.loss_of, seq2seq.to_t5,
        seq2seq.from_t5, CorrectionMaker, reading_tokenizer,
    ),
}  # fmt: skip


def family_of(shape: AnyShape) -> Family:
    """The family of a shape."""
    return FAMILIES["t5" if isinstance(shape, Seq2SeqShape) else "llama"]


def family_name(shape: AnyShape) -> str:
    """The family's name in plan.json."""
    return "t5" if isinstance(shape, Seq2SeqShape) else "llama"


def read_family(plan: dict[str, Any]) -> Family:
    """The family named in a plan.json; runs without a name are Llamas."""
    name = plan.get("family", "llama")
    if name not in FAMILIES:
        raise ValueError(f"plan.json names the family {name!r}; known are {', '.join(FAMILIES)}")
    return FAMILIES[name]
