"""Measured priors: the weight of a cursor in each situation, before anything is learned from the row."""

from __future__ import annotations

from copyspec.drafters.situations import ALIGNED, ALIGNED_1, COUNT, NONE, SKIP_1, STRIDE

PRIORS: list[float] = []
for state in range(COUNT):
    family, length = divmod(state, STRIDE)
    if family == NONE:
        PRIORS.append(1.0)
    elif family == ALIGNED:
        PRIORS.append(min(20.0, 2.0 + 1.5 * length))
    elif family == ALIGNED_1:
        PRIORS.append(min(20.0, 0.3 * 1.8**length))
    elif family <= 6:
        PRIORS.append(min(20.0, 0.05 * 2.2**length))
    elif family <= 9:
        PRIORS.append(min(20.0, 0.3 * 2.0**length))
    elif family == 10:
        PRIORS.append(5.0)
    elif family == 12:
        PRIORS.append(0.6 if length in (1, 2, 5, 6, 7) else 0.2)
    elif family < SKIP_1:
        PRIORS.append(0.05)
    else:
        PRIORS.append(0.02)
