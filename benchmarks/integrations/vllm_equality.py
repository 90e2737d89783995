"""Checks that vLLM's greedy outputs are the same with copyspec's proposer as without drafts, whatever requests ask for.

Every case runs the same requests through both engines, greedy, in float32. Sampled rows must be reproducible by seed,
with the token frequencies of the engine without drafts. Aborted requests must leave no state behind. Exit status 1 if a
case fails.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import random
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.integrations import vllm_engines as engines
from kit.reporting import command_line, machine, write_json

STOPS = [" the ", "ing", " because"]
PREFIX = "You are a careful editor. " * 40
LOGPROBS_APART = 1e-3  # a pass over drafts adds in a different order

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "batch of 1": ("plain", {}),
    "batch of 8": ("plain", {}),
    "batch of 32": ("plain", {}),
    "prefix caching": ("prefix", {}),
    "chunked prefill": ("chunked", {}),
    "preemption": ("preempted", {}),
    "stop strings": ("plain", {"stop": STOPS}),
    "penalties": ("plain", {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}),
    "log-probabilities": ("plain", {"logprobs": 3}),
    "least tokens": ("plain", {"min_tokens": 24}),
    "structured output": ("plain", {"regex": r"[A-Z][a-z ,']{20,60}\."}),
    "edge of the context": ("short", {"max_tokens": None}),
    "mixed with sampled rows": ("plain", {"sampled": True}),
}
"""Maps each case to its kind of engine and its requests' options."""

ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefix": {"enable_prefix_caching": True, "max_model_len": 1024},
    "chunked": {"enable_chunked_prefill": True, "max_num_batched_tokens": 640, "long_prefill_token_threshold": 16},
    "preempted": {"num_gpu_blocks_override": 8, "block_size": 32, "max_model_len": 192},
    "short": {"max_model_len": 96},
}


class Bench:
    """Creates both engines of each kind when first needed."""

    def __init__(self, model: str, texts: Sequence[str], tokens: int, adaptive: bool) -> None:
        self.texts, self._model, self._tokens, self._adaptive = texts, model, tokens, adaptive
        self._made: dict[tuple[str, bool], Any] = {}
        self.counters: dict[str, engines.Counter] = {}

    def engine(self, kind: str, *, drafts: bool) -> Any:
        """Return one engine."""
        from copyspec.integrations import vllm as plug_in

        if (kind, drafts) not in self._made:
            speculative = plug_in.config(self._tokens) if drafts else None
            made = engines.engine(self._model, speculative, adaptive=self._adaptive, **ENGINES[kind])
            self._made[kind, drafts] = made
            if drafts:
                self.counters[kind] = engines.Counter(made)
        return self._made[kind, drafts]

    def run(self, llm: Any, name: str, extra: dict[str, Any], *, with_source: bool) -> list[Any]:
        """Run one case; return token ids and, if requested, log-probabilities."""
        size = {"batch of 1": 1, "batch of 8": 8}.get(name, 32)
        prefix = PREFIX if name == "prefix caching" else ""
        prompts = [prefix + engines.TEMPLATE.format(text=text) for text in self.texts]
        parameters = [self._parameters(number, extra, with_source=with_source) for number in range(len(prompts))]
        if name == "edge of the context":
            pairs = [(p, q) for p, q in zip(prompts, parameters, strict=True) if len(p) < 200]
            prompts, parameters = [p for p, _ in pairs], [q for _, q in pairs]
        completions = []
        for start in range(0, len(prompts), size):
            part = slice(start, start + size)
            outputs = llm.generate(prompts[part], parameters[part], use_tqdm=False)
            completions += [output.outputs[0] for output in outputs]
        return completions

    def _parameters(self, number: int, extra: dict[str, Any], *, with_source: bool) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        from copyspec.integrations import vllm as plug_in

        options = {"temperature": 0, "max_tokens": 96} | extra
        if options.pop("sampled", False) and number % 2:
            options |= {"temperature": 0.8, "top_p": 0.9, "seed": number}
        if "regex" in options:
            options["structured_outputs"] = StructuredOutputsParams(regex=options.pop("regex"))
        parameters = SamplingParams(**options)
        return plug_in.copying(parameters, edit_source=self.texts[number]) if with_source else parameters


