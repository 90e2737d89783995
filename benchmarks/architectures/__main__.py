"""`python -m benchmarks.architectures`"""

from __future__ import annotations

import sys

from benchmarks.architectures.run import main

if __name__ == "__main__":
    sys.exit(main())
