"""Times recorded outputs at the size of a real model, with random weights: rows G4 and G5 of docs/gpu.md.

    python -m benchmarks.gpu.transcripts --rows 2
    python -m benchmarks.gpu.transcripts ... --rows 8 --batch 32 --methods generate plain copyspec

What a pass costs depends on a model's sizes, what it says on its training. Here the sizes are those of `--model`, and
the end of its forward, inside every method and every CUDA graph, replaces the scores by those of the recorded output:
at position p the next token is the recorded one at p + 1, whatever was drafted. So all methods run the same passes as
a trained model that would have said this, and must return the recorded tokens.

With `--batch`, prompts of all tasks are decoded together; those beyond the last whole batch are left out. Each row's
tokens are renumbered, so that no two rows share one: a token then tells which row it belongs to, in whatever order a
method keeps them. Drafts are made without n-grams there, which know tokens by their usual numbers.

Methods take turns on every prompt or batch after one warm-up run of each; seconds are medians of the repeats.
copyspec's methods run all prompts once before, as captures of CUDA graphs are kept. `generate`, prompt lookup (10
tokens, one row only) and `static cache`, whose passes transformers compiles on CUDA, are transformers' own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from itertools import zip_longest
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.speed.methods import LOOKUP_TOKENS, Limits, make_request, synchronise
from benchmarks.speed.models import FORCED, load_model
from benchmarks.speed.prompts import Case, TranscriptOptions, transcript_cases
from copyspec.budget import CostModel
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.meter import costs_on
from copyspec.drafters import create
from copyspec.options import DraftOptions, StaticOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from kit import places
from kit.reporting import command_line, generate_padded, ratio, surroundings, without_cudnn_attention, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Target

LONGEST = 8192  # tokens of a script

STATIC = {
    "copyspec, dynamic": StaticOptions(use="never"),
    "copyspec, masks": StaticOptions(use="always", attention="masks"),
    "copyspec": StaticOptions(use="always"),
}
"""Options of the methods with drafts; plain decoding has the last ones."""

PLAIN = "plain"

Way = Callable[[Sequence[Case], Limits], list[list[int]]]


class Script:
    """Makes a model output recorded rows from inside its forward, which graphs capture and compilers compile.

    A hook would do the same between passes (`benchmarks.speed.models.Replay`), but static passes refuse hooks.
    """

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        device = model.device
        self._tokens = torch.zeros((rows, LONGEST), dtype=torch.long, device=device)
        self._owners = torch.zeros(model.config.vocab_size, dtype=torch.long, device=device)  # row of each token
        tokens, owners, kind = self._tokens, self._owners, type(model)
        forward: Callable[..., Any] = kind.forward

        @wraps(forward)  # `generate` and copyspec read the names of its arguments
        def scripted(module: object, *args: Any, **kwargs: Any) -> Any:
            output = forward(module, *args, **kwargs)
            last = kwargs.get("logits_to_keep")
            if not isinstance(last, torch.Tensor):
                last = slice(-output.logits.shape[1], None)
            following = (kwargs["position_ids"][:, last] + 1).clamp(max=LONGEST - 1)
            row = owners[kwargs["input_ids"][:, last]]
            output.logits.scatter_(2, tokens[row, following].unsqueeze(2), FORCED)
            return output

        # Of the same module, since the architecture is one that the tests cover.
        model.__class__ = type(kind.__name__, (kind,), {"forward": scripted, "__module__": kind.__module__})

    def start(self, rows: Sequence[Sequence[int]]) -> None:
        """Set the next rows: prompts with their recorded outputs. Several rows have no token in common."""
        self._owners.zero_()
        for number, row in enumerate(rows):
            self._tokens[number].fill_(row[-1])  # after its end, a row is continued with its last token
            values = torch.tensor(row, device=self._tokens.device)
            self._tokens[number, : len(row)] = values
            self._owners[values] = number


class Ways:
    """The methods by name, all on one model."""

    def __init__(self, model: PreTrainedModel, names: Sequence[str], batch: int = 1) -> None:
        self._model, self._script, self._batch = model, Script(model, batch), batch
        theirs: dict[str, dict[str, object]] = {
            "generate": {},
            "prompt lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
            "static cache": {"cache_implementation": "static"},
        }
        if batch > 1:
            del theirs["prompt lookup"]  # transformers has none for several rows
        every: dict[str, Way] = {name: partial(self._by_transformers, extra) for name, extra in theirs.items()}
        every[PLAIN] = self._own(STATIC["copyspec"], drafts=False)
        every |= {name: self._own(static, drafts=True) for name, static in STATIC.items()}
        unknown = sorted(set(names) - set(every))
        if unknown:
            raise ValueError(f"no method {unknown[0]!r}: some of {', '.join(map(repr, every))}")
        self.ways = {name: way for name, way in every.items() if name in (names or every)}

    def run(self, name: str, cases: Sequence[Case], limits: Limits) -> tuple[float, list[bool]]:
        """Seconds, and which outputs are the recorded ones."""
        self._script.start([[*case.prompt, *(case.recorded or [])] for case in cases])
        synchronise(self._model.device)
        started = perf_counter()
        outputs = self.ways[name](cases, limits)
        synchronise(self._model.device)
        seconds = perf_counter() - started
        wanted = [(case.recorded or [])[: limits.max_new_tokens] for case in cases]
        return seconds, [one == other for one, other in zip(outputs, wanted, strict=True)]

    def _own(self, static: StaticOptions, *, drafts: bool) -> Way:
        target, costs = wrap(self._model, static=static), costs_on(self._model.device.type)
        return partial(self._by_copyspec, target, costs, drafts)

    def _by_copyspec(
        self, target: Target, costs: CostModel, drafts: bool, cases: Sequence[Case], limits: Limits
    ) -> list[list[int]]:
        requests = []
        for row, case in enumerate(cases):
            ends = limits.eos_token_ids if self._batch == 1 else frozenset({row})  # as `together` numbers them
            drafter = partial(create, case.sources, ends, ngrams=case.ngrams) if drafts else None
            requests.append(make_request(case, replace(limits, eos_token_ids=ends), drafter))
        settings = DecodeSettings(DraftOptions(limits.draft_nodes if drafts else 0), self._batch)
        outputs: list[list[int]] = [[] for _ in cases]
        for step in decode(target, requests, settings, costs):
            for output in step:
                outputs[output.row] += output.tokens
        return outputs

    def _by_transformers(self, extra: dict[str, object], cases: Sequence[Case], limits: Limits) -> list[list[int]]:
        ends, length = limits.eos_token_ids, limits.max_new_tokens
        options = {"max_new_tokens": length, "eos_token_id": sorted(ends), **extra}
        return generate_padded(self._model, [case.prompt for case in cases], ends, pad=min(ends), **options)


def measure(
    ways: Ways, sets: dict[str, list[list[Case]]], limits: Limits, repeats: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return, by set of batches, the seconds of each method and how many of its outputs were always equal."""
    batches = [batch for batches in sets.values() for batch in batches]
    for name in ways.ways:
        started = perf_counter()
        ours = name == PLAIN or name in STATIC
        for batch in batches if ours else batches[:1]:
            ways.run(name, batch, limits)
        tell(f"{name}: warmed up in {perf_counter() - started:.1f} s")
    results: dict[str, Any] = {}
    for task, of_task in sets.items():
        seconds: dict[str, list[list[float]]] = {name: [] for name in ways.ways}
        equal = dict.fromkeys(ways.ways, 0)
        for batch in of_task:
            runs: dict[str, list[tuple[float, list[bool]]]] = {name: [] for name in ways.ways}
            for _ in range(repeats):
                for name, outputs in runs.items():
                    outputs.append(ways.run(name, batch, limits))
            for name, outputs in runs.items():
                seconds[name].append([second for second, _ in outputs])
                equal[name] += sum(map(all, zip(*(good for _, good in outputs), strict=True)))
        cases = [case for batch in of_task for case in batch]
        tokens = sum(min(len(case.recorded or ()), limits.max_new_tokens) for case in cases)
        results[task] = {"prompts": len(cases), "tokens": tokens}
        for name, times in seconds.items():
            total = sum(map(median, times))
            results[task][name] = {"seconds": total, "ms_per_token": 1e3 * total / tokens, "equal": equal[name]}
        tell(line(task, results[task]))
    return results


