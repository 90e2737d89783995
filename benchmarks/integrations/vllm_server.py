"""Times the corrections of `copyspec gec --server` with vLLM as the server, with and without copyspec's drafter.

    python -m benchmarks.integrations.vllm_server --texts FILE --rows 200

Both servers run at the same time, each with one thread for its model, and take turns; one has the plug-in and its
middleware, the other has neither. `in process` is the same pipeline with copyspec's own engine, in batches of 8. With
"little to copy", the chats are sent as they are, with a repetition penalty that leaves few copies right, and for 100
tokens each; they name the text all the same. Figures are medians over the rounds of wall time and of the CPU time of
all processes, client included. Exit status 1 if an output differs from the one without drafts.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any
from urllib.request import urlopen

from benchmarks.integrations import vllm_engines as engines
from benchmarks.integrations.soak import KEY, Server, ready
from kit.reporting import command_line, machine, ratio, write_json

LITTLE: dict[str, Any] = {"max_tokens": 100, "repetition_penalty": 2.0, "ignore_eos": True}
COUNTED = {
    "generation_tokens_total": "tokens",
    "prompt_tokens_total": "prompt tokens",
    "spec_decode_num_drafts_total": "drafts",
    "spec_decode_num_draft_tokens_total": "drafted",
    "spec_decode_num_accepted_tokens_total": "accepted",
}
BATCH = 8  # of the engine in this process

Run = Callable[[Sequence[str]], list[str]]


class Turns:
    """One server, or none, and how it is asked."""

    def __init__(self, run: Run, server: Server | None = None) -> None:
        self._run, self._server = run, server
        self.times: list[tuple[float, float]] = []
        self.outputs: list[str] = []
        self.counts: Counter[str] = Counter()  # of the last run

    def take(self, texts: Sequence[str]) -> None:
        """Run once. Raises ValueError if the outputs are not those of the first run."""
        before = counts(self._server)
        wall, cpu = perf_counter(), self._cpu()
        outputs = self._run(texts)
        self.times.append((perf_counter() - wall, self._cpu() - cpu))
        self.counts = counts(self._server) - before
        self.outputs = self.outputs or outputs
        if self.outputs != outputs:
            raise ValueError("the outputs are not those of the first run")

    def _cpu(self) -> float:
        return process_time() + (self._server.cpu_seconds() if self._server else 0.0)


def counts(server: Server | None) -> Counter[str]:
    """What a server has counted since it started: tokens generated, drafted and accepted, and drafts."""
    totals: Counter[str] = Counter()
    if server is not None:
        with urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            for line in answer.read().decode().splitlines():
                name = line.partition("{")[0].removeprefix("vllm:")
                if name in COUNTED:
                    totals[COUNTED[name]] += int(float(line.rsplit(" ", 1)[1]))
    return totals


def corrections(model: Any) -> Run:
    """Correct the texts with a pipeline, and return what the model wrote."""
    from copyspec.pipelines import GECPipeline

    pipeline = GECPipeline(model, batch_size=BATCH, by_sentence=True)
    # Servers leave the space that a byte-level tokenizer begins with.
    return lambda texts: [
        "\n".join(result.text.strip() for result in corrected.results) for corrected in pipeline(texts)
    ]


def chats(url: str, at_once: int) -> Run:
    """Ask for continuations that have little to copy."""
    import openai

    async def all_of(texts: Sequence[str]) -> list[str]:
        places = asyncio.Semaphore(at_once)
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:

            async def ask(text: str) -> str:
                async with places:
                    answer = await client.chat.completions.create(
                        model="soak",
                        messages=[{"role": "user", "content": engines.TEMPLATE.format(text=text)}],
                        temperature=0,
                        extra_body={**LITTLE, "edit_source": text},
                    )
                return answer.choices[0].message.content or ""

            return list(await asyncio.gather(*map(ask, texts)))

    return lambda texts: asyncio.run(all_of(texts))


def measure(turns: dict[str, Turns], texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Let all take turns. The first round is not measured: servers learn costs in it, as they would in use."""
    names = list(turns)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            turns[name].take(texts)
    own = turns["copyspec"]
    figures: dict[str, Any] = {}
    for name, turn in turns.items():
        (seconds, cpu_seconds) = (median(times) for times in zip(*turn.times[1:], strict=True))
        pairs = list(zip(turn.times[1:], own.times[1:], strict=True))
        figures[name] = {
            "seconds": round(seconds, 3),
            "cpu seconds": round(cpu_seconds, 3),
            "copyspec over it": round(median(ratio(theirs[0], ours[0]) for theirs, ours in pairs), 3),
            "CPU": round(median(ratio(theirs[1], ours[1]) for theirs, ours in pairs), 3),
            "equal": sum(one == other for one, other in zip(turns["none"].outputs, turn.outputs, strict=True)),
            **turn.counts,
        }
    return figures


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    engines.set_up()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers are to be stopped
    import copyspec

    texts = engines.read_texts(options.texts, options.rows)
    command = command_line("benchmarks.integrations.vllm_server", words)
    report: dict[str, Any] = {"command": command, "machine": machine(), "versions": engines.versions(), "sets": []}
    equal = True
    with ExitStack() as stack:
        folder = stack.enter_context(engines.model_folder(options.model))
        servers: dict[str, Server] = {}
        for name in ("none", "copyspec"):
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            draft_tokens = options.draft_tokens if name == "copyspec" else 0
            servers[name] = Server("vllm", folder, scratch, draft_tokens=draft_tokens)
            stack.callback(servers[name].stop)
            asyncio.run(ready(servers[name]))
        urls = {name: f"http://127.0.0.1:{server.port}/v1" for name, server in servers.items()}
        engine = copyspec.load(options.model, dtype="float32") if options.in_process else None
        for task in options.tasks:
            for at_once in options.at_once:
                turns: dict[str, Turns] = {}
                for name, url in urls.items():
                    if task == "corrections":
                        remote = copyspec.remote(url, api_key=KEY, concurrency=at_once)
                        stack.callback(remote.close)
                        turns[name] = Turns(corrections(remote), servers[name])
                    else:
                        turns[name] = Turns(chats(url, at_once), servers[name])
                if engine is not None and task == "corrections":
                    turns["in process"] = Turns(corrections(engine))
                results = measure(turns, texts, options.rounds)
                report["sets"].append({"task": task, "at once": at_once, "texts": len(texts), **results})
                print(f"\n{task}: {len(texts)} texts, {at_once} at once")
                for name, figures in results.items():
                    equal = equal and figures["equal"] == len(texts)
                    print(f"{name:12}{figures}", flush=True)
                if options.json:
                    write_json(options.json, report)
    return int(not equal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="default", help="default, smollm2, or a folder (default: %(default)s)")
    add("--texts", help="file with one text per line, or JSON lines (default: the built-in sentences)")
    add("--rows", type=int, default=200)
    add("--tasks", nargs="+", choices=["corrections", "little to copy"], default=["corrections", "little to copy"])
    add("--at-once", type=int, nargs="+", default=[32, 1])
    add("--draft-tokens", type=int, default=16)
    add("--rounds", type=int, default=5)
    add("--in-process", action=argparse.BooleanOptionalAction, default=True)
    add("--json", help="write the report to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
