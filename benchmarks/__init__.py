"""Benchmarks: each performance figure in the documentation comes from one of these commands."""
