"""Target models of the speed benchmark: the bundled model, a folder, or a real architecture with random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from copyspec.models.loading import resolve_name
from copyspec.models.pretrained import Pretrained
from copyspec.targets.base import RowStates, Scores, Session, Target
from copyspec.tree import DraftTree

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHAPE_PREFIX = "shape:"

_LLAMA: dict[str, object] = {"model_type": "llama", "rms_norm_eps": 1e-5}
_QWEN: dict[str, object] = {"model_type": "qwen2", "rms_norm_eps": 1e-6, "max_position_embeddings": 32768}
_TINY: dict[str, object] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 512,
}


def _sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int) -> dict[str, object]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
    }


def _rope(theta: float) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


_SMOL = _sizes(576, 1536, 30, 9, 3, 49152) | {"tie_word_embeddings": True, "max_position_embeddings": 8192}

SHAPES: Mapping[str, Mapping[str, object]] = {
    "llama-7b": _LLAMA | _sizes(4096, 11008, 32, 32, 32, 32000) | _rope(1e4) | {"max_position_embeddings": 4096},
    "llama-160m": _LLAMA | _sizes(768, 3072, 12, 12, 12, 32000) | _rope(1e4) | {"max_position_embeddings": 2048},
    "llama3-8b": _LLAMA | _sizes(4096, 14336, 32, 32, 8, 128256) | _rope(5e5) | {"max_position_embeddings": 8192},
    "llama3-70b": _LLAMA | _sizes(8192, 28672, 80, 64, 8, 128256) | _rope(5e5) | {"max_position_embeddings": 8192},
    "mistral-7b": _sizes(4096, 14336, 32, 32, 8, 32000)
    | _rope(1e6)
    | {"model_type": "mistral", "sliding_window": None, "max_position_embeddings": 32768},
    "qwen2.5-0.5b": _QWEN | _sizes(896, 4864, 24, 14, 2, 151936) | _rope(1e6) | {"tie_word_embeddings": True},
    "qwen2.5-1.5b": _QWEN | _sizes(1536, 8960, 28, 12, 2, 151936) | _rope(1e6) | {"tie_word_embeddings": True},
    "qwen2.5-7b": _QWEN | _sizes(3584, 18944, 28, 28, 4, 152064) | _rope(1e6),
    "smollm2-135m": _LLAMA | _SMOL,
    "hybrid-135m": _SMOL
    | {"model_type": "qwen3_5_text", "layer_types": [*["linear_attention"] * 4, "full_attention"] * 6, "head_dim": 64}
    | {"linear_num_key_heads": 9, "linear_num_value_heads": 9, "linear_key_head_dim": 64, "linear_value_head_dim": 64},
    "mamba2-135m": _SMOL
    | {"model_type": "granitemoehybrid", "layer_types": [*["linear_attention"] * 4, "full_attention"] * 6}
    | {"num_local_experts": 0, "shared_intermediate_size": 1536, "mamba_n_heads": 18, "mamba_d_head": 64}
    | {"mamba_d_state": 128},
    "tiny-llama": _LLAMA | _TINY,
    "tiny-qwen2": _QWEN | _TINY,
}
"""Published sizes of the architectures, as in their config.json; "hybrid-135m" and "mamba2-135m" are SmolLM2 with a
gated delta rule or Mamba 2 in four of five layers, and the tiny ones are for tests."""

FORCED = 1e4
"""Logit of a replayed token: far above those of random weights (below 100), and within float16's range."""


