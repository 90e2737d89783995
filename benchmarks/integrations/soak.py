"""Soak-tests a server on this machine, with well-behaved and badly behaved clients at the same time.

python -m benchmarks.integrations.soak --server copyspec --clients 64 --seconds 600

The test starts `copyspec serve`, or vLLM with copyspec's proposer, on a free port. First a single client requests every
text once, without naming a source. Then clients request them at random: whole or streamed, reading slowly,
disconnecting in the middle of an answer or a request, with bodies that are too large, broken JSON, wrong values and
wrong keys. Every complete answer must equal the first one, every bad request must get its status, and in the end the
server must be idle, with the same open files and about the same memory. Exit status 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.integrations import vllm_engines as engines
from kit.reporting import machine, write_json

KEY = "a-key-of-the-soak"
PATH = "/v1/completions"
MAX_TOKENS = 96
TOO_LARGE = 5 << 20  # bytes; copyspec serves up to 4 MiB
TOO_LONG = 2000  # repetitions of a text
START_SECONDS, ANSWER_SECONDS = 600, 300

KINDS = {
    "whole": 5,
    "pieces": 4,
    "slow reader": 2,
    "goes during the answer": 3,
    "goes during the request": 1,
    "too large": 1,
    "no JSON": 1,
    "wrong value": 1,
    "wrong key": 1,
    "no HTTP": 1,
}
"""Weights with which a client's next action is drawn."""

STATUS = {"too large": (413, 400), "no JSON": (400, 422), "wrong value": (400,), "wrong key": (401,)}
SETTLE_SECONDS = 20
MAX_GROWTH = 64  # maximum growth in MiB between the first third of the run and its end


class Server:
    """A server in its own process."""

    def __init__(self, kind: str, model: str, scratch: Path, *, draft_tokens: int = 16) -> None:
        self.kind, self.port = kind, _free_port()
        self.log = scratch / "server.log"
        environment = os.environ | {"COPYSPEC_API_KEY": KEY} | engines.SETTINGS
        environment.setdefault(*engines.FEW_KERNELS)
        if kind == "copyspec":
            words = ["-m", "copyspec", "serve", "--model", model, "--dtype", "float32"]
            words += ["--name", "soak", "--batch-size", "16"]
        else:
            words = ["-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "soak"]
            words += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "32"]
            # As on a GPU: by default, the CPU build runs the model in a third process, for which the second one spins.
            words += ["--distributed-executor-backend", "uni"]
            words += ["--api-key", KEY, "--host", "127.0.0.1"]
            if draft_tokens:
                speculative = {
                    "model": "copyspec.integrations.vllm.Proposer",
                    "num_speculative_tokens": draft_tokens,
                }
                words += ["--speculative-config", json.dumps(speculative)]
                words += ["--middleware", "copyspec.integrations.vllm.Prediction"]
        command = [sys.executable, *words, "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True
        )

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()

    def cpu_seconds(self) -> float:
        """Return the CPU time that its processes have taken."""
        times = [process.cpu_times() for process in self._family()]
        return float(sum(spent.user + spent.system for spent in times))

    def measure(self) -> dict[str, int]:
        """Return memory in MiB and the number of open files of its processes."""
        family = self._family()
        return {
            "MiB": sum(process.memory_info().rss for process in family) >> 20,
            "files": sum(process.num_fds() for process in family),
        }

    def _family(self) -> list[Any]:
        import psutil

        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]


async def ready(server: Server) -> None:
    """Wait for a server. Raises SystemExit if it ends or takes too long."""
    begun = time.monotonic()
    while time.monotonic() - begun < START_SECONDS:
        if server.process.poll() is not None:
            raise SystemExit(f"the server has ended:\n{server.log.read_text()[-2000:]}")
        with suppress(OSError):
            async with connected(server.port):
                return
        await asyncio.sleep(0.5)
    raise SystemExit("the server did not start")


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def request(body: bytes, *, key: str = KEY, length: int | None = None) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body) if length is None else length}\r\n\r\n"
    return head.encode() + body


