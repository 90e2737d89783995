"""The encoder-decoder used in training: a T5 with a deep encoder and a shallow decoder, in plain tensor code.

Its weights are those of ``transformers.T5ForConditionalGeneration`` (gated GELU, tied embeddings) with matrices that
read the same states stored side by side; :func:`to_t5` splits them for export, and a test compares the logits. A
decoder of one layer makes a token cheap and leaves the reading to the encoder, which runs once (arXiv 2106.04970).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.model import TiedCrossEntropy, Weights
from training.tokenizer import PAD, SPECIAL

START = SPECIAL.index(PAD)
"""The decoder's first token, as in T5; control tokens come first in the vocabulary, in this order."""
_EPS = 1e-6
_BIAS_GAIN = 16.0
"""Position biases are stored divided by this, because they must reach ten or more within some hundred steps."""

# The initialisation decides when the model learns to copy. Loss on copying random tokens with 5 % noise after 400
# steps, for a small shape: 3.71 with the usual one (embeddings of deviation 0.02), 1.51 with biases towards neighbours,
# 1.24 with equal queries and keys as well, and 0.58 with larger embeddings too.
_NEIGHBOUR = 4.0  # initial bias that gives the neighbour about half of the attention
_EMBED = 0.8  # norm of an embedding, larger than what the layers add to it


@dataclass(frozen=True)
class Seq2SeqShape:
    """Sizes of the model."""

    vocab: int = 4096
    width: int = 144
    encoder_layers: int = 5
    decoder_layers: int = 1
    heads: int = 3
    head: int = 48  # width of a head
    inner: int = 256
    buckets: int = 32
    distance: int = 128  # distances from here on share one bucket
    context: int = 640  # maximum length in training; T5 itself has no limit


def init_weights(shape: Seq2SeqShape, generator: torch.Generator) -> Weights:
    """Float32 weights: normal with variance 1/inputs, residual outputs scaled down by depth, norms at one."""
    d, f, inner = shape.width, shape.inner, shape.heads * shape.head

    def normal(*size: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*size, generator=generator) * (scale / math.sqrt(size[-1]))

    def layer(name: str, depth: float, *, cross: bool) -> Weights:
        tensors = {f"{name}.norm1": torch.ones(d), f"{name}.qkv": normal(3 * inner, d)}
        tensors[f"{name}.out"] = normal(d, inner, scale=depth)
        if cross:
            key = normal(inner, d)
            tensors |= {
                f"{name}.norm2": torch.ones(d),
                f"{name}.query": key.clone(),
            }  # equal tokens attend to each other
            tensors |= {f"{name}.kv": torch.cat((key, normal(inner, d))), f"{name}.read": normal(d, inner, scale=depth)}
        tensors |= {f"{name}.norm3": torch.ones(d), f"{name}.up": normal(2 * f, d)}
        return tensors | {f"{name}.down": normal(d, f, scale=depth)}

    weights = {"embed": torch.randn(shape.vocab, d, generator=generator) * (_EMBED / math.sqrt(d))}
    for side, layers, blocks in (("e", shape.encoder_layers, 2), ("d", shape.decoder_layers, 3)):
        weights[f"{side}.bias"] = _first_bias(shape, both_ways=side == "e").flatten()  # Muon is for matrices only
        for i in range(layers):
            weights |= layer(f"{side}{i}", 1 / math.sqrt(blocks * layers), cross=side == "d")
        weights[f"{side}.norm"] = torch.ones(d)
    return weights


