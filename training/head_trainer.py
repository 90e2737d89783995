"""Trains draft heads on a frozen model's hidden states: data, losses, first weights and files."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from copyspec.drafters.predictors.feature_layer import FeatureLayer, LayerSizes, Projected, Tensors
from copyspec.drafters.predictors.head_files import FORMAT, WEIGHTS
from copyspec.drafters.predictors.head_weights import ParallelHeads, RecurrentHead, probe
from training.outputs import read_shard
from training.runs import save_tensors, working_dtype


@dataclass(frozen=True)
class HeadPlan:
    """Everything a run depends on besides the hidden states."""

    kind: str = "recurrent"
    depth: int = 4
    inner: int = 768  # size of the recurrent head's block or the feature layer's MLP; rank of parallel heads
    vocabulary: int = 8192  # most frequent tokens that are drafted; 0: all
    batch: int = 256  # positions per step
    rate: float = 1e-3
    decay: float = 0.8  # weight of each depth relative to the one before
    regression: float = 1.0  # weight of the state's error relative to that of its tokens; not for parallel heads
    span: int = 64  # pairs that a feature layer attends to
    layers: tuple[int, ...] = ()  # model layers whose inputs recurrent heads read besides the last states
    steps: int = 2000
    seed: int = 0
    mixed: bool = field(default_factory=lambda: working_dtype("cpu") == torch.bfloat16)
    """Whether matrix products are in bfloat16; without such instructions they are slower than in float32."""

    @property
    def window(self) -> int:
        """Number of states of a window, minus one."""
        return self.span if self.kind == "feature" else self.depth

    @property
    def windows(self) -> int:
        """Number of windows per step."""
        return max(1, self.batch // self.span) if self.kind == "feature" else self.batch


class Windows:
    """Batches of windows of `depth` + 1 states and tokens from all shards, as a function of (seed, step)."""

    def __init__(self, paths: Sequence[Path], depth: int, *, packed: bool = False, width: int | None = None) -> None:
        """`packed`: windows may extend from one output into the next, so that short outputs are used too.
        `width`: number of leading components of the states to use; None: all."""
        tokens, states, starts, offset = list[Tensor](), list[Tensor](), list[Tensor](), 0
        for path in paths:
            for row, before in read_shard(path):
                if len(row) > depth:
                    starts.append(torch.arange(offset, offset + len(row) - depth))
                tokens.append(row)
                states.append(before[:, :width])
                offset += len(row)
        self.tokens, self.states = torch.cat(tokens), torch.cat(states)
        self.starts = torch.arange(max(1, offset - depth)) if packed else torch.cat(starts)
        self._depth = depth

    def batch(self, size: int, seed: str) -> tuple[Tensor, Tensor]:
        """Tokens [size, depth + 1] and the states before them [size, depth + 1, width]."""
        generator = torch.Generator().manual_seed(random.Random(seed).getrandbits(48))
        return self.at(self.starts[torch.randint(len(self.starts), (size,), generator=generator)])

    def at(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The windows that begin at these places."""
        places = starts[:, None] + torch.arange(self._depth + 1)
        return self.tokens[places], self.states[places].float()


