"""Whole runs, timed beside their baselines in one process."""
