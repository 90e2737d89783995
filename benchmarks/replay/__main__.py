"""`python -m benchmarks.replay`"""

from __future__ import annotations

import sys

from benchmarks.replay.run import main

if __name__ == "__main__":
    sys.exit(main())
