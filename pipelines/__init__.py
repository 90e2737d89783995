"""Pipelines: whole tasks, from texts to results."""

from __future__ import annotations

from .gec import Correction, GECPipeline
from .quoting import Quote, answer

__all__ = ["Correction", "GECPipeline", "Quote", "answer"]
