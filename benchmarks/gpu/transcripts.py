"""Times recorded outputs at the size of a real model, with random weights: row G4 of docs/gpu.md.

    python -m benchmarks.gpu.transcripts shared/data/transcripts --tokenizer llama3.tokenizer.json.gz --rows 2

What a pass costs depends on a model's sizes, what it says on its training. Here the sizes are those of `--model`, and
the end of its forward, inside every method and every CUDA graph, replaces the scores by those of the recorded output:
at position p the next token is the recorded one at p + 1, whatever was drafted. So all methods run the same passes as
a trained model that would have said this, and must return the recorded tokens.

Methods take turns on every prompt after one warm-up run of each; seconds are medians of the repeats. copyspec's methods
run all prompts once before, as captures of CUDA graphs are kept. `generate`, prompt lookup (10 tokens) and
`static cache`, whose passes transformers compiles on CUDA, are transformers' own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.reporting import command_line, generate_padded, ratio, surroundings, without_cudnn_attention, write_json
from benchmarks.speed.methods import LOOKUP_TOKENS, Limits, make_request, synchronise
from benchmarks.speed.models import FORCED, load_model
from benchmarks.speed.prompts import Case, TranscriptOptions, transcript_cases
from copyspec.budget import CostModel, prior_slope
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.drafters import create
from copyspec.options import DraftOptions
from copyspec.static_options import StaticOptions
from copyspec.targets import wrap

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

Way = Callable[[Case, Limits], list[int]]


class Script:
    """Makes a model output a recorded row from inside its forward, which graphs capture and compilers compile.

    A hook would do the same between passes (`benchmarks.speed.models.Replay`), but static passes refuse hooks.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._tokens = torch.zeros(LONGEST, dtype=torch.long, device=model.device)
        tokens, kind = self._tokens, type(model)
        forward: Callable[..., Any] = kind.forward

        @wraps(forward)  # `generate` and copyspec read the names of its arguments
        def scripted(module: object, *args: Any, **kwargs: Any) -> Any:
            output = forward(module, *args, **kwargs)
            positions = kwargs["position_ids"][:, -output.logits.shape[1] :]
            upcoming = tokens[(positions + 1).clamp(max=LONGEST - 1)].expand(output.logits.shape[0], -1)
            output.logits.scatter_(2, upcoming.unsqueeze(2), FORCED)
            return output

        # Of the same module, since the architecture is one that the tests cover.
        model.__class__ = type(kind.__name__, (kind,), {"forward": scripted, "__module__": kind.__module__})

    def start(self, tokens: Sequence[int]) -> None:
        """Set the next row: a prompt and its recorded output."""
        self._tokens.fill_(tokens[-1])  # after its end, a row is continued with its last token
        self._tokens[: len(tokens)] = torch.tensor(tokens, device=self._tokens.device)


class Ways:
    """The methods by name, all on one model."""

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        self._model, self._script = model, Script(model)
        theirs: dict[str, dict[str, object]] = {
            "generate": {},
            "prompt lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
            "static cache": {"cache_implementation": "static"},
        }
        every: dict[str, Way] = {name: partial(self._by_transformers, extra) for name, extra in theirs.items()}
        every[PLAIN] = self._own(STATIC["copyspec"], drafts=False)
        every |= {name: self._own(static, drafts=True) for name, static in STATIC.items()}
        unknown = sorted(set(names) - set(every))
        if unknown:
            raise ValueError(f"no method {unknown[0]!r}: some of {', '.join(map(repr, every))}")
        self.ways = {name: way for name, way in every.items() if name in (names or every)}

    def run(self, name: str, case: Case, limits: Limits) -> tuple[float, bool]:
        """Seconds, and whether the output is the recorded one."""
        recorded = case.recorded or []
        self._script.start([*case.prompt, *recorded])
        synchronise(self._model.device)
        started = perf_counter()
        output = self.ways[name](case, limits)
        synchronise(self._model.device)
        return perf_counter() - started, output == recorded[: limits.max_new_tokens]

    def _own(self, static: StaticOptions, *, drafts: bool) -> Way:
        target, costs = wrap(self._model, static=static), CostModel(slope=prior_slope(self._model.device.type))
        return partial(self._by_copyspec, target, costs, drafts)

    def _by_copyspec(self, target: Target, costs: CostModel, drafts: bool, case: Case, limits: Limits) -> list[int]:
        drafter = partial(create, case.sources, limits.eos_token_ids, ngrams=case.ngrams) if drafts else None
        request = make_request(case, limits, drafter)
        settings = DecodeSettings(DraftOptions(limits.draft_nodes if drafts else 0), 1)
        return [
            token for step in decode(target, [request], settings, costs) for output in step for token in output.tokens
        ]

    def _by_transformers(self, extra: dict[str, object], case: Case, limits: Limits) -> list[int]:
        ends, length = limits.eos_token_ids, limits.max_new_tokens
        options = {"max_new_tokens": length, "eos_token_id": sorted(ends), **extra}
        return generate_padded(self._model, [case.prompt], ends, pad=min(ends), **options)[0]


