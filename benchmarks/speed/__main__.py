"""`python -m benchmarks.speed`"""

from __future__ import annotations

import sys

from benchmarks.speed.run import main

if __name__ == "__main__":
    sys.exit(main())
