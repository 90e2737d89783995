"""A model's own outputs with the hidden states they were chosen from, as training data for draft heads.

Prompts are requests about paragraphs of prose, in the model's chat template, and requests that the model writes itself
when it continues the opening of a user's turn (Magpie, Xu et al. 2024, arXiv 2406.08464), which resemble what it was
tuned on. Outputs are greedy, some sampled. Reading is cheaper than generating, so some shards hold prose read as if it
were an answer. Each shard is a function of (seed, number), so that an interrupted run can be resumed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import Tensor

from copyspec.budget import Budget
from copyspec.drafters.base import ScoredDraft
from copyspec.drafters.custom import DraftContext
from copyspec.drafters.predictors.base import walked
from copyspec.targets.base import LAST
from copyspec.targets.hooks.states import hidden_states
from copyspec.tree import DraftTree
from training.chat_requests import Requests
from training.runs import check_settings, save_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from copyspec.engine.engine import Engine

SAMPLED = 0.25  # share of the rows that are sampled, at temperature 0.7
TEMPERATURE = 0.7
PROSE_REQUEST, PROSE_ROW, PROSE_BATCH = 160, 64, 8  # characters of a request; tokens of a row beyond an output's; rows
SKIPPED = 20  # tokens of the chat template's opening, the same in all prompts
LOOP = 12  # an output is cut where this many tokens repeat
BATCH = 32  # rows generated at once
REQUEST_TOKENS = 64  # a request that the model has not ended by then is dropped
MARK = "3f1c8a"  # stands for a request in the chat template


@dataclass(frozen=True)
class OutputPlan:
    """What the shards depend on besides model and data."""

    rows: int = 64  # per shard
    tokens: int = 192  # maximum per output
    seed: int = 0
    layers: tuple[int, ...] = ()  # layers whose inputs are stored besides the last states
    prose: int = 1  # shards of prose for each shard of answers
    own: float = 0.6  # share of the prompts that the model writes itself, if its template shows where a request begins


def write_shard(path: Path, engine: Engine, requests: Requests, plan: OutputPlan) -> int:
    """Generate the shard `path`; return its number of output tokens.

    The file holds, concatenated over all rows, `tokens` [n] and the hidden states they were chosen from, `states`
    [n, D] (bfloat16), and the `prompts` [m]; and `lengths` [rows] of the outputs and `prompt_lengths` [rows]. With
    `plan.layers`, each state is followed by the inputs of these layers, [n, (1 + layers) D].
    """
    rng = random.Random(f"{plan.seed}/{path.stem}")
    asked = own_requests(engine, round(plan.own * plan.rows), rng.getrandbits(32))
    asked += [requests.draw(rng) for _ in range(plan.rows - len(asked))]
    prompts = [chat_ids(engine.tokenizer, [{"role": "user", "content": text}]) for text in asked]
    recorders = list[StateRecorder]()
    outputs = answer(engine, prompts, plan.tokens, rng.getrandbits(32), recorders=recorders, layers=plan.layers)
    states = [states_of(recorders, prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
    lengths = [until_loop(output) for output in outputs]
    _save(
        path,
        [torch.tensor(output[:length]) for output, length in zip(outputs, lengths, strict=True)],
        [state[:length] for state, length in zip(states, lengths, strict=True)],
        prompts,
    )
    return sum(lengths)


def own_requests(engine: Engine, count: int, seed: int) -> list[str]:
    """At most `count` requests that the model samples after the opening of a user's turn; those that it does not end,
    or in which it repeats itself, are left out. [] if the chat template has no such opening."""
    tokenizer = engine.tokenizer
    if tokenizer.chat_template is None or count == 0:
        return []
    text = str(tokenizer.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False))
    opening, marked, _ = text.partition(MARK)
    if not (marked and opening):
        return []
    ids = list(tokenizer(opening, add_special_tokens=False)["input_ids"])
    texts = dict[str, None]()
    for tokens in answer(engine, [ids] * count, REQUEST_TOKENS, seed, sampled=1.0, temperature=1.0):
        if len(tokens) < REQUEST_TOKENS and until_loop(tokens) == len(tokens):
            texts[str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()] = None
    return [text for text in texts if text]


@torch.inference_mode()
def write_prose(path: Path, engine: Engine, requests: Requests, plan: OutputPlan) -> int:
    """As `write_shard`, with prose that the model reads as if it were its answer, without prompts."""
    rng, model, tokenizer = random.Random(f"{plan.seed}/{path.stem}"), engine.model, engine.tokenizer
    rows = []
    for _ in range(plan.rows):
        asked = chat_ids(tokenizer, [{"role": "user", "content": requests.draw(rng)[:PROSE_REQUEST]}])
        prose = tokenizer(requests.paragraphs(rng), add_special_tokens=False)["input_ids"]
        rows.append([*asked, *prose][: plan.tokens + PROSE_ROW])
    tokens, states = list[Tensor](), list[Tensor]()
    for first in range(0, len(rows), PROSE_BATCH):
        piece = rows[first : first + PROSE_BATCH]
        ids = torch.tensor([[*row, *[0] * (max(map(len, piece)) - len(row))] for row in piece], device=model.device)
        with hidden_states(model, plan.layers) as inner:
            features = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        features = torch.cat([features, *(inner.inner[layer] for layer in plan.layers)], -1).cpu()
        for row, state in zip(piece, features, strict=True):
            tokens.append(torch.tensor(row[SKIPPED + 1 :]))
            states.append(state[SKIPPED : len(row) - 1])
    _save(path, tokens, states)
    return sum(map(len, tokens))


def _save(
    path: Path, tokens: Sequence[Tensor], states: Sequence[Tensor], prompts: Sequence[Sequence[int]] = ()
) -> None:
    tensors = {
        "tokens": torch.cat(list(tokens)).int(),
        "states": torch.cat(list(states)).bfloat16(),
        "lengths": _lengths(tokens),
        "prompts": torch.tensor([token for prompt in prompts for token in prompt], dtype=torch.int32),
        "prompt_lengths": _lengths(prompts),
    }
    save_tensors(path, tensors)


def _lengths(rows: Sequence[Sized]) -> Tensor:
    return torch.tensor([len(row) for row in rows], dtype=torch.int32)


def chat_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    """A chat as the model's input ids; without a template, the plain text."""
    if tokenizer.chat_template is None:
        return list(tokenizer(messages[-1]["content"])["input_ids"])
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return list(tokenizer(str(text), add_special_tokens=False)["input_ids"])


