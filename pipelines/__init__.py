"""Pipelines: whole tasks, from texts to results."""

from __future__ import annotations

from .gec import Correction, GECPipeline, correction_prompt
from .quoting import Quote, answer, quote_prompt

__all__ = ["Correction", "GECPipeline", "Quote", "answer", "correction_prompt", "quote_prompt"]