def measure(
    ways: Ways, sets: dict[str, list[Case]], limits: Limits, repeats: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return, by task, the seconds of each method and over how many prompts they were equal."""
    cases = [case for task in sets.values() for case in task]
    for name in ways.ways:
        started = perf_counter()
        ours = name == PLAIN or name in STATIC
        for case in cases if ours else cases[:1]:
            ways.run(name, case, limits)
        tell(f"{name}: warmed up in {perf_counter() - started:.1f} s")
    found: dict[str, Any] = {}
    for task, of_task in sets.items():
        seconds: dict[str, list[list[float]]] = {name: [] for name in ways.ways}
        equal = dict.fromkeys(ways.ways, 0)
        for case in of_task:
            runs: dict[str, list[tuple[float, bool]]] = {name: [] for name in ways.ways}
            for _ in range(repeats):
                for name, each in runs.items():
                    each.append(ways.run(name, case, limits))
            for name, each in runs.items():
                seconds[name].append([second for second, _ in each])
                equal[name] += all(good for _, good in each)
        tokens = sum(min(len(case.recorded or ()), limits.max_new_tokens) for case in of_task)
        found[task] = {"prompts": len(of_task), "tokens": tokens}
        for name, times in seconds.items():
            total = sum(map(median, times))
            found[task][name] = {"seconds": total, "ms_per_token": 1e3 * total / tokens, "equal": equal[name]}
        tell(line(task, found[task]))
    return found


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


def line(task: str, found: dict[str, Any]) -> str:
    """One task's milliseconds per token of each method, and how many times as fast as the first one it is."""
    names = [name for name, each in found.items() if isinstance(each, dict)]
    cells = [f"{task} ({found['prompts']} prompts, {found['tokens']} tokens)"]
    for name in names:
        times = ratio(found[names[0]]["seconds"], found[name]["seconds"])
        differing = _differing(found, name)
        note = f", {differing} DIFFER" if differing else ""
        cells.append(f"  {name:26} {found[name]['ms_per_token']:8.2f} ms a token{times:7.2f}x{note}")
    return "\n".join(cells)


def _differing(found: dict[str, Any], name: str) -> int:
    return int(found["prompts"] - found[name]["equal"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.transcripts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("transcripts", nargs="+", help="files of transcripts, or folders that hold them")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json with which the texts are cut")
    parser.add_argument("--model", default="shape:llama3-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tasks", nargs="*", default=())
    parser.add_argument("--rows", type=int, default=2, help="prompts per task, set and model that was recorded")
    parser.add_argument("--sets", type=int, default=1, help="sets per task")
    parser.add_argument("--tokens", type=int, default=200, help="outputs are cut here")
    parser.add_argument("--nodes", type=int, default=32, help="maximum draft nodes of a pass")
    parser.add_argument("--exchanged", action="store_true", help="outputs of other prompts: nothing to copy")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--methods", nargs="*", default=())
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    without_cudnn_attention()
    chosen = TranscriptOptions(given.transcripts, given.tokenizer, given.tasks, given.rows, max_prompt_tokens=3000)
    by_set, end = transcript_cases(chosen)
    sets: dict[str, list[Case]] = {}
    for (task, name, _), cases in by_set.items():
        if sum(key.startswith(f"{task} ") for key in sets) < given.sets:
            sets.setdefault(f"{task} {name}", []).extend(cases)
    if given.exchanged:
        sets = exchanged(sets)
    rows = [[*case.prompt, *(case.recorded or [])] for cases in sets.values() for case in cases]
    needed = 1 + max(map(max, rows))
    model = load_model(given.model, given.device, getattr(torch, given.dtype), vocab_size=needed).model
    room = int(getattr(model.config, "max_position_embeddings", LONGEST)) - given.tokens - given.nodes - 1
    sets = {name: [case for case in cases if len(case.prompt) <= room] for name, cases in sets.items()}
    ways = Ways(model, given.methods)
    limits = Limits(given.tokens, frozenset({end}), given.nodes)
    found = measure(ways, {name: cases for name, cases in sets.items() if cases}, limits, given.repeats, print)
    if given.json:
        command = command_line("benchmarks.gpu.transcripts", arguments)
        write_json(given.json, {"command": command, "machine": surroundings(given.device), "found": found})
    return int(any(_differing(task, name) for task in found.values() for name in ways.ways))


if __name__ == "__main__":
    sys.exit(main())