@dataclass(frozen=True, slots=True)
class Model:
    """A causal model to measure, with its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None  # None for shapes
    eos_token_ids: frozenset[int]

    @property
    def is_shape(self) -> bool:
        return self.tokenizer is None


def load_model(name: str, device: str, dtype: torch.dtype, *, vocab_size: int = 0) -> Model:
    """Load `default`, a folder, or `shape:NAME`, in eval mode. Raises ValueError that lists the valid names.

    `vocab_size`: shapes with a smaller vocabulary are given this one.
    """
    if name.startswith(SHAPE_PREFIX):
        model = _shape(name.removeprefix(SHAPE_PREFIX), device, dtype, vocab_size)
        return Model(name, model, None, frozenset())
    folder = Path(resolve_name(name))
    if not (folder / "config.json").is_file():
        raise ValueError(f"no model in {str(folder)!r}: --model is default, a folder with config.json, or shape:NAME")
    pretrained = Pretrained(str(folder))
    model = pretrained.model(AutoModelForCausalLM, pretrained.config(), dtype=dtype)
    cast(torch.nn.Module, model).to(device).eval()
    eos = model.generation_config.eos_token_id
    ids = frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)
    return Model(name, model, pretrained.tokenizer(), ids)


def _shape(name: str, device: str, dtype: torch.dtype, vocab_size: int) -> PreTrainedModel:
    if name not in SHAPES:
        raise ValueError(f"no shape {name!r}: one of {', '.join(sorted(SHAPES))}")
    sizes = dict(SHAPES[name])
    sizes["vocab_size"] = max(cast(int, sizes["vocab_size"]), vocab_size)
    config = AutoConfig.for_model(cast(str, sizes.pop("model_type")), **sizes)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    return cast(PreTrainedModel, model.eval())


class Replay:
    """Makes a model output recorded tokens: the forward passes are real, but the argmax is the recorded next token.

    This is a forward hook on the model itself, so that all methods run the same object. A prediction depends on the
    position alone: at position p of a row it is the row's token p + 1, whatever draft token is there.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._tokens: torch.Tensor | None = None  # [B, L]
        self._sizes: Sequence[int] | None = None  # scored tokens of each row, in passes over the tokens of all rows
        self._device = model.device
        self._handle = model.register_forward_hook(self._force, with_kwargs=True)

    def start(self, sequences: Sequence[Sequence[int]]) -> None:
        """Set the rows of the next passes, each a prompt and its recorded output."""
        length = max(map(len, sequences))
        # After its end, a sequence is continued with its last token (end of sequence).
        rows = [[*tokens, *[tokens[-1]] * (length - len(tokens))] for tokens in sequences]
        self._tokens = torch.tensor(rows, device=self._device)

    def rows(self, sequences: Sequence[int]) -> torch.Tensor | None:
        """Return the given rows of those passed to `start`, [n, L]."""
        return None if self._tokens is None else self._tokens[list(sequences)]

    @contextmanager
    def showing(self, rows: torch.Tensor | None, trees: Sequence[DraftTree]) -> Iterator[None]:
        """Replay `rows` while the context is active, in which these trees are scored."""
        started, self._tokens = self._tokens, rows
        self._sizes = [1 + len(tree) for tree in trees]
        try:
            yield
        finally:
            self._tokens, self._sizes = started, None

    def stop(self) -> None:
        """Let the model output its own predictions again."""
        self._tokens = None

    def remove(self) -> None:
        self._handle.remove()

    def _force(self, module: object, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        if self._tokens is None:
            return
        logits = cast(torch.Tensor, output.logits)  # type: ignore[attr-defined]  # a ModelOutput
        positions = kwargs.get("position_ids")
        assert isinstance(positions, torch.Tensor), "replay needs a model that is called with position_ids"
        keep = kwargs.get("logits_to_keep", 0)
        positions = positions[:, keep] if isinstance(keep, torch.Tensor) else positions[:, -logits.shape[1] :]
        positions = (positions.expand(logits.shape[0], -1) + 1).clamp(0, self._tokens.shape[1] - 1)
        if len(logits) == len(self._tokens):
            upcoming = self._tokens.gather(1, positions)
        else:
            assert self._sizes is not None and len(logits) == 1, "rows that are not those of the replay"
            if logits.shape[1] != sum(self._sizes):
                return  # a pass that only reads prompts
            rows = torch.repeat_interleave(torch.tensor(self._sizes)).to(self._device)
            upcoming = self._tokens[rows, positions[0]].unsqueeze(0)
        logits.scatter_(2, upcoming.unsqueeze(2), FORCED)


class ReplayTarget:
    """A target whose sessions know which replayed rows are theirs.

    Rows must be opened in the order given to `Replay.start`. Everything else is delegated to the wrapped target."""

    def __init__(self, target: Target, replay: Replay) -> None:
        self._target = target
        self._replay = replay
        self._opened = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)

    def restart(self) -> None:
        """Let the next opened row be the first one again."""
        self._opened = 0

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        session = self._target.open(prompts, new_tokens, keeps_states=keeps_states)
        return _ReplaySession(session, self, len(prompts))

    def next_rows(self, count: int) -> torch.Tensor | None:
        """The rows of so many prompts that are opened now."""
        self._opened += count
        return self._replay.rows(range(self._opened - count, self._opened))


class _ReplaySession:
    def __init__(self, session: Session, target: ReplayTarget, count: int) -> None:
        self._session, self._opener, self._replay = session, target, target._replay
        self._rows = target.next_rows(count)

    @property
    def lengths(self) -> Sequence[int]:
        return self._session.lengths

    @property
    def runner(self) -> str:
        return self._session.runner

    @property
    def is_settled(self) -> bool:
        return self._session.is_settled

    @property
    def computes(self) -> Callable[[int], int] | None:
        return self._session.computes

    @property
    def most_tokens(self) -> int:
        return self._session.most_tokens

    @property
    def most_nodes(self) -> int:
        return self._session.most_nodes

    def score(self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> Scores:
        with self._replay.showing(self._rows, trees):
            return self._session.score(uncached, trees)

    def score_with_states(
        self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[Scores, Sequence[RowStates] | None]:
        with self._replay.showing(self._rows, trees):
            return self._session.score_with_states(uncached, trees, layers)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        self._session.keep(paths)

    def trim(self, lengths: Sequence[int]) -> None:
        self._session.trim(lengths)

    def select(self, rows: Sequence[int]) -> None:
        self._session.select(rows)
        if self._rows is not None:
            self._rows = self._rows[list(rows)]

    def add(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> None:
        self._session.add(prompts, new_tokens)
        rows = self._opener.next_rows(len(prompts))
        if self._rows is not None and rows is not None:
            self._rows = torch.cat([self._rows, rows])

    def close(self) -> None:
        self._session.close()