def check_case(bench: Bench, name: str) -> dict[str, Any]:
    """Run one case on both engines and compare the outputs."""
    kind, extra = CASES[name]
    plain = bench.run(bench.engine(kind, drafts=False), name, extra, with_source=False)
    drafting = bench.engine(kind, drafts=True)
    bench.counters[kind].read()
    copied = bench.run(drafting, name, extra, with_source=True)
    steps = bench.counters[kind].read()
    if kind == "preempted":
        steps["preemptions"] = engines.preemptions(drafting)
    greedy = range(0, len(plain), 2) if extra.get("sampled") else range(len(plain))
    same = [list(plain[i].token_ids) == list(copied[i].token_ids) for i in greedy]
    tokens = sum(len(plain[i].token_ids) for i in range(len(plain)))
    report: dict[str, Any] = {"requests": len(same), "equal": sum(same), "tokens": tokens, **steps}
    if extra.get("sampled"):
        again = bench.run(drafting, name, extra, with_source=True)
        rows = range(1, len(plain), 2)
        report["sampled"] = len(rows)
        report["repeated"] = sum(list(again[i].token_ids) == list(copied[i].token_ids) for i in rows)
    if "logprobs" in extra:
        report["logprobs apart"] = max(map(_apart, plain, copied))
    report["holds"] = all(same) and report.get("repeated", 0) == report.get("sampled", 0)
    report["holds"] = report["holds"] and report["drafted"] > 0 and report.get("preemptions", 1) > 0
    report["holds"] = report["holds"] and report.get("logprobs apart", 0.0) <= LOGPROBS_APART
    return report


def _apart(plain: Any, copied: Any) -> float:
    """Return the largest difference of the log-probabilities of two equal outputs."""
    if list(plain.token_ids) != list(copied.token_ids):
        return 0.0  # counted as different outputs elsewhere
    apart: float = max(
        abs(one[token].logprob - other[token].logprob)
        for one, other, token in zip(plain.logprobs, copied.logprobs, plain.token_ids, strict=True)
    )
    return apart


def check_frequencies(bench: Bench, draws: int) -> dict[str, Any]:
    """Test the second sampled token of one prompt, with and without drafts, by chi-square."""
    from vllm import SamplingParams

    from copyspec.integrations import vllm as plug_in

    prompt, counts = engines.TEMPLATE.format(text=bench.texts[0]), []
    for drafts in (False, True):
        llm = bench.engine("plain", drafts=drafts)
        parameters = [
            plug_in.copying(SamplingParams(temperature=1.5, max_tokens=4, seed=seed), edit_source=bench.texts[0])
            for seed in range(draws * drafts, draws * (1 + drafts))
        ]
        outputs = llm.generate([prompt] * draws, parameters, use_tqdm=False)
        counts.append(Counter(tuple(output.outputs[0].token_ids[1:3]) for output in outputs))
    frequent = [pair for pair in counts[0] | counts[1] if counts[0][pair] + counts[1][pair] >= 20]
    rest = [draws - sum(count[pair] for pair in frequent) for count in counts]
    pairs = [(counts[0][pair], counts[1][pair]) for pair in frequent] + ([(rest[0], rest[1])] if any(rest) else [])
    p = _p_value(sum((one - other) ** 2 / (one + other) for one, other in pairs), len(pairs) - 1)
    return {"draws": draws, "outcomes": len(pairs), "p": p, "holds": p > 0.01}


