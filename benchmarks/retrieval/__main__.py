"""`python -m benchmarks.retrieval`"""

from __future__ import annotations

import sys

from benchmarks.retrieval.run import main

if __name__ == "__main__":
    sys.exit(main())
