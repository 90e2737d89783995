"""Tests of the server want what the extras `serve` and `dev` install."""

import importlib.util

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "openai")

collect_ignore_glob = [] if all(map(importlib.util.find_spec, NEEDED)) else ["test_*.py"]
