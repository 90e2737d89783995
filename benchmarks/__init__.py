"""Benchmarks: every claim of speed comes from one of these commands."""