def _p_value(chi_square: float, degrees: int) -> float:
    """Approximate the p-value as Wilson and Hilferty (1931) do."""
    spread = 2 / (9 * degrees)
    return math.erfc(((chi_square / degrees) ** (1 / 3) - 1 + spread) / math.sqrt(2 * spread)) / 2


def check_aborts(bench: Bench, requests: int) -> dict[str, Any]:
    """Send requests at random times and abort a tenth of them; return what is left, and the growth of memory."""
    from vllm import SamplingParams

    llm, rng = bench.engine("plain", drafts=True), random.Random(0)
    core, running, memory, own, aborted, most = llm.llm_engine, set[str](), list[int](), list[int](), 0, 0
    for number in range(requests):
        text = bench.texts[number % len(bench.texts)]
        parameters = bench._parameters(number % len(bench.texts), {"max_tokens": 64}, with_source=bool(number % 2))
        assert isinstance(parameters, SamplingParams)
        core.add_request(str(number), engines.TEMPLATE.format(text=text), parameters)
        running.add(str(number))
        if rng.random() < 0.1:
            gone = rng.choice(sorted(running))
            core.abort_request([gone])
            running.discard(gone)
            aborted += 1
        while len(running) >= 32 or (number == requests - 1 and running):
            running -= {output.request_id for output in core.step() if output.finished}
            most = max(most, engines.drafter_of(llm).num_rows)
        if number % (requests // 10) == requests // 10 - 1:
            gc.collect()
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
            own.append(engines.own_bytes(llm) // 1024)
    left = engines.drafter_of(llm).num_rows
    grown = memory[-1] - memory[len(memory) // 2]
    report = {"requests": requests, "aborted": aborted, "most rows": most, "rows left": left, "MiB": memory}
    flat = max(own[len(own) // 2 :]) <= 1.2 * max(own[: len(own) // 2])
    report |= {"grown MiB in the second half": grown, "proposer's KiB": own, "proposer flat": flat}
    return report | {"holds": left <= 32 and most <= 64 and flat and grown <= 8}


def main(words: Sequence[str] | None = None) -> int:
    """Run the cases and return the exit status."""
    options = _parser().parse_args(words)
    os.environ.setdefault(*engines.FEW_KERNELS)
    engines.set_up()
    texts = engines.read_texts(options.texts, options.rows)
    report: dict[str, Any] = {
        "benchmark": "vllm_equality",
        "command": command_line("benchmarks.integrations.vllm_equality", words),
        "machine": machine(),
        "versions": engines.versions(),
        "cases": {},
    }
    with engines.model_folder(options.model) as folder:
        bench = Bench(folder, texts, options.tokens, not options.fixed)
        checks: dict[str, Any] = {name: (lambda name=name: check_case(bench, name)) for name in CASES}
        checks["frequencies"] = lambda: check_frequencies(bench, options.draws)
        checks["aborts"] = lambda: check_aborts(bench, options.aborts)
        for name in options.cases or checks:
            report["cases"][name] = result = checks[name]()
            print(f"{name:26} {'holds' if result['holds'] else 'FAILS'}  {result}", flush=True)
            if options.json:
                write_json(options.json, report)
    return int(not all(result["holds"] for result in report["cases"].values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.integrations.vllm_equality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="default", help="default, smollm2, or a folder (default: %(default)s)")
    add("--texts", help="file with one text per line, or JSON lines (default: the built-in sentences)")
    add("--rows", type=int, help="maximum number of texts (default: all)")
    add("--tokens", type=int, default=16, help="num_speculative_tokens (default: %(default)s)")
    add("--fixed", action="store_true", help="use a fixed draft size, whatever steps cost")
    add("--cases", nargs="+", choices=[*CASES, "frequencies", "aborts"], help="cases to run (default: all)")
    add("--draws", type=int, default=3000, help="samples drawn for the frequencies (default: %(default)s)")
    add("--aborts", type=int, default=2000, help="number of requests in the abort test (default: %(default)s)")
    add("--json", help="write the report to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
