"""Compares the drafts that were measured, token by token, with those of the peers' own runs of the same outputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.copybench.drafters import LONGEST, module, standing_in, vllm_proposer
from benchmarks.copybench.peers import Peer
from benchmarks.replay.peers import ARCTIC, ARCTIC_DEPTH
from benchmarks.replay.run import accepted_path
from benchmarks.transcripts import TokenRow
from copyspec.budget import Budget

Drafts = list[list[int]]
"""The draft of each call of one row, its tokens in order."""


def check(
    name: str, peer: Peer, folder: Path, sets: Mapping[Any, Sequence[TokenRow]], setting: Mapping[str, Any], nodes: int
) -> dict[str, Any]:
    """Check one row of each set. Returns what was compared with, and the numbers of drafts, in all and equal; {} where
    a peer has no run of its own that works without a model."""
    if name not in RUNS:
        return {}
    against, theirs = RUNS[name]
    rows = [tokens[0] for tokens in sets.values()]
    ours = [drafts(peer, folder, row, nodes, setting) for row in rows]
    others = list(theirs(rows, ours, partial(peer.make, folder), nodes, setting))
    pairs = [pair for mine, other in zip(ours, others, strict=True) for pair in zip(mine, other, strict=True)]
    return {"against": against, "drafts": len(pairs), "equal": sum(mine == other for mine, other in pairs)}


def contexts(row: TokenRow, drafted: Drafts) -> Iterator[list[int]]:
    """The text before each call."""
    at = 0
    for draft in drafted:
        yield [*row.prompt, *row.output[:at]]
        at += agreed(draft, row.output[at:]) + 1


def agreed(draft: Sequence[int], output: Sequence[int]) -> int:
    """Number of a chain's tokens that are the output's."""
    return next((at for at, (one, other) in enumerate(zip(draft, output, strict=False)) if one != other), len(draft))


def drafts(peer: Peer, folder: Path, row: TokenRow, nodes: int, setting: Mapping[str, Any]) -> Drafts:
    """The drafts that the benchmark measures."""
    drafter, at, drafted = peer.make(folder, row, nodes, **setting), 0, Drafts()
    while at < len(row.output):
        tree = drafter.propose(Budget(nodes, chain=not peer.trees))
        drafted.append(list(tree.tokens))
        joined = row.output[at : at + accepted_path(tree, row.output, at) + 1]
        drafter.accept(joined)
        at += len(joined)
    return drafted


def fresh(
    rows: Sequence[TokenRow], ours: Sequence[Drafts], make: Callable[..., Any], nodes: int, setting: Mapping[str, Any]
) -> Iterator[Drafts]:
    """The same code, started anew on the whole text before each call."""
    for row, drafted in zip(rows, ours, strict=True):
        yield [
            list(make(TokenRow(text, [], row.output), nodes, **setting).propose(Budget(nodes, chain=True)).tokens)
            for text in contexts(row, drafted)
        ]


def generated(
    rows: Sequence[TokenRow], ours: Sequence[Drafts], make: Callable[..., Any], nodes: int, setting: Mapping[str, Any]
) -> Iterator[Drafts]:
    """transformers' `generate` with a small model whose logits are those of the recorded output."""
    import torch
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator as Generator

    from benchmarks.speed.models import Replay, load_model

    vocabulary = 1 + max(max(max(row.prompt), max(row.output)) for row in rows)
    model: Any = load_model("shape:tiny-llama", "cpu", torch.float32, vocab_size=vocabulary).model
    replayed, plain = Replay(model), Generator.get_candidates
    try:
        for row in rows:
            noted: Drafts = []

            def noting(self: Any, ids: Any, noted: Drafts = noted, **more: Any) -> Any:
                output = plain(self, ids, **more)
                noted.append(output[0][0, ids.shape[1] :].tolist())
                return output

            Generator.get_candidates = noting  # type: ignore[assignment, method-assign]
            replayed.start([[*row.prompt, *row.output]])
            model.generate(
                torch.tensor([row.prompt]),
                max_new_tokens=len(row.output) + nodes,
                eos_token_id=row.output[-1],
                do_sample=False,
                prompt_lookup_num_tokens=min(setting["length"], nodes),
                max_matching_ngram_size=setting["largest"],
            )
            yield noted
    finally:
        Generator.get_candidates = plain  # type: ignore[method-assign]
        replayed.remove()


def batched(
    rows: Sequence[TokenRow], ours: Sequence[Drafts], make: Callable[..., Any], nodes: int, setting: Mapping[str, Any]
) -> Iterator[Drafts]:
    """vLLM's proposer with all calls of a row as requests of one batch, as its scheduler calls it."""
    for row, drafted in zip(rows, ours, strict=True):
        texts = list(contexts(row, drafted))
        proposer, _ = vllm_proposer(nodes, setting["least"], setting["largest"], len(texts))
        width = max(map(len, texts))
        tokens = np.zeros((len(texts), min(LONGEST, width)), np.int32)
        for line, text in zip(tokens, texts, strict=True):
            line[: len(text)] = text
        yield proposer.propose(nodes, [[0]] * len(texts), np.array([*map(len, texts)], np.int32), tokens)


def simulated(
    rows: Sequence[TokenRow], ours: Sequence[Drafts], make: Callable[..., Any], nodes: int, setting: Mapping[str, Any]
) -> Iterator[Drafts]:
    """ArcticInference's own simulator of recorded outputs."""
    with standing_in(module("pandas", DataFrame=object)):
        code = importlib.import_module(f"{ARCTIC}.simulator")
    for row in rows:
        cache = code.SuffixDecodingCache(max_tree_depth=ARCTIC_DEPTH, max_cached_requests=0)
        plain, noted = cache.speculate, Drafts()

        def noting(*args: Any, plain: Any = plain, noted: Drafts = noted, **more: Any) -> Any:
            output = plain(*args, **more)
            noted.append(list(output.token_ids))
            return output

        cache.speculate = noting
        arrays = np.array(row.prompt, np.int32), np.array(row.output, np.int32)
        code.suffix_decode(cache, 0, *arrays, nodes, setting["factor"], setting["least"], True, True)
        yield noted


RUNS: dict[str, tuple[str, Callable[..., Iterator[Drafts]]]] = {
    "transformers": ("`generate` with a model that writes the recorded output", generated),
    "vLLM": ("its class with all of a row's calls as one batch", batched),
    "Arctic": ("its `simulator.suffix_decode`", simulated),
    "llama.cpp lookup": ("its cache made anew from the whole text at each call", fresh),
    "llama.cpp simple": ("its driver started anew on the whole text at each call", fresh),
}
"""Peers whose drafts can be compared, with what. The driver of llama.cpp's kinds, SGLang's class, SAM-Decoding's
automaton and LLMA's functions are called themselves."""
