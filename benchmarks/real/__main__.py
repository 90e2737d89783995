"""`python -m benchmarks.real`"""

from __future__ import annotations

import sys

from benchmarks.real.run import main

if __name__ == "__main__":
    sys.exit(main())
