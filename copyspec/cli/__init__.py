"""The command line. Importing it loads no torch: commands import what they need when they run."""

from __future__ import annotations

from copyspec.cli.app import main

__all__ = ["main"]
