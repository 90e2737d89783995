"""Measures throughput of file correction: `copyspec gec` against transformers on the same sentences, in one process.

    python -m benchmarks.speed.throughput --model default --dtype float32
    python -m benchmarks.speed.throughput --model default --sentences jfleg_dev.jsonl.gz --batch-sizes 1,8,32 --json OUT

`files-B` is the whole pipeline at batch size B: a file is read, segmented, corrected, aligned, guarded and written.
`hf` is greedy `model.generate`, one sentence at a time; `hf-prompt-lookup` the same with prompt lookup; `hf-B` greedy
on padded batches of B in the order of the file. All times include tokenizing and decoding. The output tokens of every
method are compared with those of `hf`. Methods take turns; figures are medians over the repeats.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

import copyspec
from benchmarks.data import SENTENCES, lines
from benchmarks.speed.methods import LOOKUP_TOKENS, synchronise
from copyspec.pipelines import (
    Done,
    FileJob,
    FileOptions,
    FileReport,
    Format,
    FormatOptions,
    ModelCorrector,
    ModelOptions,
    Runner,
    RunOptions,
    correct_files,
)
from copyspec.pipelines.models import engine_in
from kit.reporting import command_line, generate_padded, ratio, read_rows, surroundings, write_json

WARM_UP = 4  # sentences that every method decodes before the measurement

Outputs = list[list[int]]
Method = Callable[[Sequence[str]], Outputs]


@dataclass(slots=True)
class Figures:
    """Figures of one method on all sentences. Seconds are the median of the repeats."""

    method: str
    seconds: float
    seconds_repeats: list[float]
    sentences_per_second: float
    tokens: int
    tokens_per_second: float
    equal: bool  # all tokens equal those of `hf`, in every repeat
    differing: int  # number of sentences that differ
    speedup: dict[str, float] = field(default_factory=dict)  # over each method of transformers


class Baselines:
    """transformers' own methods, on the engine's model and with the pipeline's prompts."""

    def __init__(self, corrector: ModelCorrector, limit: int) -> None:
        self.engine, self.corrector, self.limit = engine_in(corrector.model), corrector, limit

    def one_by_one(self, texts: Sequence[str], **extra: object) -> Outputs:
        return [output for text in texts for output in self._generate([text], extra)]

    def prompt_lookup(self, texts: Sequence[str]) -> Outputs:
        return self.one_by_one(texts, prompt_lookup_num_tokens=LOOKUP_TOKENS)

    def batched(self, texts: Sequence[str], size: int) -> Outputs:
        starts = range(0, len(texts), size)
        return [output for start in starts for output in self._generate(texts[start : start + size], {})]

    def _generate(self, texts: Sequence[str], extra: dict[str, object]) -> Outputs:
        model, codec = self.engine.model, self.engine.codec
        prompts = [self.corrector.instruction.replace("{text}", text) for text in texts]
        if self.corrector.chat:
            ids = [codec.encode_chat([{"role": "user", "content": prompt}]).ids for prompt in prompts]
        else:
            ids = [codec.encode(prompt, wrap=True).ids for prompt in prompts]
        ends = model.generation_config.eos_token_id
        eos = frozenset([ends] if isinstance(ends, int) else ends or [])
        outputs = generate_padded(model, ids, eos, pad=min(eos, default=0), max_new_tokens=self.limit, **extra)
        for output in outputs:
            codec.decode(output)
        return outputs


class _Tokens:
    """Collects the model's output tokens while files are written."""

    def __init__(self) -> None:
        self.outputs: Outputs = []

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        for piece in done.pieces:
            self.outputs.append(list(piece.result.token_ids) if piece.result is not None else [])

    def end(self, report: FileReport) -> None:
        if report.error is not None:
            raise report.error


def files_method(engine: copyspec.Engine, batch_size: int, options: argparse.Namespace) -> Method:
    """Make a method that runs the pipeline on a file with one sentence per line."""
    asked = ModelOptions(options.instruction, max_new_tokens=options.max_new_tokens, batch_size=batch_size)
    runner = Runner(ModelCorrector(engine, asked), RunOptions(pack=4 * batch_size if batch_size > 1 else 0))

    def run(texts: Sequence[str]) -> Outputs:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "in.txt")
            source.write_text("".join(text + "\n" for text in texts), encoding="utf-8", newline="")
            heard = _Tokens()
            files = FileOptions("lines", FormatOptions(), output=Path(folder, "out.txt"))
            for _ in correct_files(runner, [str(source)], files, listeners=[heard]):
                pass
            return heard.outputs

    return run


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; return 0 if the pipeline's outputs equal those of `hf`, 1 if not, 2 for invalid arguments."""
    options = _parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        texts = read_sentences(Path(options.sentences), options.rows)
    except (OSError, ValueError) as error:
        print(f"benchmarks.speed.throughput: {error}", file=sys.stderr)
        return 2
    engine = copyspec.load(options.model, dtype=options.dtype, device=options.device)
    figures = measure(_methods(engine, options), texts, options.repeat, engine.model.device)
    print(table(figures))
    report = {
        "command": command_line("benchmarks.speed.throughput", arguments),
        **surroundings(options.device),
        "model": options.model,
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "sentences": len(texts),
        "max_new_tokens": options.max_new_tokens,
        "methods": [asdict(one) for one in figures],
    }
    if options.json:
        write_json(options.json, report)
    return 0 if all(one.equal for one in figures if one.method.startswith("files")) else 1