def until_loop(tokens: Sequence[int]) -> int:
    """Number of tokens before the output begins to repeat itself."""
    seen: set[tuple[int, ...]] = set()
    for end in range(LOOP, len(tokens) + 1):
        gram = tuple(tokens[end - LOOP : end])
        if gram in seen:
            return end - LOOP
        seen.add(gram)
    return len(tokens)


class StateRecorder:
    """A drafter that drafts nothing and keeps the hidden states that a row's tokens are chosen from."""

    wants_states = True

    def __init__(self, context: DraftContext, layers: Sequence[int]) -> None:
        self.prompt, self.tokens = tuple(context.prompt), list[int]()
        self.states: list[Tensor] = []  # [n, (1 + layers) D] of each pass, bfloat16
        self.wanted_layers = layers
        self._last: tuple[DraftTree, Tensor] | None = None  # the tree of a pass and the states at its root and nodes

    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree.of_chain([])

    def observe(self, scored: ScoredDraft) -> None:
        states = scored.read_states((LAST, *self.wanted_layers))
        assert states is not None
        self._last = scored.tree, states[-1 - len(scored.tree) :].bfloat16().cpu()

    def accept(self, tokens: Sequence[int]) -> None:
        assert self._last is not None
        tree, states = self._last
        self.states.append(_along(tree, states, tokens))
        self.tokens += tokens
        self._last = None

    def of_output(self, output: Sequence[int]) -> Tensor | None:
        """The states of a row that has ended, [n, (1 + layers) D]; None if `output` is another row's."""
        known = len(self.tokens)
        if self.tokens != output[:known]:
            return None
        states = list(self.states)
        if known < len(output) and self._last is not None:  # a row's last tokens are not drafted from any more
            tree, last = self._last
            states.append(_along(tree, last, output[known:]))
        recorded = torch.cat(states)[: len(output)]
        return recorded if len(recorded) == len(output) else None


