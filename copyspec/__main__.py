"""Runs the CLI: `python -m copyspec`."""

from __future__ import annotations

import sys

from copyspec.cli import main

if __name__ == "__main__":
    sys.exit(main())