def together(sets: dict[str, list[Case]], size: int, end: int) -> tuple[list[list[Case]], frozenset[int]]:
    """Make batches of `size` prompts of all sets in turn, and return them with their ends of sequence. The tokens of
    each row are renumbered, so that no two rows of a batch share one."""
    mixed = [case for cases in zip_longest(*sets.values()) for case in cases if case is not None]
    batches = []
    for start in range(0, len(mixed) - size + 1, size):
        ids = {(row, end): row for row in range(size)}  # (row, token) -> new token
        batches.append([_renumbered(case, row, ids) for row, case in enumerate(mixed[start : start + size])])
    if not batches:
        raise ValueError(f"--batch {size} needs as many prompts; there are {len(mixed)}: raise --rows")
    return batches, frozenset(range(size))


def _renumbered(case: Case, row: int, ids: dict[tuple[int, int], int]) -> Case:
    def renumber(tokens: Sequence[int]) -> list[int]:
        return [ids.setdefault((row, token), len(ids)) for token in tokens]

    recorded = renumber(case.recorded or [])
    sources = tuple(Source(renumber(source.tokens), source.kind) for source in case.sources)
    return Case(renumber(case.prompt), sources, recorded)


def exchanged(sets: dict[str, list[Case]]) -> dict[str, list[Case]]:
    """Give each prompt the recorded output of one of the next set, so that there is nothing to copy.

    Raises ValueError if there is one set only."""
    if len(sets) < 2:
        raise ValueError(
            f"--exchanged needs the prompts of two tasks or more, got those of {', '.join(sets) or 'none'}"
        )
    following = [*list(sets)[1:], *list(sets)[:1]]
    return {
        name: [replace(case, recorded=sets[other][row % len(sets[other])].recorded) for row, case in enumerate(cases)]
        for (name, cases), other in zip(sets.items(), following, strict=True)
    }


