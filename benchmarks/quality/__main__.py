"""`python -m benchmarks.quality`"""

from __future__ import annotations

from benchmarks.quality.run import main

if __name__ == "__main__":
    main()
