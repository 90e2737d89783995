"""The compiled module `_linear` (`native/linear.c`), or None: without a compiler at installation, for example. And what
it tells oneDNN, which multiplies bfloat16 for PyTorch, to keep it from instructions that end the process.

Some hypervisors announce AMX, but no palette to configure its tiles with. oneDNN up to 3.12 believes the announcement,
and PyTorch's first product in bfloat16 is an illegal instruction (github.com/uxlfoundation/oneDNN/issues/5689).
"""

from __future__ import annotations

import logging
import os

__all__ = ["VERSION", "_linear", "avoid_missing_tiles"]

logger = logging.getLogger(__name__)

VERSION = 15
"""Version of `_linear` that fits this package; one compiled from an older source is not used."""

try:
    import copyspec.targets.cpu._linear as _linear

    if _linear.VERSION != VERSION:
        raise ImportError
except ImportError:
    _linear = None  # type: ignore[assignment]

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