async def answer(reader: asyncio.StreamReader, *, slow: bool = False) -> tuple[int, bytes]:
    """Read an answer; return status and body. A slow client reads a few bytes at a time, with pauses."""
    status = int((await reader.readline()).split()[1])
    chunked = False
    while (line := await reader.readline()).strip():
        chunked |= line.lower().startswith(b"transfer-encoding: chunked")
    pieces = []
    while piece := await reader.read(200 if slow else 1 << 16):
        pieces.append(piece)
        if slow:
            await asyncio.sleep(0.05)
    body = b"".join(pieces)
    return status, _joined(body) if chunked else body


class Soak:
    """All clients and their observations."""

    def __init__(self, server: Server, texts: Sequence[str], seed: int) -> None:
        self._server, self._texts, self._rng = server, texts, random.Random(seed)
        self._expected: list[str] = []
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []

    async def learn(self) -> None:
        """Request every text once, and remember the answers."""
        for text in self._texts:
            status, body = await self._ask(json.dumps(self._fields(text)).encode())
            if status != 200:
                raise SystemExit(f"status {status}: {body[:500]!r}")
            self._expected.append(json.loads(body)["choices"][0]["text"])

    async def client(self, until: float) -> None:
        """Run one client after another until time `until`."""
        kinds, weights = list(KINDS), list(KINDS.values())
        while time.monotonic() < until:
            kind = self._rng.choices(kinds, weights)[0]
            number = self._rng.randrange(len(self._texts))
            try:
                await asyncio.wait_for(self._act(kind, number), ANSWER_SECONDS)
                self.seen[kind] += 1
            except Exception as error:
                self._fault(f"{kind}: {type(error).__name__}: {error}")
                await asyncio.sleep(0.5)

    async def idle(self) -> dict[str, float]:
        """Return the server's own counts of unfinished work, after all clients have left."""
        async with connected(self._server.port) as (reader, writer):
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            status, body = await answer(reader)
        if status != 200:
            self._fault(f"metrics: status {status}")
        names = ("copyspec_rows_running", "copyspec_prompts_waiting", "vllm:num_requests_running")
        lines = [line.rsplit(" ", 1) for line in body.decode().splitlines() if line.startswith(names)]
        return {name: float(value) for name, value in lines}

    async def _act(self, kind: str, number: int) -> None:
        text = self._texts[number]
        expected = {"type": "content", "content": text}
        ways: list[dict[str, Any]] = [{}, {"edit_source": text}, {"references": [text]}, {"prediction": expected}]
        fields = self._fields(text) | self._rng.choice(ways)
        if kind == "whole":
            status, body = await self._ask(json.dumps(fields).encode())
            self._check(kind, status, number, lambda: json.loads(body)["choices"][0]["text"])
        elif kind in ("pieces", "slow reader"):
            status, body = await self._ask(json.dumps(fields | {"stream": True}).encode(), slow=kind == "slow reader")
            self._check(kind, status, number, lambda: _streamed(body))
        elif kind.startswith("goes"):
            whole = request(json.dumps(fields | {"stream": True}).encode())
            async with connected(self._server.port) as (reader, writer):
                writer.write(whole if kind.endswith("answer") else whole[: self._rng.randrange(len(whole))])
                await writer.drain()
                if kind.endswith("answer"):
                    await reader.read(self._rng.choice([1, 300, 600]))
        elif kind == "no HTTP":
            async with connected(self._server.port) as (reader, writer):
                writer.write(self._rng.randbytes(200) + b"\r\n\r\n")
                with suppress(OSError):
                    await reader.read(1000)
        else:
            bodies = {"no JSON": b'{"prompt": "x', "wrong value": json.dumps(fields | {"edit_source": 3}).encode()}
            key = "wrong" if kind == "wrong key" else KEY
            if kind == "too large":
                if self._server.kind == "copyspec":
                    status, _ = await self._ask(b'{"prompt": "', length=TOO_LARGE)
                else:  # vLLM limits the context length but not the size of a body
                    long = text * TOO_LONG
                    status, _ = await self._ask(json.dumps(self._fields(long) | {"edit_source": long}).encode())
            else:
                status, _ = await self._ask(bodies.get(kind, json.dumps(fields).encode()), key=key)
            if status not in STATUS[kind]:
                self._fault(f"{kind}: status {status}")

    async def _ask(self, body: bytes, *, slow: bool = False, **sent: Any) -> tuple[int, bytes]:
        async with connected(self._server.port) as (reader, writer):
            writer.write(request(body, **sent))
            await writer.drain()
            return await answer(reader, slow=slow)

    def _check(self, kind: str, status: int, number: int, read: Any) -> None:
        if status == 429:
            self.seen["told to come again"] += 1
        elif status != 200:
            self._fault(f"{kind}: status {status}")
        elif (text := read()) != self._expected[number]:
            self._fault(f"{kind}: text {number} is {text!r}, and not {self._expected[number]!r}")

    def _fields(self, text: str) -> dict[str, Any]:
        prompt = engines.TEMPLATE.format(text=text)
        return {"model": "soak", "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}

    def _fault(self, text: str) -> None:
        self.faults.append(text)
        if len(self.faults) <= 5:
            print(f"FAULT {text}", flush=True)


async def soak(server: Server, texts: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    run = Soak(server, texts, options.seed)
    await ready(server)
    await run.learn()
    before, begun, grown = server.measure(), time.monotonic(), []
    until = begun + options.seconds
    clients = [asyncio.create_task(run.client(until)) for _ in range(options.clients)]
    while not all(client.done() for client in clients):
        await asyncio.sleep(min(10.0, options.seconds / 10))
        grown.append(server.measure()["MiB"])
    await asyncio.gather(*clients)
    end = time.monotonic() + SETTLE_SECONDS
    while (left := await run.idle()) and any(left.values()) and time.monotonic() < end:
        await asyncio.sleep(0.5)
    await run.learn()  # checks that it still answers; answers are compared below
    half = len(run._expected) // 2
    same = run._expected[:half] == run._expected[half:]
    after = server.measure()
    status = server.process.poll()
    third = max(grown[: max(1, len(grown) // 3)])
    report = {"seen": dict(run.seen), "faults": run.faults[:20], "before": before, "after": after, "MiB": grown}
    holds = not run.faults and status is None and same and bool(left) and not any(left.values())
    holds = holds and after["files"] <= before["files"] + 8 and after["MiB"] - third <= MAX_GROWTH
    return report | {"left": left, "seconds": time.monotonic() - begun, "status": status, "holds": holds}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _joined(body: bytes) -> bytes:
    """Decode a chunked body."""
    chunks: list[bytes] = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return b"".join(chunks)
        chunks.append(body[:length])
        body = body[length + 2 :]
    raise ValueError("an answer in chunks has no end")


def _streamed(body: bytes) -> str:
    events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise ValueError(f"a stream without its end: {body[-200:]!r}")
    chunks = [json.loads(event) for event in events[:-1]]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=["copyspec", "vllm"], default="copyspec")
    parser.add_argument("--model", default="default", help="default, smollm2, or a folder (default: %(default)s)")
    parser.add_argument("--texts", help="file with one text per line (default: the built-in sentences)")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = engines.read_texts(options.texts, options.rows)
    with engines.model_folder(options.model) as folder, tempfile.TemporaryDirectory() as scratch:
        model = "default" if options.server == "copyspec" and options.model == "default" else folder
        server = Server(options.server, model, Path(scratch))
        try:
            report = asyncio.run(soak(server, texts, options))
        finally:
            ended = server.stop()
        tracebacks = server.log.read_text(errors="replace").count("Traceback")
    report |= {"exit status": ended, "tracebacks": tracebacks, "machine": machine()}
    print(json.dumps(report, indent=1))
    if options.json:
        write_json(options.json, report)
    return int(not report["holds"] or tracebacks > 0)


if __name__ == "__main__":
    raise SystemExit(main())
