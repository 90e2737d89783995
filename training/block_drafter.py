"""Train a non-autoregressive drafter for a corrector: ``python -m training.block_drafter --data DIR --out OUT``.

SpecDec (Xia et al. 2023, arXiv 2203.16487) drafts a block of tokens in one pass of a decoder that reads the source
through a deep encoder. Here the encoder is the corrector itself: a shallow decoder attends to its hidden states of the
source and of the output so far, and predicts all tokens of the next block at once, each from its own mask embedding. It
is trained on the corrector's own outputs for noised prose. ``OUT`` holds its weights and a log of its accuracy for each
token of a block on held-out texts. ``benchmarks.drafts.blocks`` drafts with it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from training.data import load_prose
from training.runs import append_log, save_tensors

if TYPE_CHECKING:
    from copyspec.engine.engine import Engine

FILE = "block.safetensors"
HELD = 48  # held-out texts
TEXTS = 8  # per step
BATCH = 32  # texts corrected in one batch

Text = tuple[list[int], int]
"""Token ids of a prompt with its output, and the index at which the output begins."""


class BlockDrafter(nn.Module):
    """Predicts `count` tokens after each of some places in a text, from a corrector's hidden states."""

    def __init__(self, size: int, count: int, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.masks = nn.Parameter(0.02 * torch.randn(count, size))
        self.entered = nn.Linear(2 * size, size)
        made = nn.TransformerDecoderLayer(size, heads, 2 * size, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(made, layers, nn.LayerNorm(size))

    def forward(self, states: Tensor, tokens: Tensor, places: Tensor) -> Tensor:
        """Features [n, K, D] of the K tokens after the next one; the corrector's head turns them into logits.

        `states`: of the text, [L, D]. `places`: [n], each sees the text up to there. `tokens`: embeddings [n, D] of the
        tokens that follow these places.
        """
        count, size = self.masks.shape
        order = torch.arange(len(states)).float()
        memory = states + _waves(order, size)
        first = self.entered(torch.cat([states[places], tokens], -1))[:, None]
        behind = places[:, None] + 1.0 + torch.arange(count)
        given = first + self.masks + _waves(behind.flatten(), size).view(len(places), count, size)
        hidden = torch.arange(len(states)) > places[:, None]  # [n, L]
        many = hidden[:, None].repeat_interleave(self.decoder.layers[0].multihead_attn.num_heads, 0)
        found: Tensor = self.decoder(
            given, memory.expand(len(places), -1, -1), memory_mask=many.expand(-1, count, -1).contiguous()
        )
        return found


def _waves(places: Tensor, size: int) -> Tensor:
    """Sinusoidal position embeddings of places [n]. [n, D]"""
    angles = places[:, None] * 10_000 ** -(torch.arange(0, size, 2) / size)
    return torch.cat([angles.sin(), angles.cos()], -1)


@torch.no_grad()
def read_states(model: Any, ids: Sequence[int]) -> Tensor:
    """The last hidden states of a text in a decoder-only model. [L, D]"""
    found: Tensor = model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0].float()
    return found


def said_behind(drafter: BlockDrafter, model: Any, ids: Sequence[int], places: Tensor) -> Tensor:
    """Logits of the tokens after the one that follows each place. [n, K, V]"""
    embeddings = model.get_input_embeddings().weight.float()
    tokens = embeddings[torch.tensor(ids)[places + 1]]
    return F.linear(
        drafter(read_states(model, ids), tokens, places), model.get_output_embeddings().weight.detach().float()
    )


def corrected(engine: Engine, sources: Sequence[str], instruction: str) -> list[Text]:
    """Prompts as the engine reads them, with its outputs."""
    found = list[Text]()
    for first in range(0, len(sources), BATCH):
        piece = list(sources[first : first + BATCH])
        prompts = [instruction + source for source in piece]
        for prompt, result in zip(prompts, engine.generate(prompts, edit_source=piece), strict=True):
            ids = engine.codec.encode(prompt, wrap=True).ids
            found.append(([*ids, *result.token_ids], len(ids)))
    return found


def places_of(text: Text, count: int) -> Tensor:
    """Places whose block ends within the output."""
    ids, begins = text
    return torch.arange(begins - 1, max(begins - 1, len(ids) - 1 - count))


@torch.no_grad()
def accuracy(drafter: BlockDrafter, model: Any, texts: Sequence[Text]) -> list[float]:
    """The share of the corrector's tokens predicted, for each position in a block."""
    count = len(drafter.masks)
    right, total = torch.zeros(count), 0
    for text in texts:
        places = places_of(text, count)
        if len(places):
            came = torch.tensor(text[0])[places[:, None] + 2 + torch.arange(count)]
            right += (said_behind(drafter, model, text[0], places).argmax(-1) == came).sum(0)
            total += len(places)
    return [round(float(each), 4) for each in right / max(total, 1)]


def load_block(folder: Path) -> BlockDrafter:
    """Load the drafter of a run."""
    held = load_file(folder / FILE)
    count, size = held["masks"].shape
    layers = 1 + max(int(name.split(".")[2]) for name in held if name.startswith("decoder.layers."))
    drafter = BlockDrafter(size, count, layers)
    drafter.load_state_dict(held)
    return drafter.eval()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default", help="decoder-only corrector")
    parser.add_argument("--instruction", default="Correct the grammar: ")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--count", type=int, default=6, help="tokens per block")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=8.0)
    given = parser.parse_args(arguments)
    import copyspec

    engine = copyspec.load(given.model, dtype="float32")
    maker, _ = load_prose(given.data)
    rng = random.Random(0)
    drawn = [maker.sentence(rng).prompt for _ in range(given.texts)]
    sources = [each[len(given.instruction) :] for each in drawn if each.startswith(given.instruction)]
    texts = [each for each in corrected(engine, sources, given.instruction) if len(places_of(each, given.count))]
    held, learned = texts[:HELD], texts[HELD:] or texts
    print(f"{len(learned)} texts, {sum(len(ids) - begins for ids, begins in learned)} tokens", flush=True)
    torch.manual_seed(0)
    drafter = BlockDrafter(engine.model.config.hidden_size, given.count, given.layers)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=given.rate, weight_decay=0.01)
    given.out.mkdir(parents=True, exist_ok=True)
    start = time.time()
    until, losses = start + 60 * given.minutes, list[float]()
    for step in range(1, given.steps + 1):
        optimizer.zero_grad()
        for text in rng.sample(learned, min(TEXTS, len(learned))):
            places = places_of(text, given.count)
            logits = said_behind(drafter, engine.model, text[0], places)
            came = torch.tensor(text[0])[places[:, None] + 2 + torch.arange(given.count)]
            loss = F.cross_entropy(logits.flatten(0, 1), came.flatten()) / TEXTS
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()) * TEXTS)
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        now = time.time()
        for group in optimizer.param_groups:
            group["lr"] = (
                given.rate
                * min(1.0, step / 50)
                * max(0.05, min((until - now) / (until - start), 1 - step / given.steps))
            )
        optimizer.step()
        last = step == given.steps or now >= until
        if step % 100 == 0 or last:
            line = {
                "step": step,
                "loss": round(sum(losses) / len(losses), 4),
                "right": accuracy(drafter, engine.model, held),
            }
            losses = []
            print(json.dumps(line), flush=True)
            append_log(given.out, line)
            save_tensors(given.out / FILE, drafter.state_dict())
        if last:
            break


if __name__ == "__main__":
    main()
