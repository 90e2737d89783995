"""Skips the tests of the server unless the extras `serve` and `dev` are installed."""

import importlib.util

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "openai")

collect_ignore_glob = [] if all(map(importlib.util.find_spec, NEEDED)) else ["test_*.py"]