def line(task: str, results: dict[str, Any]) -> str:
    """One task's milliseconds per token of each method, and how many times as fast as the first one it is."""
    names = [name for name, value in results.items() if isinstance(value, dict)]
    cells = [f"{task} ({results['prompts']} prompts, {results['tokens']} tokens)"]
    for name in names:
        times = ratio(results[names[0]]["seconds"], results[name]["seconds"])
        differing = _differing(results, name)
        note = f", {differing} DIFFER" if differing else ""
        cells.append(f"  {name:26} {results[name]['ms_per_token']:8.2f} ms a token{times:7.2f}x{note}")
    return "\n".join(cells)


def _differing(results: dict[str, Any], name: str) -> int:
    return int(results["prompts"] - results[name]["equal"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.transcripts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    parser.add_argument("--model", default="shape:llama3-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tasks", nargs="*", default=())
    parser.add_argument("--rows", type=int, default=2, help="prompts per task, set and model that was recorded")
    parser.add_argument("--sets", type=int, default=1, help="sets per task")
    parser.add_argument("--batch", type=int, default=1, help="decode this many prompts, of all tasks, together")
    parser.add_argument("--tokens", type=int, default=200, help="outputs are cut here")
    parser.add_argument(
        "--longest",
        type=int,
        default=3000,
        help=f"maximum tokens of a prompt, below {LONGEST // 2}; others are left out",
    )
    parser.add_argument("--nodes", type=int, default=32, help="maximum draft nodes of a pass")
    parser.add_argument("--exchanged", action="store_true", help="outputs of other prompts: nothing to copy")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--methods", nargs="*", default=())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    without_cudnn_attention()
    chosen = TranscriptOptions(
        options.transcripts, options.tokenizer, options.tasks, options.rows, max_prompt_tokens=options.longest
    )
    by_set, end = transcript_cases(chosen)
    sets: dict[str, list[Case]] = {}
    for (task, name, _), cases in by_set.items():
        if sum(key.startswith(f"{task} ") for key in sets) < options.sets:
            sets.setdefault(f"{task} {name}", []).extend(cases)
    if options.exchanged:
        sets = exchanged(sets)
    batches, ends = {name: [[case] for case in cases] for name, cases in sets.items()}, frozenset({end})
    if options.batch > 1:
        mixed, ends = together(sets, options.batch, end)
        batches = {f"{options.batch} rows of {len(sets)} sets": mixed}
    cases = [case for group in batches.values() for batch in group for case in batch]
    texts = [
        tokens for case in cases for tokens in (case.prompt, case.recorded or [], *(s.tokens for s in case.sources))
    ]
    model = load_model(
        options.model, options.device, getattr(torch, options.dtype), vocab_size=1 + max(map(max, filter(None, texts)))
    ).model
    ways = Ways(model, options.methods, options.batch)
    results = measure(ways, batches, Limits(options.tokens, ends, options.nodes), options.repeats, print)
    if options.json:
        command = command_line("benchmarks.gpu.transcripts", arguments)
        write_json(options.json, {"command": command, "machine": surroundings(options.device), "found": results})
    return int(any(_differing(task, name) for task in results.values() for name in ways.ways))


if __name__ == "__main__":
    sys.exit(main())
