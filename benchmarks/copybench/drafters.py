"""Runs the peers' own code as drafters of one row. Each sees the prompt and the output so far, nothing else."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.copybench.build import LLMA, SAM, SGLANG, VLLM
from benchmarks.copybench.sglang_corpus import corpus_class
from copyspec.budget import Budget
from copyspec.literature.copies import chain
from copyspec.tree import EMPTY, DraftTree

LONGEST = 32_768
"""Tokens of a prompt with its output, for peers that want to know beforehand."""

SGLANG_CLASS = "sglang.kernels.ops.speculative.ngram_corpus"


def module(name: str, **names: object) -> ModuleType:
    """Return a module that stands for one which the peer imports but drafting does not need."""
    made = ModuleType(name)
    made.__dict__.update(names)
    return made


@contextmanager
def standing_in(*modules: ModuleType) -> Iterator[None]:
    """Let an import find these modules for those that it names, and nothing else find them later."""
    replaced = {stub.__name__: sys.modules.get(stub.__name__) for stub in modules}
    sys.modules.update({stub.__name__: stub for stub in modules})
    try:
        yield
    finally:
        for name, before in replaced.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before


def use(folder: Path) -> None:
    """Make what `build` left in `folder` importable. What is installed comes first."""
    places = [folder / "site", folder / "tools", folder / "sources" / VLLM.stem, folder / "sources" / SGLANG.stem]
    sys.path.extend(str(place) for place in places if str(place) not in sys.path)
    if (folder / "sglang.so").is_file():
        corpus = corpus_class(folder / "sglang.so")
        sys.modules.setdefault(SGLANG_CLASS, module(SGLANG_CLASS, get_ngram_corpus_cls=lambda: corpus))


def source(folder: Path, clone: str, path: str, name: str) -> ModuleType:
    """Import a module of a clone by its file, as `name`."""
    file = folder / "downloads" / clone / path
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ImportError(f"there is no module {str(file)!r}: --build-peers fetches it")
    sys.modules[name] = made = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


class VllmNgram:
    """vLLM's `NgramProposer`, of a batch of one."""

    def __init__(self, prompt: Sequence[int], most: int, least: int, largest: int) -> None:
        self.proposer, self.tokens = vllm_proposer(most, least, largest)
        self.length = 0
        self.accept(prompt)

    def accept(self, tokens: Sequence[int]) -> None:
        self.tokens[0, self.length : self.length + len(tokens)] = tokens
        self.length += len(tokens)

    def propose(self, budget: Budget) -> DraftTree:
        lengths = np.array([self.length], np.int32)
        return chain(self.proposer.propose(self.proposer.k, [[0]], lengths, self.tokens)[0], budget)


@lru_cache(maxsize=4)
def vllm_proposer(most: int, least: int, largest: int, rows: int = 1) -> tuple[Any, Any]:
    """Return the proposer and the token buffer that its rows share; the buffer is [rows, LONGEST]."""
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=least, prompt_lookup_max=largest, num_speculative_tokens=most
        ),
        model_config=SimpleNamespace(max_model_len=LONGEST),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    with standing_in(module("vllm.config", VllmConfig=object)):
        code = importlib.import_module("vllm.v1.spec_decode.ngram_proposer")
    return code.NgramProposer(config), np.zeros((rows, LONGEST), np.int32)


class LlamaCpp:
    """llama.cpp's self-speculation, `kind` as in its `--spec-type`, or its lookup decoding."""

    def __init__(self, library: ctypes.CDLL, kind: str, prompt: Sequence[int], most: int, key: int, least: int) -> None:
        self.library = library
        array = np.asarray(prompt, np.int32)
        self.row = library.row_new(kind.encode(), array.ctypes.data, len(array), key, least, most)
        self.out = np.zeros(max(most, 64), np.int32)  # the driver of ngram-cache drafts 8 whatever it is told

    def accept(self, tokens: Sequence[int]) -> None:
        array = np.asarray(tokens, np.int32)
        self.library.row_accept(self.row, array.ctypes.data, len(array))

    def propose(self, budget: Budget) -> DraftTree:
        count = self.library.row_draft(self.row, budget.max_nodes, self.out.ctypes.data)
        return chain(self.out[:count].tolist(), budget)

    def __del__(self) -> None:
        self.library.row_free(self.row)


@lru_cache(maxsize=1)
def llama_library(folder: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(folder / "llama_cpp.so"))
    number, pointer = ctypes.c_int32, ctypes.c_void_p
    library.row_new.restype, library.row_free.restype, library.row_accept.restype = pointer, None, None
    library.row_new.argtypes = [ctypes.c_char_p, pointer, number, number, number, number]
    library.row_draft.argtypes = [pointer, number, pointer]
    library.row_accept.argtypes = [pointer, pointer, number]
    library.row_free.argtypes = [pointer]
    return library


class SamDecoding:
    """SAM-Decoding (arXiv 2411.10666) without a model: the automaton of the text so far of its `sam_only`.

    Like its `SamdModel`, this holds the last token back: drafts start from it, and it joins the automaton with them.
    `propose` is `DraftModel.lookup`, which raises TypeError in the published code, where `len` names a number.
    """

    def __init__(self, folder: Path, prompt: Sequence[int], alpha: float, predicts: int) -> None:
        self.alpha, self.sam = alpha, sam_module(folder).DynSAM(predicts)
        self.sam.add_tokens(prompt[:-1])
        self.last = prompt[-1]

    def accept(self, tokens: Sequence[int]) -> None:
        self.sam.add_tokens([self.last, *tokens[:-1]])
        self.last = tokens[-1]

    def propose(self, budget: Budget) -> DraftTree:
        tokens, matched = self.sam.lookup(self.last)
        return chain(tokens[: int(self.alpha * matched)], budget)


@lru_cache(maxsize=1)
def sam_module(folder: Path) -> ModuleType:
    return source(folder, SAM.stem, "evaluation/model/sam_only/sam/sam.py", "copybench_sam")


class _Words:
    """The tokenizer that LLMA's code asks: its texts are lists of ids, whose tokens are their digits."""

    def tokenize(self, ids: Sequence[int]) -> list[str]:
        return [str(token) for token in ids]

    def convert_tokens_to_ids(self, token: str) -> int | list[int]:
        return int(token) if isinstance(token, str) else [int(piece) for piece in token]


class Llma:
    """LLMA (arXiv 2304.04487): `prepare_ngrams`, `get_ngrams` and `match_prefix` of its code, called as `llma_generate`
    calls them. Its document is the prompt."""

    def __init__(self, folder: Path, prompt: Sequence[int], block: int, trigger: int) -> None:
        self.code, self.block = llma_module(folder), block
        self.found = self.code.prepare_ngrams({"docs": [prompt]}, trigger, _Words(), max_n=5)
        self.output: list[str] = []

    def accept(self, tokens: Sequence[int]) -> None:
        self.output += map(str, tokens)

    def propose(self, budget: Budget) -> DraftTree:
        tail = self.output[-5:]  # the n-grams of the end are all that `match_prefix` reads
        grams = [(n, self.code.get_ngrams(tail, n)) for n, _ in self.found["doc_ngrams"]]
        n, _, places = self.code.match_prefix(grams, self.found["doc_ngrams"], len(tail))
        if n == 0:
            return EMPTY
        document, at = places[grams[5 - n][1][len(tail) - n]][0]
        return chain(self.found["doc_token_id_list"][document][at + n : at + n + self.block - 1], budget)


@lru_cache(maxsize=1)
def llma_module(folder: Path) -> ModuleType:
    return source(folder, LLMA.stem, "llma/src/decode.py", "copybench_llma")
