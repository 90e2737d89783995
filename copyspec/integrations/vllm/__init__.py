"""copyspec inside vLLM: a draft proposer, texts to copy from per request, and a middleware for HTTP fields.

vLLM is not imported before it creates a `Proposer` itself.
"""

from __future__ import annotations

from copyspec.integrations.vllm.middleware import Prediction
from copyspec.integrations.vllm.parameters import config, copying
from copyspec.integrations.vllm.proposer import Proposer

__all__ = ["Prediction", "Proposer", "config", "copying"]
