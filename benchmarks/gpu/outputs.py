"""Times whole outputs of several methods in one process: rows G4 and G5 of docs/gpu.md.

    python -m benchmarks.gpu.outputs --device cuda --model default --rows 1 32

Methods: `generate`, its prompt lookup, both with a static cache, which transformers compiles on CUDA, and copyspec with
static passes, plain and with drafts. The task is to edit the texts of benchmarks/data; the prompts of
`text not named` are the same, without `edit_source`. Every output is compared with that of `generate`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.gpu.exact_mode import cases
from benchmarks.speed.methods import LOOKUP_TOKENS, synchronise
from copyspec.targets.hooks.modules import cache_argument
from copyspec.targets.model.facts import forward_arguments
from kit.reporting import generate_padded, without_cudnn_attention, write_json

if TYPE_CHECKING:
    from copyspec import Engine

Way = Callable[[Sequence[tuple[str, str]], int], list[list[int]]]


def ways(engine: Engine, rows: int) -> dict[str, Way]:
    methods: dict[str, Way] = {"generate": partial(_by_transformers, engine, {})}
    if rows == 1:
        methods["prompt lookup"] = partial(_by_transformers, engine, {"prompt_lookup_num_tokens": LOOKUP_TOKENS})
        if cache_argument(forward_arguments(engine.model)) == "cache":  # before 5.24 transformers refuses it
            methods["prompt lookup, static cache"] = partial(_by_static_lookup, engine)
    methods["static cache"] = partial(_by_transformers, engine, {"cache_implementation": "static"})
    methods["plain"] = partial(_by_copyspec, engine, "none", True)
    methods["copyspec"] = partial(_by_copyspec, engine, "auto", True)
    methods["copyspec, text not named"] = partial(_by_copyspec, engine, "auto", False)
    return methods


def measure(engine: Engine, rows: int, tokens: int, repeats: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure each method: seconds as the best of `repeats` after a warm-up, and how many outputs equal
    `generate`'s."""
    texts = [cases(number) for number in range(rows)]
    results: dict[str, Any] = {}
    truth: list[list[int]] = []
    for name, way in ways(engine, rows).items():
        seconds = []
        for _ in range(1 + repeats):
            started = perf_counter()
            outputs = way(texts, tokens)
            synchronise(engine.model.device)
            seconds.append(perf_counter() - started)
        truth = truth or outputs
        equal = sum(one == other for one, other in zip(truth, outputs, strict=True))
        best = min(seconds[1:])
        results[name] = {"seconds": best, "first": seconds[0], "equal": f"{equal} of {rows}"}
        results[name]["over_generate"] = results["generate"]["seconds"] / best
        tell(f"{rows} rows, {name}: {json.dumps(results[name])}")
    return results


def _by_transformers(
    engine: Engine, extra: dict[str, object], texts: Sequence[tuple[str, str]], tokens: int
) -> list[list[int]]:
    prompts = [engine.tokenizer(prompt)["input_ids"] for prompt, _ in texts]
    limits = {"max_new_tokens": tokens, "min_new_tokens": tokens, "eos_token_id": None}
    return generate_padded(engine.model, prompts, (), pad=0, **limits, **extra)


def _by_static_lookup(engine: Engine, texts: Sequence[tuple[str, str]], tokens: int) -> list[list[int]]:
    """Prompt lookup with a static cache, which transformers compiles on CUDA from 5.24 on. The cache has room for the
    drafts of the last pass: `cache_implementation="static"` makes one without, and runs over its end."""
    from transformers import StaticCache

    width = max(len(engine.tokenizer(prompt)["input_ids"]) for prompt, _ in texts)
    cache = StaticCache(config=engine.model.config, max_cache_len=width + tokens + LOOKUP_TOKENS + 1)
    name = cache_argument(forward_arguments(engine.model))
    return _by_transformers(engine, {"prompt_lookup_num_tokens": LOOKUP_TOKENS, name: cache}, texts, tokens)


def _by_copyspec(
    engine: Engine, drafter: Literal["auto", "none"], copies: bool, texts: Sequence[tuple[str, str]], tokens: int
) -> list[list[int]]:
    results = engine.generate(
        [prompt for prompt, _ in texts],
        edit_source=[text for _, text in texts] if copies else None,
        drafter=drafter,
        max_new_tokens=tokens,
        ignore_eos=True,
        batch_size=len(texts),
    )
    return [list(result.token_ids) for result in results]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.outputs", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="default")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--attention", choices=("auto", "masks", "tree"), default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    without_cudnn_attention()
    import copyspec

    static = copyspec.StaticOptions(use="always", attention=options.attention)
    engine = copyspec.load(options.model, dtype=options.dtype, device=options.device, static=static)
    results = {str(rows): measure(engine, rows, options.tokens, options.repeats, print) for rows in options.rows}
    if options.json:
        write_json(options.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
