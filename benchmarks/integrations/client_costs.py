"""Measures the processor time that a request to a server takes in this process, and the memory of many under way.

    python -m benchmarks.integrations.client_costs
    python -m benchmarks.integrations.client_costs --beside CHECKOUT     # alternates with the copyspec of another one

The server answers at once, in a process of its own, with what it is told to correct. A request is all that
`copyspec.remote` does between a pipeline's input and its result: the body, the official client, HTTP, and reading.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from kit.reporting import command_line, machine, resident, write_json

WARM = 200  # requests before those that are measured


async def serve() -> None:
    """Answer every chat with the text in its prompt, until the input ends."""
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await _head(reader):
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        data = await reader.readexactly(int(lines.get(b"content-length", 0)))
        if head.startswith(b"GET"):
            sent: dict[str, object] = {"data": [{"id": "m", "owned_by": "copyspec"}]}
        else:
            text = json.loads(data)["messages"][-1]["content"].partition(": ")[2]
            sent = _completion(text)
        body = json.dumps(sent).encode()
        fields = f"content-type: application/json\r\nx-request-id: 1\r\ncontent-length: {len(body)}"
        writer.write(f"HTTP/1.1 200 OK\r\n{fields}\r\n\r\n".encode() + body)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _completion(text: str) -> dict[str, object]:
    message = {"role": "assistant", "content": text}
    details = {"accepted_prediction_tokens": 20, "rejected_prediction_tokens": 2}
    usage = {"prompt_tokens": 30, "completion_tokens": 25, "total_tokens": 55, "completion_tokens_details": details}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None, "changes": []}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def measure(requests: int, concurrency: int) -> dict[str, float]:
    """Measure milliseconds of processor time per request, and MiB that all of them add to this process."""
    import copyspec
    from copyspec.client.asking import Asking
    from copyspec.engine.asking.inputs import Input

    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        texts = [f"He go to the school number {number}, and the childrens was happy." for number in range(requests)]
        inputs = [Input(f"Correct the grammar: {text}", edit_source=text, max_new_tokens=128) for text in texts]
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        with copyspec.remote(url, model="m", concurrency=concurrency) as remote:
            how = Asking(margins=True)
            for _ in remote.answers(inputs[:WARM], how):
                pass
            before, began = resident(), process_time()
            answers = dict(remote.answers(inputs, how))
            spent = process_time() - began
        server.stdin.close()
    if wrong := [index for index, text in enumerate(texts) if getattr(answers[index], "text", None) != text]:
        raise ValueError(f"{len(wrong)} answers are wrong")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"ms a request": 1000 * spent / requests, "MiB": (peak - before) / 2**20}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds; both checkouts run once per round")
    parser.add_argument("--beside", type=Path, help="path of another checkout of copyspec to alternate with")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.serve:
        asyncio.run(serve())
        return 0
    if options.child:
        print(json.dumps(measure(options.requests, *options.concurrency)))
        return 0
    checkouts = {"this": Path(__file__).parents[2]}
    checkouts |= {"beside": options.beside.resolve()} if options.beside else {}
    command_given = command_line("benchmarks.integrations.client_costs", words)
    report: dict[str, Any] = {"command": command_given, "machine": machine(), "sets": []}
    for concurrency in options.concurrency:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
        for _ in range(options.rounds):
            for name, checkout in checkouts.items():
                arguments = ["--child", "--requests", str(options.requests), "--concurrency", str(concurrency)]
                environment = {**os.environ, "PYTHONPATH": str(checkout)}
                command = [sys.executable, str(Path(__file__).resolve()), *arguments]
                done = subprocess.run(command, env=environment, cwd=checkout, stdout=subprocess.PIPE, check=True)
                runs[name].append(json.loads(done.stdout))
        for name, measured in runs.items():
            figures = {figure: round(median(run[figure] for run in measured), 3) for figure in measured[0]}
            least = round(min(run["ms a request"] for run in measured), 3)
            entry = {"checkout": name, "at once": concurrency, **figures, "least ms a request": least}
            report["sets"].append(entry)
            print(entry, flush=True)
    if options.json:
        write_json(options.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
