"""Controls a headless Chromium over its DevTools protocol through pipes, without a driver."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One page in one browser. Every command waits at most `timeout` seconds for its answer."""

    def __init__(self, program: str, timeout: float = 60.0) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._timeout = timeout
        commands, self._send = os.pipe()
        self._receive, answers = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        # The browser reads commands from descriptor 3 and writes answers to descriptor 4.
        shell = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, program, *flags, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._count = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._send)
        os.close(self._receive)
        self._profile.cleanup()

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command and return its result. Raises RuntimeError if it fails, and TimeoutError if no answer
        comes."""
        self._count += 1
        message: dict[str, object] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read(method)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            if "method" in answer:
                self.events.append(answer)

    def wait_for(self, method: str) -> dict[str, Any]:
        """Wait for the next event of this name, and return its parameters."""
        while True:
            for index, event in enumerate(self.events):
                if event["method"] == method:
                    del self.events[: index + 1]
                    return dict(event["params"])
            answer = self._read(method)
            if "method" in answer:
                self.events.append(answer)

    def open(self, path: Path, *, width: int, height: int, dark: bool = False, touch: bool = False) -> None:
        """Open a file in a window of this size, and wait until it has loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Evaluate a JavaScript expression, await it if it is a promise, and return its value."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def picture(self, path: Path) -> None:
        """Save a PNG screenshot of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    @contextmanager
    def traced(self, events: list[Mapping[str, Any]]) -> Iterator[None]:
        """Record a browser trace while the context is active, and append its events to the list."""
        self.call(
            "Tracing.start",
            categories="devtools.timeline,toplevel,blink.user_timing,loading",
            transferMode="ReportEvents",
        )
        yield
        self.call("Tracing.end")
        while True:
            for event in self.events:
                if event["method"] == "Tracing.dataCollected":
                    events.extend(event["params"]["value"])
            done = any(event["method"] == "Tracing.tracingComplete" for event in self.events)
            self.events.clear()
            if done:
                return
            self.events.append(self._read("Tracing.tracingComplete"))

    def _read(self, what: str) -> dict[str, Any]:
        end = time.monotonic() + self._timeout
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._receive, 1 << 20) if ready else b""
            if not piece:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                raise TimeoutError(f"the browser did not answer {what} within {self._timeout:.0f} s")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))
