"""The methods of the copy benchmark: whose code each one is, the settings it ships with, and those that are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.copybench import drafters
from benchmarks.replay import peers as installed
from benchmarks.replay.methods import HfPromptLookup
from benchmarks.replay.run import copyspec_drafter, row_sources
from benchmarks.transcripts import TokenRow
from copyspec.drafters import create
from copyspec.drafters.base import Drafter
from copyspec.drafters.prompt_lookup import LOOKUP_NGRAM, LOOKUP_TOKENS

Make = Callable[..., Drafter]
"""Makes the drafter of one row from the peers' folder, the row's tokens, the most nodes of a call, and a setting."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One method. Its best setting at a budget is the one of `grid` with the most tokens per call on even groups."""

    code: str  # whose code runs
    make: Make
    trees: bool = False
    shipped: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def settings(self) -> list[dict[str, Any]]:
        """All settings, the shipped one first."""
        tried = [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]
        return [dict(self.shipped), *(setting for setting in tried if setting != self.shipped)]


def _transformers(folder: Path, row: TokenRow, nodes: int, largest: int, length: int) -> Drafter:
    return HfPromptLookup(row.prompt, [], row.output[-1], largest, min(length, nodes))


def _vllm(folder: Path, row: TokenRow, nodes: int, least: int, largest: int) -> Drafter:
    return drafters.VllmNgram(row.prompt, nodes, least, largest)


def _arctic(folder: Path, row: TokenRow, nodes: int, **setting: float) -> Drafter:
    return installed.Arctic(row.prompt, [], row.output[-1], **setting)


def _sglang(folder: Path, row: TokenRow, nodes: int, **setting: Any) -> Drafter:
    return installed.SGLang(row.prompt, [], row.output[-1], **setting)


def _llama(kind: str, folder: Path, row: TokenRow, nodes: int, key: int = 0, least: int = 0, most: int = 0) -> Drafter:
    library = drafters.llama_library(folder)
    return drafters.LlamaCpp(library, kind, row.prompt, min(most or nodes, nodes), key, least)


def _sam(folder: Path, row: TokenRow, nodes: int, alpha: float, predicts: int) -> Drafter:
    return drafters.SamDecoding(folder, row.prompt, alpha, predicts)


def _llma(folder: Path, row: TokenRow, nodes: int, block: int, trigger: int) -> Drafter:
    return drafters.Llma(folder, row.prompt, block, trigger)


def own(folder: Path, row: TokenRow, nodes: int) -> Drafter:
    """copyspec with the prompt alone: its task is not said."""
    return copyspec_drafter("", row)


MAP = {"key": 12, "least": 1, "most": 48}
MAPS = {"key": (1, 2, 3, 4, 6), "least": (1,), "most": (4, 8, 32)}
"""llama.cpp's lengths of a key and of a draft. It drafts that many tokens or none, so that shorter may be better."""


def copies(folder: Path, row: TokenRow, nodes: int) -> Drafter:
    """The same without n-grams of English, which no peer has."""
    return create(row_sources("", row), frozenset({row.output[-1]}), breaks=row.breaks)


OWN, CHAIN, COPIES = "copyspec", "copyspec, chain", "copyspec, copies alone"
OURS = {
    OWN: Peer("copyspec", own, trees=True),
    COPIES: Peer("copyspec without n-grams of English", copies, trees=True),
    CHAIN: Peer("copyspec", own),
}
TOLD = "copyspec, told its sources"
"""With the row's references, and told which of them is edited, as the pipelines do. No peer takes them."""

PEERS: dict[str, Peer] = {
    "transformers": Peer(
        "transformers, PromptLookupCandidateGenerator",
        _transformers,
        shipped={"largest": LOOKUP_NGRAM, "length": LOOKUP_TOKENS},
        grid={"largest": (2, 3, 4, 5), "length": (10, 32)},
    ),
    "vLLM": Peer(
        "vLLM, NgramProposer",
        _vllm,
        shipped={"least": 5, "largest": 5},
        grid={"least": (1, 2), "largest": (3, 4, 5, 8)},
    ),
    "Arctic": Peer(
        "ArcticInference, SuffixDecodingCache with tree speculation",
        _arctic,
        trees=True,
        shipped={"factor": 1.0, "least": 0.1},
        grid={"factor": (2.0, 4.0, 8.0, 64.0), "least": (0.01, 0.05, 0.1)},
    ),
    "SGLang": Peer(
        "SGLang, NgramCorpus, the prompt as its external corpus",
        _sglang,
        trees=True,
        shipped={"share": 0.0, "breadth": 8, "match": "BFS"},
        grid={"share": (0.25, 0.5, 0.75), "breadth": (4, 10), "match": ("BFS", "PROB")},
    ),
    "llama.cpp lookup": Peer("llama.cpp, common_ngram_cache_draft as in examples/lookup", partial(_llama, "lookup")),
    "llama.cpp simple": Peer(
        "llama.cpp, ngram-simple",
        partial(_llama, "ngram-simple"),
        shipped=MAP,
        grid=MAPS,
    ),
    "llama.cpp map-k": Peer("llama.cpp, ngram-map-k", partial(_llama, "ngram-map-k"), shipped=MAP, grid=MAPS),
    "llama.cpp map-k4v": Peer("llama.cpp, ngram-map-k4v", partial(_llama, "ngram-map-k4v"), shipped=MAP, grid=MAPS),
    "llama.cpp mod": Peer(
        "llama.cpp, ngram-mod",
        partial(_llama, "ngram-mod"),
        shipped={"key": 24, "least": 48, "most": 64},
        grid={"key": (2, 3, 4, 8, 16), "least": (0, 4), "most": (64,)},
    ),
    "SAM-Decoding": Peer(
        "SAM-Decoding, the automaton of the text so far",
        _sam,
        shipped={"alpha": 4.0, "predicts": 40},
        grid={"alpha": (4.0, 8.0, 64.0), "predicts": (8, 20, 40)},
    ),
    "LLMA": Peer(
        "LMOps/llma, its n-grams of the prompt",
        _llma,
        shipped={"block": 20, "trigger": 1},
        grid={"block": (20, 33), "trigger": (1, 2, 3)},
    ),
}
"""Peers by name, in the order of the tables."""

NOT_RUN = {
    "TensorRT-LLM": "its suffix automaton, of which only one header was read, is not yet among what is fetched",
    "AdaPLD": "ranks matches by the model's own probabilities, of which recorded outputs have none",
    "PLD+": "ranks matches by the model's hidden states and attention, of which recorded outputs have none",
    "LogitSpec": "retrieves by the tokens that the model's last logits rank highest",
    "Token Recycling": "drafts from the model's top candidates at earlier positions",
    "REST": "its DraftRetriever draws on a datastore of other texts, not on the prompt: `benchmarks.drafts.rest`",
    "SPEED-Bench": "its prompts come without recorded outputs",
}
"""What the table has not, and why."""
