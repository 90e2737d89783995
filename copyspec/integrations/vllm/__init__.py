"""copyspec inside vLLM: a proposer of drafts, per-request texts to copy from, and a middleware for HTTP.

Nothing here imports vLLM before vLLM itself makes a `Proposer`.
"""

from __future__ import annotations

from copyspec.integrations.vllm.middleware import Prediction
from copyspec.integrations.vllm.parameters import config, copying
from copyspec.integrations.vllm.proposer import Proposer

__all__ = ["Prediction", "Proposer", "config", "copying"]
