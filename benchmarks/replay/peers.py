"""Runs the compiled drafting code of ArcticInference and SGLang, if installed, as methods of the replay.

Neither accepts references or is told which text is edited, but both see the prompt, which contains these texts. Both
run with better settings than they ship with: Arctic drafts trees, which neither its plugin nor vLLM does; SGLang gets
the prompt as an external corpus for one request, which its server does not support.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from copyspec.budget import Budget
from copyspec.tree import EMPTY, DraftTree

ARCTIC_DEPTH, ARCTIC_FACTOR, ARCTIC_LEAST = 64, 4.0, 0.1
"""Draft tokens per matched one, and the least probability of a path: better than its defaults. `benchmarks.copybench`
searches for the best."""

SGLANG_DEPTH, SGLANG_BREADTH = 18, 10  # SGLang's defaults
SGLANG_CAPACITY = 100_000  # nodes of a trie, whose default of a million is for all rows of a server
SGLANG_CORPUS_SHARE = 0.75  # share of the nodes for the prompt's automaton; better than 0.25, 0.5 and 1

ARCTIC, SGLANG = "arctic_inference.suffix_decoding", "sglang.srt.speculative.cpp_ngram.ngram_corpus"


def need(module: str) -> ModuleType:
    """Import a peer's module. Raises ImportError, naming the package to install, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise ImportError(f"runs the compiled code of {package}, which is not installed here: {error}") from None


class Arctic:
    """SuffixDecoding (arXiv 2411.04975): `arctic_inference`'s suffix tree over the prompt and output of one row."""

    def __init__(
        self,
        prompt: Sequence[int],
        references: Sequence[Sequence[int]],
        eos: int,
        factor: float = ARCTIC_FACTOR,
        least: float = ARCTIC_LEAST,
    ) -> None:
        module = need(ARCTIC)
        self.factor, self.least = factor, least
        self.cache = module.SuffixDecodingCache(max_tree_depth=ARCTIC_DEPTH, max_cached_requests=0)
        self.tokens = list(prompt)
        self.cache.start_request(0, self.tokens)

    def accept(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.cache.add_active_response(0, list(tokens))

    def propose(self, budget: Budget) -> DraftTree:
        draft = self.cache.speculate(
            0,
            self.tokens[-ARCTIC_DEPTH:],
            max_spec_tokens=budget.max_nodes,
            max_spec_factor=self.factor,
            min_token_prob=self.least,
            use_tree_spec=not budget.chain,
        )
        nodes = len(draft.token_ids)
        return DraftTree(draft.token_ids, draft.parents, [1.0] * nodes, [None] * nodes) if nodes else EMPTY


class SGLang:
    """SGLang's NGRAM speculation: a trie of the output and a suffix automaton of the prompt."""

    def __init__(
        self,
        prompt: Sequence[int],
        references: Sequence[Sequence[int]],
        eos: int,
        share: float = SGLANG_CORPUS_SHARE,
        breadth: int = SGLANG_BREADTH,
        match: str = "BFS",
    ) -> None:
        self.module = need(SGLANG)
        self.share, self.breadth, self.match = share, breadth, match
        self.corpus: Any = None
        self.nodes = 0
        self.prompt, self.output = list(prompt), list[int]()

    def accept(self, tokens: Sequence[int]) -> None:
        self.output.extend(tokens)
        if self.corpus is not None:
            self.corpus.batch_put([(self.prompt + self.output)[-SGLANG_DEPTH:]])

    def propose(self, budget: Budget) -> DraftTree:
        if self.corpus is None:
            self._start(budget.max_nodes)
        tail = (self.prompt[-SGLANG_DEPTH:] + self.output)[-SGLANG_DEPTH:]
        self.corpus.synchronize()
        tokens, mask = self.corpus.batch_get(["row"], [tail], [len(self.prompt) + len(self.output)])
        rows = mask.reshape(self.nodes, self.nodes)  # the first node is the last token of the output
        place = {0: -1}
        drafted: list[int] = []
        parents: list[int] = []
        seen: set[tuple[int, int]] = set()
        for node in range(1, self.nodes):
            above = [other for other in range(node) if rows[node, other]]
            if not above or above[-1] not in place:
                continue
            key = place[above[-1]], int(tokens[node])
            if key not in seen:  # padding: a node without a parent, or the same one again
                seen.add(key)
                place[node] = len(drafted)
                drafted.append(int(tokens[node]))
                parents.append(place[above[-1]])
        return DraftTree(drafted, parents, [1.0] * len(drafted), [None] * len(drafted)) if drafted else EMPTY

    def _start(self, nodes: int) -> None:
        self.nodes = nodes + 1
        self.corpus = self.module.NgramCorpus(
            max_trie_depth=SGLANG_DEPTH, max_bfs_breadth=self.breadth, draft_token_num=self.nodes,
            external_sam_budget=round(self.share * nodes), match_type=self.match, capacity=SGLANG_CAPACITY,
        )  # fmt: skip
        count = self.corpus.load_external_corpus_named("prompt", [self.prompt])
        self.corpus.commit_external_corpus_load("prompt", count)
        if self.output:
            self.corpus.batch_put([(self.prompt + self.output)[-SGLANG_DEPTH:]])
