"""Skips these tests unless the extras `remote`, `serve` and `dev` are installed."""

import importlib.util

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "openai")

collect_ignore_glob = [] if all(map(importlib.util.find_spec, NEEDED)) else ["test_*.py"]