def _first_bias(shape: Seq2SeqShape, *, both_ways: bool) -> Tensor:
    """Initial position biases [buckets, heads]: the first heads attend to the neighbours, the others anywhere.

    For copying, a head must know which tokens come before and after each token of the source.
    """
    bias = torch.zeros(shape.buckets, shape.heads)
    neighbours = (1, shape.buckets // 2 + 1) if both_ways else (1, 2)  # one back and one ahead; one and two back
    for head, bucket in enumerate(neighbours[: shape.heads - 1]):
        bias[bucket, head] = _NEIGHBOUR / _BIAS_GAIN
    return bias


def distance_buckets(shape: Seq2SeqShape, length: int, *, both_ways: bool) -> Tensor:
    """T5's bucket of each (query, key) pair [length, length]: exact for near distances, logarithmic for far ones."""
    places = torch.arange(length)
    distance = places[None, :] - places[:, None]
    count = shape.buckets // 2 if both_ways else shape.buckets
    behind = (distance > 0).long() * count if both_ways else torch.zeros_like(distance)
    distance = distance.abs() if both_ways else (-distance).clamp(min=0)
    exact = count // 2
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(shape.distance / exact)
    far = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
    return behind + torch.where(distance < exact, distance, far)


def tables(shape: Seq2SeqShape, device: torch.device | str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Distance buckets of the encoder and of the decoder, each [context, context]."""
    encoder, decoder = (distance_buckets(shape, shape.context, both_ways=both) for both in (True, False))
    return encoder.to(device), decoder.to(device)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, heads: int) -> Tensor:
    """Attention of [rows, length, heads * head] tensors; ``bias`` [rows * heads or 1, queries or 1, keys]."""
    rows, length, inner = q.shape
    q, k, v = (t.view(rows, -1, heads, inner // heads).transpose(1, 2).reshape(rows * heads, -1, inner // heads)
               for t in (q, k, v))  # fmt: skip
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=(inner // heads) ** -0.5)
    return torch.bmm(scores.softmax(-1), v).view(rows, heads, length, -1).transpose(1, 2).reshape(rows, length, inner)


def _hidden_bias(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Minus infinity where ``hidden`` is true, else zero."""
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -math.inf)


def _feed(weights: Weights, name: str, x: Tensor) -> Tensor:
    gate, up = F.linear(_norm(weights, f"{name}.norm3", x), weights[f"{name}.up"]).chunk(2, dim=-1)
    return x + F.linear(F.gelu(gate, approximate="tanh") * up, weights[f"{name}.down"])


def _norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weights[name], _EPS)


def _looked_at(weights: Weights, name: str, x: Tensor, bias: Tensor, heads: int) -> Tensor:
    q, k, v = F.linear(_norm(weights, f"{name}.norm1", x), weights[f"{name}.qkv"]).chunk(3, dim=-1)
    return x + F.linear(_attend(q, k, v, bias, heads), weights[f"{name}.out"])


def _embed(weights: Weights, ids: Tensor, shape: Seq2SeqShape) -> Tensor:
    # T5 divides by the square root of the width before the tied output matrix; here the input is multiplied instead
    return F.embedding(ids, weights["embed"]) * math.sqrt(shape.width)


def _by_distance(weights: Weights, side: str, buckets: Tensor, length: int, shape: Seq2SeqShape) -> Tensor:
    """The biases of one side by distance: [heads, length, length]."""
    table = _BIAS_GAIN * weights[f"{side}.bias"].view(shape.buckets, shape.heads)
    return F.embedding(buckets[:length, :length], table).permute(2, 0, 1)


def encode(weights: Weights, ids: Tensor, pads: Tensor, shape: Seq2SeqShape, buckets: Tensor) -> Tensor:
    """The encoder's states [rows, length, width] of right-padded ``ids`` with ``pads`` [rows, length]."""
    x = _embed(weights, ids, shape)
    length = ids.shape[1]
    bias = _by_distance(weights, "e", buckets, length, shape) + _hidden_bias(pads, x.dtype)[:, None, None]
    bias = bias.reshape(-1, length, length)
    for i in range(shape.encoder_layers):
        x = _feed(weights, f"e{i}", _looked_at(weights, f"e{i}", x, bias, shape.heads))
    return _norm(weights, "e.norm", x)


def decode(weights: Weights, ids: Tensor, states: Tensor, pads: Tensor, shape: Seq2SeqShape, buckets: Tensor) -> Tensor:
    """The decoder's final states [rows, length, width]; ``ids`` begin with the start token."""
    x = _embed(weights, ids, shape)
    rows, length = ids.shape
    later = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu_(1)
    bias = _by_distance(weights, "d", buckets, length, shape) + _hidden_bias(later, x.dtype)
    bias = bias.expand(rows, -1, -1, -1).reshape(-1, length, length)
    cross = _hidden_bias(pads, x.dtype)[:, None, None].expand(-1, shape.heads, -1, -1).reshape(-1, 1, pads.shape[1])
    for i in range(shape.decoder_layers):
        name = f"d{i}"
        x = _looked_at(weights, name, x, bias, shape.heads)
        query = F.linear(_norm(weights, f"{name}.norm2", x), weights[f"{name}.query"])
        k, v = F.linear(states, weights[f"{name}.kv"]).chunk(2, dim=-1)
        x = x + F.linear(_attend(query, k, v, cross, shape.heads), weights[f"{name}.read"])
        x = _feed(weights, name, x)
    return _norm(weights, "d.norm", x)


