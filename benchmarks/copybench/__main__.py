"""`python -m benchmarks.copybench`"""

from __future__ import annotations

import sys

from benchmarks.copybench.run import main

if __name__ == "__main__":
    sys.exit(main())