class Trainer:
    """Trains heads for one model's output weights [V, D] and embeddings [V, D]."""

    def __init__(
        self,
        output: Tensor,
        embeddings: Tensor,
        vocabulary: Tensor | None,
        plan: HeadPlan,
        model: nn.Module | None = None,
    ) -> None:
        """`model`: a feature layer is initialised from its last layer where possible."""
        self.plan, self.vocabulary = plan, vocabulary
        self.embeddings = embeddings.detach().float()
        self.shared = output.detach().float() if vocabulary is None else output.detach().float()[vocabulary]
        self.sizes = _layer_sizes(plan, output.shape[1], model) if plan.kind == "feature" else None
        self.weights = _begin(plan, output.shape[1]) if self.sizes is None else _begin_layer(plan, self.sizes, model)
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.01)
        self.step = 0

    def loss(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Loss of windows: tokens [n, K + 1] and the states before them [n, K + 1, (1 + layers) D]."""
        plan, total = self.plan, states.new_zeros(())
        for depth, (predicted, following, _) in enumerate(self._predictions(tokens, states)):
            with torch.no_grad():
                wanted = F.linear(following, self.shared).float().softmax(-1)
            logits = F.linear(predicted, self.shared).float()
            loss = -(wanted * logits.log_softmax(-1)).sum(-1).mean()
            if plan.kind != "parallel" and plan.regression:
                loss = loss + plan.regression * F.smooth_l1_loss(predicted.float(), following)
            total = total + plan.decay**depth * loss
        return total

    def train(self, windows: Windows) -> float:
        """Do one training step and return its loss."""
        tokens, states = windows.batch(self.plan.windows, f"{self.plan.seed}/{self.step}")
        with torch.autocast("cpu", torch.bfloat16, enabled=self.plan.mixed):
            loss = self.loss(tokens, states)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for group in self.optimizer.param_groups:
            warm = min(1.0, (self.step + 1) / 50)
            group["lr"] = self.plan.rate * warm * max(0.05, 1 - self.step / max(self.plan.steps, 1))
        self.optimizer.step()
        self.step += 1
        return float(loss.detach())

    @torch.no_grad()
    def accuracy(self, windows: Windows, count: int = 2048) -> dict[str, list[float]]:
        """How often the model's own choice is each head's first token, and among its first five. Tokens outside the
        heads' vocabulary count as wrong."""
        count = max(1, count // self.plan.span) if self.plan.kind == "feature" else count
        starts = windows.starts[:: max(1, len(windows.starts) // count)]
        tokens, states = windows.at(starts)
        shares: dict[str, list[float]] = {"top1": [], "top5": []}
        for features, _, following in self._predictions(tokens, states):
            best = F.linear(features, self.shared).topk(5).indices
            best = best if self.vocabulary is None else self.vocabulary[best]
            right = best == following[:, None]
            shares["top1"].append(round(float(right[:, 0].float().mean()), 4))
            shares["top5"].append(round(float(right.any(-1).float().mean()), 4))
        return shares

    def _predictions(self, tokens: Tensor, states: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each depth: the features that logits are computed from and the model's own states there, [m, D] each, and
        the tokens chosen there, [m]."""
        weights, plan = self.weights, self.plan
        if self.sizes is not None:
            yield from self._layer_predictions(FeatureLayer(dict(weights), self.sizes, plan.depth), tokens, states)
        elif plan.kind == "recurrent":
            head = RecurrentHead(dict(weights), plan.depth, plan.layers)
            state = head.entered(states[:, 0])
            states = states[..., : state.shape[-1]]
            for depth in range(plan.depth):
                state = head.step(state, self.embeddings[tokens[:, depth]])
                yield state, states[:, depth + 1], tokens[:, depth + 1]
        else:
            blocks = [[_block(weights, depth)] for depth in range(plan.depth)]
            for depth, features in enumerate(ParallelHeads(blocks).features(states[:, 0])):
                yield features, states[:, depth + 1], tokens[:, depth + 1]

    def _layer_predictions(
        self, layer: FeatureLayer, tokens: Tensor, states: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """As `_predictions`, at every pair of a window; from the second depth on with the layer's own earlier features,
        as in use (EAGLE-3's training-time test)."""
        count = self.plan.span
        places = torch.arange(count)
        embeddings, features = self.embeddings[tokens[:, :count]], states[:, :count]
        keys, values = list[Tensor](), list[Tensor]()
        context: Projected | None = None
        for depth in range(self.plan.depth):
            pairs = layer.project(features, embeddings, places)
            keys, values = [*map(_shifted, keys), pairs.keys], [*map(_shifted, values), pairs.values]
            context = context or pairs
            visible = places < places[:, None] - depth  # the text before the draft
            own = torch.stack(keys, 2), torch.stack(values, 2)
            features = layer.attend(pairs, (context.keys, context.values), visible, own)
            pair = features[:, depth:].flatten(0, 1), slice(depth + 1, count + 1)
            yield pair[0], states[:, pair[1]].flatten(0, 1), tokens[:, pair[1]].flatten()
            features = _shifted(features)


def _shifted(states: Tensor) -> Tensor:
    """Shift every entry by one place along the window. [B, n, ...]"""
    return torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)


def _block(weights: Tensors, depth: int) -> Tensors:
    return {name: weights[f"{depth}.{name}"] for name in ("down", "up")}


def _begin(plan: HeadPlan, size: int) -> Tensors:
    """Heads whose first logits are the target's own for the state before: their last products are zero."""
    generator = torch.Generator().manual_seed(plan.seed)

    def drawn(rows: int, columns: int) -> Tensor:
        tensor: Tensor = torch.randn(rows, columns, generator=generator) * columns**-0.5
        return tensor.requires_grad_()

    if plan.kind == "recurrent":
        weights = {"gate": drawn(plan.inner, 2 * size), "up": drawn(plan.inner, 2 * size)}
        weights |= {"down": torch.zeros(size, plan.inner).requires_grad_()}
        if plan.layers:
            weights["mix"] = torch.zeros(size, len(plan.layers) * size).requires_grad_()
        return weights | {"norms": torch.ones(2, size).requires_grad_()}
    weights = {}
    for depth in range(plan.depth):
        weights[f"{depth}.down"] = drawn(plan.inner, size)
        weights[f"{depth}.up"] = torch.zeros(size, plan.inner).requires_grad_()
    return weights


def _layer_sizes(plan: HeadPlan, size: int, model: nn.Module | None) -> LayerSizes:
    """The sizes of the model's own layers, except for the MLP."""
    config = getattr(model, "config", None)
    heads = int(getattr(config, "num_attention_heads", None) or max(1, size // 64))
    return LayerSizes(
        hidden=size,
        inner=plan.inner,
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or size // heads),
        context=plan.span,
    )


def _begin_layer(plan: HeadPlan, sizes: LayerSizes, model: nn.Module | None) -> Tensors:
    """A layer that at first returns the feature it was given, with attention and MLP of the model's last layer if that
    is like Llama's."""
    generator = torch.Generator().manual_seed(plan.seed)
    shapes = sizes.shapes() | dict.fromkeys(("token_norm", "feature_norm"), (sizes.hidden,))
    weights = {name: torch.ones(shape) for name, shape in shapes.items() if len(shape) == 1}
    for name in ("qkv", "gate_up"):
        weights[name] = torch.randn(shapes[name], generator=generator) * shapes[name][1] ** -0.5
    weights |= {name: torch.zeros(shapes[name]) for name in ("o", "down")}
    token = torch.randn(sizes.hidden, sizes.hidden, generator=generator) * 0.1 * sizes.hidden**-0.5
    weights["fc"] = torch.cat([token, torch.eye(sizes.hidden)], 1)
    layers = getattr(getattr(model, "base_model", None), "layers", None)
    if layers is not None:
        parameters = dict(layers[-1].named_parameters())
        parts = {
            "qkv": [parameters.get(f"self_attn.{name}_proj.weight") for name in "qkv"],
            "gate_up": [parameters.get(f"mlp.{name}_proj.weight") for name in ("gate", "up")],
        }
        for name, sources in parts.items():
            if all(source is not None for source in sources):
                limit = plan.inner if name == "gate_up" else None
                joined = torch.cat([source.detach().float()[:limit] for source in sources])  # type: ignore[union-attr]
                weights[name] = joined if joined.shape == weights[name].shape else weights[name]
    return {name: tensor.requires_grad_() for name, tensor in weights.items()}


def save_heads(folder: Path, trainer: Trainer, output: Tensor, model: str) -> None:
    """Write the files that `draft_model="heads:FOLDER"` reads: bfloat16 weights, the vocabulary, the model's probe."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = trainer.plan
    config = {
        "format": FORMAT, "kind": plan.kind, "depth": plan.depth, "inner_size": plan.inner, "model": model,
        "hidden_size": output.shape[1], "vocab_size": output.shape[0], "layers": [*plan.layers],
    }  # fmt: skip
    if (sizes := trainer.sizes) is not None:
        config |= {
            "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head_dim,
            "rms_norm_eps": sizes.epsilon, "rope_theta": sizes.theta, "context": sizes.context,
        }  # fmt: skip
    tensors = {name: tensor.bfloat16() for name, tensor in trainer.weights.items()}
    tensors["probe"] = probe(output)
    if trainer.vocabulary is not None:
        tensors["vocabulary"] = trainer.vocabulary.int()
    save_tensors(folder / WEIGHTS, tensors)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
