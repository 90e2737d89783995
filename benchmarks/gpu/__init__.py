"""Measurements for docs/gpu.md. Every part can be tested on a CPU with tiny models."""