def _along(tree: DraftTree, states: Tensor, tokens: Sequence[int]) -> Tensor:
    """Those of the `states` at a tree's root and nodes from which `tokens` were chosen."""
    return states[[0, *[1 + node for node in walked(tree.tokens, tree.parents, tokens[:-1])]]]


def states_of(recorders: list[StateRecorder], prompt: Sequence[int], output: Sequence[int]) -> Tensor:
    """The states that an output's tokens were chosen from, [n, (1 + layers) D]; its recorder is taken from the list.
    Raises LookupError if no row was it."""
    for place, recorder in enumerate(recorders):
        if recorder.prompt == tuple(prompt) and (states := recorder.of_output(output)) is not None:
            del recorders[place]
            return states
    raise LookupError(f"no states of an output of {len(output)} tokens were recorded")


def answer(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    seed: int,
    *,
    sampled: float = SAMPLED,
    temperature: float = TEMPERATURE,
    recorders: list[StateRecorder] | None = None,
    layers: Sequence[int] = (),
) -> list[list[int]]:
    """The output of each prompt, at most `tokens` long; the last token may end the sequence.

    The share `sampled` of the prompts is sampled, the others are decoded greedily. `recorders` receives those of the
    outputs' states.
    """

    def record(context: DraftContext) -> StateRecorder:
        recorder = StateRecorder(context, layers)
        assert recorders is not None
        recorders.append(recorder)
        return recorder

    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(0)).tolist()
    rng = random.Random(seed)  # with one seed for all, equal prompts would have equal outputs
    results = engine.generate(
        [list(prompt) for prompt in prompts],
        max_new_tokens=tokens,
        temperature=[temperature if place < sampled * len(prompts) else 0.0 for place in order],
        seed=[rng.getrandbits(31) for _ in prompts],
        batch_size=BATCH,
        drafter="auto" if recorders is None else ["auto", record],
    )
    return [list(result.token_ids) for result in results]


def answered_chats(
    engine: Engine, requests: Requests, rng: random.Random, rows: int, tokens: int, *, sampled: float
) -> list[tuple[list[int], int]]:
    """Chats of drawn requests with their answers (`answer`), and where the answers begin; empty ones are left out."""
    asked = [requests.draw(rng) for _ in range(rows)]
    prompts = [chat_ids(engine.tokenizer, [{"role": "user", "content": text}]) for text in asked]
    outputs = answer(engine, prompts, tokens, rng.getrandbits(32), sampled=sampled)
    return [([*prompt, *output], len(prompt)) for prompt, output in zip(prompts, outputs, strict=True) if output]


def read_shard(path: Path) -> list[tuple[Tensor, Tensor]]:
    """(tokens [n], states [n, D]) of each output of a shard."""
    with safe_open(path, "pt") as file:
        tokens, states = file.get_tensor("tokens").long(), file.get_tensor("states")
        lengths = file.get_tensor("lengths").tolist()
    return list(zip(tokens.split(lengths), states.split(lengths), strict=True))


def shards(folder: Path) -> list[Path]:
    """The complete shards of a run."""
    return sorted(folder.glob("*.safetensors"))


def check_plan(folder: Path, name: str, plan: OutputPlan) -> None:
    """Store the plan of the shards in `folder`. Raises ValueError if they were made with another plan."""
    wanted = {
        "model": name, "tokens": plan.tokens, "rows": plan.rows, "seed": plan.seed, "layers": [*plan.layers],
        "own": plan.own, "prose": plan.prose,
    }  # fmt: skip
    check_settings(folder, wanted)
