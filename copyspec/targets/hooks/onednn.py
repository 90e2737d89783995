"""Keeps oneDNN, which multiplies bfloat16 for PyTorch, from instructions that end the process.

Some hypervisors announce AMX, but no palette to configure its tiles with. oneDNN up to 3.12 believes the announcement,
and PyTorch's first product in bfloat16 is an illegal instruction (github.com/uxlfoundation/oneDNN/issues/5689).
"""

from __future__ import annotations

import logging
import os

from copyspec.targets.compiled import _linear

logger = logging.getLogger(__name__)

LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Environment variables with the newest instructions that oneDNN may use; it reads them at its first product."""

BELOW_TILES = "AVX512_CORE_FP16"


def avoid_missing_tiles() -> None:
    """Limit oneDNN where AMX is announced and missing, unless the user has set a limit."""
    if any(name in os.environ for name in LIMITS):
        return
    if _linear is not None and _linear.lacks_palettes():
        os.environ[LIMITS[0]] = BELOW_TILES
        logger.info("%s=%s is set: this machine announces AMX, but lacks it", LIMITS[0], BELOW_TILES)
