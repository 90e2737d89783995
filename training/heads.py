"""Train draft heads: ``python -m training.heads --model smollm2 --data DIR --out RUN [--minutes M]``.

``--model`` is passed to ``copyspec.load``; ``--data`` is a folder of prose (``*.txt.gz``), one paragraph per line. In
rounds, the model reads and answers, which fills ``RUN/states`` (hidden states on disk), and the heads are trained on
all of them. Started again with the same ``--out``, the run resumes. ``RUN/heads`` holds the latest heads, for
``draft_model="heads:RUN/heads"``; ``RUN/log.jsonl`` the loss and, for each head on held-out shards, how often the
model's token is its first choice or among its first five.

``--convert FILE OUT`` converts a published ``medusa_lm_head.pt``, or EAGLE's ``pytorch_model.bin``, to safetensors; its
``config.json`` belongs beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from copyspec.drafters.predictors.feature_layer import FeatureLayer, LayerSizes, Projected, Tensors
from copyspec.drafters.predictors.head_files import EAGLE_WEIGHTS, FORMAT, MEDUSA_WEIGHTS, WEIGHTS
from copyspec.drafters.predictors.head_weights import ParallelHeads, RecurrentHead, probe
from copyspec.drafters.predictors.heads import weights_of
from copyspec.targets.linears import instructions
from training.outputs import OutputPlan, Requests, check_plan, read_shard, shards, write_prose, write_shard

if TYPE_CHECKING:
    from copyspec.engine.engine import Engine

KINDS = ("recurrent", "parallel", "feature")
CHECKPOINT = "checkpoint.safetensors"
STEPS_A_SHARD = 40  # training steps per new shard
ANSWERS_COUNT = 10  # how many times a token of an answer counts when the vocabulary is chosen


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
    mixed: bool = field(default_factory=lambda: instructions(torch.bfloat16) == "avx512")
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
        for depth, (found, following, _) in enumerate(self._predictions(tokens, states)):
            with torch.no_grad():
                wanted = F.linear(following, self.shared).float().softmax(-1)
            logits = F.linear(found, self.shared).float()
            each = -(wanted * logits.log_softmax(-1)).sum(-1).mean()
            if plan.kind != "parallel" and plan.regression:
                each = each + plan.regression * F.smooth_l1_loss(found.float(), following)
            total = total + plan.decay**depth * each
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
        held = windows.starts[:: max(1, len(windows.starts) // count)]
        tokens, states = windows.at(held)
        found: dict[str, list[float]] = {"top1": [], "top5": []}
        for features, _, following in self._predictions(tokens, states):
            best = F.linear(features, self.shared).topk(5).indices
            best = best if self.vocabulary is None else self.vocabulary[best]
            right = best == following[:, None]
            found["top1"].append(round(float(right[:, 0].float().mean()), 4))
            found["top5"].append(round(float(right.any(-1).float().mean()), 4))
        return found

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
            kept = features[:, depth:].flatten(0, 1), slice(depth + 1, count + 1)
            yield kept[0], states[:, kept[1]].flatten(0, 1), tokens[:, kept[1]].flatten()
            features = _shifted(features)


def _shifted(held: Tensor) -> Tensor:
    """Shift every entry by one place along the window. [B, n, ...]"""
    return torch.cat([torch.zeros_like(held[:, :1]), held[:, :-1]], 1)


def _block(weights: Tensors, depth: int) -> Tensors:
    return {name: weights[f"{depth}.{name}"] for name in ("down", "up")}


def _begin(plan: HeadPlan, size: int) -> Tensors:
    """Heads whose first logits are the target's own for the state before: their last products are zero."""
    generator = torch.Generator().manual_seed(plan.seed)

    def drawn(rows: int, columns: int) -> Tensor:
        found: Tensor = torch.randn(rows, columns, generator=generator) * columns**-0.5
        return found.requires_grad_()

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
        held = dict(layers[-1].named_parameters())
        parts = {
            "qkv": [held.get(f"self_attn.{name}_proj.weight") for name in "qkv"],
            "gate_up": [held.get(f"mlp.{name}_proj.weight") for name in ("gate", "up")],
        }
        for name, found in parts.items():
            if all(each is not None for each in found):
                limit = plan.inner if name == "gate_up" else None
                joined = torch.cat([each.detach().float()[:limit] for each in found])  # type: ignore[union-attr]
                weights[name] = joined if joined.shape == weights[name].shape else weights[name]
    return {name: each.requires_grad_() for name, each in weights.items()}


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
    tensors = {name: each.detach().bfloat16().contiguous() for name, each in trainer.weights.items()}
    tensors["probe"] = probe(output)
    if trainer.vocabulary is not None:
        tensors["vocabulary"] = trainer.vocabulary.int()
    save_file(tensors, folder / "heads.partial")
    (folder / "heads.partial").rename(folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


class HeadRun:
    """A folder with states, a checkpoint, heads, plan.json and log.jsonl."""

    def __init__(self, out: Path, engine: Engine, name: str, plans: tuple[HeadPlan, OutputPlan]) -> None:
        self._out, self._engine, self._model, self._name = out, engine, engine.model, name
        self._plan, self._outputs = plans
        check_plan(out / "states", name, self._outputs)
        (out / "plan.json").write_text(json.dumps(asdict(self._plan), indent=1) + "\n")
        self._trainer: Trainer | None = None
        self._held: tuple[list[Path], Windows] | None = None

    def read(self, requests: Requests, number: int, every: int) -> None:
        """Write the shard of this number if it is missing: one of `every` shards holds answers, the others prose."""
        is_output = number % every == 0
        path = self._out / "states" / f"{'outputs' if is_output else 'prose'}-{number:05d}.safetensors"
        if not path.exists():
            write = write_shard if is_output else write_prose
            print(f"{path.name}: {write(path, self._engine, requests, self._outputs)} tokens", flush=True)

    def learn(self, steps: int, until: float) -> None:
        """Train for this many steps on the existing shards; save heads and checkpoint, and write the log."""
        found = shards(self._out / "states")
        held = found[:1]
        learned = [path for path in found if path not in held] or found
        if self._held is None or self._held[0] != learned:
            self._held = None  # free the old windows first
            self._held = learned, self._windows(learned)
        windows = self._held[1]
        trainer = self._started(learned)
        losses = list[float]()
        while len(losses) < steps and trainer.step < self._plan.steps and (time.time() < until or not losses):
            losses.append(trainer.train(windows))
        if losses:
            _save(self._out / CHECKPOINT, trainer)
            save_heads(self._out / "heads", trainer, weights_of(self._model)[0], self._name)
            line: dict[str, object] = {"step": trainer.step, "loss": round(sum(losses) / len(losses), 4)}
            line |= trainer.accuracy(self._windows(held))
            with (self._out / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)

    @property
    def is_done(self) -> bool:
        return self._trainer is not None and self._trainer.step >= self._plan.steps

    def _windows(self, paths: Sequence[Path]) -> Windows:
        plan, size = self._plan, weights_of(self._model)[0].shape[1]
        return Windows(paths, plan.window, packed=plan.kind == "feature", width=None if plan.layers else size)

    def _started(self, paths: Sequence[Path]) -> Trainer:
        if self._trainer is None:
            output, table = weights_of(self._model)
            checkpoint = self._out / CHECKPOINT
            held = load_file(checkpoint) if checkpoint.is_file() else {}
            # New shards might select other tokens; the heads keep the vocabulary they started with.
            vocabulary = held.get("vocabulary", _vocabulary(paths, self._plan, output.shape[0]))
            self._trainer = Trainer(output, table, vocabulary, self._plan, self._model)
            if held:
                _resume(checkpoint, held, self._trainer)
        return self._trainer


def _vocabulary(paths: Sequence[Path], plan: HeadPlan, size: int) -> Tensor | None:
    """The most frequent tokens of the shards, which are drafted; tokens of answers count more."""
    if not 0 < plan.vocabulary < size:
        return None
    counts = torch.zeros(size)
    for path in paths:
        share = ANSWERS_COUNT if path.name.startswith("outputs") else 1
        for tokens, _ in read_shard(path):
            counts += share * torch.bincount(tokens, minlength=size)
    return counts.argsort(descending=True, stable=True)[: plan.vocabulary].sort().values


def _save(path: Path, trainer: Trainer) -> None:
    held = {f"weight.{name}": each.detach() for name, each in trainer.weights.items()}
    for name, each in trainer.weights.items():
        state = trainer.optimizer.state.get(each, {})
        held |= {f"state.{name}.{key}": state[key] for key in ("exp_avg", "exp_avg_sq") if key in state}
    held["step"] = torch.tensor(trainer.step)
    if trainer.vocabulary is not None:
        held["vocabulary"] = trainer.vocabulary
    partial = path.with_suffix(".partial")
    save_file(held, partial)
    partial.rename(path)


def _resume(path: Path, held: Tensors, trainer: Trainer) -> None:
    """Resume from a checkpoint. Raises ValueError if it belongs to another plan."""
    shapes = {name: tuple(held[f"weight.{name}"].shape) for name in trainer.weights if f"weight.{name}" in held}
    if shapes != {name: tuple(each.shape) for name, each in trainer.weights.items()}:
        raise ValueError(f"{str(path)!r} is of heads of other shapes; give another --out")
    trainer.step = int(held["step"])
    with torch.no_grad():
        for name, each in trainer.weights.items():
            each.copy_(held[f"weight.{name}"])
            if f"state.{name}.exp_avg" in held:
                trainer.optimizer.state[each] = {
                    "step": torch.tensor(float(trainer.step)),
                    **{key: held[f"state.{name}.{key}"] for key in ("exp_avg", "exp_avg_sq")},
                }


def convert(source: Path, out: Path) -> None:
    """Convert a published `medusa_lm_head.pt`, or EAGLE's `pytorch_model.bin`, to safetensors; torch unpickles only
    tensors from it."""
    tensors = torch.load(source, map_location="cpu", weights_only=True)
    out.mkdir(parents=True, exist_ok=True)
    name = EAGLE_WEIGHTS if "fc.weight" in tensors else MEDUSA_WEIGHTS
    save_file({name: each.contiguous() for name, each in tensors.items()}, out / name)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convert", nargs=2, type=Path, metavar=("FILE", "OUT"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="recurrent")
    parser.add_argument("--depth", type=int, default=HeadPlan.depth)
    parser.add_argument(
        "--inner", type=int, default=HeadPlan.inner, help="size of the block or MLP; for parallel heads the rank"
    )
    parser.add_argument(
        "--span", type=int, default=HeadPlan.span, help="number of pairs that a feature layer attends to"
    )
    parser.add_argument(
        "--layers", nargs="*", type=int, default=(), help="model layers whose inputs recurrent heads read in addition"
    )
    parser.add_argument(
        "--vocabulary", type=int, default=HeadPlan.vocabulary, help="number of tokens that are drafted; 0: all"
    )
    parser.add_argument("--shards", type=int, default=60, help="number of shards of hidden states")
    parser.add_argument(
        "--prose",
        type=int,
        default=OutputPlan.prose,
        help="shards of prose, which is read faster, for each shard of answers",
    )
    parser.add_argument(
        "--own", type=float, default=OutputPlan.own, help="share of the prompts that the model writes itself"
    )
    parser.add_argument("--rows", type=int, default=OutputPlan.rows, help="outputs per shard")
    parser.add_argument("--tokens", type=int, default=OutputPlan.tokens, help="maximum tokens per answer")
    parser.add_argument("--dtype", default="bfloat16", help="data type of the model while it reads")
    parser.add_argument("--steps", type=int, default=HeadPlan.steps)
    parser.add_argument("--batch", type=int, default=HeadPlan.batch)
    parser.add_argument("--rate", type=float, default=HeadPlan.rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120.0)
    given = parser.parse_args(arguments)
    if given.convert:
        convert(*given.convert)
        return
    if given.data is None or given.out is None:
        parser.error("--data and --out are needed")
    if given.prose < 0:
        parser.error(f"--prose must be 0 or more, got {given.prose}")
    if not 0 <= given.own <= 1:
        parser.error(f"--own must be from 0 to 1, got {given.own}")
    import copyspec

    until = time.time() + 60 * given.minutes
    plan = HeadPlan(
        kind=given.kind, depth=given.depth, inner=given.inner, vocabulary=given.vocabulary, steps=given.steps,
        batch=given.batch, rate=given.rate, seed=given.seed, span=given.span,
        layers=tuple(given.layers) if given.kind == "recurrent" else (),
    )  # fmt: skip
    outputs = OutputPlan(
        rows=given.rows,
        tokens=given.tokens,
        seed=given.seed,
        layers=tuple(given.layers),
        prose=given.prose,
        own=given.own,
    )
    run = HeadRun(given.out, copyspec.load(given.model, dtype=given.dtype), given.model, (plan, outputs))
    requests = Requests(given.data)
    for number in range(max(given.shards, 1)):
        run.read(requests, number, 1 + outputs.prose)
        if number >= 1 and plan.steps:
            run.learn(STEPS_A_SHARD, until)
        if time.time() > until:
            return
    while not run.is_done and time.time() < until:
        run.learn(10 * STEPS_A_SHARD, until)


if __name__ == "__main__":
    main()
