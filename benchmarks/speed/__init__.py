"""Whole runs, timed against their baselines in one process."""