def halves(ids: Tensor, answer: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Right-padded (sources, their pads, answers, their pads) of rows that hold a source and its answer."""
    start = answer.long().argmax(1, keepdim=True)
    count = answer.sum(1, keepdim=True)
    read, written = (torch.arange(int(n.max()), device=ids.device) for n in (start, count))
    answers = ids.gather(1, (start + written).clamp_(max=ids.shape[1] - 1))
    return ids[:, : len(read)], read >= start, answers, written >= count


def loss_of(
    weights: Weights, ids: Tensor, answer: Tensor, shape: Seq2SeqShape, buckets: tuple[Tensor, Tensor]
) -> Tensor:
    """Summed cross-entropy of the answer tokens, which ``answer`` [rows, length] marks; the source precedes them."""
    sources, pads, answers, ends = halves(ids, answer)
    inputs = F.pad(answers[:, :-1], (1, 0), value=START)
    states = encode(weights, sources, pads, shape, buckets[0])
    final = decode(weights, inputs, states, pads, shape, buckets[1])[~ends]
    loss: Tensor = TiedCrossEntropy.apply(final, weights["embed"], answers[~ends])  # type: ignore[no-untyped-call]
    return loss


# ours -> T5's, for the matrices stored side by side and for the others
_ATTENTION = {"qkv": ("q", "k", "v"), "out": ("o",)}
_CROSS = {"query": ("q",), "kv": ("k", "v"), "read": ("o",)}
_INNER = {"up": ("wi_0", "wi_1"), "down": ("wo",)}


def _places(shape: Seq2SeqShape) -> list[tuple[str, list[str]]]:
    """Our name of each weight and T5's names for its parts."""
    places = [("embed", ["shared.weight"])]
    for side, long, layers in (("e", "encoder", shape.encoder_layers), ("d", "decoder", shape.decoder_layers)):
        places.append((f"{side}.bias", [f"{long}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]))
        parts = [("SelfAttention", "norm1", _ATTENTION), ("EncDecAttention", "norm2", _CROSS)]
        parts = [*parts[: 1 + (side == "d")], ("DenseReluDense", "norm3", _INNER)]
        for i in range(layers):
            for number, (module, norm, matrices) in enumerate(parts):
                block = f"{long}.block.{i}.layer.{number}."
                places.append((f"{side}{i}.{norm}", [block + "layer_norm.weight"]))
                for ours, theirs in matrices.items():
                    places.append((f"{side}{i}.{ours}", [f"{block}{module}.{name}.weight" for name in theirs]))
        places.append((f"{side}.norm", [f"{long}.final_layer_norm.weight"]))
    return places


def _factor(ours: str, part: int, shape: Seq2SeqShape) -> float:
    """T5's weight divided by ours: it scales neither its input embeddings nor its attention scores."""
    if ours == "embed":
        return math.sqrt(shape.width)
    if ours.endswith(".bias"):
        return _BIAS_GAIN
    return shape.head**-0.5 if ours.endswith((".qkv", ".query")) and not part else 1.0


def to_t5(weights: Weights, shape: Seq2SeqShape) -> Weights:
    """The weights with the names of ``transformers.T5ForConditionalGeneration`` (without tied matrices)."""
    named: Weights = {}
    for ours, theirs in _places(shape):
        value = weights[ours].view(shape.buckets, shape.heads) if ours.endswith(".bias") else weights[ours]
        for part, (name, piece) in enumerate(zip(theirs, value.chunk(len(theirs)), strict=True)):
            named[name] = (piece * _factor(ours, part, shape)).contiguous()
    return named


def from_t5(named: Weights, shape: Seq2SeqShape) -> Weights:
    """The inverse of :func:`to_t5`: float32 weights to continue training from."""
    weights: Weights = {}
    for ours, theirs in _places(shape):
        value = torch.cat([named[name].float() / _factor(ours, part, shape) for part, name in enumerate(theirs)])
        weights[ours] = (value.flatten() if ours.endswith(".bias") else value).contiguous()
    return {name: weights[name] for name in init_weights(shape, torch.Generator())}


def shape_of(config: dict[str, Any]) -> Seq2SeqShape:
    """The shape described by an exported ``config.json``."""
    return Seq2SeqShape(
        vocab=config["vocab_size"], width=config["d_model"], encoder_layers=config["num_layers"],
        decoder_layers=config["num_decoder_layers"], heads=config["num_heads"], head=config["d_kv"],
        inner=config["d_ff"], buckets=config["relative_attention_num_buckets"],
        distance=config["relative_attention_max_distance"],
    )  # fmt: skip