def read_sentences(path: Path, rows: int | None) -> list[str]:
    """Read distinct sentences: one per line, or the `source` of each row of a .jsonl.gz file.

    Raises ValueError if there are none."""
    if path.name.endswith(".jsonl.gz"):
        texts_read = [" ".join(row["source"].split()) for row in read_rows(path)]
    else:
        texts_read = lines(path)
    texts = [text for text in dict.fromkeys(texts_read) if any(char.isalpha() for char in text)][:rows]
    if not texts:
        raise ValueError(f"{str(path)!r} holds no sentence")
    return texts


def measure(methods: dict[str, Method], texts: Sequence[str], repeats: int, device: torch.device) -> list[Figures]:
    """Run every method on all texts `repeats` times, in rotating order."""
    for run in methods.values():
        run(texts[:WARM_UP])
    names = list(methods)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    outputs: dict[str, list[Outputs]] = {name: [] for name in names}
    for repeat in range(repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            synchronise(device)
            started = perf_counter()
            results = methods[name](texts)
            synchronise(device)
            seconds[name].append(perf_counter() - started)
            if len(results) != len(texts):
                raise RuntimeError(f"{name} gave {len(results)} outputs for {len(texts)} sentences")
            outputs[name].append(results)
    expected = outputs["hf"][0]
    figures = [_figures(name, seconds[name], outputs[name], expected) for name in names]
    for one in figures:
        for base in figures:
            if base.method.startswith("hf"):
                pairs = zip(base.seconds_repeats, one.seconds_repeats, strict=True)
                one.speedup[base.method] = median(ratio(theirs, own) for theirs, own in pairs)
    return figures


def _figures(name: str, seconds: list[float], outputs: list[Outputs], expected: Outputs) -> Figures:
    middle = median(seconds)
    tokens = sum(map(len, outputs[0]))
    differing = max(sum(a != b for a, b in zip(output, expected, strict=True)) for output in outputs)
    return Figures(
        method=name,
        seconds=middle,
        seconds_repeats=seconds,
        sentences_per_second=ratio(len(expected), middle),
        tokens=tokens,
        tokens_per_second=ratio(tokens, middle),
        equal=not differing,
        differing=differing,
    )


def table(figures: Sequence[Figures]) -> str:
    """Format the figures in at most 80 columns."""
    bases = [one.method for one in figures if one.method.startswith("hf")]
    head = f"{'method':<18}{'sent/s':>8}{'tok/s':>8}" + "".join(f"{'x ' + _short(base):>10}" for base in bases)
    lines = [head + f"{'equal':>8}"]
    for one in figures:
        over = "".join(f"{one.speedup[base]:>10.2f}" for base in bases)
        equal = "yes" if one.equal else f"{one.differing} not"
        lines.append(f"{one.method:<18}{one.sentences_per_second:>8.1f}{one.tokens_per_second:>8.0f}{over}{equal:>8}")
    return "\n".join(lines)


def _short(method: str) -> str:
    return "lookup" if method == "hf-prompt-lookup" else method


def _methods(engine: copyspec.Engine, options: argparse.Namespace) -> dict[str, Method]:
    asked = ModelOptions(options.instruction, max_new_tokens=options.max_new_tokens)
    hf = Baselines(ModelCorrector(engine, asked), options.max_new_tokens)
    methods: dict[str, Method] = {"hf": hf.one_by_one}
    if not hf.corrector.is_encoder_decoder:  # prompt lookup does not search an encoder's input
        methods["hf-prompt-lookup"] = hf.prompt_lookup
    for size in options.batch_sizes:
        if size > 1:
            methods[f"hf-{size}"] = lambda texts, size=size: hf.batched(texts, size)  # type: ignore[misc]
    for size in options.batch_sizes:
        methods[f"files-{size}"] = files_method(engine, size, options)
    return methods


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="default", help="default, a folder or a hub id; encoder-decoder models too")
    add(
        "--sentences",
        default=str(SENTENCES),
        help="one sentence per line, or .jsonl.gz rows with `source`",
    )
    add("--instruction", help="instruction with {text} (default: the one that the model is known for)")
    add("--rows", type=int, help="maximum number of sentences")
    add("--batch-sizes", type=lambda value: [int(size) for size in value.split(",")], default=[1, 8, 32])
    add("--max-new-tokens", type=int, default=256)
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    add("--repeat", type=int, default=3)
    add("--threads", type=int, help="number of torch threads (default: torch's own choice)")
    add("--json", help="write the report to this file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
