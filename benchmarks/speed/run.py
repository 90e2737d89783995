"""Times whole runs: copyspec against its own plain decoding and against transformers, in one process.

    python -m benchmarks.speed --model default --dtype bfloat16
    python -m benchmarks.speed --model shape:qwen2.5-0.5b --transcripts --tasks gec --rows 5

`--model`: `default` (the bundled model), a folder, or `shape:NAME`, a real architecture with random weights that
replays recorded transcripts: passes have their real cost, and outputs are the recorded ones.

New tokens are counted up to and including the end of sequence or the limit, in the same way for every method. Total
seconds cover everything from the prompt's ids to the output's; decode seconds begin after the first pass.
Methods take turns prompt by prompt, and figures are medians over the repeats.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from benchmarks.speed.methods import METHODS, Limits, Method, Methods, Run
from benchmarks.speed.models import SHAPE_PREFIX, SHAPES, Model, load_model
from benchmarks.speed.prompts import (
    BUILT_IN,
    TEMPLATE,
    PromptSet,
    TranscriptOptions,
    text_set,
    transcript_sets,
    uncopyable_set,
)
from benchmarks.speed.report import Figures, PeakMemory, add_up, bandwidth, compare, measure_gap, table
from kit import places
from kit.reporting import command_line, surroundings, write_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

SINGLE = ("hf-prompt-lookup", "hf-assistant")
"""Methods for batches of one row only, because transformers' assisted generation takes no more."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A set of prompts and the figures of each method on it."""

    prompts: PromptSet
    batches: int
    figures: list[Figures]
    left_out: int  # prompts whose output reached the limit


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table per set; return 0 if all outputs are equal, 1 if not, 2 for invalid arguments."""
    options = _parser().parse_args(arguments)
    try:
        report, equal = _run(options, command_line("benchmarks.speed", arguments))
    except ValueError as error:
        print(f"benchmarks.speed: {error}", file=sys.stderr)
        return 2
    if options.json:
        write_json(options.json, report)
    return 0 if equal else 1


def _run(options: argparse.Namespace, command: str) -> tuple[dict[str, object], bool]:
    if options.threads:
        torch.set_num_threads(options.threads)
    names = _method_names(options)
    model = load_model(options.model, options.device, DTYPES[options.dtype])
    assistant = None
    if options.assistant:
        if model.is_shape or options.transcripts is not None:
            raise ValueError("--assistant needs a model that speaks for itself: a replay has no drafts to refuse")
        assistant = load_model(options.assistant, options.device, DTYPES[options.dtype]).model
    sets = _prompt_sets(options, model)
    methods = Methods(model, assistant)
    try:
        chosen = {name: methods.get(name) for name in names}
        measured = [_measure(prompts, chosen, options, model) for prompts in sets]
    finally:
        methods.close()
    return _report(options, command, model, measured), all(one.equal for m in measured for one in m.figures)


def _prompt_sets(options: argparse.Namespace, model: Model) -> list[PromptSet]:
    if options.transcripts is not None:
        paths = options.transcripts or [str(places.data() / "transcripts")]
        return transcript_sets(
            model,
            TranscriptOptions(paths, options.tokenizer, options.tasks, options.rows, seed=options.seed),
        )
    names = options.prompts or (["uncopyable"] if model.is_shape else list(BUILT_IN))
    return [
        uncopyable_set(model, options.rows, options.seed)
        if name == "uncopyable"
        else text_set(model, name, options.template, options.rows)
        for name in names
    ]


def _method_names(options: argparse.Namespace) -> list[str]:
    left_out = {"hf-assistant"} if not options.assistant else set()
    if options.device == "cpu":
        left_out.add("hf-static")  # it is meant to be compiled and captured
    default = [name for name in METHODS if name not in left_out]
    if options.batch_size > 1:
        default = [name for name in default if name not in SINGLE]
    names = list(options.methods or default)
    for name in names:
        if name in SINGLE and options.batch_size > 1:
            raise ValueError(f"{name} decodes one prompt at a time: leave it out, or use --batch-size 1")
    return names


def _measure(prompts: PromptSet, methods: dict[str, Method], options: argparse.Namespace, model: Model) -> Measured:
    """Warm up every method, then run them in turn."""
    limits = Limits(options.max_new_tokens, prompts.eos_token_ids, options.draft_nodes)
    left_out = 0
    if not prompts.is_replay:
        prompts, left_out = _ending(prompts, methods, limits)
    size = options.batch_size
    batches = [prompts.cases[start : start + size] for start in range(0, len(prompts.cases), size)]
    longest = max(batches, key=lambda cases: max(len(case.prompt) for case in cases))
    memory, peaks = PeakMemory(model.model.device), {}
    for name, method in methods.items():
        memory.restart()
        method(longest, limits)
        peaks[name] = memory.read()
    runs: dict[str, list[list[Run]]] = {name: [] for name in methods}
    order = list(methods)
    for repeat in range(options.repeat):
        for name in order:
            runs[name].append([])
        for index, cases in enumerate(batches):
            first = (repeat + index) % len(order)
            for name in order[first:] + order[:first]:
                runs[name][-1].append(methods[name](cases, limits))
    expected = [output for run in runs[_baseline(methods)][0] for output in run.outputs]
    figures = [add_up(name, runs[name], expected, peaks[name]) for name in order]
    compare(figures)
    if not prompts.is_replay:
        _explain(figures, prompts, expected, model)
    kind = " (replay)" if prompts.is_replay else ""
    print(f"\n{prompts.name}{kind}: {len(prompts.cases)} prompts, {options.dtype}, batch size {size}")
    if left_out:
        print(f"{left_out} left out: their output does not end within {options.max_new_tokens} tokens")
    print(table(figures), flush=True)
    return Measured(prompts, len(batches), figures, left_out)


def _baseline(methods: dict[str, Method]) -> str:
    """Return the method whose outputs are the expected ones."""
    return next(name for name in ("hf", "plain", *methods) if name in methods)


def _ending(prompts: PromptSet, methods: dict[str, Method], limits: Limits) -> tuple[PromptSet, int]:
    """Return the prompts whose output ends, and the number of the others; all prompts if none ends.

    A small model that loses track repeats itself up to the limit, and a loop is easily copied. The outputs are the
    baseline's, so that the method measured has no influence on the choice of prompts.
    """
    method = methods[_baseline(methods)]
    cases = [case for case in prompts.cases if method([case], limits).outputs[0][-1] in limits.eos_token_ids]
    return (replace(prompts, cases=cases), len(prompts.cases) - len(cases)) if cases else (prompts, 0)


def _explain(figures: Sequence[Figures], prompts: PromptSet, expected: Sequence[list[int]], model: Model) -> None:
    for one in figures:
        difference = one.first_difference
        if difference is not None:
            prefix = prompts.cases[difference.prompt].prompt + expected[difference.prompt][: difference.position]
            one.first_difference = measure_gap(difference, prefix, model.model)


def _report(options: argparse.Namespace, command: str, model: Model, measured: Sequence[Measured]) -> dict[str, object]:
    parameters = [*model.model.parameters()]
    head: dict[str, object] = {
        "benchmark": "speed",
        "command": command,
        **surroundings(options.device),
        "model": model.name,
        "parameters": sum(p.numel() for p in parameters),
        **{name: getattr(options, name) for name in ("device", "dtype", "batch_size", "max_new_tokens", "repeat")},
    }
    plain = next((one for one in measured[0].figures if one.method == "plain"), None)
    weights = sum(p.numel() * p.element_size() for p in parameters)
    head["bandwidth"] = bandwidth(weights, plain, measured[0].batches, model.model.device)
    head["sets"] = [
        {
            "name": one.prompts.name,
            "replay": one.prompts.is_replay,
            "prompts": len(one.prompts.cases),
            "left_out": one.left_out,
            "prompt_tokens": sum(len(case.prompt) for case in one.prompts.cases),
            "methods": [asdict(figures) for figures in one.figures],
        }
        for one in measured
    ]
    return head


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    shapes = ", ".join(sorted(name for name in SHAPES if not name.startswith("tiny")))
    add("--model", required=True, help=f"default, a folder, or {SHAPE_PREFIX}NAME ({shapes})")
    add("--transcripts", nargs="*", help=f"replay outputs: .jsonl.gz files or folders of them ({places.WHERE})")
    places.add_tokenizer(parser)
    add("--tasks", type=_list, default=[], help="tasks of the transcripts: gec,rag,... (default: all)")
    add("--prompts", nargs="+", help=f"{', '.join(BUILT_IN)}, or files with one text per line (default: all three)")
    add("--template", default=TEMPLATE, help="instruction around each text (default: %(default)r)")
    add("--rows", type=_positive, help="prompts per set (default: all)")
    add("--seed", type=int, default=0, help="seed for choosing the rows")
    add(
        "--methods",
        type=_list,
        help=f"comma-separated, from {','.join(METHODS)} (default: all that the batch size allows)",
    )
    add("--assistant", help="folder of a smaller model for hf-assistant")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--dtype", choices=list(DTYPES), default="float32")
    add("--batch-size", type=_positive, default=1)
    add("--max-new-tokens", type=_positive, default=512)
    add("--draft-nodes", type=_positive, help="maximum nodes of a draft tree (default: as many as pay)")
    add("--repeat", type=_positive, default=3)
    add("--threads", type=_positive, help="number of torch threads (default: torch's own choice)")
    add("--json", help="write the report to this file")
    return parser


def _list(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return number
