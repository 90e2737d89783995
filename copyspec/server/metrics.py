"""Prometheus metrics of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

if TYPE_CHECKING:
    from copyspec.engine.engine import Engine
    from copyspec.engine.results import Result

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PATHS = frozenset(("/health", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/completions", "/tokenize"))
"""Other paths are counted together, so that a scanner cannot fill the memory with labels."""

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """The metrics of one server, or of a program that uses an engine itself, in a registry of their own, so that
    several in one program stay separate."""

    def __init__(self, engine: Engine) -> None:
        """Its running and waiting rows are shown as they are; results are counted when they are given to `finished`."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "copyspec_requests", "Answers, by path and status", ["path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "copyspec_request_seconds", "From a request to the end of its answer", buckets=SECONDS, registry=registry
        )
        self._first = Histogram(
            "copyspec_first_token_seconds", "From a request to the first text", buckets=SECONDS, registry=registry
        )
        counted = {
            "prompt_tokens": "Tokens of prompts",
            "output_tokens": "Tokens of outputs",
            "passes": "Passes of the model, per row",
            "draft_tokens": "Tokens that were drafted",
            "accepted_tokens": "Drafted tokens that were accepted",
        }
        self._tokens = {name: Counter(f"copyspec_{name}", text, registry=registry) for name, text in counted.items()}
        running = Gauge("copyspec_rows_running", "Rows that are being decoded", registry=registry)
        running.set_function(lambda: engine.scheduler.running)
        waiting = Gauge("copyspec_prompts_waiting", "Prompts that wait for a row", registry=registry)
        waiting.set_function(lambda: engine.scheduler.waiting)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a finished request; status 0: it ended before there was a response."""
        known = "/v1/models" if path.startswith("/v1/models/") else path
        self._requests.labels(known if known in PATHS else "other", str(status or "none")).inc()
        if path.startswith("/v1/"):
            self._seconds.observe(seconds)

    def began(self, seconds: float) -> None:
        """Record the time to the first text of an answer."""
        self._first.observe(seconds)

    def finished(self, results: Sequence[Result]) -> None:
        """Count the tokens of complete outputs."""
        for result in results:
            self._tokens["prompt_tokens"].inc(result.prompt_tokens)
            for sample in result.samples or (result,):
                self._tokens["output_tokens"].inc(len(sample.token_ids))
                self._tokens["passes"].inc(sample.stats.num_passes)
                self._tokens["draft_tokens"].inc(sample.stats.num_draft_tokens)
                self._tokens["accepted_tokens"].inc(sample.stats.num_accepted_tokens)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus, of `CONTENT_TYPE`."""
        return bytes(generate_latest(self.registry))
